//! An engine in a network namespace with one program, as the daemon and the client library use it.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use esp_engine::shm::{
    ClientPage, Doorbell, EngineView, Region, RingSizes, RxConsumer, Spin, Status, StreamState,
    TxProducer, Wake,
};
use esp_engine::{
    ClientId, Command, Engine, EngineConfig, EngineEvent, EngineHandle, IdleConfig, LinkId,
    ListenerId, Snapshot, UdpAddresses, UdpLink,
};
use esp_proto::{EndpointConfig, MacAddr, NodeAddr, Port};
use netns::{Namespace, Node};

pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Host {
    client: ClientId,
    pub handle: EngineHandle,
    pub events: Receiver<EngineEvent>,
    pub mac: MacAddr,
    page: Arc<ClientPage>,
    view: Arc<EngineView>,
    eventfd: OwnedFd,
    next_slot: u16,
}

pub struct Program {
    pub tx: TxProducer,
    pub rx: RxConsumer,
    pub status: Status,
    pub slot: u16,
    doorbell: Doorbell,
    pub eventfd: OwnedFd,
}

fn eventfd() -> OwnedFd {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Creates a namespace; `None`, after reporting it, where the privilege or `ip` is missing.
pub fn namespace_or_skip(test: &str) -> std::io::Result<Option<Namespace>> {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    match Namespace::new() {
        Err(error) if matches!(error.kind(), PermissionDenied | NotFound) => {
            netns::skip(test, &error.to_string());
            Ok(None)
        }
        made => made.map(Some),
    }
}

/// An embedded engine, its handle, its link, and the page of its program.
pub type Embedded = (Engine, EngineHandle, LinkId, Arc<ClientPage>);

/// Program of an embedded engine.
pub const EMBEDDED: ClientId = ClientId(1);

/// Starts an embedded engine with a UDP link of the namespace and the program [`EMBEDDED`], whose
/// page is returned.
pub fn embedded(namespace: &Namespace) -> Result<Embedded, Box<dyn std::error::Error>> {
    Ok(embedded_with(namespace, Box::new(drop))?.0)
}

/// Starts an engine as [`embedded`] does, which passes its events to `sink`; returns its address,
/// too.
pub fn embedded_with(
    namespace: &Namespace,
    sink: Box<dyn FnMut(EngineEvent) + Send>,
) -> Result<(Embedded, NodeAddr), Box<dyn std::error::Error>> {
    let mut links = namespace.run(|| UdpLink::bind_all(UdpAddresses::First, |_, _| true, 0))?;
    let (mut engine, handle) = Engine::embedded(IdleConfig::default(), sink)?;
    let only = links.pop().ok_or("no link")?;
    let addr = only.addr();
    let link = engine.add_udp(only, EndpointConfig::default(), 1, None)?;
    let (page, _fd) = ClientPage::create()?;
    let (notify, _other) = std::os::unix::net::UnixStream::pair()?;
    handle.send(Command::AddClient {
        client: EMBEDDED,
        user: 0,
        page: Arc::clone(&page),
        doorbell: eventfd(),
        notify: notify.into(),
    })?;
    Ok(((engine, handle, link, page), addr))
}

impl Host {
    pub fn start(node: &Node, tweak: impl FnOnce(&mut EngineConfig)) -> Host {
        let interface = node.interface();
        let mac = MacAddr(interface.mac.octets());
        let mut config = EngineConfig {
            links: vec![esp_engine::LinkConfig::Ethernet(interface)],
            ..Default::default()
        };
        tweak(&mut config);
        let (events_in, events) = channel();
        let sink = Box::new(move |event| drop(events_in.send(event)));
        let (engine, handle) = node.run(move || Engine::new(config, sink)).expect("engine");
        let name = format!("engine-{}", mac.octets()[5]);
        std::thread::Builder::new()
            .name(name)
            .spawn(move || engine.run())
            .unwrap();
        Host::program_of(ClientId(1), 1, (handle, mac), events)
    }

    /// Connects a program of another user.
    pub fn other_user(&self) -> Host {
        Host::program_of(ClientId(2), 2, (self.handle.clone(), self.mac), channel().1)
    }

    fn program_of(
        client: ClientId,
        user: u32,
        (handle, mac): (EngineHandle, MacAddr),
        events: Receiver<EngineEvent>,
    ) -> Host {
        let (page, _fd) = ClientPage::create().unwrap();
        let view = EngineView::open(handle.page_fd()).unwrap();
        let eventfd = eventfd();
        let doorbell = eventfd.try_clone().unwrap();
        let (notify, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let command = Command::AddClient {
            client,
            user,
            page: Arc::clone(&page),
            doorbell,
            notify: notify.into(),
        };
        handle.send(command).unwrap();
        Host {
            client,
            handle,
            events,
            mac,
            page,
            view,
            eventfd,
            next_slot: 0,
        }
    }

    fn ask<T: Send + 'static>(&self, make: impl FnOnce(esp_engine::Reply<T>) -> Command) -> T {
        let (tx, rx) = sync_channel(1);
        self.handle
            .send(make(Box::new(move |value| drop(tx.send(value)))))
            .unwrap();
        rx.recv_timeout(PATIENCE).expect("the engine answers")
    }

    pub fn snapshot(&self) -> Snapshot {
        self.ask(|reply| Command::Snapshot { reply })
    }

    pub fn counter(&self, name: &str) -> u64 {
        let snapshot = self.snapshot();
        let all = snapshot.links[0].counters.iter().chain(&snapshot.engine);
        all.clone()
            .find(|(n, _, _)| *n == name)
            .unwrap_or_else(|| panic!("no counter {name}"))
            .2
    }

    pub fn listen(&self, port: Port) {
        self.ask(|reply| Command::Listen {
            client: self.client,
            listener: ListenerId(u64::from(port)),
            link: None,
            port,
            backlog: 16,
            key: Vec::new(),
            reply,
        })
        .expect("listen");
    }

    fn program(&mut self, region: Arc<Region>) -> Program {
        let slot = self.next_slot;
        self.next_slot += 1;
        Program {
            tx: TxProducer::new(Arc::clone(&region)),
            rx: RxConsumer::new(Arc::clone(&region)),
            status: Status::new(region),
            slot,
            doorbell: Doorbell::new(Arc::clone(&self.page), Arc::clone(&self.view)),
            eventfd: self.eventfd.try_clone().unwrap(),
        }
    }

    fn region() -> (Arc<Region>, Arc<Region>) {
        let shift: u32 = std::env::var("RING").map_or(18, |v| v.parse().unwrap());
        let sizes = RingSizes {
            tx: 1 << shift,
            rx: 1 << shift,
        };
        let (engine_side, fd) = Region::create(sizes).unwrap();
        let program_side = Region::open(fd.as_fd(), sizes).unwrap();
        (engine_side, program_side)
    }

    pub fn connect(&mut self, peer: MacAddr, peer_port: Port) -> Program {
        self.connect_mapped(peer, peer_port).0
    }

    /// Connects a stream. The second value can be upgraded while the engine maps its rings.
    pub fn connect_mapped(&mut self, peer: MacAddr, peer_port: Port) -> (Program, Weak<Region>) {
        let (region, program) = Host::region();
        let mapped = Arc::downgrade(&region);
        let program = self.program(program);
        let slot = program.slot;
        self.ask(|reply| Command::Connect {
            client: self.client,
            slot,
            link: LinkId(0),
            local_port: 40000 + slot,
            peer: peer.into(),
            peer_port,
            key: Vec::new(),
            region,
            reply,
        })
        .expect("connect");
        (program, mapped)
    }

    pub fn accept(&mut self) -> Program {
        let deadline = Instant::now() + PATIENCE;
        let handle = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self
                .events
                .recv_timeout(left)
                .expect("an incoming connection")
            {
                EngineEvent::Incoming { arrival, .. } => break arrival.handle,
                _ => continue,
            }
        };
        let (region, program) = Host::region();
        let program = self.program(program);
        let slot = program.slot;
        let attached = self.ask(|reply| Command::Attach {
            handle,
            client: self.client,
            slot,
            region,
            reply,
        });
        assert!(attached, "the connection is still there");
        program
    }

    /// Binds a datagram port.
    pub fn datagrams(&mut self, port: Port) -> Program {
        self.bind(port).0
    }

    /// Binds a datagram port. The second value can be upgraded while the engine maps its rings.
    pub fn bind(&mut self, port: Port) -> (Program, Weak<Region>) {
        let (region, program) = Host::region();
        let mapped = Arc::downgrade(&region);
        let program = self.program(program);
        let slot = program.slot;
        self.ask(|reply| Command::BindEdp {
            client: self.client,
            slot,
            link: LinkId(0),
            port,
            region,
            resume: false,
            reply,
        })
        .expect("bind");
        (program, mapped)
    }

    pub fn close(&self, program: &Program) {
        self.handle
            .send(Command::Close {
                client: self.client,
                slot: program.slot,
            })
            .unwrap();
    }

    pub fn kill_program(&self) {
        self.handle
            .send(Command::RemoveClient {
                client: self.client,
            })
            .unwrap();
    }

    pub fn stop(&self) {
        self.ask(|reply| Command::Shutdown { keep: false, reply });
    }
}

impl Program {
    pub fn ring(&self) {
        if self.doorbell.ring(self.slot) {
            rustix::io::write(&self.eventfd, &1u64.to_ne_bytes()).unwrap();
        }
    }

    pub fn wait_open(&self) -> StreamState {
        let status = self.status.clone();
        let there = || !matches!(status.state(), StreamState::Connecting);
        self.status
            .wait(Wake::State, SPIN, there, Some(Instant::now() + PATIENCE));
        self.status.state()
    }

    pub fn wait_closed(&self) -> StreamState {
        let status = self.status.clone();
        let there = || matches!(status.state(), StreamState::Closed(_));
        self.status
            .wait(Wake::State, SPIN, there, Some(Instant::now() + PATIENCE));
        self.status.state()
    }

    pub fn send_all(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.tx.write(bytes);
            if taken > 0 {
                self.ring();
                bytes = &bytes[taken..];
                continue;
            }
            let tx = &self.tx;
            let status = &self.status;
            let there = || tx.free() > 0 || matches!(status.state(), StreamState::Closed(_));
            let ok = self
                .status
                .wait(Wake::Writable, SPIN, there, Some(Instant::now() + PATIENCE));
            assert!(
                ok && self.tx.free() > 0,
                "no room to write: {:?}",
                self.status.state()
            );
        }
    }

    pub fn finish(&mut self) {
        self.tx.finish();
        self.ring();
    }

    /// Reads until the end of the stream.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let n = self.rx.read(&mut buffer);
            if n > 0 {
                all.extend_from_slice(&buffer[..n]);
                if self.rx.consumed_notice_due() {
                    self.ring();
                }
                continue;
            }
            if self.rx.at_end() {
                return all;
            }
            let rx = &self.rx;
            let status = &self.status;
            let there = || {
                rx.available() > 0
                    || rx.at_end()
                    || matches!(status.state(), StreamState::Closed(_))
            };
            let ok = self
                .status
                .wait(Wake::Readable, SPIN, there, Some(Instant::now() + PATIENCE));
            assert!(ok, "nothing arrived");
            if self.rx.available() == 0 && !self.rx.at_end() {
                panic!("stream ended: {:?}", self.status.state());
            }
        }
    }
}

pub const SPIN: Spin = Spin {
    spins: 0,
    yields: 0,
};

/// Returns bytes whose values depend on their position.
pub fn pattern(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}
