//! One-sided operations and held sends.

use btl::{Events, HeldSends, PeerError, Rank, SendError, Started};

use super::message::room;
use super::{CONTROL, IbBtl, OPERATION, OPERATIONS, Operation, PIECES, State, find, id};
use crate::nic::{GOOD, PostMode, Sge, Verb};
use crate::wire::{Key, PREFIX, written};

/// Maximum number of bytes of one read request. The bytes themselves answer it, so it needs no
/// acknowledgement.
const READ_PART: usize = 1 << 20;

/// Maximum number of bytes of one write request. Its end is acknowledged, and only an
/// acknowledgement resets the interface's count of retransmissions. Otherwise soft-RoCE requests
/// one acknowledgement for 64 packets, which on a busy host exceed its time-out.
const PIECE: usize = 64 << 10;

/// Kind of a one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Get,
    Put,
    /// The last put into a region, with an immediate (MPICH2 over VAPI, section III-H.1).
    Last,
}

#[allow(unsafe_code)]
impl HeldSends for IbBtl {
    unsafe fn send_held(
        &mut self,
        rank: Rank,
        header: &[u8],
        body: *const u8,
        length: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        if self.config.held_from.is_none() {
            return Err(SendError::Unsupported);
        }
        let bytes = match length {
            0 => &[],
            // SAFETY: readable for `length` bytes, as the caller guarantees.
            _ => unsafe { std::slice::from_raw_parts(body, length) },
        };
        let depth = self.depth();
        let (nic, peer, pool) = self.usable(rank)?;
        let front = PREFIX + header.len();
        let address = body.expose_provenance();
        let held = if length == 0 || front + length <= nic.about().inline {
            None
        } else if peer.operations >= OPERATIONS {
            return Err(SendError::Busy);
        } else {
            room(peer, pool, depth, (header.len(), length), front)?;
            let Some(nic) = &mut self.nic else {
                return Err(SendError::Closed);
            };
            // SAFETY: guaranteed by the caller until completion.
            unsafe { self.cache.acquire(&mut **nic, address, length) }.ok()
        };
        // An inline body is copied by the post; one that cannot be registered is copied to blocks.
        let Some(held) = held else {
            return self
                .send_message(rank, header, bytes, None)
                .map(|()| Started::Done);
        };
        let operation = Operation {
            peer: rank,
            token,
            reads: false,
            held: held.id,
            lkey: held.lkey,
            local: address as u64,
            remote: 0,
            rkey: 0,
            left: 0,
            open: 1,
            notice: None,
        };
        let index = self.begin(operation);
        let sge = Sge {
            address: address as u64,
            length: length as u32,
            lkey: held.lkey,
        };
        match self.send_message(rank, header, bytes, Some((index, sge))) {
            Ok(()) => Ok(Started::Pending),
            Err(error) => {
                self.take_operation(index);
                Err(error)
            }
        }
    }
}

impl IbBtl {
    /// Starts a `get` or `put`.
    ///
    /// # Safety
    /// As for [`btl::Tx::get`] and [`btl::Tx::put`].
    #[allow(unsafe_code)]
    pub(super) unsafe fn start(
        &mut self,
        rank: Rank,
        local: usize,
        length: usize,
        (key, offset): (&[u8], usize),
        token: u64,
        how: How,
    ) -> Result<Started, SendError> {
        let reads = self.config.reads;
        let (_, peer, _) = self.usable(rank)?;
        if how == How::Get && !reads {
            return Err(SendError::Unsupported);
        }
        let key = Key::of(key, peer.address.nonce).ok_or(SendError::BadKey)?;
        let size = usize::try_from(key.length).map_err(|_| SendError::BadKey)?;
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(SendError::TooLong {
                length,
                limit: size.saturating_sub(offset),
            });
        }
        let remote = key
            .address
            .checked_add(offset as u64)
            .ok_or(SendError::BadKey)?;
        let notice = (how == How::Last).then_some(key.notice);
        // There is no notice, or no bytes that could carry it.
        if notice == Some(0) || (notice.is_some() && length == 0) {
            return Err(SendError::Unsupported);
        }
        if length == 0 {
            return Ok(Started::Done);
        }
        if peer.state != State::Connected || peer.operations >= OPERATIONS {
            return Err(SendError::Busy);
        }
        let Some(nic) = &mut self.nic else {
            return Err(SendError::Closed);
        };
        // SAFETY: guaranteed by the caller until completion.
        let held = unsafe { self.cache.acquire(&mut **nic, local, length) };
        // Memory that cannot be registered is sent in messages by the layer above.
        let held = held.map_err(|_| SendError::Unsupported)?;
        let operation = Operation {
            peer: rank,
            token,
            reads: how == How::Get,
            held: held.id,
            lkey: held.lkey,
            local: local as u64,
            remote,
            rkey: key.rkey,
            left: length,
            open: 0,
            notice,
        };
        let index = self.begin(operation);
        if let Some(peer) = self.peer_mut(rank) {
            peer.unposted.push_back(index);
        }
        self.issue(rank);
        Ok(Started::Pending)
    }

    /// Stores an operation that was taken, and returns its index.
    fn begin(&mut self, operation: Operation) -> u32 {
        if let Some(peer) = self.peer_mut(operation.peer) {
            peer.operations += 1;
        }
        let free = self.operations.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        self.operations[index] = Some(operation);
        index as u32
    }

    /// Removes an operation and releases its memory. Returns its token.
    fn take_operation(&mut self, index: u32) -> Option<u64> {
        let operation = self.operations.get_mut(index as usize)?.take()?;
        if let Some(peer) = self.peer_mut(operation.peer) {
            peer.operations = peer.operations.saturating_sub(1);
        }
        if let Some(nic) = &mut self.nic {
            self.cache.release(&mut **nic, operation.held);
        }
        Some(operation.token)
    }

    /// Completes an operation.
    pub(super) fn operation_done(&mut self, index: u32, events: &mut dyn Events) -> usize {
        let Some(token) = self.take_operation(index) else {
            return 0;
        };
        events.completed(self, token, Ok(()));
        1
    }

    /// Posts parts of a peer's operations, in order, as many as its queue takes.
    #[allow(unsafe_code)]
    pub(super) fn issue(&mut self, rank: Rank) {
        let depth = self.depth();
        let (Some(nic), Some(peer)) = (&mut self.nic, find(&mut self.peers, rank)) else {
            return;
        };
        if peer.state != State::Connected {
            return;
        }
        while peer.pieces < PIECES && peer.posted + CONTROL < depth {
            let Some(&index) = peer.unposted.front() else {
                return;
            };
            let Some(Some(operation)) = self.operations.get_mut(index as usize) else {
                peer.unposted.pop_front();
                continue;
            };
            let max = if operation.reads { READ_PART } else { PIECE };
            let now = operation.left.min(max);
            let sge = Sge {
                address: operation.local,
                length: now as u32,
                lkey: operation.lkey,
            };
            let with_notice = operation.notice.filter(|_| now == operation.left);
            if with_notice.is_some() {
                // It consumes a receive of the peer, as a message does. It continues when credits
                // return.
                if !peer.credits.has(1) {
                    return;
                }
                peer.credits.take(1);
            }
            let verb = if operation.reads {
                Verb::Read
            } else {
                Verb::Write(with_notice.map(written))
            };
            let to = (operation.remote, operation.rkey);
            let number = id(rank, OPERATION, index);
            let mode = PostMode::Registered;
            // SAFETY: registered until completion; the rest is guaranteed by the caller.
            let result = unsafe { nic.post(peer.queue, number, verb, &[sge], to, mode) };
            if let Err(error) = result {
                return self.fail(rank, PeerError::Lost(error.to_string()));
            }
            operation.local += now as u64;
            operation.remote = operation.remote.wrapping_add(now as u64);
            operation.left -= now;
            operation.open += 1;
            (peer.pieces, peer.posted) = (peer.pieces + 1, peer.posted + 1);
            peer.spoke = super::now();
            if operation.left == 0 {
                peer.unposted.pop_front();
            }
        }
    }

    /// Handles the completion of a part, and of the operation with the last one.
    pub(super) fn piece_done(
        &mut self,
        rank: Rank,
        index: u32,
        status: u32,
        events: &mut dyn Events,
    ) -> usize {
        let Some(peer) = find(&mut self.peers, rank) else {
            return 0;
        };
        peer.pieces = peer.pieces.saturating_sub(1);
        let operation = self.operations.get_mut(index as usize);
        let Some(Some(operation)) =
            operation.filter(|op| matches!(op, Some(op) if op.peer == rank))
        else {
            return 0;
        };
        operation.open = operation.open.saturating_sub(1);
        if status != GOOD {
            // Reported with the peer's failure.
            return 0;
        }
        let mut done = 0;
        if operation.left == 0 && operation.open == 0 {
            if operation.notice.is_some() && peer.address.blocks == 0 {
                let _ = peer.credits.give(1);
            }
            done = self.operation_done(index, events);
        }
        self.issue(rank);
        done
    }
}
