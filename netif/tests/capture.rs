//! A capture between two nodes.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use netif::{CaptureSocket, Filter, FrameKind, PacketSocket, SendBatch, SocketOptions};
use netns::{Node, TwoNodes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const TYPES: [u16; 2] = [0x88b5, 0x88b6];
/// A type that is not captured.
const OTHER: u16 = 0x88b7;

/// A frame as it was captured.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: FrameKind,
    bytes: Vec<u8>,
    len: usize,
    time: Duration,
}

fn open(node: &Node) -> CaptureSocket {
    let interface = node.interface();
    node.run(|| CaptureSocket::open(&interface, &Filter::for_capture(TYPES)))
        .expect("a capture")
}

/// Waits for the next frame.
fn next(capture: &mut CaptureSocket) -> Seen {
    let patience = Timespec::try_from(Duration::from_secs(60)).expect("a minute");
    loop {
        if let Some(frame) = capture.receive().expect("receive") {
            return Seen {
                kind: frame.kind,
                bytes: frame.bytes.to_vec(),
                len: frame.len,
                time: frame.time,
            };
        }
        let fd = capture.as_fd();
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience));
        assert_ne!(ready, Ok(0), "no frame was captured");
    }
}

/// Sends a frame of the two addresses and `rest`, which starts with the type, padded to 60 bytes.
fn send(from: &Node, socket: &PacketSocket, to: &Node, rest: &[u8]) -> Vec<u8> {
    let (src, dst) = (from.interface().mac, to.interface().mac);
    let mut frame = [&dst.octets()[..], &src.octets(), rest].concat();
    frame.resize(frame.len().max(60), 0);
    let mut batch = SendBatch::new(1);
    batch.head().expect("room")[..frame.len()].copy_from_slice(&frame);
    batch.push_inline(frame.len());
    socket.send_batch(&mut batch).expect("send");
    frame
}

#[test]
fn frames_of_both_protocols_are_captured_with_their_time() {
    let Some(nodes) = TwoNodes::new_or_skip("frames_of_both_protocols_are_captured") else {
        return;
    };
    let socket = nodes.a.socket(TYPES[0], &SocketOptions::default());
    let mut capture = open(&nodes.b);
    let start = SystemTime::now();
    send(&nodes.a, &socket, &nodes.b, &OTHER.to_be_bytes());
    for number in TYPES {
        let sent = send(&nodes.a, &socket, &nodes.b, &number.to_be_bytes());
        let seen = next(&mut capture);
        assert_eq!((seen.kind, seen.len), (FrameKind::Host, 60));
        assert_eq!(seen.bytes, sent);
        let since = start.duration_since(SystemTime::UNIX_EPOCH).expect("now");
        let distance = seen.time.abs_diff(since);
        assert!(distance < Duration::from_secs(3600), "{distance:?}");
    }
    let counts = capture.statistics().expect("counts");
    assert_eq!((counts.received, counts.dropped), (2, 0));
}

#[test]
fn a_vlan_tag_is_in_its_place() {
    let Some(nodes) = TwoNodes::new_or_skip("a_vlan_tag_is_in_its_place") else {
        return;
    };
    let socket = nodes.a.socket(TYPES[0], &SocketOptions::default());
    let mut capture = open(&nodes.b);
    let tagged = [0x81, 0, 0x60, 5, 0x88, 0xb5, 1, 2, 3];
    let sent = send(&nodes.a, &socket, &nodes.b, &tagged);
    let seen = next(&mut capture);
    assert_eq!(seen.bytes, sent);
    assert_eq!(seen.len, sent.len());
}

#[test]
fn datagrams_that_begin_with_a_type_are_captured_in_both_directions() {
    let Some(nodes) = TwoNodes::new_or_skip("datagrams_that_begin_with_a_type") else {
        return;
    };
    for (node, addresses) in [
        (&nodes.a, ["10.9.0.1/24", "fd09::1/64"]),
        (&nodes.b, ["10.9.0.2/24", "fd09::2/64"]),
    ] {
        for address in addresses {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            let command = format!("addr add {address} dev {}{nodad}", node.name());
            node.namespace().ip(&command).expect("an address");
        }
    }
    let mut captures = [open(&nodes.a), open(&nodes.b)];
    for (from, to) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
        let socket = nodes
            .a
            .run(|| UdpSocket::bind((from, 0)))
            .expect("a UDP socket");
        for (payload, wanted) in [
            (b"\x88\xb4 not ours".as_slice(), false),
            (b"\x88".as_slice(), false),
            (b"\x88\xb5 ours".as_slice(), true),
            (b"\x88\xb6 ours, too".as_slice(), true),
        ] {
            socket.send_to(payload, (to, 2805)).expect("send");
            if !wanted {
                continue;
            }
            let kinds = [FrameKind::Outgoing, FrameKind::Host];
            for (capture, kind) in captures.iter_mut().zip(kinds) {
                let seen = next(capture);
                assert_eq!(seen.kind, kind);
                assert!(seen.bytes.ends_with(payload), "{seen:?}");
            }
        }
    }
}

/// Documented: a frame sent past the queueing discipline is seen only where it arrives.
#[test]
fn frames_that_bypass_the_queue_are_not_seen_by_their_sender() {
    let Some(nodes) = TwoNodes::new_or_skip("frames_that_bypass_the_queue") else {
        return;
    };
    let [there, here] = [&nodes.a, &nodes.b].map(|n| n.socket(TYPES[0], &SocketOptions::default()));
    let mut capture = open(&nodes.a);
    send(&nodes.a, &there, &nodes.b, &[0x88, 0xb5, 1]);
    let back = send(&nodes.b, &here, &nodes.a, &[0x88, 0xb5, 2]);
    let seen = next(&mut capture);
    assert_eq!((seen.kind, seen.bytes), (FrameKind::Host, back));
}
