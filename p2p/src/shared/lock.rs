//! The locked engine and its release.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use super::{Inner, Shared};
use crate::engine::{Engine, State};
use crate::ids::{PeerId, TransportId};

/// The locked engine.
///
/// A panic that unwinds through it aborts the process while memory is lent: unwinding would free
/// buffers that requests, transports or peers still use.
pub(crate) struct Lock<'a> {
    pub(super) shared: &'a Shared,
    pub(super) inner: MutexGuard<'a, Inner>,
    /// The thread was already panicking when it took the lock.
    pub(super) unwinding: bool,
}

impl Deref for Lock<'_> {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        &self.inner.engine
    }
}

impl DerefMut for Lock<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.inner.engine
    }
}

impl Drop for Lock<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.unwinding && std::thread::panicking() {
            self.abort_if_lent();
        }
        if self.inner.others {
            self.wake();
        }
    }
}

impl<'a> Lock<'a> {
    #[inline]
    pub(super) fn new(shared: &'a Shared, inner: MutexGuard<'a, Inner>) -> Lock<'a> {
        let unwinding = std::thread::panicking();
        Lock {
            shared,
            inner,
            unwinding,
        }
    }

    /// Aborts the process if a request uses memory of the program.
    #[cold]
    fn abort_if_lent(&self) {
        if self.protocol.lends_memory() {
            eprintln!("p2p: panic while memory is lent to requests: aborting");
            std::process::abort();
        }
    }

    /// Polls the engine, see [`Engine::poll`].
    #[inline]
    pub(crate) fn poll(&mut self, hint: Option<TransportId>) -> usize {
        self.inner.engine.poll(hint)
    }

    /// Returns the transport that a request waits for, if there are several.
    #[inline]
    pub(crate) fn hint(&self, key: u64) -> Option<TransportId> {
        let request = self.protocol.requests.get(key)?;
        self.hint_for(request.peer.filter(|_| request.state != State::Complete))
    }

    /// Returns the transport that a receive from this peer waits for, if there are several.
    #[inline]
    pub(super) fn hint_for(&self, source: Option<PeerId>) -> Option<TransportId> {
        if self.transports.len() < 2 {
            return None;
        }
        match self.protocol.peers[source?].rails.as_slice() {
            [only] => Some(only.transport),
            _ => None,
        }
    }

    #[cold]
    fn wake(&mut self) {
        let inner = &mut *self.inner;
        let protocol = &inner.engine.protocol;
        let ended = protocol.ended != inner.ended_seen;
        inner.ended_seen = protocol.ended;
        // A poll cancels the wake-ups that the sleeper has armed.
        let touched = inner.engine.polls != inner.polls_seen;
        // A new one may find room at once.
        let added = protocol.polled() > inner.polled_seen;
        if inner.sleeper && (ended || touched || added) {
            // If the counter is full, the descriptor is readable as well.
            let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
            inner.polls_seen = inner.engine.polls;
            inner.polled_seen = inner.engine.protocol.polled();
        }
        if ended && inner.followers != 0 {
            self.shared.call_followers();
        }
    }
}
