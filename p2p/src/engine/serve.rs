//! Accesses of peers to memory of this process: the serving side.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::access::{UNANSWERED, VALUES};
use super::admission::Served;
use super::protocol::Protocol;
use super::transports::Engine;
use crate::atomics::AtomicOp;
use crate::ids::PeerId;
use crate::regions::{Place, Refusal, Rights};
use crate::wire::{Access, Header, Operation};

/// Maximum number of results sent to one peer in one poll.
const RESULTS: usize = 64;

/// Result that was not sent.
#[derive(Debug)]
pub(super) struct Pending {
    request: u64,
    refusal: Option<Refusal>,
    /// Bytes of a short read, or old values; for a long read, the bytes of the next message.
    values: Vec<u8>,
    /// Place to read from, and the offset of the next byte.
    read: Option<(Place, usize)>,
}

/// Last part of a write of which more parts follow.
#[derive(Clone, Copy, Debug)]
struct Part {
    request: u64,
    place: Place,
    next: usize,
    refusal: Option<Refusal>,
}

/// Accesses of a peer that are being served.
#[derive(Debug, Default)]
pub(super) struct Serving {
    /// Results in the order of the accesses: at most [`UNANSWERED`].
    pub(super) results: VecDeque<Pending>,
    part: Option<Part>,
}

/// Returns the rights that an atomic operation needs.
pub(super) fn rights(op: AtomicOp, fetch: bool) -> Rights {
    Rights {
        read: fetch,
        write: op != AtomicOp::Read,
    }
}

impl Protocol {
    /// Handles ACCESS. An error closes the peer.
    pub(super) fn serve(
        &mut self,
        peer: PeerId,
        access: &Access,
        body: &[u8],
    ) -> Result<(), String> {
        if self.open.is_none() {
            return Err("an access to memory, which exists between endpoints only".to_owned());
        }
        let all = self.peers[peer].accesses.get_or_insert_default();
        // P2P-24
        if all.serving.results.len() >= UNANSWERED {
            return Err(format!("more than {UNANSWERED} accesses without a result"));
        }
        let part = all.serving.part.take();
        let length = usize::try_from(access.length).map_err(|_| "a length".to_owned())?;
        let place = Place {
            key: access.key,
            address: access.address,
            length,
        };
        let pending = match access.operation {
            Operation::Write => self.serve_write(peer, (access, place), part, body)?,
            _ if part.is_some() => return Err("an access between parts of a write".to_owned()),
            Operation::Read if body.is_empty() => Some(self.serve_read(access.request, place)),
            Operation::Atomic { op, number, fetch } => {
                let operands = length.saturating_mul(op.operands());
                if length == 0 || length > VALUES || body.len() != operands {
                    return Err(format!("{} bytes for {:?}", body.len(), access.operation));
                }
                let what = (op, number, rights(op, fetch));
                let mut values = Vec::new();
                let done = self.regions(|all| all.update(&place, what, body, &mut values));
                if !fetch || done.is_err() {
                    values.clear();
                }
                Some(Pending {
                    request: access.request,
                    refusal: done.err(),
                    values,
                    read: None,
                })
            }
            Operation::Read => return Err("a body with a read".to_owned()),
        };
        let Some(pending) = pending else {
            return Ok(());
        };
        if pending.refusal.is_none() {
            self.report_served(peer, (access.operation, place), access.data);
        }
        let all = self.peers[peer].accesses.get_or_insert_default();
        all.serving.results.push_back(pending);
        self.activate(peer);
        Ok(())
    }

    fn regions(
        &self,
        f: impl FnOnce(&crate::regions::Regions) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        match &self.open {
            Some(open) => f(&open.regions),
            None => Err(Refusal::UnknownKey),
        }
    }

    /// Writes a part, which must be the next one (P2P-23). Returns the result after the last one.
    fn serve_write(
        &mut self,
        peer: PeerId,
        (access, place): (&Access, Place),
        part: Option<Part>,
        body: &[u8],
    ) -> Result<Option<Pending>, String> {
        let request = access.request;
        let mut part = part.unwrap_or(Part {
            request,
            place,
            next: 0,
            refusal: None,
        });
        let left = place.length.saturating_sub(part.next);
        let follows = part.request == request && part.place == place;
        let fits = body.len() <= left && (!body.is_empty() || place.length == 0);
        if !follows || access.offset != part.next as u64 || !fits {
            return Err(format!(
                "a write of {} bytes at offset {} instead of {}",
                body.len(),
                access.offset,
                part.next
            ));
        }
        if part.refusal.is_none() {
            let done = self.regions(|all| all.write(&place, part.next, body));
            part.refusal = done.err();
        }
        part.next += body.len();
        if part.next < place.length {
            let all = self.peers[peer].accesses.get_or_insert_default();
            all.serving.part = Some(part);
            return Ok(None);
        }
        Ok(Some(Pending {
            request,
            refusal: part.refusal,
            values: Vec::new(),
            read: None,
        }))
    }

    /// Starts a read. The bytes of a short one are copied now, before later writes.
    fn serve_read(&mut self, request: u64, place: Place) -> Pending {
        let mut pending = Pending {
            request,
            refusal: None,
            values: Vec::new(),
            read: None,
        };
        let done = if place.length <= VALUES {
            // Checked before memory is allocated.
            let checked = self.regions(|all| all.check(&place, Rights::READ).map(|_| ()));
            checked.and_then(|()| {
                pending.values.resize(place.length, 0);
                self.regions(|all| all.read(&place, 0, &mut pending.values))
            })
        } else {
            pending.read = Some((place, 0));
            self.regions(|all| all.check(&place, Rights::READ).map(|_| ()))
        };
        if let Err(refusal) = done {
            (pending.refusal, pending.read) = (Some(refusal), None);
            pending.values.clear();
        }
        pending
    }

    /// Queues the report of an access for the endpoint's owner, if it requested one.
    pub(super) fn report_served(
        &mut self,
        peer: PeerId,
        (operation, place): (Operation, Place),
        data: Option<u64>,
    ) {
        let Some(open) = &mut self.open else { return };
        let nothing = Rights {
            read: false,
            write: false,
        };
        let region = open.regions.check(&place, nothing);
        if data.is_none() && !open.reports_accesses && region != Ok(true) {
            return;
        }
        let (writes, atomic) = match operation {
            Operation::Read => (false, false),
            Operation::Write => (true, false),
            // One that returns the old value counts as a read, as in libfabric.
            Operation::Atomic { fetch, .. } => (!fetch, true),
        };
        open.served.push_back(Served {
            peer,
            key: place.key,
            writes,
            atomic,
            length: place.length,
            data,
        });
        // Waiting threads check for it.
        self.ended += 1;
    }
}

impl Engine {
    /// Sends results in the order of the accesses. Returns the number of messages.
    pub(super) fn send_results(&mut self, peer: PeerId) -> usize {
        let mut done = 0;
        while done < RESULTS {
            let protocol = &mut self.protocol;
            let state = &mut protocol.peers[peer];
            let alive = state.alive;
            let (Some(rail), Some(all)) = (state.rails.first(), state.accesses.as_mut()) else {
                return done;
            };
            let Some(pending) = all.serving.results.front_mut().filter(|_| alive) else {
                return done;
            };
            let mut offset = 0;
            if let Some((place, at)) = pending.read {
                offset = at;
                // After an attempt that found no room, the bytes are here already.
                if pending.values.is_empty() {
                    let length = rail.fragment().min(place.length - at);
                    pending.values.resize(length, 0);
                    let open = protocol.open.as_ref();
                    let read = open.map(|open| open.regions.read(&place, at, &mut pending.values));
                    if let Some(Err(refusal)) = read {
                        // The region was withdrawn in the meantime.
                        pending.refusal = Some(refusal);
                        pending.read = None;
                        pending.values.clear();
                    }
                }
            }
            let header = Header::Result {
                request: pending.request,
                offset: offset as u64,
                status: Refusal::status(pending.refusal),
            }
            .encode();
            let btl = &mut self.transports[rail.transport].btl;
            let body = IoSlice::new(&pending.values);
            if let Err(error) = btl.send(peer.rank(), header.bytes(), &[body]) {
                self.refused(peer, error);
                return done;
            }
            done += 1;
            let sent = pending.values.len();
            match &mut pending.read {
                Some((place, at)) if *at + sent < place.length => {
                    *at += sent;
                    pending.values.clear();
                }
                _ => {
                    all.serving.results.pop_front();
                }
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::peer::{Peer, Peers};
    use std::sync::Arc;

    /// A protocol with a peer, and memory of 4096 bytes under key 5 at address 0.
    fn protocol() -> (Protocol, PeerId, &'static [u8]) {
        let (regions, memory) = crate::regions::tests::leaked(4096, 0, (true, true));
        let own = PeerId::new(0, 1).unwrap();
        let peers = Peers(vec![Peer::own()]);
        let mut protocol = Protocol::new(own, peers, Config::default());
        protocol.open(1, Arc::new(regions));
        let peer = protocol.declare(2, Vec::new()).unwrap();
        (protocol, peer, memory)
    }

    const WRITE: Access = Access {
        operation: Operation::Write,
        request: 9,
        key: 5,
        address: 0,
        length: 100,
        offset: 0,
        data: None,
    };

    #[test]
    fn parts_of_a_write_follow_each_other() {
        let at = |offset| Access { offset, ..WRITE };
        let read = Access {
            operation: Operation::Read,
            ..WRITE
        };
        let other = Access {
            request: 10,
            ..at(60)
        };
        let longer = Access {
            length: 101,
            ..at(60)
        };
        for (second, length) in [
            (at(59), 40),
            (at(61), 39),
            (at(60), 41),
            (at(60), 0),
            (at(0), 100),
            (read, 0),
            (other, 40),
            (longer, 41),
        ] {
            let (mut protocol, peer, memory) = protocol();
            assert_eq!(protocol.serve(peer, &WRITE, &[1; 60]), Ok(()));
            let wrong = protocol.serve(peer, &second, &[2; 100][..length]);
            assert!(wrong.is_err(), "{second:?}");
            assert_eq!(memory[59..61], [1, 7]);
        }
        let (mut protocol, peer, memory) = protocol();
        assert_eq!(protocol.serve(peer, &WRITE, &[1; 60]), Ok(()));
        assert_eq!(protocol.serve(peer, &at(60), &[2; 40]), Ok(()));
        assert_eq!(memory[59..101], [&[1][..], &[2; 40], &[7]].concat());
        assert!(protocol.serve(peer, &at(1), &[1; 9]).is_err());
    }

    #[test]
    fn bodies_have_the_length_of_their_operands() {
        let atomic = |op| Access {
            operation: Operation::Atomic {
                op,
                number: crate::AtomicType::U32,
                fetch: true,
            },
            length: 8,
            ..WRITE
        };
        let (mut protocol, peer, memory) = protocol();
        let read = Access {
            operation: Operation::Read,
            ..WRITE
        };
        let long = Access {
            length: VALUES as u64 + 4,
            ..atomic(AtomicOp::Read)
        };
        let none = Access { length: 0, ..long };
        for (access, length) in [
            (read, 1),
            (atomic(AtomicOp::Sum), 4),
            (atomic(AtomicOp::Sum), 16),
            (atomic(AtomicOp::SwapLess), 8),
            (atomic(AtomicOp::Read), 8),
            (long, 0),
            (none, 0),
        ] {
            let wrong = protocol.serve(peer, &access, &[1; 16][..length]);
            assert!(wrong.is_err(), "{access:?}");
        }
        assert_eq!(
            protocol.serve(peer, &atomic(AtomicOp::Sum), &[1; 8]),
            Ok(())
        );
        assert_eq!(memory[7..9], [8, 7]);
    }

    #[test]
    fn a_peer_that_takes_no_results_is_bounded() {
        let (mut protocol, peer, _) = protocol();
        let read = Access {
            operation: Operation::Read,
            length: 4096,
            ..WRITE
        };
        for _ in 0..UNANSWERED {
            assert_eq!(protocol.serve(peer, &read, &[]), Ok(()));
        }
        assert!(protocol.serve(peer, &read, &[]).is_err());
        let held: usize = protocol.peers[peer].accesses.as_ref().map_or(0, |all| {
            all.serving.results.iter().map(|one| one.values.len()).sum()
        });
        assert_eq!(held, 0);
    }

    #[test]
    fn results_of_nothing_that_was_asked_close_the_peer() {
        let (mut protocol, peer, _) = protocol();
        for key in [0, 1, u64::MAX] {
            assert!(protocol.access_result(peer, key, (0, 0), &[]).is_err());
        }
    }

    #[test]
    fn ranks_serve_nothing() {
        let own = PeerId::new(0, 2).unwrap();
        let peers = Peers(vec![Peer::own(), Peer::without_rails(8192)]);
        let mut protocol = Protocol::new(own, peers, Config::default());
        let peer = PeerId::new(1, 2).unwrap();
        assert!(protocol.serve(peer, &WRITE, &[1; 100]).is_err());
    }
}
