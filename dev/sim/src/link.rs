//! One direction of a link with its impairments: rate, tail-drop queue, delay, loss, duplication,
//! reordering, corruption, partition, and a frame size that is dropped silently.
//!
//! A link decides at once when a frame will arrive: the caller offers frames in time order and gets
//! back arrivals for its event queue.

mod config;

pub use config::{ALWAYS, Corruption, LinkConfig, Loss, PRESETS, Preset};

use crate::rng::Rng;
use esp_proto::{Duration, Instant};
use std::collections::VecDeque;

/// Overhead of a frame on the wire in bytes: preamble 8, check sequence 4, gap between frames 12.
pub const WIRE_OVERHEAD: usize = 24;
/// Maximum duration of the bad state without a frame.
const BAD_LASTS: Duration = Duration::from_millis(1);

/// A frame in transit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The frame, which starts with the destination address and ends before the check sequence.
    pub bytes: Vec<u8>,
    /// The sender's incarnation for the checker; 0 for none. Not visible to endpoints.
    pub origin: u64,
    /// The sender declares the frame capable of congestion marks (ECT).
    pub ect: bool,
    /// A queue marked it (CE).
    pub ce: bool,
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
mod tests;
