//! Data that a host keeps to resume a connection after a loss of state (wire format, W-130 to
//! W-138).

use crate::addr::{MacAddr, NodeAddr, Port};
use crate::wire::{MAX_RAILS, MIN_MAX_PAYLOAD};

/// The part of a connection that only moves and resumptions change.
///
/// A host that wants to resume a connection stores its image ([`Endpoint::image`]) where the loss
/// does not reach, after the set-up and whenever [`Progress::epoch`] changes, before the next frame
/// is sent.
///
/// [`Endpoint::image`]: crate::Endpoint::image
/// [`Progress::epoch`]: crate::Progress::epoch
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnImage {
    /// Port of this side.
    pub local_port: Port,
    /// Address of the peer.
    pub peer: NodeAddr,
    /// Port of the peer.
    pub peer_port: Port,
    /// Nonce of this side.
    pub nonce: u64,
    /// Nonce of the peer.
    pub peer_nonce: u64,
    /// Epoch of the last move or resumption.
    pub epoch: u32,
    /// Maximum payload agreed on at set-up.
    pub payload: u16,
    /// Maximum delay of an acknowledgement by the peer, in µs.
    pub max_ack_delay: u16,
    /// ECN is in force.
    pub ecn: bool,
    /// Other addresses of the peer; zero for none. All are zero if the connection cannot move.
    pub rails: [MacAddr; MAX_RAILS],
}

/// Positions in the two streams of a connection, in bytes, as of the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// Bytes known to be acknowledged by the peer.
    pub acked: u64,
    /// Bytes that the program has written.
    pub written: u64,
    /// The program has finished writing.
    pub finished: bool,
    /// Bytes received in order: at least all that were acknowledged.
    pub delivered: u64,
    /// Bytes that the program has consumed.
    pub consumed: u64,
    /// The peer's FIN was received in order.
    pub peer_finished: bool,
}

/// Reason why a connection cannot be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// A field of the image or a position is impossible.
    #[error("the image of the connection is impossible")]
    BadImage,
    /// A connection between these ports, or with this nonce, exists.
    #[error("a connection between these two ports, or with this nonce, exists already")]
    InUse,
    /// The limit of connections is reached.
    #[error("the limit of connections is reached")]
    TooMany,
}

impl ConnImage {
    /// Returns true if an endpoint with the address `own` could have such a connection.
    pub(crate) fn is_sound(&self, own: NodeAddr) -> bool {
        self.local_port != 0
            && self.peer_port != 0
            && !self.peer.is_group()
            && self.peer.is_kind_of(&own)
            && (self.peer != own || self.local_port != self.peer_port)
            && self.nonce != 0
            && self.peer_nonce != 0
            && self.nonce != self.peer_nonce
            && self.epoch < u32::MAX - 2
            && self.payload >= MIN_MAX_PAYLOAD
            && !self.rails.iter().any(|mac| mac.is_group())
    }
}

impl Positions {
    /// Returns true if these positions are possible with buffers of these sizes.
    pub(crate) fn fit(&self, rx: u32, tx: u32) -> bool {
        let within = |begin: u64, end: u64, room: u32| {
            begin <= end && end - begin <= u64::from(room) && end < 1 << 63
        };
        within(self.acked, self.written, tx) && within(self.consumed, self.delivered, rx)
    }
}
