//! A node with a fake engine, and hand-written programs that talk to it (or to a real daemon).
#![allow(dead_code, unreachable_pub)] // each test file uses its part

pub mod engine;
pub mod program;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use esp_client::control::InterfaceInfo;
use esp_daemon::config::Config;
use esp_daemon::engines::Engines;
use esp_daemon::node::{Node, NodeOptions};
use esp_daemon::peer::{Credentials, Identify};
use esp_daemon::server;
use esp_engine::EngineSet;
use esp_proto::{ConnImage, MacAddr, NodeAddr, Port};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use engine::FakeEngine;
use program::Program;

/// Timeout of every wait; only a failing test reaches it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the image of a connection to port 7000 of a peer.
pub fn image(local_port: Port, peer: NodeAddr) -> ConnImage {
    ConnImage {
        local_port,
        peer,
        peer_port: 7000,
        nonce: 11,
        peer_nonce: 12,
        epoch: 0,
        payload: 1489,
        max_ack_delay: 200,
        ecn: false,
        rails: Default::default(),
    }
}

/// A temporary directory, removed on drop.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "esp-daemon-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until a condition is true.
#[track_caller]
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The control plane over a [`FakeEngine`] with the links `net0` and `net1`.
pub struct Rig {
    pub node: Arc<Node>,
    pub engine: FakeEngine,
    pub runtime: Runtime,
    /// User of every new connection.
    pub uid: Arc<AtomicU32>,
    socket: PathBuf,
    stop: watch::Sender<bool>,
    serving: Option<JoinHandle<()>>,
    _dir: TempDir,
}

impl Rig {
    /// Creates a rig with this config file.
    pub fn new(config: &str) -> Rig {
        Rig::with_patience(config, Duration::from_secs(5))
    }

    /// Creates a rig that waits for programs this long.
    pub fn with_patience(config: &str, patience: Duration) -> Rig {
        let config = Config::parse(config, Path::new("test.toml")).unwrap();
        let dir = TempDir::new();
        let socket = dir.path().join("esp.sock");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (events_tx, events) = tokio::sync::mpsc::unbounded_channel();
        let engine = FakeEngine::start(events_tx);
        let link = |name: &str, last| InterfaceInfo {
            name: name.into(),
            addr: MacAddr([2, 0, 0, 0, 0, last]).into(),
            mtu: 1500,
            up: true,
        };
        let (send, page) = engine.connect();
        let options = NodeOptions {
            engines: Engines::new(EngineSet::new(1).unwrap(), vec![(send, page)]),
            links: vec![link("net0", 1), link("net1", 2)],
            limits: config.limits.clone(),
            rings: config.rings.clone(),
            patience,
            lease: Default::default(),
        };
        let node = Node::new(options);
        let uid = Arc::new(AtomicU32::new(1000));
        let (stop, stopped) = watch::channel(false);
        let listener = {
            let _inside = runtime.enter();
            tokio::net::UnixListener::bind(&socket).unwrap()
        };
        runtime.spawn(Arc::clone(&node).dispatch(events));
        let identify: Identify = {
            let uid = Arc::clone(&uid);
            Arc::new(move |_| {
                Ok(Credentials {
                    uid: uid.load(Ordering::SeqCst),
                    gid: 7,
                    pid: Some(std::process::id()),
                })
            })
        };
        let serving = runtime.spawn(server::serve(
            Arc::clone(&node),
            listener,
            identify,
            stopped,
        ));
        Rig {
            node,
            engine,
            runtime,
            uid,
            socket,
            stop,
            serving: Some(serving),
            _dir: dir,
        }
    }

    /// Opens a connection that has sent nothing yet.
    pub fn connect(&self) -> Program {
        Program::connect(&self.socket)
    }

    /// Connects a program of the current user and sends Hello.
    pub fn program(&self) -> Program {
        let mut program = self.connect();
        program.hello("test");
        program
    }

    /// Connects a program of the given user and sends Hello.
    pub fn program_of(&self, uid: u32) -> Program {
        self.uid.store(uid, Ordering::SeqCst);
        self.program()
    }

    /// Returns a counter of the control plane.
    #[track_caller]
    pub fn count(&self, name: &str) -> u64 {
        let list = self.node.stats.list();
        list.iter()
            .find(|(n, _, _)| *n == name)
            .unwrap_or_else(|| panic!("no counter {name}"))
            .2
    }

    /// Stops the daemon's part and waits for its end.
    pub fn stop(&mut self) {
        self.stop.send(true).unwrap();
        self.runtime.block_on(self.serving.take().unwrap()).unwrap();
    }
}
