//! Put, get and atomic operations as messages, which the peer's component executes while its
//! program is in an MPI call.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::endpoint::Endpoint;
use crate::header::{FOUR_BYTES, Header, Target};
use crate::memory::{self, ATOMIC, READ, REGIONS, WRITE};
use crate::queued::{Queued, Transfer};
use crate::runtime::{Fallback, Runtime, SendOutcome};

/// Number of times that this process releases its own locks between two polls, in which peers can
/// take them.
const UNLOCKS_PER_POLL: u32 = 8;

/// Kind of a pending operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Put,
    /// `received`: number of bytes that have arrived.
    Get {
        local: usize,
        length: u64,
        received: u64,
    },
    /// `result`: address for the previous value, or 0 for none.
    Atomic {
        result: usize,
        four_bytes: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    endpoint: Endpoint,
    kind: OperationKind,
    /// Address of a `struct esp_completion`.
    completion: usize,
}

/// Pending operations of this process, by number. Numbers are not reused.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    pending: Mutex<HashMap<u64, Operation>>,
    last: AtomicU64,
}

impl Operations {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Operation>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an operation on memory of a peer.
    pub(crate) fn add(
        &self,
        endpoint: Endpoint,
        kind: OperationKind,
        completion: usize,
        key: u64,
        address: u64,
    ) -> Target {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let operation = Operation {
            endpoint,
            kind,
            completion,
        };
        self.lock().insert(number, operation);
        Target {
            operation: number,
            key,
            address,
        }
    }

    fn take(&self, number: u64, endpoint: Endpoint) -> Option<Operation> {
        let mut pending = self.lock();
        let is_mine = pending.get(&number)?.endpoint == endpoint;
        is_mine.then(|| pending.remove(&number)).flatten()
    }

    /// Removes an operation and returns its completion.
    fn remove(&self, number: u64) -> Option<usize> {
        let removed = self.lock().remove(&number);
        removed.map(|operation| operation.completion)
    }

    /// Removes all operations of a lost endpoint and returns their completions.
    pub(crate) fn take_all(&self, endpoint: Endpoint) -> Vec<usize> {
        let mut pending = self.lock();
        let lost = pending.extract_if(|_, operation| operation.endpoint == endpoint);
        lost.map(|(_, operation)| operation.completion).collect()
    }

    /// Returns the destination of received bytes of a get, and its completion if they are the last
    /// ones; `None` if they are not the next bytes of a get from this endpoint.
    fn receive(
        &self,
        number: u64,
        endpoint: Endpoint,
        offset: u64,
        length: u64,
        last: bool,
    ) -> Option<(usize, Option<usize>)> {
        let mut pending = self.lock();
        let operation = pending.get_mut(&number)?;
        if operation.endpoint != endpoint {
            return None;
        }
        let OperationKind::Get {
            local,
            length: whole,
            received,
        } = &mut operation.kind
        else {
            return None;
        };
        let left = *whole - *received;
        if offset != *received || length > left || last != (length == left) {
            return None;
        }
        let address = *local + usize::try_from(*received).ok()?;
        *received += length;
        let finished = if last { pending.remove(&number) } else { None };
        Some((address, finished.map(|operation| operation.completion)))
    }
}

impl Runtime {
    /// Starts a put. Returns true if it was started, in which case its completion is called.
    pub(crate) fn put(
        &self,
        endpoint: Endpoint,
        local: usize,
        remote: u64,
        key: u64,
        length: usize,
        completion: usize,
    ) -> bool {
        if self.is_own(endpoint) {
            // SAFETY: Open MPI guarantees that `local` is readable; the region is writable.
            let copy = |to| unsafe { memory::copy(local, to, length) };
            let copied = self.in_own_memory(key, remote, length as u64, WRITE, copy);
            self.complete(completion, copied.is_some());
            return true;
        }
        let kind = OperationKind::Put;
        let target = self.operations.add(endpoint, kind, completion, key, remote);
        if length <= self.fragment_size() {
            let header = Header::Put { last: true, target };
            // SAFETY: Open MPI leaves the source readable until the put is complete.
            let body = [IoSlice::new(unsafe { memory::bytes(local, length) })];
            match self.send(endpoint, &header, &body, Fallback::Refuse) {
                SendOutcome::Complete => return true,
                SendOutcome::Incomplete => {}
                SendOutcome::Failed => {
                    return self.operations.take(target.operation, endpoint).is_none();
                }
            }
        }
        self.queue_transfer(endpoint, target, Some(local), length as u64);
        true
    }

    fn queue_transfer(
        &self,
        endpoint: Endpoint,
        target: Target,
        local: Option<usize>,
        length: u64,
    ) {
        let transfer = Transfer {
            target,
            local,
            length,
            sent: 0,
            fragment: self.fragment_size(),
        };
        if let Some(rail) = self.rail(endpoint) {
            let queued = Queued::Transfer(transfer);
            rail.transport.queue(endpoint.remote.0, queued);
        }
    }

    /// Starts a get. Returns true if it was started, in which case its completion is called.
    pub(crate) fn get(
        &self,
        endpoint: Endpoint,
        local: usize,
        remote: u64,
        key: u64,
        length: usize,
        completion: usize,
    ) -> bool {
        if self.is_own(endpoint) {
            // SAFETY: Open MPI guarantees that `local` is writable; the region is readable.
            let copy = |from| unsafe { memory::copy(from, local, length) };
            let copied = self.in_own_memory(key, remote, length as u64, READ, copy);
            self.complete(completion, copied.is_some());
            return true;
        }
        let length = length as u64;
        let kind = OperationKind::Get {
            local,
            length,
            received: 0,
        };
        let target = self.operations.add(endpoint, kind, completion, key, remote);
        self.send_request(endpoint, target.operation, &Header::Get { target, length })
    }

    /// Starts an atomic operation. Returns true if it was started, in which case its completion is
    /// called.
    #[allow(clippy::too_many_arguments)] // those of Open MPI
    pub(crate) fn atomic(
        &self,
        endpoint: Endpoint,
        result: usize,
        remote: u64,
        key: u64,
        operator: u8,
        operands: [u64; 2],
        completion: usize,
    ) -> bool {
        let four_bytes = operator & FOUR_BYTES != 0;
        if self.is_own(endpoint) {
            // SAFETY: Open MPI guarantees that the memory is readable and writable.
            let run = |at| unsafe { memory::atomic(at, operator, operands) };
            let size = if four_bytes { 4 } else { 8 };
            let value = self.in_own_memory(key, remote, size, ATOMIC, run).flatten();
            if let Some(value) = value {
                // SAFETY: Open MPI guarantees that `result` is null or writable.
                unsafe { memory::store(result, value, four_bytes) };
            }
            self.complete(completion, value.is_some());
            if result == 0 {
                self.poll_after_own_unlock();
            }
            return true;
        }
        let kind = OperationKind::Atomic { result, four_bytes };
        let target = self.operations.add(endpoint, kind, completion, key, remote);
        let header = Header::Atomic {
            operator,
            target,
            operands,
        };
        self.send_request(endpoint, target.operation, &header)
    }

    /// Fails an operation whose message cannot be delivered, because its peer is lost.
    pub(crate) fn fail_operation(&self, number: u64) {
        if let Some(completion) = self.operations.remove(number) {
            self.complete(completion, false);
        }
    }

    fn is_own(&self, endpoint: Endpoint) -> bool {
        endpoint.remote.process() == self.rank()
    }

    /// Calls `f` with an address of this process on behalf of its own program. With key 0, the
    /// memory is not registered, and Open MPI itself guarantees access.
    fn in_own_memory<R>(
        &self,
        key: u64,
        address: u64,
        length: u64,
        right: u32,
        f: impl FnOnce(usize) -> R,
    ) -> Option<R> {
        if key == 0 {
            return usize::try_from(address).ok().map(f);
        }
        REGIONS.with(key, address, length, right, f)
    }

    /// Polls after every [`UNLOCKS_PER_POLL`]-th time that this process releases a lock of its own,
    /// which is an atomic operation without a result.
    ///
    /// A process that takes and releases its own lock in a loop never waits, and would otherwise
    /// poll only while it holds the lock, so that no peer could take it. Polling each time would
    /// pass the lock on so often that throughput suffers.
    fn poll_after_own_unlock(&self) {
        let unlocks = self.own_unlocks.fetch_add(1, Ordering::Relaxed);
        if unlocks.is_multiple_of(UNLOCKS_PER_POLL) {
            self.poll();
        }
    }

    fn send_request(&self, endpoint: Endpoint, operation: u64, header: &Header) -> bool {
        match self.send(endpoint, header, &[], Fallback::Copy) {
            SendOutcome::Complete | SendOutcome::Incomplete => true,
            SendOutcome::Failed => self.operations.take(operation, endpoint).is_none(),
        }
    }

    /// Sends a reply, unless the peer is lost.
    fn reply_done(&self, endpoint: Endpoint, operation: u64, result: Option<u64>) {
        let header = Header::Done {
            refused: result.is_none(),
            operation,
            value: result.unwrap_or(0),
        };
        let _ = self.send(endpoint, &header, &[], Fallback::Copy);
    }

    /// Handles a message of a peer's component. Returns false if it violates the protocol.
    pub(crate) fn handle_onesided(&self, endpoint: Endpoint, header: Header, body: &[u8]) -> bool {
        match header {
            Header::Active { .. } => {}
            Header::Put { last, target: t } => {
                // SAFETY: `with` checks that a writable region contains these bytes.
                let fill = |at| unsafe { memory::fill(at, body) };
                let written = REGIONS.with(t.key, t.address, body.len() as u64, WRITE, fill);
                if last || written.is_none() {
                    self.reply_done(endpoint, t.operation, written.map(|()| 0));
                }
            }
            Header::Get { target, length } => {
                let Target { key, address, .. } = target;
                match REGIONS.with(key, address, length, READ, |_| ()) {
                    Some(()) => self.queue_transfer(endpoint, target, None, length),
                    None => self.reply_done(endpoint, target.operation, None),
                }
            }
            Header::Atomic {
                operator,
                target: t,
                operands,
            } => {
                let size = if operator & FOUR_BYTES != 0 { 4 } else { 8 };
                // SAFETY: `with` checks that a readable and writable region contains the value.
                let run = |at| unsafe { memory::atomic(at, operator, operands) };
                let value = REGIONS.with(t.key, t.address, size, ATOMIC, run);
                self.reply_done(endpoint, t.operation, value.flatten());
            }
            Header::Data {
                last,
                operation,
                offset,
            } => {
                let (all, length) = (&self.operations, body.len() as u64);
                let place = all.receive(operation, endpoint, offset, length, last);
                let Some((address, completion)) = place else {
                    return false;
                };
                // SAFETY: part of the destination of a pending get, which Open MPI keeps writable.
                unsafe { memory::fill(address, body) };
                if let Some(completion) = completion {
                    self.complete(completion, true);
                }
            }
            Header::Done {
                refused,
                operation,
                value,
            } => {
                // A put that was refused before its last fragment is reported twice.
                let Some(operation) = self.operations.take(operation, endpoint) else {
                    return refused;
                };
                if let OperationKind::Atomic { result, four_bytes } = operation.kind
                    && !refused
                {
                    // SAFETY: Open MPI keeps the result's place writable until the completion.
                    unsafe { memory::store(result, value, four_bytes) };
                }
                // A get is completed by its data; `Done` can only refuse it.
                let succeeded = !refused && !matches!(operation.kind, OperationKind::Get { .. });
                self.complete(operation.completion, succeeded);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::RemoteRail;
    use crate::ffi::SUCCESS;
    use crate::ffi::testing::Completion;

    fn endpoint(remote: u32) -> Endpoint {
        Endpoint {
            rail: 0,
            remote: RemoteRail(remote),
        }
    }

    #[test]
    fn only_the_next_bytes_of_a_get_are_accepted() {
        let operations = Operations::default();
        let kind = OperationKind::Get {
            local: 1000,
            length: 10,
            received: 0,
        };
        let number = operations.add(endpoint(3), kind, 77, 0, 0).operation;
        for (peer, offset, length, last) in [
            (4, 0, 5, false),
            (3, 1, 5, false),
            (3, 0, 11, true),
            (3, 0, 5, true),
            (3, 0, 10, false),
        ] {
            let place = operations.receive(number, endpoint(peer), offset, length, last);
            assert_eq!(place, None, "{peer} {offset} {length} {last}");
        }
        let receive = |number, offset, length, last| {
            operations.receive(number, endpoint(3), offset, length, last)
        };
        assert_eq!(receive(number + 1, 0, 5, false), None);
        assert_eq!(receive(number, 0, 4, false), Some((1000, None)));
        assert_eq!(receive(number, 4, 6, true), Some((1004, Some(77))));
        assert!(operations.take(number, endpoint(3)).is_none());
    }

    /// After the stop, the layers that started the operations no longer exist.
    #[test]
    fn nothing_is_completed_after_the_stop() {
        let runtime = Runtime::new();
        for (stopping, status) in [(false, Some(SUCCESS)), (true, None)] {
            runtime.stopping.store(stopping, Ordering::SeqCst);
            let completion = Completion::new();
            let add = |kind| {
                runtime
                    .operations
                    .add(endpoint(3), kind, completion.raw(), 0, 0)
            };
            let done = Header::Done {
                refused: false,
                operation: add(OperationKind::Put).operation,
                value: 0,
            };
            assert!(runtime.handle_onesided(endpoint(3), done, &[]));
            assert_eq!(completion.status(), status);
        }
    }

    #[test]
    fn a_lost_endpoint_ends_its_own_operations_only() {
        let operations = Operations::default();
        for (peer, completion) in [(1, 10), (2, 20), (1, 11)] {
            operations.add(endpoint(peer), OperationKind::Put, completion, 0, 0);
        }
        let mut ended = operations.take_all(endpoint(1));
        ended.sort_unstable();
        assert_eq!(ended, [10, 11]);
        let other_rail = Endpoint {
            rail: 1,
            ..endpoint(2)
        };
        assert!(operations.take_all(other_rail).is_empty());
        assert_eq!(operations.take_all(endpoint(2)), [20]);
        assert!(operations.take_all(endpoint(1)).is_empty());
    }
}
