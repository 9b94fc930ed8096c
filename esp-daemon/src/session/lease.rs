//! Requests about leases.

use std::ops::RangeInclusive;
use std::sync::Arc;

use esp_client::control::{ErrorKind, LeaseProtocol, LeaseRing, Reply};
use esp_engine::{Command, LinkId, ListenerId};
use esp_proto::Port;
use netif::RingShape;

use super::requests::in_use;
use super::{ReplyWithFds, Session};
use crate::accounts::Charge;
use crate::config::Resource;
use crate::leases::record::Entry;
use crate::leases::{Lease, LeasedConnection, MAX_PORTS};
use crate::links::{self, Link};
use crate::node::Client;
use crate::ports::{self, PortClaim, Purpose};
use crate::refusal::Refusal;

impl Session {
    /// Charges the user for a lease and its buffers, if the policy allows it.
    fn charge_lease(&self, link: LinkId) -> Result<Vec<Charge>, Refusal> {
        let (node, uid) = (&self.node, self.credentials.uid);
        let permit = if node.leases.allowed(self.credentials, &self.groups) {
            let permit = node.accounts.charge(uid, Resource::Leases, 1);
            permit.map_err(Refusal::from)
        } else {
            let message = format!(
                "user {uid} may not have leases on this node ([lease], [auth] and checksum in the daemon's \
                 config); connections use the daemon"
            );
            Err(Refusal::new(ErrorKind::Permission, message))
        };
        let permit = permit.inspect_err(|_| node.stats.leases_refused.add())?;
        Ok(vec![permit, self.charge_buffers(link, false)?])
    }

    fn charge_buffers(&self, link: LinkId, standby: bool) -> Result<Charge, Refusal> {
        let bytes = self.node.leases.buffer_bytes(link, standby);
        let accounts = &self.node.accounts;
        Ok(accounts.charge(self.credentials.uid, Resource::RingBytes, bytes)?)
    }

    /// Grants a lease of a listener's port, or of `count` free ports.
    pub(super) async fn grant_lease(
        &self,
        client: &Arc<Client>,
        interface: Option<&str>,
        listener: Option<u64>,
        count: u16,
    ) -> Result<ReplyWithFds, Refusal> {
        let node = &self.node;
        let (id, link) = links::choose(&node.links, interface)?;
        let charges = self.charge_lease(id)?;
        let ports = match listener {
            Some(listener) => {
                let listening = self.listeners.get(&ListenerId(listener));
                let port = listening.ok_or_else(no_lease)?.port();
                let taken = link
                    .esp
                    .take(port, client.claimant(), Purpose::Leased(client.id));
                vec![taken.ok_or_else(|| {
                    let message = format!("port {port} has connections through the daemon");
                    Refusal::new(ErrorKind::InUse, message)
                })?]
            }
            None if (1..=MAX_PORTS).contains(&count) => {
                // The program may listen on them at the daemon, too, for programs of this node.
                let is_own = |port| node.engines.owns(client.engine(), port);
                consecutive(&node.links, id, count, client, is_own)?
            }
            None => {
                return Err(Refusal::bad_argument(format!(
                    "{count} ports: a lease has 1 to {MAX_PORTS}"
                )));
            }
        };
        let (Some(first), Some(last)) = (ports.first(), ports.last()) else {
            return Err(no_lease());
        };
        let range = first.port()..=last.port();
        let lease = self.lease(client, (id, link), range, (false, charges));
        lease.hold(ports);
        let added = self.node.leases.add(&lease);
        self.open_lease(link, (added, lease)).await
    }

    /// Adopts a lease of an earlier daemon: grants its ports to its program again.
    pub(super) async fn adopt_lease(
        &self,
        client: &Arc<Client>,
        interface: &str,
        port: Port,
        count: u16,
    ) -> Result<ReplyWithFds, Refusal> {
        let (id, link) = links::by_name(&self.node.links, interface)?;
        let charges = self.charge_lease(id)?;
        let last = port.checked_add(count.saturating_sub(1));
        let (Some(last), 1..=MAX_PORTS, 1..) = (last, count, port) else {
            let message = format!("{count} ports starting at {port}: a lease has 1 to {MAX_PORTS}");
            return Err(Refusal::bad_argument(message));
        };
        self.check_port(port)?;
        let lease = self.lease(client, (id, link), port..=last, (false, charges));
        let added = self.adopt_or_add(client, link, &lease)?;
        let answer = self.open_lease(link, (added, lease)).await?;
        self.node.stats.leases_adopted.add();
        Ok(answer)
    }

    /// Grants a standby: the ports of a lease on another interface, for connections that move.
    pub(super) async fn grant_standby(
        &self,
        client: &Arc<Client>,
        lease: u64,
        interface: &str,
    ) -> Result<ReplyWithFds, Refusal> {
        let of = self.node.leases.of(client.id, lease);
        let of = of.filter(|lease| !lease.standby).ok_or_else(no_lease)?;
        let (id, link) = links::by_name(&self.node.links, interface)?;
        let charges = vec![self.charge_buffers(id, true)?];
        let lease = self.lease(client, (id, link), of.ports(), (true, charges));
        let added = self.adopt_or_add(client, link, &lease)?;
        self.open_lease(link, (added, lease)).await
    }

    /// Returns a lease for this program, without claims on its ports.
    fn lease(
        &self,
        client: &Client,
        (id, link): (LinkId, &Link),
        ports: RangeInclusive<Port>,
        (standby, charges): (bool, Vec<Charge>),
    ) -> Arc<Lease> {
        let entry = Entry {
            uid: self.credentials.uid,
            pid: self.credentials.pid,
            interface: link.name().into(),
            ports,
        };
        Arc::new(Lease::new(client.id, id, entry, standby, charges))
    }

    /// Adds a lease with ports that are free, or reserved for this user because of an earlier
    /// lease. Returns its id.
    fn adopt_or_add(
        &self,
        client: &Client,
        link: &Link,
        lease: &Arc<Lease>,
    ) -> Result<u64, Refusal> {
        let leases = &self.node.leases;
        if let Some(adopted) = leases.adopt(lease) {
            return Ok(adopted);
        }
        let ports = vacant(link, lease.ports(), client)?;
        lease.hold(ports);
        Ok(leases.add(lease))
    }

    /// Reserves the ports of a lease at the engine, and opens its sockets.
    async fn open_lease(
        &self,
        link: &Link,
        (id, lease): (u64, Arc<Lease>),
    ) -> Result<ReplyWithFds, Refusal> {
        let node = &self.node;
        let (link_id, standby, ports) = (lease.link, lease.standby, lease.ports());
        let (port, count) = (*ports.start(), ports.end() - ports.start() + 1);
        for engine in node.engines.numbers() {
            let hold = |reply| Command::Hold {
                link: link_id,
                ports: ports.clone(),
                reply,
            };
            // Ending the lease makes the engines serve the ports again, which they may hold for an
            // earlier lease.
            let held = node.engines.request(engine, hold).await;
            held.and_then(|held| held.map_err(|error| Refusal::new(ErrorKind::InUse, error)))
                .inspect_err(|_| node.end_lease(id))?;
        }
        let opener = Arc::clone(node);
        let opened = tokio::task::spawn_blocking(move || opener.leases.open(id, &lease)).await;
        let sockets = opened
            .unwrap_or_else(|_| Err(no_lease()))
            .inspect_err(|_| node.end_lease(id))?;
        node.stats.leases_granted.add();
        let RingShape { slot_len, slots } = node.leases.ring(link_id, standby);
        let reply = Reply::Lease {
            lease: id,
            interface: link.info(),
            port,
            count,
            protocol: LeaseProtocol::from(node.leases.endpoint()),
            ring: LeaseRing { slot_len, slots },
        };
        Ok((reply, sockets))
    }

    pub(super) fn end_lease(&self, client: &Client, lease: u64) -> Result<(), Refusal> {
        self.node.leases.of(client.id, lease).ok_or_else(no_lease)?;
        self.node.end_lease(lease);
        Ok(())
    }

    pub(super) fn lease_connection(
        &self,
        client: &Client,
        lease: u64,
        connection: LeasedConnection,
        nonce: Option<u64>,
    ) -> Result<(), Refusal> {
        let lease = self.node.leases.of(client.id, lease).ok_or_else(no_lease)?;
        if !lease.ports().contains(&connection.0) {
            return Err(no_lease());
        }
        match nonce {
            Some(nonce) => {
                let charge =
                    self.node
                        .accounts
                        .charge(self.credentials.uid, Resource::Streams, 1)?;
                lease.opened(connection, nonce, charge);
            }
            None => lease.closed(connection),
        }
        Ok(())
    }
}

/// Takes certain ports, if none of them is in use.
fn vacant(
    link: &Link,
    ports: RangeInclusive<Port>,
    client: &Client,
) -> Result<Vec<PortClaim>, Refusal> {
    let (claimant, purpose) = (client.claimant(), Purpose::Leased(client.id));
    let take = |port| link.esp.take_vacant(port, claimant, purpose);
    ports
        .map(|port| take(port).ok_or_else(|| in_use(link, port)))
        .collect()
}

/// Takes consecutive free ports that `is_own` accepts, preferably ports that are free on all
/// interfaces, so that standbys are possible.
fn consecutive(
    links: &[Link],
    on: LinkId,
    count: u16,
    client: &Client,
    is_own: impl Fn(Port) -> bool,
) -> Result<Vec<PortClaim>, Refusal> {
    let take = |link: &Link, first: Port| -> Option<Vec<PortClaim>> {
        let last = first.checked_add(count - 1)?;
        let are_own = || (first..=last).all(&is_own);
        let taken = are_own().then(|| vacant(link, first..=last, client).ok())?;
        // Checked again, because they may have been assigned to another engine before.
        taken.filter(|_| are_own())
    };
    let here = usize::from(on.0);
    let everywhere = |first: Port| -> Option<Vec<PortClaim>> {
        let all: Option<Vec<_>> = links.iter().map(|link| take(link, first)).collect();
        all.map(|mut all| all.swap_remove(here))
    };
    let firsts = || ports::ephemeral(ports::random_start()).step_by(usize::from(count));
    firsts()
        .find_map(everywhere)
        .or_else(|| firsts().find_map(|first| take(links.get(here)?, first)))
        .ok_or_else(|| {
            Refusal::new(
                ErrorKind::InUse,
                format!("no {count} consecutive ports are free"),
            )
        })
}

fn no_lease() -> Refusal {
    Refusal::new(
        ErrorKind::NotFound,
        "this program has no such lease, listener or port",
    )
}
