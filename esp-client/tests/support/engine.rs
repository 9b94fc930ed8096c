//! The engine's side of the shared memory, with peers that behave as their [`Mode`] says.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use esp_client::{EdpKind, monotonic_nanos};
use esp_engine::shm::record::DgramHeader;
use esp_engine::shm::{
    ClientPage, EnginePage, Region, RxProducer, SlotSet, StreamState, TxConsumer, Wake,
};
use esp_proto::{CloseReason, ResetReason};
use rustix::event::{PollFd, PollFlags};

use super::{Options, PEER, port};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Echo,
    Deaf,
    Silent,
    Dies,
    Stuck,
    Bye,
    Closed(CloseReason),
}

impl Mode {
    pub fn of(peer_port: u16) -> Mode {
        match peer_port {
            port::REFUSED => Mode::Closed(CloseReason::Reset(ResetReason::Refused)),
            port::BAD_KEY => Mode::Closed(CloseReason::Reset(ResetReason::BadKey)),
            port::DEAF => Mode::Deaf,
            port::SILENT => Mode::Silent,
            port::DIES => Mode::Dies,
            port::STUCK => Mode::Stuck,
            port::BYE => Mode::Bye,
            _ => Mode::Echo,
        }
    }
}

enum Order {
    Open(u16, Mode, Arc<Region>),
    OpenEdp(u16, String, Arc<Region>),
    Close(u16),
    Abort(u16),
    Stop,
}

/// Handle on the engine's thread.
pub struct Engine {
    orders: Sender<Order>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    pub fn start(
        page: EnginePage,
        client: Arc<ClientPage>,
        doorbell: OwnedFd,
        notify: OwnedFd,
        options: Options,
    ) -> Engine {
        let (orders, inbox) = channel();
        let wake = doorbell.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            let bank = Arc::clone(&client);
            let events = client;
            let sockets = HashMap::new();
            Turn {
                page,
                bank,
                events,
                doorbell,
                notify,
                inbox,
                sockets,
                options,
            }
            .run();
        });
        Engine {
            orders,
            wake,
            thread: Some(thread),
        }
    }

    fn order(&self, order: Order) {
        self.orders.send(order).unwrap();
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub fn open(&self, slot: u16, mode: Mode, region: Arc<Region>) {
        self.order(Order::Open(slot, mode, region));
    }

    pub fn open_edp(&self, slot: u16, interface: &str, region: Arc<Region>) {
        self.order(Order::OpenEdp(slot, interface.into(), region));
    }

    pub fn close(&self, slot: u16) {
        self.order(Order::Close(slot));
    }

    pub fn abort(&self, slot: u16) {
        self.order(Order::Abort(slot));
    }

    pub fn stop(&mut self) {
        self.order(Order::Stop);
        self.thread.take().unwrap().join().unwrap();
    }
}

enum Kind {
    Stream(Mode),
    Edp(String),
}

struct Socket {
    kind: Kind,
    tx: TxConsumer,
    rx: RxProducer,
    status: Arc<Region>,
    /// Number of bytes of the TX ring that were handled.
    done: u64,
    over: bool,
}

struct Turn {
    page: EnginePage,
    bank: Arc<ClientPage>,
    events: Arc<ClientPage>,
    doorbell: OwnedFd,
    notify: OwnedFd,
    inbox: Receiver<Order>,
    sockets: HashMap<u16, Socket>,
    options: Options,
}

impl Turn {
    fn run(mut self) {
        loop {
            let mut rung = Vec::new();
            while let Ok(order) = self.inbox.try_recv() {
                match order {
                    Order::Open(slot, mode, region) => {
                        self.insert(slot, Kind::Stream(mode), region);
                        rung.push(slot);
                    }
                    Order::OpenEdp(slot, interface, region) => {
                        self.insert(slot, Kind::Edp(interface), region);
                    }
                    Order::Close(slot) => {
                        self.serve(slot);
                        self.sockets.remove(&slot);
                    }
                    Order::Abort(slot) => {
                        self.end(slot, CloseReason::Aborted(ResetReason::Aborted));
                    }
                    Order::Stop => return,
                }
            }
            self.bank
                .drain_doorbell(&SlotSet::ALL, |slot| rung.push(slot));
            if !rung.is_empty() {
                rung.into_iter().for_each(|slot| self.serve(slot));
                continue;
            }
            self.page.going_to_sleep();
            if !self.bank.any_doorbell() {
                let _ =
                    rustix::event::poll(&mut [PollFd::new(&self.doorbell, PollFlags::IN)], None);
                let _ = rustix::io::read(&self.doorbell, &mut [0u8; 8]);
            }
            self.page.awake();
        }
    }

    fn insert(&mut self, slot: u16, kind: Kind, region: Arc<Region>) {
        let socket = Socket {
            kind,
            tx: TxConsumer::new(Arc::clone(&region)),
            rx: RxProducer::new(Arc::clone(&region)),
            status: region,
            done: 0,
            over: false,
        };
        match socket.kind {
            Kind::Stream(Mode::Deaf) => {}
            Kind::Stream(Mode::Closed(reason)) => {
                socket.status.set_state(StreamState::Closed(reason));
            }
            _ => socket.status.set_state(StreamState::Open),
        }
        self.sockets.insert(slot, socket);
        self.wake(slot, Wake::All);
    }

    fn wake(&mut self, slot: u16, what: Wake) {
        let Some(socket) = self.sockets.get(&slot) else {
            return;
        };
        if socket.status.wake(what).notify && self.events.raise(slot) {
            let _ = rustix::io::write(&self.notify, &1u64.to_ne_bytes());
        }
    }

    fn end(&mut self, slot: u16, reason: CloseReason) {
        let Some(socket) = self.sockets.get_mut(&slot) else {
            return;
        };
        socket.over = true;
        socket.status.set_state(StreamState::Closed(reason));
        self.wake(slot, Wake::All);
    }

    fn serve(&mut self, slot: u16) {
        let Some(socket) = self.sockets.get_mut(&slot) else {
            return;
        };
        if socket.over {
            return;
        }
        match &socket.kind {
            Kind::Edp(interface) => {
                let interface = interface.clone();
                self.serve_edp(slot, &interface);
            }
            Kind::Stream(mode) => {
                let mode = *mode;
                self.serve_stream(slot, mode);
            }
        }
    }

    fn serve_stream(&mut self, slot: u16, mode: Mode) {
        let Some(socket) = self.sockets.get_mut(&slot) else {
            return;
        };
        let view = socket.tx.poll_written().unwrap();
        let mut died = false;
        match mode {
            Mode::Deaf | Mode::Stuck | Mode::Closed(_) => return,
            Mode::Silent => socket.done = view.total,
            Mode::Bye => {
                if socket.rx.put_total() == 0 {
                    socket.rx.put(0, b"bye").unwrap();
                    socket.rx.publish();
                    socket.rx.finish();
                }
                socket.done = view.total;
            }
            Mode::Echo | Mode::Dies => {
                socket.rx.poll_consumed().unwrap();
                let n = usize::try_from(view.total - socket.done)
                    .unwrap()
                    .min(socket.rx.room());
                let mut bytes = vec![0; n];
                assert!(socket.tx.copy_out(socket.done, &mut bytes));
                socket.rx.put(socket.done, &bytes).unwrap();
                socket.done += n as u64;
                socket.rx.publish();
                if view.finished && socket.done == view.total {
                    socket.rx.finish();
                }
                died = mode == Mode::Dies && socket.done > 0;
            }
        }
        let done = socket.done;
        socket.tx.release(done);
        let over = view.finished && done == view.total && mode != Mode::Silent;
        self.wake(slot, Wake::Readable);
        self.wake(slot, Wake::Writable);
        if died {
            self.end(slot, CloseReason::Reset(ResetReason::ProgramDied));
        } else if over {
            self.end(slot, CloseReason::Finished);
        }
    }

    /// Answers echo and information requests as the peer's node, and data as the peer's port.
    fn serve_edp(&mut self, slot: u16, interface: &str) {
        let Some(socket) = self.sockets.get_mut(&slot) else {
            return;
        };
        let mut bytes = Vec::new();
        while let Some(header) = socket
            .tx
            .take_record(&mut bytes, |header, _| Some(*header))
            .unwrap()
            .flatten()
        {
            let bytes = std::mem::take(&mut bytes);
            let (kind, bytes) = match header.kind {
                EdpKind::Data => (EdpKind::Data, bytes),
                EdpKind::EchoRequest if self.options.deaf_to_echo => continue,
                EdpKind::EchoRequest => (EdpKind::EchoReply, bytes),
                EdpKind::InfoRequest => {
                    let body = [
                        &[1, 0x05, 0xd1, 0, 0, 0, 0][..],
                        &7u64.to_be_bytes(),
                        &[4],
                        b"peer",
                    ]
                    .concat();
                    (EdpKind::InfoReply, body)
                }
                _ => {
                    panic!("{:?} sent", EdpKind::EchoReply)
                }
            };
            // The first of two interfaces is the slower one by its time stamps.
            let slower = if interface == "eth0" { 5_000_000 } else { 0 };
            let timestamp_ns = monotonic_nanos() + slower;
            let answer = DgramHeader {
                kind,
                addr: PEER.into(),
                timestamp_ns,
                ..header
            };
            socket.rx.put_record(&answer, &bytes).unwrap();
        }
        socket.rx.publish();
        self.wake(slot, Wake::Readable);
        self.wake(slot, Wake::Writable);
    }
}
