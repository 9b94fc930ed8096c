//! A stream's two rings, its waits and its end; what the blocking, polled and async types are made
//! of.

mod ends;
#[cfg(feature = "tokio")]
mod futures;
mod read;
mod timeout;
mod write;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use esp_engine::shm::{
    Region, RingSizes, RxConsumer, RxView, Spin, Status, StreamState, TxProducer, Wake,
};
use esp_proto::MacAddr;

use crate::call::Answer;
use crate::client::Client;
use crate::control::{Reply, Request};
use crate::error::{EspError, PeerName};
use crate::lease::{LeasedStream, Opened};
use crate::session::{Wakeable, WakerCell, lock};
use crate::stream::Interest;
use ends::close_error;
#[cfg(feature = "tokio")]
pub(crate) use futures::as_poll;
pub(crate) use timeout::Timeout;

/// Where the slots of leased streams begin, as programs see them: behind all of the daemon's.
pub(crate) const FIRST_LEASED_SLOT: u16 = 4096;
const _: () = assert!(FIRST_LEASED_SLOT as usize == esp_engine::shm::SLOTS);

/// Who the session's thread wakes for a slot.
pub(crate) struct Waiting {
    pub(crate) status: Status,
    pub(crate) reader: WakerCell,
    pub(crate) writer: WakerCell,
}

impl Waiting {
    pub(crate) fn new(region: Arc<Region>) -> Waiting {
        Waiting {
            status: Status::new(region),
            reader: WakerCell::default(),
            writer: WakerCell::default(),
        }
    }
}

impl Wakeable for Waiting {
    fn event(&self) {
        self.reader.wake();
        self.writer.wake();
    }

    fn daemon_gone(&self) {
        self.status.poke();
        self.event();
    }
}

/// Shared by a stream's halves.
pub(crate) struct Core {
    pub(crate) client: Client,
    /// At the daemon; of a lease, its own.
    slot: u16,
    lease: Option<LeasedStream>,
    tx: Mutex<TxProducer>,
    rx: Mutex<RxConsumer>,
    /// For waits: who has `rx` may be waiting for the engine that we have.
    arrived: RxView,
    waiting: Arc<Waiting>,
    pub(crate) interface: String,
    pub(crate) local_port: u16,
    pub(crate) peer: PeerName,
    pub(crate) spin: Spin,
    pub(crate) nonblocking: AtomicBool,
    pub(crate) read_timeout: Timeout,
    pub(crate) write_timeout: Timeout,
    read_shut: AtomicBool,
    /// Bytes of writes with "more follows" that the engine was not notified of.
    held: AtomicUsize,
}

impl Core {
    /// Takes a stream out of the daemon's answer.
    pub(crate) fn from_answer(
        client: &Client,
        answer: Answer,
        spin: Spin,
    ) -> Result<Core, EspError> {
        let Answer {
            reply:
                Reply::Stream {
                    slot,
                    rings,
                    interface,
                    local_port,
                    peer,
                    peer_port,
                },
            descriptors,
        } = answer
        else {
            client.session().dispose(&answer);
            return Err(client.session().unexpected("a stream"));
        };
        let region = open_region(&descriptors, rings).inspect_err(|_| {
            client.session().post(&Request::Abort { slot });
            client.session().post(&Request::Close { slot });
        })?;
        let waiting = Arc::new(Waiting::new(Arc::clone(&region)));
        client.session().register(slot, &waiting);
        Ok(Core {
            client: client.clone(),
            slot,
            lease: None,
            tx: Mutex::new(TxProducer::new(Arc::clone(&region))),
            rx: Mutex::new(RxConsumer::new(Arc::clone(&region))),
            arrived: RxView::new(region),
            waiting,
            interface,
            local_port,
            peer: PeerName {
                mac: MacAddr(peer),
                port: peer_port,
            },
            spin,
            nonblocking: AtomicBool::new(false),
            read_timeout: Timeout::default(),
            write_timeout: Timeout::default(),
            read_shut: AtomicBool::new(false),
            held: AtomicUsize::new(0),
        })
    }

    /// A stream over a lease.
    pub(crate) fn leased(client: &Client, opened: Opened, spin: Spin) -> Core {
        let Opened {
            stream,
            region,
            interface,
            local_port,
            peer,
            peer_port,
        } = opened;
        Core {
            client: client.clone(),
            slot: stream.slot,
            lease: Some(stream),
            tx: Mutex::new(TxProducer::new(Arc::clone(&region))),
            rx: Mutex::new(RxConsumer::new(Arc::clone(&region))),
            arrived: RxView::new(Arc::clone(&region)),
            waiting: Arc::new(Waiting::new(region)),
            interface,
            local_port,
            peer: PeerName {
                mac: peer,
                port: peer_port,
            },
            spin,
            nonblocking: AtomicBool::new(false),
            read_timeout: Timeout::default(),
            write_timeout: Timeout::default(),
            read_shut: AtomicBool::new(false),
            held: AtomicUsize::new(0),
        }
    }

    /// The connection over a lease is established.
    pub(crate) fn established(&self) {
        if let Some(lease) = &self.lease {
            lease.established(self.local_port, self.peer.mac, self.peer.port);
        }
    }

    /// The connection over a lease was begun, and nobody waits for it.
    pub(crate) fn begun(&self) {
        if let Some(lease) = &self.lease {
            lease.begun(self.local_port, self.peer.mac, self.peer.port);
        }
    }

    pub(crate) fn is_leased(&self) -> bool {
        self.lease.is_some()
    }

    /// Notifies the engine of bytes written, bytes read or the end of writing.
    #[inline]
    fn ring(&self) {
        self.held.store(0, Ordering::Relaxed);
        match &self.lease {
            None => self.client.session().ring(self.slot),
            Some(lease) => lease.ring(),
        }
    }

    /// Waits until `there` says so (true) or the deadline has come (false).
    fn wait(&self, what: Wake, there: impl FnMut() -> bool, deadline: Option<Instant>) -> bool {
        match &self.lease {
            None => self.waiting.status.wait(what, self.spin, there, deadline),
            Some(lease) => lease.engine().wait(self.spin, there, deadline),
        }
    }

    /// An error when the engine is gone: the daemon's with the daemon; one of a lease never, but
    /// for a forked child.
    pub(crate) fn check(&self) -> Result<(), EspError> {
        match &self.lease {
            None => self.client.check(),
            Some(lease) if lease.engine().is_forked() => Err(EspError::Forked),
            Some(_) => Ok(()),
        }
    }

    /// The error a state means for calls that need an open connection; `None` while it is one, or
    /// ended in order.
    fn failure(&self) -> Option<EspError> {
        match self.waiting.status.state() {
            StreamState::Closed(reason) => close_error(reason, self.peer),
            StreamState::Connecting | StreamState::Open => self.check().err(),
        }
    }

    fn closed(&self) -> bool {
        matches!(self.waiting.status.state(), StreamState::Closed(_))
    }

    fn gone(&self) -> bool {
        self.check().is_err()
    }

    pub(crate) fn ring_sizes(&self) -> (usize, usize) {
        (lock(&self.tx).capacity(), lock(&self.rx).capacity())
    }

    /// Those of leases stand behind the daemon's.
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

    pub(crate) fn abort(&self) -> Result<(), EspError> {
        if let Some(lease) = &self.lease {
            lease.abort();
            return Ok(());
        }
        self.client
            .session()
            .ask(&Request::Abort { slot: self.slot })
            .map(drop)
    }

    /// The same without waiting for the daemon's word.
    pub(crate) fn abort_unheard(&self) {
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
            return Err(EspError::ConnectCallTimedOut { peer: self.peer });
        }
        self.failure().map_or(Ok(()), Err)
    }
}

impl Drop for Core {
    /// What was written is still delivered, then FIN; see [`Request::Close`].
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

/// Maps the rings of a stream or datagram socket.
pub(crate) fn open_region(
    descriptors: &[std::os::fd::OwnedFd],
    rings: crate::control::Rings,
) -> Result<Arc<Region>, EspError> {
    let memory = |what: String| EspError::Memory { what };
    let fd = descriptors.first().ok_or_else(|| {
        memory("its descriptor did not come; is this process at its limit of open files?".into())
    })?;
    let sizes = RingSizes {
        tx: rings.tx,
        rx: rings.rx,
    };
    Region::open(fd.as_fd(), sizes).map_err(|error| memory(error.to_string()))
}

/// How long waits stay awake by default. On up to two processors the other side needs the one we
/// would spin on, so it is only let run; `available_parallelism` counts the affinity mask and the
/// cgroup quota.
pub(crate) fn default_spin() -> Spin {
    static SPIN: std::sync::OnceLock<Spin> = std::sync::OnceLock::new();
    *SPIN.get_or_init(|| match std::thread::available_parallelism() {
        Ok(processors) if processors.get() > 2 => Spin {
            spins: 500,
            yields: 10,
        },
        _ => Spin {
            spins: 0,
            yields: 10,
        },
    })
}

/// The same over a lease, where the wait itself looks for frames: as long as an engine stays awake
/// by default, some 50 µs.
pub(crate) fn default_lease_spin() -> Spin {
    Spin {
        yields: 100,
        ..default_spin()
    }
}
