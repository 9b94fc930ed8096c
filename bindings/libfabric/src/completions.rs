//! Passes completed requests of the layer on to queues and counters.
//!
//! The layer reports with its lock held. Work that needs the layer again, such as posting the rest
//! of a multi-receive buffer, is deferred until the lock has been released.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use p2p::{Completion, Ended};

use crate::core::{Core, lock};
use crate::ffi::*;
use crate::host;
use crate::operations::{Kind, Multi, Operation};
use crate::queue::{Entry, errno};

/// Flags of accesses of peers.
pub(crate) const REMOTE: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Flags that select the operations that a counter counts.
const COUNTED: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | REMOTE;

impl Core {
    /// Reports a completed request.
    pub(crate) fn complete(&self, completion: Completion) {
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

    pub(crate) fn do_deferred(&self) {
        let _one = lock(&self.deferring);
        while let Some((kind, completion)) = self.next_deferred() {
            match kind {
                Kind::Plain => {}
                Kind::Multi(multi) => self.complete_multi(&multi, &completion),
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

    /// Reports a completed operation to its queue and counters.
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
                let text = error.to_string();
                // Open MPI never reads the text of an error.
                if matches!(error, p2p::Error::PeerFailed { .. }) {
                    host::warn(&text);
                }
                self.report(entry, operation.wanted, Some(&text));
            }
        }
    }

    /// Adds an entry to its queue, and counts it. Errors are reported even if not `wanted`. Wakes
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

    fn complete_multi(&self, multi: &Arc<Multi>, completion: &Completion) {
        let used = multi.used.load(Ordering::Relaxed);
        let room = multi.length - used;
        let length = completion.length.min(room);
        let left = room - length;
        let mut operation = Operation::new(multi.context, FI_RECV | FI_MSG, multi.wanted);
        (operation.buffer, operation.room) = (multi.start + used, room);
        let good = completion.result.is_ok() && completion.length <= room;
        let has_room = left >= self.minimum.load(Ordering::Relaxed).max(1);
        let goes_on = good && has_room && !multi.cancelled.load(Ordering::SeqCst);
        if !goes_on {
            operation.flags |= FI_MULTI_RECV;
            operation.wanted = true;
        }
        multi.used.store(used + length, Ordering::Relaxed);
        // Post the rest first: the program may close the endpoint when it learns of this part.
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
        // It was cancelled before the rest was posted, so the canceller has not found the rest.
        if goes_on && multi.cancelled.load(Ordering::SeqCst) {
            self.cancel_rest(multi);
        }
        self.wake_readers(true);
    }
}
