//! Commands to an engine and events from it. Its owner, here called the host, is the daemon or a
//! program that holds a lease.
//!
//! Commands go over a bounded channel and wake the engine's thread. A [`Reply`] is called on the
//! engine's thread, so it must only pass the value on. The callback of [`crate::Engine::new`],
//! which takes events, follows the same rule.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use esp_proto::{CloseReason, ConnId, ConnInfo, ConnectError, ListenError, MacAddr, Port};

use crate::shm::{ClientPage, Region};

/// Takes the answer to a command; called once.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// Number of a program, given by the host. Not reused while the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Number of a listener, given by the host. Not reused while the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// Index into the links given to [`crate::EngineConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u16);

/// Number of a program's stream or datagram socket: its bit in the program's doorbell, given by the
/// host, below 4096.
pub type Slot = u16;

/// A connection of one of the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnHandle {
    /// Link that it runs over.
    pub link: LinkId,
    /// Its identifier at the link's endpoint.
    pub conn: ConnId,
}

/// Commands of the host.
pub enum Command {
    /// Adds a program: its page, the eventfd that it writes to wake the engine, and the engine's
    /// end of a pair of stream sockets, which becomes readable at the program's end when it
    /// requested that (a pair, because two ends of an eventfd share flags: a program could make the
    /// engine's write block).
    AddClient {
        /// Its number.
        client: ClientId,
        /// Doorbell and event bits.
        page: Arc<ClientPage>,
        /// Written by the program to wake the engine.
        doorbell: OwnedFd,
        /// The engine's end of the socket pair.
        notify: OwnedFd,
    },
    /// Removes a program. Its listeners and datagram sockets are closed. Its streams have
    /// [`crate::LINGER`] to deliver what was written, then are reset with `ProgramDied`. `Closed`
    /// events follow for each.
    RemoveClient {
        /// Number of the object.
        client: ClientId,
    },
    /// Listens on one link, or on all.
    Listen {
        /// Owner.
        client: ClientId,
        /// Its number.
        listener: ListenerId,
        /// `None`: every link.
        link: Option<LinkId>,
        /// Never 0.
        port: Port,
        /// Connections waiting for [`Command::Attach`].
        backlog: u16,
        /// Job key or empty.
        key: Vec<u8>,
        /// Done, or refused on one of the links (then on none).
        reply: Reply<Result<(), ListenError>>,
    },
    /// Stops listening. Connections that were not attached are reset.
    CloseListener {
        /// Number of the object.
        listener: ListenerId,
    },
    /// Attaches an incoming connection to a program.
    Attach {
        /// From [`EngineEvent::Incoming`].
        handle: ConnHandle,
        /// Owner.
        client: ClientId,
        /// Doorbell bit, free until now.
        slot: Slot,
        /// Its rings.
        region: Arc<Region>,
        /// False: the connection has ended, and the slot is free.
        reply: Reply<bool>,
    },
    /// Opens a connection. The region's status word shows its state.
    Connect {
        /// Owner.
        client: ClientId,
        /// Doorbell bit, free until now.
        slot: Slot,
        /// Link to use.
        link: LinkId,
        /// Own port, never 0.
        local_port: Port,
        /// Peer address.
        peer: MacAddr,
        /// Peer port.
        peer_port: Port,
        /// Job key or empty.
        key: Vec<u8>,
        /// Its rings.
        region: Arc<Region>,
        /// The connection, or the reason of the failure; the slot is free then.
        reply: Reply<Result<ConnHandle, ConnectError>>,
    },
    /// Closes a stream: transmits what was written, then FIN. Received bytes are discarded.
    /// `Closed` follows.
    Close {
        /// Owner.
        client: ClientId,
        /// Number of the object.
        slot: Slot,
    },
    /// Resets a stream with `Aborted`. `Closed` follows.
    Abort {
        /// Owner.
        client: ClientId,
        /// Number of the object.
        slot: Slot,
    },
    /// Refuses an incoming connection, because its listener's program is at a limit: RST
    /// `Resources`.
    Refuse {
        /// Number of the object.
        handle: ConnHandle,
    },
    /// Binds a datagram port on one link.
    BindEdp {
        /// Owner.
        client: ClientId,
        /// Doorbell bit, free until now.
        slot: Slot,
        /// Link to use.
        link: LinkId,
        /// Never 0.
        port: Port,
        /// Its rings, holding [`crate::shm::record`] records.
        region: Arc<Region>,
        /// Done or refused; the slot is free then.
        reply: Reply<Result<(), ListenError>>,
    },
    /// Closes a datagram socket. `Closed` follows.
    CloseEdp {
        /// Owner.
        client: ClientId,
        /// Number of the object.
        slot: Slot,
    },
    /// Reserves ports of a link for another process, which has a socket for them. The engine
    /// ignores their frames from now on.
    Hold {
        /// Number of the link.
        link: LinkId,
        /// The ports.
        ports: RangeInclusive<Port>,
        /// Done, or the reason of the failure; no port is held then.
        reply: Reply<Result<(), HoldError>>,
    },
    /// Takes ports back, and resets these peers with `ProgramDied`.
    Unhold {
        /// Number of the link.
        link: LinkId,
        /// The ports.
        ports: RangeInclusive<Port>,
        /// Connections of the process that held them.
        orphans: Vec<Orphan>,
    },
    /// Returns the state that `espstat` shows.
    Snapshot {
        /// Receives it.
        reply: Reply<Snapshot>,
    },
    /// Resets every connection with `Shutdown`, and ends the loop.
    Shutdown {
        /// Called when the last frame was sent.
        reply: Reply<()>,
    },
}

/// A connection whose engine has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Own port.
    pub local_port: Port,
    /// Peer address.
    pub peer: MacAddr,
    /// Peer port.
    pub peer_port: Port,
    /// Nonce with which the peer accepts a reset.
    pub nonce: u64,
}

/// Reason why ports cannot be reserved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The link was removed.
    #[error("the interface is gone")]
    NoLink,
    /// There are connections on the port.
    #[error("port {0} has connections with other nodes through the daemon")]
    InUse(Port),
    /// The kernel refuses the filter that excludes them.
    #[error("too many separate ports are leased ({0})")]
    Filter(String),
}

/// An incoming connection that waits for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The connection.
    pub handle: ConnHandle,
    /// Own port.
    pub port: Port,
    /// Peer address.
    pub peer: MacAddr,
    /// Peer port.
    pub peer_port: Port,
}

/// Events of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A connection waits for [`Command::Attach`] or [`Command::Refuse`].
    Incoming {
        /// The listener.
        listener: ListenerId,
        /// The connection.
        arrival: Arrival,
    },
    /// A connection that was never attached has ended.
    IncomingGone {
        /// The listener.
        listener: ListenerId,
        /// The connection.
        handle: ConnHandle,
    },
    /// A slot is free: its stream or datagram socket has ended, and the engine does not use its
    /// region any more.
    Closed {
        /// Owner.
        client: ClientId,
        /// Number of the object.
        slot: Slot,
        /// Reason; `None` for a datagram socket.
        reason: Option<CloseReason>,
    },
    /// A program's connection has moved to another link or peer address.
    Moved {
        /// Owner.
        client: ClientId,
        /// Number of the object.
        slot: Slot,
        /// The link before the move; equal to `link` if only the peer's address changed.
        from: LinkId,
        /// The link.
        link: LinkId,
        /// Address of the peer after the move.
        peer: MacAddr,
    },
    /// A link went up or down, changed its MTU, or was removed.
    Link {
        /// Number of the object.
        link: LinkId,
        /// Administratively up, with a carrier.
        up: bool,
        /// Bytes after the EtherType.
        mtu: u32,
        /// The interface was removed.
        gone: bool,
    },
    /// A program corrupted its shared memory. The host should disconnect it; its streams were
    /// reset.
    Corrupted {
        /// The program.
        client: ClientId,
        /// Slot of the corrupt region.
        slot: Slot,
        /// Description for the log.
        what: &'static str,
    },
}

/// State of the engine.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// One for each link, in the order of the configuration.
    pub links: Vec<LinkSnapshot>,
    /// The loop's own counters: (name, help, value).
    pub engine: Vec<(&'static str, &'static str, u64)>,
}

/// A connection, its owner (`None` while it waits for a program), and its state.
pub type OwnedConnection = (ConnId, Option<(ClientId, Slot)>, ConnInfo);

/// State of one link.
#[derive(Clone, Debug)]
pub struct LinkSnapshot {
    /// Interface name.
    pub interface: String,
    /// Its address.
    pub mac: MacAddr,
    /// Its MTU.
    pub mtu: u32,
    /// Administratively up, with a carrier.
    pub up: bool,
    /// Protocol and socket counters: (name, help, value).
    pub counters: Vec<(&'static str, &'static str, u64)>,
    /// Its connections.
    pub connections: Vec<OwnedConnection>,
    /// Listeners: port, owner, connections waiting, backlog.
    pub listeners: Vec<(Port, Option<ListenerId>, u32, u32)>,
    /// Datagram ports with their owner.
    pub edp_ports: Vec<(Port, ClientId, Slot)>,
}
