//! Tests of the impairments of a link: time, order, and the share of frames that each one hits.

use super::*;

fn run(config: LinkConfig, frames: usize) -> (Vec<(Instant, Frame)>, LinkStats) {
    let gap = Duration::from_micros(10);
    let mut link = Link::new(config, Rng::new(1));
    let (mut now, mut out) = (Instant::ZERO, Vec::new());
    for number in 0..frames {
        let mut bytes = vec![0; 100];
        bytes[50..58].copy_from_slice(&(number as u64).to_le_bytes());
        let frame = Frame {
            bytes,
            ..Frame::default()
        };
        link.send(now, frame, &mut out);
        now = now + gap;
    }
    (out, link.stats())
}

fn number(frame: &Frame) -> u64 {
    u64::from_le_bytes(frame.bytes[50..58].try_into().expect("eight bytes"))
}

#[test]
fn a_perfect_link_keeps_time_and_order() {
    let (out, stats) = run(
        LinkConfig {
            rate: 1_000_000_000,
            ..LinkConfig::default()
        },
        100,
    );
    assert_eq!((out.len(), stats.delivered), (100, 100));
    // 124 bytes at 1 Gbit/s take 992 ns.
    assert_eq!(out[0].0, Instant::from_nanos(992 + 12_500));
    assert_eq!(out[99].0, Instant::from_nanos(990_000 + 992 + 12_500));
    assert!(
        out.iter()
            .enumerate()
            .all(|(i, (_, frame))| number(frame) == i as u64)
    );
}

#[test]
fn random_and_bursty_loss_have_the_asked_mean() {
    for loss in [Loss::Random(100_000), Loss::bursts(100_000, 5)] {
        let (out, stats) = run(
            LinkConfig {
                loss,
                ..LinkConfig::default()
            },
            50_000,
        );
        assert!(
            (4_000..6_000).contains(&stats.lost),
            "{loss:?} {}",
            stats.lost
        );
        assert_eq!(out.len() as u64 + stats.lost, 50_000);
        let runs = out
            .windows(2)
            .filter(|w| number(&w[1].1) > number(&w[0].1) + 1)
            .count() as u64;
        let mean = stats.lost as f64 / runs as f64;
        let expected = if matches!(loss, Loss::Random(_)) {
            1.0..1.3
        } else {
            4.5..5.5
        };
        assert!(expected.contains(&mean), "{loss:?} {mean}");
    }
}

#[test]
fn full_queue_drops_the_tail() {
    let mut link = Link::new(
        LinkConfig {
            queue: 4,
            ..LinkConfig::default()
        },
        Rng::new(1),
    );
    let mut out = Vec::new();
    let fates: Vec<Fate> = (0..7)
        .map(|_| {
            link.send(
                Instant::ZERO,
                Frame {
                    bytes: vec![0; 1000],
                    ..Frame::default()
                },
                &mut out,
            )
        })
        .collect();
    // One on the wire, four waiting.
    assert_eq!(fates[..5], [Fate::Sent; 5]);
    assert_eq!(fates[5..], [Fate::QueueFull; 2]);
    assert!(!link.has_room(Instant::ZERO));
    let half = link.half_empty_at(Instant::ZERO);
    assert_eq!(link.queued(half), 2);
    assert_eq!(link.stats().tail_dropped, 2);
}

#[test]
fn a_queue_marks_capable_frames_from_its_threshold_on() {
    let send = |mark, ect| {
        let config = LinkConfig {
            queue: 8,
            mark,
            ..LinkConfig::default()
        };
        let (mut link, mut out) = (Link::new(config, Rng::new(1)), Vec::new());
        for _ in 0..6 {
            let frame = Frame {
                bytes: vec![0; 1000],
                ect,
                ..Frame::default()
            };
            link.send(Instant::ZERO, frame, &mut out);
        }
        let marks: Vec<bool> = out.iter().map(|(_, frame)| frame.ce).collect();
        assert_eq!(
            link.stats().marked,
            marks.iter().filter(|ce| **ce).count() as u64
        );
        assert_eq!((link.stats().queue_sum, link.stats().queue_max), (15, 5));
        marks
    };
    assert_eq!(
        send(Some(4), true),
        [false, false, false, false, true, true]
    );
    assert_eq!(send(Some(4), false), [false; 6]);
    assert_eq!(send(None, true), [false; 6]);
}

#[test]
fn duplication_reordering_and_size_limit() {
    let (out, _) = run(
        LinkConfig {
            duplicate: ALWAYS,
            ..LinkConfig::default()
        },
        100,
    );
    assert_eq!(out.len(), 200);
    let (mut out, _) = run(
        LinkConfig {
            reorder: 200_000,
            ..LinkConfig::default()
        },
        1000,
    );
    out.sort_by_key(|entry| entry.0);
    assert!(out.windows(2).any(|w| number(&w[0].1) > number(&w[1].1)));
    let (out, stats) = run(
        LinkConfig {
            mtu: 80,
            ..LinkConfig::default()
        },
        10,
    );
    assert_eq!((out.len(), stats.too_long), (0, 10));
}

#[test]
fn jitter_keeps_the_order() {
    let jitter = Duration::from_millis(5);
    let (out, _) = run(
        LinkConfig {
            jitter,
            ..LinkConfig::default()
        },
        1000,
    );
    assert!(out.windows(2).all(|w| w[0].0 <= w[1].0));
}

#[test]
fn a_cut_link_drops_for_its_time() {
    let mut link = Link::new(LinkConfig::default(), Rng::new(1));
    link.cut(Instant::from_nanos(100), Instant::from_nanos(200));
    let mut out = Vec::new();
    let frame = Frame {
        bytes: vec![0; 60],
        ..Frame::default()
    };
    for (at, fate) in [
        (99, Fate::Sent),
        (100, Fate::CutOff),
        (199, Fate::CutOff),
        (200, Fate::Sent),
    ] {
        assert_eq!(
            link.send(Instant::from_nanos(at), frame.clone(), &mut out),
            fate,
            "{at}"
        );
    }
}

#[test]
fn corruption_is_dropped_or_visible() {
    let corrupt = LinkConfig {
        corrupt: ALWAYS,
        ..LinkConfig::default()
    };
    assert!(run(corrupt.clone(), 10).0.is_empty());
    let (out, stats) = run(
        LinkConfig {
            corruption: Corruption::Delivered,
            ..corrupt
        },
        500,
    );
    assert_eq!((out.len(), stats.corrupted), (500, 500));
    assert!(out.iter().any(|(_, frame)| frame.bytes.len() < 100));
    assert!(out.iter().any(|(_, frame)| frame.bytes.len() > 100));
}
