//! Requests whose replies are ignored, most of which close something.
//!
//! Slots and numbers of listeners are valid for one connection: at the next daemon they may denote
//! other objects.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use super::call::Answer;
use super::connection::{Calls, Session};
use crate::control::{Reply, Request};
use crate::sync::{Waiting, lock};

/// Returns true for requests about leases, which fail or have no object at the next daemon.
pub(super) fn is_of_lease(request: &Request) -> bool {
    matches!(
        request,
        Request::Lease { .. }
            | Request::Standby { .. }
            | Request::Adopt { .. }
            | Request::LeaseConnection { .. }
            | Request::EndLease { .. }
    )
}

impl Session {
    /// Sends a request whose reply is ignored.
    pub(crate) fn post(&self, request: Request) {
        let calls = lock(&self.calls);
        self.post_with(calls, vec![request]);
    }

    /// Sends a request about an object that a connection of this session granted, unless the
    /// connection has ended: at the next daemon the number may denote another object. The reply is
    /// ignored.
    pub(super) fn post_to(&self, connection: u64, request: Request) {
        let calls = lock(&self.calls);
        if self.lost.load(Ordering::Relaxed) == connection {
            self.post_with(calls, vec![request]);
        }
    }

    /// Sends the requests that release a slot, if this owner still has it; not in a forked child,
    /// which shares its parent's memory. The replies are ignored.
    pub(crate) fn release(&self, slot: u16, owner: &Arc<Waiting>, requests: Vec<Request>) {
        if self.is_forked() {
            return;
        }
        let calls = lock(&self.calls);
        let mut slots = lock(&self.slots);
        let held = slots.get_mut(&slot);
        let Some(held) = held.filter(|held| Arc::ptr_eq(&held.socket.waiting, owner)) else {
            return;
        };
        if self.waiting.load(Ordering::Relaxed) {
            // The next daemon delivers the written bytes.
            held.closing = true;
        } else {
            slots.remove(&slot);
        }
        drop(slots);
        self.post_with(calls, requests);
    }

    /// Sends requests to the daemon that serves while `calls` is locked, or to the next.
    pub(super) fn post_with(&self, calls: MutexGuard<'_, Calls>, requests: Vec<Request>) {
        if self.waiting.load(Ordering::Relaxed) {
            // The next daemon does not have these leases.
            let outlast = requests.into_iter().filter(|request| !is_of_lease(request));
            return lock(&self.posts).extend(outlast);
        }
        let daemon = self.daemon();
        drop(calls);
        let Some(daemon) = daemon.filter(|_| self.check().is_ok()) else {
            return;
        };
        for request in requests {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            // Fails only if the daemon is gone, and the object of the request with it.
            let _ = self.send(&daemon, id, &request);
        }
    }

    /// Returns the grant of an unwanted reply to the daemon.
    pub(crate) fn give_back(&self, answer: &Answer) {
        let post = |request| self.post_to(answer.connection, request);
        match answer.reply {
            Reply::Stream { slot, .. } => {
                post(Request::Abort { slot });
                post(Request::Close { slot });
            }
            Reply::Edp { slot, .. } => post(Request::CloseEdp { slot }),
            Reply::Lease { lease, .. } => post(Request::EndLease { lease }),
            Reply::Listening { listener, .. } => post(Request::CloseListener { listener }),
            _ => {}
        }
    }
}
