//! Configuration of a transport, and the errors of making one.

use std::io;

use crate::layout::Layout;
use crate::posted::MAX_RANKS;
use crate::thresholds::Thresholds;
use crate::topology::Topology;

/// Number of copies of a long message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Copies {
    /// One copy by the kernel where the system allows it, two copies through shared memory
    /// otherwise.
    #[default]
    OneIfAllowed,
    /// Always two copies: neither side uses cross-memory attach.
    Two,
}

/// Configuration for [`ShmBtl::new`](crate::ShmBtl::new). Sizes must be the same in all processes
/// of a job.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Rank of this process.
    pub rank: u32,
    /// Number of ranks of the job.
    pub size: u32,
    /// Name of the job; processes of other jobs are refused.
    pub job: String,
    /// Sizes from which a message is copied once.
    pub thresholds: Thresholds,
    /// Number of copies.
    pub copies: Copies,
    /// Reach processes of other network namespaces, too. By default they count as other nodes, as
    /// virtual clusters want it.
    pub across_net_namespaces: bool,
    /// Slots of each queue, a power of two from 2 to 65536: the number of messages under way from
    /// one process to another. `None`: 256, or 64 in jobs of more than 64 ranks.
    pub slots: Option<u32>,
    /// Bytes of each pair's ring for messages of medium length, a power of two from 4 KiB to 16
    /// MiB. `None`: 64 KiB, or 16 KiB in jobs of more than 64 ranks.
    pub ring: Option<u32>,
    /// Bytes of a chunk, a multiple of 64 from 2 KiB to 1 MiB. The longest message is a header of
    /// 64 bytes longer; a caller that cuts long messages into bodies of exactly this length keeps
    /// their alignment.
    pub chunk: u32,
    /// Chunks of this process for long messages to all peers, 1 to 65536. `None`: 64 for each rank,
    /// at least 128 and at most 512 (16 MiB of address space; a chunk becomes memory when it is
    /// used), and two for each rank if that is more. A peer that does not read holds its fair part
    /// of them at most.
    pub chunks: Option<u32>,
    /// Source of the CPU topology.
    pub topology: Topology,
}

impl ShmConfig {
    /// Returns a configuration with defaults.
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
            return bad("the rank must be below the number of ranks");
        }
        if self.size > MAX_RANKS {
            return bad("a job has at most 1048576 ranks");
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
            return bad("chunks must be from 1 to 65536");
        }
        Ok(layout)
    }
}

/// Error of making a transport.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// A field of [`ShmConfig`] is out of its range.
    #[error("configuration: {0}")]
    Config(&'static str),
    /// The system refused something.
    #[error("{what}: {error}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the system.
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
