//! Sending, what waits, progress, the end of peers.

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use btl::{Btl, PeerError, Rank, SendError};
use btl_eth::EthBtl;

use crate::blob::Blob;
use crate::ffi;
use crate::memory::Regions;
use crate::onesided::Operations;
use crate::patience::Patience;
use crate::peers::Book;
use crate::queues::Item;
use crate::rail::{MOST, Rail, Way};
use crate::setup::Setup;
use crate::turn::Refused;
use crate::wire::Header;

/// How long the end of a job waits until peers have what was sent.
const FAREWELL: Duration = Duration::from_secs(2);
/// Messages of Open MPI's one-sided communication are not longer; it waits for ever if one that has been taken is not sent.
const SHORT: usize = 16 << 10;
/// Answers to peers may always take so many bytes.
const LEAST_BACKLOG: usize = 16 << 20;

/// What becomes of a message that cannot be sent now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keep {
    /// A copy of it waits.
    Copy,
    /// The descriptor waits.
    Frag(usize),
    /// The caller keeps it.
    Nothing,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Sent, or copied.
    Gone,
    /// It waits, as the caller said.
    Busy,
    /// The peer is gone, or was never there.
    Failed,
}

/// The component.
pub(crate) struct Core {
    /// One for each interface, as many as there are.
    pub(crate) rails: [Rail; MOST],
    pub(crate) operations: Operations,
    pub(crate) regions: Regions,
    pub(crate) book: Mutex<Option<Book>>,
    /// Rails that have a transport.
    used: AtomicUsize,
    rank: AtomicU32,
    eager: AtomicUsize,
    backlog: AtomicUsize,
    coalesce: AtomicUsize,
    piece: AtomicUsize,
    /// The job ends: nobody is called any more.
    pub(crate) stopping: AtomicBool,
    patience: Patience,
    /// Locks of this process that it gave back itself.
    pub(crate) given_back: AtomicU32,
}

/// The only one.
pub(crate) static CORE: Core = Core {
    rails: [Rail::new(0), Rail::new(1), Rail::new(2), Rail::new(3)],
    operations: Operations::new(),
    regions: Regions::new(),
    book: Mutex::new(None),
    used: AtomicUsize::new(0),
    rank: AtomicU32::new(u32::MAX),
    eager: AtomicUsize::new(0),
    backlog: AtomicUsize::new(0),
    coalesce: AtomicUsize::new(0),
    piece: AtomicUsize::new(1),
    stopping: AtomicBool::new(false),
    patience: Patience::new(),
    given_back: AtomicU32::new(0),
};

impl Core {
    pub(crate) fn book(&self) -> MutexGuard<'_, Option<Book>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank.load(Ordering::Relaxed)
    }

    /// Bytes of a put or get in one message.
    pub(crate) fn piece(&self) -> usize {
        self.piece.load(Ordering::Relaxed)
    }

    /// The rails that have a transport.
    pub(crate) fn used(&self) -> &[Rail] {
        self.rails
            .get(..self.used.load(Ordering::Acquire))
            .unwrap_or_default()
    }

    /// Makes the transports. Returns what to publish, and the interfaces.
    pub(crate) fn start(&self, setup: Setup) -> (Vec<u8>, Vec<String>) {
        let host = setup.host.clone();
        let (made, why) = match setup.transports() {
            Ok(made) => made,
            Err(words) => (Vec::new(), vec![words]),
        };
        if setup.loud || setup.verbose {
            for words in &why {
                ffi::say(&format!("esp: rank {} on node {host}: {words}", setup.rank));
            }
            if made.is_empty() {
                ffi::help(c"no transport");
            }
        }
        let cards = if made.is_empty() {
            Err(why.join("; "))
        } else {
            Ok(made
                .iter()
                .map(|(_, transport)| transport.address())
                .collect())
        };
        self.rank.store(setup.rank, Ordering::Relaxed);
        self.eager.store(setup.eager, Ordering::Relaxed);
        self.patience.set(setup.yield_after);
        self.backlog.store(setup.backlog, Ordering::Relaxed);
        self.coalesce.store(setup.coalesce, Ordering::Relaxed);
        self.piece.store(setup.max_message, Ordering::Relaxed);
        let (names, transports): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        *self.book() = Some(Book::new(setup, names.clone()));
        self.stopping.store(transports.is_empty(), Ordering::SeqCst);
        self.used.store(transports.len(), Ordering::Release);
        for (rail, transport) in self.rails.iter().zip(transports) {
            // Nobody can have it yet.
            rail.turn.enter(|slot| *slot = Some(transport));
        }
        (Blob { host, cards }.encode(), names)
    }

    /// Is this thread called by what its own progress has called?
    pub(crate) fn is_nested(&self) -> bool {
        self.used().iter().any(|rail| rail.turn.is_mine())
    }

    /// Sends a message. A descriptor in `bulk` waits until the message has [left](crate::leaving).
    #[inline]
    pub(crate) fn send(
        &self,
        way: Way,
        header: &Header,
        body: &[IoSlice<'_>],
        keep: Keep,
        bulk: Option<usize>,
    ) -> Outcome {
        let Some(rail) = self.rails.get(way.rail) else {
            return Outcome::Failed;
        };
        let (seat, header) = (way.seat.0, header.encode());
        if rail.queues.is_empty() || !rail.queues.has(seat) {
            // What progress calls goes on by progress; who calls from elsewhere may be about to compute.
            let called = bulk.is_none() && !self.is_nested();
            let coalesce = self.coalesce.load(Ordering::Relaxed);
            let soon = called
                && coalesce > 0
                && body.iter().map(|piece| piece.len()).sum::<usize>() <= coalesce;
            let sent = self.with(rail, |transport| {
                let mut sent = if soon {
                    transport.send_soon(seat, header.as_slice(), body)
                } else {
                    transport.send_gathered(seat, header.as_slice(), body)
                };
                if called {
                    transport.push(seat);
                    if sent == Err(SendError::Busy) {
                        sent = transport.send_gathered(seat, header.as_slice(), body);
                    }
                }
                sent?;
                Ok(bulk.and_then(|frag| Some((frag, transport.leaving(seat)?.taken))))
            });
            match sent {
                Ok(Ok(Some((frag, until)))) => {
                    rail.departures.push(seat, frag, until);
                    return Outcome::Busy;
                }
                Ok(Ok(None)) => return Outcome::Gone,
                Ok(Err(SendError::Busy)) | Err(Refused::Taken) => {}
                Ok(Err(SendError::NoPeer(_))) if self.is_joining(way) => {}
                Ok(Err(_)) | Err(Refused::None) => return Outcome::Failed,
            }
        }
        match keep {
            Keep::Nothing => return Outcome::Busy,
            Keep::Frag(frag) => {
                let tag = header.as_slice().get(1).copied().unwrap_or(0);
                self.queue(way, Item::Frag { frag, tag });
                return Outcome::Busy;
            }
            Keep::Copy => {}
        }
        let mut bytes = header.as_slice().to_vec();
        let header = bytes.len();
        body.iter().for_each(|piece| bytes.extend_from_slice(piece));
        self.queue(way, Item::Copy { bytes, header });
        Outcome::Gone
    }

    /// How a message of Open MPI's is kept. `None`: not at all, too much waits already and there is no descriptor of it.
    ///
    /// A longer one that is `called` for by the program waits itself: who waits for it makes progress, and a copy would wait for the next
    /// call, perhaps long after this one.
    ///
    /// A descriptor is never refused: Open MPI takes "busy" for kept, and comes again after "no room" only when another one is done.
    pub(crate) fn keep(&self, length: usize, frag: usize, called: bool) -> Option<Keep> {
        if called && length > SHORT {
            return Some(if frag == 0 {
                Keep::Nothing
            } else {
                Keep::Frag(frag)
            });
        }
        let room = self
            .backlog
            .load(Ordering::Relaxed)
            .saturating_sub(self.waiting());
        match frag {
            0 => (length <= room).then_some(Keep::Copy),
            _ if length > room.min(self.eager.load(Ordering::Relaxed)) => Some(Keep::Frag(frag)),
            _ => Some(Keep::Copy),
        }
    }

    /// Bytes that wait.
    fn waiting(&self) -> usize {
        self.used().iter().map(|rail| rail.queues.bytes()).sum()
    }

    /// More waits than this process itself lets wait: peers ask and do not take the answers.
    pub(crate) fn overrun(&self) -> bool {
        self.waiting()
            > self
                .backlog
                .load(Ordering::Relaxed)
                .saturating_mul(2)
                .max(LEAST_BACKLOG)
    }

    /// Makes progress. Returns how much happened.
    pub(crate) fn progress(&self) -> usize {
        let done = self.look();
        if done > 0 {
            self.patience.found();
        } else {
            self.patience.nothing();
        }
        done
    }

    /// Progress of who does not wait, and gives the processor to nobody.
    pub(crate) fn look(&self) -> usize {
        self.used().iter().map(|rail| self.advance(rail)).sum()
    }

    /// A peer is gone on this way. The rail's transport is lent.
    pub(crate) fn lose(&self, way: Way, error: &PeerError) {
        let Some(rail) = self.rails.get(way.rail) else {
            return;
        };
        let waiting = rail.queues.clear(way.seat.0);
        let leaving = rail.departures.clear(way.seat.0);
        let operations = self.operations.of(way);
        if self.stopping.load(Ordering::SeqCst) {
            return;
        }
        let needed = !waiting.is_empty() || !operations.is_empty();
        // Who leaves in order has taken all.
        let well = *error == PeerError::Left;
        leaving.into_iter().for_each(|frag| ffi::sent(frag, well));
        for item in waiting {
            if let Item::Frag { frag, .. } = item {
                ffi::sent(frag, false);
            }
        }
        for done in operations {
            ffi::done(done, false);
        }
        // Who leaves in order has said all, and nobody had anything to say to it.
        if *error != PeerError::Left || needed {
            let own = self
                .book()
                .as_ref()
                .map(|book| book.own(way.rail))
                .unwrap_or_default();
            ffi::failed(&format!(
                "esp: {own} has lost {}: {error}",
                self.name(way.seat.peer())
            ));
        }
    }

    /// Hands everything on and leaves. Nobody is called any more.
    pub(crate) fn stop(&self) {
        if self.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        let deadline = Instant::now() + FAREWELL;
        let out = |rail: &Rail| {
            let out = |slot: &mut Option<EthBtl>| {
                let Some(transport) = slot.as_mut() else {
                    return true;
                };
                self.step(rail, transport);
                rail.queues.is_empty() && transport.flush()
            };
            rail.turn.enter(out) == Some(true)
        };
        // Each is asked, for each has to make progress.
        while self.used().iter().filter(|rail| !out(rail)).count() > 0 && Instant::now() < deadline
        {
            std::thread::yield_now();
        }
        for rail in self.used() {
            rail.turn.enter(|slot| {
                if let Some(mut transport) = slot.take() {
                    transport.close();
                }
            });
        }
    }
}
