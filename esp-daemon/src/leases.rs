//! Leases: packet sockets for certain stream ports, given to programs that run the engine themselves.
//!
//! The daemon opens them, filters them to the ports, locks the filter, and hands them over. The ports stay its own: its engine
//! leaves their frames alone and answers queries for them as long as the program's control connection lives; then it takes
//! them back and resets the peers the program has told of. [`demux`] sees to it that many of them cost no more than one.

mod demux;

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use esp_client::control::{ErrorKind, LeaseProtocol};
use esp_engine::{ClientId, LinkId, Orphan};
use esp_proto::{EdpKind, EndpointConfig, MacAddr, Port};
use netif::{Filter, PacketSocket, SocketOptions};

use crate::accounts::Charge;
use crate::config::{LeaseAllow, LeaseOptions};
use crate::peer::Credentials;
use crate::ports::PortLease;
use crate::refusal::Refusal;
use demux::Demux;

/// Ports of one lease at most.
pub(crate) const MOST_PORTS: u16 = 64;
/// From the destination address to the flags of an EDP frame, behind which its control type stands.
const FLAGS_OFFSET: u32 = 24;
/// An EDP frame's flag for control.
const CTL: u16 = 1;

/// What the leases of a node are made with.
#[derive(Clone, Debug, Default)]
pub struct LeaseSetup {
    /// Who may have any.
    pub options: LeaseOptions,
    /// The groups of `options`, by number.
    pub groups: Vec<u32>,
    /// Constants of the protocol.
    pub endpoint: EndpointConfig,
    /// The interfaces, in the engine's order.
    pub interfaces: Vec<netif::Interface>,
}

/// All leases of the node.
#[derive(Debug)]
pub(crate) struct Leases {
    setup: LeaseSetup,
    table: DashMap<u64, Arc<Lease>>,
    next: AtomicU64,
    demux: Demux,
}

/// A connection as its holder tells of it: own port, peer, peer's port.
pub(crate) type Told = (Port, MacAddr, Port);

/// One lease. Dropped, it gives back ports and charges; the engine has to be told before.
pub(crate) struct Lease {
    pub(crate) client: ClientId,
    uid: u32,
    pub(crate) link: LinkId,
    pub(crate) ports: RangeInclusive<Port>,
    connections: Mutex<HashMap<Told, (u64, Charge)>>,
    _held: (Vec<PortLease>, Charge),
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
        uid: u32,
        link: LinkId,
        ports: RangeInclusive<Port>,
        held: (Vec<PortLease>, Charge),
    ) -> Lease {
        Lease { client, uid, link, ports, connections: Mutex::default(), _held: held }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<Told, (u64, Charge)>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The holder has another connection; `charge` pays for the entry.
    pub(crate) fn opened(&self, told: Told, nonce: u64, charge: Charge) {
        self.connections().insert(told, (nonce, charge));
    }

    pub(crate) fn closed(&self, told: Told) {
        self.connections().remove(&told);
    }

    /// The connections it has, as far as they were told of.
    pub(crate) fn told(&self) -> Vec<Told> {
        self.connections().keys().copied().collect()
    }

    /// The same for the engine.
    pub(crate) fn orphans(&self) -> Vec<Orphan> {
        let orphan = |(&(local_port, peer, peer_port), (nonce, _)): (&Told, &(u64, Charge))| Orphan {
            local_port,
            peer,
            peer_port,
            nonce: *nonce,
        };
        self.connections().iter().map(orphan).collect()
    }
}

impl Leases {
    pub(crate) fn new(setup: LeaseSetup) -> Leases {
        Leases { setup, table: DashMap::new(), next: AtomicU64::new(1), demux: Demux::default() }
    }

    /// Does the policy let this user have leases?
    pub(crate) fn allowed(&self, who: Credentials, groups: &[u32]) -> bool {
        let LeaseOptions { allow, users, .. } = &self.setup.options;
        let listed = || {
            let listed = &self.setup.groups;
            users.contains(&who.uid) || listed.contains(&who.gid) || groups.iter().any(|g| listed.contains(g))
        };
        match allow {
            LeaseAllow::Off => false,
            LeaseAllow::Root => who.is_root() || listed(),
            LeaseAllow::All => true,
        }
    }

    /// May this user have (another) lease?
    pub(crate) fn check(&self, who: Credentials, groups: &[u32]) -> Result<(), Refusal> {
        let options = &self.setup.options;
        if !self.allowed(who, groups) {
            let message = format!(
                "leases are not for user {} on this node ([lease] in the daemon's config says for whom); connections go \
                 through the daemon",
                who.uid
            );
            return Err(Refusal::new(ErrorKind::Permission, message));
        }
        let has = self.table.iter().filter(|lease| lease.uid == who.uid).count();
        if has >= options.per_user as usize {
            let message =
                format!("user {} has {has} leases already, as many as lease.per_user allows", who.uid);
            return Err(Refusal::new(ErrorKind::Limit, message));
        }
        Ok(())
    }

    pub(crate) fn protocol(&self) -> LeaseProtocol {
        LeaseProtocol::from(&self.setup.endpoint)
    }

    /// Bytes that may wait in the kernel for one lease.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        SocketOptions::default().receive_buffer as u64
    }

    /// The sockets of a lease: for streams, for answers, and a spare for each, which is bound to nothing.
    pub(crate) fn open(&self, link: LinkId, ports: &RangeInclusive<Port>) -> Result<Vec<OwnedFd>, Refusal> {
        let gone = || Refusal::new(ErrorKind::NotFound, "the interface is gone");
        let interface = self.setup.interfaces.get(usize::from(link.0)).ok_or_else(gone)?;
        let failed = |error: &dyn fmt::Display| {
            Refusal::new(
                ErrorKind::Unavailable,
                format!("esp-daemon cannot open sockets for a lease: {error}"),
            )
        };
        let (esp, edp) = (self.setup.endpoint.esp_ethertype, self.setup.endpoint.edp_ethertype);
        let range = || std::iter::once(ports.clone());
        // The holder may bind the socket anew, where the same port is another's.
        let index = interface.index;
        let streams = Filter::for_ports(esp, range()).map_err(|e| failed(&e))?.on_interface(index);
        // Of datagrams only the answers to the engine's own queries: the ports of datagrams are others'.
        let reply = EdpKind::PortReply.control_type().map_or(0, |kind| kind as u16);
        let answers = Filter::for_ports(edp, range())
            .map_err(|e| failed(&e))?
            .with_half(FLAGS_OFFSET, CTL << 8 | reply)
            .on_interface(index);
        let (mut sockets, mut spares) = (Vec::with_capacity(4), Vec::with_capacity(2));
        for (ethertype, filter, receive_buffer) in
            [(esp, streams, SocketOptions::default().receive_buffer), (edp, answers, 1 << 16)]
        {
            let options = SocketOptions { filter: Some(filter), receive_buffer, ..SocketOptions::default() };
            let open = || PacketSocket::open(interface, ethertype, &options);
            let at = (link, interface);
            let socket = self.demux.open(at, ethertype, ports, open).map_err(|e| failed(&e))?;
            socket.lock_filter().map_err(|e| failed(&e))?;
            sockets.push(socket.into());
            let spare = PacketSocket::open_unbound(interface, &options).map_err(|e| failed(&e))?;
            spare.lock_filter().map_err(|e| failed(&e))?;
            spares.push(spare.into());
        }
        sockets.append(&mut spares);
        Ok(sockets)
    }

    pub(crate) fn add(&self, lease: Lease) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.table.insert(id, Arc::new(lease));
        id
    }

    /// The lease, if it is this program's.
    pub(crate) fn of(&self, client: ClientId, id: u64) -> Option<Arc<Lease>> {
        self.table.get(&id).filter(|lease| lease.client == client).map(|lease| Arc::clone(&lease))
    }

    pub(crate) fn remove(&self, id: u64) -> Option<Arc<Lease>> {
        let (_, lease) = self.table.remove(&id)?;
        self.demux.end(lease.link, &lease.ports);
        Some(lease)
    }

    /// Numbers of a program's leases.
    pub(crate) fn numbers(&self, client: ClientId) -> Vec<u64> {
        self.table.iter().filter(|lease| lease.client == client).map(|lease| *lease.key()).collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Lease>> {
        self.table.iter().map(|lease| Arc::clone(&lease)).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}
