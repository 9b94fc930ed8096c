//! Properties of a link, and the kinds of link from which scenarios are made.

use esp_proto::Duration;

/// Probability 1 in parts per million.
pub const ALWAYS: u32 = 1_000_000;

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
    /// Number of frames in the queue at or above which an arriving frame is marked (CE) if it is
    /// capable (ECT); `None` never marks.
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
