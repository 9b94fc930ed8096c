//! Scattered receives, and the bare loop.

#[path = "../../../netif/tests/common/mod.rs"]
mod common;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use common::{LONG, TYPE, header, push_numbered, readable, send_all};
use netif::{Interface, MacAddr, PacketSocket, RecvBatch, SendBatch, SocketOptions};
use netns::{Namespace, TwoNodes, connect};
use rawloop::{
    ETHERTYPE, HEADER_LEN, Options, RawLoopError, Receive, ScatterBatch, Served, Wait, payload_len,
    ping_pong, serve, stream,
};

#[test]
fn head_and_payload_come_apart() {
    let Some(nodes) = TwoNodes::new_or_skip("scatter") else {
        return;
    };
    let (a, b) = (
        nodes.a.socket(TYPE, &SocketOptions::default()),
        nodes.b.socket(TYPE, &SocketOptions::default()),
    );
    let payload: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
    let mut out = SendBatch::new(4);
    for _ in 0..3 {
        let head = out.head().unwrap();
        head[..14].copy_from_slice(&header(nodes.b.interface().mac, nodes.a.interface().mac));
        head[14..25].fill(0xaa);
        // SAFETY: the payload outlives the batch.
        unsafe { out.push(25, Some((NonNull::from(&payload[0]), payload.len())), 0) };
    }
    push_numbered(&mut out, MacAddr::broadcast(), &nodes.a.interface(), 7);
    send_all(&a, &mut out);

    let mut areas = [vec![0u8; 1000], vec![0; 999], vec![0; 2000]];
    let mut batch = ScatterBatch::new(4, 25);
    for (index, area) in areas.iter_mut().enumerate() {
        // SAFETY: the areas are not touched before the receives below are done.
        unsafe { batch.post(index, Some((NonNull::from(&mut area[0]), area.len()))) };
    }
    assert!(readable(&b, LONG));
    assert_eq!(batch.receive(&b, 2).unwrap(), 2, "no more than asked for");
    for (index, (len, truncated)) in [(1000, false), (999, true)].into_iter().enumerate() {
        let frame = batch.frame(index).unwrap();
        assert_eq!(frame.head[14..], [0xaa; 11]);
        assert_eq!((frame.payload_len, frame.truncated), (len, truncated));
    }
    assert!(batch.frame(2).is_none());
    assert_eq!(areas[0], payload);
    assert_eq!(areas[1], payload[..999]);

    // SAFETY: as above; the last area has room to spare.
    unsafe { batch.post(0, Some((NonNull::from(&mut areas[2][0]), 2000))) };
    // SAFETY: nothing is posted.
    unsafe { batch.post(1, None) };
    assert_eq!(batch.receive(&b, 4).unwrap(), 2);
    assert_eq!(batch.frame(0).unwrap().payload_len, 1000);
    assert_eq!(areas[2][..1000], payload);
    let frame = batch.frame(1).unwrap();
    assert_eq!(
        (frame.head.len(), frame.payload_len, frame.truncated),
        (25, 0, true)
    );
    assert_eq!(batch.receive(&b, 4).unwrap(), 0);
}

/// Payloads for which the server has room. Unexpected frames may follow the last one received, so a
/// stream to be compared leaves some of them free.
const SLOTS: usize = 600;

/// A server in the second node, and its result.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<(Served, Vec<u8>)>>,
}

impl Server {
    fn start(namespace: &Namespace, interface: Interface, options: Options) -> Server {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_signal = stop.clone();
        let thread = namespace.spawn(move || {
            let mut buffer = vec![0; SLOTS * payload_len(&interface) + 17];
            let served = serve(&interface, &options, &mut buffer, &stop_signal).unwrap();
            (served, buffer)
        });
        Server {
            stop,
            thread: Some(thread),
        }
    }

    fn end(mut self) -> (Served, Vec<u8>) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn all_ways() -> impl Iterator<Item = Options> {
    [
        (Wait::Block, Receive::Scatter),
        (Wait::Poll, Receive::Scatter),
        (Wait::Block, Receive::Copy),
        (Wait::Block, Receive::Ring),
    ]
    .into_iter()
    .map(|(wait, receive)| Options {
        wait,
        receive,
        ..Options::default()
    })
}

/// Waits until the server answers: pings before its socket exists are lost.
fn await_server(client: &Namespace, interface: &Interface, peer: MacAddr, options: &Options) {
    for _ in 0..500 {
        if client
            .run(|| ping_pong(interface, peer, options, 0, 1, 0))
            .unwrap()
            .lost
            == 0
        {
            return;
        }
    }
    panic!("the server does not answer");
}

#[test]
fn pings_come_back() {
    for options in all_ways() {
        let Some(nodes) = TwoNodes::new_or_skip("pings_come_back") else {
            return;
        };
        let server = Server::start(nodes.b.namespace(), nodes.b.interface(), options);
        let (interface, peer) = (nodes.a.interface(), nodes.b.interface().mac);
        await_server(nodes.a.namespace(), &interface, peer, &options);
        for size in [0, 1, 1489] {
            let result = nodes
                .a
                .run(|| ping_pong(&interface, peer, &options, size, 50, 5))
                .unwrap();
            assert_eq!(
                result.samples_ns.len() as u64 + result.lost,
                50,
                "{options:?}"
            );
            assert!(!result.samples_ns.is_empty());
        }
        let error = nodes
            .a
            .run(|| ping_pong(&interface, peer, &options, 1490, 1, 0))
            .unwrap_err();
        assert!(matches!(error, RawLoopError::Size(_)));
        assert!(server.end().0.pings > 100);
    }
}

#[test]
fn a_stream_arrives_complete() {
    for options in all_ways() {
        let Some(nodes) = TwoNodes::new_or_skip("stream_arrives") else {
            return;
        };
        for mtu in [1500, 9000] {
            nodes.set_mtu(mtu);
            let server = Server::start(nodes.b.namespace(), nodes.b.interface(), options);
            let (interface, peer) = (nodes.a.interface(), nodes.b.interface().mac);
            await_server(nodes.a.namespace(), &interface, peer, &options);
            let room = payload_len(&interface);
            assert_eq!(room, mtu as usize + 14 - HEADER_LEN);
            let from: Vec<u8> = (0..100 * room as u32)
                .map(|n| (n ^ (n >> 8)) as u8)
                .collect();
            let total = 5 * 100 * room as u64 + 50;
            let result = nodes
                .a
                .run(|| stream(&interface, peer, &options, &from, total))
                .unwrap();
            assert_eq!((result.bytes, result.frames), (total, 501));
            let (served, buffer) = server.end();
            assert_eq!((served.bytes, served.frames), (total, 501), "{options:?}");
            assert_contains(&buffer, &from, total as usize);
        }
    }
}

/// Asserts that the buffer starts with `total` bytes of the source, repeated.
fn assert_contains(buffer: &[u8], from: &[u8], total: usize) {
    let wrong = buffer[..total]
        .iter()
        .zip(from.iter().cycle())
        .position(|(got, sent)| got != sent);
    assert_eq!(wrong, None, "first byte that differs");
}

#[test]
fn the_server_goes_round_its_buffer() {
    let Some(nodes) = TwoNodes::new_or_skip("goes_round") else {
        return;
    };
    let options = Options::default();
    let server = Server::start(nodes.b.namespace(), nodes.b.interface(), options);
    let (interface, peer) = (nodes.a.interface(), nodes.b.interface().mac);
    await_server(nodes.a.namespace(), &interface, peer, &options);
    let from = vec![7; payload_len(&interface)];
    let total = (10 * SLOTS * from.len()) as u64;
    nodes
        .a
        .run(|| stream(&interface, peer, &options, &from, total))
        .unwrap();
    let (served, buffer) = server.end();
    assert_eq!(served.bytes, total);
    assert_contains(&buffer, &[7], SLOTS * from.len());
}

/// Forwards frames between two interfaces of the calling thread's namespace, except every 97th.
fn lossy_wire(names: [&str; 2], stop: &AtomicBool) -> u64 {
    let [left, right] = names.map(|name| {
        let interface = Interface::by_name(name).unwrap();
        PacketSocket::open(&interface, ETHERTYPE, &SocketOptions::default()).unwrap()
    });
    let (mut received, mut out) = (RecvBatch::new(32, 1600), SendBatch::new(32));
    let (mut frames, mut lost) = (0u64, 0);
    while !stop.load(Ordering::Relaxed) {
        for (from, to) in [(&left, &right), (&right, &left)] {
            from.recv_batch(&mut received).unwrap();
            for frame in received.frames() {
                frames += 1;
                if frames % 97 == 0 {
                    lost += 1;
                    continue;
                }
                // SAFETY: received frames stay until the next receive, after `send_all`.
                unsafe {
                    out.push(
                        0,
                        Some((NonNull::from(frame.bytes).cast(), frame.bytes.len())),
                        0,
                    );
                };
            }
            send_all(to, &mut out);
        }
        std::thread::yield_now();
    }
    lost
}

#[test]
fn a_stream_survives_loss() {
    let Some(nodes) = TwoNodes::new_or_skip("stream_survives_loss") else {
        return;
    };
    // A third namespace takes the place of their cable; the test forwards between its two
    // interfaces.
    let (a, b, middle) = (
        nodes.a.namespace(),
        nodes.b.namespace(),
        Namespace::new().unwrap(),
    );
    connect(a, "left0", &middle, "left0").unwrap();
    connect(b, "right0", &middle, "right0").unwrap();
    let interface = a.run(|| Interface::by_name("left0")).unwrap();
    let server_interface = b.run(|| Interface::by_name("right0")).unwrap();
    let peer = server_interface.mac;
    let options = Options::default();
    let stop = Arc::new(AtomicBool::new(false));
    let stop_signal = stop.clone();
    let wire = middle.spawn(move || lossy_wire(["left0", "right0"], &stop_signal));
    let server = Server::start(b, server_interface, options);
    await_server(a, &interface, peer, &options);
    let from: Vec<u8> = (0..100 * 1489u32).map(|n| (n ^ (n >> 8)) as u8).collect();
    let total = 5 * from.len() as u64;
    let result = a.run(|| stream(&interface, peer, &options, &from, total));
    stop.store(true, Ordering::Relaxed);
    let lost = wire.join().unwrap();
    let result = result.unwrap();
    let (served, buffer) = server.end();
    assert!(lost >= 5, "{lost} frames lost");
    assert!(
        result.resent > 0 && served.out_of_order > 0,
        "{result:?} {served:?}"
    );
    assert_eq!(
        (result.bytes, served.bytes, served.frames),
        (total, total, 500)
    );
    assert_contains(&buffer, &from, total as usize);
}

#[test]
fn a_missing_server_is_an_error_after_the_timeout() {
    let Some(nodes) = TwoNodes::new_or_skip("nobody_there") else {
        return;
    };
    let (interface, peer) = (nodes.a.interface(), nodes.b.interface().mac);
    let options = Options {
        wait: Wait::Poll,
        ..Options::default()
    };
    let error = nodes
        .a
        .run(|| ping_pong(&interface, peer, &options, 1, 100_000, 0))
        .unwrap_err();
    assert!(matches!(error, RawLoopError::NoAnswer { .. }), "{error}");
    let options = Options {
        wait: Wait::Block,
        ..Options::default()
    };
    let error = nodes
        .a
        .run(|| stream(&interface, peer, &options, &[0; 2000], 1 << 30))
        .unwrap_err();
    assert!(matches!(error, RawLoopError::NoAnswer { .. }), "{error}");
}
