//! Time and carrier of acknowledgements (W-34, W-45).

use crate::common::*;
use esp_proto::wire::FrameType;
use esp_proto::*;

#[test]
fn a_single_frame_is_acknowledged_after_the_delay() {
    let (mut pair, a, _) = Pair::connected();
    let from = pair.log.len();
    pair.a.write(pair.now, a, 1);
    let sent = pair.now;
    pair.run(Duration::from_millis(1));
    let acks: Vec<_> = pair.sent(MAC_B, from).collect();
    assert_eq!(acks.len(), 1);
    assert_eq!(acks[0].at, sent + pair.delay + Duration::from_micros(200));
    assert_eq!(acks[0].body.len(), 48, "60 bytes with the addresses");
    assert!(acks[0].esp().ext.unwrap().credit.is_some(), "credit always");
}

/// W-34.
#[test]
fn data_written_when_the_delay_ends_carries_the_acknowledgement() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.write(pair.now, a, 1);
    pair.run(Duration::from_micros(100));
    let from = pair.log.len();
    pair.now = pair.now + Duration::from_millis(1);
    pair.b.ep.handle_timeout(pair.now);
    pair.b.write(pair.now, b, 1);
    pair.flush();
    let sent: Vec<_> = pair.sent(MAC_B, from).map(OnWire::kind).collect();
    assert_eq!(sent, [FrameType::Data]);
}

/// W-34: one in two of a window of 16, beginning with the second, because the message is longer;
/// none of a message that uses less than half, however much was sent before.
#[test]
fn a_long_message_requests_acknowledgements_and_a_short_one_none() {
    let (mut pair, a, _) = Pair::connected();
    let asks = |pair: &Pair, from| {
        let data = pair
            .sent(MAC_A, from)
            .filter(|f| f.kind() == FrameType::Data);
        data.map(|frame| frame.esp().asks).collect::<Vec<_>>()
    };
    let from = pair.log.len();
    pair.a.write(pair.now, a, 30 * 1489);
    pair.flush();
    assert_eq!(asks(&pair, from), [false, true].repeat(8));
    pair.run(Duration::from_millis(20));
    for _ in 0..20 {
        pair.a.write(pair.now, a, 30 * 1489);
        pair.run(Duration::from_millis(20));
    }
    // The window has grown.
    let from = pair.log.len();
    pair.a.write(pair.now, a, 30 * 1489);
    pair.run(Duration::from_millis(20));
    assert_eq!(asks(&pair, from), [false; 30]);
}

/// W-45.
#[test]
fn credit_uses_the_padding_of_a_short_frame() {
    let (mut pair, a, _) = Pair::connected();
    let credits = |pair: &mut Pair, bytes| {
        let from = pair.log.len();
        pair.a.write(pair.now, a, bytes);
        pair.flush();
        let frame = pair.sent(MAC_A, from).next().expect("data");
        assert_eq!(frame.esp().payload.len() as u64, bytes);
        let credit = frame.esp().ext.map(|ext| ext.credit.is_some());
        pair.run(Duration::from_millis(5));
        credit
    };
    for bytes in [1, 20, 31] {
        assert_eq!(credits(&mut pair, bytes), Some(true), "{bytes}");
    }
    assert_eq!(credits(&mut pair, 32), None);
}

/// W-45: new credit goes before full packets, and in those that leave room for it.
#[test]
fn credit_that_does_not_fit_with_data_is_sent_first() {
    for (mtu, alone) in [(1500, true), (1496, false)] {
        let mut pair = Pair::new();
        pair.b = Node::new(MAC_B, mtu, 2, EndpointConfig::default());
        pair.listen(1000, 8);
        let a = pair.connect(5000, 1000);
        pair.run(Duration::from_millis(50));
        let b = pair.b.only();
        assert_eq!(u32::from(pair.a.ep.info(a).unwrap().payload), mtu - 11);
        pair.a.consume = false;
        // Some credit is left, so that the peer does not wait for more.
        pair.b.write(pair.now, b, u64::from(ROOM) * 3 / 4);
        pair.run(Duration::from_millis(50));
        let from = pair.log.len();
        pair.a.write(pair.now, a, 10_000);
        pair.a.ep.consumed(pair.now, a, pair.a.app(a).received);
        pair.flush();
        let first = pair.sent(MAC_A, from).next().expect("a frame");
        let kind = [FrameType::Data, FrameType::Ack][usize::from(alone)];
        assert_eq!(first.kind(), kind, "MTU {mtu}");
        assert!(first.esp().ext.is_some_and(|ext| ext.credit.is_some()));
    }
}

/// W-45: this includes the bitmap, which is shortened.
#[test]
fn an_acknowledgement_is_no_longer_than_the_mtu() {
    let (mut pair, ..) = Pair::connected_with(128, EndpointConfig::default());
    let next = pair.numbers().a_next;
    let from = pair.log.len();
    let data = Forge::ack(next.plus(900), pair.numbers().b_next);
    pair.inject(MAC_A, MAC_B, data.payload(b"x").build());
    pair.run(Duration::from_millis(1));
    let ack = pair.sent(MAC_B, from).next().expect("an acknowledgement");
    let sack = ack.esp().ext.expect("a block").sack.len();
    // The MTU has 11 bytes of the header, and 8 are left for the other fields.
    assert_eq!(sack, 128 - 11 - 8);
}

#[test]
fn two_frames_of_a_batch_are_acknowledged_at_its_end_together() {
    let (mut pair, a, _) = Pair::connected();
    let from = pair.log.len();
    pair.a.write(pair.now, a, 20 * 1489);
    pair.run(Duration::from_micros(50));
    let acks: Vec<_> = pair.sent(MAC_B, from).collect();
    assert_eq!(acks.len(), 1, "one for the batch of 20");
}

/// W-34: the receiver does not guess. Small windows and small send buffers are acknowledged in
/// time, large ones rarely.
#[test]
fn a_stream_is_acknowledged_as_its_sender_requests() {
    for (buffer, min, max) in [(1 << 20, 4, 2000 / 8), (8 * 1489, 2000 / 8, 2000)] {
        let mut pair = Pair::with(1500, EndpointConfig::default());
        pair.listen(1000, 8);
        let buffers = Buffers {
            rx: ROOM,
            tx: buffer,
        };
        let options = ConnOptions {
            buffers,
            key: vec![],
        };
        let a = pair.connect_with(5000, 1000, options);
        pair.run(Duration::from_millis(1));
        let b = pair.b.only();
        let from = pair.log.len();
        let buffer = u64::from(buffer);
        let total = 2000 * 1489;
        while pair.b.app(b).received < total {
            let room = buffer - (pair.a.app(a).written - pair.a.app(a).acked);
            pair.a
                .write(pair.now, a, room.min(total - pair.a.app(a).written));
            pair.run(Duration::from_micros(10));
        }
        let acks = pair.kinds(MAC_B, from, FrameType::Ack);
        assert!(
            (min..=max).contains(&acks),
            "{acks} for a buffer of {buffer}"
        );
        assert!(
            pair.now < Instant::ZERO + Duration::from_millis(150),
            "no acknowledgement waited for a timer: {:?}",
            pair.now
        );
    }
}

/// W-34: without a request, a batch is acknowledged at its end when it has 64 packets or uses up
/// the credit.
#[test]
fn a_long_batch_is_acknowledged_without_a_request() {
    for (room, packets, acks) in [
        (ROOM, 63, 0),
        (ROOM, 64, 1),
        (4 * 1489, 3, 0),
        (4 * 1489, 4, 1),
    ] {
        let mut pair = Pair::new();
        pair.b.attach = Some(room);
        pair.b.consume = false;
        pair.listen(1000, 8);
        pair.connect(5000, 1000);
        pair.run(Duration::from_millis(1));
        let n = pair.numbers();
        let from = pair.log.len();
        for i in 0..packets {
            let bytes: Vec<u8> = (0..1489)
                .map(|at| pattern(u64::from(i) * 1489 + at))
                .collect();
            let data = Forge::ack(n.a_next.plus(i), n.b_next).payload(&bytes);
            let frame = OnWire {
                at: pair.now,
                src: MAC_A,
                dst: MAC_B,
                body: data.build(),
                looped: false,
                ce: false,
            };
            pair.b.receive(pair.now, &frame);
        }
        pair.flush();
        let sent = pair.kinds(MAC_B, from, FrameType::Ack);
        assert_eq!(sent, acks, "{packets} packets");
    }
}

#[test]
fn messages_of_some_packets_are_acknowledged_by_their_answers() {
    let (mut pair, a, b) = Pair::connected();
    let from = pair.log.len();
    for n in 1..=10 {
        pair.a.write(pair.now, a, 4000);
        pair.run_until(Duration::from_millis(1), |p| {
            p.b.app(b).received == 4000 * n
        });
        pair.b.write(pair.now, b, 4000);
        pair.run_until(Duration::from_millis(1), |p| {
            p.a.app(a).received == 4000 * n
        });
    }
    assert_eq!(pair.kinds(MAC_A, from, FrameType::Ack), 0);
    assert_eq!(pair.kinds(MAC_B, from, FrameType::Ack), 0);
}

#[test]
fn an_answer_carries_the_acknowledgement() {
    let (mut pair, a, b) = Pair::connected();
    let from = pair.log.len();
    for n in 1..=10 {
        pair.a.write(pair.now, a, 1);
        pair.run_until(Duration::from_millis(1), |p| p.b.app(b).received == n);
        pair.b.write(pair.now, b, 1);
        pair.run_until(Duration::from_millis(1), |p| p.a.app(a).received == n);
    }
    assert_eq!(pair.kinds(MAC_A, from, FrameType::Ack), 0);
    assert_eq!(pair.kinds(MAC_B, from, FrameType::Ack), 0);
    assert_eq!(pair.log.len() - from, 20);
    assert_eq!(pair.b.app(b).acked, 9, "all but the last");
}

#[test]
fn short_data_frames_carry_credit_in_the_padding() {
    let (mut pair, a, _) = Pair::connected();
    for len in 1..40 {
        let from = pair.log.len();
        pair.a.write(pair.now, a, len);
        pair.flush();
        let frame = pair.sent(MAC_A, from).next().unwrap();
        let ext = frame.esp().ext;
        assert_eq!(ext.is_some(), len <= 31, "{len}");
        assert_eq!(frame.body.len() as u64, 48.max(13 + len));
        pair.run(Duration::from_millis(1));
    }
}

#[test]
fn full_data_frames_leave_credit_to_a_frame_of_its_own() {
    // Both directions at full size: credit must still flow, without any frame beyond the MTU
    // (checked by the rig).
    let (mut pair, a, b) = Pair::connected();
    pair.a.write(pair.now, a, 3_000_000);
    pair.b.write(pair.now, b, 3_000_000);
    pair.run_until(Duration::from_secs(2), |p| {
        p.a.app(a).received + p.b.app(b).received == 6_000_000
    });
    assert_eq!(
        pair.a.ep.counters().tx_retransmits + pair.b.ep.counters().tx_retransmits,
        0
    );
}

/// W-32, W-34.
#[test]
fn gaps_and_duplicates_are_acknowledged_at_once() {
    let (mut pair, a, _) = Pair::connected();
    let mut n = 0;
    pair.filter = Box::new(move |f| {
        n += u32::from(f.kind() == FrameType::Data);
        if f.kind() == FrameType::Data && n == 1 {
            Wire::Drop
        } else {
            Wire::Pass
        }
    });
    let from = pair.log.len();
    pair.a.write(pair.now, a, 1489 * 2);
    let start = pair.now;
    pair.run(Duration::from_micros(25));
    let ack = pair.sent(MAC_B, from).next().unwrap();
    assert_eq!(ack.at, start + pair.delay);
    assert_eq!(ack.esp().ext.unwrap().sack, [1]);
    pair.run(Duration::from_millis(5));
    pair.filter = Box::new(|f| {
        if f.kind() == FrameType::Data {
            Wire::Twice
        } else {
            Wire::Pass
        }
    });
    let from = pair.log.len();
    pair.a.write(pair.now, a, 1);
    pair.run(Duration::from_micros(25));
    assert_eq!(
        pair.kinds(MAC_B, from, FrameType::Ack),
        1,
        "long before the delay ends"
    );
    assert_eq!(pair.b.ep.counters().rx_drop_duplicate, 1);
}
