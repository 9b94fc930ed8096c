//! An endpoint's inside: operations under way, and their completions.
//!
//! The layer's lock is taken first, then that of the operations or of a queue: completions are
//! reported with it held. What needs the layer again, such as posting the rest of a multi-receive
//! buffer, is deferred until it has been released.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use job::endpoint::OpenEndpoint;
use p2p::{Completion, Context, Ended, Endpoint, Rank, RequestId};

use crate::ffi::*;
use crate::memory::Regions;
use crate::queue::{Counter, Entry, Queue, errno};
use crate::vector::{Name, decode, padded};
use crate::wakeups::Wakeups;

/// Maximum number of operations under way.
const OPERATIONS: usize = 128 << 10;
/// Number of a peer that the layer does not know.
const UNKNOWN: Rank = Rank::MAX;

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

/// The kinds of operations.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A send or a receive.
    Plain,
    /// A receive into a part of a multi-receive buffer.
    Multi(Arc<Multi>),
}

/// A multi-receive buffer.
#[derive(Debug)]
pub(crate) struct Multi {
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) used: AtomicUsize,
    pub(crate) pattern: p2p::Pattern,
    pub(crate) context: usize,
    pub(crate) wanted: bool,
}

/// An operation under way.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) context: usize,
    /// Flags of its completion.
    pub(crate) flags: u64,
    /// Its completion is reported.
    pub(crate) wanted: bool,
    pub(crate) kind: Kind,
    pub(crate) buffer: usize,
    pub(crate) room: usize,
    /// The bytes of an injected or gathered send, or those to be scattered.
    pub(crate) owned: Option<Vec<u8>>,
    pub(crate) scatter: Vec<(usize, usize)>,
    pub(crate) request: Option<RequestId>,
}

impl Operation {
    pub(crate) fn new(context: usize, flags: u64, wanted: bool) -> Operation {
        Operation {
            context,
            flags,
            wanted,
            kind: Kind::Plain,
            buffer: 0,
            room: 0,
            owned: None,
            scatter: Vec::new(),
            request: None,
        }
    }
}

/// Operations by number. The upper half is a generation.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    places: Vec<(u32, Option<Operation>)>,
    free: Vec<u32>,
}

impl Operations {
    pub(crate) fn insert(&mut self, operation: Operation) -> Option<u64> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.places.len() < OPERATIONS => {
                self.places.push((1, None));
                u32::try_from(self.places.len() - 1).ok()?
            }
            None => return None,
        };
        let place = self.places.get_mut(at as usize)?;
        place.1 = Some(operation);
        Some(u64::from(place.0) << 32 | u64::from(at))
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Operation> {
        let place = self.places.get_mut(number as u32 as usize)?;
        let same = place.0 == (number >> 32) as u32;
        place.1.as_mut().filter(|_| same)
    }

    pub(crate) fn take(&mut self, number: u64) -> Option<Operation> {
        self.get_mut(number)?;
        let at = number as u32;
        let place = self.places.get_mut(at as usize)?;
        place.0 = place.0.wrapping_add(1).max(1);
        self.free.push(at);
        place.1.take()
    }

    fn find(&self, context: usize) -> Option<RequestId> {
        let all = self.places.iter().filter_map(|place| place.1.as_ref());
        let mut receives = all.filter(|one| one.flags & FI_RECV != 0 && one.context == context);
        receives.find_map(|one| one.request)
    }
}

/// An operation that the layer has refused, and its failure.
type Refused = (Operation, Completion);

/// Numbers of addresses in the layer, and the reverse.
#[derive(Debug, Default)]
struct Map {
    peers: Vec<Rank>,
    addresses: Vec<u64>,
}

/// The inside of an endpoint.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) open: OnceLock<OpenEndpoint>,
    pub(crate) bound: OnceLock<Bound>,
    pub(crate) operations: Mutex<Operations>,
    map: RwLock<Map>,
    /// Names that were inserted before the endpoint was enabled, by address.
    early: Mutex<Vec<(u64, Name)>>,
    deferred: Mutex<VecDeque<(Kind, Completion)>>,
    has_deferred: AtomicBool,
    /// Held by the thread that does what was deferred, so that parts of a multi-receive buffer are
    /// reported in order. Never taken with the layer's lock held.
    deferring: Mutex<()>,
    pub(crate) claims: Mutex<HashMap<usize, u64>>,
    pub(crate) minimum: AtomicUsize,
    pub(crate) directed: bool,
    /// Registrations of the domain.
    pub(crate) regions: Arc<Regions>,
    /// Number of the program's calls that made progress.
    calls: AtomicU64,
    /// Threads and programs that sleep until there is progress to be made.
    wakeups: RwLock<Vec<Arc<Wakeups>>>,
    has_wakeups: AtomicBool,
}

impl Core {
    pub(crate) fn new(directed: bool, regions: Arc<Regions>) -> Core {
        Core {
            regions,
            calls: AtomicU64::new(0),
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

    /// Declares the peer of an address that was inserted.
    pub(crate) fn learn(&self, address: u64, name: &Name) {
        let Ok(layer) = self.layer() else {
            lock(&self.early).push((address, *name));
            return;
        };
        let peer = decode(name).and_then(|(identity, addresses)| {
            // The own name in another form is still the own endpoint.
            layer.add_peer(identity, addresses).ok()
        });
        let Some(peer) = peer else { return };
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let Ok(place) = usize::try_from(address) else {
            return;
        };
        if map.peers.len() <= place {
            map.peers.resize(place + 1, UNKNOWN);
        }
        map.peers[place] = peer;
        if map.addresses.len() <= peer as usize {
            map.addresses.resize(peer as usize + 1, FI_ADDR_UNSPEC);
        }
        if map.addresses[peer as usize] == FI_ADDR_UNSPEC {
            map.addresses[peer as usize] = address;
        }
    }

    /// Forgets an address that was removed. Another one of the peer becomes its source.
    pub(crate) fn forget(&self, address: u64) {
        lock(&self.early).retain(|early| early.0 != address);
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let place = usize::try_from(address).unwrap_or(usize::MAX);
        let Some(known) = map.peers.get_mut(place) else {
            return;
        };
        let peer = std::mem::replace(known, UNKNOWN);
        if map.addresses.get(peer as usize) == Some(&address) {
            let other = map.peers.iter().position(|known| *known == peer);
            map.addresses[peer as usize] = other.map_or(FI_ADDR_UNSPEC, |other| other as u64);
        }
    }

    /// Returns the peer of an address.
    #[inline]
    pub(crate) fn peer(&self, address: u64) -> Result<Rank, c_int> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let place = usize::try_from(address).unwrap_or(usize::MAX);
        let peer = map.peers.get(place).copied();
        peer.filter(|peer| *peer != UNKNOWN).ok_or(-EINVAL)
    }

    pub(crate) fn address(&self, peer: Rank) -> u64 {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let known = map.addresses.get(peer as usize).copied();
        known.unwrap_or(FI_ADDR_UNSPEC)
    }

    /// Starts an operation. -FI_EAGAIN: too many are under way.
    pub(crate) fn begin(&self, operation: Operation) -> Result<u64, c_int> {
        lock(&self.operations).insert(operation).ok_or(-EAGAIN)
    }

    /// Notes the request of an operation, unless it is over, to be cancelled by it.
    pub(crate) fn note(&self, number: u64, request: RequestId) {
        if let Some(operation) = lock(&self.operations).get_mut(number) {
            operation.request = Some(request);
        }
    }

    pub(crate) fn cancel(&self, context: usize) -> Result<(), c_int> {
        let layer = self.layer()?;
        let request = lock(&self.operations).find(context);
        if let Some(request) = request {
            // One that is over is reported as such.
            let _ = layer.cancel(request);
            self.progress();
        }
        Ok(())
    }

    /// Makes progress for the program, and reports what is over.
    pub(crate) fn progress(&self) {
        self.make_progress();
        if self.has_wakeups.load(Ordering::Acquire) {
            self.calls.fetch_add(1, Ordering::SeqCst);
            self.ring();
        }
    }

    /// Makes progress, and reports what is over. Returns the number of events.
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

    /// Returns true if the queue of numbers of peers is full. No other limit bounds them, so no
    /// more are accepted then.
    fn is_full(&self) -> bool {
        let queue = self.bound.get().and_then(|bound| bound.rx.as_ref());
        queue.is_some_and(|queue| queue.has_many_numbers())
    }

    /// Returns the number of the program's calls that made progress.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Rings whenever a thread polls the layer, which cancels requests for wake-ups.
    pub(crate) fn add_wakeups(&self, wakeups: &Arc<Wakeups>) {
        let mut all = self.wakeups.write().unwrap_or_else(PoisonError::into_inner);
        if !all.iter().any(|one| Arc::ptr_eq(one, wakeups)) {
            all.push(Arc::clone(wakeups));
        }
        self.has_wakeups.store(true, Ordering::Release);
    }

    /// Rings after a request was started, which may be over already.
    pub(crate) fn started(&self) {
        if self.has_wakeups.load(Ordering::Acquire) {
            self.ring();
        }
    }

    fn ring(&self) {
        let all = self.wakeups.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().for_each(|one| one.ring());
    }

    /// Waits until `over` returns true or the deadline has passed, at least for one event.
    pub(crate) fn wait(&self, deadline: Option<Instant>, over: &dyn Fn() -> bool) {
        let Ok(layer) = self.layer() else { return };
        let report = |completion| self.complete(completion);
        let stop = || over() || self.has_deferred.load(Ordering::Acquire);
        layer.wait(deadline, report, stop);
        self.do_deferred();
        self.started();
    }

    pub(crate) fn wake(&self) {
        if let Ok(layer) = self.layer() {
            layer.wake();
        }
    }

    /// Reports a request that is over.
    fn complete(&self, completion: Completion) {
        if let Ended::Served { .. } = completion.ended {
            return self.served(&completion);
        }
        let Some(operation) = lock(&self.operations).take(completion.cookie) else {
            return;
        };
        match operation.kind {
            Kind::Plain => self.finish(&operation, &completion),
            kind => {
                lock(&self.deferred).push_back((kind, completion));
                self.has_deferred.store(true, Ordering::Release);
            }
        }
    }

    fn do_deferred(&self) {
        let _one = lock(&self.deferring);
        while let Some((kind, completion)) = self.next_deferred() {
            match kind {
                Kind::Plain => {}
                Kind::Multi(multi) => self.multi_over(&multi, &completion),
            }
        }
    }

    fn next_deferred(&self) -> Option<(Kind, Completion)> {
        let mut deferred = lock(&self.deferred);
        let next = deferred.pop_front();
        if next.is_none() {
            self.has_deferred.store(false, Ordering::Release);
        }
        next
    }

    /// Reports an operation that is over to its queue and counters.
    pub(crate) fn finish(&self, operation: &Operation, completion: &Completion) {
        let receives = operation.flags & FI_RECV != 0;
        let length = completion.length.min(operation.room);
        let fills = receives || operation.flags & FI_READ != 0;
        let arrived = fills && completion.result.is_ok();
        if let Some(owned) = operation.owned.as_ref().filter(|_| arrived) {
            crate::transfer::scatter(&operation.scatter, owned, length);
        }
        let mut entry = Entry {
            context: operation.context,
            flags: operation.flags,
            length,
            buffer: operation.buffer,
            data: completion.data.unwrap_or(0),
            tag: completion.tag,
            ..Entry::EMPTY
        };
        if receives {
            entry.source = completion
                .peer
                .map_or(FI_ADDR_UNSPEC, |peer| self.address(peer));
            if completion.data.is_some() {
                entry.flags |= FI_REMOTE_CQ_DATA;
            }
            if completion.length > operation.room {
                entry.error = FI_ETRUNC;
                entry.excess = completion.length - operation.room;
            }
        } else {
            (entry.length, entry.data) = (0, 0);
        }
        match &completion.result {
            Ok(()) => self.report(entry, operation.wanted, None),
            Err(error) => {
                entry.error = errno(error);
                entry.length = 0;
                self.report(entry, operation.wanted, Some(&error.to_string()));
            }
        }
    }

    /// Adds an entry to its queue, and counts it. Errors are reported though not `wanted`. Wakes
    /// no thread: that takes the layer's lock, which the caller may hold.
    pub(crate) fn report(&self, mut entry: Entry, wanted: bool, text: Option<&str>) {
        let Some(bound) = self.bound.get() else {
            return;
        };
        let receives = entry.flags & (FI_RECV | REMOTE) != 0;
        let queue = if receives { &bound.rx } else { &bound.tx };
        for (counter, flags) in &bound.counters {
            if entry.flags & flags & COUNTED != 0 {
                counter.count(entry.error != 0);
            }
        }
        if let Some(queue) = queue.as_ref().filter(|_| wanted || entry.error != 0) {
            if let Some(text) = text {
                entry.text = queue.keep_text(text);
            }
            queue.push(entry);
            if let Some(wakeups) = &queue.wakeups {
                wakeups.ring();
            }
        }
    }

    /// Wakes threads that wait for a queue or counter, after [`report`](Core::report) without the
    /// layer's lock.
    #[inline]
    pub(crate) fn wake_readers(&self, receives: bool) {
        let Some(bound) = self.bound.get() else {
            return;
        };
        if let Some(queue) = if receives { &bound.rx } else { &bound.tx } {
            queue.wake();
        }
        for (counter, _) in &bound.counters {
            counter.wake();
        }
    }

    fn multi_over(&self, multi: &Arc<Multi>, completion: &Completion) {
        let used = multi.used.load(Ordering::Relaxed);
        let room = multi.length - used;
        let length = completion.length.min(room);
        let left = room - length;
        let mut operation = Operation::new(multi.context, FI_RECV | FI_MSG, multi.wanted);
        (operation.buffer, operation.room) = (multi.start + used, room);
        let good = completion.result.is_ok() && completion.length <= room;
        let goes_on = good && left >= self.minimum.load(Ordering::Relaxed).max(1);
        if !goes_on {
            operation.flags |= FI_MULTI_RECV;
            operation.wanted = true;
        }
        multi.used.store(used + length, Ordering::Relaxed);
        // The rest first: the program may close the endpoint when it learns of this part.
        let posted = if goes_on {
            self.post_rest(multi)
        } else {
            Ok(None)
        };
        if posted.is_err() {
            operation.flags |= FI_MULTI_RECV;
            operation.wanted = true;
        }
        self.finish(&operation, completion);
        if let Ok(Some(refused)) = posted {
            self.finish(&refused.0, &refused.1);
        }
        self.wake_readers(true);
    }

    /// Posts a multi-receive buffer.
    pub(crate) fn post_multi(&self, multi: &Arc<Multi>) -> Result<(), c_int> {
        let refused = self.post_rest(multi)?;
        self.finish_refused(refused);
        Ok(())
    }

    /// Posts a receive into the unused part of a multi-receive buffer.
    fn post_rest(&self, multi: &Arc<Multi>) -> Result<Option<Refused>, c_int> {
        let used = multi.used.load(Ordering::Relaxed);
        let (at, room) = (multi.start + used, multi.length - used);
        let mut operation = Operation::new(multi.context, FI_RECV | FI_MSG, multi.wanted);
        operation.kind = Kind::Multi(Arc::clone(multi));
        (operation.buffer, operation.room) = (at, room);
        self.try_post(operation, (at, room), &multi.pattern)
    }

    /// Posts a receive. An error that belongs to the peer is reported as a completion.
    pub(crate) fn post(
        &self,
        operation: Operation,
        (at, room): (usize, usize),
        pattern: &p2p::Pattern,
    ) -> Result<(), c_int> {
        let refused = self.try_post(operation, (at, room), pattern)?;
        self.finish_refused(refused);
        Ok(())
    }

    /// Posts a receive. Returns one that failed with its peer.
    fn try_post(
        &self,
        operation: Operation,
        (at, room): (usize, usize),
        pattern: &p2p::Pattern,
    ) -> Result<Option<Refused>, c_int> {
        let layer = self.layer()?;
        let number = self.begin(operation)?;
        let at = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: the program lends the memory until the completion is reported, see libfabric.
        match unsafe { layer.recv(at, room, pattern, number) } {
            Ok(request) => {
                self.note(number, request);
                self.started();
                Ok(None)
            }
            Err(error) => self.refused(number, &error).map(Some),
        }
    }

    /// Reports an operation that the layer has refused.
    pub(crate) fn failed_at_once(&self, number: u64, error: &p2p::Error) -> Result<(), c_int> {
        let refused = self.refused(number, error)?;
        self.finish_refused(Some(refused));
        Ok(())
    }

    /// Takes back an operation that the layer has refused, to be reported if its peer has failed.
    fn refused(&self, number: u64, error: &p2p::Error) -> Result<Refused, c_int> {
        let mut operation = lock(&self.operations).take(number).ok_or(-EIO)?;
        if let Kind::Multi(_) = operation.kind {
            operation.flags |= FI_MULTI_RECV;
        }
        if !matches!(error, p2p::Error::PeerFailed { .. }) {
            return Err(-EINVAL);
        }
        let completion = Completion {
            cookie: number,
            ended: Ended::Sent,
            peer: None,
            context: Context::ALL[0],
            tag: 0,
            data: None,
            length: 0,
            result: Err(error.clone()),
        };
        Ok((operation, completion))
    }

    fn finish_refused(&self, refused: Option<Refused>) {
        if let Some((operation, completion)) = refused {
            self.finish(&operation, &completion);
            self.wake_readers(operation.flags & FI_RECV != 0);
        }
    }
}

/// Flags of accesses of peers.
const REMOTE: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Flags that select what a counter counts.
const COUNTED: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | REMOTE;

/// Locks a mutex. What it guards is consistent after every statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
