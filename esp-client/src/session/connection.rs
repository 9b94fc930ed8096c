//! [`Session`]: the control connection of a program, with its thread; or the session of a program
//! that serves itself.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use esp_engine::shm::{ClientPage, Doorbell, EngineView, Events, ForkMark};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::call::{Answer, ReplyCell};
use super::handshake::{Welcome, connect_socket, is_temporary, say_hello, send_all};
use crate::control::codec::{DecodeError, Decoder, encode, receive};
use crate::control::{Envelope, ErrorKind, Reply, Request};
use crate::error::EspError;
use crate::sync::{Waiting, lock};

/// Cause of a lost connection.
const CLOSED: &str = "the daemon closed the control socket";
/// Stands for the daemon's socket in error texts of a program that serves itself.
const LOCAL: &str = "(no daemon: ESP in UDP)";

/// Control connection, shared by its thread, the client handles and all objects opened.
pub(crate) struct Session {
    /// Path of the daemon's socket.
    pub(crate) path: PathBuf,
    /// `None`: there is no daemon, the program serves itself.
    daemon: Option<Daemon>,
    pub(crate) welcome: Welcome,
    /// A forked child must not use it.
    fork: ForkMark,
    next_id: AtomicU64,
    sending: Mutex<()>,
    calls: Mutex<HashMap<u64, Arc<ReplyCell>>>,
    slots: Mutex<HashMap<u16, Arc<Waiting>>>,
    /// Reason why the connection is lost.
    gone: OnceLock<EspError>,
    /// For a session with a [`Poller`](crate::Poller), which then also handles the events instead
    /// of the thread.
    pub(crate) notice: Option<ReplyNotice>,
}

/// Notifies the owner of a [`Poller`](crate::Poller) that a reply has arrived or the daemon is
/// gone.
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

/// The connection to a daemon.
struct Daemon {
    socket: OwnedFd,
    doorbell: Doorbell,
    doorbell_fd: OwnedFd,
    notify_fd: OwnedFd,
}

impl Session {
    /// Creates the session of a program that serves itself over its own UDP sockets. With `polled`
    /// it has a notice.
    pub(crate) fn local(welcome: Welcome, polled: bool) -> Result<Arc<Session>, EspError> {
        Self::new(Path::new(LOCAL), None, welcome, polled)
    }

    fn new(
        path: &Path,
        daemon: Option<Daemon>,
        welcome: Welcome,
        polled: bool,
    ) -> Result<Arc<Session>, EspError> {
        Ok(Arc::new(Session {
            path: path.to_owned(),
            daemon,
            welcome,
            fork: ForkMark::new().map_err(EspError::resource("map a page"))?,
            next_id: AtomicU64::new(2),
            sending: Mutex::new(()),
            calls: Mutex::new(HashMap::new()),
            slots: Mutex::new(HashMap::new()),
            gone: OnceLock::new(),
            notice: polled.then(ReplyNotice::new).transpose()?,
        }))
    }

    /// Returns true if the program serves itself, without a daemon.
    pub(crate) fn is_local(&self) -> bool {
        self.daemon.is_none()
    }

    /// Connects, introduces the program and starts the thread. With `polled` the session has a
    /// notice, and the caller handles its events.
    pub(crate) fn open(
        path: &Path,
        polled: bool,
    ) -> Result<(Arc<Session>, Option<Events>), EspError> {
        let socket = connect_socket(path).map_err(|error| EspError::Unreachable {
            socket: path.to_owned(),
            kind: error.kind(),
        })?;
        let mut decoder = Decoder::new();
        let (welcome, descriptors) = say_hello(path, &socket, &mut decoder)?;
        let [engine, page, doorbell_fd, notify_fd] = descriptors;
        let view = EngineView::open(engine.as_fd())?;
        let page = ClientPage::open(page.as_fd())?;
        let daemon = Daemon {
            socket,
            doorbell: Doorbell::new(Arc::clone(&page), view),
            doorbell_fd,
            notify_fd,
        };
        let session = Self::new(path, Some(daemon), welcome, polled)?;
        let events = Events::new(page);
        let (of_poller, mut of_thread) = match polled {
            true => (Some(events), None),
            false => (None, Some(events)),
        };
        let shared = Arc::clone(&session);
        std::thread::Builder::new()
            .name("esp-client".into())
            .spawn(move || shared.run(decoder, of_thread.as_mut()))
            .map_err(EspError::resource("start a thread"))?;
        Ok((session, of_poller))
    }

    /// Returns the descriptor that becomes readable by an event of a slot at the daemon.
    pub(crate) fn notify_fd(&self) -> Option<BorrowedFd<'_>> {
        self.daemon.as_ref().map(|daemon| daemon.notify_fd.as_fd())
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

    /// Returns an error once the connection is lost. Costs one load before.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), EspError> {
        match self.gone.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Returns false once the daemon has closed the socket, even if the thread has not noticed yet.
    pub(crate) fn is_alive(&self) -> bool {
        let Some(daemon) = &self.daemon else {
            return self.check().is_ok();
        };
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::new(&daemon.socket, ends)];
        let now = rustix::event::Timespec::default();
        let hung_up =
            rustix::event::poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(ends);
        !hung_up && self.check().is_ok()
    }

    fn lost(&self, why: impl Into<String>) -> EspError {
        EspError::gone(&self.path, why)
    }

    /// Rings the engine's doorbell for a slot. Makes a system call only if the engine sleeps.
    #[inline]
    pub(crate) fn ring(&self, slot: u16) {
        if let Some(daemon) = &self.daemon
            && daemon.doorbell.ring(slot)
        {
            // Fails only with a full counter, which wakes as well.
            let _ = rustix::io::write(&daemon.doorbell_fd, &1u64.to_ne_bytes());
        }
    }

    /// Registers the owner of a slot for its events.
    pub(crate) fn register(&self, slot: u16, owner: &Arc<Waiting>) {
        lock(&self.slots).insert(slot, Arc::clone(owner));
        if self.check().is_err() {
            owner.poke();
        }
    }

    /// Unregisters the owner of a slot; call it before the request that releases the slot. Returns
    /// false if it does not own the slot and must not release it; also in a forked child, which
    /// shares its parent's memory.
    pub(crate) fn unregister(&self, slot: u16, owner: &Arc<Waiting>) -> bool {
        if self.is_forked() {
            return false;
        }
        let mut slots = lock(&self.slots);
        let is_owner = slots.get(&slot).is_some_and(|own| Arc::ptr_eq(own, owner));
        if is_owner {
            slots.remove(&slot);
        }
        is_owner
    }

    /// Sends a request for a [`ReplyCell`]; returns its id, too.
    pub(super) fn begin_call(&self, request: &Request) -> Result<(u64, Arc<ReplyCell>), EspError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let cell = Arc::new(ReplyCell::default());
        lock(&self.calls).insert(id, Arc::clone(&cell));
        let sent = self.check().and_then(|()| self.send(id, request));
        if let Err(error) = sent {
            lock(&self.calls).remove(&id);
            return Err(error);
        }
        Ok((id, cell))
    }

    /// Sends a request whose reply is ignored.
    pub(crate) fn post(&self, request: &Request) {
        if self.check().is_ok() {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            // Fails only if the daemon is gone, and the object of the request with it.
            let _ = self.send(id, request);
        }
    }

    /// Returns the error for a missing reply.
    pub(crate) fn silent(&self, waiting_for: &'static str) -> EspError {
        EspError::silent(&self.path, waiting_for)
    }

    fn send(&self, id: u64, request: &Request) -> Result<(), EspError> {
        if self.is_forked() {
            return Err(EspError::Forked);
        }
        let daemon = self.daemon.as_ref().ok_or_else(|| {
            let text = "this needs esp-daemon, and the program runs without one";
            EspError::denied(ErrorKind::Unavailable, text)
        })?;
        let bytes = encode(&Envelope {
            id,
            body: request.clone(),
        })
        .map_err(|_| EspError::BadArgument("a name or key of the request is too long".into()))?;
        let _turn = lock(&self.sending);
        send_all(&daemon.socket, &bytes).map_err(|error| {
            let error = match error.kind() {
                io::ErrorKind::TimedOut => self.silent("it does not read its control socket"),
                _ => self.lost(CLOSED),
            };
            // A part may have been sent, so nothing can follow it.
            self.fail(error).clone()
        })
    }

    /// Closes the connection and fails all calls with this error, unless it failed before. Returns
    /// the first error.
    pub(crate) fn fail(&self, error: EspError) -> &EspError {
        let error = self.gone.get_or_init(|| error);
        if let Some(daemon) = &self.daemon {
            let _ = rustix::net::shutdown(&daemon.socket, rustix::net::Shutdown::Both);
        }
        let calls = std::mem::take(&mut *lock(&self.calls));
        for cell in calls.into_values() {
            cell.finish(Err(error.clone()));
        }
        let owners: Vec<_> = lock(&self.slots).values().cloned().collect();
        owners.iter().for_each(|owner| owner.poke());
        self.notify_poller();
        error
    }

    /// Closes the connection, and with it ends the thread.
    pub(crate) fn close(&self) {
        if !self.is_forked() {
            self.fail(self.lost("this program closed it"));
        }
    }

    /// Gives back to the daemon what an unwanted reply grants.
    pub(crate) fn give_back(&self, answer: &Answer) {
        match answer.reply {
            Reply::Stream { slot, .. } => {
                self.post(&Request::Abort { slot });
                self.post(&Request::Close { slot });
            }
            Reply::Edp { slot, .. } => self.post(&Request::CloseEdp { slot }),
            Reply::Lease { lease, .. } => self.post(&Request::EndLease { lease }),
            Reply::Listening { listener, .. } => self.post(&Request::CloseListener { listener }),
            _ => {}
        }
    }

    /// Returns the error for a reply of another type than expected.
    pub(crate) fn unexpected(&self, expected: &str) -> EspError {
        let what = format!("the reply to a request is not {expected}");
        self.bad_control(DecodeError::Malformed { id: None, what })
    }

    fn bad_control(&self, source: DecodeError) -> EspError {
        EspError::bad_control(&self.path, source)
    }

    /// Reads replies and, without a poller, events, until the connection ends.
    fn run(&self, mut decoder: Decoder<Reply>, mut events: Option<&mut Events>) {
        let Some(daemon) = &self.daemon else { return };
        let error = loop {
            if let Err(error) = self.deliver(&mut decoder) {
                break error;
            }
            let mut fds = [
                PollFd::new(&daemon.socket, PollFlags::IN),
                PollFd::new(&daemon.notify_fd, PollFlags::IN),
            ];
            let waited_for = if events.is_some() { 2 } else { 1 };
            match rustix::event::poll(&mut fds[..waited_for], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => break self.lost(format!("poll failed: {error}")),
            }
            if let Some(events) = &mut events
                && !fds[1].revents().is_empty()
            {
                let _ = rustix::io::read(&daemon.notify_fd, &mut [0u8; 64]);
                self.drain(events);
            }
            if fds[0].revents().is_empty() {
                continue;
            }
            match receive(&daemon.socket, &mut decoder) {
                Ok(0) => {
                    break match decoder.finish() {
                        Ok(()) => self.lost(CLOSED),
                        Err(source) => self.bad_control(source),
                    };
                }
                Ok(_) => {}
                Err(error) if is_temporary(&error) => {}
                Err(error) => break self.lost(error.to_string()),
            }
        };
        self.fail(error);
    }

    /// Delivers all complete replies.
    fn deliver(&self, decoder: &mut Decoder<Reply>) -> Result<(), EspError> {
        while let Some((envelope, descriptors)) =
            decoder.next().map_err(|source| self.bad_control(source))?
        {
            // Replies to `post` have no cell.
            let Some(cell) = lock(&self.calls).remove(&envelope.id) else {
                continue;
            };
            let answer = Answer {
                reply: envelope.body,
                descriptors,
            };
            if let Some(Ok(unwanted)) = cell.finish(Ok(answer)) {
                self.give_back(&unwanted);
            }
            self.notify_poller();
        }
        Ok(())
    }

    /// Delivers the events of slots.
    fn drain(&self, events: &mut Events) {
        let mut woken = Vec::new();
        let slots = lock(&self.slots);
        events.drain(|slot| woken.extend(slots.get(&slot).cloned()));
        drop(slots);
        woken.iter().for_each(|owner| owner.tasks.wake());
    }
}
