//! Repair: selective, by tail-loss probe, by timeout (section 7).

use crate::common::*;
use esp_proto::wire::FrameType;
use esp_proto::*;

/// Drops the data frames with these numbers (counted from now on, retransmissions included).
fn drop_data(numbers: &'static [u32]) -> Box<dyn FnMut(&OnWire) -> Wire> {
    let mut n = 0;
    Box::new(move |frame| {
        if frame.src != MAC_A || frame.kind() != FrameType::Data {
            return Wire::Pass;
        }
        n += 1;
        if numbers.contains(&n) {
            Wire::Drop
        } else {
            Wire::Pass
        }
    })
}

/// A small generator for the random wires.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

#[test]
fn a_lost_frame_is_repaired_within_two_round_trips_and_sent_once_more_only() {
    let (mut pair, a, b) = Pair::connected();
    pair.filter = drop_data(&[10]);
    pair.a.write(pair.now, a, 40 * 1489);
    let took = pair.run_until(Duration::from_secs(1), |p| p.b.app(b).received == 40 * 1489);
    assert!(
        took <= pair.delay * 4 + Duration::from_micros(10),
        "{took:?}"
    );
    let info = pair.a.ep.info(a).unwrap();
    assert_eq!(
        (info.retransmits, info.timeouts, info.tail_probes),
        (1, 0, 0)
    );
    assert_eq!(
        pair.b.ep.counters().rx_drop_duplicate,
        0,
        "W-35: what was kept is not sent again"
    );
}

#[test]
fn many_holes_are_repaired_selectively() {
    let (mut pair, a, b) = Pair::connected();
    pair.filter = drop_data(&[2, 3, 7, 11, 12, 13, 20, 25, 28]);
    pair.a.write(pair.now, a, 32 * 1489);
    pair.run_until(Duration::from_secs(1), |p| p.b.app(b).received == 32 * 1489);
    let info = pair.a.ep.info(a).unwrap();
    assert_eq!((info.retransmits, info.timeouts), (9, 0));
}

#[test]
fn a_lost_retransmission_is_repaired_without_a_timeout() {
    let (mut pair, a, b) = Pair::connected();
    // Number 33 is the retransmission of number 5.
    pair.filter = drop_data(&[5, 33]);
    pair.a.write(pair.now, a, 200 * 1489);
    pair.run_until(Duration::from_secs(1), |p| {
        p.b.app(b).received == 200 * 1489
    });
    let info = pair.a.ep.info(a).unwrap();
    assert_eq!(info.timeouts, 0);
    assert!(info.retransmits <= 4, "{}", info.retransmits);
}

#[test]
fn a_lost_tail_is_repaired_by_the_probe_before_the_timeout() {
    for lost in [&[10u32][..], &[9, 10], &[7, 8, 9, 10]] {
        let (mut pair, a, b) = Pair::connected();
        pair.filter = drop_data(Box::leak(lost.to_vec().into_boxed_slice()));
        pair.a.write(pair.now, a, 10 * 1489);
        let took = pair.run_until(Duration::from_secs(1), |p| p.b.app(b).received == 10 * 1489);
        let info = pair.a.ep.info(a).unwrap();
        assert_eq!((info.timeouts, info.tail_probes), (0, 1), "{lost:?}");
        assert!(took < Duration::from_millis(2), "{took:?}");
    }
}

#[test]
fn timeouts_back_off_to_the_ceiling_and_end_with_the_peer_timeout() {
    let (mut pair, a, _) = Pair::connected();
    let from = pair.log.len();
    pair.filter = Box::new(|_| Wire::Drop);
    pair.a.write(pair.now, a, 100);
    let start = pair.now;
    pair.run_until(Duration::from_secs(31), |p| p.a.app(a).closed.is_some());
    assert_eq!(pair.now - start, Duration::from_secs(30));
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::TimedOut));
    // Queries to the peer's node are sent in addition (W-77).
    let data = |f: &&OnWire| f.header().packet_type == 0x88b5 && f.kind() == FrameType::Data;
    let times: Vec<_> = pair.sent(MAC_A, from).filter(data).map(|f| f.at).collect();
    // First transmission, tail-loss probe, then timeouts: 2, 4, 8, … 200 ms apart.
    let gaps: Vec<_> = times[2..]
        .windows(2)
        .map(|w| (w[1] - w[0]).as_millis())
        .collect();
    assert_eq!(times[2] - times[0], Duration::from_millis(2));
    assert_eq!(gaps[..8], [4, 8, 16, 32, 64, 128, 200, 200]);
    let last = pair.sent(MAC_A, from).last().unwrap();
    assert_eq!(
        wire::Reset::parse(last.esp().payload).unwrap().reason,
        ResetReason::TimedOut
    );
}

/// RFC 6298, 5.3: only new acknowledgements restart the timer.
#[test]
fn a_report_received_again_does_not_delay_the_timeout() {
    let (mut pair, a, _) = Pair::connected();
    let from = pair.log.len();
    let mut n = 0;
    pair.filter = Box::new(move |f| {
        n += u32::from(f.src == MAC_A);
        if f.src == MAC_A && n != 2 {
            Wire::Drop
        } else {
            Wire::Pass
        }
    });
    pair.a.write(pair.now, a, 2 * 1489);
    pair.run(Duration::from_micros(100));
    let report = pair.sent(MAC_B, from).next().unwrap();
    assert_eq!(report.esp().ext.unwrap().sack, [1]);
    let report = report.body.clone();
    for _ in 0..40 {
        pair.inject(MAC_B, MAC_A, report.clone());
        pair.run(Duration::from_micros(500));
    }
    let timeouts = pair.a.ep.info(a).unwrap().timeouts;
    assert!(timeouts >= 2, "{timeouts} in 20 ms");
}

#[test]
fn a_partition_shorter_than_the_peer_timeout_is_survived() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.write(pair.now, a, 500_000);
    pair.run(Duration::from_micros(100));
    pair.filter = Box::new(|_| Wire::Drop);
    pair.run(Duration::from_secs(8));
    pair.filter = Box::new(|_| Wire::Pass);
    pair.run_until(Duration::from_secs(1), |p| p.b.app(b).received == 500_000);
}

/// The peer computes, or its node runs another process: frames wait there, and none is lost.
#[test]
fn a_briefly_absent_peer_does_not_shrink_the_window() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.write(pair.now, a, 3_000_000);
    pair.run_until(Duration::from_secs(1), |p| p.b.app(b).received == 3_000_000);
    let before = pair.a.ep.info(a).unwrap();
    assert!(before.cwnd > 32 && before.timeouts == 0, "{before:?}");
    let usual = pair.delay;
    for round in 1..=10 {
        pair.delay = Duration::from_millis(6);
        pair.a.write(pair.now, a, 40_000);
        pair.run(Duration::from_millis(5));
        pair.delay = usual;
        pair.run_until(Duration::from_secs(1), |p| {
            p.b.app(b).received == 3_000_000 + round * 40_000
        });
        pair.run(Duration::from_millis(300));
    }
    let (after, counters) = (pair.a.ep.info(a).unwrap(), pair.a.ep.counters());
    assert!(after.timeouts > 0 && after.cwnd >= before.cwnd, "{after:?}");
    assert!(counters.spurious_timeouts > 0, "{counters:?}");
    assert!(
        after.retransmits <= 5 * after.timeouts + after.tail_probes,
        "{after:?}"
    );
}

#[test]
fn lost_acknowledgements_do_not_stop_the_stream() {
    let (mut pair, a, b) = Pair::connected();
    let mut n = 0u32;
    pair.filter = Box::new(move |f| {
        n += u32::from(f.src == MAC_B);
        if f.src == MAC_B && n.is_multiple_of(2) {
            Wire::Drop
        } else {
            Wire::Pass
        }
    });
    pair.a.write(pair.now, a, 2_000_000);
    pair.run_until(Duration::from_millis(500), |p| {
        p.b.app(b).received == 2_000_000
    });
}

#[test]
fn repetitions_carry_equal_bytes() {
    let (mut pair, a, b) = Pair::connected();
    let mut rng = Rng(7);
    pair.filter = Box::new(move |_| {
        if rng.chance(20) {
            Wire::Drop
        } else {
            Wire::Pass
        }
    });
    for _ in 0..300 {
        pair.a.write(pair.now, a, 700);
        pair.run(Duration::from_micros(30));
    }
    pair.run_until(Duration::from_secs(20), |p| p.b.app(b).received == 210_000);
    // W-30: the log has every transmission.
    let mut seen = std::collections::BTreeMap::new();
    for frame in pair.sent(MAC_A, 0).filter(|f| f.kind() == FrameType::Data) {
        let frame = frame.esp();
        let before = seen.insert(frame.seq.0, frame.payload.to_vec());
        assert!(before.is_none_or(|b| b == frame.payload));
    }
}

#[test]
fn random_wires_deliver_everything_both_ways() {
    for seed in 1..=60u64 {
        let (mut pair, a, b) = Pair::connected();
        pair.keep_log = false;
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let percent = rng.next() % 30;
        pair.filter = Box::new(move |_| {
            if rng.chance(percent) {
                Wire::Drop
            } else if rng.chance(5) {
                Wire::Twice
            } else {
                Wire::Pass
            }
        });
        pair.a.write(pair.now, a, 100_000);
        pair.b.write(pair.now, b, 70_000);
        pair.a.ep.shutdown(pair.now, a);
        pair.b.ep.shutdown(pair.now, b);
        let done = |p: &Pair| p.a.app(a).closed.is_some() && p.b.app(b).closed.is_some();
        pair.run_until(Duration::from_secs(60), done);
        assert_eq!(
            (pair.a.app(a).received, pair.b.app(b).received),
            (70_000, 100_000),
            "seed {seed}"
        );
        assert_eq!(
            pair.a.app(a).closed,
            Some(CloseReason::Finished),
            "seed {seed}"
        );
        assert_eq!(
            pair.b.app(b).closed,
            Some(CloseReason::Finished),
            "seed {seed}"
        );
        pair.run(Duration::from_secs(1));
        assert_eq!(
            pair.a.ep.connections().count() + pair.b.ep.connections().count(),
            0,
            "seed {seed}"
        );
    }
}

#[test]
fn the_largest_window_is_respected_and_repaired() {
    // 4096 packets outstanding, the first of them lost: the bitmap covers only 1024 of the 4095
    // after it.
    let config = EndpointConfig {
        max_window: u16::MAX,
        ..EndpointConfig::default()
    };
    let mut pair = Pair::with(1500, config);
    pair.b.attach = Some(16 << 20);
    pair.listen(1000, 4);
    let a = pair.connect(5000, 1000);
    pair.run(Duration::from_millis(1));
    let b = pair.b.only();
    const OPENING: u64 = 10_000 * 1489; // opens the congestion window
    pair.a.write(pair.now, a, OPENING);
    pair.run_until(Duration::from_secs(1), |p| p.b.app(b).received == OPENING);
    pair.run(Duration::from_millis(10));
    let from = pair.log.len();
    pair.filter = drop_data(&[1]);
    pair.a.write(pair.now, a, 5000 * 1489);
    pair.flush();
    assert_eq!(pair.kinds(MAC_A, from, FrameType::Data), 4096, "W-31");
    pair.run(pair.delay);
    let sack = pair
        .sent(MAC_B, from)
        .next()
        .unwrap()
        .esp()
        .ext
        .unwrap()
        .sack
        .to_vec();
    assert_eq!(sack, [0xff; wire::MAX_SACK]);
    pair.run_until(Duration::from_secs(1), |p| {
        p.b.app(b).received == OPENING + 5000 * 1489
    });
    let info = pair.a.ep.info(a).unwrap();
    assert_eq!((info.retransmits, info.timeouts), (1, 0));
    assert_eq!(pair.b.ep.counters().rx_drop_beyond_credit, 0);
}

#[test]
fn a_path_that_becomes_slow_is_measured_again() {
    // The round trip rises from 40 µs to 10 ms, far above the timeout. Retransmissions give no
    // samples (Karn's algorithm), so the timeout must stay backed off until a packet sent once is
    // acknowledged.
    for (bytes, time_outs, probes) in [(3_000_000, 4, 8), (100, 4, 12)] {
        let (mut pair, a, b) = Pair::connected();
        pair.delay = Duration::from_millis(5);
        for round in 1..=30 {
            pair.a.write(pair.now, a, bytes);
            pair.run_until(Duration::from_secs(5), |p| {
                p.b.app(b).received == round * bytes
            });
            pair.run(Duration::from_millis(20));
        }
        let info = pair.a.ep.info(a).unwrap();
        assert!(
            info.timeouts <= time_outs && info.tail_probes <= probes,
            "{info:?}"
        );
        assert!(info.srtt > Some(Duration::from_millis(8)));
    }
}
