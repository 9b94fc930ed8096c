//! Steps of `progress`: completions, messages, failures of peers.

use super::world::World;
use super::{LoopbackBtl, Peer};
use btl::{Events, PeerError, Rank};

impl LoopbackBtl {
    pub(super) fn operate(&mut self, events: &mut dyn Events) -> usize {
        // Operations that callbacks add are left for the next call.
        let count = self.pending.len().min(self.limits.burst);
        let mut done = 0;
        for _ in 0..count {
            let Some(op) = self.pending.pop_front() else {
                break;
            };
            let result = match self.open() {
                Ok(mut world) => {
                    world.copy((self.rank, op.peer), op.region, op.offset, op.local, op.put)
                }
                Err(_) => break,
            };
            events.completed(self, op.token, result);
            done += 1;
        }
        done
    }

    /// Completes held sends, whose bodies have been copied.
    pub(super) fn complete_held(&mut self, events: &mut dyn Events) -> usize {
        let count = self.held.len().min(self.limits.burst);
        for _ in 0..count {
            let Some((peer, token)) = self.held.pop_front() else {
                break;
            };
            let Ok(world) = self.open() else { break };
            let result = world.error(self.rank, peer).map_or(Ok(()), Err);
            drop(world);
            events.completed(self, token, result);
        }
        count
    }

    pub(super) fn deliver(&mut self, events: &mut dyn Events) -> usize {
        let size = self.peers.len();
        let first = self.turn;
        self.turn = (self.turn + 1) % size.max(1);
        let mut done = 0;
        for index in 0..size {
            let peer = (first + index) % size;
            if self.peers[peer] != Peer::Added {
                continue;
            }
            while done < self.limits.burst {
                let Ok(mut world) = self.open() else {
                    return done;
                };
                let Some(packet) = world.take(peer as Rank, self.rank) else {
                    break;
                };
                drop(world);
                events.message(self, peer as Rank, &packet.header, &packet.body);
                done += 1;
            }
        }
        done
    }

    pub(super) fn announce_failed(&mut self, events: &mut dyn Events) -> usize {
        let mut done = 0;
        for peer in 0..self.peers.len() {
            let Some(error) = self
                .open()
                .ok()
                .and_then(|mut world| self.failure(&mut world, peer))
            else {
                continue;
            };
            self.peers[peer] = Peer::Reported;
            events.failed(self, peer as Rank, error);
            done += 1;
        }
        done
    }

    /// Returns the failure to report now: after the peer's messages and the operations on it.
    pub(super) fn failure(&self, world: &mut World, peer: usize) -> Option<PeerError> {
        let open = self.pending.iter().any(|op| op.peer as usize == peer)
            || self.held.iter().any(|(to, _)| *to as usize == peer);
        if self.peers[peer] != Peer::Added || open {
            return None;
        }
        let error = world.error(self.rank, peer as Rank)?;
        world
            .lane(peer as Rank, self.rank)
            .queue
            .is_empty()
            .then_some(error)
    }
}
