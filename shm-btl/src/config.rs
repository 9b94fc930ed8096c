//! What a transport is made with, and why it could not be made.

use std::io;

use crate::board::MAX_RANKS;
use crate::layout::Layout;
use crate::thresholds::Thresholds;
use crate::topology::Topology;

/// How long messages are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Copies {
    /// Once, by the kernel, where it allows that; twice through shared memory otherwise.
    #[default]
    OneIfAllowed,
    /// Always twice: neither side uses cross-memory attach.
    Two,
}

/// For [`ShmBtl::new`](crate::ShmBtl::new). Sizes must be the same in all processes of a job.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Of this process.
    pub rank: u32,
    /// Ranks of the job.
    pub size: u32,
    /// The job's name; others' processes do not reach each other.
    pub job: String,
    /// From which size on to copy once.
    pub thresholds: Thresholds,
    /// How to copy.
    pub copies: Copies,
    /// Reach processes of other network namespaces, too. They count as other nodes otherwise, as virtual clusters want it.
    pub across_net_namespaces: bool,
    /// Slots of each queue, a power of two from 2 to 65536: messages on their way from one process to another. `None`: 256, or 64 in jobs of
    /// more than 64 ranks.
    pub slots: Option<u32>,
    /// Bytes of each pair's ring for messages of medium length, a power of two from 4 KiB to 16 MiB. `None`: 64 KiB, or 16 KiB in
    /// jobs of more than 64 ranks.
    pub ring: Option<u32>,
    /// Bytes of a chunk, a multiple of 64 from 2 KiB to 1 MiB. The longest message is a header of 64 bytes more: who cuts long messages
    /// into bodies of exactly this length keeps them aligned as they are.
    pub chunk: u32,
    /// Chunks of this process for long messages to all peers, 1 to 65536. `None`: 64 for each rank, but at least 128 and at most 512 (16 MiB, of
    /// which only what is used at the same time is ever memory), and two for each rank if that is more. A peer that does not
    /// read may hold its fair part of them.
    pub chunks: Option<u32>,
    /// Where to read which CPUs share what.
    pub topology: Topology,
}

impl ShmConfig {
    /// With defaults.
    pub fn new(rank: u32, size: u32, job: impl Into<String>) -> Self {
        ShmConfig {
            rank,
            size,
            job: job.into(),
            thresholds: Thresholds::default(),
            copies: Copies::default(),
            across_net_namespaces: false,
            slots: None,
            ring: None,
            chunk: 32 * 1024,
            chunks: None,
            topology: Topology::default(),
        }
    }

    pub(crate) fn layout(&self) -> Result<Layout, ShmError> {
        let many = self.size > 64;
        let layout = Layout {
            size: self.size,
            slots: self.slots.unwrap_or(if many { 64 } else { 256 }),
            ring: self.ring.unwrap_or(if many { 16 << 10 } else { 64 << 10 }),
            chunk: self.chunk,
            chunks: self.chunks.unwrap_or_else(|| {
                self.size
                    .saturating_mul(64)
                    .clamp(128, 512)
                    .max(self.size.saturating_mul(2))
                    .min(65_536)
            }),
        };
        let bad = |what| Err(ShmError::Config(what));
        if self.size == 0 || self.rank >= self.size {
            return bad("the rank is not below the number of ranks");
        }
        if self.size > MAX_RANKS {
            return bad("at most 1048576 ranks");
        }
        if !layout.slots.is_power_of_two() || !(2..=65_536).contains(&layout.slots) {
            return bad("slots must be a power of two from 2 to 65536");
        }
        if !layout.ring.is_power_of_two() || !(4096..=16 << 20).contains(&layout.ring) {
            return bad("a ring must be a power of two from 4 KiB to 16 MiB");
        }
        if !layout.chunk.is_multiple_of(64) || !(2048..=1 << 20).contains(&layout.chunk) {
            return bad("a chunk must be a multiple of 64 from 2 KiB to 1 MiB");
        }
        if !(1..=65_536).contains(&layout.chunks) {
            return bad("1 to 65536 chunks");
        }
        Ok(layout)
    }
}

/// The transport could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// A field of [`ShmConfig`] is out of its range.
    #[error("configuration: {0}")]
    Config(&'static str),
    /// The system refused something.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

impl ShmError {
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> ShmError {
        move |error| ShmError::System {
            what,
            error: error.into(),
        }
    }
}
