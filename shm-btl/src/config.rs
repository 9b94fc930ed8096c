//! Configuration of a transport, and the errors of creating one.

use std::io;

use crate::layout::MAX_RANKS;
use crate::topology::Thresholds;

/// Configuration for [`ShmBtl::new`](crate::ShmBtl::new).
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Rank of this process.
    pub rank: u32,
    /// Number of ranks of the job.
    pub size: u32,
    /// Name of the job; processes of other jobs are refused.
    pub job: String,
    /// Identity of an open transport ([`btl::PendingPeers`]), which peers use instead of a rank.
    /// Not 0.
    pub identity: Option<u64>,
    /// Minimum sizes of messages that are copied once.
    pub thresholds: Thresholds,
    /// Long messages are copied once, by the kernel, where the system allows it. If false, they are
    /// copied twice, through shared memory, and neither side uses cross-memory attach.
    pub one_copy: bool,
}

impl ShmConfig {
    /// Returns a configuration with defaults.
    pub fn new(rank: u32, size: u32, job: impl Into<String>) -> Self {
        ShmConfig {
            rank,
            size,
            job: job.into(),
            identity: None,
            thresholds: Thresholds::default(),
            one_copy: true,
        }
    }

    /// Returns the configuration of an open transport with defaults. It reaches open transports
    /// with an equal `key`. This process's number is 0.
    pub fn open(identity: u64, key: impl Into<String>) -> Self {
        ShmConfig {
            identity: Some(identity),
            ..ShmConfig::new(0, MAX_RANKS, key)
        }
    }

    pub(crate) fn check(&self) -> Result<(), ShmError> {
        if self.rank >= self.size {
            return Err(ShmError::Config(
                "the rank must be below the number of ranks",
            ));
        }
        if self.identity == Some(0) {
            return Err(ShmError::Config("an identity must not be 0"));
        }
        if self.size > MAX_RANKS {
            return Err(ShmError::Config("a job has at most 1048576 ranks"));
        }
        Ok(())
    }
}

/// Error of creating a transport.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// A field of [`ShmConfig`] is out of its range.
    #[error("configuration: {0}")]
    Config(&'static str),
    /// A system call was refused.
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
