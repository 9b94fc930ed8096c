//! A peer that is reached by several transports outlives each of them but the last.
//!
//! A transport delivers what was sent over it in order, each message once, up to its end. So both sides count, for each lane and without a
//! number on the wire, and the sender keeps what has not been confirmed: a copy of short messages, of fragments only where they were cut from. Now
//! and then the receiver says how many have come. When a transport has lost the peer, it says so once more, for the last time, over a lane that
//! lives: then the sender knows exactly which messages did not come, and sends them again, before anything newer. Until it hears that number it
//! sends nothing, so that answers keep their order. What was moved by `get` or `put` is moved again in fragments, and keys of the lost transport
//! are taken out of what is sent again.

use std::collections::VecDeque;
use std::io::IoSlice;

use btl::{PeerError, Rank, SendError};

use super::incoming::From;
use super::outgoing::Went;
use super::peer::{HEADER_ROOM, Lane, Peer};
use super::{Core, Engine, Work};
use crate::matching::pool::Pool;
use crate::wire::{Encoded, Header};

/// A receiver confirms after so many messages, or bytes.
const MESSAGES: u64 = 64;
const BYTES: usize = 256 << 10;

/// What may be kept for one peer, as [`Kept::cost`] has it. One that behaves confirms long before: two windows of credit are 2 MiB, and
/// what its transports hold is not much more.
const KEPT_MOST: usize = 16 << 20;
/// Of a message beside its body.
const KEPT: usize = 64;

/// What a lane may still lose.
#[derive(Debug)]
pub(crate) enum Kept {
    Message {
        header: Encoded,
        body: Vec<u8>,
    },
    Fragment {
        transfer: u64,
        offset: usize,
        length: usize,
    },
}

impl Kept {
    /// Memory, in bytes.
    fn cost(&self) -> usize {
        match self {
            Kept::Message { body, .. } => KEPT + body.len(),
            Kept::Fragment { .. } => KEPT,
        }
    }

    /// Takes out what only the lost transport understands.
    fn strip(&mut self, pool: &mut Pool) {
        let Kept::Message { header, body } = self else {
            return;
        };
        match Header::decode(header.bytes()) {
            Ok(Header::Announce(..)) => {}
            Ok(Header::Accept {
                request,
                target,
                length,
                put: true,
            }) => {
                *header = Header::Accept {
                    request,
                    target,
                    length,
                    put: false,
                }
                .encode();
            }
            _ => return,
        }
        pool.give_back(std::mem::take(body));
    }
}

/// What one lane carried, counted at both ends.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Sent and not confirmed, the oldest first.
    kept: VecDeque<Kept>,
    cost: usize,
    /// Messages that the peer has confirmed.
    confirmed: u64,
    /// Messages from the peer, and how many of them it knows of.
    received: u64,
    reported: u64,
    /// Bytes of those it does not know of.
    unreported: usize,
    /// Bytes of bodies since the start.
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
}

impl Ledger {
    /// The peer has so many. `None`: it cannot have them.
    fn confirm(&mut self, received: u64, pool: &mut Pool) -> Option<()> {
        let more = usize::try_from(received.checked_sub(self.confirmed)?).ok()?;
        if more > self.kept.len() {
            return None;
        }
        for kept in self.kept.drain(..more) {
            self.cost = self.cost.saturating_sub(kept.cost());
            if let Kept::Message { body, .. } = kept {
                pool.give_back(body);
            }
        }
        self.confirmed = received;
        Some(())
    }
}

impl Lane {
    /// What this process says of it.
    fn note(&mut self, gone: bool) -> Header {
        let ledger = &mut self.ledger;
        (ledger.reported, ledger.unreported) = (ledger.received, 0);
        Header::Lane {
            card: self.peer_card,
            received: ledger.received,
            gone,
        }
    }
}

impl Peer {
    /// After something went out over one of several lanes.
    pub(crate) fn keep(&mut self, at: usize, bytes: usize, kept: Kept) {
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.ledger.bytes_out += bytes as u64;
            lane.ledger.cost += kept.cost();
            lane.ledger.kept.push_back(kept);
        }
    }

    /// Something came over one of several lanes. The answer is due to the peer.
    #[inline]
    pub(crate) fn count(&mut self, transport: u8, bytes: usize) -> Option<Header> {
        let lane = self
            .lanes
            .iter_mut()
            .find(|lane| lane.transport == transport)?;
        let ledger = &mut lane.ledger;
        ledger.received += 1;
        ledger.unreported += bytes;
        ledger.bytes_in += bytes as u64;
        let due = ledger.received - ledger.reported >= MESSAGES || ledger.unreported >= BYTES;
        due.then(|| lane.note(false))
    }

    /// The peer takes what it is sent, and confirms nothing.
    pub(crate) fn keeps_too_much(&self) -> bool {
        self.lanes
            .iter()
            .map(|lane| lane.ledger.cost)
            .sum::<usize>()
            > KEPT_MOST
    }

    /// The lane that is preferred: the first that is there.
    pub(crate) fn best(&self) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.alive)
    }

    /// May messages take it? Those that stand by may when no other is left.
    pub(crate) fn may_use(&self, at: usize) -> bool {
        self.lanes.get(at).is_some_and(|lane| lane.alive)
            && (at < self.used || !self.lanes.iter().take(self.used).any(|lane| lane.alive))
    }

    /// It is not known yet what a lost lane delivered.
    pub(crate) fn holds(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.alive && !lane.settled)
    }

    /// Forgets what is kept: nothing will be sent again.
    pub(crate) fn forget_kept(&mut self, pool: &mut Pool) {
        let all = self
            .lanes
            .iter_mut()
            .flat_map(|lane| lane.ledger.kept.drain(..));
        for kept in all.chain(self.resend.drain(..)) {
            if let Kept::Message { body, .. } = kept {
                pool.give_back(body);
            }
        }
        self.notes.clear();
    }

    /// A lane is not to be used any more. False: it was the last one.
    fn without(&mut self, at: usize) -> bool {
        if let Some(lane) = self.lanes.get_mut(at) {
            let was = std::mem::replace(&mut lane.alive, false);
            // Who leaves in order leaves by all: what was measured is not of use any more, but of interest.
            let leaves = lane.lost == Some(PeerError::Left) && !lane.settled;
            if let Some(rails) = self
                .rails
                .as_mut()
                .filter(|_| !leaves && (was || lane.settled))
            {
                rails.lost(at);
            }
        }
        self.refresh();
        let Some(best) = self.best() else {
            return false;
        };
        self.transport = self
            .lanes
            .get(best)
            .map_or(self.transport, |lane| lane.transport);
        self.choose_one_sided();
        true
    }

    /// Why the peer is gone when its last lane is.
    fn last_words(&self, error: PeerError) -> PeerError {
        let left = self
            .lanes
            .iter()
            .any(|lane| lane.lost == Some(PeerError::Left));
        let died = self
            .lanes
            .iter()
            .any(|lane| lane.lost == Some(PeerError::Died));
        match (left, died) {
            (true, _) => PeerError::Left,
            (_, true) => PeerError::Died,
            _ => error,
        }
    }
}

impl Engine {
    /// A transport has lost a peer that has others.
    pub(crate) fn lane_failed(&mut self, rank: Rank, at: usize, error: PeerError) {
        let Some(peer) = self.peers.get_mut(rank as usize) else {
            return;
        };
        let Some(lane) = peer.lanes.get_mut(at) else {
            return;
        };
        lane.lost = Some(error.clone());
        if !peer.without(at) {
            let error = peer.last_words(error);
            return self.fail(rank, error, None);
        }
        // Who leaves in order leaves by all; if the lane was only dropped, the peer says so.
        if error != PeerError::Left || peer.lanes.get(at).is_some_and(|lane| lane.settled) {
            self.say_gone(rank, at);
        }
        self.post_direct();
        self.activate(rank);
    }

    /// Tells the peer what came over a lane, for the last time.
    fn say_gone(&mut self, rank: Rank, at: usize) {
        let Some(peer) = self.peers.get_mut(rank as usize) else {
            return;
        };
        let Some(lane) = peer.lanes.get_mut(at).filter(|lane| !lane.told) else {
            return;
        };
        lane.told = true;
        let note = lane.note(true).encode();
        peer.notes.push_back(note);
        self.stats.lost_lanes += 1;
        self.activate(rank);
    }

    /// The peer says what came over a lane.
    pub(crate) fn lane_note(
        &mut self,
        from: From,
        card: u8,
        received: u64,
        gone: bool,
    ) -> Result<(), String> {
        let Some(peer) = self.peers.get_mut(from.rank as usize) else {
            return Ok(());
        };
        let found = peer.lanes.iter().position(|lane| lane.own_card == card);
        let at =
            found.ok_or_else(|| format!("counts messages of a lane {card}, which there is not"))?;
        let Some(lane) = peer.lanes.get_mut(at) else {
            return Ok(());
        };
        if lane.settled {
            // What it said before its last word may have been sent once more.
            return if gone {
                Err(format!("loses lane {card} twice"))
            } else {
                Ok(())
            };
        }
        let pool = &mut self.unexpected.pool;
        if received > lane.ledger.confirmed || gone {
            let impossible =
                || format!("has {received} messages of lane {card}, which were not sent");
            lane.ledger.confirm(received, pool).ok_or_else(impossible)?;
        }
        if !gone {
            return Ok(());
        }
        lane.settled = true;
        lane.ledger.cost = 0;
        for mut kept in lane.ledger.kept.drain(..) {
            kept.strip(pool);
            peer.resend.push_back(kept);
        }
        let lost = lane.lost.is_some();
        if !peer.without(at) {
            let error = peer.last_words(PeerError::Lost(
                "it has lost the last way to this process".into(),
            ));
            self.fail(from.rank, error, None);
            return Ok(());
        }
        if lost {
            self.say_gone(from.rank, at);
        } else {
            // Nothing may come that way behind our own last word.
            self.work.push_back(Work::DropLane(from.rank, at));
        }
        self.activate(from.rank);
        Ok(())
    }
}

impl Core {
    /// Has the transport of a lane that the peer has lost lose the peer, too; again and again until that is so.
    pub(super) fn drop_lane(&mut self, rank: Rank, at: usize) {
        let Some(peer) = self
            .engine
            .peers
            .get(rank as usize)
            .filter(|peer| peer.alive)
        else {
            return;
        };
        let Some(lane) = peer.lanes.get(at).filter(|lane| lane.lost.is_none()) else {
            return;
        };
        let Some(transport) = self.transports.get_mut(usize::from(lane.transport)) else {
            return;
        };
        if !transport.btl.drop_peer(rank) {
            self.engine.dropping_lanes.push((rank, at));
        }
    }

    /// A transport did not take something for a peer that may have others.
    pub(crate) fn lane_refused(&mut self, rank: Rank, at: usize, error: SendError) -> Went {
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
            return Went::Failed;
        };
        if peer.mixed()
            && matches!(error, SendError::Failed { .. })
            && peer.lanes.get(at).is_some_and(|lane| lane.alive)
            && peer.without(at)
        {
            // Its transport is about to say so.
            self.engine.activate(rank);
            return Went::Not;
        }
        self.refused(rank, error)
    }

    /// What lost lanes leave to be done for a peer. True: other things may go out.
    pub(super) fn drive_lanes(&mut self, rank: Rank, done: &mut usize) -> bool {
        loop {
            let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
                return false;
            };
            if !peer.alive {
                return false;
            }
            let Some(note) = peer.notes.front() else {
                break;
            };
            let kept = Kept::Message {
                header: *note,
                body: Vec::new(),
            };
            match self.send_kept(rank, kept) {
                Ok(()) => {
                    let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
                        return false;
                    };
                    peer.notes.pop_front();
                    *done += 1;
                }
                Err(_) => return false,
            }
        }
        loop {
            let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
                return false;
            };
            if !peer.alive || peer.holds() {
                return false;
            }
            let Some(kept) = peer.resend.pop_front() else {
                return true;
            };
            match self.send_kept(rank, kept) {
                Ok(()) => {
                    self.engine.stats.resent += 1;
                    *done += 1;
                }
                Err(kept) => {
                    if let Some(peer) = self.engine.peers.get_mut(rank as usize) {
                        peer.resend.push_front(kept);
                    }
                    return false;
                }
            }
        }
    }

    /// Sends something over the best lane there is, and keeps it there.
    fn send_kept(&mut self, rank: Rank, kept: Kept) -> Result<(), Kept> {
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
            return Err(kept);
        };
        let Some(at) = peer.best() else {
            return Err(kept);
        };
        let Some(lane) = peer.lanes.get(at) else {
            return Err(kept);
        };
        let Some(transport) = self.transports.get_mut(usize::from(lane.transport)) else {
            return Err(kept);
        };
        let result = match &kept {
            Kept::Message { header, body } => {
                transport
                    .btl
                    .send(rank, header.bytes(), &[IoSlice::new(body)])
            }
            Kept::Fragment {
                transfer,
                offset,
                length,
            } => {
                let transfer = self.engine.transfers.get(*transfer);
                let found = transfer.and_then(|transfer| {
                    let request = self.engine.requests.get(transfer.request)?;
                    Some((transfer.remote, request))
                });
                // The receiver has all of a message that is over.
                let Some((target, request)) = found else {
                    return Ok(());
                };
                let most = lane.max_send - HEADER_ROOM;
                if *length > most {
                    return self.send_split(rank, kept, most);
                }
                let header = Header::Fragment {
                    target,
                    offset: *offset as u64,
                    tell: true,
                }
                .encode();
                // SAFETY: the request is not over, and the slice is used in this call.
                let body = unsafe { request.part(*offset, *length) };
                transport
                    .btl
                    .send(rank, header.bytes(), &[IoSlice::new(body)])
            }
        };
        match result {
            Ok(()) => {
                let bytes = match &kept {
                    Kept::Message { body, .. } => body.len(),
                    Kept::Fragment { length, .. } => *length,
                };
                peer.keep(at, bytes, kept);
                Ok(())
            }
            Err(error) => {
                self.lane_refused(rank, at, error);
                Err(kept)
            }
        }
    }

    /// A fragment of a lane with longer messages.
    fn send_split(&mut self, rank: Rank, kept: Kept, most: usize) -> Result<(), Kept> {
        let Kept::Fragment {
            transfer,
            offset,
            length,
        } = kept
        else {
            return Err(kept);
        };
        if self
            .send_kept(
                rank,
                Kept::Fragment {
                    transfer,
                    offset,
                    length: most,
                },
            )
            .is_err()
        {
            return Err(Kept::Fragment {
                transfer,
                offset,
                length,
            });
        }
        let rest = Kept::Fragment {
            transfer,
            offset: offset + most,
            length: length - most,
        };
        if let Some(peer) = self.engine.peers.get_mut(rank as usize) {
            peer.resend.push_front(rest);
        }
        Ok(())
    }
}
