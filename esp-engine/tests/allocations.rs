//! The engine does not allocate while frames are sent and received: neither on a thread of its own
//! nor embedded in a program, over leased sockets. `tests/allocation.rs` of esp-proto tests the
//! core alone.
//!
//! `ALLOCATIONS_TRACE=1` prints the stacks of the first allocations.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::time::Instant;

use common::{Host, PATIENCE, Program, SPIN};
use esp_engine::shm::record::{DgramHeader, EdpKind};
use esp_engine::shm::{
    ClientPage, Doorbell, EngineView, Region, RingSizes, RxConsumer, Status, StreamState,
    TxProducer, Wake,
};
use esp_engine::{
    ClientId, Clock, Command, Engine, EngineEvent, EngineHandle, IdleConfig, LeasedLink,
    LeasedSocket, LinkId, ListenerId, RingShape,
};
use esp_proto::{EndpointConfig, MacAddr};
use netif::{Filter, SocketOptions};
use netns::{Node, TwoNodes};

/// System allocator that counts the allocations of threads with a counter.
struct Counting;

thread_local! {
    static COUNTER: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };
}

/// Maximum number of stacks printed.
const TRACED: u64 = 5;

fn count() {
    // A thread that is ending no longer has a counter.
    let _ = COUNTER.try_with(|mine| {
        let Some(counter) = mine.take() else { return };
        if counter.fetch_add(1, Ordering::SeqCst) < TRACED
            && std::env::var_os("ALLOCATIONS_TRACE").is_some()
        {
            eprintln!("{}", std::backtrace::Backtrace::force_capture());
        }
        mine.set(Some(counter));
    });
}

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are those that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Rounds before counting starts, until queues have grown.
const WARM_UP: usize = 100;
/// Rounds of a window.
const ROUNDS: usize = 100;
/// Maximum number of windows. A queue may still grow in one of them; an allocation for each frame
/// shows in all.
const WINDOWS: usize = 8;
/// Bytes sent in each direction in a round, besides single ones.
const BLOCK: usize = 40_000;

/// Runs windows until one has no allocation. `run` performs the rounds of a window and returns the
/// numbers of allocations and frames.
fn expect_quiet(mut run: impl FnMut() -> (u64, u64)) {
    let mut seen = Vec::new();
    for _ in 0..WINDOWS {
        let (calls, frames) = run();
        assert!(frames > 5000, "only {frames} frames: too few for a result");
        if calls == 0 {
            return;
        }
        seen.push(format!("{calls} in {frames} frames"));
    }
    panic!("allocations in every window: {seen:?}");
}

#[test]
fn the_allocator_counts() {
    let counter: &'static AtomicU64 = Box::leak(Box::default());
    let calls = || counter.load(Ordering::SeqCst);
    COUNTER.set(Some(counter));
    let mut bytes = Vec::with_capacity(10);
    bytes.extend_from_slice(&[1; 10]);
    assert_eq!(calls(), 1);
    bytes.extend_from_slice(&[1; 1000]);
    assert_eq!(calls(), 2, "the vector grows");
    drop((
        std::hint::black_box(bytes),
        std::hint::black_box(vec![0u8; 100]),
    ));
    assert_eq!(calls(), 3);
    let other = std::thread::spawn(|| drop(std::hint::black_box(Box::new([1; 100]))));
    let by_spawning = calls();
    other.join().unwrap();
    COUNTER.set(None);
    assert!(by_spawning > 3);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(
        calls(),
        by_spawning,
        "neither other threads nor this one are counted"
    );
}

/// Sets the counter of the engine's thread, or removes it.
fn watch(host: &Host, counter: Option<&'static AtomicU64>) {
    let (done, heard) = sync_channel(1);
    let reply = Box::new(move |_| {
        COUNTER.set(counter);
        let _ = done.send(());
    });
    host.handle.send(Command::Snapshot { reply }).unwrap();
    heard.recv_timeout(PATIENCE).expect("the engine answers");
}

/// Fills `bytes` from the stream.
fn read_exact(program: &mut Program, bytes: &mut [u8]) {
    let mut at = 0;
    while at < bytes.len() {
        let n = program.rx.read(&mut bytes[at..]);
        at += n;
        if n > 0 {
            if program.rx.consumed_notice_due() {
                program.ring();
            }
            continue;
        }
        let (rx, deadline) = (&program.rx, Some(Instant::now() + PATIENCE));
        assert!(
            program
                .status
                .wait(Wake::Readable, SPIN, || rx.available() > 0, deadline),
            "nothing arrived"
        );
    }
}

fn header(to: MacAddr, port: u16) -> DgramHeader {
    DgramHeader {
        kind: EdpKind::Data,
        addr: to.into(),
        port,
        sequence: 1,
        timestamp_ns: 0,
    }
}

#[test]
fn an_engine_on_its_thread_does_not_allocate() {
    let Some(nodes) = TwoNodes::new_or_skip("an_engine_on_its_thread_does_not_allocate") else {
        return;
    };
    let (mut a, mut b) = (Host::start(&nodes.a, |_| {}), Host::start(&nodes.b, |_| {}));
    b.listen(7000);
    let mut left = a.connect(b.mac, 7000);
    let mut right = b.accept();
    assert_eq!(left.wait_open(), StreamState::Open);
    let (mut here, mut near, mut there) = (a.datagrams(60), a.datagrams(61), b.datagrams(60));
    let (to_here, to_near, to_there) = (header(a.mac, 60), header(a.mac, 61), header(b.mac, 60));
    let (block, mut got) = (vec![7; BLOCK], vec![0; BLOCK]);

    let datagram = |from: &mut Program, to: &mut Program, header: &DgramHeader, len: usize| {
        assert!(
            from.tx.put_record(header, &block[..len]),
            "room for a datagram"
        );
        from.ring();
        let deadline = Some(Instant::now() + PATIENCE);
        let rx = &to.rx;
        assert!(
            to.status
                .wait(Wake::Readable, SPIN, || rx.available() > 0, deadline),
            "a datagram is lost"
        );
        assert_eq!(
            to.rx.take_record(&mut [0; 1500]).map(|(_, len)| len),
            Some(len)
        );
        if to.rx.consumed_notice_due() {
            to.ring();
        }
    };
    let mut round = || {
        left.send_all(&block);
        read_exact(&mut right, &mut got);
        right.send_all(&block);
        read_exact(&mut left, &mut got);
        left.send_all(&[1]);
        read_exact(&mut right, &mut got[..1]);
        right.send_all(&[1]);
        read_exact(&mut left, &mut got[..1]);
        for len in [0, 50, 1400] {
            datagram(&mut here, &mut there, &to_there, len);
            datagram(&mut there, &mut here, &to_here, len);
            datagram(&mut here, &mut near, &to_near, len);
        }
    };
    (0..WARM_UP).for_each(|_| round());
    let frames = || a.counter("tx_frames") + b.counter("tx_frames");
    expect_quiet(|| {
        let (before, counter) = (frames(), &*Box::leak(Box::<AtomicU64>::default()));
        watch(&a, Some(counter));
        watch(&b, Some(counter));
        (0..ROUNDS).for_each(|_| round());
        let calls = counter.load(Ordering::SeqCst);
        watch(&a, None);
        watch(&b, None);
        (calls, frames() - before)
    });
    a.stop();
    b.stop();
}

/// Embedded engine with sockets for one leased port, polled by the test.
struct Embedded {
    engine: Engine,
    handle: EngineHandle,
    events: Receiver<EngineEvent>,
    doorbell: Doorbell,
    link: LinkId,
    mac: MacAddr,
    _eventfds: (OwnedFd, std::os::unix::net::UnixStream),
}

const SELF: ClientId = ClientId(1);

impl Embedded {
    fn start(node: &Node, port: u16) -> Embedded {
        let (sender, events) = channel();
        let sink = Box::new(move |event| drop(sender.send(event)));
        let (mut engine, handle) = Engine::embedded(IdleConfig::default(), sink).unwrap();
        let (page, _fd) = ClientPage::create().unwrap();
        let view = EngineView::open(handle.page_fd()).unwrap();
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let doorbell = eventfd.try_clone().unwrap();
        let add = Command::AddClient {
            client: SELF,
            user: 0,
            page: Arc::clone(&page),
            doorbell,
            notify: theirs.into(),
        };
        handle.send(add).unwrap();
        let endpoint = EndpointConfig::default();
        let socket = |ethertype| {
            let filter = Filter::for_ports(ethertype, [port..=port]).unwrap();
            // Frames of streams are both shorter and longer than its slots.
            let ring = RingShape {
                slot_len: 512,
                slots: 1024,
            };
            let options = SocketOptions {
                filter: Some(filter),
                ..SocketOptions::default()
            };
            let socket = node.socket(ethertype, &options);
            socket.set_ring(ring).unwrap();
            LeasedSocket {
                socket: socket.into(),
                ring: Some(ring),
            }
        };
        let (esp, edp) = (
            socket(endpoint.esp_ethertype),
            socket(endpoint.edp_ethertype),
        );
        let interface = node.interface();
        let mac = MacAddr(interface.mac.octets());
        let (interface, mtu) = (interface.name, interface.mtu);
        let leased = LeasedLink {
            interface,
            mac,
            mtu,
            endpoint,
            incarnation: 1,
            ports: port..=port,
            standby: false,
            esp,
            edp,
        };
        let link = engine.add_leased(leased).unwrap();
        engine.poll();
        let doorbell = Doorbell::new(page, view);
        Embedded {
            engine,
            handle,
            events,
            doorbell,
            link,
            mac,
            _eventfds: (eventfd, ours),
        }
    }

    /// Sends a command and returns the engine's reply.
    fn ask<T: Send + 'static>(&mut self, make: impl FnOnce(esp_engine::Reply<T>) -> Command) -> T {
        let (done, answer) = sync_channel(1);
        self.handle
            .send(make(Box::new(move |value| drop(done.send(value)))))
            .unwrap();
        self.engine.poll();
        answer.try_recv().expect("one poll executes the command")
    }

    /// Returns the number of frames sent.
    fn frames(&mut self) -> u64 {
        let snapshot = self.ask(|reply| Command::Snapshot { reply });
        let found = snapshot.links[0]
            .counters
            .iter()
            .find(|(name, _, _)| *name == "tx_frames");
        found.expect("the counter").2
    }
}

/// A program's end of a stream.
struct StreamEnd {
    tx: TxProducer,
    rx: RxConsumer,
    status: Status,
}

/// Creates rings: the engine's region and the program's end.
fn rings() -> (Arc<Region>, StreamEnd) {
    let sizes = RingSizes {
        tx: 1 << 16,
        rx: 1 << 16,
    };
    let (engine, fd) = Region::create(sizes).unwrap();
    let program = Region::open(fd.as_fd(), sizes).unwrap();
    let end = StreamEnd {
        tx: TxProducer::new(Arc::clone(&program)),
        rx: RxConsumer::new(Arc::clone(&program)),
        status: Status::new(program),
    };
    (engine, end)
}

/// Polls both engines until `there` returns true.
fn drive(a: &mut Embedded, b: &mut Embedded, what: &str, mut there: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !there() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        if !(a.engine.poll() | b.engine.poll()) {
            // As a caller that waits for a frame does.
            a.engine.block(Some(Clock.now()));
            b.engine.block(Some(Clock.now()));
        }
    }
}

/// Transfers `bytes` from one end to the other, on one thread.
fn transfer(
    a: &mut Embedded,
    b: &mut Embedded,
    ends: (&mut StreamEnd, &mut StreamEnd),
    bytes: &[u8],
    got: &mut [u8],
) {
    let (from, to) = ends;
    let (mut sent, mut read) = (0, 0);
    let (doorbell_a, doorbell_b) = (a.doorbell.clone(), b.doorbell.clone());
    drive(a, b, "the last byte", || {
        let n = from.tx.write(&bytes[sent..]);
        sent += n;
        read += to.rx.read(&mut got[read..]);
        if n > 0 || to.rx.consumed_notice_due() {
            // Neither engine sleeps, so no eventfd needs to be written.
            let _ = doorbell_a.ring(0);
            let _ = doorbell_b.ring(0);
        }
        read == bytes.len()
    });
}

/// Creates two embedded engines with a stream between them.
fn connected_pair(nodes: &TwoNodes) -> (Embedded, Embedded, StreamEnd, StreamEnd) {
    let (mut a, mut b) = (
        Embedded::start(&nodes.a, 40_000),
        Embedded::start(&nodes.b, 7000),
    );
    let (link, listener) = (Some(b.link), ListenerId(1));
    b.ask(|reply| Command::Listen {
        client: SELF,
        listener,
        link,
        port: 7000,
        backlog: 1,
        key: Vec::new(),
        reply,
    })
    .unwrap();
    let (region, left) = rings();
    let (link, peer) = (a.link, b.mac);
    a.ask(|reply| Command::Connect {
        client: SELF,
        slot: 0,
        link,
        local_port: 40_000,
        peer: peer.into(),
        peer_port: 7000,
        key: Vec::new(),
        region,
        reply,
    })
    .unwrap();
    let (mut handle, came) = (None, std::mem::replace(&mut b.events, channel().1));
    drive(&mut a, &mut b, "a connection", || {
        if let Ok(EngineEvent::Incoming { arrival, .. }) = came.try_recv() {
            handle = Some(arrival.handle);
        }
        handle.is_some()
    });
    let (region, right) = rings();
    let handle = handle.expect("it came");
    assert!(b.ask(|reply| Command::Attach {
        handle,
        client: SELF,
        slot: 0,
        region,
        reply
    }));
    drive(&mut a, &mut b, "open", || {
        left.status.state() == StreamState::Open
    });
    (a, b, left, right)
}

#[test]
fn an_embedded_engine_does_not_allocate() {
    let Some(nodes) = TwoNodes::new_or_skip("an_embedded_engine_does_not_allocate") else {
        return;
    };
    let (mut a, mut b, mut left, mut right) = connected_pair(&nodes);
    let (block, mut got) = (vec![7; BLOCK], vec![0; BLOCK]);
    let mut rounds = |a: &mut Embedded, b: &mut Embedded, count: usize| {
        for _ in 0..count {
            for len in [BLOCK, 1] {
                transfer(
                    a,
                    b,
                    (&mut left, &mut right),
                    &block[..len],
                    &mut got[..len],
                );
                transfer(
                    a,
                    b,
                    (&mut right, &mut left),
                    &block[..len],
                    &mut got[..len],
                );
            }
        }
    };
    rounds(&mut a, &mut b, WARM_UP);
    expect_quiet(|| {
        let (before, counter) = (
            a.frames() + b.frames(),
            &*Box::leak(Box::<AtomicU64>::default()),
        );
        COUNTER.set(Some(counter));
        rounds(&mut a, &mut b, ROUNDS);
        COUNTER.set(None);
        (
            counter.load(Ordering::SeqCst),
            a.frames() + b.frames() - before,
        )
    });
}

/// With frames longer and shorter than the ring's slots, buffers that end within a frame, and bytes
/// in the ring before and after.
#[test]
fn received_bytes_go_into_a_posted_buffer() {
    let Some(nodes) = TwoNodes::new_or_skip("received_bytes_go_into_a_posted_buffer") else {
        return;
    };
    let (mut a, mut b, mut left, mut right) = connected_pair(&nodes);
    let bytes: Vec<u8> = (0..600_000u32)
        .map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8)
        .collect();
    let (mut sent, mut straight, mut copied, mut got) = (0, 0, 0, Vec::new());
    let deadline = Instant::now() + PATIENCE;
    let mut buffer = [0; 10_000];
    while got.len() < bytes.len() {
        assert!(
            Instant::now() < deadline,
            "timed out after {} of {} bytes",
            got.len(),
            bytes.len()
        );
        sent += left.tx.write(&bytes[sent..]);
        let _ = a.doorbell.ring(0);
        a.engine.poll();
        let len = [10_000, 700, 1, 3333][got.len() % 4];
        let (_, n) = b.engine.poll_into(0, &mut buffer[..len]);
        got.extend_from_slice(&buffer[..n]);
        right.rx.consume(n);
        straight += n;
        if got.len() % 3 == 0 {
            // Bytes beyond the buffer are in the ring, or arrive in the next poll.
            let n = right.rx.read(&mut buffer);
            got.extend_from_slice(&buffer[..n]);
            copied += n;
        } else if right.rx.available() > 0 {
            let (_, n) = b.engine.poll_into(0, &mut buffer);
            assert_eq!(n, 0, "the ring has unread bytes");
            let n = right.rx.read(&mut buffer[..500]);
            got.extend_from_slice(&buffer[..n]);
            copied += n;
        }
        if right.rx.consumed_notice_due() {
            let _ = b.doorbell.ring(0);
        }
    }
    assert!(got == bytes, "received bytes differ from those sent");
    assert!(
        straight > 0 && copied > 0,
        "{straight} bytes to the buffer, {copied} through the ring"
    );
}
