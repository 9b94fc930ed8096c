//! Ends of peers: failures, probes of silent peers, and closing.

use std::time::{Duration, Instant};

use btl::{Events, PeerError, Rank};

use super::{BATCH, IbBtl, OTHER, Operation, Peer, State, find, id, now};
use crate::nic::{Completion, GOOD, NO_ANSWER, PostMode, REMOTE_ACCESS, Verb};
use crate::raw::verbs::status_text;
use crate::wire::{Kind, LEAVING, immediate};

/// Interval between checks of the timers.
const TIMERS: Duration = Duration::from_millis(10);
/// Number of polls per reading of the clock.
const CLOCKED: u32 = 16;
/// Time of silence after which a connected peer is probed.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(150);
/// Time that `close` waits for its last writes.
const CLOSING: Duration = Duration::from_millis(400);

impl IbBtl {
    /// Ends a connection. `progress` reports it when all earlier arrivals are delivered.
    pub(super) fn stop(&mut self, peer: &mut Peer, error: PeerError) {
        if matches!(peer.state, State::Failing(_) | State::Ended(_)) {
            return;
        }
        if let Some(nic) = &mut self.nic {
            nic.stop(peer.queue);
        }
        peer.state = State::Failing(error);
        (self.failing, self.taken) = (true, 0);
    }

    pub(super) fn fail(&mut self, rank: Rank, error: PeerError) {
        if let Some(mut peer) = self.peers.get_mut(rank as usize).and_then(Option::take) {
            self.stop(&mut peer, error);
            self.peers[rank as usize] = Some(peer);
        }
    }

    /// Fails a peer with the error that a completion's status means.
    pub(super) fn fail_by(&mut self, rank: Rank, status: u32) {
        let error = match status {
            // When a process ends, its memory is released before its queue pairs. Otherwise the
            // peer has announced a wrong key.
            REMOTE_ACCESS => PeerError::Lost(
                "its memory is not accessible: it is ending, or never registered it".into(),
            ),
            NO_ANSWER => PeerError::Lost(
                "no answer from its interface: its process ended, or the network is cut".into(),
            ),
            other => PeerError::Lost(status_text(other)),
        };
        self.fail(rank, error);
    }

    /// Repeats requests, probes peers and checks limits, every few milliseconds.
    pub(super) fn check_timers(&mut self, slept: bool) {
        self.polls = self.polls.wrapping_add(1);
        if !slept && !self.polls.is_multiple_of(CLOCKED) {
            return;
        }
        let now = now();
        if now.saturating_sub(self.timers) >= TIMERS {
            self.timers = now;
            self.connect_on();
            self.probe();
            if let Some(nic) = &mut self.nic {
                self.cache.forget_gone(&mut **nic);
            }
        }
    }

    /// Probes a silent peer: a dead process has no queue pair, which only a sender detects.
    fn probe(&mut self) {
        for rank in 0..self.peers.len() as Rank {
            let silent = |peer: &Peer| {
                peer.state == State::Connected
                    && peer.posted == peer.unsignaled
                    && now().saturating_sub(peer.spoke) >= PROBE_EVERY
            };
            if self.peer(rank).is_some_and(silent) {
                self.post_empty(rank, None);
            }
        }
    }

    /// Posts an empty write, with or without an immediate. Returns false if there is no room.
    #[allow(unsafe_code)]
    pub(super) fn post_empty(&mut self, rank: Rank, word: Option<(Kind, usize)>) -> bool {
        let (depth, own) = (self.depth(), self.config.rank);
        let (Some(nic), Some(peer)) = (&mut self.nic, find(&mut self.peers, rank)) else {
            return true;
        };
        let Some(theirs) = peer.theirs.filter(|_| peer.state == State::Connected) else {
            return true;
        };
        if peer.posted >= depth {
            return false;
        }
        let word = word.map(|(kind, freed)| immediate(kind, freed, own));
        let verb = match word {
            Some(word) if peer.address.blocks == 0 => Verb::Send(word),
            word => Verb::Write(word),
        };
        let to = (theirs.ring, theirs.ring_key);
        let number = id(rank, OTHER, peer.next_sequence(true));
        // SAFETY: the request has no memory.
        match unsafe { nic.post(peer.queue, number, verb, &[], to, PostMode::Registered) } {
            Ok(()) => peer.spoke = now(),
            Err(error) => self.fail(rank, PeerError::Lost(error.to_string())),
        }
        true
    }

    /// Reports the peers that failed, after their messages are delivered.
    pub(super) fn report_failed(&mut self, events: &mut dyn Events) -> usize {
        let mut reported = 0;
        self.failing = false;
        for rank in 0..self.peers.len() {
            let failing = |peer: &mut Box<Peer>| matches!(peer.state, State::Failing(_));
            let Some(mut peer) = self.peers[rank].take_if(failing) else {
                continue;
            };
            let State::Failing(error) = &peer.state else {
                continue;
            };
            let error = error.clone();
            self.release_peer(&mut peer);
            peer.state = State::Ended(error.clone());
            self.peers[rank] = Some(peer);
            for index in 0..self.operations.len() {
                let of_peer = |op: &mut Operation| op.peer == rank as Rank;
                let Some(operation) = self.operations[index].take_if(of_peer) else {
                    continue;
                };
                if let Some(nic) = &mut self.nic {
                    self.cache.release(&mut **nic, operation.held);
                }
                events.completed(self, operation.token, Err(error.clone()));
                reported += 1;
            }
            events.failed(self, rank as Rank, error);
            reported += 1;
        }
        reported
    }

    /// Releases a peer's resources of the device.
    pub(super) fn release_peer(&mut self, peer: &mut Peer) {
        if let Some(nic) = &mut self.nic {
            nic.close(peer.queue);
            if let Some((_, keys)) = &peer.ring {
                nic.deregister(keys.id);
            }
        }
        peer.ring = None;
        peer.unposted.clear();
        peer.operations = 0;
        for flight in peer.flights.drain(..) {
            self.pool.give(&flight);
        }
    }

    /// Announces the end to all peers, waits up to a limit, and closes the device.
    pub(super) fn leave(&mut self) {
        let mut waits = Vec::new();
        for rank in 0..self.peers.len() {
            let state = self.peers[rank].as_ref().map(|peer| &peer.state);
            match state {
                Some(State::Connected) => {
                    self.post_empty(rank as Rank, Some((Kind::Leave, 0)));
                    waits.push(rank);
                }
                Some(State::Connecting { .. }) => {
                    if let Some(peer) = self.peers[rank].take() {
                        let _ = self.greet(rank as Rank, &peer, LEAVING);
                        self.peers[rank] = Some(peer);
                    }
                }
                _ => {}
            }
        }
        let begin = Instant::now();
        let mut seen = Vec::new();
        while !waits.is_empty() && begin.elapsed() < CLOSING {
            seen.extend(self.stash.drain(..));
            let Some(nic) = &mut self.nic else { return };
            if nic.poll(BATCH, &mut seen).is_err() {
                break;
            }
            if seen.is_empty() {
                std::thread::sleep(Duration::from_micros(50));
            }
            for completion in seen.drain(..) {
                let Completion::Done { id, status } = completion else {
                    continue;
                };
                let Some(rank) = self.rank_of((id >> 32) as u32) else {
                    continue;
                };
                let Some(peer) = self.peer_mut(rank) else {
                    continue;
                };
                peer.complete(id as u32, |_, _| ());
                if status != GOOD {
                    peer.posted = 0;
                }
                if peer.posted == 0 {
                    waits.retain(|waits| *waits != rank as usize);
                }
            }
        }
        self.nic = None;
    }
}
