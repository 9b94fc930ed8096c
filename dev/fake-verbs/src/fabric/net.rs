//! State of a fabric's interfaces, and the rules by which requests are executed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::ptr;

use crate::nic::{Completion, FLUSHED, GOOD, NO_ANSWER, REMOTE_ACCESS, Sge, Verb};

#[derive(Debug, Default)]
pub(super) struct Net {
    pub(super) nodes: Vec<Node>,
    /// Share of datagrams to drop, in parts per million.
    pub(super) loss: u64,
    pub(super) seed: u64,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) alive: bool,
    /// Registrations by key: start, length, accessible to peers.
    pub(super) memory: HashMap<u32, (u64, u64, bool)>,
    pub(super) queues: BTreeMap<u32, End>,
    pub(super) inbox: VecDeque<Completion>,
    pub(super) shared: VecDeque<(u32, Sge)>,
    pub(super) uses_shared: bool,
    pub(super) bell: OwnedFd,
    pub(super) armed: bool,
    pub(super) next: u32,
    pub(super) registrations: u64,
    /// Maximum number of registered bytes; further registrations are refused.
    pub(super) limit: u64,
    pub(super) refusal: i32,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) number: u32,
    pub(super) peer: Option<(usize, u32)>,
    pub(super) depth: usize,
    pub(super) receives: usize,
    pub(super) waiting: VecDeque<Request>,
    /// Number of requests that ended without a completion.
    pub(super) unsignaled: usize,
    pub(super) broken: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) verb: Verb,
    pub(super) local: Vec<Sge>,
    /// Bytes copied with the request, used instead of `local`.
    pub(super) carried: Option<Vec<u8>>,
    /// Success generates a completion.
    pub(super) signaled: bool,
    pub(super) remote: (u64, u32),
}

/// Result of the oldest request of a queue pair.
pub(super) enum Went {
    Done,
    Waits,
    Bad(u32),
}

impl Node {
    pub(super) fn complete(&mut self, completion: Completion) {
        self.inbox.push_back(completion);
        if std::mem::take(&mut self.armed) {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Returns whether this key covers these bytes.
    fn covers(&self, address: u64, length: u64, key: u32, by_peer: bool) -> bool {
        self.memory.get(&key).is_some_and(|(start, size, remote)| {
            (*remote || !by_peer)
                && address >= *start
                && address
                    .checked_add(length)
                    .is_some_and(|end| end <= start + size)
        })
    }
}

/// # Safety
/// Both ranges must be registered, and therefore mapped, and the fabric's lock must be held.
unsafe fn copy(from: u64, to: u64, length: usize) {
    let from: *const u8 = ptr::with_exposed_provenance(from as usize);
    let to: *mut u8 = ptr::with_exposed_provenance_mut(to as usize);
    // SAFETY: guaranteed by the caller; they may overlap if a test wants that.
    unsafe { ptr::copy(from, to, length) };
}

impl Net {
    pub(super) fn end(&mut self, at: usize) {
        let Some(node) = self.nodes.get_mut(at) else {
            return;
        };
        node.alive = false;
        node.memory.clear();
        node.queues.clear();
        node.inbox.clear();
        node.shared.clear();
        self.run_towards(at);
    }

    pub(super) fn break_off(&mut self, at: usize, number: u32, status: u32) {
        let Some(node) = self.nodes.get_mut(at) else {
            return;
        };
        let Some(end) = node.queues.get_mut(&number) else {
            return;
        };
        end.broken = true;
        let mut status = status;
        let mut completions = Vec::new();
        for request in end.waiting.drain(..) {
            completions.push(Completion::Done {
                id: request.id,
                status,
            });
            status = FLUSHED;
        }
        if std::mem::take(&mut end.receives) > 0 {
            completions.push(Completion::Arrived {
                connection: end.number,
                status: FLUSHED,
                immediate: None,
                shared: None,
            });
        }
        completions
            .into_iter()
            .for_each(|completion| node.complete(completion));
    }

    /// Continues all queue pairs that send to this node.
    pub(super) fn run_towards(&mut self, to: usize) {
        for at in 0..self.nodes.len() {
            let numbers: Vec<u32> = self.nodes[at]
                .queues
                .iter()
                .filter(|(_, end)| end.peer.is_some_and(|peer| peer.0 == to))
                .map(|(number, _)| *number)
                .collect();
            numbers.into_iter().for_each(|number| self.run(at, number));
        }
    }

    pub(super) fn run(&mut self, at: usize, number: u32) {
        loop {
            let Some(end) = self.nodes.get(at).and_then(|node| node.queues.get(&number)) else {
                return;
            };
            let (Some(request), Some(peer), false) =
                (end.waiting.front().cloned(), end.peer, end.broken)
            else {
                return;
            };
            match self.attempt(at, number, peer, &request) {
                Went::Waits => return,
                Went::Bad(status) => {
                    if status == REMOTE_ACCESS {
                        self.break_off(peer.0, peer.1, FLUSHED);
                    }
                    return self.break_off(at, number, status);
                }
                Went::Done => {
                    let node = &mut self.nodes[at];
                    if let Some(end) = node.queues.get_mut(&number) {
                        end.waiting.pop_front();
                        end.unsignaled = if request.signaled {
                            0
                        } else {
                            end.unsignaled + 1
                        };
                    }
                    if request.signaled {
                        node.complete(Completion::Done {
                            id: request.id,
                            status: GOOD,
                        });
                    }
                }
            }
        }
    }

    fn attempt(&mut self, at: usize, number: u32, peer: (usize, u32), request: &Request) -> Went {
        let Some(target) = self.nodes.get(peer.0).filter(|node| node.alive) else {
            return Went::Bad(NO_ANSWER);
        };
        let Some(end) = target.queues.get(&peer.1).filter(|end| !end.broken) else {
            return Went::Bad(NO_ANSWER);
        };
        match end.peer {
            None => return Went::Waits,
            Some(back) if back != (at, number) => return Went::Bad(NO_ANSWER),
            Some(_) => {}
        }
        let (connection, shares) = (end.number, target.uses_shared);
        let carried = request.carried.as_ref().map(|bytes| Sge {
            address: bytes.as_ptr().expose_provenance() as u64,
            length: bytes.len() as u32,
            lkey: 0,
        });
        let pieces = carried
            .as_ref()
            .map_or(&request.local[..], std::slice::from_ref);
        let length: u64 = pieces.iter().map(|sge| u64::from(sge.length)).sum();
        let own = &self.nodes[at];
        if !request
            .local
            .iter()
            .all(|sge| own.covers(sge.address, sge.length.into(), sge.lkey, false))
        {
            return Went::Bad(4);
        }
        let (mut place, immediate) = match request.verb {
            Verb::Send(immediate) => (None, Some(immediate)),
            Verb::Write(immediate) => (Some(request.remote), immediate),
            Verb::Read => (Some(request.remote), None),
        };
        if place
            .is_some_and(|(address, key)| length > 0 && !target.covers(address, length, key, true))
        {
            return Went::Bad(REMOTE_ACCESS);
        }
        let mut shared = None;
        if immediate.is_some() {
            let there = if shares {
                target.shared.front().copied()
            } else {
                None
            };
            if (shares && there.is_none()) || (!shares && end.receives == 0) {
                return Went::Waits;
            }
            if let Some((index, buffer)) = there {
                if place.is_none() && length > u64::from(buffer.length) {
                    return Went::Bad(REMOTE_ACCESS);
                }
                shared = Some((index, length as u32));
                place = place.or(Some((buffer.address, buffer.lkey)));
            } else if place.is_none() && length > 0 {
                return Went::Bad(REMOTE_ACCESS);
            }
        }
        let mut other = place.map_or(0, |(address, _)| address);
        for sge in pieces {
            let (from, to) = if request.verb == Verb::Read {
                (other, sge.address)
            } else {
                (sge.address, other)
            };
            // SAFETY: both were just looked up; registrations end under this lock.
            unsafe { copy(from, to, sge.length as usize) };
            other += u64::from(sge.length);
        }
        if immediate.is_some() {
            let target = &mut self.nodes[peer.0];
            if shares {
                target.shared.pop_front();
            } else if let Some(end) = target.queues.get_mut(&peer.1) {
                end.receives -= 1;
            }
            target.complete(Completion::Arrived {
                connection,
                status: GOOD,
                immediate,
                shared,
            });
        }
        Went::Done
    }
}
