//! Messages in, peers that end, sleeping.

use std::mem;

use btl::{Envelope, Events, PeerError, Rank};
use rustix::event::epoll;

use super::peer::{Entry, Lane};
use super::{BATCH, LOOK_EVERY, PIPE, ShmBtl, TICK, coarse_now};
use crate::board::open_envelope;
use crate::fifo::Found;
use crate::layout::{END_BROKEN, END_REFUSED};
use shmem::sync::Ordering;

impl ShmBtl {
    pub(super) fn deliver(&mut self, events: &mut dyn Events) -> usize {
        match &self.own {
            None => return 0,
            Some(own) if own.sleep.is_asleep() => self.rise(),
            Some(_) => {}
        }
        let mut done = if self.helping != 0 {
            self.help_more()
        } else {
            0
        };
        let busy = self
            .lanes
            .iter()
            .position(|lane| !matches!(lane.consumer.poll(), Ok(None)));
        done += busy.map_or(0, |first| self.deliver_from(first, events));
        if self.sharing != 0 {
            done += self.advance_shared(events);
        }
        if self.look_now || self.clock_is_due(done) && self.look_is_due() {
            done += self.look_after_peers(events);
        }
        done
    }

    /// Looks at all lanes, beginning with one that has something.
    fn deliver_from(&mut self, first: usize, events: &mut dyn Events) -> usize {
        // Callbacks send and withdraw, which concerns the rest of self only.
        let mut lanes = mem::take(&mut self.lanes);
        let (later, first) = lanes.split_at_mut(first);
        let mut done = 0;
        for lane in first.iter_mut().chain(later) {
            match lane.consumer.poll() {
                Ok(None) => {}
                Ok(Some(word)) => done += self.drain(lane, word, events),
                Err(scribble) => {
                    self.broke(lane.rank, scribble);
                }
            }
        }
        self.lanes = lanes;
        done
    }

    /// The clock costs as much as looking at a few peers. Who calls without pause reads it each eighth time; who has been seen
    /// to do something else between reads it each time.
    #[inline]
    fn clock_is_due(&mut self, done: usize) -> bool {
        self.calls += if done == 0 { 8 } else { 1 };
        let due = self.calls >= self.calls_between;
        if due {
            self.calls = 0;
        }
        due
    }

    #[inline]
    fn look_is_due(&mut self) -> bool {
        let now = coarse_now();
        self.calls_between = if now.saturating_sub(self.read_clock) < TICK {
            64
        } else {
            1
        };
        self.read_clock = now;
        now.saturating_sub(self.looked) >= LOOK_EVERY
    }

    /// Delivers some messages of one peer, of which `word` is the first.
    fn drain(&mut self, lane: &mut Lane, mut word: u64, events: &mut dyn Events) -> usize {
        let mut done = 0;
        loop {
            if let Some((bytes, header, end)) = lane.consumer.take_short(word) {
                events.message(self, lane.rank, &bytes[..header], &bytes[header..end]);
            } else {
                match lane.consumer.take(word) {
                    Ok(Found::Message(message)) => {
                        events.message(
                            self,
                            lane.rank,
                            message.header(),
                            lane.consumer.body(&message),
                        );
                        if message.in_pool() {
                            self.tell_consumed(lane);
                        }
                    }
                    Ok(Found::Filled {
                        id,
                        length,
                        envelope,
                    }) => {
                        self.receive_filled(lane.rank, id, length, envelope, events);
                    }
                    Ok(Found::Help(help)) => {
                        if self.help_with(lane.rank, help) {
                            // That was work enough for one call.
                            done += 1;
                            break;
                        }
                    }
                    Err(scribble) => {
                        self.broke(lane.rank, scribble);
                        break;
                    }
                }
            }
            done += 1;
            if done == BATCH || self.look_now && self.broken(lane.rank) {
                break;
            }
            match lane.consumer.poll() {
                Ok(None) => break,
                Ok(Some(next)) => word = next,
                Err(scribble) => {
                    self.broke(lane.rank, scribble);
                    break;
                }
            }
        }
        self.tell_consumed(lane);
        done
    }

    /// After the callbacks: the sender may use the space again, and its matched sends may count on them.
    #[inline]
    fn tell_consumed(&mut self, lane: &mut Lane) {
        if !lane.consumer.done() {
            return;
        }
        lane.fence.execute();
        if lane.consumer.sender_waits()
            && let Some(Entry::Here(peer)) = self.peers.get_mut(lane.rank as usize)
        {
            peer.ring();
        }
    }

    fn broken(&self, rank: Rank) -> bool {
        matches!(self.peers.get(rank as usize), Some(Entry::Here(peer)) if peer.closed_out || matches!(peer.ending, Some(PeerError::Violation(_))))
    }

    fn receive_filled(
        &mut self,
        rank: Rank,
        id: u64,
        length: u64,
        envelope: u64,
        events: &mut dyn Events,
    ) {
        let Some(own) = &mut self.own else { return };
        let peers = &self.peers;
        match own
            .board
            .filled(id, rank, |who, id| Self::stands_by(peers, who, id))
        {
            Ok(Some(record)) => {
                let (context, tag) = open_envelope(envelope);
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                events.received(
                    self,
                    record.token,
                    rank,
                    Envelope { context, tag },
                    Ok(length),
                );
            }
            Ok(None) => {}
            Err(what) => {
                self.end(rank, PeerError::Violation(what.into()));
            }
        }
    }

    /// Who has ended, who has closed, whose claims are none.
    fn look_after_peers(&mut self, events: &mut dyn Events) -> usize {
        self.looked = coarse_now();
        self.look_now = false;
        self.ask_the_kernel();
        let mut over = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            let Some(Entry::Here(peer)) = self.peers.get_mut(lane.rank as usize) else {
                continue;
            };
            if peer.common.about.0.left.load(Ordering::Acquire) != 0 {
                // Said before it ended; what it sent before is there.
                if matches!(peer.ending, None | Some(PeerError::Died)) {
                    peer.ending = Some(PeerError::Left);
                }
            } else if peer.ending.is_none() {
                let lost = match peer.producer.theirs().writing.0.end.load(Ordering::Acquire) {
                    END_BROKEN => Some("it gave up what this process wrote"),
                    END_REFUSED => {
                        Some("it cannot reach this process's memory, though this one reached it")
                    }
                    _ => None,
                };
                peer.ending = lost.map(|why| PeerError::Lost(why.into()));
            }
            match &peer.ending {
                None => {}
                Some(_) if peer.closed_out => over.push(index),
                Some(PeerError::Violation(_)) => over.push(index),
                Some(_) => match lane.consumer.poll() {
                    // Everything that it had sent is delivered first.
                    Ok(Some(_)) => self.look_now = true,
                    Ok(None) | Err(_) => over.push(index),
                },
            }
        }
        for index in over.into_iter().rev() {
            let rank = self.lanes.swap_remove(index).rank;
            self.part_with(rank);
        }
        self.let_go(events) + self.end_lost_claims(events)
    }

    /// Process descriptors of peers that have ended are readable.
    fn ask_the_kernel(&mut self) {
        let Some(own) = &self.own else { return };
        let mut found = Vec::with_capacity(16);
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if epoll::wait(
            &own.epoll,
            rustix::buffer::spare_capacity(&mut found),
            Some(&now),
        )
        .is_err()
        {
            return;
        }
        for event in found {
            let data = event.data.u64();
            if let Some(rank) = Rank::try_from(data).ok().filter(|_| data != PIPE) {
                self.end(rank, PeerError::Died);
            }
        }
    }

    /// Claims that nobody stands by, see `board.rs`.
    fn end_lost_claims(&mut self, events: &mut dyn Events) -> usize {
        let mut ended = 0;
        while let Some(own) = self.own.as_mut().filter(|own| own.board.len() > 0) {
            let (peers, lanes) = (&self.peers, &self.lanes);
            let at_work = |who: Option<Rank>, id| {
                let stands = Self::stands_by(peers, who, id);
                // Read after the above: a claim told meanwhile is in the queue.
                let unread = |lane: &Lane| {
                    who.is_none_or(|who| who == lane.rank)
                        && !matches!(lane.consumer.poll(), Ok(None))
                };
                stands || lanes.iter().any(unread)
            };
            let Some(record) = own.board.lost_claim(at_work) else {
                break;
            };
            let rank = record.source.unwrap_or(self.config.rank);
            let error =
                PeerError::Violation("somebody claimed a receive and does not fill it".into());
            events.received(
                self,
                record.token,
                rank,
                Envelope { context: 0, tag: 0 },
                Err(error),
            );
            ended += 1;
        }
        ended
    }

    /// Awake again.
    fn rise(&mut self) {
        let Some(own) = &mut self.own else { return };
        own.sleep.wake(&own.common.sleep.0);
        // One read takes all that is there, short of what somebody fills in for fun, which costs a wake-up and no more.
        let mut bytes = [0u8; 4096];
        let _ = rustix::io::read(&own.pipe.0, &mut bytes);
        self.look_now = true;
    }

    pub(super) fn lie_down(&mut self) -> bool {
        if self.look_now || self.helping != 0 {
            return false;
        }
        let Some(own) = &mut self.own else {
            return false;
        };
        own.sleep.sleep(&own.common.sleep.0);
        shmem::global_fence();
        let granted =
            |entry: &Entry| matches!(entry, Entry::Here(peer) if peer.producer.wish_granted());
        let something = self
            .lanes
            .iter()
            .any(|lane| !matches!(lane.consumer.poll(), Ok(None)))
            || self.peers.iter().any(granted)
            || self.has_to_share();
        if something && let Some(own) = &mut self.own {
            own.sleep.wake(&own.common.sleep.0);
        }
        !something
    }
}
