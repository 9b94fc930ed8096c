//! The hot path does not allocate, neither for a frame sent nor for one that arrives in order.

use esp_proto::*;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const ROOM: u32 = 1 << 20;

#[derive(Default)]
struct Count(u64);

impl Sink for Count {
    fn deliver(&mut self, _: ConnId, offset: u64, bytes: &[u8]) {
        assert_eq!(offset, self.0);
        self.0 += bytes.len() as u64;
    }
    fn datagram(&mut self, _: Datagram<'_>) {}
}

/// Two endpoints, one connection, and preallocated buffers.
struct Rig {
    a: Endpoint,
    b: Endpoint,
    a_conn: ConnId,
    b_conn: ConnId,
    now: Instant,
    wire: Vec<(usize, [u8; 1600])>,
    used: usize,
    got: Count,
    sent: u64,
    acked: u64,
    frames: u64,
    /// Delays every `late`-th frame to the end of its batch; 0 for none.
    late: usize,
}

impl Rig {
    fn new() -> Rig {
        let config = EndpointConfig::default();
        let mut a = Endpoint::new(config.clone(), A, 1500, [1; 32], 1);
        let mut b = Endpoint::new(config, B, 1500, [2; 32], 1);
        let now = Instant::from_nanos(1_000_000);
        b.listen(
            7,
            ListenOptions {
                backlog: 1,
                ..ListenOptions::default()
            },
        )
        .unwrap();
        let a_conn = a
            .connect(
                now,
                9,
                B.into(),
                7,
                ConnOptions {
                    buffers: Buffers { rx: ROOM, tx: ROOM },
                    key: vec![],
                },
            )
            .unwrap();
        let wire = vec![(0, [0; 1600]); 2048];
        let b_conn = a_conn;
        let got = Count::default();
        let mut rig = Rig {
            a,
            b,
            a_conn,
            b_conn,
            now,
            wire,
            used: 0,
            got,
            sent: 0,
            acked: 0,
            frames: 0,
            late: 0,
        };
        rig.turn();
        rig.turn();
        while let Some(event) = rig.b.poll_event() {
            if let Event::Incoming { conn, .. } = event {
                rig.b_conn = conn;
                assert!(rig.b.attach(rig.now, conn, Buffers { rx: ROOM, tx: ROOM }));
            }
        }
        rig.turn();
        while rig.a.poll_event().is_some() {}
        rig
    }

    fn fill(wire: &mut [(usize, [u8; 1600])], ep: &mut Endpoint, now: Instant) -> usize {
        let mut head: Head = [0; HEAD_LEN];
        let mut used = 0;
        while let Some(t) = ep.poll_transmit(now, &mut head) {
            let (len, frame) = &mut wire[used];
            let payload = match t.payload {
                Payload::Stream { len, .. } | Payload::Filler { len } => usize::from(len),
                Payload::None => 0,
                Payload::Owned(_) => panic!("an unrequested reply"),
            };
            frame[..PREFIX_LEN].copy_from_slice(&head[..PREFIX_LEN]);
            frame[PREFIX_LEN + payload..][..t.tail_len]
                .copy_from_slice(&head[PREFIX_LEN..][..t.tail_len]);
            *len = PREFIX_LEN + payload + t.tail_len;
            used += 1;
        }
        used
    }

    /// Carries all frames from A to B, and the replies back.
    fn turn(&mut self) {
        self.now = self.now + Duration::from_micros(20);
        self.used = Rig::fill(&mut self.wire, &mut self.a, self.now);
        self.frames += self.used as u64;
        if self.late > 0 {
            for at in (0..self.used.saturating_sub(1)).step_by(self.late) {
                self.wire.swap(at, at + 1);
            }
        }
        for (len, frame) in &self.wire[..self.used] {
            let raw = RxFrame {
                src: A.into(),
                dst: B.into(),
                body: &frame[12..*len],
                looped: false,
                ce: false,
            };
            self.b.handle_frame(self.now, raw, &mut self.got);
        }
        while let Some(p) = self.b.poll_progress() {
            self.b.consumed(self.now, p.conn, p.delivered);
        }
        self.now = self.now + Duration::from_micros(20);
        self.b.handle_timeout(self.now);
        let used = Rig::fill(&mut self.wire, &mut self.b, self.now);
        for (len, frame) in &self.wire[..used] {
            let raw = RxFrame {
                src: B.into(),
                dst: A.into(),
                body: &frame[12..*len],
                looped: false,
                ce: false,
            };
            self.a.handle_frame(self.now, raw, &mut self.got);
        }
        while let Some(p) = self.a.poll_progress() {
            self.acked = p.acked;
        }
        self.a.handle_timeout(self.now);
    }

    fn transfer(&mut self, turns: usize) {
        for _ in 0..turns {
            self.sent = self.acked + 2_000_000;
            self.a.written(self.now, self.a_conn, self.sent);
            self.turn();
        }
    }
}

#[test]
fn a_stream_in_order_allocates_nothing() {
    let mut rig = Rig::new();
    rig.transfer(100);
    let before = rig.frames;
    let info = allocation_counter::measure(|| rig.transfer(200));
    assert!(
        rig.frames - before > 20_000,
        "bytes transferred: {}",
        rig.frames - before
    );
    assert_eq!(rig.a.counters().tx_retransmits, 0);
    assert_eq!((info.count_total, info.bytes_total), (0, 0));
}

#[test]
fn a_stream_out_of_order_reuses_its_buffers() {
    let mut rig = Rig::new();
    rig.late = 7;
    rig.transfer(100);
    let before = rig.b.counters().rx_out_of_order;
    let info = allocation_counter::measure(|| rig.transfer(200));
    assert!(rig.b.counters().rx_out_of_order - before > 1000);
    assert_eq!((info.count_total, info.bytes_total), (0, 0));
}

#[test]
fn an_idle_connection_is_small() {
    let config = EndpointConfig::default();
    let mut a = Endpoint::new(config, A, 1500, [1; 32], 1);
    let options = || ConnOptions {
        buffers: Buffers { rx: ROOM, tx: ROOM },
        key: vec![],
    };
    let now = Instant::from_nanos(1);
    let mut open = |range: core::ops::Range<u16>| {
        for port in range {
            a.connect(now, port, B.into(), 7, options()).unwrap();
        }
    };
    open(1..2);
    let info = allocation_counter::measure(|| open(2..1026));
    let each = info.bytes_current / 1024;
    println!("{each} bytes for each connection");
    assert!(each < 1400, "{each} bytes for each connection");
}
