//! Commands to an engine and events from it. The host of an engine is the daemon, or the client
//! library of a program with a lease. A [`Reply`] and the callback for events are called on the
//! engine's thread, so they must only pass the value on.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use esp_proto::{
    CloseReason, ConnId, ConnImage, ConnInfo, ConnectError, ListenError, NodeAddr, Port,
    ResumeError,
};

use crate::shm::{ClientPage, Region};

/// Callback for the answer to a command.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// Number of a program, chosen by the host. Not reused while the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Number of a listener, chosen by the host. Not reused while the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// State of a link that can change while the link is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCondition {
    /// Administratively up, with a carrier.
    pub up: bool,
    /// Bytes after the EtherType.
    pub mtu: u32,
    /// The interface was removed.
    pub gone: bool,
    /// Address of the link.
    pub addr: NodeAddr,
    /// Index of the interface. It changes when the interface is created again.
    pub index: u32,
}

/// Index into the links given to [`crate::EngineConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u16);

/// Number of a program's stream or datagram socket, chosen by the host: its bit in the program's
/// doorbell, below 4096.
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
    /// Adds a program.
    AddClient {
        /// Its number.
        client: ClientId,
        /// Number of its user, chosen by the host. Users get equal shares of the engine's turns.
        user: u32,
        /// Its doorbell and event bits.
        page: Arc<ClientPage>,
        /// Eventfd that the program writes to wake the engine.
        doorbell: OwnedFd,
        /// End of a pair of stream sockets, to which the engine writes when the program requested a
        /// notification. Not an eventfd, because the program shares its flags and could make the
        /// engine's write block.
        notify: OwnedFd,
    },
    /// Removes a program and closes its listeners and datagram sockets. Its streams have
    /// [`crate::LINGER`] to deliver the written bytes, then are reset with `ProgramDied`. Each is
    /// reported by [`EngineEvent::Closed`].
    RemoveClient {
        /// The program.
        client: ClientId,
    },
    /// Replaces the keys of protected packets; without effect on links without protection.
    SetKeys(Vec<esp_proto::secure::Key>),
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
        /// `Err`: refused on one of the links, and listening on none.
        reply: Reply<Result<(), ListenError>>,
    },
    /// Stops listening. Connections that were not attached are reset.
    CloseListener {
        /// The listener.
        listener: ListenerId,
    },
    /// Attaches an incoming connection to a program.
    Attach {
        /// From [`EngineEvent::Incoming`].
        handle: ConnHandle,
        /// Owner.
        client: ClientId,
        /// Doorbell bit, which must be free.
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
        /// Doorbell bit, which must be free.
        slot: Slot,
        /// Link to use.
        link: LinkId,
        /// Local port, never 0.
        local_port: Port,
        /// Peer address.
        peer: NodeAddr,
        /// Peer port.
        peer_port: Port,
        /// Job key or empty.
        key: Vec<u8>,
        /// Its rings.
        region: Arc<Region>,
        /// The connection, or the reason for the failure, after which the slot is free.
        reply: Reply<Result<ConnHandle, ConnectError>>,
    },
    /// Closes a stream (transmits the written bytes, then FIN, and discards received bytes) or a
    /// datagram socket. [`EngineEvent::Closed`] follows.
    Close {
        /// Owner.
        client: ClientId,
        /// Its slot.
        slot: Slot,
    },
    /// Resets a stream with `Aborted`. [`EngineEvent::Closed`] follows.
    Abort {
        /// Owner.
        client: ClientId,
        /// Its slot.
        slot: Slot,
    },
    /// Refuses an incoming connection, because its listener's program is at a limit: RST
    /// `Resources`.
    Refuse {
        /// The connection.
        handle: ConnHandle,
    },
    /// Binds a datagram port on one link.
    BindEdp {
        /// Owner.
        client: ClientId,
        /// Doorbell bit, which must be free.
        slot: Slot,
        /// Link to use.
        link: LinkId,
        /// Never 0.
        port: Port,
        /// Its rings, holding [`crate::shm::record`] records.
        region: Arc<Region>,
        /// The rings are those of an earlier engine.
        resume: bool,
        /// `Err`: refused, and the slot is free.
        reply: Reply<Result<(), ListenError>>,
    },
    /// Reserves ports of a link for another process, which has a socket for them. The engine
    /// ignores their frames from now on.
    Hold {
        /// The link.
        link: LinkId,
        /// The ports.
        ports: RangeInclusive<Port>,
        /// `Err`: no port is reserved.
        reply: Reply<Result<(), HoldError>>,
    },
    /// Ends a reservation, and resets the peers of the other process with `ProgramDied`.
    Unhold {
        /// The link.
        link: LinkId,
        /// The ports.
        ports: RangeInclusive<Port>,
        /// Connections of that process.
        orphans: Vec<Orphan>,
    },
    /// Requests the state that `espstat` shows.
    Snapshot {
        /// Receives the state.
        reply: Reply<Snapshot>,
    },
    /// Resumes a connection of an earlier engine.
    Resume {
        /// Owner.
        client: ClientId,
        /// Doorbell bit, which must be free.
        slot: Slot,
        /// Link with the connection's own address.
        link: LinkId,
        /// Image of the connection, from the region. The host has checked the port.
        image: Box<ConnImage>,
        /// Its rings, as the earlier engine left them.
        region: Arc<Region>,
        /// The connection, which then waits for its peer, or the reason for the failure, after
        /// which the slot is free.
        reply: Reply<Result<ConnHandle, ResumeError>>,
    },
    /// Ends the loop.
    Shutdown {
        /// False: every connection is reset with `Shutdown`. True: nothing is sent, and the next
        /// engine may resume them.
        keep: bool,
        /// Called after the last frame was sent.
        reply: Reply<()>,
    },
}

/// A connection whose embedded engine has ended with its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Local port.
    pub local_port: Port,
    /// Peer address.
    pub peer: NodeAddr,
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
    /// The filter that excludes the ports cannot be attached.
    #[error("the engine's socket cannot exclude the leased ports: {0}")]
    Filter(String),
}

/// An incoming connection that waits for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The connection.
    pub handle: ConnHandle,
    /// Local port.
    pub port: Port,
    /// Peer address.
    pub peer: NodeAddr,
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
    /// A connection has ended before it was attached.
    IncomingGone {
        /// The listener.
        listener: ListenerId,
        /// The connection.
        handle: ConnHandle,
    },
    /// A slot is free: its stream or datagram socket has ended, and the engine no longer uses its
    /// region.
    Closed {
        /// Owner.
        client: ClientId,
        /// Its slot.
        slot: Slot,
        /// Reason; `None` for a datagram socket.
        reason: Option<CloseReason>,
    },
    /// A program's connection has moved to another link or peer address.
    Moved {
        /// Owner.
        client: ClientId,
        /// Its slot.
        slot: Slot,
        /// The link before the move; equal to `link` if only the peer's address changed.
        from: LinkId,
        /// The link.
        link: LinkId,
        /// Address of the peer after the move.
        peer: NodeAddr,
    },
    /// A link went up or down, changed its MTU or address, or its interface was removed or created
    /// again.
    Link {
        /// The link.
        link: LinkId,
        /// Its new condition.
        condition: LinkCondition,
    },
    /// An interface was created again, but its link cannot use it. The engine retries at the next
    /// change of an interface.
    NotAttached {
        /// The link.
        link: LinkId,
        /// Description for the log.
        why: String,
    },
    /// The pcap file could not be written. Further frames are not recorded.
    CaptureEnded {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        why: String,
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
    pub addr: NodeAddr,
    /// Its MTU.
    pub mtu: u32,
    /// Administratively up, with a carrier.
    pub up: bool,
    /// Protocol and socket counters: (name, help, value).
    pub counters: Vec<(&'static str, &'static str, u64)>,
    /// Its connections.
    pub connections: Vec<OwnedConnection>,
    /// Listeners: port, id, connections waiting, backlog.
    pub listeners: Vec<(Port, Option<ListenerId>, u32, u32)>,
    /// Datagram ports with their owner.
    pub edp_ports: Vec<(Port, ClientId, Slot)>,
}
