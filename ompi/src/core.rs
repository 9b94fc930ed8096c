//! Sending, what waits, progress, the end of peers.

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use btl::{Btl, Events, MAX_HEADER, PeerError, Rank, SendError, Tx};
use btl_eth::EthBtl;

use crate::blob::Blob;
use crate::ffi;
use crate::memory::{self, READ, Regions};
use crate::onesided::Operations;
use crate::patience::Patience;
use crate::peers::Book;
use crate::queues::{Item, Queues};
use crate::setup::Setup;
use crate::turn::{Refused, Turn};
use crate::wire::Header;

/// How long the end of a job waits until peers have what was sent.
const FAREWELL: Duration = Duration::from_secs(2);

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
    pub(crate) turn: Turn,
    pub(crate) queues: Queues,
    pub(crate) operations: Operations,
    pub(crate) regions: Regions,
    pub(crate) book: Mutex<Option<Book>>,
    rank: AtomicU32,
    eager: AtomicUsize,
    backlog: AtomicUsize,
    piece: AtomicUsize,
    /// Somebody has queued something because the transport was taken.
    news: AtomicBool,
    /// There is somebody in `joining`.
    pub(crate) joining: AtomicBool,
    /// The owner is sending what waits.
    draining: AtomicBool,
    /// The job ends: nobody is called any more.
    stopping: AtomicBool,
    patience: Patience,
}

/// The only one.
pub(crate) static CORE: Core = Core {
    turn: Turn::new(),
    queues: Queues::new(),
    operations: Operations::new(),
    regions: Regions::new(),
    book: Mutex::new(None),
    rank: AtomicU32::new(u32::MAX),
    eager: AtomicUsize::new(0),
    backlog: AtomicUsize::new(0),
    piece: AtomicUsize::new(1),
    news: AtomicBool::new(false),
    joining: AtomicBool::new(false),
    draining: AtomicBool::new(false),
    stopping: AtomicBool::new(false),
    patience: Patience::new(),
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

    /// Makes the transport. Returns what to publish, and whether there is one.
    pub(crate) fn start(&self, setup: Setup) -> (Vec<u8>, bool) {
        let made = setup.transport();
        let host = setup.host.clone();
        let card = match &made {
            Ok(transport) => Ok(transport.address()),
            Err(words) => {
                if setup.loud || setup.verbose {
                    ffi::say(&format!("esp: rank {} on node {host}: {words}", setup.rank));
                    ffi::help(c"no transport");
                }
                Err(words.clone())
            }
        };
        self.rank.store(setup.rank, Ordering::Relaxed);
        self.eager.store(setup.eager, Ordering::Relaxed);
        self.patience.set(setup.yield_after);
        self.backlog.store(setup.backlog, Ordering::Relaxed);
        self.piece.store(setup.max_message, Ordering::Relaxed);
        *self.book() = Some(Book::new(setup));
        let there = made.is_ok();
        self.stopping.store(!there, Ordering::SeqCst);
        // Nobody can have it yet.
        self.turn.enter(|slot| *slot = made.ok());
        (Blob { host, card }.encode(), there)
    }

    /// The transport for a moment, and afterwards what others left meanwhile.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut EthBtl) -> R) -> Result<R, Refused> {
        let result = self.turn.with(f);
        if self.news.load(Ordering::SeqCst) && self.news.swap(false, Ordering::SeqCst) {
            self.hurry();
        }
        result
    }

    /// Sends what waits, if the transport is to be had; else whoever has it will.
    fn hurry(&self) {
        if self.turn.with(|transport| self.drain(transport)) == Err(Refused::Taken) {
            self.news.store(true, Ordering::SeqCst);
        }
    }

    /// Sends a message.
    #[inline]
    pub(crate) fn send(&self, peer: Rank, header: &Header, body: &[IoSlice<'_>], keep: Keep) -> Outcome {
        let header = header.encode();
        if self.queues.is_empty() || !self.queues.has(peer) {
            match self.with(|transport| transport.send_gathered(peer, header.as_slice(), body)) {
                Ok(Ok(())) => return Outcome::Gone,
                Ok(Err(SendError::Busy)) | Err(Refused::Taken) => {}
                Ok(Err(SendError::NoPeer(_))) if self.is_joining(peer) => {}
                Ok(Err(_)) | Err(Refused::None) => return Outcome::Failed,
            }
        }
        match keep {
            Keep::Nothing => return Outcome::Busy,
            Keep::Frag(frag) => {
                let tag = header.as_slice().get(1).copied().unwrap_or(0);
                self.queue(peer, Item::Frag { frag, tag });
                return Outcome::Busy;
            }
            Keep::Copy => {}
        }
        let mut bytes = header.as_slice().to_vec();
        let header = bytes.len();
        body.iter().for_each(|piece| bytes.extend_from_slice(piece));
        self.queue(peer, Item::Copy { bytes, header });
        Outcome::Gone
    }

    /// How a message of Open MPI's is kept. `None`: not at all, too much waits already.
    pub(crate) fn keep(&self, length: usize, frag: usize) -> Option<Keep> {
        if length > self.eager.load(Ordering::Relaxed) && frag != 0 {
            return Some(Keep::Frag(frag));
        }
        let room = self.backlog.load(Ordering::Relaxed).saturating_sub(self.queues.bytes());
        (length <= room).then_some(Keep::Copy)
    }

    /// Leaves something for later, and has it looked at at once where that is possible.
    pub(crate) fn queue(&self, peer: Rank, item: Item) {
        self.queues.push(peer, item);
        self.hurry();
    }

    /// Makes progress. Returns how much happened.
    pub(crate) fn progress(&self) -> usize {
        let mut done = 0;
        loop {
            let step = |slot: &mut Option<EthBtl>| slot.as_mut().map_or(0, |transport| self.step(transport));
            let Some(more) = self.turn.enter(step) else { break };
            done += more;
            if !self.news.load(Ordering::SeqCst) || !self.news.swap(false, Ordering::SeqCst) {
                break;
            }
        }
        if done > 0 {
            self.patience.found();
        } else {
            self.patience.nothing();
        }
        done
    }

    fn step(&self, transport: &mut EthBtl) -> usize {
        let mut done = 0;
        if self.joining.load(Ordering::SeqCst) {
            self.let_join(transport);
        }
        done += transport.progress(&mut Inbox { core: self });
        if let Some(peer) = transport.stranger() {
            self.meet(transport, peer);
        }
        if !self.queues.is_empty() {
            done += self.drain(transport);
        }
        done
    }

    /// Sends what waits, as far as it goes.
    fn drain(&self, transport: &mut EthBtl) -> usize {
        if self.draining.swap(true, Ordering::Relaxed) {
            return 0;
        }
        let mut done = 0;
        for peer in self.queues.peers() {
            while let Some(item) = self.queues.pop(peer) {
                let bytes = if let Item::Copy { bytes, .. } = &item { bytes.len() } else { 0 };
                match self.give(transport, peer, item) {
                    Ok(()) => self.queues.sent(bytes),
                    Err(item) => {
                        self.queues.back(peer, item);
                        break;
                    }
                }
                done += 1;
            }
        }
        self.draining.store(false, Ordering::Relaxed);
        done
    }

    /// Sends one thing that waited. An error: it, or its rest, goes on waiting.
    fn give(&self, transport: &mut EthBtl, peer: Rank, item: Item) -> Result<(), Item> {
        match item {
            Item::Copy { bytes, header } => {
                let (front, body) = bytes.split_at(header);
                let sent = transport.send_gathered(peer, front, &[IoSlice::new(body)]);
                if self.must_wait(peer, &sent) { Err(Item::Copy { bytes, header }) } else { Ok(()) }
            }
            Item::Frag { frag, tag } => {
                // SAFETY: a descriptor that waits is left alone by Open MPI until it is told.
                let (pieces, count) = unsafe { ffi::pieces_of(frag) };
                let header = Header::Active { tag }.encode();
                let sent = transport.send_gathered(peer, header.as_slice(), &pieces[..count]);
                if self.must_wait(peer, &sent) {
                    return Err(Item::Frag { frag, tag });
                }
                self.turn.lend(transport, || ffi::sent(frag, peer, sent.is_ok()));
                Ok(())
            }
            Item::Put { operation, key, remote, local, length, mut at } => loop {
                let end = length.min(at + self.piece());
                let address = remote.wrapping_add(at as u64);
                let header = Header::Put { last: end == length, operation, key, address }.encode();
                // SAFETY: Open MPI leaves it readable until it is told.
                let body = unsafe { memory::bytes(local + at, end - at) };
                let sent = transport.send_gathered(peer, header.as_slice(), &[IoSlice::new(body)]);
                if self.must_wait(peer, &sent) {
                    return Err(Item::Put { operation, key, remote, local, length, at });
                }
                at = end;
                if at == length || sent.is_err() {
                    return Ok(());
                }
            },
            Item::Reply { operation, key, address, length, mut at } => loop {
                let end = length.min(at + self.piece() as u64);
                let header = Header::Data { last: end == length, operation, offset: at }.encode();
                // The program may have taken the region back meanwhile.
                let sent = self.regions.with(key, address + at, end - at, READ, |from| {
                    // SAFETY: the region is readable there, and stays registered during this call.
                    let body = unsafe { memory::bytes(from, usize::try_from(end - at).unwrap_or(0)) };
                    transport.send_gathered(peer, header.as_slice(), &[IoSlice::new(body)])
                });
                let sent = sent.unwrap_or_else(|| {
                    let refused = Header::Done { refused: true, operation, value: 0 }.encode();
                    transport.send_gathered(peer, refused.as_slice(), &[]).map(|()| at = length)
                });
                if self.must_wait(peer, &sent) {
                    return Err(Item::Reply { operation, key, address, length, at });
                }
                at = at.max(end);
                if at == length || sent.is_err() {
                    return Ok(());
                }
            },
        }
    }

    fn must_wait(&self, peer: Rank, sent: &Result<(), SendError>) -> bool {
        match sent {
            Err(SendError::Busy) => true,
            Err(SendError::NoPeer(_)) => self.is_joining(peer),
            _ => false,
        }
    }

    /// A peer is gone. The transport is lent.
    pub(crate) fn lose(&self, peer: Rank, error: &PeerError) {
        let waiting = self.queues.clear(peer);
        let operations = self.operations.of(peer);
        if self.stopping.load(Ordering::SeqCst) {
            return;
        }
        let needed = !waiting.is_empty() || !operations.is_empty();
        for item in waiting {
            if let Item::Frag { frag, .. } = item {
                ffi::sent(frag, peer, false);
            }
        }
        for done in operations {
            ffi::done(done, false);
        }
        // Who leaves in order has said all, and nobody had anything to say to it.
        if *error != PeerError::Left || needed {
            let own = self.book().as_ref().map(|book| book.setup.host.clone()).unwrap_or_default();
            let rank = self.rank();
            ffi::failed(&format!("esp: rank {rank} on node {own} has lost {}: {error}", self.name(peer)));
        }
    }

    /// Hands everything on and leaves. Nobody is called any more.
    pub(crate) fn stop(&self) {
        if self.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        let deadline = Instant::now() + FAREWELL;
        let out = |slot: &mut Option<EthBtl>| {
            let Some(transport) = slot.as_mut() else { return true };
            self.step(transport);
            self.queues.is_empty() && transport.flush()
        };
        while self.turn.enter(out) != Some(true) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        self.turn.enter(|slot| {
            if let Some(mut transport) = slot.take() {
                transport.close();
            }
        });
    }
}

/// Takes what comes.
struct Inbox<'a> {
    core: &'a Core,
}

impl Events for Inbox<'_> {
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        let core = self.core;
        let stopping = core.stopping.load(Ordering::Relaxed);
        core.turn.lend_sender(tx, || match Header::decode(header) {
            Some(Header::Active { tag }) if !stopping => ffi::deliver(tag, body),
            Some(Header::Active { .. }) => {}
            Some(other) if core.onesided(peer, other, body) => {}
            _ => {
                let what = format!("a message that none of its components sends ({} bytes)", header.len());
                core.lose(peer, &PeerError::Violation(what));
            }
        });
    }

    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {
        // The transport has no put or get of its own.
    }

    fn failed(&mut self, tx: &mut dyn Tx, peer: Rank, error: PeerError) {
        let core = self.core;
        core.turn.lend_sender(tx, || core.lose(peer, &error));
    }
}

const _: () = assert!(MAX_HEADER >= 48);
