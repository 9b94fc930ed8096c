//! One program's connection to its daemon: requests, replies, and the thread that waits for both
//! sides of it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use esp_engine::shm::{ClientPage, Doorbell, EngineView, Events};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::call::{Answer, Call, CallCell};
use crate::control::{Envelope, InterfaceInfo, Reply, Request, VERSION};
use crate::error::EspError;
use crate::io::{DecodeError, Decoder, encode, receive, send};
use crate::poller::Answers;

/// How long the daemon may take for anything that is not waiting for a peer.
pub(crate) const DAEMON_TIMEOUT: Duration = Duration::from_secs(5);
/// The name of a program is cut to this.
const MAX_PROGRAM_NAME: usize = 64;

/// What the daemon said in its welcome.
#[derive(Clone, Debug)]
pub(crate) struct Welcome {
    pub(crate) daemon: String,
    pub(crate) client: u64,
    pub(crate) incarnation: u64,
    pub(crate) interfaces: Vec<InterfaceInfo>,
    pub(crate) leases: bool,
    /// The daemon knows standbys of leases.
    pub(crate) standbys: bool,
}

/// Something with a slot that the thread wakes: a stream or a datagram socket.
pub(crate) trait Wakeable: Send + Sync {
    /// The engine raised the slot's event bit.
    fn event(&self);
    /// The daemon is gone: wake everyone who sleeps, they will look at [`Session::check`].
    fn daemon_gone(&self);
}

/// Shared by the thread, the client handles and all that they opened.
pub(crate) struct Session {
    path: PathBuf,
    socket: OwnedFd,
    doorbell: Doorbell,
    doorbell_fd: OwnedFd,
    notify_fd: OwnedFd,
    welcome: Welcome,
    /// Process that opened it; a forked child must not touch it.
    pid: u32,
    next_id: AtomicU64,
    sending: Mutex<()>,
    calls: Mutex<HashMap<u64, Arc<CallCell>>>,
    slots: Mutex<HashMap<u16, Arc<dyn Wakeable>>>,
    /// Set before `gone_flag`; the flag is what hot paths look at.
    gone: OnceLock<EspError>,
    gone_flag: AtomicBool,
    /// A [`Poller`](crate::Poller) takes the events, and hears of answers by this; the thread takes
    /// only answers.
    answers: Option<Answers>,
}

/// A panic of another thread in one of our short critical sections leaves nothing half done.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Connects, says hello, starts the thread.
    pub(crate) fn open(path: &Path) -> Result<Arc<Session>, EspError> {
        let (session, decoder, mut events) = Self::prepare(path, None)?;
        let shared = Arc::clone(&session);
        Self::spawn(move || shared.run(decoder, Some(&mut events)))?;
        Ok(session)
    }

    /// The same for an owner that takes the events itself.
    pub(crate) fn open_polled(path: &Path) -> Result<(Arc<Session>, Events), EspError> {
        let answers = Answers::new().map_err(|error| EspError::Memory {
            what: format!("no eventfd could be made: {error}"),
        })?;
        let (session, decoder, events) = Self::prepare(path, Some(answers))?;
        let shared = Arc::clone(&session);
        Self::spawn(move || shared.run(decoder, None))?;
        Ok((session, events))
    }

    fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), EspError> {
        std::thread::Builder::new()
            .name("esp-client".into())
            .spawn(work)
            .map(drop)
            .map_err(|error| EspError::Memory {
                what: format!("no thread could be started: {error}"),
            })
    }

    fn prepare(
        path: &Path,
        answers: Option<Answers>,
    ) -> Result<(Arc<Session>, Decoder<Reply>, Events), EspError> {
        let socket = connect_socket(path).map_err(|error| EspError::Unreachable {
            socket: path.to_owned(),
            kind: error.kind(),
        })?;
        let mut decoder = Decoder::new();
        let (welcome, descriptors) = say_hello(path, &socket, &mut decoder)?;
        let memory = |what: String| EspError::Memory { what };
        let [engine, page, doorbell_fd, notify_fd] = descriptors;
        let view = EngineView::open(engine.as_fd()).map_err(|error| memory(error.to_string()))?;
        let page = ClientPage::open(page.as_fd()).map_err(|error| memory(error.to_string()))?;
        let session = Arc::new(Session {
            path: path.to_owned(),
            socket,
            doorbell: Doorbell::new(Arc::clone(&page), view),
            doorbell_fd,
            notify_fd,
            welcome,
            pid: std::process::id(),
            next_id: AtomicU64::new(2),
            sending: Mutex::new(()),
            calls: Mutex::new(HashMap::new()),
            slots: Mutex::new(HashMap::new()),
            gone: OnceLock::new(),
            gone_flag: AtomicBool::new(false),
            answers,
        });
        Ok((session, decoder, Events::new(page)))
    }

    pub(crate) fn notify_fd(&self) -> &OwnedFd {
        &self.notify_fd
    }

    pub(crate) fn answers(&self) -> Option<&Answers> {
        self.answers.as_ref()
    }

    /// Wakes the owner of a poller as an answer does.
    pub(crate) fn tell(&self) {
        if let Some(answers) = &self.answers {
            answers.tell();
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// True in a process forked from the one that opened the session.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// An error once the daemon is gone. One load while it is there.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), EspError> {
        if self.gone_flag.load(Ordering::Acquire) {
            Err(self.gone_error())
        } else {
            Ok(())
        }
    }

    /// False once the daemon has hung up, also when the thread has not come to see it yet.
    pub(crate) fn is_alive(&self) -> bool {
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::new(&self.socket, ends)];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let hung_up =
            rustix::event::poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(ends);
        !hung_up && self.check().is_ok()
    }

    fn gone_error(&self) -> EspError {
        self.gone
            .get()
            .cloned()
            .unwrap_or_else(|| self.gone_because("it closed the control socket"))
    }

    fn gone_because(&self, why: impl Into<String>) -> EspError {
        EspError::DaemonGone {
            socket: self.path.clone(),
            why: why.into(),
        }
    }

    /// Tells the engine to look at a slot; a system call only when it sleeps.
    #[inline]
    pub(crate) fn ring(&self, slot: u16) {
        if self.doorbell.ring(slot) {
            // It can only fail with the counter full, and then the engine is on its way.
            let _ = rustix::io::write(&self.doorbell_fd, &1u64.to_ne_bytes());
        }
    }

    /// From now on events of the slot go to this object.
    pub(crate) fn register<T: Wakeable + 'static>(&self, slot: u16, object: &Arc<T>) {
        lock(&self.slots).insert(slot, Arc::clone(object) as Arc<dyn Wakeable>);
        if self.check().is_err() {
            object.daemon_gone();
        }
    }

    /// Forgets the slot; to be called before the daemon is told that it is free. False: the object
    /// does not own the slot (any more), so closing it is not its business. Nor is it in a forked
    /// child, which shares its parent's memory.
    pub(crate) fn unregister<T: Wakeable>(&self, slot: u16, object: &Arc<T>) -> bool {
        if self.is_forked() {
            return false;
        }
        let mut slots = lock(&self.slots);
        let ours = slots
            .get(&slot)
            .is_some_and(|owner| std::ptr::addr_eq(Arc::as_ptr(owner), Arc::as_ptr(object)));
        if ours {
            slots.remove(&slot);
        }
        ours
    }

    /// Sends a request whose answer will be waited for.
    pub(crate) fn call(self: &Arc<Self>, request: &Request) -> Result<Call, EspError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let cell = Arc::new(CallCell::default());
        lock(&self.calls).insert(id, Arc::clone(&cell));
        let accept = matches!(request, Request::Accept { .. });
        let sent = self.check().and_then(|()| self.send(id, request));
        if let Err(error) = sent {
            lock(&self.calls).remove(&id);
            return Err(error);
        }
        Ok(Call::new(Arc::clone(self), id, cell, accept))
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn ask(self: &Arc<Self>, request: &Request) -> Result<Answer, EspError> {
        match self
            .call(request)?
            .wait(Some(Instant::now() + DAEMON_TIMEOUT))
        {
            Some(result) => result,
            None => Err(self.silent("a request is not answered")),
        }
    }

    /// Sends a request whose answer nobody needs.
    pub(crate) fn post(&self, request: &Request) {
        if self.check().is_ok() {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            // When it cannot be sent the daemon is gone, and with it what the request was about.
            let _ = self.send(id, request);
        }
    }

    pub(crate) fn silent(&self, waiting_for: &'static str) -> EspError {
        EspError::DaemonSilent {
            socket: self.path.clone(),
            waiting_for,
        }
    }

    fn send(&self, id: u64, request: &Request) -> Result<(), EspError> {
        if self.is_forked() {
            return Err(EspError::Forked);
        }
        let bytes = encode(&Envelope {
            id,
            body: request.clone(),
        })
        .map_err(|_| EspError::BadArgument("a name or key of the request is too long"))?;
        let _turn = lock(&self.sending);
        let result = send_all(&self.socket, &bytes);
        result.map_err(|error| {
            let error = match error.kind() {
                io::ErrorKind::TimedOut => self.silent("it does not read its control socket"),
                _ => self.gone_because("it closed the control socket"),
            };
            // A part may have been sent: nothing more can follow it.
            self.fail(error.clone());
            self.gone.get().cloned().unwrap_or(error)
        })
    }

    /// Ends everything with this error. The first one counts.
    pub(crate) fn fail(&self, error: EspError) {
        let _ = self.gone.set(error);
        self.gone_flag.store(true, Ordering::SeqCst);
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let calls = std::mem::take(&mut *lock(&self.calls));
        for cell in calls.into_values() {
            cell.finish(Err(self.gone_error()));
        }
        let objects: Vec<_> = lock(&self.slots).values().cloned().collect();
        for object in objects {
            object.daemon_gone();
        }
        self.tell();
    }

    /// The last handle is gone: end the connection and with it the thread.
    pub(crate) fn close(&self) {
        if !self.is_forked() {
            self.fail(self.gone_because("this program has closed its connection to it"));
        }
    }

    /// An answer that came for a call nobody waits for any more: give back what it brought.
    pub(crate) fn dispose(&self, answer: &Answer) {
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

    pub(crate) fn unexpected(&self, wanted: &str) -> EspError {
        let what = format!("a request was not answered by {wanted}");
        let source = DecodeError::Malformed { id: None, what };
        EspError::BadControl {
            socket: self.path.clone(),
            source,
        }
    }

    /// The thread. Ends when the control socket does.
    fn run(&self, mut decoder: Decoder<Reply>, mut events: Option<&mut Events>) {
        let error = loop {
            if let Err(error) = self.deliver(&mut decoder) {
                break error;
            }
            let mut fds = [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::new(&self.notify_fd, PollFlags::IN),
            ];
            let waited_for = if events.is_some() { 2 } else { 1 };
            match rustix::event::poll(&mut fds[..waited_for], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => break self.gone_because(format!("poll failed: {error}")),
            }
            if let Some(events) = &mut events
                && !fds[1].revents().is_empty()
            {
                let _ = rustix::io::read(&self.notify_fd, &mut [0u8; 64]);
                self.drain(events);
            }
            if fds[0].revents().is_empty() {
                continue;
            }
            match receive(&self.socket, &mut decoder) {
                Ok(0) => {
                    break match decoder.finish() {
                        Ok(()) => self.gone_because("it closed the control socket"),
                        Err(source) => EspError::BadControl {
                            socket: self.path.clone(),
                            source,
                        },
                    };
                }
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => break self.gone_because(error.to_string()),
            }
        };
        self.fail(error);
    }

    /// Hands on the replies that have come in whole.
    fn deliver(&self, decoder: &mut Decoder<Reply>) -> Result<(), EspError> {
        loop {
            match decoder.next() {
                Ok(None) => return Ok(()),
                Ok(Some((envelope, descriptors))) => {
                    let cell = lock(&self.calls).remove(&envelope.id);
                    // Without one it answers a `post`.
                    let Some(cell) = cell else { continue };
                    let answer = Answer {
                        reply: envelope.body,
                        descriptors,
                    };
                    if let Some(Ok(unwanted)) = cell.finish(Ok(answer)) {
                        self.dispose(&unwanted);
                    }
                    self.tell();
                }
                Err(source) => {
                    return Err(EspError::BadControl {
                        socket: self.path.clone(),
                        source,
                    });
                }
            }
        }
    }

    fn drain(&self, events: &mut Events) {
        let mut woken = Vec::new();
        {
            let slots = lock(&self.slots);
            events.drain(|slot| woken.extend(slots.get(&slot).cloned()));
        }
        for object in woken {
            object.event();
        }
    }
}

/// Tasks that wait for the same thing.
#[derive(Default)]
pub(crate) struct WakerCell(Mutex<Vec<Waker>>);

/// Tasks remembered at most; beyond it the oldest is woken, finds nothing, and comes again.
#[cfg(feature = "tokio")]
const MAX_WAKERS: usize = 64;

impl WakerCell {
    #[cfg(feature = "tokio")]
    pub(crate) fn register(&self, cx: &std::task::Context<'_>) {
        let mut wakers = lock(&self.0);
        if wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            return;
        }
        let oldest = (wakers.len() >= MAX_WAKERS).then(|| wakers.remove(0));
        wakers.push(cx.waker().clone());
        drop(wakers);
        if let Some(waker) = oldest {
            waker.wake();
        }
    }

    pub(crate) fn wake(&self) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn connect_socket(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Bounds connect when the daemon does not accept. Our sends never wait in the kernel.
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Send,
        Some(DAEMON_TIMEOUT),
    )?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

fn program_name() -> String {
    let path = std::env::current_exe().ok();
    let name = path
        .as_deref()
        .and_then(Path::file_name)
        .map(|name| name.to_string_lossy().into_owned());
    let mut name = name.unwrap_or_default();
    let mut end = name.len().min(MAX_PROGRAM_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}

fn say_hello(
    path: &Path,
    socket: &OwnedFd,
    decoder: &mut Decoder<Reply>,
) -> Result<(Welcome, [OwnedFd; 4]), EspError> {
    let gone = |why: &str| EspError::DaemonGone {
        socket: path.to_owned(),
        why: why.to_owned(),
    };
    let silent = || EspError::DaemonSilent {
        socket: path.to_owned(),
        waiting_for: "no welcome came",
    };
    let bad = |source| EspError::BadControl {
        socket: path.to_owned(),
        source,
    };
    let malformed = |what: &str| {
        bad(DecodeError::Malformed {
            id: None,
            what: what.to_owned(),
        })
    };

    let hello = Envelope {
        id: 1,
        body: Request::Hello {
            version: VERSION,
            program: program_name(),
        },
    };
    let bytes =
        encode(&hello).map_err(|_| EspError::BadArgument("the program's name cannot be sent"))?;
    match send_all(socket, &bytes) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(silent()),
        // Hung up on already, it can still read why.
        Ok(()) | Err(_) => {}
    }
    let deadline = Instant::now() + DAEMON_TIMEOUT;
    loop {
        if let Some((envelope, descriptors)) = decoder.next().map_err(bad)? {
            return match envelope.body {
                Reply::Hello { version, .. } if version != VERSION => Err(malformed(&format!(
                    "it speaks version {version}, this program {VERSION}"
                ))),
                Reply::Hello {
                    daemon,
                    client,
                    incarnation,
                    interfaces,
                    leases,
                    standbys,
                    ..
                } => {
                    let four = descriptors.try_into().map_err(|_| {
                        malformed("its descriptors did not come; is this process at its limit of open files?")
                    })?;
                    Ok((
                        Welcome {
                            daemon,
                            client,
                            incarnation,
                            interfaces,
                            leases,
                            standbys,
                        },
                        four,
                    ))
                }
                Reply::Error(error) => Err(error.into()),
                _ => Err(malformed("the first answer is not a welcome")),
            };
        }
        if !wait_for(socket, PollFlags::IN, deadline).map_err(|error| gone(&error.to_string()))? {
            return Err(silent());
        }
        match receive(socket, decoder) {
            Ok(0) => {
                decoder.finish().map_err(bad)?;
                return Err(gone("it closed the control socket before its welcome"));
            }
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(gone(&error.to_string())),
        }
    }
}

/// Sends all of it within [`DAEMON_TIMEOUT`]; `TimedOut` if the other side does not read.
fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    let deadline = Instant::now() + DAEMON_TIMEOUT;
    while !bytes.is_empty() {
        match send(socket, bytes, &[]) {
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !wait_for(socket, PollFlags::OUT, deadline)? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until the socket is ready; false at the deadline.
fn wait_for(socket: &OwnedFd, flags: PollFlags, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let timeout = rustix::event::Timespec::try_from(left).ok();
        match rustix::event::poll(&mut [PollFd::new(socket, flags)], timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}
