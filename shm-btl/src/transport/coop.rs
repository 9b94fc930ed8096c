//! Cooperative copies (`coop.rs` of the crate) in the transport.

use btl::{Events, PeerError, Rank, SendError, Started};

use super::ShmBtl;
use super::peer::Peer;
use crate::cma::{self, CmaError};
use crate::coop::{MAX_CHUNKS, Next, Offer, PLACES, help, place};
use crate::fifo::Help;
use shmem::sync::AtomicU64;

/// Minimum length for which help is requested: a shorter message is copied before the other side
/// has started.
const FROM: usize = 48 << 10;
/// Number of chunks of a message, unless they become too short or too long.
const CHUNKS: usize = 8;
/// Minimum and maximum size of a chunk, in bytes. A system call costs as much as copying 8 KiB; at
/// the end one side waits for a chunk of the other.
const CHUNK: (usize, usize) = (32 << 10, 128 << 10);
const PAGE: usize = 4096;
/// Maximum number of bytes that this side copies for a peer in one call.
const AT_ONCE: usize = 2 << 20;

/// Returns the bytes of a chunk and the number of chunks of a message of this length. Both sides
/// compute it.
fn cut(length: usize) -> Option<(usize, u32)> {
    let chunk = (length / CHUNKS)
        .next_multiple_of(PAGE)
        .clamp(CHUNK.0, CHUNK.1);
    let chunk = chunk.max(
        length
            .div_ceil(MAX_CHUNKS as usize)
            .checked_next_multiple_of(PAGE)?,
    );
    Some((chunk, u32::try_from(length.div_ceil(chunk)).ok()?))
}

/// Returns the offset of a chunk in the message, and its length.
fn part(index: u32, chunk: usize, length: usize) -> (usize, usize) {
    let at = (index as usize).saturating_mul(chunk).min(length);
    (at, chunk.min(length - at))
}

/// A `get` that the peer may help with.
#[derive(Debug)]
pub(super) struct CoopGet {
    pub(super) rank: Rank,
    pub(super) token: u64,
    offer: Offer,
    /// Address of the local memory, lent until completion.
    to: usize,
    from: u64,
    length: usize,
    chunk: usize,
    /// A chunk to copy again after a temporary error.
    again: Option<u32>,
    /// The copy failed; no further chunk is copied.
    failed: Option<CmaError>,
    /// Result, once it is complete.
    result: Option<Result<(), CmaError>>,
}

/// A message of this process that a peer copies with this process's help.
#[derive(Debug)]
pub(super) struct Helping {
    pub(super) rank: Rank,
    asked: Help,
    /// Number of chunks done.
    done: u32,
}

impl CoopGet {
    /// Returns the word of the offer, and the sender's.
    fn words<'a>(&self, peer: &'a Peer) -> (&'a AtomicU64, &'a AtomicU64) {
        let at = place(self.offer.id());
        let producer = &peer.producer;
        (
            &producer.mine().offers.0[at],
            &producer.theirs().shares.0[at],
        )
    }

    /// Copies until only the sender can continue, or all is complete.
    fn advance(&mut self, peer: &Peer) -> Result<(), crate::Corruption> {
        let (mine, theirs) = self.words(peer);
        while self.result.is_none() {
            if let Some(error) = self.failed {
                let stopped = self.offer.stopped(theirs);
                self.result = stopped.then(|| peer.copied_from(Err(error)));
                break;
            }
            let next = match self.again.take() {
                Some(chunk) => Next::Copy(chunk),
                None => self.offer.next(mine, theirs)?,
            };
            let chunk = match next {
                Next::Done => {
                    self.result = Some(peer.copied_from(Ok(())));
                    break;
                }
                Next::Wait => break,
                Next::Copy(chunk) => chunk,
            };
            let (offset, length) = part(chunk, self.chunk, self.length);
            let to = core::ptr::with_exposed_provenance_mut::<u8>(self.to.wrapping_add(offset));
            let from = self.from.wrapping_add(offset as u64);
            // SAFETY: inside the memory of the `get`, which is ours until completion; at completion
            // neither side copies any more.
            match unsafe { cma::read(peer.pid, to, from, length) } {
                Ok(()) => {}
                Err(CmaError::Other(libc::ENOMEM | libc::EAGAIN)) => {
                    self.again = Some(chunk);
                    break;
                }
                Err(error) => {
                    self.failed = Some(error);
                    self.offer.stop(mine);
                }
            }
        }
        Ok(())
    }

    /// Forbids both sides to copy further chunks.
    pub(super) fn stop(&mut self, peer: &Peer) {
        let (mine, _) = self.words(peer);
        self.offer.stop(mine);
    }

    /// Returns true if the sender writes nothing more: the copy is complete or, after
    /// [`CoopGet::stop`], the sender has stopped.
    pub(super) fn is_stopped(&self, peer: &Peer) -> bool {
        self.result.is_some() || self.offer.stopped(self.words(peer).1)
    }
}

impl ShmBtl {
    /// Starts to copy, and asks the peer to help. The memory at `to` is lent until completion.
    /// Returns `None` if it was not started, because the message is too short or too many copies
    /// are open.
    pub(super) fn start_coop(
        &mut self,
        rank: Rank,
        to: *mut u8,
        from: u64,
        length: usize,
        token: u64,
    ) -> Option<Result<Started, SendError>> {
        if length < FROM || rank == self.config.rank {
            return None;
        }
        let (chunk, chunks) = cut(length)?;
        // Gets that have completed in the meantime make room, although they are reported later.
        self.advance_gets();
        let id = self.added(rank)?.last_offer.wrapping_add(1);
        let in_place = |get: &CoopGet| {
            get.rank == rank && get.result.is_none() && place(get.offer.id()) == place(id)
        };
        if self.gets.iter().any(in_place) {
            return None;
        }
        let (_, peer) = self.peer(rank).ok()?;
        if !matches!(peer.producer.is_half_free(), Ok(true)) {
            return None;
        }
        peer.last_offer = id;
        let to = to.expose_provenance();
        let mut get = CoopGet {
            rank,
            token,
            offer: Offer::open(&peer.producer.mine().offers.0[place(id)], id, chunks),
            to,
            from,
            length,
            chunk,
            again: None,
            failed: None,
            result: None,
        };
        // The peer is not woken: while it sleeps, this side copies everything.
        peer.producer.push_help(Help {
            id,
            from,
            to: to as u64,
            length: length as u64,
        });
        let advanced = get.advance(peer);
        if let Some(result) = get.result {
            return Some(self.copied(rank, result));
        }
        self.gets.push(get);
        if let Err(corruption) = advanced {
            // The copy ends with the peer.
            self.broke(rank, corruption);
        }
        Some(Ok(Started::Pending))
    }

    /// Advances all open copies until they would have to wait.
    fn advance_gets(&mut self) {
        let mut gets = std::mem::take(&mut self.gets);
        for get in &mut gets {
            // Copies of a peer that has ended are completed by its end.
            if let Ok((_, peer)) = self.peer(get.rank)
                && let Err(corruption) = get.advance(peer)
            {
                self.broke(get.rank, corruption);
            }
        }
        self.gets = gets;
    }

    /// Advances open copies, and reports the complete ones.
    pub(super) fn report_gets(&mut self, events: &mut dyn Events) -> usize {
        self.advance_gets();
        let mut count = 0;
        while let Some(at) = self.gets.iter().position(|get| get.result.is_some()) {
            let get = self.gets.remove(at);
            let result = get.result.unwrap_or(Ok(())).map_err(|error| match error {
                // This is not the peer's fault.
                CmaError::Refused(_) => PeerError::Lost(format!("cross-memory attach: {error}")),
                error => self.copy_failed(get.rank, error),
            });
            events.completed(self, get.token, result);
            count += 1;
        }
        count
    }

    /// Returns true if only the sender can continue this copy; it wakes this process then.
    pub(super) fn waits(&self, get: &CoopGet) -> bool {
        let Some(peer) = self.added(get.rank) else {
            return true;
        };
        let (_, theirs) = get.words(peer);
        get.result.is_none()
            && match (get.again, get.failed) {
                (Some(_), None) => false,
                (_, Some(_)) => !get.offer.stopped(theirs),
                (None, None) => get.offer.waits(theirs),
            }
    }

    /// Handles a request for help with one of this process's messages. Returns true if there was
    /// something to do.
    pub(super) fn help_with(&mut self, rank: Rank, asked: Help) -> bool {
        // The next request in this entry means that the previous copy is complete.
        self.helping
            .retain(|old| old.rank != rank || place(old.asked.id) != place(asked.id));
        let done = 0;
        self.help_on(Helping { rank, asked, done })
    }

    /// Continues one copy: bounded work in each call.
    pub(super) fn help_more(&mut self) -> usize {
        let Some(next) = self.helping.pop_front() else {
            return 0;
        };
        self.help_on(next);
        1
    }

    /// Copies some chunks, and keeps the request if there may be more to do. Returns true if there
    /// was something to do.
    fn help_on(&mut self, mut helping: Helping) -> bool {
        let before = helping.done;
        let Some((done, more)) = self.copy_for(&helping) else {
            return false;
        };
        helping.done = done;
        if more {
            self.helping.push_back(helping);
        }
        more || done > before
    }

    /// Copies some chunks. Returns the number done and whether there may be more, or `None` for an
    /// invalid request.
    fn copy_for(&mut self, helping: &Helping) -> Option<(u32, bool)> {
        let (rank, asked) = (helping.rank, &helping.asked);
        let length = usize::try_from(asked.length).ok()?;
        let from = usize::try_from(asked.from).ok()?;
        let end = asked.from.checked_add(asked.length)?;
        // An unregistered receive is complete or belongs to another peer.
        let holds = |(address, size): &(u64, u64)| {
            *address <= asked.from && address.checked_add(*size).is_some_and(|limit| end <= limit)
        };
        if length == 0 || !self.regions.values().any(holds) || self.check_identity(rank).is_err() {
            return None;
        }
        let ((chunk, chunks), (_, peer)) = (cut(length)?, self.peer(rank).ok()?);
        if !peer.one_sided {
            return None;
        }
        let (at, pid) = (place(asked.id), peer.pid);
        let (mine, theirs) = (
            &peer.producer.mine().shares.0[at],
            &peer.producer.theirs().offers.0[at],
        );
        let limit = u32::try_from(AT_ONCE / chunk).unwrap_or(1).max(1);
        let offer = (asked.id, chunks);
        let helped = help(offer, (helping.done, limit), mine, theirs, |index| {
            let (offset, length) = part(index, chunk, length);
            let Some(to) = asked.to.checked_add(offset as u64) else {
                return false;
            };
            let from = core::ptr::with_exposed_provenance(from + offset);
            // SAFETY: inside a region that is registered, as checked, so readable until it is
            // deregistered, which cannot be during this call. The remote address is chosen by the
            // peer and checked by the kernel.
            unsafe { cma::write(pid, from, to, length) }.is_ok()
        });
        // The peer may sleep while it waits for the last chunk.
        peer.ring();
        Some(helped)
    }

    /// Returns true if no peer writes into this process's memory any more, before closing. The
    /// first call forbids further copies.
    pub(super) fn stop_coop(&mut self, first: bool) -> bool {
        let mut gets = std::mem::take(&mut self.gets);
        let mut stopped = true;
        for get in &mut gets {
            let Some(peer) = self.added(get.rank) else {
                continue;
            };
            if first {
                get.stop(peer);
            }
            stopped &= peer.ending.is_some() && !peer.closed_here || get.is_stopped(peer);
        }
        self.gets = gets;
        stopped
    }
}

const _: () = assert!(PLACES.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_exactly_a_message() {
        for length in [
            1,
            4096,
            FROM,
            FROM + 1,
            65_536,
            100_000,
            1 << 20,
            (4 << 20) + 7,
            1 << 33,
        ] {
            let (chunk, chunks) = cut(length).expect("a length above the minimum");
            let mut at = 0;
            for index in 0..chunks {
                let (offset, part) = part(index, chunk, length);
                assert_eq!(offset, at, "{length}");
                assert!(part > 0 && part <= chunk);
                at += part;
            }
            assert_eq!(at, length);
            assert_eq!(part(chunks, chunk, length).1, 0, "no chunk after the end");
        }
        assert_eq!(cut(64 << 10), Some((32 << 10, 2)));
        assert_eq!(cut(4 << 20), Some((128 << 10, 32)));
        assert!(cut(usize::MAX).is_none_or(|(_, chunks)| chunks <= MAX_CHUNKS));
    }
}
