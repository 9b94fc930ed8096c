//! State of an endpoint, and its progress.
//!
//! The layer's lock is taken first, then that of the operations or of a queue, because
//! `completions` are reported with the layer's lock held.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use job::endpoint::OpenEndpoint;
use p2p::{Completion, Endpoint, Rank, RequestId};
use shmem::Yielder;

use crate::completions::REMOTE;
use crate::ffi::*;
use crate::memory::Regions;
use crate::operations::{Kind, Multi, Operation, Operations};
use crate::peers::Map;
use crate::queue::{Counter, NAP, Queue};
use crate::vector::{Name, padded};
use crate::wakeups::Wakeups;

/// Number of consecutive empty polls after which the thread yields its core once: another process
/// may have to run before there is an event. A program on a core of its own loses a few nanoseconds
/// per poll.
const POLLS_PER_YIELD: u32 = 64;
/// Maximum sleep on a core on which another process computes. Messages of the program's other
/// transports are delayed by at most this time.
const MAX_SLEEP: Duration = Duration::from_micros(200);

/// Objects to which an enabled endpoint is bound.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    pub(crate) tx: Option<Arc<Queue>>,
    pub(crate) rx: Option<Arc<Queue>>,
    /// Only operations with `FI_COMPLETION` are reported.
    pub(crate) tx_selective: bool,
    pub(crate) rx_selective: bool,
    pub(crate) counters: Vec<(Arc<Counter>, u64)>,
}

/// State of an endpoint.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) open: OnceLock<OpenEndpoint>,
    pub(crate) bound: OnceLock<Bound>,
    pub(crate) operations: Mutex<Operations>,
    pub(crate) map: RwLock<Map>,
    /// Names that were inserted before the endpoint was enabled, by address.
    pub(crate) early: Mutex<Vec<(u64, Name)>>,
    pub(crate) deferred: Mutex<VecDeque<(Kind, Completion)>>,
    pub(crate) has_deferred: AtomicBool,
    /// Held by the thread that does the deferred work, so that parts of a multi-receive buffer are
    /// reported in order. Never taken with the layer's lock held.
    pub(crate) deferring: Mutex<()>,
    /// Multi-receive buffers, so that one can be cancelled even between two messages.
    pub(crate) multis: Mutex<Vec<Weak<Multi>>>,
    pub(crate) claims: Mutex<HashMap<usize, u64>>,
    pub(crate) minimum: AtomicUsize,
    pub(crate) directed: bool,
    /// Registrations of the domain.
    pub(crate) regions: Arc<Regions>,
    /// Number of the program's calls that made progress.
    calls: AtomicU64,
    /// Number of calls without an event since the last event or yield. Threads that poll at the
    /// same time may lose a count, which does no harm.
    empty_polls: AtomicU32,
    yielder: Yielder,
    /// Wake-ups of the threads and programs that sleep until there is progress to be made.
    wakeups: RwLock<Vec<Arc<Wakeups>>>,
    has_wakeups: AtomicBool,
}

impl Core {
    pub(crate) fn new(directed: bool, regions: Arc<Regions>) -> Core {
        Core {
            regions,
            calls: AtomicU64::new(0),
            empty_polls: AtomicU32::new(0),
            yielder: Yielder::new(),
            wakeups: RwLock::default(),
            has_wakeups: AtomicBool::new(false),
            open: OnceLock::new(),
            bound: OnceLock::new(),
            operations: Mutex::default(),
            map: RwLock::default(),
            early: Mutex::default(),
            deferred: Mutex::default(),
            has_deferred: AtomicBool::new(false),
            deferring: Mutex::default(),
            multis: Mutex::default(),
            claims: Mutex::default(),
            minimum: AtomicUsize::new(64),
            directed,
        }
    }

    /// Enables the endpoint.
    pub(crate) fn enable(&self, open: OpenEndpoint, bound: Bound) -> Result<(), c_int> {
        let counts_remote = |counter: &(Arc<Counter>, u64)| counter.1 & REMOTE != 0;
        if bound.counters.iter().any(counts_remote) {
            open.endpoint.report_accesses();
        }
        self.bound.set(bound).map_err(|_| -FI_EOPBADSTATE)?;
        self.open.set(open).map_err(|_| -FI_EOPBADSTATE)?;
        let early = std::mem::take(&mut *lock(&self.early));
        for (address, name) in early {
            self.learn(address, &name);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn layer(&self) -> Result<&Endpoint, c_int> {
        let open = self.open.get().ok_or(-FI_EOPBADSTATE)?;
        Ok(&open.endpoint)
    }

    pub(crate) fn name(&self) -> Result<Name, c_int> {
        let open = self.open.get().ok_or(-FI_EOPBADSTATE)?;
        Ok(padded(&open.name))
    }

    /// Starts an operation. Returns -FI_EAGAIN if too many are under way.
    pub(crate) fn begin(&self, operation: Operation) -> Result<u64, c_int> {
        lock(&self.operations).insert(operation).ok_or(-EAGAIN)
    }

    /// Checks whether an operation with these flags may start: one with a fence may once all
    /// operations to its peer are complete. Returns -FI_EAGAIN until then. The program tries again,
    /// and starts all later operations after it.
    #[inline]
    pub(crate) fn pass_fence(&self, flags: u64, peer: Rank) -> Result<(), c_int> {
        if flags & FI_FENCE == 0 {
            return Ok(());
        }
        self.make_progress();
        if lock(&self.operations).has_any_to(peer) {
            return Err(-EAGAIN);
        }
        Ok(())
    }

    /// Stores the request of an operation, by which it can be cancelled, unless the operation is
    /// complete.
    pub(crate) fn note(&self, number: u64, request: RequestId) {
        if let Some(operation) = lock(&self.operations).get_mut(number) {
            operation.request = Some(request);
        }
    }

    /// Cancels a receive. If a message is filling a multi-receive buffer, it is the buffer's last
    /// message.
    pub(crate) fn cancel(&self, context: usize) -> Result<(), c_int> {
        self.layer()?;
        let request = lock(&self.operations).find(context);
        if let Some(request) = request {
            self.cancel_request(request);
        } else if let Some(multi) = self.multi_with(context) {
            multi.cancelled.store(true, Ordering::SeqCst);
            self.cancel_rest(&multi);
        } else {
            return Ok(());
        }
        self.progress();
        Ok(())
    }

    /// Returns the multi-receive buffer with this context, unless it was cancelled.
    fn multi_with(&self, context: usize) -> Option<Arc<Multi>> {
        let multis = lock(&self.multis);
        let mut all = multis.iter().filter_map(Weak::upgrade);
        all.find(|one| one.context == context && !one.cancelled.load(Ordering::SeqCst))
    }

    /// Cancels the receive into the rest of a buffer, if it is posted.
    pub(crate) fn cancel_rest(&self, multi: &Arc<Multi>) {
        let request = lock(&self.operations).find_rest(multi);
        if let Some(request) = request {
            self.cancel_request(request);
        }
    }

    fn cancel_request(&self, request: RequestId) {
        if let Ok(layer) = self.layer() {
            // A completed request is reported as completed.
            let _ = layer.cancel(request);
        }
    }

    /// Makes progress for the program, and reports completed requests.
    pub(crate) fn progress(&self) {
        let events = self.make_progress();
        if self.has_wakeups.load(Ordering::Acquire) {
            self.calls.fetch_add(1, Ordering::SeqCst);
            self.ring();
        }
        self.let_others_run(events);
    }

    /// Yields the core after [`POLLS_PER_YIELD`] consecutive polls without events, or sleeps until
    /// there is an event if another process computes on it. The caller holds no lock.
    #[inline]
    fn let_others_run(&self, events: usize) {
        if events != 0 {
            return self.empty_polls.store(0, Ordering::Relaxed);
        }
        let count = self.empty_polls.load(Ordering::Relaxed) + 1;
        self.empty_polls
            .store(count % POLLS_PER_YIELD, Ordering::Relaxed);
        if count < POLLS_PER_YIELD {
            return;
        }
        match self.layer() {
            Ok(layer) if self.yielder.is_contended() => layer.sleep(MAX_SLEEP),
            _ => self.yielder.yield_now(),
        }
    }

    /// Makes progress, and reports completed requests. Returns the number of events.
    pub(crate) fn make_progress(&self) -> usize {
        let Ok(layer) = self.layer() else { return 0 };
        if self.is_full() {
            return 0;
        }
        let events = layer.poll(|completion| self.complete(completion));
        if self.has_deferred.load(Ordering::Acquire) {
            self.do_deferred();
        }
        events
    }

    /// Returns true if the queue holds the maximum number of entries for numbers that came with
    /// peers' writes. No other limit bounds these, so the endpoint makes no progress then.
    fn is_full(&self) -> bool {
        let queue = self.bound.get().and_then(|bound| bound.rx.as_ref());
        queue.is_some_and(|queue| queue.has_many_numbers())
    }

    /// Returns the number of the program's calls that made progress.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Adds wake-ups, which ring whenever a thread polls the layer: polling cancels requests for
    /// wake-ups.
    pub(crate) fn add_wakeups(&self, wakeups: &Arc<Wakeups>) {
        let mut all = self.wakeups.write().unwrap_or_else(PoisonError::into_inner);
        if !all.iter().any(|one| Arc::ptr_eq(one, wakeups)) {
            all.push(Arc::clone(wakeups));
        }
        self.has_wakeups.store(true, Ordering::Release);
    }

    /// Rings after a request was started, which may be complete already.
    pub(crate) fn started(&self) {
        if self.has_wakeups.load(Ordering::Acquire) {
            self.ring();
        }
    }

    fn ring(&self) {
        let all = self.wakeups.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().for_each(|one| one.ring());
    }

    /// Makes progress until `done` returns true, work is deferred, or the deadline has passed.
    /// Sleeps only for a short time while the queue of numbers of peers is full.
    pub(crate) fn wait(&self, deadline: Option<Instant>, done: &dyn Fn() -> bool) {
        let Ok(layer) = self.layer() else { return };
        if self.is_full() {
            return std::thread::sleep(NAP);
        }
        let report = |completion| self.complete(completion);
        let stop = || done() || self.has_deferred.load(Ordering::Acquire) || self.is_full();
        layer.wait(deadline, report, stop);
        self.do_deferred();
        self.started();
    }

    pub(crate) fn wake(&self) {
        if let Ok(layer) = self.layer() {
            layer.wake();
        }
    }
}

/// Locks a mutex, even a poisoned one: the data is consistent after every statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
