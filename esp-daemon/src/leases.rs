//! Leases: packet sockets for certain stream ports, for programs that embed the engine.
//!
//! The daemon opens the sockets, filters them to the ports, locks the filter, and passes them to
//! the program. Its own engine ignores the frames of these ports, and answers queries for them,
//! until the program's control connection closes. Then it serves the ports again and resets the
//! peers that the program has registered. [`demux`] makes many leases cost no more than one.
//!
//! Leases outlive the daemon, which keeps a record of them ([`record`]). The next daemon reserves
//! their ports for their users until the programs have it adopt the leases (`Adopt`, answered by
//! new sockets) or the grace period ends.

mod demux;
pub(crate) mod record;

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use esp_client::control::{ErrorKind, LeaseProtocol};
use esp_engine::{ClientId, LinkId, Orphan};
use esp_proto::{EdpKind, EndpointConfig, NodeAddr, Port};
use netif::{Filter, PacketSocket, RingShape, SocketOptions};

use crate::accounts::Charge;
use crate::config::{LeaseAllow, LeaseOptions};
use crate::links::{self, Link};
use crate::peer::Credentials;
use crate::ports::{PortClaim, Purpose};
use crate::refusal::Refusal;
use demux::Demux;
use record::Record;

/// Client number of reserved ports; no program has it.
const UNCLAIMED: ClientId = ClientId(0);
/// Maximum number of ports of one lease.
pub(crate) const MOST_PORTS: u16 = 64;
/// Receive buffer of a standby, which has no ring, in bytes of frames: a full window.
const STANDBY_BUFFER: usize = netif::WINDOW_BYTES;
/// Largest MTU for which ring slots have room; longer frames wait in the socket.
const JUMBO: u32 = 9216;
const ETHERNET_HEADER: usize = 14;
/// Offset from the destination address to the flags of an EDP frame, which its control type
/// follows.
const FLAGS_OFFSET: u32 = 24;
/// Control flag of an EDP frame.
const CTL: u16 = 1;

/// Parameters of a node's leases.
#[derive(Clone, Debug, Default)]
pub struct LeaseSetup {
    /// The policy.
    pub options: LeaseOptions,
    /// The groups of `options`, by number.
    pub groups: Vec<u32>,
    /// Parameters of the protocol.
    pub endpoint: EndpointConfig,
    /// The interfaces, in the engine's order.
    pub interfaces: Vec<netif::Interface>,
    /// File for the record of leases; `None` to keep none.
    pub record: Option<PathBuf>,
    /// Leases in the record of the previous daemon; the engine holds their ports already.
    pub before: Vec<record::Entry>,
}

/// All leases of the node.
#[derive(Debug)]
pub(crate) struct Leases {
    setup: LeaseSetup,
    table: DashMap<u64, Arc<Lease>>,
    next: AtomicU64,
    demux: Demux,
    /// Number of permits by user.
    permits: Arc<DashMap<u32, u32>>,
    record: Mutex<Record>,
    /// Ports leased by an earlier daemon, until their programs return.
    reserved: Mutex<HashMap<u64, Reserved>>,
}

/// Ports of an earlier lease. Freed on drop; the engine must be informed before.
#[derive(Debug)]
pub(crate) struct Reserved {
    uid: u32,
    pub(crate) link: LinkId,
    pub(crate) ports: RangeInclusive<Port>,
    held: Vec<PortClaim>,
}

/// Quota permit for one of a user's leases, returned on drop.
#[derive(Debug)]
pub(crate) struct LeasePermit {
    permits: Arc<DashMap<u32, u32>>,
    uid: u32,
}

impl Drop for LeasePermit {
    fn drop(&mut self) {
        if let Some(mut taken) = self.permits.get_mut(&self.uid) {
            *taken = taken.saturating_sub(1);
        }
        self.permits.remove_if(&self.uid, |_, taken| *taken == 0);
    }
}

/// Ports and quota permits of a lease.
pub(crate) type LeaseHoldings = (Vec<PortClaim>, Charge, Option<LeasePermit>);

/// A connection as registered by its program: own port, peer, peer's port.
pub(crate) type LeasedConnection = (Port, NodeAddr, Port);

/// One lease. Frees ports and charges on drop; the engine must be informed before.
pub(crate) struct Lease {
    pub(crate) client: ClientId,
    pub(crate) link: LinkId,
    pub(crate) ports: RangeInclusive<Port>,
    /// Serves connections of another lease with these ports when its interface fails. Uses no
    /// permit of its own.
    pub(crate) standby: bool,
    connections: Mutex<HashMap<LeasedConnection, (u64, Charge)>>,
    _held: LeaseHoldings,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("client", &self.client)
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

impl Lease {
    pub(crate) fn new(
        client: ClientId,
        link: LinkId,
        ports: RangeInclusive<Port>,
        held: LeaseHoldings,
    ) -> Lease {
        let standby = held.2.is_none();
        Lease {
            client,
            link,
            ports,
            standby,
            connections: Mutex::default(),
            _held: held,
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<LeasedConnection, (u64, Charge)>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection of the program; `charge` pays for the entry.
    pub(crate) fn opened(&self, connection: LeasedConnection, nonce: u64, charge: Charge) {
        self.connections().insert(connection, (nonce, charge));
    }

    pub(crate) fn closed(&self, connection: LeasedConnection) {
        self.connections().remove(&connection);
    }

    /// Returns the registered connections.
    pub(crate) fn registered(&self) -> Vec<LeasedConnection> {
        self.connections().keys().copied().collect()
    }

    /// Returns the registered connections for the engine.
    pub(crate) fn orphans(&self) -> Vec<Orphan> {
        let orphan =
            |(&(local_port, peer, peer_port), (nonce, _)): (&LeasedConnection, &(u64, Charge))| {
                Orphan {
                    local_port,
                    peer,
                    peer_port,
                    nonce: *nonce,
                }
            };
        self.connections().iter().map(orphan).collect()
    }
}

impl Leases {
    pub(crate) fn new(setup: LeaseSetup, links: &[Link]) -> Leases {
        let leases = Leases {
            table: DashMap::new(),
            next: AtomicU64::new(1),
            demux: Demux::default(),
            permits: Arc::default(),
            record: Mutex::new(Record::new(setup.record.clone())),
            reserved: Mutex::default(),
            setup,
        };
        for entry in &leases.setup.before {
            leases.reserve(links, entry);
        }
        leases
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserved(&self) -> MutexGuard<'_, HashMap<u64, Reserved>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves the ports of an earlier lease for its user.
    fn reserve(&self, links: &[Link], entry: &record::Entry) {
        let (uid, ports) = (entry.uid, entry.ports.clone());
        let Ok((link, at)) = links::by_name(links, &entry.interface) else {
            return;
        };
        let take = |port| at.esp.take_vacant(port, uid, Purpose::Leased(UNCLAIMED));
        let Some(held) = ports.clone().map(take).collect() else {
            return;
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.reserved().insert(
            id,
            Reserved {
                uid,
                link,
                ports,
                held,
            },
        );
        self.record().insert(id, entry.clone());
    }

    /// Takes the reserved ports of an earlier lease for a program of its user that requests its
    /// adoption.
    pub(crate) fn claim(
        &self,
        (client, uid): (ClientId, u32),
        link: LinkId,
        ports: &RangeInclusive<Port>,
    ) -> Option<Vec<PortClaim>> {
        let mut reserved = self.reserved();
        let theirs =
            |found: &Reserved| found.uid == uid && found.link == link && found.ports == *ports;
        let id = reserved
            .iter()
            .find_map(|(id, found)| theirs(found).then_some(*id))?;
        let mut claimed = reserved.remove(&id)?;
        drop(reserved);
        self.record().remove(id);
        claimed
            .held
            .iter_mut()
            .for_each(|port| port.pass_to(client));
        Some(claimed.held)
    }

    /// Returns the number of reserved leases.
    pub(crate) fn waiting(&self) -> usize {
        self.reserved().len()
    }

    /// Removes and returns the reservations.
    pub(crate) fn expire_waiting(&self) -> Vec<Reserved> {
        let reserved = std::mem::take(&mut *self.reserved());
        for id in reserved.keys() {
            self.record().remove(*id);
        }
        reserved.into_values().collect()
    }

    /// Stops updating the record, which the next daemon reads: leases outlive this one.
    pub(crate) fn stop(&self) {
        self.record().close();
    }

    /// Returns true if the policy allows this user to have leases.
    pub(crate) fn allowed(&self, who: Credentials, groups: &[u32]) -> bool {
        let LeaseOptions { allow, users, .. } = &self.setup.options;
        let listed = || {
            let listed = &self.setup.groups;
            users.contains(&who.uid)
                || listed.contains(&who.gid)
                || groups.iter().any(|g| listed.contains(g))
        };
        match allow {
            LeaseAllow::Off => false,
            LeaseAllow::Root => who.is_root() || listed(),
            LeaseAllow::All => true,
        }
    }

    /// Takes a permit for another lease of this user, so that concurrent requests cannot exceed the
    /// limit.
    pub(crate) fn permit(&self, who: Credentials, groups: &[u32]) -> Result<LeasePermit, Refusal> {
        let options = &self.setup.options;
        if !self.allowed(who, groups) {
            let message = format!(
                "user {} may not have leases on this node ([lease] in the daemon's config); connections \
                 use the daemon",
                who.uid
            );
            return Err(Refusal::new(ErrorKind::Permission, message));
        }
        let limit = options.per_user;
        let mut taken = self.permits.entry(who.uid).or_default();
        if *taken < limit {
            *taken += 1;
            let (permits, uid) = (Arc::clone(&self.permits), who.uid);
            return Ok(LeasePermit { permits, uid });
        }
        drop(taken);
        self.permits.remove_if(&who.uid, |_, taken| *taken == 0);
        let message = format!(
            "limit of user {} reached: at most {limit} leases (lease.per_user)",
            who.uid
        );
        Err(Refusal::new(ErrorKind::Limit, message))
    }

    pub(crate) fn protocol(&self) -> LeaseProtocol {
        LeaseProtocol::from(&self.setup.endpoint)
    }

    /// Returns the bytes that the kernel may buffer for one lease of an interface.
    pub(crate) fn buffer_bytes(&self, link: LinkId) -> u64 {
        let ring = self.ring(link).bytes().unwrap_or(0);
        SocketOptions::default().receive_buffer as u64 + u64::from(ring)
    }

    /// Returns the bytes that the kernel may buffer for a standby.
    pub(crate) fn standby_bytes(&self) -> u64 {
        STANDBY_BUFFER as u64
    }

    /// Returns the shape of the receive ring of a lease's streams: for frames of the interface's
    /// MTU at the daemon's start.
    pub(crate) fn ring(&self, link: LinkId) -> RingShape {
        let mtu = self
            .setup
            .interfaces
            .get(usize::from(link.0))
            .map_or(0, |interface| interface.mtu);
        RingShape::for_streams(ETHERNET_HEADER + mtu.min(JUMBO) as usize)
    }

    /// Opens the sockets of a lease: for streams, for replies, and an unbound spare for each.
    /// Blocks for some 15 ms, while the kernel sets up a ring.
    pub(crate) fn open(&self, id: u64) -> Result<Vec<OwnedFd>, Refusal> {
        let ended = || Refusal::new(ErrorKind::NotFound, "the lease has ended");
        let lease = self
            .table
            .get(&id)
            .map(|lease| Arc::clone(&lease))
            .ok_or_else(ended)?;
        let sockets = self.open_sockets(id, &lease);
        if !self.table.contains_key(&id) {
            // The lease ended meanwhile, before these sockets existed.
            self.demux.end(lease.link, id);
        }
        sockets
    }

    fn open_sockets(&self, id: u64, lease: &Lease) -> Result<Vec<OwnedFd>, Refusal> {
        let Lease {
            link,
            ref ports,
            standby,
            ..
        } = *lease;
        let gone = || Refusal::new(ErrorKind::NotFound, "leases are of raw Ethernet only");
        let interface = self
            .setup
            .interfaces
            .get(usize::from(link.0))
            .ok_or_else(gone)?;
        let failed = |error: &dyn fmt::Display| {
            Refusal::new(
                ErrorKind::Unavailable,
                format!("esp-daemon cannot open sockets for a lease: {error}"),
            )
        };
        let (esp, edp) = (
            self.setup.endpoint.esp_ethertype,
            self.setup.endpoint.edp_ethertype,
        );
        let range = || std::iter::once(ports.clone());
        // The program could bind the socket to another interface, where another user has the port.
        let index = interface.index;
        let streams = Filter::for_ports(esp, range())
            .map_err(|e| failed(&e))?
            .on_interface(index);
        // Only replies to the engine's queries: datagram ports belong to other sockets.
        let reply = EdpKind::PortReply as u16;
        let answers = Filter::for_ports(edp, range())
            .map_err(|e| failed(&e))?
            .with_half(FLAGS_OFFSET, CTL << 8 | reply)
            .on_interface(index);
        let (mut sockets, mut spares) = (Vec::with_capacity(4), Vec::with_capacity(2));
        let (window, ring) = match standby {
            true => (STANDBY_BUFFER, None),
            false => (
                SocketOptions::default().receive_buffer,
                Some(self.ring(link)),
            ),
        };
        for (ethertype, filter, receive_buffer, ring) in
            [(esp, streams, window, ring), (edp, answers, 1 << 16, None)]
        {
            let options = SocketOptions {
                filter: Some(filter),
                receive_buffer,
                ..SocketOptions::default()
            };
            let make = || PacketSocket::open_unbound(interface, &options);
            let bind = |socket: &PacketSocket| {
                ring.map_or(Ok(()), |ring| socket.ring(interface, ring))?;
                socket.bind(interface, ethertype)
            };
            let [socket, spare] = self
                .demux
                .open((link, interface), (ethertype, id, ports), make, bind)
                .map_err(|e| failed(&e))?;
            socket.lock_filter().map_err(|e| failed(&e))?;
            sockets.push(socket.into());
            spare.lock_filter().map_err(|e| failed(&e))?;
            spares.push(spare.into());
        }
        sockets.append(&mut spares);
        Ok(sockets)
    }

    pub(crate) fn add(&self, lease: Lease, who: Credentials, interface: &str) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let Credentials { uid, pid, .. } = who;
        let entry = record::Entry {
            uid,
            pid,
            interface: interface.into(),
            ports: lease.ports.clone(),
        };
        self.table.insert(id, Arc::new(lease));
        self.record().insert(id, entry);
        id
    }

    /// Returns the lease if it belongs to this program.
    pub(crate) fn of(&self, client: ClientId, id: u64) -> Option<Arc<Lease>> {
        self.table
            .get(&id)
            .filter(|lease| lease.client == client)
            .map(|lease| Arc::clone(&lease))
    }

    pub(crate) fn remove(&self, id: u64) -> Option<Arc<Lease>> {
        let (_, lease) = self.table.remove(&id)?;
        self.demux.end(lease.link, id);
        self.record().remove(id);
        Some(lease)
    }

    /// Returns the ids of a program's leases.
    pub(crate) fn numbers(&self, client: ClientId) -> Vec<u64> {
        self.table
            .iter()
            .filter(|lease| lease.client == client)
            .map(|lease| *lease.key())
            .collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Lease>> {
        self.table.iter().map(|lease| Arc::clone(&lease)).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::LinkSpec;

    fn who(uid: u32) -> Credentials {
        Credentials {
            uid,
            gid: 7,
            pid: None,
        }
    }

    #[test]
    fn concurrent_requests_respect_the_limit() {
        let options = LeaseOptions {
            allow: LeaseAllow::All,
            per_user: 2,
            ..LeaseOptions::default()
        };
        let leases = Leases::new(
            LeaseSetup {
                options,
                ..LeaseSetup::default()
            },
            &[],
        );
        // Concurrent requests that wait for the engine: none is in the table yet.
        let first = leases.permit(who(1), &[]).unwrap();
        let _second = leases.permit(who(1), &[]).unwrap();
        assert_eq!(
            leases.permit(who(1), &[]).unwrap_err().kind,
            ErrorKind::Limit
        );
        let _other = leases.permit(who(2), &[]).unwrap();
        drop(first);
        let _again = leases.permit(who(1), &[]).unwrap();
        assert!(leases.permit(who(1), &[]).is_err());
    }

    #[test]
    fn slots_take_the_frames_of_their_interface() {
        let interfaces =
            [1500, 9000, 65535].map(|mtu| netif::Interface::described("x".into(), [2; 6], mtu));
        let leases = Leases::new(
            LeaseSetup {
                interfaces: interfaces.into(),
                ..LeaseSetup::default()
            },
            &[],
        );
        for (link, frame) in [(0, 1514), (1, 9014), (2, 9230)] {
            let ring = leases.ring(LinkId(link));
            assert!((frame..frame + 64).contains(&ring.frame_len()), "{ring:?}");
            assert!(
                ring.slots * ring.slot_len > 3 << 19,
                "more than a stream's window: {ring:?}"
            );
            assert!(leases.buffer_bytes(LinkId(link)) > u64::from(ring.bytes().unwrap()));
        }
    }

    #[test]
    fn ports_of_earlier_leases_are_reserved_for_their_user() {
        let spec = LinkSpec {
            name: "eth0".into(),
            addr: esp_proto::MacAddr([2, 0, 0, 0, 0, 1]).into(),
            mtu: 1500,
            up: true,
        };
        let links = [Link::new(spec)];
        let entry = |uid, interface: &str, ports| record::Entry {
            uid,
            pid: None,
            interface: interface.into(),
            ports,
        };
        let before = vec![
            entry(1, "eth0", 7000..=7000),
            entry(1, "eth0", 32768..=32799),
            entry(1, "eth0", 32770..=32770),
            entry(1, "gone0", 5..=5),
        ];
        let leases = Leases::new(
            LeaseSetup {
                before,
                ..LeaseSetup::default()
            },
            &links,
        );
        assert_eq!(leases.waiting(), 2);
        let (esp, link) = (&links[0].esp, LinkId(0));
        assert!(
            esp.take(7000, 1, Purpose::Listener(ClientId(9))).is_none()
                && esp.take_vacant(32780, 1, Purpose::Sole).is_none()
        );
        assert!(
            leases
                .claim((ClientId(9), 2), link, &(7000..=7000))
                .is_none(),
            "of another user"
        );
        assert!(
            leases
                .claim((ClientId(9), 1), link, &(32768..=32768))
                .is_none(),
            "a part of one"
        );
        let held = leases
            .claim((ClientId(9), 1), link, &(7000..=7000))
            .unwrap();
        assert!(
            leases
                .claim((ClientId(9), 1), link, &(7000..=7000))
                .is_none(),
            "taken"
        );
        assert_eq!(leases.expire_waiting().len(), 1);
        assert_eq!(leases.waiting(), 0);
        assert!(!esp.is_empty());
        drop(held);
        assert!(esp.is_empty());
    }
}
