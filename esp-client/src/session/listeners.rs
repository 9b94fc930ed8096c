//! Listeners of a session, which the next daemon opens again.

use std::sync::atomic::Ordering;

use super::connection::{CLOSED, Session};
use crate::control::Request;
use crate::error::EspError;
use crate::sync::lock;

/// A listener of this program.
pub(super) struct HeldListener {
    /// Request that opens it again; `None`: it has leases, with which the next daemon cannot open
    /// it.
    pub(super) request: Option<Request>,
    /// Its number at the daemon, or the reason why there is none.
    pub(super) at: Result<u64, EspError>,
    /// The program closed it while there was no daemon.
    pub(super) closing: bool,
}

/// First number of a listener in a session. Numbers of daemons are smaller.
const FIRST_LISTENER: u64 = 1 << 48;

impl Session {
    /// Registers a listener that a connection granted, and returns its number in this session.
    pub(crate) fn keep_listener(&self, request: Request, at: u64, connection: u64) -> u64 {
        let own = FIRST_LISTENER + self.next_id.fetch_add(1, Ordering::Relaxed);
        let held = HeldListener {
            request: Some(request),
            at: Ok(at),
            closing: false,
        };
        let mut listeners = lock(&self.listeners);
        let held = listeners.entry(own).insert_entry(held);
        if self.lost.load(Ordering::Relaxed) != connection {
            // The next daemon opens it, unless it has already opened the others.
            held.into_mut().at = Err(self.lost(CLOSED));
        }
        own
    }

    /// Records that a listener has leases, so that it ends with its daemon.
    pub(crate) fn bind_listener(&self, own: u64) {
        if let Some(held) = lock(&self.listeners).get_mut(&own) {
            held.request = None;
        }
    }

    /// Closes a listener.
    pub(crate) fn close_listener(&self, own: u64) {
        let calls = lock(&self.calls);
        let mut listeners = lock(&self.listeners);
        if self.waiting.load(Ordering::Relaxed) {
            // The next daemon may have opened it already.
            if let Some(held) = listeners.get_mut(&own) {
                held.closing = true;
            }
        } else if let Some(Ok(listener)) = listeners.remove(&own).map(|held| held.at) {
            drop(listeners);
            self.post_with(calls, vec![Request::CloseListener { listener }]);
        }
    }

    /// Removes the listeners that the program closed while there was no daemon. Returns the
    /// requests that close those that the next one has opened.
    pub(super) fn take_closing_listeners(&self) -> Vec<Request> {
        let mut listeners = lock(&self.listeners);
        let closing = listeners.extract_if(|_, held| held.closing);
        let opened = closing.filter_map(|(_, held)| held.at.ok());
        opened
            .map(|listener| Request::CloseListener { listener })
            .collect()
    }

    /// Returns the request with the current number of its listener.
    pub(super) fn translate(&self, request: &Request) -> Result<Request, EspError> {
        let mut request = request.clone();
        if let Request::Accept { listener, .. }
        | Request::Lease {
            listener: Some(listener),
            ..
        } = &mut request
            && let Some(held) = lock(&self.listeners).get(listener)
        {
            *listener = held.at.clone()?;
        }
        Ok(request)
    }
}
