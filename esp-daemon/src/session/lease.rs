//! Requests about leases.

use std::ops::RangeInclusive;
use std::sync::Arc;

use esp_client::control::{ErrorKind, LeaseRing, Reply};
use esp_engine::{ClientId, Command, LinkId, ListenerId};
use esp_proto::Port;
use netif::RingShape;

use super::requests::in_use;
use super::{ReplyWithFds, Session};
use crate::accounts::{Charge, OverLimit, Resource};
use crate::leases::{Lease, LeaseHoldings, LeasePermit, LeasedConnection, MOST_PORTS};
use crate::links::{self, Link};
use crate::node::{Client, Node};
use crate::ports::{self, PortClaim, Purpose};
use crate::refusal::Refusal;

impl Session {
    fn lease_permit(&self) -> Result<LeasePermit, Refusal> {
        let permit = self.node.leases.permit(self.who, &self.groups);
        permit.inspect_err(|_| self.node.stats.leases_refused.add())
    }

    fn charge_buffers(&self, bytes: u64) -> Result<Charge, OverLimit> {
        let accounts = &self.node.accounts;
        accounts.charge(self.who.uid, Resource::RingBytes, bytes)
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
        let permit = self.lease_permit()?;
        let (id, link) = links::choose(&node.links, interface)?;
        let uid = self.who.uid;
        let bytes = self.charge_buffers(node.leases.buffer_bytes(id))?;
        let held: Vec<PortClaim> = match listener {
            Some(listener) => {
                let listening = self
                    .listeners
                    .get(&ListenerId(listener))
                    .ok_or_else(no_lease)?;
                let port = listening.port();
                let taken = link.esp.take(port, uid, Purpose::Leased(client.id));
                vec![taken.ok_or_else(|| {
                    let message = format!("port {port} has connections through the daemon");
                    Refusal::new(ErrorKind::InUse, message)
                })?]
            }
            None if (1..=MOST_PORTS).contains(&count) => {
                consecutive(&node.links, id, count, (uid, client.id))?
            }
            None => {
                return Err(Refusal::bad_argument(format!(
                    "{count} ports: a lease has 1 to {MOST_PORTS}"
                )));
            }
        };
        self.open_lease(client, (id, link), (held, bytes, Some(permit)))
            .await
    }

    /// Adopts a lease of an earlier daemon: grants its ports to its program again.
    pub(super) async fn adopt_lease(
        &self,
        client: &Arc<Client>,
        interface: &str,
        port: Port,
        count: u16,
    ) -> Result<ReplyWithFds, Refusal> {
        let node = &self.node;
        let permit = self.lease_permit()?;
        let (id, link) = links::by_name(&node.links, interface)?;
        let last = port.checked_add(count.saturating_sub(1));
        let (Some(last), 1..=MOST_PORTS, 1..) = (last, count, port) else {
            let message = format!("{count} ports from {port} on: a lease has 1 to {MOST_PORTS}");
            return Err(Refusal::bad_argument(message));
        };
        self.check_port(port)?;
        let uid = self.who.uid;
        let bytes = self.charge_buffers(node.leases.buffer_bytes(id))?;
        let held = match node.leases.claim((client.id, uid), id, &(port..=last)) {
            Some(held) => held,
            // Unknown or expired leases are granted only if their ports are free.
            None => vacant(link, port..=last, uid, client.id)?,
        };
        let answer = self
            .open_lease(client, (id, link), (held, bytes, Some(permit)))
            .await?;
        node.stats.leases_adopted.add();
        Ok(answer)
    }

    /// Grants a standby: the ports of a lease on another interface, for connections that move.
    pub(super) async fn grant_standby(
        &self,
        client: &Arc<Client>,
        lease: u64,
        interface: &str,
    ) -> Result<ReplyWithFds, Refusal> {
        let node = &self.node;
        let of = node
            .leases
            .of(client.id, lease)
            .filter(|lease| !lease.standby)
            .ok_or_else(no_lease)?;
        let (id, link) = links::by_name(&node.links, interface)?;
        let uid = self.who.uid;
        let bytes = self.charge_buffers(node.leases.standby_bytes())?;
        let held = match node.leases.claim((client.id, uid), id, &of.ports) {
            Some(held) => held,
            None => vacant(link, of.ports.clone(), uid, client.id)?,
        };
        self.open_lease(client, (id, link), (held, bytes, None))
            .await
    }

    /// Has the engine hold the ports, and opens the sockets.
    async fn open_lease(
        &self,
        client: &Arc<Client>,
        (id, link): (LinkId, &Link),
        held: LeaseHoldings,
    ) -> Result<ReplyWithFds, Refusal> {
        let node = &self.node;
        let (ports, standby) = (&held.0, held.2.is_none());
        let count = u16::try_from(ports.len()).unwrap_or(MOST_PORTS);
        let (Some(first), Some(last)) = (
            ports.first().map(PortClaim::port),
            ports.last().map(PortClaim::port),
        ) else {
            return Err(no_lease());
        };
        let range = first..=last;
        let ports = range.clone();
        if let Err(error) = node
            .request(|reply| Command::Hold {
                link: id,
                ports,
                reply,
            })
            .await?
        {
            // Ports of an earlier lease may be held already.
            let ports = range.clone();
            let _ = node.send(Command::Unhold {
                link: id,
                ports,
                orphans: Vec::new(),
            });
            return Err(Refusal::new(ErrorKind::InUse, error));
        }
        // From here on, ending the lease makes the engine serve the ports again.
        let lease = Lease::new(client.id, id, range.clone(), held);
        let lease = node.leases.add(lease, self.who, link.name());
        let opener = Arc::clone(node);
        let opened = tokio::task::spawn_blocking(move || opener.leases.open(lease)).await;
        let sockets = match opened.unwrap_or_else(|_| Err(no_lease())) {
            Ok(sockets) => sockets,
            Err(refusal) => {
                end(node, lease);
                return Err(refusal);
            }
        };
        let protocol = node.leases.protocol();
        let RingShape { slot_len, slots } = if standby {
            RingShape {
                slot_len: 0,
                slots: 0,
            }
        } else {
            node.leases.ring(id)
        };
        let ring = LeaseRing { slot_len, slots };
        node.stats.leases_granted.add();
        Ok((
            Reply::Lease {
                lease,
                interface: link.info(),
                port: first,
                count,
                protocol,
                ring,
            },
            sockets,
        ))
    }

    pub(super) fn end_lease(&self, client: &Client, lease: u64) -> Result<(), Refusal> {
        self.node.leases.of(client.id, lease).ok_or_else(no_lease)?;
        end(&self.node, lease);
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

        if !lease.ports.contains(&connection.0) {
            return Err(no_lease());
        }
        match nonce {
            Some(nonce) => {
                let charge = self
                    .node
                    .accounts
                    .charge(self.who.uid, Resource::Streams, 1)?;
                lease.opened(connection, nonce, charge);
            }
            None => lease.closed(connection),
        }
        Ok(())
    }

    /// Ends all leases of a program that has disconnected.
    pub(super) fn end_leases(&self, client: &Client) {
        for lease in self.node.leases.numbers(client.id) {
            end(&self.node, lease);
        }
    }
}

/// Ends a lease. Its ports are freed (drop) after the command.
fn end(node: &Node, lease: u64) {
    if let Some(lease) = node.leases.remove(lease) {
        let (link, ports): (_, RangeInclusive<Port>) = (lease.link, lease.ports.clone());
        // A stopped engine has no sockets.
        let _ = node.send(Command::Unhold {
            link,
            ports,
            orphans: lease.orphans(),
        });
    }
}

/// Takes certain ports, if none of them is in use.
fn vacant(
    link: &Link,
    ports: RangeInclusive<Port>,
    uid: u32,
    holder: ClientId,
) -> Result<Vec<PortClaim>, Refusal> {
    let take = |port| link.esp.take_vacant(port, uid, Purpose::Leased(holder));
    ports
        .map(|port| take(port).ok_or_else(|| in_use(link, port)))
        .collect()
}

/// Takes consecutive free ports, preferably ports that are free on all interfaces, so that standbys
/// are possible.
fn consecutive(
    links: &[Link],
    on: LinkId,
    count: u16,
    (uid, holder): (u32, ClientId),
) -> Result<Vec<PortClaim>, Refusal> {
    let take = |link: &Link, first: Port| -> Option<Vec<PortClaim>> {
        let last = first.checked_add(count - 1)?;
        vacant(link, first..=last, uid, holder).ok()
    };
    let here = usize::from(on.0);
    let everywhere = |first: Port| -> Option<Vec<PortClaim>> {
        let elsewhere = links
            .iter()
            .enumerate()
            .filter(|(number, _)| *number != here);
        let all: Option<Vec<_>> = elsewhere.map(|(_, link)| take(link, first)).collect();
        all.and_then(|_free| take(links.get(here)?, first))
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
