//! [`Session`]: the control connection of a program, with its thread; or the session of a program
//! that serves itself.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use esp_engine::shm::{ClientPage, Doorbell, EngineView, Events, ForkMark};
use rustix::event::{EventfdFlags, PollFlags, eventfd};

use super::call::ReplyCell;
use super::handshake::{Welcome, connect_socket, is_ready, say_hello, send_all};
use super::listeners::HeldListener;
use super::next::{FIRST_PATIENCE, PATIENCE, PAUSE, is_between_daemons};
use super::posts::is_of_lease;
use crate::control::codec::{DecodeError, Decoder, encode};
use crate::control::{Envelope, ErrorKind, Reply, Request, Rings};
use crate::error::EspError;
use crate::sync::{Waiting, lock, try_lock};

/// Cause of a lost connection.
pub(super) const CLOSED: &str = "the daemon closed the control socket";
/// In place of the daemon's socket in error texts of a program that serves itself.
const LOCAL: &str = "(no daemon: ESP in UDP)";

/// Control connection, shared by its thread, the client handles and all objects opened.
pub(crate) struct Session {
    /// Path of the daemon's socket.
    pub(crate) path: PathBuf,
    /// `None`: there is no daemon, the program serves itself.
    pub(super) daemon: RwLock<Option<Arc<Daemon>>>,
    local: bool,
    /// The session waits for the next daemon when one ends.
    pub(super) lasting: bool,
    /// Maximum duration of that wait in ms.
    pub(super) patience: AtomicU64,
    /// Number of connections of this session that have ended.
    pub(super) lost: AtomicU64,
    /// There is no daemon now. Changed with `calls` locked.
    pub(super) waiting: AtomicBool,
    /// Welcome of the current daemon, or of the last one.
    pub(super) welcome: RwLock<Arc<Welcome>>,
    /// A forked child must not use it.
    fork: ForkMark,
    pub(super) next_id: AtomicU64,
    sending: Mutex<()>,
    pub(super) calls: Mutex<Calls>,
    pub(super) slots: Mutex<HashMap<u16, HeldSlot>>,
    /// Listeners by a number of this session, because their numbers at daemons change.
    pub(super) listeners: Mutex<HashMap<u64, HeldListener>>,
    /// Requests without a reply for the next daemon.
    pub(super) posts: Mutex<Vec<Request>>,
    /// Reason why the connection is lost.
    pub(super) gone: OnceLock<EspError>,
    /// Events of the current daemon, until the poller takes them.
    polled: Mutex<Option<PolledEvents>>,
    /// Eventfd that is written when a connection has ended.
    on_loss: Mutex<Option<Arc<OwnedFd>>>,
    /// For a session with a [`Poller`](crate::Poller), which then also handles the events instead
    /// of the thread.
    pub(crate) notice: Option<ReplyNotice>,
}

/// Requests that wait for their replies, by id.
pub(super) type Calls = HashMap<u64, (Request, Arc<ReplyCell>)>;

/// Events of a daemon for a [`Poller`](crate::Poller).
pub(crate) struct PolledEvents {
    pub(crate) events: Events,
    /// Copy of the daemon's descriptor that becomes readable by an event.
    pub(crate) notify: OwnedFd,
    /// Slots that were in use at the earlier daemon: each has an event now.
    pub(crate) changed: Vec<u16>,
}

/// Notifies the owner of a [`Poller`](crate::Poller) that a reply has arrived, that the next daemon
/// is there, or that the session has ended.
pub(crate) struct ReplyNotice {
    raised: AtomicBool,
    /// Eventfd on which a sleeping owner waits.
    pub(crate) wake: OwnedFd,
}

impl ReplyNotice {
    fn new() -> Result<ReplyNotice, EspError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(ReplyNotice {
            raised: AtomicBool::new(false),
            wake: eventfd(0, flags).map_err(EspError::resource("create an eventfd"))?,
        })
    }

    /// Returns true while there is something that [`ReplyNotice::take`] has not returned.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Returns true once after each notice.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        let raised = self.is_raised() && self.raised.swap(false, Ordering::Acquire);
        if raised {
            self.drain();
        }
        raised
    }

    /// Makes the eventfd unreadable.
    pub(crate) fn drain(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }
}

/// A slot of a daemon that this program uses.
pub(super) struct HeldSlot {
    pub(super) socket: Arc<Socket>,
    /// The program closed the socket while there was no daemon.
    pub(super) closing: bool,
}

/// The data of a socket that the next daemon needs.
pub(crate) struct Socket {
    pub(crate) waiting: Arc<Waiting>,
    /// Its memory; `None`: there was no descriptor left, and the next daemon cannot resume it.
    pub(crate) file: Option<OwnedFd>,
    pub(crate) rings: Rings,
    pub(crate) held: Held,
}

/// Kind of a socket.
pub(crate) enum Held {
    Stream,
    Edp { interface: String, port: u16 },
}

/// The connection to a daemon.
pub(super) struct Daemon {
    pub(super) socket: OwnedFd,
    doorbell: Doorbell,
    doorbell_fd: OwnedFd,
    pub(super) notify_fd: OwnedFd,
}

impl Daemon {
    /// Opens the descriptors of the daemon's welcome.
    pub(super) fn new(
        socket: OwnedFd,
        [engine, page, doorbell_fd, notify_fd]: [OwnedFd; 4],
    ) -> Result<(Daemon, Events), EspError> {
        let view = EngineView::open(engine.as_fd())?;
        let page = ClientPage::open(page.as_fd())?;
        let daemon = Daemon {
            socket,
            doorbell: Doorbell::new(Arc::clone(&page), view),
            doorbell_fd,
            notify_fd,
        };
        Ok((daemon, Events::new(page)))
    }
}

/// Returns true for the reply of a daemon that is stopping.
pub(super) fn is_stopping(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(error) if error.kind == ErrorKind::Unavailable)
}

/// Returns the error of a request without a daemon.
pub(super) fn no_daemon() -> EspError {
    let text = "this needs esp-daemon, and the program runs without one";
    EspError::denied(ErrorKind::Unavailable, text)
}

impl Session {
    /// Creates the session of a program that serves itself over its own UDP sockets. With `polled`
    /// it has a notice.
    pub(crate) fn local(welcome: Welcome, polled: bool) -> Result<Arc<Session>, EspError> {
        Self::new(Path::new(LOCAL), None, welcome, (polled, false))
    }

    fn new(
        path: &Path,
        daemon: Option<Daemon>,
        welcome: Welcome,
        (polled, lasting): (bool, bool),
    ) -> Result<Arc<Session>, EspError> {
        Ok(Arc::new(Session {
            path: path.to_owned(),
            local: daemon.is_none(),
            daemon: RwLock::new(daemon.map(Arc::new)),
            lasting,
            patience: AtomicU64::new(PATIENCE.as_millis() as u64),
            lost: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            listeners: Mutex::default(),
            posts: Mutex::default(),
            polled: Mutex::default(),
            welcome: RwLock::new(Arc::new(welcome)),
            fork: ForkMark::new().map_err(EspError::resource("map a page"))?,
            next_id: AtomicU64::new(2),
            sending: Mutex::new(()),
            calls: Mutex::new(HashMap::new()),
            slots: Mutex::new(HashMap::new()),
            gone: OnceLock::new(),
            on_loss: Mutex::default(),
            notice: polled.then(ReplyNotice::new).transpose()?,
        }))
    }

    /// Returns true if the program serves itself, without a daemon.
    pub(crate) fn is_local(&self) -> bool {
        self.local
    }

    /// Connects, introduces the program and starts the thread. With `polled` the session has a
    /// notice, and its poller takes the events. With `lasting` it waits for the next daemon when
    /// one ends, even if there is none yet.
    pub(crate) fn open(path: &Path, polled: bool, lasting: bool) -> Result<Arc<Session>, EspError> {
        let begin = Instant::now();
        loop {
            let opened = Self::try_open(path, polled, lasting);
            let error = match &opened {
                Err(error) if lasting && begin.elapsed() < FIRST_PATIENCE => error,
                _ => return opened,
            };
            if !is_between_daemons(path, error) {
                return opened;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn try_open(path: &Path, polled: bool, lasting: bool) -> Result<Arc<Session>, EspError> {
        let socket = connect_socket(path).map_err(|error| EspError::Unreachable {
            socket: path.to_owned(),
            kind: error.kind(),
        })?;
        let mut decoder = Decoder::new();
        let (welcome, descriptors) = say_hello(path, &socket, &mut decoder, None)?;
        let (daemon, events) = Daemon::new(socket, descriptors)?;
        let session = Self::new(path, Some(daemon), welcome, (polled, lasting))?;
        let of_thread = session.pass_events(events, Vec::new())?;
        let shared = Arc::clone(&session);
        std::thread::Builder::new()
            .name("esp-client".into())
            .spawn(move || shared.run(decoder, of_thread))
            .map_err(EspError::resource("start a thread"))?;
        Ok(session)
    }

    /// Keeps the events of the current daemon for the poller, with the slots that were in use at
    /// the earlier one; without a poller, returns them.
    pub(super) fn pass_events(
        &self,
        events: Events,
        mut changed: Vec<u16>,
    ) -> Result<Option<Events>, EspError> {
        let Some(daemon) = self.daemon().filter(|_| self.notice.is_some()) else {
            return Ok(Some(events));
        };
        let notify = daemon.notify_fd.try_clone();
        let notify = notify.map_err(EspError::resource("copy a descriptor"))?;
        let mut polled = lock(&self.polled);
        changed.extend(polled.take().map(|ended| ended.changed).unwrap_or_default());
        *polled = Some(PolledEvents {
            events,
            notify,
            changed,
        });
        Ok(None)
    }

    /// Returns the events of a daemon once, for the poller.
    pub(crate) fn take_events(&self) -> Option<PolledEvents> {
        lock(&self.polled).take()
    }

    /// Returns the slots of the daemon that this program uses.
    pub(super) fn used_slots(&self) -> Vec<u16> {
        lock(&self.slots).keys().copied().collect()
    }

    /// Notifies the poller as a reply does.
    pub(crate) fn notify_poller(&self) {
        if let Some(notice) = &self.notice {
            notice.raised.store(true, Ordering::Release);
            // Fails only with a full counter, which wakes as well.
            let _ = rustix::io::write(&notice.wake, &1u64.to_ne_bytes());
        }
    }

    /// Returns true in a process forked from the one that opened the session.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    /// Returns the current connection, or the last one.
    #[inline]
    pub(super) fn daemon(&self) -> Option<Arc<Daemon>> {
        let current = self.daemon.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the welcome of the current daemon, or of the last one.
    pub(crate) fn welcome(&self) -> Arc<Welcome> {
        let current = self.welcome.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the time for which this session waits for the next daemon.
    pub(crate) fn set_patience(&self, wait: Duration) {
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        self.patience.store(millis, Ordering::Relaxed);
    }

    /// Returns the time for which this session waits for the next daemon.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.patience.load(Ordering::Relaxed))
    }

    /// Returns true once a connection of this session has ended, even if it has found the next
    /// daemon.
    pub(crate) fn is_lost(&self) -> bool {
        self.connection() > 0 || self.check().is_err()
    }

    /// Registers an eventfd that is written when a connection ends, at once if one has ended.
    pub(crate) fn announce_loss(&self, to: Arc<OwnedFd>) {
        *lock(&self.on_loss) = Some(to);
        if self.is_lost() {
            self.notify_loss();
        }
    }

    pub(super) fn notify_loss(&self) {
        if let Some(fd) = &*lock(&self.on_loss) {
            // Fails only with a full counter, which is readable as well.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Returns the number of the current connection: 0 for the first daemon.
    pub(crate) fn connection(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns true while there is no daemon, but may be one soon.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) && self.check().is_ok()
    }

    /// Returns an error while there is no daemon.
    pub(crate) fn check_connected(&self) -> Result<(), EspError> {
        self.check()?;
        match self.waiting.load(Ordering::Relaxed) {
            true => Err(EspError::DaemonAbsent {
                socket: self.path.clone(),
            }),
            false => Ok(()),
        }
    }

    /// Returns an error once the session has ended. Costs one load until then.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), EspError> {
        match self.gone.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Returns false once the daemon has closed the socket, even if the thread has not noticed yet.
    pub(crate) fn is_alive(&self) -> bool {
        let Some(daemon) = self.daemon() else {
            return self.check().is_ok();
        };
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let hung_up = is_ready(&daemon.socket, ends).unwrap_or(false);
        !hung_up && self.check_connected().is_ok()
    }

    pub(super) fn lost(&self, why: impl Into<String>) -> EspError {
        EspError::gone(&self.path, why)
    }

    /// Rings the engine's doorbell for a slot. Makes a system call only if the engine sleeps.
    #[inline]
    pub(crate) fn ring(&self, slot: u16) {
        let current = self.daemon.read();
        let current = current.unwrap_or_else(PoisonError::into_inner);
        if let Some(daemon) = &*current
            && daemon.doorbell.ring(slot)
        {
            // Fails only with a full counter, which wakes as well.
            let _ = rustix::io::write(&daemon.doorbell_fd, &1u64.to_ne_bytes());
        }
    }

    /// Registers the socket of a slot that a connection granted: for its events, and for the next
    /// daemon.
    pub(crate) fn register(&self, slot: u16, socket: Socket, connection: u64) {
        let socket = Arc::new(socket);
        let held = HeldSlot {
            socket: Arc::clone(&socket),
            closing: false,
        };
        let mut slots = lock(&self.slots);
        if self.lost.load(Ordering::Relaxed) == connection {
            slots.insert(slot, held);
        } else {
            // It was granted by a daemon that has ended, and the next one has its slot.
            let _ = socket.waiting.lost.set(self.lost(CLOSED));
        }
        drop(slots);
        if self.check().is_err() {
            socket.waiting.poke();
        }
    }

    /// Sends a request for a [`ReplyCell`]; returns its id, too.
    pub(super) fn begin_call(&self, request: &Request) -> Result<(u64, Arc<ReplyCell>), EspError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let cell = Arc::new(ReplyCell::default());
        let daemon = {
            let mut calls = lock(&self.calls);
            self.check()?;
            // All leases must be granted by one daemon.
            if self.waiting.load(Ordering::Relaxed) && is_of_lease(request) {
                return Err(self.lost(CLOSED));
            }
            calls.insert(id, (request.clone(), Arc::clone(&cell)));
            if self.waiting.load(Ordering::Relaxed) {
                return Ok((id, cell)); // sent to the next daemon
            }
            self.daemon()
        };
        let sent = match (self.translate(request), daemon) {
            (Ok(request), Some(daemon)) => self.send(&daemon, id, &request),
            (Ok(_), None) => Err(no_daemon()),
            (Err(why), _) => {
                lock(&self.calls).remove(&id);
                return Err(why);
            }
        };
        match sent {
            // The thread notices the end of the connection, and repeats the request.
            Err(EspError::DaemonGone { .. }) if self.lasting && self.check().is_ok() => {}
            Err(error) => {
                lock(&self.calls).remove(&id);
                return Err(error);
            }
            Ok(()) => {}
        }
        Ok((id, cell))
    }

    /// Returns the error for a missing reply.
    pub(crate) fn silent(&self, waiting_for: &'static str) -> EspError {
        EspError::silent(&self.path, waiting_for)
    }

    pub(super) fn send(&self, daemon: &Daemon, id: u64, request: &Request) -> Result<(), EspError> {
        let bytes = self.encode(id, request)?;
        let turn = lock(&self.sending);
        self.send_bytes(daemon, &bytes, &turn)
    }

    /// Sends a request without waiting; false if the socket is full, or another thread sends.
    pub(super) fn try_send(
        &self,
        daemon: &Daemon,
        id: u64,
        request: &Request,
    ) -> Result<bool, EspError> {
        let bytes = self.encode(id, request)?;
        let Some(turn) = try_lock(&self.sending) else {
            return Ok(false);
        };
        // A writable socket has room for more than one request, and no other thread sends now.
        match is_ready(&daemon.socket, PollFlags::OUT) {
            Ok(false) => Ok(false),
            Ok(true) => self.send_bytes(daemon, &bytes, &turn).map(|()| true),
            Err(_) => Err(self.lost(CLOSED)),
        }
    }

    fn encode(&self, id: u64, request: &Request) -> Result<Vec<u8>, EspError> {
        if self.is_forked() {
            return Err(EspError::Forked);
        }
        let body = request.clone();
        encode(&Envelope { id, body })
            .map_err(|_| EspError::BadArgument("a name or key of the request is too long".into()))
    }

    fn send_bytes(
        &self,
        daemon: &Daemon,
        bytes: &[u8],
        _turn: &MutexGuard<'_, ()>,
    ) -> Result<(), EspError> {
        send_all(&daemon.socket, bytes).map_err(|error| {
            let error = match error.kind() {
                io::ErrorKind::TimedOut => self.silent("it does not read its control socket"),
                _ => self.lost(CLOSED),
            };
            // A part may have been sent, so nothing can follow it.
            if self.lasting {
                let _ = rustix::net::shutdown(&daemon.socket, rustix::net::Shutdown::Both);
                return self.lost(CLOSED);
            }
            self.fail(error).clone()
        })
    }

    /// Closes the connection and fails all calls with this error, unless it failed before. Returns
    /// the first error.
    pub(crate) fn fail(&self, error: EspError) -> &EspError {
        let error = self.gone.get_or_init(|| error);
        if let Some(daemon) = self.daemon() {
            let _ = rustix::net::shutdown(&daemon.socket, rustix::net::Shutdown::Both);
        }
        let calls = std::mem::take(&mut *lock(&self.calls));
        for (_, cell) in calls.into_values() {
            cell.finish(Err(error.clone()));
        }
        let owners: Vec<_> = (lock(&self.slots).values())
            .map(|held| Arc::clone(&held.socket))
            .collect();
        owners.iter().for_each(|socket| socket.waiting.poke());
        self.notify_poller();
        self.notify_loss();
        error
    }

    /// Closes the connection, which ends the thread.
    pub(crate) fn close(&self) {
        if !self.is_forked() {
            self.fail(self.lost("this program closed it"));
        }
    }

    /// Returns the error for a reply of another type than expected.
    pub(crate) fn unexpected(&self, expected: &str) -> EspError {
        let what = format!("the reply to a request is not {expected}");
        self.bad_control(DecodeError::Malformed { id: None, what })
    }

    pub(super) fn bad_control(&self, source: DecodeError) -> EspError {
        EspError::bad_control(&self.path, source)
    }
}
