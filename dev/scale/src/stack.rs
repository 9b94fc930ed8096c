//! The contract between the simulator and a transport.

use crate::packet::Packet;

/// Change of a connection that a transport reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A connection opened by this node is established.
    Connected {
        /// The connection.
        slot: u32,
    },
    /// A connection opened by a peer is established.
    Incoming {
        /// The connection.
        slot: u32,
        /// Node of the peer.
        peer: u32,
    },
    /// All bytes below `total` have been delivered to this node's program.
    Delivered {
        /// The connection.
        slot: u32,
        /// Bytes since the connection was opened.
        total: u64,
    },
    /// The connection has failed.
    Failed {
        /// The connection.
        slot: u32,
    },
}

/// Counts of a transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sent.
    pub packets: u64,
    /// Packets with data sent again.
    pub retransmits: u64,
    /// Expirations of the retransmission timeout.
    pub timeouts: u64,
}

impl Counts {
    /// Adds the counts of another node.
    pub fn add(&mut self, other: Counts) {
        self.packets += other.packets;
        self.retransmits += other.retransmits;
        self.timeouts += other.timeouts;
    }

    /// Returns the counts since `before`.
    #[must_use]
    pub fn since(self, before: Counts) -> Counts {
        Counts {
            packets: self.packets - before.packets,
            retransmits: self.retransmits - before.retransmits,
            timeouts: self.timeouts - before.timeouts,
        }
    }
}

/// The transport of one node. A connection is known by a small number, its slot.
///
/// Programs read at once: bytes that were delivered have been consumed. Times are nanoseconds.
pub trait Stack: Sized {
    /// Packet of this transport.
    type Body;
    /// Parameters of all nodes.
    type Config: Clone + Send;

    /// Creates the transport of a node.
    fn new(config: &Self::Config, node: u32, seed: u64) -> Self;

    /// Opens a connection to a node; returns its slot, or `None` when that is not possible.
    fn connect(&mut self, now: u64, peer: u32) -> Option<u32>;

    /// Records that the program has written `total` bytes to a connection.
    fn written(&mut self, now: u64, slot: u32, total: u64);

    /// Processes a packet. `room` has at least the length of a full packet.
    fn receive(&mut self, now: u64, packet: &Packet<Self::Body>, room: &mut [u8]);

    /// Ends a batch of received packets or a timeout.
    fn settle(&mut self, now: u64);

    /// Returns the next packet to send.
    fn transmit(&mut self, now: u64) -> Option<Packet<Self::Body>>;

    /// Returns the time at which [`Stack::timeout`] has to be called.
    fn next_timeout(&mut self) -> Option<u64>;

    /// Processes expired timers.
    fn timeout(&mut self, now: u64);

    /// Returns the next change.
    fn notice(&mut self) -> Option<Notice>;

    /// Returns the counts since the start.
    fn counts(&self) -> Counts;
}
