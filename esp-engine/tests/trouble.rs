//! Devices that refuse frames, interfaces that vanish, and readers amid the traffic of others.

mod common;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{EMBEDDED, Host, PATIENCE, embedded, embedded_with, namespace_or_skip};
use esp_engine::shm::record::{DgramHeader, EdpKind};
use esp_engine::shm::{
    Doorbell, EngineView, Events, MIN_RING, Region, RingSizes, RxConsumer, Status, StreamState,
    TxProducer, Wake,
};
use esp_engine::{Clock, Command, EngineEvent, ListenerId, Reply};
use esp_proto::{CloseReason, NodeAddr, Port, ResetReason};
use netns::{Namespace, TwoNodes};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Makes the device of `nodes.a` refuse frames of more than 1000 bytes, as a device does whose
/// queue is full.
fn make_refuse(nodes: &TwoNodes) {
    let namespace = nodes.b.namespace();
    let name = nodes.b.name();
    namespace.ip(&format!("link set {name} mtu 1000")).unwrap();
}

fn to(addr: NodeAddr, kind: EdpKind) -> DgramHeader {
    DgramHeader {
        kind,
        addr,
        port: if kind == EdpKind::Data { 9 } else { 0 },
        sequence: 0,
        timestamp_ns: 0,
    }
}

fn eventually(what: &str, mut there: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !there() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The batch of frames is never empty, because each time the device takes only a part of it, and
/// the program has more.
#[test]
fn a_device_that_takes_parts_of_batches_keeps_no_memory() {
    let Some(nodes) = TwoNodes::new_or_skip("a_device_that_takes_parts") else {
        return;
    };
    make_refuse(&nodes);
    let mut host = Host::start(&nodes.a, |_| {});
    let peer = Host::start(&nodes.b, |_| {}).mac;
    let mut flood = host.datagrams(5000);
    // The ring holds records for about ten seconds, each long one refused for 5 ms.
    let fill = |flood: &mut common::Program| {
        while flood
            .tx
            .put_record(&to(peer.into(), EdpKind::Data), &[1; 1400])
            && (0..9).all(|_| {
                flood
                    .tx
                    .put_record(&to(peer.into(), EdpKind::Data), &[2; 200])
            })
        {}
        flood.ring();
    };
    fill(&mut flood);
    eventually("frames are refused", || {
        host.counter("link_tx_blocked") > 10
    });
    host.listen(7000);
    let (left, mapped) = host.connect_mapped(host.mac, 7000);
    let right = host.accept();
    assert_eq!(left.wait_open(), StreamState::Open);
    host.close(&left);
    host.close(&right);
    eventually("the rings of the closed stream are released", || {
        fill(&mut flood);
        mapped.upgrade().is_none()
    });
}

#[test]
fn a_shut_down_resets_the_peers_though_the_device_refuses_a_frame() {
    let Some(nodes) = TwoNodes::new_or_skip("a_shut_down_though_refused") else {
        return;
    };
    make_refuse(&nodes);
    let (mut a, mut b) = (Host::start(&nodes.a, |_| {}), Host::start(&nodes.b, |_| {}));
    let mut datagrams = a.datagrams(5000);
    b.listen(7000);
    let left = a.connect(b.mac, 7000);
    let right = b.accept();
    assert_eq!(left.wait_open(), StreamState::Open);
    for _ in 0..100 {
        let header = to(b.mac.into(), EdpKind::Data);
        assert!(datagrams.tx.put_record(&header, &[1; 1400]));
    }
    datagrams.ring();
    let before = a.counter("link_tx_blocked");
    eventually("a frame is refused", || {
        a.counter("link_tx_blocked") > before
    });
    a.stop();
    let reason = CloseReason::Reset(ResetReason::Shutdown);
    assert_eq!(right.wait_closed(), StreamState::Closed(reason));
}

/// Frames that remain in the sockets of a removed interface do not keep the engine awake.
#[test]
fn an_engine_sleeps_after_its_interface_vanished_amid_traffic() {
    let Some(nodes) = TwoNodes::new_or_skip("an_engine_sleeps_without_its_interface") else {
        return;
    };
    let host = Host::start(&nodes.a, |_| {});
    let mut other = Host::start(&nodes.b, |_| {});
    let peer = other.datagrams(5000);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, mac) = (&stop, host.mac);
        scope.spawn(move || {
            let (mut peer, end) = (peer, Instant::now() + 2 * PATIENCE);
            while !stop.load(Ordering::Relaxed) && Instant::now() < end {
                while peer.tx.put_record(&to(mac.into(), EdpKind::Data), &[1; 64]) {}
                peer.ring();
            }
        });
        eventually("frames arrive", || host.counter("rx_frames") > 1000);
        let (namespace, name) = (nodes.a.namespace(), nodes.a.name());
        let deleted = namespace.ip(&format!("link delete {name}"));
        stop.store(true, Ordering::Relaxed);
        deleted.unwrap();
    });
    eventually("the engine notices", || {
        host.events.try_iter().any(|event| match event {
            EngineEvent::Link { condition, .. } => condition.gone,
            _ => false,
        })
    });
    let before = host.counter("engine_polls");
    std::thread::sleep(Duration::from_millis(500));
    let polls = host.counter("engine_polls") - before;
    assert!(polls < 1000, "{polls} iterations without any work");
}

/// An embedded engine, polled by the test.
struct Local {
    engine: esp_engine::Engine,
    handle: esp_engine::EngineHandle,
    link: esp_engine::LinkId,
    addr: NodeAddr,
    arrivals: std::sync::mpsc::Receiver<EngineEvent>,
    events: Events,
    doorbell: Doorbell,
}

/// Rings of a stream of a [`Local`].
struct Stream {
    tx: TxProducer,
    rx: RxConsumer,
    status: Status,
}

const SLOT: u16 = 0;

impl Local {
    fn start(namespace: &Namespace) -> Result<Local, Box<dyn std::error::Error>> {
        let (sender, arrivals) = channel();
        let sink = Box::new(move |event| drop(sender.send(event)));
        let ((engine, handle, link, page), addr) = embedded_with(namespace, sink)?;
        let doorbell = Doorbell::new(Arc::clone(&page), EngineView::open(handle.page_fd())?);
        Ok(Local {
            engine,
            handle,
            link,
            addr,
            arrivals,
            events: Events::new(page),
            doorbell,
        })
    }

    fn ask<T: Send + 'static>(&mut self, make: impl FnOnce(Reply<T>) -> Command) -> T {
        let (reply, answer) = channel();
        let command = make(Box::new(move |value| drop(reply.send(value))));
        self.handle.send(command).expect("the engine runs");
        self.engine.poll();
        answer.try_recv().expect("answered at once")
    }

    fn stream(
        &mut self,
        make: impl FnOnce(Arc<Region>) -> Box<dyn FnOnce(Reply<bool>) -> Command>,
    ) -> Stream {
        let (tx, rx) = (1 << 18, 1 << 18);
        let (region, _fd) = Region::create(RingSizes { tx, rx }).expect("rings");
        assert!(self.ask(make(Arc::clone(&region))));
        Stream {
            tx: TxProducer::new(Arc::clone(&region)),
            rx: RxConsumer::new(Arc::clone(&region)),
            status: Status::new(region),
        }
    }
}

/// Connects the first to the second.
fn connected(left: &mut Local, right: &mut Local, port: Port) -> (Stream, Stream) {
    let listening = right.ask(|reply| Command::Listen {
        client: EMBEDDED,
        listener: ListenerId(1),
        link: None,
        port,
        backlog: 1,
        key: Vec::new(),
        reply,
    });
    listening.expect("listen");
    let (link, peer) = (left.link, right.addr);
    let ours = left.stream(|region| {
        Box::new(move |reply| Command::Connect {
            client: EMBEDDED,
            slot: SLOT,
            link,
            local_port: 40_000,
            peer,
            peer_port: port,
            key: Vec::new(),
            region,
            reply: Box::new(move |connected| reply(connected.is_ok())),
        })
    });
    let mut handle = None;
    eventually("the connection arrives", || {
        left.engine.poll_all_links();
        right.engine.poll_all_links();
        if let Ok(EngineEvent::Incoming { arrival, .. }) = right.arrivals.try_recv() {
            handle = Some(arrival.handle);
        }
        handle.is_some()
    });
    let handle = handle.expect("it has arrived");
    let theirs = right.stream(|region| {
        Box::new(move |reply| Command::Attach {
            handle,
            client: EMBEDDED,
            slot: SLOT,
            region,
            reply,
        })
    });
    eventually("the connection is established", || {
        left.engine.poll();
        right.engine.poll();
        ours.status.state() == StreamState::Open
    });
    (ours, theirs)
}

/// A long message is taken for the beginning of a burst, whose end wakes the reader. Frames for
/// others must not delay that forever.
#[test]
fn a_reader_is_woken_amid_the_traffic_of_others() -> Outcome {
    let Some(namespace) = namespace_or_skip("a_reader_is_woken_amid_traffic")? else {
        return Ok(());
    };
    let (mut left, mut right) = (Local::start(&namespace)?, Local::start(&namespace)?);
    let (ours, mut theirs) = connected(&mut left, &mut right, 7000);
    let other = namespace.run(|| UdpSocket::bind("127.0.0.1:0"))?;
    let NodeAddr::Udp(target) = left.addr else {
        return Err("not an address of UDP".into());
    };
    left.events.drain(|_| ());
    ours.status.arm_fd(Wake::Readable);
    assert_eq!(theirs.tx.write(&[1; 1450]), 1450);
    let _ = right.doorbell.ring(SLOT);
    // Each poll takes some microseconds.
    let woken = (0..1000).any(|_| {
        right.engine.poll();
        other.send_to(&[0; 40], target).expect("send");
        left.engine.poll();
        let mut woken = false;
        left.events.drain(|slot| woken |= slot == SLOT);
        woken
    });
    assert!(woken, "the reader sleeps");
    assert_eq!(ours.rx.available(), 1450);
    Ok(())
}

/// After a pause, an engine first takes the accumulated frames. Its answers leave in that poll.
#[test]
fn what_a_resting_link_receives_after_a_pause_is_answered_at_once() -> Outcome {
    let Some(namespace) = namespace_or_skip("a_resting_link_answers")? else {
        return Ok(());
    };
    let (mut asking, mut resting) = (Local::start(&namespace)?, Local::start(&namespace)?);
    let (tx, rx) = (MIN_RING, MIN_RING);
    let (region, _fd) = Region::create(RingSizes { tx, rx })?;
    let (link, bound) = (asking.link, Arc::clone(&region));
    let bound = asking.ask(|reply| Command::BindEdp {
        client: EMBEDDED,
        slot: SLOT,
        link,
        port: 5000,
        region: bound,
        resume: false,
        reply,
    });
    bound?;
    resting.engine.poll();
    let (mut sender, reader) = (
        TxProducer::new(Arc::clone(&region)),
        RxConsumer::new(Arc::clone(&region)),
    );
    assert!(sender.put_record(&to(resting.addr, EdpKind::EchoRequest), b"echo"));
    let _ = asking.doorbell.ring(SLOT);
    asking.engine.poll_doorbells();
    std::thread::sleep(Duration::from_millis(5));
    resting.engine.poll();
    eventually("the echo is answered", || {
        asking.engine.poll_all_links();
        reader.available() > 0
    });
    Ok(())
}

/// A program that writes often and never reads serves doorbells only. Its progress thread has to
/// see that nothing polls, or acknowledgements and timers would wait as long as it writes.
#[test]
fn serving_doorbells_is_not_a_poll() -> Outcome {
    let Some(namespace) = namespace_or_skip("serving_doorbells")? else {
        return Ok(());
    };
    let (mut engine, _handle, _link, _page) = embedded(&namespace)?;
    engine.poll();
    let polled = engine.polled_at();
    eventually("the clock advances", || Clock.now() > polled);
    engine.poll_doorbells();
    assert_eq!(engine.polled_at(), polled);
    engine.poll();
    assert!(engine.polled_at() > polled);
    Ok(())
}
