//! A receive ring whose slots hold short frames, while long ones wait in the socket.

mod common;

use std::ptr::NonNull;

use common::{LONG, TYPE, header, readable, send_all};
use netif::{FrameKind, PacketSocket, RecvBatch, RecvRing, RingShape, SendBatch, SocketOptions};
use netns::TwoNodes;

const SHAPE: RingShape = RingShape {
    slot_len: 256,
    slots: 256,
};
/// Maximum length of a frame that fits a slot.
const SHORT: usize = 190;

struct Pair {
    nodes: TwoNodes,
    from: PacketSocket,
    to: PacketSocket,
    ring: RecvRing,
    batch: RecvBatch,
    sent: u32,
}

/// Opens a socket in the second node, whose ring is set up before it is bound.
fn with_ring(nodes: &TwoNodes, receive_buffer: usize) -> PacketSocket {
    let options = SocketOptions {
        receive_buffer,
        ..SocketOptions::default()
    };
    let interface = nodes.b.interface();
    nodes.b.run(|| {
        let socket = PacketSocket::open_unbound(&interface, &options).unwrap();
        socket.ring(&interface, SHAPE).unwrap();
        socket.bind(&interface, TYPE).unwrap();
        socket
    })
}

impl Pair {
    fn new_or_skip(name: &str, receive_buffer: usize) -> Option<Pair> {
        let nodes = TwoNodes::new_or_skip(name)?;
        let from = nodes.a.socket(TYPE, &SocketOptions::default());
        let to = with_ring(&nodes, receive_buffer);
        let ring = RecvRing::map(&to, SHAPE).unwrap();
        Some(Pair {
            nodes,
            from,
            to,
            ring,
            batch: RecvBatch::new(64, 1514),
            sent: 0,
        })
    }

    /// Sends a frame of `len` bytes: its number, and bytes derived from it.
    fn send(&mut self, len: usize) {
        let (a, b) = (self.nodes.a.interface().mac, self.nodes.b.interface().mac);
        let body = body(self.sent, len);
        self.sent += 1;
        let mut batch = SendBatch::new(1);
        batch.head().unwrap()[..14].copy_from_slice(&header(b, a));
        // SAFETY: the body lives until the frame was sent below.
        unsafe { batch.push(14, Some((NonNull::from(&body[0]), body.len())), 0) };
        assert_eq!(send_all(&self.from, &mut batch), 1);
    }

    /// Receives up to `max` frames; returns their numbers, lengths, and whether they were
    /// truncated.
    fn receive(&mut self, max: usize) -> Vec<(u32, usize, bool)> {
        let mut all = Vec::new();
        let Pair {
            to, ring, batch, ..
        } = self;
        let count = ring.receive(to, batch, max, |frame| {
            assert_eq!(frame.kind, FrameKind::Host);
            let number = u32::from_be_bytes(frame.bytes[14..18].try_into().unwrap());
            let len = frame.bytes.len();
            assert!(
                frame.bytes[14..] == body(number, len),
                "the bytes of frame {number}"
            );
            all.push((number, len, frame.truncated));
        });
        assert_eq!(count.unwrap(), all.len());
        all
    }
}

fn body(number: u32, len: usize) -> Vec<u8> {
    let filler = (4..len - 14).map(|at| (at as u32 + number) as u8);
    number.to_be_bytes().into_iter().chain(filler).collect()
}

#[test]
fn short_and_long_frames_keep_their_order() {
    let Some(mut pair) = Pair::new_or_skip("ring_order", netif::WINDOW_BYTES) else {
        return;
    };
    assert_eq!(pair.receive(64), []);
    let mut dice = 1u32;
    let mut roll = |sides: u32| {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (dice >> 8) % sides
    };
    let (mut expected, mut waiting) = (std::collections::VecDeque::new(), 0);
    while pair.sent < 4000 {
        for _ in 0..roll(100) {
            // Lengths around the longest that a slot holds, and others; runs of one kind are
            // likely.
            let len = match roll(4) {
                0 => SHORT - 1 + roll(3) as usize,
                1 => 60 + roll(1455) as usize,
                2 => 1514,
                _ => 60,
            };
            for _ in 0..=roll(3) {
                if waiting < 256 {
                    expected.push_back((pair.sent, len, false));
                    waiting += 1;
                    pair.send(len);
                }
            }
        }
        // veth delivers before the send returns: all are there.
        assert_eq!(readable(&pair.to, std::time::Duration::ZERO), waiting > 0);
        for _ in 0..roll(4) {
            let max = roll(80) as usize;
            let taken = pair.receive(max);
            assert_eq!(taken.len(), max.min(waiting));
            waiting -= taken.len();
            for frame in taken {
                assert_eq!(Some(frame), expected.pop_front());
            }
        }
    }
}

#[test]
fn frames_without_room_are_dropped_and_counted() {
    let Some(mut pair) = Pair::new_or_skip("ring_full", netif::WINDOW_BYTES) else {
        return;
    };
    (0..300).for_each(|_| pair.send(60));
    let mut taken = Vec::new();
    while taken.len() < 256 {
        taken.extend(pair.receive(100));
    }
    assert!(taken.iter().map(|frame| frame.0).eq(0..256));
    assert_eq!(pair.receive(100), []);
    let counted = pair.to.statistics().unwrap();
    assert_eq!((counted.received, counted.dropped), (256, 44));
    pair.send(60);
    assert_eq!(pair.receive(100), [(300, 60, false)]);
}

#[test]
fn long_frames_without_room_in_the_socket_are_truncated() {
    let Some(mut pair) = Pair::new_or_skip("ring_cut", 4096) else {
        return;
    };
    (0..100).for_each(|_| pair.send(1514));
    pair.send(60);
    let mut taken = Vec::new();
    while taken.len() < 101 {
        let more = pair.receive(64);
        assert!(!more.is_empty(), "{} frames", taken.len());
        taken.extend(more);
    }
    let whole = taken.iter().take_while(|frame| !frame.2).count();
    assert!((1..100).contains(&whole), "{whole} of 100 found room");
    for (number, &(found, len, cut)) in (0..).zip(&taken) {
        let last = number == 100;
        let wanted = if last {
            60
        } else if cut {
            SHORT
        } else {
            1514
        };
        assert_eq!((found, len), (number, wanted));
    }
    pair.send(1514);
    assert_eq!(
        pair.receive(64),
        [(101, 1514, false)],
        "there is room again"
    );
}

#[test]
fn an_interface_that_went_down_is_reported_once() {
    let Some(mut pair) = Pair::new_or_skip("ring_down", netif::WINDOW_BYTES) else {
        return;
    };
    assert!(pair.to.take_error().is_none());
    pair.nodes.b.set_link("down");
    assert!(readable(&pair.to, LONG), "the error ends a sleep");
    assert_eq!(pair.receive(64), []);
    assert!(pair.to.take_error().is_some());
    assert!(pair.to.take_error().is_none());
    assert!(!readable(&pair.to, std::time::Duration::ZERO));
}

#[test]
fn a_socket_without_a_ring_has_none_to_map() {
    let Some(nodes) = TwoNodes::new_or_skip("ring_none") else {
        return;
    };
    let plain = nodes.b.socket(TYPE, &SocketOptions::default());
    assert!(RecvRing::map(&plain, SHAPE).is_err());
    let other = RingShape {
        slots: 512,
        ..SHAPE
    };
    assert!(RecvRing::map(&with_ring(&nodes, 0), other).is_err());
}
