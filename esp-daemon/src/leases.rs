//! Leases: packet sockets for certain stream ports, for programs that embed the engine.
//!
//! The daemon opens the sockets, filters them to the ports, locks the filter, and passes them to
//! the program. Its own engine ignores the frames of these ports, and answers queries for them,
//! until the program's control connection closes. Then it serves the ports again and resets the
//! peers that the program has registered. With [`demux`], many leases cost no more than one.
//!
//! Leases outlive the daemon, which keeps a record of them ([`record`]). The next daemon reserves
//! their ports for their users until the programs request their adoption (`Adopt`, answered by new
//! sockets) or the grace period ends.

mod demux;
pub(crate) mod record;

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use esp_client::control::ErrorKind;
use esp_engine::{ClientId, LinkId, Orphan};
use esp_proto::{EdpKind, EndpointConfig, NodeAddr, Port};
use netif::{Filter, Interface, PacketSocket, RingShape, SocketOptions};
use tracing::warn;

use crate::accounts::Charge;
use crate::config::{LeaseAllow, LeaseOptions};
use crate::links::{self, Link};
use crate::peer::Credentials;
use crate::ports::{Claimant, PortClaim, Purpose};
use crate::refusal::Refusal;
use crate::stats::LogLimiter;
use demux::Demux;
use record::Entry;

/// Holder of the reserved leases of an earlier daemon; no program has this number.
const UNCLAIMED: ClientId = ClientId(0);
/// Maximum number of ports of one lease.
pub(crate) const MAX_PORTS: u16 = 64;
/// Maximum MTU for which ring slots have room; longer frames wait in the socket.
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
    pub interfaces: Vec<Interface>,
    /// File for the record of leases; `None` to keep none.
    pub record: Option<PathBuf>,
    /// Leases in the record of the previous daemon; the engine holds their ports already.
    pub before: Vec<Entry>,
}

/// All leases of the node.
#[derive(Debug)]
pub(crate) struct Leases {
    setup: LeaseSetup,
    /// The interfaces of `setup` in their current state.
    interfaces: Mutex<Vec<Interface>>,
    table: DashMap<u64, Arc<Lease>>,
    next: AtomicU64,
    demux: Demux,
    /// The record's file; `None` once it is left to the next daemon.
    record: Mutex<Option<PathBuf>>,
    record_logged: LogLimiter,
}

/// A connection as registered by its program: local port, peer, peer's port.
pub(crate) type LeasedConnection = (Port, NodeAddr, Port);

/// One lease. Frees ports and charges on drop; the engine must be notified before.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Its program, or [`UNCLAIMED`].
    pub(crate) client: ClientId,
    pub(crate) link: LinkId,
    pub(crate) entry: Entry,
    /// Serves connections of another lease with these ports when its interface fails.
    pub(crate) standby: bool,
    connections: Mutex<HashMap<LeasedConnection, (u64, Charge)>>,
    ports: Mutex<Vec<PortClaim>>,
    _charges: Vec<Charge>,
}

impl Lease {
    /// Returns a lease without claims on its ports.
    pub(crate) fn new(
        client: ClientId,
        link: LinkId,
        entry: Entry,
        standby: bool,
        charges: Vec<Charge>,
    ) -> Lease {
        Lease {
            client,
            link,
            entry,
            standby,
            connections: Mutex::default(),
            ports: Mutex::default(),
            _charges: charges,
        }
    }

    pub(crate) fn ports(&self) -> RangeInclusive<Port> {
        self.entry.ports.clone()
    }

    /// Sets the claims on its ports.
    pub(crate) fn hold(&self, ports: Vec<PortClaim>) {
        *self.claims() = ports;
    }

    fn claims(&self) -> MutexGuard<'_, Vec<PortClaim>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
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
            record: Mutex::new(setup.record.clone()),
            record_logged: LogLimiter::default(),
            interfaces: Mutex::new(setup.interfaces.clone()),
            setup,
        };
        for entry in &leases.setup.before {
            leases.reserve(links, entry);
        }
        leases
    }

    /// Reserves the ports of an earlier lease for its user.
    fn reserve(&self, links: &[Link], entry: &Entry) {
        let Ok((link, at)) = links::by_name(links, &entry.interface) else {
            return;
        };
        let purpose = Purpose::Leased(UNCLAIMED);
        // Leases use no engine.
        let claimant = Claimant {
            uid: entry.uid,
            engine: 0,
        };
        let take = |port| at.esp.take_vacant(port, claimant, purpose);
        if let Some(ports) = entry.ports.clone().map(take).collect() {
            let lease = Lease::new(UNCLAIMED, link, entry.clone(), false, Vec::new());
            lease.hold(ports);
            self.insert(&Arc::new(lease));
        }
    }

    /// Replaces the reserved lease of this user and these ports, whose claims the new lease takes
    /// over, and returns the new id; `None` if there is no reserved lease.
    pub(crate) fn adopt(&self, lease: &Arc<Lease>) -> Option<u64> {
        let is_it = |other: &Lease| {
            let of = |lease: &Lease| (lease.entry.uid, lease.link, lease.ports());
            other.client == UNCLAIMED && of(other) == of(lease)
        };
        let reserved = self.table.iter().find(|other| is_it(other));
        let reserved = reserved.map(|reserved| *reserved.key())?;
        self.change(|| {
            let (_, reserved) = self.table.remove(&reserved)?;
            let mut ports = std::mem::take(&mut *reserved.claims());
            ports.iter_mut().for_each(|port| port.pass_to(lease.client));
            lease.hold(ports);
            Some(self.insert(lease))
        })
    }

    /// Returns the ids of the reserved leases.
    pub(crate) fn reserved(&self) -> Vec<u64> {
        self.numbers(UNCLAIMED)
    }

    /// Returns the ids of the reserved leases whose holders have ended.
    pub(crate) fn orphaned(&self) -> Vec<u64> {
        let is_dead = |lease: &Lease| lease.client == UNCLAIMED && !lease.entry.may_live();
        let dead = self.table.iter().filter(|lease| is_dead(lease));
        dead.map(|lease| *lease.key()).collect()
    }

    /// Stops updating the record, which the next daemon reads: leases outlive this one.
    pub(crate) fn stop(&self) {
        *self.record.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Changes the table, and writes its record.
    fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        // Held for both, so that no record contains half a change.
        let file = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change();
        if let Some(path) = &*file {
            self.write_record(path);
        }
        changed
    }

    fn write_record(&self, path: &Path) {
        let all = self.all();
        if let Err(error) = record::write(path, all.iter().map(|lease| &lease.entry))
            && self.record_logged.allow()
        {
            warn!(path = %path.display(), %error, "cannot write the record: leases will not outlive this daemon");
        }
    }

    /// Returns true if the policy allows this user to have leases.
    pub(crate) fn allowed(&self, credentials: Credentials, groups: &[u32]) -> bool {
        let LeaseOptions { allow, users, .. } = &self.setup.options;
        let listed = || {
            let listed = &self.setup.groups;
            users.contains(&credentials.uid)
                || listed.contains(&credentials.gid)
                || groups.iter().any(|g| listed.contains(g))
        };
        match allow {
            LeaseAllow::Off => false,
            LeaseAllow::Root => credentials.is_root() || listed(),
            LeaseAllow::All => true,
        }
    }

    /// Returns the parameters of the protocol.
    pub(crate) fn endpoint(&self) -> &EndpointConfig {
        &self.setup.endpoint
    }

    /// Returns the bytes that the kernel may buffer for a lease of an interface.
    pub(crate) fn buffer_bytes(&self, link: LinkId, standby: bool) -> u64 {
        let ring = self.ring(link, standby).bytes().unwrap_or(0);
        SocketOptions::default().receive_buffer as u64 + u64::from(ring)
    }

    /// Returns the shape of the receive ring of a lease's streams: for frames of the interface's
    /// MTU at the daemon's start. A standby has none.
    pub(crate) fn ring(&self, link: LinkId, standby: bool) -> RingShape {
        if standby {
            return RingShape {
                slot_len: 0,
                slots: 0,
            };
        }
        let interface = self.interface(link);
        let mtu = interface.map_or(0, |interface| interface.mtu);
        RingShape::for_streams(ETHERNET_HEADER + mtu.min(JUMBO) as usize)
    }

    fn interface(&self, link: LinkId) -> Option<Interface> {
        self.interfaces().get(usize::from(link.0)).cloned()
    }

    fn interfaces(&self) -> MutexGuard<'_, Vec<Interface>> {
        self.interfaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the current index and address of an interface for later leases. Returns true if the
    /// index is new: the interface was created again.
    pub(crate) fn update_interface(&self, link: LinkId, index: u32, addr: NodeAddr) -> bool {
        let mut interfaces = self.interfaces();
        let Some(interface) = interfaces.get_mut(usize::from(link.0)) else {
            return false;
        };
        if let Some(mac) = addr.mac() {
            interface.mac = mac.0.into();
        }
        std::mem::replace(&mut interface.index, index) != index
    }

    /// Opens the sockets of a lease: for streams, for replies, and an unbound spare for each.
    /// Blocks for about 15 ms, while the kernel sets up a ring.
    pub(crate) fn open(&self, id: u64, lease: &Lease) -> Result<Vec<OwnedFd>, Refusal> {
        let sockets = self.open_sockets(id, lease);
        if !self.table.contains_key(&id) {
            // The lease ended before these sockets existed.
            self.demux.end(lease.link, id);
        }
        sockets
    }

    fn open_sockets(&self, id: u64, lease: &Lease) -> Result<Vec<OwnedFd>, Refusal> {
        let (link, ports) = (lease.link, &lease.entry.ports);
        let interface = &self
            .interface(link)
            .ok_or_else(|| Refusal::new(ErrorKind::NotFound, "leases are for raw Ethernet only"))?;
        let EndpointConfig {
            esp_ethertype: esp,
            edp_ethertype: edp,
            ..
        } = self.setup.endpoint;
        let filter = |ethertype| Filter::for_ports(ethertype, std::iter::once(ports.clone()));
        // The program could bind the socket to another interface, where another user has the port.
        let index = interface.index;
        let streams = filter(esp).map_err(cannot_open)?.on_interface(index);
        // Only replies to the engine's queries: datagram ports belong to other sockets.
        let reply = EdpKind::PortReply as u16;
        let answers = filter(edp)
            .map_err(cannot_open)?
            .with_half(FLAGS_OFFSET, CTL << 8 | reply)
            .on_interface(index);
        let (mut sockets, mut spares) = (Vec::with_capacity(4), Vec::with_capacity(2));
        let window = SocketOptions::default().receive_buffer;
        let ring = (!lease.standby).then(|| self.ring(link, false));
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
                .map_err(cannot_open)?;
            socket.lock_filter().map_err(cannot_open)?;
            sockets.push(socket.into());
            spare.lock_filter().map_err(cannot_open)?;
            spares.push(spare.into());
        }
        sockets.append(&mut spares);
        Ok(sockets)
    }

    /// Adds a lease, and returns its id.
    pub(crate) fn add(&self, lease: &Arc<Lease>) -> u64 {
        self.change(|| self.insert(lease))
    }

    fn insert(&self, lease: &Arc<Lease>) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.table.insert(id, Arc::clone(lease));
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
        let (_, lease) = self.change(|| self.table.remove(&id))?;
        self.demux.end(lease.link, id);
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

fn cannot_open(error: impl fmt::Display) -> Refusal {
    let what = format!("esp-daemon cannot open sockets for a lease: {error}");
    // Not `Unavailable`, which means that the daemon is stopping.
    Refusal::new(ErrorKind::Limit, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use esp_client::control::InterfaceInfo;

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
            let ring = leases.ring(LinkId(link), false);
            assert!((frame..frame + 64).contains(&ring.frame_len()), "{ring:?}");
            assert!(
                ring.slots * ring.slot_len > 3 << 19,
                "more than a stream's window: {ring:?}"
            );
            assert!(leases.buffer_bytes(LinkId(link), false) > u64::from(ring.bytes().unwrap()));
        }
    }

    fn eth0() -> Link {
        Link::new(InterfaceInfo {
            name: "eth0".into(),
            addr: esp_proto::MacAddr([2, 0, 0, 0, 0, 1]).into(),
            mtu: 1500,
            up: true,
        })
    }

    fn entry(uid: u32, interface: &str, ports: RangeInclusive<Port>) -> Entry {
        Entry {
            uid,
            pid: None,
            interface: interface.into(),
            ports,
        }
    }

    /// Returns a lease of program 9 on the first link, without claims.
    fn lease(uid: u32, ports: RangeInclusive<Port>) -> Arc<Lease> {
        let entry = entry(uid, "eth0", ports);
        Arc::new(Lease::new(ClientId(9), LinkId(0), entry, false, Vec::new()))
    }

    /// The daemon may be killed at any time.
    #[test]
    fn the_record_has_a_lease_while_it_is_adopted() {
        const ROUNDS: Port = 300;
        let (dir, links) = (crate::testing::TempDir::new(), [eth0()]);
        let path = dir.path().join("esp.sock.leases");
        let before = (1..=ROUNDS).map(|port| entry(1, "eth0", port..=port));
        let setup = LeaseSetup {
            before: before.collect(),
            record: Some(path.clone()),
            ..LeaseSetup::default()
        };
        let leases = Leases::new(setup, &links);
        leases.add(&lease(2, 9000..=9000));
        std::thread::scope(|scope| {
            let adopting = scope.spawn(|| {
                for port in 1..=ROUNDS {
                    leases.adopt(&lease(1, port..=port)).unwrap();
                }
            });
            while !adopting.is_finished() {
                // Another program's lease comes and goes.
                let id = leases.add(&lease(2, 8000..=8000));
                leases.remove(id);
                let all = record::load(&path);
                assert!(all.len() > usize::from(ROUNDS), "{} leases", all.len());
            }
        });
        assert!(leases.reserved().is_empty());
    }

    #[test]
    fn ports_of_earlier_leases_are_reserved_for_their_user() {
        let links = [eth0()];
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
        assert_eq!(leases.reserved().len(), 2);
        let (esp, user) = (&links[0].esp, Claimant { uid: 1, engine: 0 });
        assert!(
            esp.take(7000, user, Purpose::Listener(ClientId(9)))
                .is_none()
                && esp.take_vacant(32780, user, Purpose::Sole).is_none()
        );
        let adopt = |uid, ports| leases.adopt(&lease(uid, ports));
        assert!(adopt(2, 7000..=7000).is_none(), "of another user");
        assert!(adopt(1, 32768..=32768).is_none(), "a part of one");
        let id = adopt(1, 7000..=7000).unwrap();
        assert!(adopt(1, 7000..=7000).is_none(), "taken");
        let left = leases.reserved();
        assert_eq!(left.len(), 1);
        leases.remove(left[0]);
        assert!(!esp.is_empty());
        leases.remove(id);
        assert!(esp.is_empty());
    }
}
