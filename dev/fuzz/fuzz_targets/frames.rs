//! Arbitrary bytes as frames, to an endpoint with a listener, an open connection and one that is
//! opening.
//!
//! In some frames the target corrects the header fields that would only get them dropped, so that
//! the fuzzer reaches deeper code.
#![no_main]

use std::collections::BTreeMap;

use esp_fuzz::Choices;
use esp_proto::rails::{Rails, serve};
use esp_proto::wire::{EspFrame, FrameType, Header, MOVE_LEN, Move, SetUp, Step};
use esp_proto::{
    Buffers, ConnId, ConnOptions, Datagram, Duration, Endpoint, EndpointConfig, Event, HEAD_LEN,
    Head, Instant, ListenOptions, MacAddr, PREFIX_LEN, Payload, Port, RxFrame, Sink,
};
use libfuzzer_sys::fuzz_target;

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const PEER_OTHER: MacAddr = MacAddr([2, 0, 0, 0, 1, 2]);
const ROOM: u32 = 16 << 10;
/// Maximum number of frames in reply to one; more would be amplification.
const ANSWERS: usize = 300;

/// Checks that bytes arrive in order and within the receive room.
#[derive(Default)]
struct Host(BTreeMap<ConnId, u64>);

impl Sink for Host {
    fn deliver(&mut self, conn: ConnId, offset: u64, bytes: &[u8]) {
        let end = self.0.get_mut(&conn).expect("a connection the host knows");
        assert_eq!(*end, offset, "in order, once");
        *end += bytes.len() as u64;
        assert!(*end <= u64::from(ROOM), "within the room");
    }

    fn datagram(&mut self, _: Datagram<'_>) {}
}

/// A station with one interface here; the peer may still move between two.
struct Station<'a>(&'a mut Endpoint, &'a mut Host);

impl Rails for Station<'_> {
    fn count(&self) -> usize {
        1
    }

    fn endpoint(&mut self, _: usize) -> Option<&mut Endpoint> {
        Some(self.0)
    }

    fn usable(&self, _: usize, _: Port) -> bool {
        true
    }

    fn moved(&mut self, from: (usize, ConnId), to: (usize, ConnId)) {
        let end = self
            .1
            .0
            .remove(&from.1)
            .expect("a connection the host knows");
        assert!(self.1.0.insert(to.1, end).is_none(), "a new name");
    }
}

/// Returns the nonce of a set-up frame.
fn nonce_of(frame: &[u8]) -> Option<u64> {
    let (header, rest) = Header::parse(frame).ok()?;
    let frame = EspFrame::parse(&header, rest).ok()?;
    let set_up = matches!(frame.kind, FrameType::Syn | FrameType::SynAck)
        .then(|| SetUp::parse(frame.payload).ok())??;
    Some(set_up.nonce)
}

/// Builds a MOVE with the right key and nonces, and numbers chosen by the fuzzer.
fn dressed_move(choices: &mut Choices<'_>, nonce: u64, sender_nonce: u64) -> Vec<u8> {
    let step = [Step::Ask, Step::Answer, Step::Go, Step::Done, Step::Gone]
        [usize::from(choices.byte() % 5)];
    let flags = choices.byte();
    let block = Move {
        step,
        finished: flags.is_multiple_of(4),
        resumed: flags & 0x80 != 0,
        max_payload: 64 + u16::from(choices.byte()) * 8,
        epoch: 1 + u32::from(choices.byte()),
        nonce,
        sender_nonce,
        received: u64::from(choices.word()) % 4000,
        credit: u16::from(choices.byte()),
    };
    let mut frame = vec![0; 13 + MOVE_LEN];
    let [high, low] = choices.word().to_be_bytes();
    let header = [
        0x88,
        0xb5,
        0x13,
        0x88,
        0x03,
        0xe8,
        high,
        low,
        0,
        0,
        0,
        MOVE_LEN as u8,
        0x21,
    ];
    frame[..13].copy_from_slice(&header);
    block.emit(&mut frame[13..]);
    frame
}

/// Drains an endpoint; returns the frames it sent, without their addresses.
fn drain(endpoint: &mut Endpoint, host: &mut Host, now: Instant) -> Vec<Vec<u8>> {
    serve(&mut Station(endpoint, host), now);
    while endpoint.poll_progress().is_some() {}
    while let Some(event) = endpoint.poll_event() {
        match event {
            Event::Incoming { conn, .. } => {
                host.0.insert(conn, 0);
                endpoint.attach(now, conn, Buffers { rx: ROOM, tx: ROOM });
            }
            Event::Closed { conn, .. } => {
                host.0.remove(&conn);
            }
            Event::Connected(_) | Event::PeerFinished(_) => {}
        }
    }
    let mut frames = Vec::new();
    let mut head: Head = [0; HEAD_LEN];
    while let Some(transmit) = endpoint.poll_transmit(now, &mut head) {
        let mut frame = head[12..PREFIX_LEN].to_vec();
        match transmit.payload {
            Payload::None => {}
            Payload::Stream { len, .. } | Payload::Filler { len } => {
                frame.resize(frame.len() + usize::from(len), 7)
            }
            Payload::Owned(bytes) => frame.extend_from_slice(&bytes),
        }
        frame.extend_from_slice(&head[PREFIX_LEN..PREFIX_LEN + transmit.tail_len]);
        assert!(
            frame.len() + 12 >= 60 && frame.len() <= endpoint.mtu() as usize + 2,
            "{} bytes",
            frame.len()
        );
        frames.push(frame);
        assert!(frames.len() <= ANSWERS, "too many answers");
    }
    frames
}

fn endpoint(mac: MacAddr, seed: u8, ecn: bool) -> Endpoint {
    let config = EndpointConfig {
        ecn,
        ..EndpointConfig::default()
    };
    let mut endpoint = Endpoint::new(config, mac, 1500, [seed; 32], 1);
    // Each has another interface, which is not present here.
    let MacAddr([a, b, c, d, _, f]) = mac;
    endpoint.set_rails(&[MacAddr([a, b, c, d, 1, f])]);
    endpoint
        .listen(
            1000,
            ListenOptions {
                backlog: 4,
                ..ListenOptions::default()
            },
        )
        .expect("a free port");
    endpoint
}

fn connect(endpoint: &mut Endpoint, host: &mut Host, now: Instant, port: u16) -> ConnId {
    let options = ConnOptions {
        buffers: Buffers { rx: ROOM, tx: ROOM },
        key: Vec::new(),
    };
    let conn = endpoint
        .connect(now, port, PEER.into(), 1000, options)
        .expect("a good address");
    host.0.insert(conn, 0);
    conn
}

/// Copies fields of the last frame sent by the peer into this one: 1 type, 2 ports, 4 flags, 8
/// sequences, 16 length.
fn dress(frame: &mut [u8], model: &[u8], what: u8) {
    for (bit, range) in [(1, 0..2), (2, 2..6), (4, 12..13), (8, 6..10)] {
        if what & bit != 0
            && let (Some(to), Some(from)) = (frame.get_mut(range.clone()), model.get(range))
        {
            to.copy_from_slice(from);
        }
    }
    if what & 16 != 0 && frame.len() >= 13 {
        let len = u16::try_from(frame.len() - 13).unwrap_or(0);
        frame[10..12].copy_from_slice(&len.to_be_bytes());
    }
}

fuzz_target!(|data: &[u8]| {
    let _ = netif::parse_ethernet(data).map(|frame| frame.body.len());

    let mut now = Instant::from_nanos(1_000_000);
    let ecn = data.len() % 2 == 0;
    let (mut own, mut host) = (endpoint(OWN, 1, ecn), Host::default());
    let (mut peer, mut there) = (endpoint(PEER, 2, ecn), Host::default());
    let open = connect(&mut own, &mut host, now, 5000);
    // A regular handshake.
    let mut nonces = [0; 2];
    let mut model = Vec::new();
    for _ in 0..3 {
        for frame in drain(&mut own, &mut host, now) {
            nonces[0] = nonce_of(&frame).unwrap_or(nonces[0]);
            peer.handle_frame(
                now,
                RxFrame {
                    src: OWN.into(),
                    dst: PEER.into(),
                    body: &frame,
                    looped: false,
                    ce: false,
                },
                &mut there,
            );
        }
        for frame in drain(&mut peer, &mut there, now) {
            nonces[1] = nonce_of(&frame).unwrap_or(nonces[1]);
            own.handle_frame(
                now,
                RxFrame {
                    src: PEER.into(),
                    dst: OWN.into(),
                    body: &frame,
                    looped: false,
                    ce: false,
                },
                &mut host,
            );
            model = frame;
        }
    }
    own.written(now, open, 3000);
    connect(&mut own, &mut host, now, 5001);
    drain(&mut own, &mut host, now);

    let mut choices = Choices::new(data);
    while !choices.is_empty() {
        let what = choices.byte();
        let len = choices.below(80) as usize;
        let mut frame = choices.bytes(len).to_vec();
        dress(&mut frame, &model, what);
        let dst = if what & 32 == 0 {
            OWN
        } else {
            MacAddr::BROADCAST
        };
        let src = if what & 128 == 0 { PEER } else { PEER_OTHER };
        own.handle_frame(
            now,
            RxFrame {
                src: src.into(),
                dst: dst.into(),
                body: &frame,
                looped: false,
                ce: len % 2 == 0,
            },
            &mut host,
        );
        drain(&mut own, &mut host, now);
        if what & 15 == 15 {
            let body = dressed_move(&mut choices, nonces[0], nonces[1]);
            own.handle_frame(
                now,
                RxFrame {
                    src: src.into(),
                    dst: OWN.into(),
                    body: &body,
                    looped: false,
                    ce: len % 2 == 0,
                },
                &mut host,
            );
            drain(&mut own, &mut host, now);
        }
        if what & 64 != 0 {
            now = now + Duration::from_micros(choices.below(20_000).into());
            own.handle_timeout(now);
            drain(&mut own, &mut host, now);
        }
    }
    // All connections end, whatever was received.
    own.shutdown_all(now);
    drain(&mut own, &mut host, now);
    assert_eq!(own.connections().count(), 0, "nothing is left");
});
