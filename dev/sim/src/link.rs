//! One direction of a link with its impairments: rate, tail-drop queue, delay, loss, duplication,
//! reordering, corruption, partition, and a frame size that is dropped silently.
//!
//! A link decides at once when a frame will arrive: the caller offers frames in time order and gets
//! back arrivals for its event queue.

use crate::rng::Rng;
use esp_proto::{Duration, Instant};
use std::collections::VecDeque;

/// Overhead of a frame on the wire in bytes: preamble 8, check sequence 4, gap between frames 12.
pub const WIRE_OVERHEAD: usize = 24;
/// Longest duration of the bad state without a frame.
const BAD_LASTS: Duration = Duration::from_millis(1);
/// Probability 1 in parts per million.
pub const ALWAYS: u32 = 1_000_000;

/// A frame in transit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// From the destination address on, without the check sequence.
    pub bytes: Vec<u8>,
    /// The sender's incarnation for the checker; 0 for none. Not visible to endpoints.
    pub origin: u64,
    /// The sender declares the frame capable of congestion marks (ECT).
    pub ect: bool,
    /// A queue marked it (CE).
    pub ce: bool,
}

/// Loss model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// No loss.
    #[default]
    None,
    /// Independent loss of each frame, parts per million.
    Random(u32),
    /// Gilbert–Elliott: all frames are lost in the bad state, none in the good one. The bad state
    /// ends with its frames, or after a millisecond: interference does not wait for a slow sender's
    /// next attempt.
    Bursty {
        /// Probability for each frame of entering the bad state, parts per million.
        enter: u32,
        /// Probability for each frame of leaving it, parts per million.
        leave: u32,
    },
}

impl Loss {
    /// Returns bursts of `burst` frames on average that together lose `ppm` parts per million.
    pub fn bursts(ppm: u32, burst: u32) -> Loss {
        let leave = ALWAYS / burst.max(1);
        let enter = u64::from(leave) * u64::from(ppm) / u64::from(ALWAYS - ppm.min(ALWAYS - 1));
        Loss::Bursty {
            enter: u32::try_from(enter).unwrap_or(ALWAYS),
            leave,
        }
    }
}

/// Effect of corruption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Corruption {
    /// The check sequence detects it: the frame is dropped, as on real hardware.
    #[default]
    Dropped,
    /// Hostile: the frame arrives with altered header bytes, truncated, or as garbage. Payload
    /// bytes are unchanged.
    Delivered,
}

/// Properties of one direction of a link. `Default` is a perfect one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bits per second.
    pub rate: u64,
    /// Frames that may wait for the wire; one more is dropped (or held back by a host, see
    /// [`crate::net`]).
    pub queue: usize,
    /// Frames in the queue from which on an arriving frame is marked (CE) if it is capable (ECT);
    /// `None` never marks.
    pub mark: Option<usize>,
    /// Time from the last bit sent to arrival.
    pub delay: Duration,
    /// Random addition to the delay, uniform between zero and this; the order of frames is kept.
    pub jitter: Duration,
    /// Loss.
    pub loss: Loss,
    /// Parts per million of frames that are duplicated.
    pub duplicate: u32,
    /// Parts per million of frames that are delayed by up to `reorder_by` while later ones pass.
    pub reorder: u32,
    /// Maximum delay of reordered frames.
    pub reorder_by: Duration,
    /// Parts per million of corrupted frames.
    pub corrupt: u32,
    /// Effect of corruption.
    pub corruption: Corruption,
    /// Bytes after the EtherType; longer frames are dropped silently.
    pub mtu: u32,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig {
            rate: 10_000_000_000,
            queue: 1024,
            mark: None,
            delay: Duration::from_nanos(12_500),
            jitter: Duration::ZERO,
            loss: Loss::None,
            duplicate: 0,
            reorder: 0,
            reorder_by: Duration::from_micros(100),
            corrupt: 0,
            corruption: Corruption::Dropped,
            mtu: 65_535,
        }
    }
}

/// A named kind of link, for scenarios and their output.
pub type Preset = (&'static str, fn() -> LinkConfig);

/// The kinds of link from which the scenario generator draws.
pub const PRESETS: &[Preset] = &[
    ("clean", LinkConfig::default),
    ("gigabit", LinkConfig::gigabit),
    ("random-loss", LinkConfig::random_loss),
    ("bursty", LinkConfig::bursty),
    ("reordering", LinkConfig::reordering),
    ("duplicating", LinkConfig::duplicating),
    ("shallow", LinkConfig::shallow),
    ("far", LinkConfig::far),
    ("shaky", LinkConfig::shaky),
    ("terrible", LinkConfig::terrible),
];

impl LinkConfig {
    /// 1 Gbit/s, perfect.
    pub fn gigabit() -> Self {
        LinkConfig {
            rate: 1_000_000_000,
            ..LinkConfig::default()
        }
    }

    /// 2 % random loss.
    pub fn random_loss() -> Self {
        LinkConfig {
            loss: Loss::Random(20_000),
            ..LinkConfig::default()
        }
    }

    /// 2 % loss in bursts of eight.
    pub fn bursty() -> Self {
        LinkConfig {
            loss: Loss::bursts(20_000, 8),
            ..LinkConfig::default()
        }
    }

    /// 5 % of the frames are overtaken.
    pub fn reordering() -> Self {
        LinkConfig {
            reorder: 50_000,
            jitter: Duration::from_micros(20),
            ..LinkConfig::default()
        }
    }

    /// 5 % of the frames are duplicated, some of them late.
    pub fn duplicating() -> Self {
        LinkConfig {
            duplicate: 50_000,
            reorder: 10_000,
            ..LinkConfig::default()
        }
    }

    /// 1 Gbit/s behind a queue of sixteen frames.
    pub fn shallow() -> Self {
        LinkConfig {
            queue: 16,
            ..LinkConfig::gigabit()
        }
    }

    /// Slow and distant: 100 Mbit/s, 2 ms.
    pub fn far() -> Self {
        LinkConfig {
            rate: 100_000_000,
            delay: Duration::from_millis(2),
            jitter: Duration::from_micros(500),
            ..LinkConfig::default()
        }
    }

    /// Mild impairments of every kind.
    pub fn shaky() -> Self {
        LinkConfig {
            rate: 1_000_000_000,
            queue: 64,
            jitter: Duration::from_micros(30),
            loss: Loss::Random(10_000),
            duplicate: 10_000,
            reorder: 20_000,
            corrupt: 5_000,
            ..LinkConfig::default()
        }
    }

    /// Strong impairments of every kind: one frame in five is lost.
    pub fn terrible() -> Self {
        LinkConfig {
            queue: 32,
            loss: Loss::bursts(100_000, 3),
            duplicate: 50_000,
            reorder: 100_000,
            reorder_by: Duration::from_micros(400),
            corrupt: 100_000,
            ..LinkConfig::gigabit()
        }
    }

    /// Corruption that the check sequence does not detect: for tests that nothing panics or grows.
    pub fn hostile() -> Self {
        LinkConfig {
            corrupt: 50_000,
            corruption: Corruption::Delivered,
            ..LinkConfig::shaky()
        }
    }
}

/// Counts of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Frames offered.
    pub offered: u64,
    /// Frames passed on, duplicates included.
    pub delivered: u64,
    /// Dropped because the queue was full.
    pub tail_dropped: u64,
    /// Lost at random or in bursts.
    pub lost: u64,
    /// Frames corrupted, dropped or not.
    pub corrupted: u64,
    /// Frames longer than the link's MTU.
    pub too_long: u64,
    /// Frames lost to a partition.
    pub cut_off: u64,
    /// Frames marked because of the queue.
    pub marked: u64,
    /// Sum over the accepted frames of the frames that each found in the queue.
    pub queue_sum: u64,
    /// Maximum number of frames found in the queue.
    pub queue_max: usize,
    /// Bytes sent on the wire, overhead included.
    pub wire_bytes: u64,
}

impl LinkStats {
    /// Returns the mean number of frames that an accepted frame found in the queue.
    pub fn mean_queue(&self) -> f64 {
        let accepted = self.offered - self.tail_dropped;
        self.queue_sum as f64 / accepted.max(1) as f64
    }
}

/// Fate of a frame, for traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// In transit.
    Sent,
    /// In transit twice.
    Doubled,
    /// Delayed while others pass.
    Delayed,
    /// In transit with altered bytes.
    Changed,
    /// Tail drop.
    QueueFull,
    /// Lost.
    Lost,
    /// Dropped by the check sequence.
    BadCheck,
    /// Too long for this link.
    TooLong,
    /// The link is partitioned.
    CutOff,
}

/// State of one direction of a link.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    rng: Rng,
    /// Departure times of the frames in the queue, including the one on the wire.
    departures: VecDeque<Instant>,
    free_at: Instant,
    last_arrival: Instant,
    bad: bool,
    last_drawn: Instant,
    cuts: Vec<(Instant, Instant)>,
    stats: LinkStats,
}

impl Link {
    /// Creates a link with its own random numbers.
    pub fn new(config: LinkConfig, rng: Rng) -> Self {
        Link {
            config,
            rng,
            departures: VecDeque::new(),
            free_at: Instant::ZERO,
            last_arrival: Instant::ZERO,
            bad: false,
            last_drawn: Instant::ZERO,
            cuts: Vec::new(),
            stats: LinkStats::default(),
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes the configuration; frames in transit are not affected.
    pub fn configure(&mut self, config: LinkConfig) {
        self.config = config;
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Drops all frames sent in `from..until`.
    pub fn cut(&mut self, from: Instant, until: Instant) {
        self.cuts.push((from, until));
    }

    /// Returns true when the link is partitioned at `now`.
    pub fn is_cut(&self, now: Instant) -> bool {
        self.cuts
            .iter()
            .any(|(from, until)| (*from..*until).contains(&now))
    }

    /// Returns the number of frames waiting or on the wire at `now`.
    pub fn queued(&mut self, now: Instant) -> usize {
        while self.departures.front().is_some_and(|at| *at <= now) {
            self.departures.pop_front();
        }
        self.departures.len()
    }

    /// Returns true when there is room for one more frame. A host checks this before it sends; a
    /// switch does not.
    pub fn has_room(&mut self, now: Instant) -> bool {
        self.queued(now) <= self.config.queue
    }

    /// Returns the time at which half of the queue will have been sent, for a host that waits for
    /// room.
    pub fn half_empty_at(&mut self, now: Instant) -> Instant {
        let queued = self.queued(now);
        self.departures.get(queued / 2).copied().unwrap_or(now)
    }

    /// Sends a frame at `now`; arrivals are appended to `out`.
    pub fn send(
        &mut self,
        now: Instant,
        mut frame: Frame,
        out: &mut Vec<(Instant, Frame)>,
    ) -> Fate {
        self.stats.offered += 1;
        if !self.has_room(now) {
            self.stats.tail_dropped += 1;
            return Fate::QueueFull;
        }
        let queued = self.queued(now);
        self.stats.queue_sum += queued as u64;
        self.stats.queue_max = self.stats.queue_max.max(queued);
        if frame.ect && self.config.mark.is_some_and(|mark| queued >= mark) {
            self.stats.marked += 1;
            frame.ce = true;
        }
        let bits = (frame.bytes.len() + WIRE_OVERHEAD) as u64 * 8;
        let nanos =
            (u128::from(bits) * 1_000_000_000).div_ceil(u128::from(self.config.rate.max(1)));
        let sent = self.free_at.max(now) + Duration::from_nanos(nanos as u64);
        self.free_at = sent;
        self.departures.push_back(sent);
        self.stats.wire_bytes += bits / 8;
        self.impair(now, sent, frame, out)
    }

    fn impair(
        &mut self,
        now: Instant,
        sent: Instant,
        mut frame: Frame,
        out: &mut Vec<(Instant, Frame)>,
    ) -> Fate {
        if self.lose(now) {
            self.stats.lost += 1;
            return Fate::Lost;
        }
        if self.is_cut(now) {
            self.stats.cut_off += 1;
            return Fate::CutOff;
        }
        if frame.bytes.len() > self.config.mtu as usize + 14 {
            self.stats.too_long += 1;
            return Fate::TooLong;
        }
        let mut fate = Fate::Sent;
        if self.rng.chance(self.config.corrupt) {
            self.stats.corrupted += 1;
            if self.config.corruption == Corruption::Dropped {
                return Fate::BadCheck;
            }
            corrupt(&mut self.rng, &mut frame.bytes);
            fate = Fate::Changed;
        }
        let mut arrival = sent + self.config.delay + self.draw(self.config.jitter);
        if self.rng.chance(self.config.reorder) {
            arrival = arrival + self.draw(self.config.reorder_by);
            fate = Fate::Delayed;
        } else {
            arrival = arrival.max(self.last_arrival);
            self.last_arrival = arrival;
        }
        if self.rng.chance(self.config.duplicate) {
            self.stats.delivered += 1;
            out.push((arrival + self.draw(self.config.reorder_by), frame.clone()));
            fate = Fate::Doubled;
        }
        self.stats.delivered += 1;
        out.push((arrival, frame));
        fate
    }

    fn draw(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.rng.below(most.as_nanos() as u64))
    }

    fn lose(&mut self, now: Instant) -> bool {
        match self.config.loss {
            Loss::None => false,
            Loss::Random(ppm) => self.rng.chance(ppm),
            Loss::Bursty { enter, leave } => {
                self.bad &= now.since(self.last_drawn) < BAD_LASTS;
                self.last_drawn = now;
                self.bad = if self.bad {
                    !self.rng.chance(leave)
                } else {
                    self.rng.chance(enter)
                };
                self.bad
            }
        }
    }
}

/// Alters header bytes, truncates or extends the frame, or replaces everything after the addresses
/// by garbage.
pub fn corrupt(rng: &mut Rng, bytes: &mut Vec<u8>) {
    match rng.below(8) {
        0 => bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize),
        1 => {
            let len = bytes.len() + rng.below(64) as usize;
            bytes.resize(len, rng.next_u64() as u8);
        }
        2 => {
            for byte in bytes.iter_mut().skip(14) {
                *byte = rng.next_u64() as u8;
            }
        }
        _ => {
            // One to three bytes in addresses and header, or (for short frames) in set-up and
            // extension blocks.
            let reach = if bytes.len() <= 100 { bytes.len() } else { 25 };
            for _ in 0..rng.range(1, 3) {
                if let Some(byte) = bytes.get_mut(rng.below(reach as u64) as usize) {
                    *byte ^= 1 << rng.below(8);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
}
