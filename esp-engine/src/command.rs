//! What the host of an engine (the daemon, or a program that holds a leased port) tells it and
//! hears from it.
//!
//! Commands go over a bounded channel and wake the engine's thread; answers come back by calling
//! the [`Reply`] given along, on the engine's thread, so a reply must be quick (hand the value on,
//! nothing else). Events are given to the callback of [`crate::Engine::new`] under the same rule.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use esp_proto::{CloseReason, ConnId, ConnInfo, ConnectError, ListenError, MacAddr, Port};

use crate::shm::{ClientPage, Region};

/// Called once with the answer to a command.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// A program, as the host numbers them; never reused while the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A listener, as the host numbers them; never reused while the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// Index into the links given to [`crate::EngineConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u16);

/// A program's stream or datagram socket: its bit in the program's doorbell, chosen by the host,
/// below 4096.
pub type Slot = u16;

/// A connection of one of the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnHandle {
    /// The link it runs over.
    pub link: LinkId,
    /// Its name at the link's endpoint.
    pub conn: ConnId,
}

/// Orders from the host.
pub enum Command {
    /// A program has come: its page, the eventfd it writes to wake the engine, and the engine's end
    /// of a pair of stream sockets that becomes readable at the program's end when it asked to be
    /// told so (a pair, because two ends of an eventfd share its flags: a program could make the
    /// engine's write block).
    AddClient {
        /// Its number.
        client: ClientId,
        /// Doorbell and event bits.
        page: Arc<ClientPage>,
        /// Written by the program when the engine sleeps.
        doorbell: OwnedFd,
        /// The engine's end of the socket pair.
        notify: OwnedFd,
    },
    /// A program has gone without closing what it had (or closing the last of it): its listeners
    /// and datagram sockets are closed; its streams get [`crate::LINGER`] to have what was written
    /// acknowledged, then are reset with `ProgramDied`. `Closed` events follow for each.
    RemoveClient {
        /// Which.
        client: ClientId,
    },
    /// Listen on one link, or on all.
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
    /// Stop listening; connections not attached yet are reset.
    CloseListener {
        /// Which.
        listener: ListenerId,
    },
    /// Give an incoming connection to a program.
    Attach {
        /// From [`EngineEvent::Incoming`].
        handle: ConnHandle,
        /// Owner.
        client: ClientId,
        /// Doorbell bit, free until now.
        slot: Slot,
        /// Its rings.
        region: Arc<Region>,
        /// False: the connection is gone; the slot is free again.
        reply: Reply<bool>,
    },
    /// Open a connection. How it went on is told through the region's status word.
    Connect {
        /// Owner.
        client: ClientId,
        /// Doorbell bit, free until now.
        slot: Slot,
        /// Over which link.
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
        /// Started, or why not (the slot is free again).
        reply: Reply<Result<ConnHandle, ConnectError>>,
    },
    /// The program dropped the stream: send what was written, then FIN; what arrives is thrown
    /// away. `Closed` follows.
    Close {
        /// Owner.
        client: ClientId,
        /// Which.
        slot: Slot,
    },
    /// The program wants the stream gone: RST `Aborted`. `Closed` follows.
    Abort {
        /// Owner.
        client: ClientId,
        /// Which.
        slot: Slot,
    },
    /// Refuse a connection that came in (its listener's program is at a limit): RST `Resources`.
    Refuse {
        /// Which.
        handle: ConnHandle,
    },
    /// Bind a datagram port on one link.
    BindEdp {
        /// Owner.
        client: ClientId,
        /// Doorbell bit, free until now.
        slot: Slot,
        /// Over which link.
        link: LinkId,
        /// Never 0.
        port: Port,
        /// Its rings, holding [`crate::shm::record`] records.
        region: Arc<Region>,
        /// Done or refused (the slot is free again).
        reply: Reply<Result<(), ListenError>>,
    },
    /// Close a datagram socket. `Closed` follows.
    CloseEdp {
        /// Owner.
        client: ClientId,
        /// Which.
        slot: Slot,
    },
    /// Give ports of a link away: another process has a socket for them. Their frames are left
    /// alone from now on.
    Hold {
        /// Which link.
        link: LinkId,
        /// The ports.
        ports: RangeInclusive<Port>,
        /// Done, or why not (nothing is held then).
        reply: Reply<Result<(), HoldError>>,
    },
    /// Take ports back, and reset these peers with `ProgramDied`.
    Unhold {
        /// Which link.
        link: LinkId,
        /// The ports.
        ports: RangeInclusive<Port>,
        /// Connections their holder had.
        orphans: Vec<Orphan>,
    },
    /// Everything `espstat` shows.
    Snapshot {
        /// Receives it.
        reply: Reply<Snapshot>,
    },
    /// Reset every connection with `Shutdown`, send that, end the loop.
    Shutdown {
        /// Called when the last frame is out.
        reply: Reply<()>,
    },
}

/// A connection whose engine is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Own port.
    pub local_port: Port,
    /// Peer address.
    pub peer: MacAddr,
    /// Peer port.
    pub peer_port: Port,
    /// By which the peer takes a reset.
    pub nonce: u64,
}

/// Why ports cannot be given away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The link has gone.
    #[error("the interface is gone")]
    NoLink,
    /// There are connections on the port.
    #[error("port {0} has connections with other nodes through the daemon")]
    InUse(Port),
    /// The kernel does not take the filter that leaves them out.
    #[error("too many separate ports are leased ({0})")]
    Filter(String),
}

/// A connection that waits for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// It.
    pub handle: ConnHandle,
    /// Own port.
    pub port: Port,
    /// Peer address.
    pub peer: MacAddr,
    /// Peer port.
    pub peer_port: Port,
}

/// News from the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A connection waits for [`Command::Attach`] or [`Command::Refuse`].
    Incoming {
        /// Whose listener.
        listener: ListenerId,
        /// The connection.
        arrival: Arrival,
    },
    /// A connection that was never attached has ended.
    IncomingGone {
        /// Whose listener.
        listener: ListenerId,
        /// The connection.
        handle: ConnHandle,
    },
    /// A slot is free: its stream or datagram socket is over and the engine has let go of the
    /// region.
    Closed {
        /// Owner.
        client: ClientId,
        /// Which.
        slot: Slot,
        /// Why; `None` for a datagram socket.
        reason: Option<CloseReason>,
    },
    /// A program's connection runs over another path now.
    Moved {
        /// Owner.
        client: ClientId,
        /// Which.
        slot: Slot,
        /// The link it ran over before; it may be the same, with another address of the peer.
        from: LinkId,
        /// The link.
        link: LinkId,
        /// Where its peer is now.
        peer: MacAddr,
    },
    /// A link went up or down, changed its MTU, or vanished.
    Link {
        /// Which.
        link: LinkId,
        /// Carrier and administratively up.
        up: bool,
        /// Bytes behind the EtherType.
        mtu: u32,
        /// The interface does not exist any more.
        gone: bool,
    },
    /// A program wrote nonsense into its shared memory; the host should cut it off (its streams are
    /// reset already).
    Scribbled {
        /// Which program.
        client: ClientId,
        /// Where.
        slot: Slot,
        /// What was wrong, for the log.
        what: &'static str,
    },
}

/// The engine's present state.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// One for each link, in the order of the configuration.
    pub links: Vec<LinkSnapshot>,
    /// The loop's own counters: (name, help, value).
    pub engine: Vec<(&'static str, &'static str, u64)>,
}

/// A connection, its owner (none while it waits for a program), and how it stands.
pub type OwnedConnection = (ConnId, Option<(ClientId, Slot)>, ConnInfo);

/// One link's present state.
#[derive(Clone, Debug)]
pub struct LinkSnapshot {
    /// Interface name.
    pub interface: String,
    /// Its address.
    pub mac: MacAddr,
    /// Its MTU.
    pub mtu: u32,
    /// Carrier and administratively up.
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
