//! Long messages that both sides copy (`share.rs`), in the transport.

use btl::{Events, PeerError, Rank};

use super::ShmBtl;
use super::peer::{Entry, Peer};
use crate::cma::{self, CmaError};
use crate::fifo::Help;
use crate::layout::{PUTTING, PairHead};
use crate::share::{MOST, Next, Offer, PLACES, help, place};
use shmem::sync::Ordering;

/// From this many bytes on help is asked for: below, a message is copied before the other side has begun.
const FROM: usize = 48 << 10;
/// Chunks of a message, if they are not too short or too long.
const CHUNKS: usize = 8;
/// Shortest and longest chunk. A system call costs as much as copying about 8 KiB; at the end one side waits for a chunk of
/// the other.
const CHUNK: (usize, usize) = (32 << 10, 128 << 10);
const PAGE: usize = 4096;
/// Bytes that this side copies for a peer in one call.
const AT_ONCE: usize = 2 << 20;

/// Bytes of a chunk, and chunks, of a message of this length. Both sides compute it.
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

/// Where a chunk is in the message, and its length.
fn part(index: u32, chunk: usize, length: usize) -> (usize, usize) {
    let at = (index as usize).saturating_mul(chunk).min(length);
    (at, chunk.min(length - at))
}

/// A `get` that the peer may help with.
#[derive(Debug)]
pub(super) struct Shared {
    offer: Offer,
    token: u64,
    /// Addresses of the memory here, lent until completion, and there.
    to: usize,
    from: u64,
    length: usize,
    chunk: usize,
    /// A chunk to copy again: the system was short of something.
    again: Option<u32>,
    /// Nothing is copied any more.
    failed: Option<CmaError>,
}

/// One of our messages that a peer copies, and that we help with.
#[derive(Debug)]
struct Helping {
    asked: Help,
    done: u32,
}

/// Those of one peer.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    last: u32,
    pub(super) open: Vec<Shared>,
    /// Over, and not reported yet.
    over: Vec<(u64, Result<(), CmaError>)>,
    /// The other way round; one for each place.
    helping: Vec<Helping>,
}

impl Shared {
    /// Copies until the sender has the rest, or all is over: `Some`.
    fn advance(&mut self, peer: &Peer) -> Result<Option<Result<(), CmaError>>, crate::Scribble> {
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
            // SAFETY: inside the memory of the `get`, which is ours until it is completed; that is when nobody copies any more.
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

    /// Is all that can be done left to the sender, who rings when it has done it?
    fn waits(&self, theirs: &PairHead) -> bool {
        let word = &theirs.shares.0[place(self.offer.id())];
        match (self.again, self.failed) {
            (Some(_), None) => false,
            (_, Some(_)) => !self.offer.stopped(word),
            (None, None) => self.offer.waits(word),
        }
    }

    /// No chunk is to be copied any more, by whomever.
    pub(super) fn stop(&mut self, mine: &PairHead) {
        self.offer.stop(&mine.offers.0[place(self.offer.id())]);
    }

    /// After that: does the sender write nothing more?
    pub(super) fn is_stopped(&self, theirs: &PairHead) -> bool {
        self.offer.stopped(&theirs.shares.0[place(self.offer.id())])
    }
}

impl Peer {
    /// Takes all that is open as far as it goes now.
    fn advance_shared(&mut self) -> Result<(), crate::Scribble> {
        let mut open = std::mem::take(&mut self.sharing.open);
        let mut result = Ok(());
        open.retain_mut(|shared| match shared.advance(self) {
            Ok(None) => true,
            Ok(Some(ended)) => {
                self.sharing.over.push((shared.token, ended));
                false
            }
            Err(scribble) => {
                result = Err(scribble);
                true
            }
        });
        self.sharing.open = open;
        result
    }
}

/// How a `get` began.
pub(super) enum Began {
    /// It is over already.
    Over(Result<(), CmaError>),
    Pending,
    /// Not this way: too short, or too many are open. Nothing was done.
    Alone,
}

impl ShmBtl {
    /// Begins to copy, and asks the peer to help. The memory at `to` is lent until completion.
    pub(super) fn share(
        &mut self,
        rank: Rank,
        to: *mut u8,
        from: u64,
        length: usize,
        token: u64,
    ) -> Began {
        let Some((chunk, chunks)) =
            cut(length).filter(|_| length >= FROM && rank != self.config.rank)
        else {
            return Began::Alone;
        };
        let Ok((_, peer)) = self.peer(rank) else {
            return Began::Alone;
        };
        // What is over in the meantime makes room, although it is reported later.
        let mut result = peer.advance_shared();
        let id = peer.sharing.last.wrapping_add(1);
        let taken = |open: &Shared| place(open.offer.id()) == place(id);
        if peer.sharing.open.iter().any(taken) || !matches!(peer.producer.is_half_free(), Ok(true))
        {
            return Began::Alone;
        }
        peer.sharing.last = id;
        let offer = Offer::open(&peer.producer.mine().offers.0[place(id)], id, chunks);
        let to = to.expose_provenance();
        // Nobody is woken for that: who sleeps leaves the copying to us.
        peer.producer.push_help(Help {
            id,
            from,
            to: to as u64,
            length: length as u64,
        });
        let mut shared = Shared {
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
                Ok(Some(result)) => return Began::Over(result),
                Ok(None) => {}
                Err(scribble) => result = Err(scribble),
            }
        }
        peer.sharing.open.push(shared);
        self.sharing += 1;
        if let Err(scribble) = result {
            // All of them end with the peer.
            self.broke(rank, scribble);
        }
        Began::Pending
    }

    /// Goes on with what is open, and reports what is over.
    pub(super) fn advance_shared(&mut self, events: &mut dyn Events) -> usize {
        let mut count = 0;
        for rank in 0..self.config.size {
            let Some(Entry::Here(peer)) = self.peers.get_mut(rank as usize) else {
                continue;
            };
            if peer.ending.is_some() {
                continue;
            }
            let result = peer.advance_shared();
            let over = std::mem::take(&mut peer.sharing.over);
            if let Err(scribble) = result {
                self.broke(rank, scribble);
            }
            self.sharing -= over.len();
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

    /// Tokens of what a peer that is over leaves open, and how many of ours it copies.
    pub(super) fn end_shared(peer: &mut Peer) -> (Vec<u64>, usize) {
        let Sharing {
            open,
            over,
            helping,
            ..
        } = std::mem::take(&mut peer.sharing);
        let tokens = open
            .into_iter()
            .map(|shared| shared.token)
            .chain(over.into_iter().map(|(token, _)| token));
        (tokens.collect(), helping.len())
    }

    /// A peer that copies one of our messages asks for help. Answers whether there was something to do.
    pub(super) fn help_with(&mut self, rank: Rank, asked: Help) -> bool {
        let Ok((_, peer)) = self.peer(rank) else {
            return false;
        };
        // The next one in this place says that the one before is over.
        let before = peer.sharing.helping.len();
        peer.sharing
            .helping
            .retain(|helping| place(helping.asked.id) != place(asked.id));
        self.helping -= before - peer.sharing.helping.len();
        let Some(done) = self.help_on(rank, &asked, 0) else {
            return false;
        };
        if let (done, true) = done
            && let Ok((_, peer)) = self.peer(rank)
        {
            peer.sharing.helping.push(Helping { asked, done });
            self.helping += 1;
        }
        done != (0, false)
    }

    /// Goes on with what was not copied at once: bounded work in each call.
    pub(super) fn help_more(&mut self) -> usize {
        let mut count = 0;
        for rank in 0..self.config.size {
            let Some(Entry::Here(peer)) = self.peers.get_mut(rank as usize) else {
                continue;
            };
            if peer.sharing.helping.is_empty() {
                continue;
            }
            let Helping { asked, done } = peer.sharing.helping.remove(0);
            self.helping -= 1;
            count += 1;
            if let Some((done, true)) = self.help_on(rank, &asked, done)
                && let Ok((_, peer)) = self.peer(rank)
            {
                peer.sharing.helping.push(Helping { asked, done });
                self.helping += 1;
            }
        }
        count
    }

    /// Copies some chunks. Answers how many are copied, and whether there may be more; `None`: not asked rightly.
    fn help_on(&mut self, rank: Rank, asked: &Help, done: u32) -> Option<(u32, bool)> {
        let length = usize::try_from(asked.length).ok()?;
        // What is not registered (any more) is not for this peer, or it is over.
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
            // SAFETY: inside a region that is registered (looked up above), so readable until it is deregistered, which cannot be
            // during this call. The other address is the peer's own matter: the kernel checks it.
            unsafe { cma::write(pid, core::ptr::with_exposed_provenance(from), to, length) }.is_ok()
        });
        // It may have gone to sleep over the last chunk.
        peer.ring();
        Some(helped)
    }

    /// Before sleeping: is there something to copy, or to report?
    pub(super) fn has_to_share(&self) -> bool {
        let busy = |entry: &Entry| {
            let Entry::Here(peer) = entry else {
                return false;
            };
            let theirs = peer.producer.theirs();
            !peer.sharing.over.is_empty()
                || peer.sharing.open.iter().any(|shared| !shared.waits(theirs))
        };
        self.helping != 0 || self.sharing != 0 && self.peers.iter().any(busy)
    }

    /// Before closing: has everybody stopped to write into our memory? The first call tells them.
    pub(super) fn stop_sharing(peers: &mut [Entry], first: bool) -> bool {
        let mut stopped = true;
        for entry in peers {
            let (Entry::Here(peer) | Entry::Parting(peer)) = entry else {
                continue;
            };
            let (mine, theirs) = (peer.producer.mine(), peer.producer.theirs());
            for shared in &mut peer.sharing.open {
                if first {
                    shared.stop(mine);
                }
                stopped &= peer.ending.is_some() && !peer.closed_out || shared.is_stopped(theirs);
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
    fn chunks_cover_a_message_and_nothing_else() {
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
                "behind the end is nothing"
            );
        }
        assert_eq!(cut(64 << 10), Some((32 << 10, 2)));
        assert_eq!(cut(4 << 20), Some((128 << 10, 32)));
        assert!(cut(usize::MAX).is_none_or(|(_, chunks)| chunks <= MOST));
    }
}
