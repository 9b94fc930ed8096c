//! One interface: its transport, what waits for it, and its progress.
//!
//! Open MPI has a module for each interface that is used and spreads messages over those that reach a peer. In the transport of an
//! interface each interface of a peer is a member of its own, its *seat*: two processes may reach each other over any pair of
//! interfaces, and need not agree on the pair.

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};

use btl::{Btl, Events, MAX_HEADER, PeerError, PendingPeers, Rank, SendError, Tx};
use btl_eth::EthBtl;

use crate::core::Core;
use crate::ffi;
use crate::leaving::Departures;
use crate::memory::{self, READ};
use crate::queues::{Item, Queues};
use crate::turn::{Refused, Turn};
use crate::wire::Header;

/// Most interfaces of a process; of more the first are used. `ESP_RAILS` in `shim/shim.h`.
pub(crate) const MOST: usize = 4;
#[allow(clippy::cast_possible_truncation)] // a small number
const SEATS: Rank = MOST as Rank;

/// A process's interface, as the transports of others number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Seat(pub(crate) Rank);

impl Seat {
    /// None beyond what there can be.
    pub(crate) fn new(peer: Rank, interface: usize) -> Option<Seat> {
        let interface = Rank::try_from(interface)
            .ok()
            .filter(|interface| *interface < SEATS)?;
        peer.checked_mul(SEATS)?.checked_add(interface).map(Seat)
    }

    /// Whose it is.
    pub(crate) fn peer(self) -> Rank {
        self.0 / SEATS
    }

    /// Which of its interfaces.
    pub(crate) fn interface(self) -> usize {
        (self.0 % SEATS) as usize
    }
}

/// Seats of so many processes.
pub(crate) fn seats(size: u32) -> Option<u32> {
    size.checked_mul(SEATS)
}

/// The way to a peer: the own interface, and the peer's seat there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Way {
    pub(crate) rail: usize,
    pub(crate) seat: Seat,
}

/// See the module.
pub(crate) struct Rail {
    pub(crate) number: usize,
    pub(crate) turn: Turn,
    pub(crate) queues: Queues,
    pub(crate) departures: Departures,
    /// Somebody has queued something because the transport was taken.
    news: AtomicBool,
    /// Seats of this rail are to be added, see `Book`.
    pub(crate) joining: AtomicBool,
    /// The owner is sending what waits.
    draining: AtomicBool,
}

impl Rail {
    pub(crate) const fn new(number: usize) -> Rail {
        Rail {
            number,
            turn: Turn::new(),
            queues: Queues::new(),
            departures: Departures::new(),
            news: AtomicBool::new(false),
            joining: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        }
    }

    pub(crate) fn way(&self, seat: Rank) -> Way {
        Way {
            rail: self.number,
            seat: Seat(seat),
        }
    }

    /// Left by somebody who found the transport taken; true once.
    fn has_news(&self) -> bool {
        self.news.load(Ordering::SeqCst) && self.news.swap(false, Ordering::SeqCst)
    }
}

impl Core {
    /// The transport for a moment, and afterwards what others left meanwhile.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        rail: &Rail,
        f: impl FnOnce(&mut EthBtl) -> R,
    ) -> Result<R, Refused> {
        let result = rail.turn.with(f);
        if rail.has_news() {
            self.hurry(rail);
        }
        result
    }

    /// Sends what waits, if the transport is to be had; else whoever has it will.
    fn hurry(&self, rail: &Rail) {
        if rail.turn.with(|transport| self.drain(rail, transport)) == Err(Refused::Taken) {
            rail.news.store(true, Ordering::SeqCst);
        }
    }

    /// Leaves something for later, and has it looked at at once where that is possible.
    pub(crate) fn queue(&self, way: Way, item: Item) {
        let Some(rail) = self.rails.get(way.rail) else {
            return;
        };
        rail.queues.push(way.seat.0, item);
        self.hurry(rail);
    }

    /// Progress of one. Returns how much happened.
    pub(crate) fn advance(&self, rail: &Rail) -> usize {
        let mut done = 0;
        loop {
            let step = |slot: &mut Option<EthBtl>| {
                slot.as_mut()
                    .map_or(0, |transport| self.step(rail, transport))
            };
            let Some(more) = rail.turn.enter(step) else {
                return done;
            };
            done += more;
            if !rail.has_news() {
                return done;
            }
        }
    }

    pub(crate) fn step(&self, rail: &Rail, transport: &mut EthBtl) -> usize {
        let mut done = 0;
        if rail.joining.load(Ordering::SeqCst) {
            self.let_join(rail, transport);
        }
        done += transport.progress(&mut Inbox { core: self, rail });
        if let Some(seat) = transport.pending_peer() {
            self.meet(rail, transport, Seat(seat));
        }
        if !rail.departures.is_empty() && !self.stopping.load(Ordering::Relaxed) {
            let gone = rail.departures.gone(|peer| transport.leaving(peer));
            done += gone.len();
            gone.into_iter()
                .for_each(|frag| rail.turn.lend(transport, || ffi::sent(frag, true)));
        }
        if !rail.queues.is_empty() {
            done += self.drain(rail, transport);
        }
        done
    }

    /// Sends what waits, as far as it goes.
    fn drain(&self, rail: &Rail, transport: &mut EthBtl) -> usize {
        if rail.draining.swap(true, Ordering::Relaxed) {
            return 0;
        }
        let mut done = 0;
        for peer in rail.queues.peers() {
            while let Some(item) = rail.queues.pop(peer) {
                let cost = item.cost();
                match self.give(rail, transport, peer, item) {
                    Ok(()) => rail.queues.sent(cost),
                    Err(item) => {
                        rail.queues.back(peer, item);
                        break;
                    }
                }
                done += 1;
            }
        }
        rail.draining.store(false, Ordering::Relaxed);
        done
    }

    /// Sends one thing that waited. An error: it, or its rest, goes on waiting.
    fn give(
        &self,
        rail: &Rail,
        transport: &mut EthBtl,
        peer: Rank,
        item: Item,
    ) -> Result<(), Item> {
        match item {
            Item::Copy { bytes, header } => {
                let (front, body) = bytes.split_at(header);
                let sent = transport.send_gathered(peer, front, &[IoSlice::new(body)]);
                if self.must_wait(rail, peer, &sent) {
                    Err(Item::Copy { bytes, header })
                } else {
                    Ok(())
                }
            }
            Item::Frag { frag, tag } => {
                // SAFETY: a descriptor that waits is left alone by Open MPI until it is told.
                let (pieces, count) = unsafe { ffi::pieces_of(frag) };
                let header = Header::Active { tag }.encode();
                let sent = transport.send_gathered(peer, header.as_slice(), &pieces[..count]);
                if self.must_wait(rail, peer, &sent) {
                    return Err(Item::Frag { frag, tag });
                }
                match transport.leaving(peer) {
                    Some(leaving) if sent.is_ok() => {
                        rail.departures.push(peer, frag, leaving.taken)
                    }
                    _ => rail.turn.lend(transport, || ffi::sent(frag, sent.is_ok())),
                }
                Ok(())
            }
            Item::Put {
                operation,
                key,
                remote,
                local,
                length,
                mut at,
            } => loop {
                let end = length.min(at + self.piece());
                let address = remote.wrapping_add(at as u64);
                let header = Header::Put {
                    last: end == length,
                    operation,
                    key,
                    address,
                }
                .encode();
                // SAFETY: Open MPI leaves it readable until it is told.
                let body = unsafe { memory::bytes(local + at, end - at) };
                let sent = transport.send_gathered(peer, header.as_slice(), &[IoSlice::new(body)]);
                if self.must_wait(rail, peer, &sent) {
                    return Err(Item::Put {
                        operation,
                        key,
                        remote,
                        local,
                        length,
                        at,
                    });
                }
                at = end;
                if at == length || sent.is_err() {
                    return Ok(());
                }
            },
            Item::Reply {
                operation,
                key,
                address,
                length,
                mut at,
            } => loop {
                let end = length.min(at + self.piece() as u64);
                let header = Header::Data {
                    last: end == length,
                    operation,
                    offset: at,
                }
                .encode();
                // The program may have taken the region back meanwhile.
                let sent = self
                    .regions
                    .with(key, address + at, end - at, READ, |from| {
                        // SAFETY: the region is readable there, and stays registered during this call.
                        let body =
                            unsafe { memory::bytes(from, usize::try_from(end - at).unwrap_or(0)) };
                        transport.send_gathered(peer, header.as_slice(), &[IoSlice::new(body)])
                    });
                let sent = sent.unwrap_or_else(|| {
                    let refused = Header::Done {
                        refused: true,
                        operation,
                        value: 0,
                    }
                    .encode();
                    transport
                        .send_gathered(peer, refused.as_slice(), &[])
                        .map(|()| at = length)
                });
                if self.must_wait(rail, peer, &sent) {
                    return Err(Item::Reply {
                        operation,
                        key,
                        address,
                        length,
                        at,
                    });
                }
                at = at.max(end);
                if at == length || sent.is_err() {
                    return Ok(());
                }
            },
        }
    }

    fn must_wait(&self, rail: &Rail, peer: Rank, sent: &Result<(), SendError>) -> bool {
        match sent {
            Err(SendError::Busy) => true,
            Err(SendError::NoPeer(_)) => self.is_joining(rail.way(peer)),
            _ => false,
        }
    }
}

/// Takes what comes.
struct Inbox<'a> {
    core: &'a Core,
    rail: &'a Rail,
}

impl Events for Inbox<'_> {
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        let (core, rail) = (self.core, self.rail);
        let stopping = core.stopping.load(Ordering::Relaxed);
        rail.turn.lend_sender(tx, || match Header::decode(header) {
            Some(Header::Active { tag }) if !stopping => ffi::deliver(rail.number, tag, body),
            Some(Header::Active { .. }) => {}
            Some(_) if core.overrun() => {
                let what = "it asks for more than it takes answers of".to_owned();
                core.lose(rail.way(peer), &PeerError::Violation(what));
            }
            Some(other) if core.onesided(rail.way(peer), other, body) => {}
            _ => {
                let what = format!(
                    "a message that none of its components sends ({} bytes)",
                    header.len()
                );
                core.lose(rail.way(peer), &PeerError::Violation(what));
            }
        });
    }

    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {
        // The transport has no put or get of its own.
    }

    fn failed(&mut self, tx: &mut dyn Tx, peer: Rank, error: PeerError) {
        let (core, rail) = (self.core, self.rail);
        rail.turn
            .lend_sender(tx, || core.lose(rail.way(peer), &error));
    }
}

const _: () = assert!(MAX_HEADER >= 48);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_numbered_without_gaps() {
        let mut next = 0;
        for peer in 0..3 {
            for interface in 0..MOST {
                let seat = Seat::new(peer, interface).unwrap();
                assert_eq!(
                    (seat.0, seat.peer(), seat.interface()),
                    (next, peer, interface)
                );
                next += 1;
            }
        }
        assert_eq!(seats(3), Some(next));
        assert_eq!(
            (Seat::new(0, MOST), Seat::new(u32::MAX, 0), seats(u32::MAX)),
            (None, None, None)
        );
    }
}
