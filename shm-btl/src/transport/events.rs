//! Receiving messages, detecting peers that end, sleeping.

use std::mem;

use btl::{Events, PeerError, Rank};
use rustix::event::epoll;

use super::one_sided::BROKEN;
use super::peer::{Inbound, Peer, PeerState};
use super::{BATCH, LIVENESS_INTERVAL, PIPE, ShmBtl, coarse_now};
use crate::fifo::Found;
use crate::layout::{END_BROKEN, END_REFUSED};
use shmem::sync::Ordering;

impl ShmBtl {
    pub(super) fn deliver(&mut self, events: &mut dyn Events) -> usize {
        match &self.own {
            None => return 0,
            Some(own) if own.sleep.is_asleep() => self.wake_up(),
            Some(_) => {}
        }
        let mut done = self.help_more();
        if self.open.is_some() {
            done += self.advance_open();
        }
        let busy = self
            .inbound
            .iter()
            .position(|from| !matches!(from.consumer.poll(), Ok(None)));
        done += busy.map_or(0, |first| self.deliver_from(first, events));
        if !self.gets.is_empty() {
            done += self.report_gets(events);
        }
        if self.check_now || self.check_is_due(done) {
            done += self.check_peers(events);
        }
        done
    }

    /// Delivers messages of all peers, starting with `first`.
    fn deliver_from(&mut self, first: usize, events: &mut dyn Events) -> usize {
        // Callbacks send, which affects only the rest of self.
        let mut inbound = mem::take(&mut self.inbound);
        let (later, first) = inbound.split_at_mut(first);
        let both = first.iter_mut().chain(later);
        let done = both.map(|from| self.drain(from, events)).sum();
        self.inbound = inbound;
        done
    }

    /// Reads the clock in every eighth call without an event and every 64th other one, because it
    /// costs as much as polling a few peers. Returns true if peers should be checked.
    #[inline]
    fn check_is_due(&mut self, done: usize) -> bool {
        self.calls += if done == 0 { 8 } else { 1 };
        if self.calls < 64 {
            return false;
        }
        self.calls = 0;
        coarse_now().saturating_sub(self.checked_at) >= LIVENESS_INTERVAL
    }

    /// Delivers some messages of one peer.
    fn drain(&mut self, from: &mut Inbound, events: &mut dyn Events) -> usize {
        let mut done = 0;
        while done < BATCH && !(self.check_now && self.is_cut_off(from.rank)) {
            let word = match from.consumer.poll() {
                Ok(Some(word)) => word,
                Ok(None) => break,
                Err(corruption) => {
                    self.broke(from.rank, corruption);
                    break;
                }
            };
            done += 1;
            if let Some((bytes, header, end)) = from.consumer.take_short(word) {
                events.message(self, from.rank, &bytes[..header], &bytes[header..end]);
                continue;
            }
            match from.consumer.take(word) {
                Ok(Found::Message(message)) => {
                    let (header, body) = (message.header(), from.consumer.body(&message));
                    events.message(self, from.rank, header, body);
                    if message.in_pool() {
                        from.consumer.done();
                    }
                }
                Ok(Found::Help(help)) => {
                    if self.help_with(from.rank, help) {
                        // Enough work for one call.
                        break;
                    }
                }
                Err(corruption) => {
                    self.broke(from.rank, corruption);
                }
            }
        }
        from.consumer.done();
        done
    }

    /// Returns true if no message of the peer is delivered any more.
    fn is_cut_off(&self, rank: Rank) -> bool {
        self.added(rank).is_some_and(Peer::is_cut_off)
    }

    /// Detects peers that have died, closed or ended the connection to this process.
    fn check_peers(&mut self, events: &mut dyn Events) -> usize {
        self.checked_at = coarse_now();
        self.check_now = false;
        self.poll_wait_set();
        let mut ended_at = Vec::new();
        for (index, from) in self.inbound.iter().enumerate() {
            let Some(PeerState::Added(peer)) = self.peers.get_mut(from.rank as usize) else {
                continue;
            };
            if peer.has_left() {
                if matches!(peer.ending, None | Some(PeerError::Died)) {
                    peer.ending = Some(PeerError::Left);
                }
            } else if peer.ending.is_none() {
                let lost = match peer.producer.theirs().end.0.load(Ordering::Acquire) {
                    END_BROKEN => Some(BROKEN),
                    END_REFUSED => Some(
                        "it cannot reach this process's memory, although this process reached its memory",
                    ),
                    _ => None,
                };
                peer.ending = lost.map(|why| PeerError::Lost(why.into()));
            }
            if peer.ending.is_none() {
                continue;
            }
            // Everything that it sent is delivered first.
            if !peer.is_cut_off() && matches!(from.consumer.poll(), Ok(Some(_))) {
                self.check_now = true;
            } else {
                ended_at.push(index);
            }
        }
        for index in ended_at.into_iter().rev() {
            let rank = self.inbound.swap_remove(index).rank;
            self.start_closing(rank);
        }
        let ended = self.advance_closing(events) + self.report_joining(events);
        self.make_places();
        ended
    }

    /// Ends peers whose process descriptors are readable: they have died.
    fn poll_wait_set(&mut self) {
        let Some(own) = &self.own else { return };
        let mut found = Vec::with_capacity(16);
        let room = rustix::buffer::spare_capacity(&mut found);
        let now = rustix::event::Timespec::default();
        if epoll::wait(&own.epoll, room, Some(&now)).is_err() {
            return;
        }
        for event in found {
            let data = event.data.u64();
            if let Some(rank) = Rank::try_from(data).ok().filter(|_| data != PIPE) {
                self.end(rank, PeerError::Died);
            }
        }
    }

    /// Ends sleeping.
    fn wake_up(&mut self) {
        let Some(own) = &mut self.own else { return };
        own.sleep.wake(&own.common.sleep.0);
        // One read empties the pipe. Unneeded bytes from a peer only cost a wake-up.
        let mut bytes = [0u8; 4096];
        let _ = rustix::io::read(&own.pipe.0, &mut bytes);
        self.check_now = true;
    }

    pub(super) fn arm_wait(&mut self) -> bool {
        if self.check_now || !self.helping.is_empty() {
            return false;
        }
        let Some(own) = &mut self.own else {
            return false;
        };
        own.sleep.sleep(&own.common.sleep.0);
        shmem::global_fence();
        let something = self
            .inbound
            .iter()
            .any(|from| !matches!(from.consumer.poll(), Ok(None)))
            || !self.gets.iter().all(|get| self.waits(get))
            || self.open_waits();
        if something && let Some(own) = &mut self.own {
            own.sleep.wake(&own.common.sleep.0);
        }
        !something
    }
}
