//! State of a message that needs more than one step, at one of its ends.

use super::peer::MAX_RAILS;
use crate::ids::{PeerId, TransportId};
use crate::matching::unexpected::RegionKey;

/// Method by which the bytes of a message move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Not decided: the sender waits for CTS, or the receiver has not chosen.
    Undecided,
    /// The receiver gets, or the sender puts.
    OneSided,
    Fragments,
    /// Eager, from the program's memory (`send_held`).
    Held,
}

/// A rendezvous message, or a held send. Its number is the token of its operations, at most one of
/// which is pending.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) request: u64,
    /// The other end's number for its request.
    pub(crate) remote: u64,
    pub(super) peer: PeerId,
    /// Transport of the one-sided operations, and the key of the peer's region.
    pub(super) transport: TransportId,
    pub(super) key: RegionKey,
    /// Number of bytes that the receiver requests, that were started, and that arrived in
    /// fragments.
    pub(super) wanted: usize,
    pub(super) issued: usize,
    pub(super) moved: usize,
    pub(super) method: Method,
    /// Bytes that each rail still has to carry.
    pub(super) shares: [usize; MAX_RAILS],
    /// The transport will complete an operation.
    pub(super) open: bool,
    /// The transport refused an operation, or one failed.
    pub(super) refused: bool,
    /// The last put notifies the receiver, so no FIN is needed.
    pub(super) notified: bool,
    /// The peer failed: the transfer ends when no operation is open and the peer is quiet.
    pub(super) doomed: bool,
    /// Registration of local memory that the peer may use.
    pub(super) region: Option<(TransportId, u64)>,
}

impl Transfer {
    pub(super) fn new(request: u64, peer: PeerId, transport: TransportId) -> Transfer {
        Transfer {
            request,
            remote: 0,
            peer,
            transport,
            key: RegionKey::NONE,
            wanted: 0,
            issued: 0,
            moved: 0,
            method: Method::Undecided,
            shares: [0; MAX_RAILS],
            open: false,
            refused: false,
            notified: false,
            doomed: false,
            region: None,
        }
    }
}
