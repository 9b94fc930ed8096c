//! Completion queues and counters, which hold the reports of endpoints until the program reads
//! them.

use std::collections::VecDeque;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use p2p::{Error, Refusal};

use crate::core::Core;
use crate::ffi::{EACCES, ECANCELED, EINVAL, EIO, ENOTCONN, FI_ADDR_UNSPEC, FI_REMOTE_WRITE};
use crate::wakeups::Wakeups;

/// Number of completions in a queue at which new operations are refused with -FI_EAGAIN.
pub(crate) const FULL: usize = 64 << 10;
/// Number of error texts that a queue keeps for `fi_cq_strerror`.
const TEXTS: usize = 64;
/// First number of these texts.
const FIRST_TEXT: c_int = 10_000;
/// Pause of a thread that waits for several endpoints or for one whose queue is full.
pub(crate) const NAP: Duration = Duration::from_micros(50);
/// Pause of a thread that waits without an endpoint.
const LONG_NAP: Duration = Duration::from_millis(5);

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) length: usize,
    pub(crate) buffer: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// Address of the sender; -1 if it is not in the address vector.
    pub(crate) source: u64,
    /// Error, 0 for none, and the number of its text.
    pub(crate) error: c_int,
    pub(crate) text: c_int,
    /// Bytes of the message that did not fit.
    pub(crate) excess: usize,
}

impl Entry {
    /// An entry without any values.
    pub(crate) const EMPTY: Entry = Entry {
        context: 0,
        flags: 0,
        length: 0,
        buffer: 0,
        data: 0,
        tag: 0,
        source: FI_ADDR_UNSPEC,
        error: 0,
        text: 0,
        excess: 0,
    };
}

/// The endpoints that report to a queue or counter.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    all: RwLock<Vec<Weak<Core>>>,
    /// Number of endpoints that were added.
    added: AtomicU64,
}

impl Sources {
    /// Adds an endpoint. Threads that wait then make its progress, too.
    pub(crate) fn add(&self, core: &Arc<Core>) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if all.iter().any(|one| one.as_ptr() == Arc::as_ptr(core)) {
            return;
        }
        let new = Arc::downgrade(core);
        // The places of the others stay, see `each`.
        match all.iter_mut().find(|one| one.strong_count() == 0) {
            Some(free) => *free = new,
            None => all.push(new),
        }
        drop(all);
        self.added.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// Calls `f` for all endpoints that are open, without a lock.
    pub(crate) fn each(&self, mut f: impl FnMut(&Arc<Core>)) {
        let mut at = 0;
        loop {
            let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
            let Some(one) = all.get(at).map(Weak::upgrade) else {
                return;
            };
            drop(all);
            if let Some(core) = one {
                f(&core);
            }
            at += 1;
        }
    }

    /// Makes progress on all endpoints.
    pub(crate) fn progress(&self) {
        self.each(|core| core.progress());
    }

    fn wake(&self) {
        self.each(|core| core.wake());
    }

    /// Makes progress and sleeps until `done` returns true or the deadline has passed. Returns the
    /// last value of `done`.
    fn wait(&self, deadline: Option<Instant>, done: &dyn Fn() -> bool) -> bool {
        loop {
            let added = self.added.load(Ordering::SeqCst);
            self.progress();
            let now = Instant::now();
            if done() {
                return true;
            }
            if deadline.is_some_and(|at| at <= now) {
                return false;
            }
            let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
            let mut alive = all.iter().filter_map(Weak::upgrade);
            let (first, second) = (alive.next(), alive.next());
            drop(alive);
            drop(all);
            match first {
                Some(core) if second.is_none() => {
                    let is_alone = || self.added.load(Ordering::SeqCst) == added;
                    core.wait(deadline, &|| done() || !is_alone());
                }
                Some(_) => std::thread::sleep(NAP),
                None => {
                    let left = deadline.map_or(LONG_NAP, |at| at.saturating_duration_since(now));
                    std::thread::sleep(left.min(LONG_NAP));
                }
            }
        }
    }
}

/// Returns the deadline of a timeout in milliseconds, which is negative for none.
pub(crate) fn deadline(timeout: c_int) -> Option<Instant> {
    let timeout = Duration::from_millis(u64::try_from(timeout).ok()?);
    Instant::now().checked_add(timeout)
}

/// A completion queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: Mutex<VecDeque<Entry>>,
    /// Number of entries, to look without the lock.
    count: AtomicU64,
    texts: Mutex<VecDeque<(c_int, CString)>>,
    next_text: AtomicU32,
    pub(crate) sources: Sources,
    signalled: AtomicBool,
    waiting: AtomicU32,
    /// Number of entries for numbers that came with writes of peers.
    numbers: AtomicU64,
    /// The program sleeps on a descriptor.
    pub(crate) wakeups: Option<Arc<Wakeups>>,
}

impl Queue {
    /// Makes a queue with a descriptor to sleep on.
    pub(crate) fn with_wakeups(wakeups: Wakeups) -> Queue {
        Queue {
            wakeups: Some(Arc::new(wakeups)),
            ..Queue::default()
        }
    }

    /// Returns true if many entries are for numbers that came with writes of peers.
    pub(crate) fn has_many_numbers(&self) -> bool {
        self.numbers.load(Ordering::Relaxed) >= FULL as u64
    }

    /// Prepares the program's sleep on the descriptor. Returns false if there is something to read,
    /// or the queue has no descriptor.
    pub(crate) fn prepare_sleep(&self) -> bool {
        let Some(wakeups) = &self.wakeups else {
            return false;
        };
        self.sources.progress();
        let mut cores = Vec::new();
        self.sources.each(|core| {
            core.add_wakeups(wakeups);
            cores.push(Arc::clone(core));
        });
        let nothing = || self.is_empty() && !self.signalled.swap(false, Ordering::SeqCst);
        nothing() && wakeups.prepare(&cores, None, nothing)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= FULL as u64
    }

    /// Adds a completion. Threads that wait are woken by the caller's endpoint, if that is polling,
    /// or by [`wake`](Queue::wake).
    pub(crate) fn push(&self, entry: Entry) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push_back(entry);
        if entry.flags & FI_REMOTE_WRITE != 0 {
            self.numbers.fetch_add(1, Ordering::Relaxed);
        }
        self.count.store(entries.len() as u64, Ordering::SeqCst);
    }

    /// Wakes threads that wait.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.sources.wake();
        }
    }

    /// Passes at most `count` completions to `take` with their place. Returns how many; `None` if
    /// the first one is an error.
    pub(crate) fn read(&self, count: usize, mut take: impl FnMut(usize, &Entry)) -> Option<usize> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = 0;
        while taken < count
            && let Some(entry) = entries.front()
        {
            if entry.error != 0 {
                break;
            }
            take(taken, entry);
            taken += 1;
            if entry.flags & FI_REMOTE_WRITE != 0 {
                self.numbers.fetch_sub(1, Ordering::Relaxed);
            }
            entries.pop_front();
        }
        self.count.store(entries.len() as u64, Ordering::Release);
        (taken != 0 || entries.is_empty() || count == 0).then_some(taken)
    }

    /// Returns the error at the front.
    pub(crate) fn read_error(&self) -> Option<Entry> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = entries.front().is_some_and(|entry| entry.error != 0);
        let entry = if failed { entries.pop_front() } else { None };
        self.count.store(entries.len() as u64, Ordering::Release);
        entry
    }

    /// Waits for a completion until the deadline. Returns false if there is none.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let done = || !self.is_empty() || self.signalled.load(Ordering::SeqCst);
        self.sources.wait(deadline, &done);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.signalled.store(false, Ordering::SeqCst);
        !self.is_empty()
    }

    /// Makes threads that wait return.
    pub(crate) fn signal(&self) {
        self.signalled.store(true, Ordering::SeqCst);
        self.wake();
        if let Some(wakeups) = &self.wakeups {
            wakeups.ring();
        }
    }

    /// Keeps the text of an error. Returns its number.
    pub(crate) fn keep_text(&self, text: &str) -> c_int {
        let number = self.next_text.fetch_add(1, Ordering::Relaxed) % 1_000_000;
        let number = FIRST_TEXT + c_int::try_from(number).unwrap_or(0);
        let plain: String = text.replace(|c: char| c.is_control(), " ");
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if texts.len() == TEXTS {
            texts.pop_front();
        }
        texts.push_back((number, CString::new(plain).unwrap_or_default()));
        number
    }

    /// Passes a text of [`keep_text`](Queue::keep_text) to `f`, if it is still kept.
    pub(crate) fn with_text<R>(&self, number: c_int, f: impl FnOnce(&CString) -> R) -> Option<R> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let found = texts.iter().find(|text| text.0 == number);
        found.map(|text| f(&text.1))
    }
}

/// Returns the error of libfabric for one of a request.
pub(crate) fn errno(error: &Error) -> c_int {
    match error {
        Error::Cancelled | Error::Closed => ECANCELED,
        Error::PeerFailed { error, .. } => match error {
            p2p::PeerError::Left | p2p::PeerError::Gone | p2p::PeerError::Lost(_) => ENOTCONN,
            p2p::PeerError::Died | p2p::PeerError::Violation(_) => EIO,
        },
        Error::Refused(Refusal::UnknownKey | Refusal::NotAllowed) => EACCES,
        Error::Refused(_) => EINVAL,
        _ => EIO,
    }
}

/// A counter.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    pub(crate) value: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) sources: Sources,
    waiting: AtomicU32,
}

impl Counter {
    pub(crate) fn count(&self, error: bool) {
        let which = if error { &self.errors } else { &self.value };
        which.fetch_add(1, Ordering::SeqCst);
    }

    /// Wakes threads that wait.
    pub(crate) fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.sources.wake();
        }
    }

    /// Waits until the value is at least `threshold`, or an error was counted. Returns false at the
    /// deadline.
    pub(crate) fn wait(&self, threshold: u64, deadline: Option<Instant>) -> bool {
        let errors = self.errors.load(Ordering::SeqCst);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let done = || {
            self.value.load(Ordering::SeqCst) >= threshold
                || self.errors.load(Ordering::SeqCst) != errors
        };
        let reached = self.sources.wait(deadline, &done);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        reached
    }
}
