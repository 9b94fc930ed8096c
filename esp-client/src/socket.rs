//! [`Socket`]: the common part of streams and datagram sockets: two rings in memory shared with an
//! engine, and calls that wait for it.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use esp_engine::shm::{Region, RingSizes, RxConsumer, Spin, TxProducer, Wake};

use crate::client::Client;
use crate::control::Rings;
use crate::error::{EspError, MISSING_DESCRIPTORS};
use crate::lease::{Event, LeasedSlot, LeasedSocketParts};
use crate::session::{Answer, Held, HeldSocket};
use crate::sync::{Waiting, lock};

/// Rings, engine and settings of a socket.
pub(crate) struct Socket {
    pub(crate) client: Client,
    pub(crate) engine: SocketEngine,
    pub(crate) tx: Mutex<TxProducer>,
    pub(crate) rx: Mutex<RxConsumer>,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) interface: String,
    pub(crate) port: u16,
    pub(crate) spin: Spin,
    nonblocking: AtomicBool,
    /// Time-outs in ns; 0: none.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
}

/// The engine that serves a socket, with the socket's slot there.
pub(crate) enum SocketEngine {
    Daemon(u16),
    Embedded(LeasedSlot),
}

impl Socket {
    fn new(
        client: &Client,
        engine: SocketEngine,
        region: &Arc<Region>,
        (interface, port): (String, u16),
        spin: Spin,
    ) -> Socket {
        Socket {
            client: client.clone(),
            engine,
            tx: Mutex::new(TxProducer::new(Arc::clone(region))),
            rx: Mutex::new(RxConsumer::new(Arc::clone(region))),
            waiting: Waiting::new(Arc::clone(region)),
            interface,
            port,
            spin,
            nonblocking: AtomicBool::new(false),
            read_timeout: AtomicU64::new(0),
            write_timeout: AtomicU64::new(0),
        }
    }

    /// Returns the socket that a daemon's reply grants, and its region. On an error the slot is
    /// released.
    pub(crate) fn granted(
        client: &Client,
        answer: &Answer,
        (slot, rings): (u16, Rings),
        local: (String, u16),
        (held, spin): (Held, Option<Spin>),
    ) -> Result<(Socket, Arc<Region>), EspError> {
        let session = client.session();
        let sizes = RingSizes {
            tx: rings.tx,
            rx: rings.rx,
        };
        let descriptor = answer.descriptors.first().ok_or_else(|| EspError::Memory {
            what: format!("its descriptor {MISSING_DESCRIPTORS}"),
        });
        let region = descriptor
            .and_then(|fd| Ok(Region::open(fd.as_fd(), sizes)?))
            .inspect_err(|_| session.give_back(answer))?;
        let spin = spin.unwrap_or_else(default_spin);
        let socket = Self::new(client, SocketEngine::Daemon(slot), &region, local, spin);
        let held = HeldSocket {
            waiting: Arc::clone(&socket.waiting),
            // A copy. It fails at the limit of open files, and then the next daemon cannot resume
            // the socket.
            file: answer
                .descriptors
                .first()
                .and_then(|fd| fd.try_clone().ok()),
            rings,
            held,
        };
        session.register(slot, held, answer.connection);
        Ok((socket, region))
    }

    /// Returns a socket of the embedded engine, and its region.
    pub(crate) fn embedded(
        client: &Client,
        parts: LeasedSocketParts,
        spin: Option<Spin>,
    ) -> (Socket, Arc<Region>) {
        let local = (parts.slot.ports.interface.name.clone(), parts.local_port);
        let spin = spin.unwrap_or_else(default_lease_spin);
        let engine = SocketEngine::Embedded(parts.slot);
        let socket = Self::new(client, engine, &parts.region, local, spin);
        (socket, parts.region)
    }

    /// Returns the slot at the embedded engine, if that serves the socket.
    #[inline]
    pub(crate) fn lease(&self) -> Option<&LeasedSlot> {
        match &self.engine {
            SocketEngine::Daemon(_) => None,
            SocketEngine::Embedded(lease) => Some(lease),
        }
    }

    /// Notifies the engine of bytes written, bytes read or the end of writing.
    #[inline]
    pub(crate) fn ring(&self) {
        match &self.engine {
            SocketEngine::Daemon(slot) => self.client.session().ring(*slot),
            SocketEngine::Embedded(lease) => lease.leases.engine.ring(lease.slot),
        }
    }

    /// Returns an error in a forked child, which shares the rings with its parent: bytes that it
    /// took would be missing in the parent. Costs one load.
    #[inline]
    pub(crate) fn check_fork(&self) -> Result<(), EspError> {
        match self.client.session().is_forked() {
            true => Err(EspError::Forked),
            false => Ok(()),
        }
    }

    /// Returns an error in a forked child, or if the engine is gone: the daemon's engine with the
    /// daemon, the embedded engine never.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), EspError> {
        self.check_fork()?;
        match &self.engine {
            SocketEngine::Daemon(_) => {
                self.client.session().check()?;
                match self.waiting.lost.get() {
                    None => Ok(()),
                    Some(error) => Err(error.clone()),
                }
            }
            SocketEngine::Embedded(_) => Ok(()),
        }
    }

    /// Waits until `ready` returns true; false at the deadline.
    pub(crate) fn wait(
        &self,
        what: Wake,
        ready: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        match &self.engine {
            SocketEngine::Daemon(_) => self.waiting.status.wait(what, self.spin, ready, deadline),
            SocketEngine::Embedded(lease) => {
                let event = Event::Socket(&self.waiting, what);
                let engine = &lease.leases.engine;
                engine.wait(self.spin, event, ready, deadline)
            }
        }
    }

    /// Wakes all waiting threads and tasks to check their condition again.
    pub(crate) fn poke(&self) {
        self.waiting.poke();
        if let Some(lease) = self.lease() {
            lease.leases.engine.poke();
            lease.leases.engine.tasks.wake();
        }
    }

    /// Makes attempts until one returns anything but `WouldBlock`, and waits for `ready` in
    /// between, at most for the socket's time-out. In nonblocking mode there is one attempt.
    ///
    /// # Errors
    /// [`EspError::CallTimedOut`] with `what`, or the error of the attempt.
    #[inline]
    pub(crate) fn block<T>(
        &self,
        (event, what): (Wake, &'static str),
        mut attempt: impl FnMut() -> io::Result<T>,
        ready: impl FnMut() -> bool,
    ) -> io::Result<T> {
        match attempt() {
            Err(error) if would_block(&error) && !self.is_nonblocking() => {}
            done => return done,
        }
        self.block_until(self.deadline(event), (event, what), attempt, ready)
    }

    /// Waits for `ready`, then makes an attempt, until it returns anything but `WouldBlock`; see
    /// [`Socket::block`].
    pub(crate) fn block_until<T>(
        &self,
        deadline: Option<Instant>,
        (event, what): (Wake, &'static str),
        mut attempt: impl FnMut() -> io::Result<T>,
        mut ready: impl FnMut() -> bool,
    ) -> io::Result<T> {
        loop {
            if !self.wait(event, &mut ready, deadline) {
                return Err(EspError::CallTimedOut { what }.into());
            }
            match attempt() {
                Err(error) if would_block(&error) => {}
                done => return done,
            }
        }
    }

    /// Polls an operation: makes an attempt and, on `WouldBlock`, registers the task for the event
    /// and makes another one.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll<T>(
        &self,
        cx: &Context<'_>,
        event: Wake,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        match attempt() {
            Err(error) if would_block(&error) => {}
            done => return Poll::Ready(done),
        }
        match &self.engine {
            SocketEngine::Daemon(_) => {
                self.waiting.tasks.register(cx);
                self.waiting.status.arm_fd(event);
            }
            // The progress thread wakes the task, which receives no events of a lease.
            SocketEngine::Embedded(lease) => lease.leases.engine.tasks.register(cx),
        }
        match attempt() {
            Err(error) if would_block(&error) => Poll::Pending,
            done => Poll::Ready(done),
        }
    }

    pub(crate) fn ring_sizes(&self) -> (usize, usize) {
        (lock(&self.tx).capacity(), lock(&self.rx).capacity())
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Sets the time-out of later calls that wait for this event. Zero is an error.
    pub(crate) fn set_timeout(&self, event: Wake, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            let text = "invalid time-out of zero: use None for no time-out";
            return Err(EspError::BadArgument(text.into()).into());
        }
        let nanos = timeout.map_or(0, |time| time.as_nanos().try_into().unwrap_or(u64::MAX));
        self.timeout(event).store(nanos, Ordering::Relaxed);
        Ok(())
    }

    fn timeout(&self, event: Wake) -> &AtomicU64 {
        match event {
            Wake::Writable => &self.write_timeout,
            _ => &self.read_timeout,
        }
    }

    /// Returns the deadline of a call that begins now to wait for this event.
    pub(crate) fn deadline(&self, event: Wake) -> Option<Instant> {
        match self.timeout(event).load(Ordering::Relaxed) {
            0 => None,
            nanos => Instant::now().checked_add(Duration::from_nanos(nanos)),
        }
    }
}

/// Returns true for `WouldBlock`.
pub(crate) fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Returns the default [`Spin`] of waits. With one or two processors the other side needs the one
/// that a spinning thread would use, so a wait only yields. `available_parallelism` includes the
/// affinity mask and the cgroup quota.
pub(crate) fn default_spin() -> Spin {
    static SPIN: OnceLock<Spin> = OnceLock::new();
    *SPIN.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Spin {
            spins: if processors > 2 { 500 } else { 0 },
            yields: 10,
        }
    })
}

/// Returns the default [`Spin`] of waits over a lease, which poll for frames themselves: they stay
/// awake as long as the daemon's engine does, about 50 µs.
fn default_lease_spin() -> Spin {
    Spin {
        yields: 100,
        ..default_spin()
    }
}

/// Adds the settings of sockets to a type with a field `socket`.
macro_rules! socket_settings {
    ($type:ty) => {
        impl $type {
            /// Returns the client this socket belongs to.
            pub fn client(&self) -> &$crate::Client {
                &self.socket.client
            }

            /// Returns the sizes of the send and receive rings in bytes.
            pub fn ring_sizes(&self) -> (usize, usize) {
                self.socket.ring_sizes()
            }

            /// Makes blocking calls return `WouldBlock` instead of waiting.
            pub fn set_nonblocking(&self, nonblocking: bool) -> std::io::Result<()> {
                self.socket.set_nonblocking(nonblocking);
                Ok(())
            }

            /// Sets the maximum wait of a call that receives; then the error is of kind `TimedOut`.
            /// `None`: no limit.
            ///
            /// # Errors
            /// `InvalidInput` for zero.
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> std::io::Result<()> {
                self.socket.set_timeout(Wake::Readable, timeout)
            }

            /// Sets the maximum wait of a call that sends for room in the ring; then the error is
            /// of kind `TimedOut`. `None`: no limit.
            ///
            /// # Errors
            /// `InvalidInput` for zero.
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> std::io::Result<()> {
                self.socket.set_timeout(Wake::Writable, timeout)
            }
        }
    };
}

pub(crate) use socket_settings;
