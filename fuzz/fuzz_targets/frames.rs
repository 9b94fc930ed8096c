//! Any bytes as frames, to an endpoint with a listener, a connection that is open and one that is opening.
//!
//! Some frames get the header fields right that would only get them dropped otherwise, so that the fuzzer comes deeper.
#![no_main]

use std::collections::BTreeMap;

use esp_fuzz::Choices;
use esp_proto::{
    ConnId, ConnOptions, Datagram, Duration, Endpoint, EndpointConfig, Event, HEAD_LEN, Head, Instant,
    ListenOptions, MacAddr, PREFIX_LEN, Payload, RxFrame, Sink,
};
use libfuzzer_sys::fuzz_target;

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const ROOM: u32 = 16 << 10;
/// More frames than this in answer to one would be an amplifier.
const ANSWERS: usize = 300;

/// Checks that bytes come in order and within the room.
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

/// Drains an endpoint; returns the frames it sent, from the EtherType on.
fn drain(endpoint: &mut Endpoint, host: &mut Host, now: Instant) -> Vec<Vec<u8>> {
    while endpoint.poll_progress().is_some() {}
    while let Some(event) = endpoint.poll_event() {
        match event {
            Event::Incoming { conn, .. } => {
                host.0.insert(conn, 0);
                endpoint.attach(now, conn, ROOM);
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

fn endpoint(mac: MacAddr, seed: u8) -> Endpoint {
    let mut endpoint = Endpoint::new(EndpointConfig::default(), mac, 1500, [seed; 32], 1);
    endpoint.listen(1000, ListenOptions { backlog: 4, key: Vec::new() }).expect("a free port");
    endpoint
}

fn connect(endpoint: &mut Endpoint, host: &mut Host, now: Instant, port: u16) -> ConnId {
    let options = ConnOptions { rx_capacity: ROOM, key: Vec::new() };
    let conn = endpoint.connect(now, port, PEER, 1000, options).expect("a good address");
    host.0.insert(conn, 0);
    conn
}

/// Sets fields of the last frame the peer sent into this one: 1 type, 2 ports, 4 flags, 8 sequences, 16 length.
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
    let _ = netif::parse_ethernet(data).map(|frame| frame.ethertype());

    let mut now = Instant::from_nanos(1_000_000);
    let (mut own, mut host) = (endpoint(OWN, 1), Host::default());
    let (mut peer, mut there) = (endpoint(PEER, 2), Host::default());
    let open = connect(&mut own, &mut host, now, 5000);
    // An honest handshake.
    let mut model = Vec::new();
    for _ in 0..3 {
        for frame in drain(&mut own, &mut host, now) {
            peer.handle_frame(now, RxFrame { src: OWN, dst: PEER, body: &frame, looped: false }, &mut there);
        }
        for frame in drain(&mut peer, &mut there, now) {
            own.handle_frame(now, RxFrame { src: PEER, dst: OWN, body: &frame, looped: false }, &mut host);
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
        let dst = if what & 32 == 0 { OWN } else { MacAddr::BROADCAST };
        own.handle_frame(now, RxFrame { src: PEER, dst, body: &frame, looped: false }, &mut host);
        drain(&mut own, &mut host, now);
        if what & 64 != 0 {
            now = now + Duration::from_micros(choices.below(20_000).into());
            own.handle_timeout(now);
            drain(&mut own, &mut host, now);
        }
    }
    // Whatever came: everything ends.
    own.shutdown_all(now);
    drain(&mut own, &mut host, now);
    assert_eq!(own.connections().count(), 0, "nothing is left");
});
