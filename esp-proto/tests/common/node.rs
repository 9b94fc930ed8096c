//! A station: an endpoint, its programs, and the frames that it sends.

use super::{ROOM, pattern};
use esp_proto::wire::{EspFrame, FrameType, Header};
use esp_proto::*;
use std::collections::BTreeMap;

/// View of a connection by the program at one end.
#[derive(Debug, Default)]
pub struct App {
    pub written: u64,
    pub acked: u64,
    pub received: u64,
    pub consumed: u64,
    pub room: u32,
    pub finished: bool,
    /// The program called `shutdown`.
    pub finishing: bool,
    pub closed: Option<CloseReason>,
}

/// A station.
pub struct Node {
    pub ep: Endpoint,
    pub apps: BTreeMap<ConnId, App>,
    pub events: Vec<Event>,
    pub datagrams: Vec<(Port, EdpKind, Vec<u8>)>,
    /// Attaches each connection of a listener with this much receive room.
    pub attach: Option<u32>,
    /// Consumes delivered data immediately.
    pub consume: bool,
}

struct NodeSink<'a> {
    apps: &'a mut BTreeMap<ConnId, App>,
    datagrams: &'a mut Vec<(Port, EdpKind, Vec<u8>)>,
}

impl Sink for NodeSink<'_> {
    fn deliver(&mut self, conn: ConnId, offset: u64, bytes: &[u8]) {
        let app = self
            .apps
            .get_mut(&conn)
            .expect("delivery to a connection the host knows");
        assert!(app.closed.is_none(), "delivery after Closed");
        assert_eq!(offset, app.received, "in order, once (W-36)");
        for (i, byte) in bytes.iter().enumerate() {
            assert_eq!(
                *byte,
                pattern(offset + i as u64),
                "byte {}",
                offset + i as u64
            );
        }
        app.received += bytes.len() as u64;
        assert!(
            app.received - app.consumed <= u64::from(app.room),
            "within the receive room (W-38)"
        );
    }

    fn datagram(&mut self, d: Datagram<'_>) {
        self.datagrams.push((d.dst_port, d.kind, d.bytes.to_vec()));
    }
}

/// A frame on the wire, without addresses.
#[derive(Clone, Debug)]
pub struct OnWire {
    pub at: Instant,
    pub src: MacAddr,
    pub dst: MacAddr,
    pub body: Vec<u8>,
    pub looped: bool,
    /// The congestion mark.
    pub ce: bool,
}

impl OnWire {
    pub fn header(&self) -> Header {
        Header::parse(&self.body).unwrap().0
    }

    pub fn kind(&self) -> FrameType {
        self.esp().kind
    }

    pub fn esp(&self) -> EspFrame<'_> {
        let (header, rest) = Header::parse(&self.body).unwrap();
        EspFrame::parse(&header, rest).unwrap()
    }
}

impl Node {
    pub fn new(mac: MacAddr, mtu: u32, seed: u8, config: EndpointConfig) -> Node {
        Node {
            ep: Endpoint::new(config, mac, mtu, [seed; 32], 1),
            apps: BTreeMap::new(),
            events: vec![],
            datagrams: vec![],
            attach: Some(ROOM),
            consume: true,
        }
    }

    /// Hands the program of a connection to the endpoint that the connection moved to.
    pub fn hand_over(&mut self, from: ConnId, other: &mut Node, to: ConnId) {
        let app = self
            .apps
            .remove(&from)
            .expect("a connection the host knows");
        assert!(other.apps.insert(to, app).is_none(), "the id is new");
    }

    pub fn receive(&mut self, now: Instant, frame: &OnWire) {
        let mut sink = NodeSink {
            apps: &mut self.apps,
            datagrams: &mut self.datagrams,
        };
        let raw = RxFrame {
            src: frame.src.into(),
            dst: frame.dst.into(),
            body: &frame.body,
            looped: frame.looped,
            ce: frame.ce,
        };
        self.ep.handle_frame(now, raw, &mut sink);
    }

    /// Drains progress and events until none are left.
    pub fn drain(&mut self, now: Instant) {
        loop {
            let mut quiet = true;
            while let Some(p) = self.ep.poll_progress() {
                quiet = false;
                let app = self
                    .apps
                    .get_mut(&p.conn)
                    .expect("progress of a connection the host knows");
                assert!(app.acked <= p.acked && p.acked <= app.written);
                assert_eq!(p.delivered, app.received);
                app.acked = p.acked;
                if self.consume && app.consumed < p.delivered {
                    app.consumed = p.delivered;
                    self.ep.consumed(now, p.conn, p.delivered);
                }
            }
            while let Some(event) = self.ep.poll_event() {
                quiet = false;
                self.on_event(now, &event);
                self.events.push(event);
            }
            if quiet {
                return;
            }
        }
    }

    fn on_event(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Connected(conn) => assert!(self.apps.contains_key(conn)),
            Event::Incoming { conn, .. } => {
                let room = self.attach.unwrap_or(0);
                self.apps.insert(
                    *conn,
                    App {
                        room,
                        ..App::default()
                    },
                );
                if self.attach.is_some() {
                    // False when the connection was reset within this batch; then `Closed` follows.
                    assert_eq!(
                        self.ep.attach(now, *conn, Buffers { rx: room, tx: room }),
                        self.ep.info(*conn).is_some()
                    );
                }
            }
            Event::PeerFinished(conn) => self.apps.get_mut(conn).unwrap().finished = true,
            Event::Closed { conn, reason } => {
                let app = self.apps.get_mut(conn).unwrap();
                assert_eq!(app.closed, None, "Closed comes once");
                app.closed = Some(*reason);
            }
        }
    }

    /// Returns the next frame as bytes, checked.
    pub fn transmit(&mut self, now: Instant) -> Option<OnWire> {
        let mut head: Head = [0x5a; HEAD_LEN];
        let t = self.ep.poll_transmit(now, &mut head)?;
        let mut bytes = head[..PREFIX_LEN].to_vec();
        match &t.payload {
            Payload::None => {}
            Payload::Stream { conn, offset, len } => {
                let app = &self.apps[conn];
                assert!(*offset >= app.acked, "acknowledged bytes may be gone");
                assert!(
                    offset + u64::from(*len) <= app.written,
                    "only what was written"
                );
                assert!(*len > 0);
                bytes.extend((0..u64::from(*len)).map(|i| pattern(offset + i)));
            }
            Payload::Filler { len } => bytes.extend(std::iter::repeat_n(0xf1, usize::from(*len))),
            Payload::Owned(owned) => bytes.extend_from_slice(owned),
        }
        bytes.extend_from_slice(&head[PREFIX_LEN..PREFIX_LEN + t.tail_len]);
        assert!(bytes.len() >= 60, "padded: {}", bytes.len());
        assert!(
            bytes.len() <= self.ep.mtu() as usize + 14,
            "within the MTU: {}",
            bytes.len()
        );
        assert_eq!(bytes[6..12], self.ep.addr().mac().unwrap().0);
        assert_eq!(bytes[..6], t.dst.mac().unwrap().0);
        let body = bytes[12..].to_vec();
        Some(OnWire {
            at: now,
            src: self.ep.addr().mac().unwrap(),
            dst: t.dst.mac().unwrap(),
            body,
            looped: t.dst == self.ep.addr(),
            ce: false,
        })
    }

    pub fn write(&mut self, now: Instant, conn: ConnId, bytes: u64) {
        let app = self.apps.get_mut(&conn).unwrap();
        app.written += bytes;
        self.ep.written(now, conn, app.written);
    }

    pub fn app(&self, conn: ConnId) -> &App {
        &self.apps[&conn]
    }

    /// Returns the only connection that the host knows.
    pub fn only(&self) -> ConnId {
        assert_eq!(self.apps.len(), 1);
        *self.apps.keys().next().unwrap()
    }

    pub fn state(&self, conn: ConnId) -> State {
        self.ep.info(conn).map_or(State::Closed, |info| info.state)
    }
}
