//! Accesses to memory of peers: the requesting side.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::outgoing::Attempt;
use super::protocol::Protocol;
use super::request::{Request, RequestOutcome, State};
use super::serve::Serving;
use super::transports::Engine;
use crate::error::Error;
use crate::ids::PeerId;
use crate::regions::{Place, Refusal};
use crate::wire::{self, Header, Operation};

/// Maximum number of accesses of one peer to another without a result (P2P-24).
pub(super) const UNANSWERED: usize = 512;
/// Maximum length of an atomic access, and of a read whose bytes are copied when it arrives.
pub(crate) const VALUES: usize = 1024;
/// Maximum number of messages of accesses sent to one peer in one poll.
const MESSAGES: usize = 64;

/// An access to a peer's memory. Its request has the local memory.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) place: Place,
    pub(crate) operation: Operation,
    pub(crate) data: Option<u64>,
    /// Operands of an atomic operation.
    pub(crate) operands: Vec<u8>,
    /// Number of bytes sent of a write, or received of a read.
    pub(crate) moved: usize,
}

/// Accesses of a peer and to it.
#[derive(Debug, Default)]
pub(crate) struct Accesses {
    /// Requests that were not sent, in order; the first one may have been sent in part.
    queue: VecDeque<u64>,
    /// The first one was sent in part.
    begun: bool,
    /// Number of accesses without a result.
    unanswered: usize,
    pub(super) serving: Serving,
}

impl Accesses {
    /// Returns true if something can be sent.
    pub(super) fn can_send(&self) -> bool {
        let allowed = self.begun || self.unanswered < UNANSWERED;
        (!self.queue.is_empty() && allowed) || !self.serving.results.is_empty()
    }

    /// Returns the number of queued messages.
    pub(super) fn unsent(&self) -> usize {
        self.queue.len() + self.serving.results.len()
    }
}

impl Engine {
    /// Starts an access. Returns the request.
    pub(crate) fn submit_access(
        &mut self,
        peer: PeerId,
        request: impl FnOnce(u64) -> Request,
        access: Access,
    ) -> Result<u64, Error> {
        if self.protocol.closed {
            return Err(Error::Closed);
        }
        self.reach(peer);
        self.protocol.check_alive(peer)?;
        let access = self.protocol.accesses.insert(access);
        let key = self.protocol.requests.insert(request(access));
        if self.protocol.peers[peer].own {
            self.protocol.access_own(key);
            return Ok(key);
        }
        let all = self.protocol.peers[peer].accesses.get_or_insert_default();
        all.queue.push_back(key);
        let first = all.queue.len() == 1;
        self.protocol.activate(peer);
        if first {
            self.do_work();
        }
        Ok(key)
    }

    /// Sends queued accesses, in order over the primary rail. Returns the number of messages.
    pub(super) fn send_accesses(&mut self, peer: PeerId) -> usize {
        let mut done = 0;
        while done < MESSAGES {
            let state = &mut self.protocol.peers[peer];
            let alive = state.alive;
            let Some(all) = state.accesses.as_mut().filter(|_| alive) else {
                return done;
            };
            let Some(&key) = all.queue.front() else {
                return done;
            };
            // P2P-24
            if !all.begun && all.unanswered >= UNANSWERED {
                return done;
            }
            if self.send_access(peer, key) != Attempt::Sent {
                return done;
            }
            done += 1;
        }
        done
    }

    /// Sends an access, or the next part of a write.
    fn send_access(&mut self, peer: PeerId, key: u64) -> Attempt {
        let protocol = &mut self.protocol;
        let request = &mut protocol.requests[key];
        let access = &mut protocol.accesses[request.access];
        let state = &mut protocol.peers[peer];
        let Some(rail) = state.rails.first() else {
            return Attempt::Blocked;
        };
        let writes = access.operation == Operation::Write;
        let offset = if writes { access.moved } else { 0 };
        let length = rail.fragment().min(access.place.length - offset);
        let header = Header::Access(wire::Access {
            operation: access.operation,
            request: key,
            key: access.place.key,
            address: access.place.address,
            length: access.place.length as u64,
            offset: offset as u64,
            data: access.data,
        });
        let body = if writes {
            // SAFETY: the request is not complete, and the slice is used in this call only.
            let bytes = unsafe { request.memory.bytes() };
            &bytes[offset..offset + length]
        } else {
            &access.operands[..]
        };
        let btl = &mut self.transports[rail.transport].btl;
        let sent = btl.send(peer.rank(), header.encode().bytes(), &[IoSlice::new(body)]);
        if let Err(error) = sent {
            return self.refused(peer, error);
        }
        let Some(all) = &mut state.accesses else {
            return Attempt::Failed;
        };
        if !all.begun {
            all.unanswered += 1;
        }
        if writes {
            access.moved += length;
        }
        all.begun = writes && access.moved < access.place.length;
        if all.begun {
            request.state = State::Moving;
        } else {
            request.state = State::Waiting;
            all.queue.pop_front();
        }
        self.protocol.stats.accesses_sent += u64::from(offset == 0);
        Attempt::Sent
    }
}

impl Protocol {
    /// Handles RESULT.
    pub(super) fn access_result(
        &mut self,
        peer: PeerId,
        key: u64,
        (offset, status): (u64, u16),
        body: &[u8],
    ) -> Result<(), String> {
        let unknown = || format!("answers access {key:#x}, which this process did not make");
        let request = self.requests.get_mut(key).ok_or_else(unknown)?;
        if request.access == 0 || request.peer != Some(peer) || request.state != State::Waiting {
            return Err(unknown());
        }
        let access = self.accesses.get_mut(request.access).ok_or_else(unknown)?;
        let refusal = Refusal::of_status(status).map_err(|status| format!("status {status}"))?;
        let reads = access.operation == Operation::Read;
        let wanted = match access.operation {
            _ if refusal.is_some() => 0..=0,
            Operation::Read => {
                let left = access.place.length - access.moved;
                left.min(1)..=left
            }
            Operation::Atomic { fetch: true, .. } => access.place.length..=access.place.length,
            _ => 0..=0,
        };
        let place = if reads { access.moved as u64 } else { 0 };
        if !wanted.contains(&body.len()) || (refusal.is_none() && offset != place) {
            return Err(format!(
                "answers access {key:#x} with {} bytes at {offset}",
                body.len()
            ));
        }
        if request.memory.is_writable() {
            request.memory.fill(access.moved, body);
        }
        access.moved += body.len();
        let done = !reads || refusal.is_some() || access.moved == access.place.length;
        if done {
            let outcome = refusal.map_or(RequestOutcome::Done, RequestOutcome::Refused);
            self.end(key, outcome);
            let state = &mut self.peers[peer];
            if let Some(all) = &mut state.accesses {
                all.unanswered = all.unanswered.saturating_sub(1);
                if !all.queue.is_empty() {
                    self.activate(peer);
                }
            }
        }
        Ok(())
    }

    /// Accesses memory of this process.
    fn access_own(&mut self, key: u64) {
        let request = self.requests[key];
        let (Some(open), Some(access)) = (&mut self.open, self.accesses.get(request.access)) else {
            return;
        };
        let mut values = Vec::new();
        let done = match access.operation {
            Operation::Read | Operation::Write => {
                open.regions.copy_own(&access.place, request.memory)
            }
            Operation::Atomic { op, number, fetch } => {
                let rights = super::serve::rights(op, fetch);
                let what = (op, number, rights);
                let place = &access.place;
                open.regions
                    .update(place, what, &access.operands, &mut values)
            }
        };
        if request.memory.is_writable() && !values.is_empty() {
            request.memory.fill(0, &values);
        }
        if done.is_ok() {
            let (operation, place, data) = (access.operation, access.place, access.data);
            self.report_served(self.own, (operation, place), data);
        }
        let outcome = done.map_or_else(RequestOutcome::Refused, |()| RequestOutcome::Done);
        self.end(key, outcome);
    }
}
