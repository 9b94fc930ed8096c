//! A stream's two rings, its waits and its end; what the blocking, polled and async types are made of.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use esp_engine::shm::{Region, RingSizes, RxConsumer, Spin, Status, StreamState, TxProducer, Wake};
use esp_proto::{CloseReason, MacAddr, ResetReason};
use std::os::fd::AsFd;

use crate::call::Answer;
use crate::client::Client;
use crate::control::{Reply, Request};
use crate::error::{EspError, PeerName};
use crate::lease::{LeasedStream, Opened};
use crate::session::{Wakeable, WakerCell, lock};
use crate::stream::Interest;

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
        Waiting { status: Status::new(region), reader: WakerCell::default(), writer: WakerCell::default() }
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

/// A time-out that may be changed while others wait; 0 ns: none.
#[derive(Default)]
pub(crate) struct Timeout(AtomicU64);

impl Timeout {
    pub(crate) fn set(&self, timeout: Option<Duration>) -> io::Result<()> {
        let nanos = match timeout {
            None => 0,
            Some(Duration::ZERO) => {
                return Err(EspError::BadArgument(
                    "a time-out of zero is not possible; None means no time-out",
                )
                .into());
            }
            Some(timeout) => u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        };
        self.0.store(nanos, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn get(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.get().and_then(|timeout| Instant::now().checked_add(timeout))
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
    waiting: Arc<Waiting>,
    pub(crate) interface: String,
    pub(crate) local_port: u16,
    pub(crate) peer: PeerName,
    pub(crate) spin: Spin,
    pub(crate) nonblocking: AtomicBool,
    pub(crate) read_timeout: Timeout,
    pub(crate) write_timeout: Timeout,
    read_shut: AtomicBool,
}

impl Core {
    /// Takes a stream out of the daemon's answer.
    pub(crate) fn from_answer(client: &Client, answer: Answer, spin: Spin) -> Result<Core, EspError> {
        let Answer {
            reply: Reply::Stream { slot, rings, interface, local_port, peer, peer_port },
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
            rx: Mutex::new(RxConsumer::new(region)),
            waiting,
            interface,
            local_port,
            peer: PeerName { mac: MacAddr(peer), port: peer_port },
            spin,
            nonblocking: AtomicBool::new(false),
            read_timeout: Timeout::default(),
            write_timeout: Timeout::default(),
            read_shut: AtomicBool::new(false),
        })
    }

    /// A stream over a lease.
    pub(crate) fn leased(client: &Client, opened: Opened, spin: Spin) -> Core {
        let Opened { stream, region, interface, local_port, peer, peer_port } = opened;
        Core {
            client: client.clone(),
            slot: stream.slot,
            lease: Some(stream),
            tx: Mutex::new(TxProducer::new(Arc::clone(&region))),
            rx: Mutex::new(RxConsumer::new(Arc::clone(&region))),
            waiting: Arc::new(Waiting::new(region)),
            interface,
            local_port,
            peer: PeerName { mac: peer, port: peer_port },
            spin,
            nonblocking: AtomicBool::new(false),
            read_timeout: Timeout::default(),
            write_timeout: Timeout::default(),
            read_shut: AtomicBool::new(false),
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

    /// Tells the engine that this stream has news.
    #[inline]
    fn ring(&self) {
        match &self.lease {
            None => self.client.session().ring(self.slot),
            Some(lease) => lease.host().ring(self.slot),
        }
    }

    /// Waits until `there` says so (true) or the deadline has come (false).
    fn wait(&self, what: Wake, there: impl FnMut() -> bool, deadline: Option<Instant>) -> bool {
        match &self.lease {
            None => self.waiting.status.wait(what, self.spin, there, deadline),
            Some(lease) => lease.host().wait(self.spin, there, deadline),
        }
    }

    /// An error when the engine is gone: the daemon's with the daemon; one of a lease never, but for a forked child.
    pub(crate) fn check(&self) -> Result<(), EspError> {
        match &self.lease {
            None => self.client.check(),
            Some(lease) if lease.host().is_forked() => Err(EspError::Forked),
            Some(_) => Ok(()),
        }
    }

    /// The error a state means for calls that need an open connection; `None` while it is one, or ended in order.
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

    /// Reads what is there. `WouldBlock`: nothing yet. Bytes that arrived before an error are given out before it.
    #[inline]
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.read_shut.load(Ordering::Relaxed) {
            return Ok(0);
        }
        match self.take(buffer) {
            0 => self.nothing_read(buffer),
            n => Ok(n),
        }
    }

    #[inline]
    fn take(&self, buffer: &mut [u8]) -> usize {
        let (n, notice) = {
            let mut rx = lock(&self.rx);
            let n = rx.read(buffer);
            (n, n > 0 && rx.consumed_notice_due())
        };
        // Behind the unlock: over a lease the engine takes a turn, and who waits for one looks at the ring.
        if notice {
            self.ring();
        }
        n
    }

    #[cold]
    fn nothing_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(lease) = &self.lease {
            lease.host().poll(true);
        }
        // The state first: the engine publishes the last bytes before it.
        let closed = self.closed();
        let failure = self.failure();
        match self.take(buffer) {
            0 => {}
            n => return Ok(n),
        }
        if lock(&self.rx).at_end() {
            return Ok(0);
        }
        match failure {
            Some(error) => Err(error.into()),
            None if closed => Ok(0),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// See [`EspStream::try_read_with`](crate::EspStream::try_read_with).
    #[inline]
    pub(crate) fn try_read_with(&self, known: usize, take: impl FnOnce(&[u8]) -> usize) -> io::Result<usize> {
        let mut rx = lock(&self.rx);
        if rx.available() <= known {
            // The state first: the engine publishes the last bytes before it.
            let closed = self.closed();
            let failure = self.failure();
            if rx.available() <= known {
                return match failure {
                    _ if rx.finished() => Ok(0),
                    Some(error) => Err(error.into()),
                    None if closed => Ok(0),
                    None => Err(io::ErrorKind::WouldBlock.into()),
                };
            }
        }
        let there = rx.peek();
        let taken = take(there).min(there.len());
        rx.consume(taken);
        let notice = taken > 0 && rx.consumed_notice_due();
        drop(rx);
        if notice {
            self.ring();
        }
        Ok(taken)
    }

    #[inline]
    pub(crate) fn has_news(&self, known: usize) -> bool {
        let there = {
            let rx = lock(&self.rx);
            rx.available() > known || rx.finished()
        };
        there || self.closed() || self.gone()
    }

    /// Is a read going to return something?
    fn readable(&self) -> bool {
        let there = {
            let rx = lock(&self.rx);
            rx.available() > 0 || rx.finished()
        };
        there || self.closed() || self.gone() || self.read_shut.load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        if self.nonblocking.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let deadline = self.read_timeout.deadline();
        loop {
            if !self.wait(Wake::Readable, || self.readable(), deadline) {
                return Err(EspError::CallTimedOut { what: "reading" }.into());
            }
            match self.try_read(buffer) {
                // Another thread was faster.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    /// Copies what is there without taking it.
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.read_shut.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let deadline = self.read_timeout.deadline();
        loop {
            let (closed, failure) = (self.closed(), self.failure());
            {
                let rx = lock(&self.rx);
                let there = rx.peek();
                let n = there.len().min(buffer.len());
                if n > 0 {
                    buffer[..n].copy_from_slice(&there[..n]);
                    return Ok(n);
                }
                if rx.at_end() {
                    return Ok(0);
                }
            }
            match failure {
                Some(error) => return Err(error.into()),
                None if closed => return Ok(0),
                None if self.nonblocking.load(Ordering::Relaxed) => {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                None => {}
            }
            if !self.wait(Wake::Readable, || self.readable(), deadline) {
                return Err(EspError::CallTimedOut { what: "reading" }.into());
            }
        }
    }

    /// Takes as many bytes as the ring has room for. `WouldBlock`: none.
    #[inline]
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write_all_of(&[io::IoSlice::new(bytes)])
    }

    /// The same from several buffers, with one doorbell.
    #[inline]
    pub(crate) fn try_write_all_of(&self, buffers: &[io::IoSlice<'_>]) -> io::Result<usize> {
        if self.closed() || self.gone() {
            return Err(self.write_error());
        }
        let mut total = 0;
        let mut wanted = 0;
        {
            let mut tx = lock(&self.tx);
            if tx.is_finished() {
                return Err(self.write_error());
            }
            for buffer in buffers {
                wanted += buffer.len();
                let n = tx.write(buffer);
                total += n;
                if n < buffer.len() {
                    break;
                }
            }
        }
        if total > 0 {
            self.ring();
        } else if wanted > 0 {
            if let Some(lease) = &self.lease {
                lease.host().poll(true); // makes room for the next attempt
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(total)
    }

    /// See [`EspStream::try_write_whole`](crate::EspStream::try_write_whole).
    #[inline]
    pub(crate) fn try_write_whole(&self, buffers: &[io::IoSlice<'_>], spare: usize) -> io::Result<()> {
        if self.closed() || self.gone() {
            return Err(self.write_error());
        }
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        {
            let mut tx = lock(&self.tx);
            if tx.is_finished() {
                return Err(self.write_error());
            }
            if tx.free() < total.saturating_add(spare) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            for buffer in buffers {
                tx.write(buffer);
            }
        }
        self.ring();
        Ok(())
    }

    pub(crate) fn ring_sizes(&self) -> (usize, usize) {
        (lock(&self.tx).capacity(), lock(&self.rx).capacity())
    }

    /// Those of leases stand behind the daemon's.
    pub(crate) fn slot(&self) -> u16 {
        if self.is_leased() { FIRST_LEASED_SLOT + self.slot } else { self.slot }
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
        self.failure().map_or(Ok(state != StreamState::Connecting), Err)
    }

    #[cold]
    fn write_error(&self) -> io::Error {
        self.failure().unwrap_or(EspError::WriteAfterEnd { peer: self.peer }).into()
    }

    fn writable(&self) -> bool {
        let room = {
            let tx = lock(&self.tx);
            tx.free() > 0 || tx.is_finished()
        };
        room || self.closed() || self.gone()
    }

    pub(crate) fn write(&self, buffers: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self.try_write_all_of(buffers) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        if self.nonblocking.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let deadline = self.write_timeout.deadline();
        loop {
            if !self.wait(Wake::Writable, || self.writable(), deadline) {
                return Err(EspError::CallTimedOut { what: "writing" }.into());
            }
            match self.try_write_all_of(buffers) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    /// Bytes written that the peer's node has not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        lock(&self.tx).pending()
    }

    /// Waits until the peer's node has acknowledged everything written.
    pub(crate) fn wait_delivered(&self, deadline: Option<Instant>) -> io::Result<()> {
        let done = || self.unacknowledged() == 0 || self.closed() || self.gone();
        if !self.wait(Wake::Writable, done, deadline) {
            return Err(EspError::CallTimedOut { what: "waiting for the acknowledgement" }.into());
        }
        if self.unacknowledged() == 0 {
            return Ok(());
        }
        Err(self.write_error())
    }

    /// Sends FIN behind what was written.
    pub(crate) fn finish_writing(&self) {
        let mut tx = lock(&self.tx);
        if !tx.is_finished() {
            tx.finish();
            drop(tx);
            self.ring();
        }
    }

    pub(crate) fn finish_reading(&self) {
        self.read_shut.store(true, Ordering::Relaxed);
        self.waiting.status.poke();
        self.waiting.reader.wake();
    }

    pub(crate) fn abort(&self) -> Result<(), EspError> {
        if let Some(lease) = &self.lease {
            lease.abort();
            return Ok(());
        }
        self.client.session().ask(&Request::Abort { slot: self.slot }).map(drop)
    }

    /// The same without waiting for the daemon's word.
    pub(crate) fn abort_unheard(&self) {
        match &self.lease {
            Some(lease) => lease.abort(),
            None => self.client.session().post(&Request::Abort { slot: self.slot }),
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

#[cfg(feature = "tokio")]
impl Core {
    pub(crate) fn poll_connected(&self, cx: &Context<'_>) -> Poll<Result<(), EspError>> {
        if let Some(lease) = &self.lease {
            lease.wake_later(cx);
        }
        self.waiting.reader.register(cx);
        self.waiting.status.arm_fd(Wake::State);
        match self.failure() {
            Some(error) => Poll::Ready(Err(error)),
            None if self.waiting.status.state() == StreamState::Connecting => Poll::Pending,
            None => Poll::Ready(Ok(())),
        }
    }

    pub(crate) fn poll_read(&self, cx: &Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if let ready @ Poll::Ready(_) = as_poll(self.try_read(buffer)) {
            return ready;
        }
        if let Some(lease) = &self.lease {
            lease.wake_later(cx);
        }
        self.waiting.reader.register(cx);
        self.waiting.status.arm_fd(Wake::Readable);
        as_poll(self.try_read(buffer))
    }

    pub(crate) fn poll_write(
        &self,
        cx: &Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let ready @ Poll::Ready(_) = as_poll(self.try_write_all_of(buffers)) {
            return ready;
        }
        if let Some(lease) = &self.lease {
            lease.wake_later(cx);
        }
        self.waiting.writer.register(cx);
        self.waiting.status.arm_fd(Wake::Writable);
        as_poll(self.try_write_all_of(buffers))
    }
}

/// `WouldBlock` as `Pending`.
#[cfg(feature = "tokio")]
pub(crate) fn as_poll<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        done => Poll::Ready(done),
    }
}

impl Drop for Core {
    /// What was written is still delivered, then FIN; see [`Request::Close`].
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            if !lease.host().is_forked() {
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
    let sizes = RingSizes { tx: rings.tx, rx: rings.rx };
    Region::open(fd.as_fd(), sizes).map_err(|error| memory(error.to_string()))
}

/// What the end of a connection means to its program; `None`: it ended in order.
fn close_error(reason: CloseReason, peer: PeerName) -> Option<EspError> {
    Some(match reason {
        CloseReason::Finished => return None,
        CloseReason::TimedOut => EspError::TimedOut { peer },
        CloseReason::ConnectTimedOut => EspError::ConnectTimedOut { peer },
        CloseReason::Reset(reset) => match reset {
            ResetReason::Refused => EspError::Refused { peer },
            ResetReason::Version(version) => EspError::PeerVersion { peer, version },
            ResetReason::BadKey => EspError::BadKey { peer },
            ResetReason::Aborted => EspError::Aborted { peer },
            ResetReason::ProgramDied => EspError::PeerDied { peer },
            ResetReason::Resources => EspError::PeerLimit { peer },
            ResetReason::Protocol => EspError::Protocol { peer },
            ResetReason::TimedOut => EspError::TimedOut { peer },
            ResetReason::Unknown => EspError::Forgotten { peer },
            ResetReason::Shutdown => EspError::PeerShutdown { peer },
            ResetReason::Other(reason) => EspError::ResetOther { peer, reason },
        },
        CloseReason::Aborted(reset) => match reset {
            ResetReason::Aborted => EspError::AbortedHere { peer },
            ResetReason::TimedOut => EspError::TimedOut { peer },
            ResetReason::Version(version) => EspError::PeerVersion { peer, version },
            ResetReason::Protocol => EspError::EndedHere { peer, what: "a rule of the protocol was broken" },
            ResetReason::Resources => {
                EspError::EndedHere { peer, what: "a limit was reached, or the link's MTU became smaller" }
            }
            ResetReason::Shutdown => EspError::EndedHere { peer, what: "the daemon is being stopped" },
            ResetReason::ProgramDied => EspError::EndedHere { peer, what: "it took this program for dead" },
            ResetReason::Refused | ResetReason::BadKey | ResetReason::Unknown | ResetReason::Other(_) => {
                EspError::EndedHere { peer, what: "its log says why" }
            }
        },
    })
}

/// How long waits stay awake by default. On up to two processors the other side needs the one we would spin on, so it is
/// only let run; `available_parallelism` counts the affinity mask and the cgroup quota.
pub(crate) fn default_spin() -> Spin {
    static SPIN: std::sync::OnceLock<Spin> = std::sync::OnceLock::new();
    *SPIN.get_or_init(|| match std::thread::available_parallelism() {
        Ok(processors) if processors.get() > 2 => Spin { spins: 500, yields: 10 },
        _ => Spin { spins: 0, yields: 10 },
    })
}
