//! Cooperative copies (`coop.rs` of the crate) in the transport.

use btl::{Events, PeerError, Rank};

use super::ShmBtl;
use super::peer::{Peer, PeerState};
use crate::cma::{self, CmaError};
use crate::coop::{MOST, Next, Offer, PLACES, help, place};
use crate::fifo::Help;
use crate::layout::{PUTTING, PairHead};
use shmem::sync::Ordering;

/// Length from which help is asked for: a shorter message is copied before the other side has
/// begun.
const FROM: usize = 48 << 10;
/// Number of chunks of a message, unless they become too short or too long.
const CHUNKS: usize = 8;
/// Bytes of the shortest and longest chunk. A system call costs as much as copying 8 KiB; at the
/// end one side waits for a chunk of the other.
const CHUNK: (usize, usize) = (32 << 10, 128 << 10);
const PAGE: usize = 4096;
/// Bytes that this side copies for a peer in one call.
const AT_ONCE: usize = 2 << 20;

/// Returns the bytes of a chunk and the number of chunks of a message of this length. Both sides
/// compute it.
fn cut(length: usize) -> Option<(usize, u32)> {
    let chunk = (length / CHUNKS)
        .next_multiple_of(PAGE)
        .clamp(CHUNK.0, CHUNK.1);
    let chunk = chunk.max(
        length
            .div_ceil(MOST as usize)
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
    offer: Offer,
    token: u64,
    /// Address of the memory here, lent until completion.
    to: usize,
    from: u64,
    length: usize,
    chunk: usize,
    /// A chunk to copy again, because the system was short of something.
    again: Option<u32>,
    /// The copy failed; no further chunk is copied.
    failed: Option<CmaError>,
}

/// A message of this process that a peer copies with its help.
#[derive(Debug)]
struct Helping {
    asked: Help,
    done: u32,
}

/// Cooperative copies with one peer.
#[derive(Debug, Default)]
pub(super) struct CoopGets {
    last: u32,
    pub(super) open: Vec<CoopGet>,
    /// Complete, and not reported yet.
    over: Vec<(u64, Result<(), CmaError>)>,
    /// Messages of this process that the peer copies; one for each place.
    helping: Vec<Helping>,
}

impl CoopGet {
    /// Copies until the sender has the rest. Returns the result if all is complete.
    fn advance(&mut self, peer: &Peer) -> Result<Option<Result<(), CmaError>>, crate::Corruption> {
        let at = place(self.offer.id());
        let (mine, theirs) = (
            &peer.producer.mine().offers.0[at],
            &peer.producer.theirs().shares.0[at],
        );
        loop {
            if let Some(error) = self.failed {
                return Ok(self.offer.stopped(theirs).then_some(Err(error)));
            }
            let next = match self.again.take() {
                Some(chunk) => Next::Copy(chunk),
                None => self.offer.next(mine, theirs)?,
            };
            let chunk = match next {
                Next::Over => return Ok(Some(Ok(()))),
                Next::Wait => return Ok(None),
                Next::Copy(chunk) => chunk,
            };
            let (offset, length) = part(chunk, self.chunk, self.length);
            let to = core::ptr::with_exposed_provenance_mut::<u8>(self.to.wrapping_add(offset));
            // SAFETY: inside the memory of the `get`, which is ours until completion; that is when
            // no side copies any more.
            match unsafe { cma::read(peer.pid, to, self.from.wrapping_add(offset as u64), length) }
            {
                Ok(()) => {}
                Err(CmaError::Other(libc::ENOMEM | libc::EAGAIN)) => {
                    self.again = Some(chunk);
                    return Ok(None);
                }
                Err(error) => {
                    self.failed = Some(error);
                    self.offer.stop(mine);
                }
            }
        }
    }

    /// Returns true if only the sender can continue; it wakes this process then.
    fn waits(&self, theirs: &PairHead) -> bool {
        let word = &theirs.shares.0[place(self.offer.id())];
        match (self.again, self.failed) {
            (Some(_), None) => false,
            (_, Some(_)) => !self.offer.stopped(word),
            (None, None) => self.offer.waits(word),
        }
    }

    /// Forbids both sides to copy further chunks.
    pub(super) fn stop(&mut self, mine: &PairHead) {
        self.offer.stop(&mine.offers.0[place(self.offer.id())]);
    }

    /// Returns true if the sender writes nothing more, after [`CoopGet::stop`].
    pub(super) fn is_stopped(&self, theirs: &PairHead) -> bool {
        self.offer.stopped(&theirs.shares.0[place(self.offer.id())])
    }
}

impl Peer {
    /// Advances all open copies as far as possible now.
    fn advance_coop(&mut self) -> Result<(), crate::Corruption> {
        let mut open = std::mem::take(&mut self.coop.open);
        let mut result = Ok(());
        open.retain_mut(|shared| match shared.advance(self) {
            Ok(None) => true,
            Ok(Some(ended)) => {
                self.coop.over.push((shared.token, ended));
                false
            }
            Err(corruption) => {
                result = Err(corruption);
                true
            }
        });
        self.coop.open = open;
        result
    }
}

/// Result of starting a `get`.
pub(super) enum CoopStart {
    /// Complete already.
    Over(Result<(), CmaError>),
    Pending,
    /// Not started: too short, or too many are open.
    Alone,
}

impl ShmBtl {
    /// Starts to copy, and asks the peer to help. The memory at `to` is lent until completion.
    pub(super) fn share(
        &mut self,
        rank: Rank,
        to: *mut u8,
        from: u64,
        length: usize,
        token: u64,
    ) -> CoopStart {
        let Some((chunk, chunks)) =
            cut(length).filter(|_| length >= FROM && rank != self.config.rank)
        else {
            return CoopStart::Alone;
        };
        let Ok((_, peer)) = self.peer(rank) else {
            return CoopStart::Alone;
        };
        // Receives that completed meanwhile make room, although they are reported later.
        let mut result = peer.advance_coop();
        let id = peer.coop.last.wrapping_add(1);
        let taken = |open: &CoopGet| place(open.offer.id()) == place(id);
        if peer.coop.open.iter().any(taken) || !matches!(peer.producer.is_half_free(), Ok(true)) {
            return CoopStart::Alone;
        }
        peer.coop.last = id;
        let offer = Offer::open(&peer.producer.mine().offers.0[place(id)], id, chunks);
        let to = to.expose_provenance();
        // The peer is not woken for that: while it sleeps, this side copies all.
        peer.producer.push_help(Help {
            id,
            from,
            to: to as u64,
            length: length as u64,
        });
        let mut shared = CoopGet {
            offer,
            token,
            to,
            from,
            length,
            chunk,
            again: None,
            failed: None,
        };
        if result.is_ok() {
            match shared.advance(peer) {
                Ok(Some(result)) => return CoopStart::Over(result),
                Ok(None) => {}
                Err(corruption) => result = Err(corruption),
            }
        }
        peer.coop.open.push(shared);
        self.coop += 1;
        if let Err(corruption) = result {
            // All of them end with the peer.
            self.broke(rank, corruption);
        }
        CoopStart::Pending
    }

    /// Advances open copies, and reports the complete ones.
    pub(super) fn advance_coop(&mut self, events: &mut dyn Events) -> usize {
        let mut count = 0;
        for rank in 0..self.config.size {
            let Some(PeerState::Connected(peer)) = self.peers.get_mut(rank as usize) else {
                continue;
            };
            if peer.ending.is_some() {
                continue;
            }
            let result = peer.advance_coop();
            let over = std::mem::take(&mut peer.coop.over);
            if let Err(corruption) = result {
                self.broke(rank, corruption);
            }
            self.coop -= over.len();
            count += over.len();
            for (token, result) in over {
                let result = result.map_err(|error| match error {
                    // The peer is no worse for that.
                    CmaError::Refused(_) => {
                        PeerError::Lost(format!("cross-memory attach: {error}"))
                    }
                    error => self.copy_failed(rank, error),
                });
                events.completed(self, token, result);
            }
        }
        count
    }

    /// Returns the tokens of the copies that an ended peer leaves open, and the number of messages
    /// that it copied with help.
    pub(super) fn end_coop(peer: &mut Peer) -> (Vec<u64>, usize) {
        let CoopGets {
            open,
            over,
            helping,
            ..
        } = std::mem::take(&mut peer.coop);
        let tokens = open
            .into_iter()
            .map(|shared| shared.token)
            .chain(over.into_iter().map(|(token, _)| token));
        (tokens.collect(), helping.len())
    }

    /// Handles a request for help with one of our messages. Returns true if there was something to
    /// do.
    pub(super) fn help_with(&mut self, rank: Rank, asked: Help) -> bool {
        let Ok((_, peer)) = self.peer(rank) else {
            return false;
        };
        // The next request in this place means that the previous copy is complete.
        let before = peer.coop.helping.len();
        peer.coop
            .helping
            .retain(|helping| place(helping.asked.id) != place(asked.id));
        self.helping -= before - peer.coop.helping.len();
        let Some(done) = self.help_on(rank, &asked, 0) else {
            return false;
        };
        if let (done, true) = done
            && let Ok((_, peer)) = self.peer(rank)
        {
            peer.coop.helping.push(Helping { asked, done });
            self.helping += 1;
        }
        done != (0, false)
    }

    /// Continues one copy of each peer: bounded work in each call.
    pub(super) fn help_more(&mut self) -> usize {
        let mut count = 0;
        for rank in 0..self.config.size {
            let Some(PeerState::Connected(peer)) = self.peers.get_mut(rank as usize) else {
                continue;
            };
            if peer.coop.helping.is_empty() {
                continue;
            }
            let Helping { asked, done } = peer.coop.helping.remove(0);
            self.helping -= 1;
            count += 1;
            if let Some((done, true)) = self.help_on(rank, &asked, done)
                && let Ok((_, peer)) = self.peer(rank)
            {
                peer.coop.helping.push(Helping { asked, done });
                self.helping += 1;
            }
        }
        count
    }

    /// Copies some chunks. Returns the number done and whether there may be more, or `None` for an
    /// invalid request.
    fn help_on(&mut self, rank: Rank, asked: &Help, done: u32) -> Option<(u32, bool)> {
        let length = usize::try_from(asked.length).ok()?;
        // An unregistered receive is complete or belongs to another peer.
        if length == 0
            || !self.regions.holds(asked.from, asked.length)
            || self.still_itself(rank).is_err()
        {
            return None;
        }
        let ((chunk, chunks), (_, peer)) = (cut(length)?, self.peer(rank).ok()?);
        if !peer.one_sided {
            return None;
        }
        let at = place(asked.id);
        let (mine, theirs) = (
            &peer.producer.mine().shares.0[at],
            &peer.producer.theirs().offers.0[at],
        );
        let pid = peer.pid;
        let most = u32::try_from(AT_ONCE / chunk).unwrap_or(1).max(1);
        let helped = help((asked.id, chunks), (done, most), mine, theirs, |index| {
            let (offset, length) = part(index, chunk, length);
            let Some(to) = asked.to.checked_add(offset as u64) else {
                return false;
            };
            let Some(from) = usize::try_from(asked.from)
                .ok()
                .and_then(|from| from.checked_add(offset))
            else {
                return false;
            };
            // SAFETY: inside a region that is registered (checked_at up above), so readable until
            // it is deregistered, which cannot be during this call. The other address is the peer's
            // own matter: the kernel checks it.
            unsafe { cma::write(pid, core::ptr::with_exposed_provenance(from), to, length) }.is_ok()
        });
        // It may have gone to sleep over the last chunk.
        peer.ring();
        Some(helped)
    }

    /// Returns true if there is something to copy or to report, so that the process must not sleep.
    pub(super) fn has_coop_work(&self) -> bool {
        let busy = |entry: &PeerState| {
            let PeerState::Connected(peer) = entry else {
                return false;
            };
            let theirs = peer.producer.theirs();
            !peer.coop.over.is_empty() || peer.coop.open.iter().any(|shared| !shared.waits(theirs))
        };
        self.helping != 0 || self.coop != 0 && self.peers.iter().any(busy)
    }

    /// Returns true if no peer writes into this process's memory any more, before closing. The
    /// first call forbids further copies.
    pub(super) fn stop_coop(peers: &mut [PeerState], first: bool) -> bool {
        let mut stopped = true;
        for entry in peers {
            let (PeerState::Connected(peer) | PeerState::Closing(peer)) = entry else {
                continue;
            };
            let (mine, theirs) = (peer.producer.mine(), peer.producer.theirs());
            for shared in &mut peer.coop.open {
                if first {
                    shared.stop(mine);
                }
                stopped &= peer.ending.is_some() && !peer.closed_here || shared.is_stopped(theirs);
            }
            stopped &= theirs.writing.0.copying.load(Ordering::Acquire) != PUTTING;
        }
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
            let (chunk, chunks) = cut(length).expect("a length that is");
            let mut at = 0;
            for index in 0..chunks {
                let (offset, part) = part(index, chunk, length);
                assert_eq!(offset, at, "{length}");
                assert!(part > 0 && part <= chunk);
                at += part;
            }
            assert_eq!(at, length);
            assert_eq!(
                part(chunks, chunk, length).1,
                0,
                "there is nothing after the end"
            );
        }
        assert_eq!(cut(64 << 10), Some((32 << 10, 2)));
        assert_eq!(cut(4 << 20), Some((128 << 10, 32)));
        assert!(cut(usize::MAX).is_none_or(|(_, chunks)| chunks <= MOST));
    }
}
