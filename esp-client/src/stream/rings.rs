//! [`StreamRings`]: the two rings of a stream, its waits and its end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use esp_engine::shm::{Region, RxConsumer, RxView, Spin, StreamState, TxProducer, Wake};

use super::close_error::close_error;
use crate::blocking::Blocking;
use crate::client::Client;
use crate::control::{Reply, Request};
use crate::error::{EspError, PeerName};
use crate::lease::{FIRST_LEASED_SLOT, LeasedStream, Opened};
use crate::region::{Waiting, open_region};
use crate::session::Answer;
use crate::sync::lock;

/// Event that [`EspStream::arm`](crate::EspStream::arm) requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Bytes can be read, or the end of the stream.
    Readable,
    /// A quarter of the send ring is free, or all written bytes are acknowledged.
    Writable,
    /// The connection is established or closed.
    State,
}

/// A stream's shared state, with the blocking, polled and async operations that the public types
/// offer.
pub(crate) struct StreamRings {
    pub(crate) client: Client,
    /// Slot at the daemon's engine or, with `lease`, at the embedded one.
    slot: u16,
    pub(super) lease: Option<LeasedStream>,
    pub(super) tx: Mutex<TxProducer>,
    pub(super) rx: Mutex<RxConsumer>,
    /// Position of the receive ring, for waits that hold the engine: a thread that holds `rx` may
    /// be waiting for it.
    pub(super) arrived: RxView,
    pub(super) waiting: Arc<Waiting>,
    pub(crate) interface: String,
    pub(crate) local_port: u16,
    pub(crate) peer: PeerName,
    pub(super) spin: Spin,
    pub(crate) blocking: Blocking,
    pub(super) read_shut: AtomicBool,
    /// Bytes of writes with "more follows" that the engine was not notified of.
    pub(super) held: AtomicUsize,
}

impl StreamRings {
    fn new(
        client: &Client,
        (slot, lease): (u16, Option<LeasedStream>),
        region: Arc<Region>,
        (interface, local_port): (String, u16),
        peer: PeerName,
        spin: Spin,
    ) -> StreamRings {
        StreamRings {
            client: client.clone(),
            slot,
            lease,
            tx: Mutex::new(TxProducer::new(Arc::clone(&region))),
            rx: Mutex::new(RxConsumer::new(Arc::clone(&region))),
            arrived: RxView::new(Arc::clone(&region)),
            waiting: Arc::new(Waiting::new(region)),
            interface,
            local_port,
            peer,
            spin,
            blocking: Blocking::default(),
            read_shut: AtomicBool::new(false),
            held: AtomicUsize::new(0),
        }
    }

    /// Returns the stream of a daemon's reply.
    pub(crate) fn from_answer(
        client: &Client,
        answer: Answer,
        spin: Spin,
    ) -> Result<StreamRings, EspError> {
        let session = client.session();
        let Reply::Stream {
            slot,
            rings,
            interface,
            local_port,
            peer,
            peer_port: port,
        } = answer.reply
        else {
            session.give_back(&answer);
            return Err(session.unexpected("a stream"));
        };
        let region = open_region(&answer.descriptors, rings).inspect_err(|_| {
            session.post(&Request::Abort { slot });
            session.post(&Request::Close { slot });
        })?;
        let peer = PeerName { addr: peer, port };
        let local = (interface, local_port);
        let stream = Self::new(client, (slot, None), region, local, peer, spin);
        session.register(slot, &stream.waiting);
        Ok(stream)
    }

    /// Returns a stream over a lease.
    pub(crate) fn leased(client: &Client, opened: Opened, spin: Spin) -> StreamRings {
        let slot = (opened.stream.slot, Some(opened.stream));
        let local = (opened.interface, opened.local_port);
        Self::new(client, slot, opened.region, local, opened.peer, spin)
    }

    /// Registers an established connection over a lease at the daemon.
    pub(crate) fn register_lease(&self) {
        if let Some(lease) = &self.lease {
            lease.register(self.local_port, self.peer);
        }
    }

    /// Registers a connection over a lease at the daemon once it is established.
    pub(crate) fn register_lease_later(&self) {
        if let Some(lease) = &self.lease {
            lease.register_later(self.local_port, self.peer);
        }
    }

    pub(crate) fn is_leased(&self) -> bool {
        self.lease.is_some()
    }

    /// Notifies the engine of bytes written, bytes read or the end of writing.
    #[inline]
    pub(super) fn ring(&self) {
        self.held.store(0, Ordering::Relaxed);
        match &self.lease {
            None => self.client.session().ring(self.slot),
            Some(lease) => lease.ring(),
        }
    }

    /// Waits until `ready` returns true; false at the deadline.
    pub(super) fn wait(
        &self,
        what: Wake,
        ready: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        match &self.lease {
            None => self.waiting.status.wait(what, self.spin, ready, deadline),
            Some(lease) => lease.engine().wait(self.spin, ready, deadline),
        }
    }

    /// Returns an error if the engine is gone: the daemon's engine with the daemon; the embedded
    /// engine only for a forked child.
    pub(crate) fn check(&self) -> Result<(), EspError> {
        match &self.lease {
            None => self.client.check(),
            Some(lease) if lease.engine().is_forked() => Err(EspError::Forked),
            Some(_) => Ok(()),
        }
    }

    /// Returns the error that closed the connection; `None` while it is open, or if both sides
    /// closed it.
    pub(super) fn failure(&self) -> Option<EspError> {
        match self.waiting.status.state() {
            StreamState::Closed(reason) => close_error(reason, self.peer),
            StreamState::Connecting | StreamState::Open => self.check().err(),
        }
    }

    pub(super) fn closed(&self) -> bool {
        matches!(self.waiting.status.state(), StreamState::Closed(_))
    }

    pub(super) fn gone(&self) -> bool {
        self.check().is_err()
    }

    pub(crate) fn ring_sizes(&self) -> (usize, usize) {
        (lock(&self.tx).capacity(), lock(&self.rx).capacity())
    }

    /// Returns the slot as pollers report it.
    pub(crate) fn slot(&self) -> u16 {
        if self.is_leased() {
            FIRST_LEASED_SLOT + self.slot
        } else {
            self.slot
        }
    }

    pub(crate) fn arm(&self, interest: Interest) {
        self.waiting.status.arm_fd(match interest {
            Interest::Readable => Wake::Readable,
            Interest::Writable => Wake::Writable,
            Interest::State => Wake::State,
        });
    }

    pub(crate) fn is_connected(&self) -> Result<bool, EspError> {
        let state = self.waiting.status.state();
        self.failure()
            .map_or(Ok(state != StreamState::Connecting), Err)
    }

    /// Resets the connection.
    pub(crate) fn abort(&self) -> Result<(), EspError> {
        let request = Request::Abort { slot: self.slot };
        match &self.lease {
            Some(lease) => lease.abort(),
            None => drop(self.client.session().ask(&request)?),
        }
        Ok(())
    }

    /// Resets the connection without waiting for the daemon's reply.
    pub(crate) fn abort_later(&self) {
        match &self.lease {
            Some(lease) => lease.abort(),
            None => self
                .client
                .session()
                .post(&Request::Abort { slot: self.slot }),
        }
    }

    /// Waits until the connection is established.
    pub(crate) fn wait_connected(&self, deadline: Option<Instant>) -> Result<(), EspError> {
        let decided = || self.waiting.status.state() != StreamState::Connecting || self.gone();
        if !self.wait(Wake::State, decided, deadline) {
            return Err(EspError::ConnectCallTimedOut(self.peer));
        }
        self.failure().map_or(Ok(()), Err)
    }
}

impl Drop for StreamRings {
    /// Closes the stream; written bytes are still delivered.
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            if !lease.engine().is_forked() {
                self.finish_writing();
                lease.close(|| self.unacknowledged() == 0 || self.closed());
            }
            return;
        }
        let session = self.client.session();
        if session.unregister(self.slot, &self.waiting) {
            self.finish_writing();
            session.post(&Request::Close { slot: self.slot });
        }
    }
}
