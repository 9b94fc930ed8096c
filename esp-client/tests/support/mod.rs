//! A daemon inside the test: the control socket with the crate's own codec, and for each program an
//! engine thread on the other side of the shared memory. The peer port (`port`) selects the
//! behaviour of a connection.

#![allow(dead_code, unreachable_pub, missing_docs)] // each test file uses its part

pub mod engine;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use esp_client::control::codec::{Decoder, encode, receive, send};
use esp_client::control::{
    Envelope, ErrorKind, ErrorReply, InterfaceInfo, Reply, Request, Rings, Status, VERSION,
};
use esp_client::{Client, EspAddr, MacAddr, NodeAddr};
use esp_engine::shm::{ClientPage, EnginePage, Region, RingSizes};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use engine::{Engine, Mode};

/// Behaviour of a fake peer.
pub mod port {
    /// Echoes everything, and ends when the program does.
    pub const ECHO: u16 = 7;
    /// Refuses.
    pub const REFUSED: u16 = 1;
    /// Has another key.
    pub const BAD_KEY: u16 = 3;
    /// Never answers.
    pub const DEAF: u16 = 2;
    /// Acknowledges everything, sends nothing.
    pub const SILENT: u16 = 4;
    /// Echoes the first bytes, then dies.
    pub const DIES: u16 = 5;
    /// Acknowledges nothing.
    pub const STUCK: u16 = 6;
    /// Sends "bye" and ends at once.
    pub const BYE: u16 = 8;
}

pub const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xaa]);
pub const SECOND: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xbb]);
pub const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

pub fn address(port: u16) -> EspAddr {
    EspAddr::new(PEER, port)
}

/// Options of the daemon.
#[derive(Clone, Default)]
pub struct Options {
    /// Two interfaces; the second answers echoes faster.
    pub two_interfaces: bool,
    /// No peer answers an echo.
    pub deaf_to_echo: bool,
    /// Connections waiting for every listener.
    pub incoming: u32,
}

struct Shared {
    options: Options,
    stop: AtomicBool,
    /// Number of further connections to listeners.
    incoming: AtomicU32,
    /// Accept requests that wait for one.
    waiting: AtomicU32,
    sockets: Mutex<Vec<UnixStream>>,
    requests: Mutex<Vec<Request>>,
}

pub struct FakeDaemon {
    path: PathBuf,
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

pub fn socket_name() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!(
        "esp-client-test-{}-{number}.sock",
        std::process::id()
    ))
}

impl FakeDaemon {
    pub fn start() -> FakeDaemon {
        Self::with(Options::default())
    }

    pub fn with(options: Options) -> FakeDaemon {
        let path = socket_name();
        let listener = UnixListener::bind(&path).unwrap();
        let shared = Arc::new(Shared {
            incoming: AtomicU32::new(options.incoming),
            options,
            waiting: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            sockets: Mutex::new(Vec::new()),
            requests: Mutex::new(Vec::new()),
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut programs = Vec::new();
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                if accepting.stop.load(Ordering::SeqCst) {
                    break;
                }
                accepting
                    .sockets
                    .lock()
                    .unwrap()
                    .push(socket.try_clone().unwrap());
                let shared = Arc::clone(&accepting);
                programs.push(std::thread::spawn(move || Program::serve(socket, shared)));
            }
            drop(listener);
            programs
                .into_iter()
                .for_each(|program| program.join().unwrap());
        });
        FakeDaemon {
            path,
            shared,
            threads: vec![thread],
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a client that does not wait for another daemon.
    pub fn client(&self) -> Client {
        let client = Client::connect(&self.path).unwrap();
        client.set_daemon_wait(Duration::ZERO);
        client
    }

    /// Allows further connections to listeners.
    pub fn let_in(&self, count: u32) {
        self.shared.incoming.fetch_add(count, Ordering::SeqCst);
    }

    /// Returns all requests received so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Returns the number of accept requests that wait.
    pub fn unanswered_accepts(&self) -> u32 {
        self.shared.waiting.load(Ordering::SeqCst)
    }

    /// Waits until this number of accepts is unanswered.
    pub fn wait_for_accepts(&self, count: u32) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.unanswered_accepts() != count {
            assert!(
                Instant::now() < end,
                "{} accepts wait, not {count}",
                self.unanswered_accepts()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for a request that matches.
    pub fn wait_for(&self, what: &str, fits: impl Fn(&Request) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !self.requests().iter().any(&fits) {
            assert!(
                Instant::now() < end,
                "no {what} among {:?}",
                self.requests()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Dies: closes the control sockets and leaves the shared memory unchanged.
    pub fn die(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for socket in self.shared.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        let _ = UnixStream::connect(&self.path);
        self.threads
            .drain(..)
            .for_each(|thread| thread.join().unwrap());
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        self.die();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A program at the daemon.
struct Program {
    socket: UnixStream,
    shared: Arc<Shared>,
    engine: Engine,
    next_slot: u16,
    listeners: HashMap<u64, u16>,
    next_listener: u64,
    accepts: VecDeque<(u64, u64, Rings)>,
}

impl Program {
    fn serve(socket: UnixStream, shared: Arc<Shared>) {
        let (engine_page, engine_fd) = EnginePage::create().unwrap();
        let (page, page_fd) = ClientPage::create().unwrap();
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let notify = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let welcome = [
            engine_fd,
            page_fd,
            doorbell.try_clone().unwrap(),
            notify.try_clone().unwrap(),
        ];
        let engine = Engine::start(engine_page, page, doorbell, notify, shared.options.clone());
        let mut program = Program {
            socket,
            shared,
            engine,
            next_slot: 0,
            listeners: HashMap::new(),
            next_listener: 1,
            accepts: VecDeque::new(),
        };
        program.run(&welcome);
        program.engine.stop();
    }

    fn run(&mut self, welcome: &[OwnedFd]) {
        let mut decoder = Decoder::<Request>::new();
        loop {
            self.give_out();
            let timeout = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 2_000_000,
            };
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            if rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 0 {
                continue;
            }
            match receive(&self.socket, &mut decoder) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            while let Some((envelope, _)) = decoder.next().unwrap() {
                self.shared
                    .requests
                    .lock()
                    .unwrap()
                    .push(envelope.body.clone());
                self.answer(envelope.id, envelope.body, welcome);
            }
        }
    }

    fn reply(&self, id: u64, body: Reply, fds: &[OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let bytes = encode(&Envelope { id, body }).unwrap();
        // An empty socket takes a small message whole; a closed one does not matter.
        if let Ok(sent) = send(&self.socket, &bytes, &fds) {
            assert_eq!(sent, bytes.len());
        }
    }

    fn error(&self, id: u64, kind: ErrorKind, message: &str) {
        self.reply(
            id,
            Reply::Error(ErrorReply {
                kind,
                message: message.into(),
            }),
            &[],
        );
    }

    fn interfaces(&self) -> Vec<InterfaceInfo> {
        let link = |name: &str, mac: MacAddr| InterfaceInfo {
            name: name.into(),
            addr: mac.into(),
            mtu: 1500,
            up: true,
        };
        let mut all = vec![link("eth0", OWN)];
        if self.shared.options.two_interfaces {
            all.push(link("eth1", SECOND));
        }
        all
    }

    fn answer(&mut self, id: u64, request: Request, welcome: &[OwnedFd]) {
        match request {
            Request::Hello { .. } => {
                let interfaces = self.interfaces();
                let hello = Reply::Hello {
                    version: VERSION,
                    daemon: "test".into(),
                    client: 1,
                    incarnation: 9,
                    engine: 0,
                    interfaces,
                    leases: false,
                };
                self.reply(id, hello, welcome);
            }
            Request::Connect {
                interface,
                peer,
                peer_port,
                rings,
                ..
            } => {
                if interface.as_deref() == Some("eth9") {
                    return self.error(id, ErrorKind::NotFound, "there is no interface eth9");
                }
                self.open(id, rings, interface.unwrap(), peer, peer_port);
            }
            Request::Close { slot } => {
                self.engine.close(slot);
                self.reply(id, Reply::Done, &[]);
            }
            Request::Abort { slot } => {
                self.engine.abort(slot);
                self.reply(id, Reply::Done, &[]);
            }
            Request::BindEdp {
                interface,
                port,
                rings,
            } => {
                if port == 13 {
                    return self.error(id, ErrorKind::InUse, "EDP port 13 is in use");
                }
                let interface = interface.unwrap_or_else(|| "eth0".into());
                let slot = self.slot();
                let (region, fd) = Region::create(RingSizes {
                    tx: rings.tx,
                    rx: rings.rx,
                })
                .unwrap();
                self.engine.open_edp(slot, &interface, region);
                self.reply(
                    id,
                    Reply::Edp {
                        slot,
                        rings,
                        interface,
                        port: port.max(40000),
                    },
                    &[fd],
                );
            }
            Request::CloseEdp { slot } => {
                self.engine.close(slot);
                self.reply(id, Reply::Done, &[]);
            }
            Request::Listen { port, .. } => {
                if port == 80 {
                    return self.error(id, ErrorKind::Permission, "port 80 is for the superuser");
                }
                let listener = self.next_listener;
                self.next_listener += 1;
                let port = if port == 0 { 50000 } else { port };
                self.listeners.insert(listener, port);
                self.reply(id, Reply::Listening { listener, port }, &[]);
            }
            Request::CloseListener { listener } => {
                self.listeners.remove(&listener);
                self.reply(id, Reply::Done, &[]);
            }
            Request::Accept { listener, rings } => {
                self.shared.waiting.fetch_add(1, Ordering::SeqCst);
                self.accepts.push_back((id, listener, rings));
            }
            Request::CancelAccept { accept } => {
                if self.accepts.iter().any(|(id, ..)| *id == accept) {
                    self.accepts.retain(|(id, ..)| *id != accept);
                    self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
                    self.error(accept, ErrorKind::Cancelled, "withdrawn");
                }
                self.reply(id, Reply::Done, &[]);
            }
            Request::ResumeStream { .. } | Request::ResumeEdp { .. } => {
                self.error(id, ErrorKind::BadArgument, "nothing is resumed here");
            }
            Request::Lease { .. } | Request::Adopt { .. } | Request::Standby { .. } => {
                self.error(id, ErrorKind::Permission, "no leases here");
            }
            Request::EndLease { .. } | Request::LeaseConnection { .. } => {
                self.reply(id, Reply::Done, &[]);
            }
            Request::Status => {
                let status = Status {
                    daemon: "test".into(),
                    interfaces: self.interfaces(),
                    ..Status::default()
                };
                self.reply(id, Reply::Status(Box::new(status)), &[]);
            }
        }
    }

    fn slot(&mut self) -> u16 {
        self.next_slot += 1;
        self.next_slot
    }

    fn open(&mut self, id: u64, rings: Rings, interface: String, peer: NodeAddr, peer_port: u16) {
        let slot = self.slot();
        let (region, fd) = Region::create(RingSizes {
            tx: rings.tx,
            rx: rings.rx,
        })
        .unwrap();
        self.engine.open(slot, Mode::of(peer_port), region);
        self.reply(
            id,
            Reply::Stream {
                slot,
                rings,
                interface,
                local_port: 32768,
                peer,
                peer_port,
            },
            &[fd],
        );
    }

    /// Answers accept requests while connections are allowed.
    fn give_out(&mut self) {
        while let Some(&(id, listener, rings)) = self.accepts.front() {
            let taken =
                self.shared
                    .incoming
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            if taken.is_err() {
                return;
            }
            self.accepts.pop_front();
            assert!(self.listeners.contains_key(&listener));
            self.open(id, rings, "eth0".into(), PEER.into(), port::ECHO);
            self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Path of a socket, removed on drop.
pub struct SocketFile(PathBuf);

impl AsRef<std::path::Path> for SocketFile {
    fn as_ref(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens on a socket and runs the test's function for each program.
pub fn scripted(script: impl Fn(UnixStream) + Send + 'static) -> SocketFile {
    let path = SocketFile(socket_name());
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            script(socket);
        }
    });
    path
}

/// Starts a call on a thread. Returns when the thread sleeps in the kernel, as in a call that
/// blocks,
/// or has ended.
pub fn blocked<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    call: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let (tell, hear) = std::sync::mpsc::channel();
    let thread = scope.spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        call()
    });
    let file = format!("/proc/self/task/{}/stat", hear.recv().unwrap().as_raw_pid());
    // The state follows the name of the thread, which is in parentheses.
    let sleeps = || {
        let stat = std::fs::read_to_string(&file).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('S'))
    };
    let end = Instant::now() + Duration::from_secs(20);
    while !thread.is_finished() && !sleeps() {
        assert!(Instant::now() < end, "the call neither blocks nor ends");
        std::thread::sleep(Duration::from_millis(1));
    }
    thread
}

/// Runs a call that might hang on its own thread, and fails if it takes too long.
pub fn within<T: Send + 'static>(
    seconds: u64,
    what: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, result) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || done.send(run()));
    match result.recv_timeout(Duration::from_secs(seconds)) {
        Ok(value) => value,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("the thread sends before it ends"),
        },
    }
}
