//! Configuration.

use std::time::Duration;

use crate::IbError;

/// Size of a block of message memory, in bytes. Messages that fit into one are *tiny*.
pub const BLOCK: usize = 4096;
/// Maximum number of blocks of a message. Messages of more than one are *short*. In shared blocks a
/// message has one.
pub const MESSAGE_BLOCKS: usize = 4;

/// Configuration of an [`IbBtl`](crate::IbBtl). All sizes are in bytes.
#[derive(Clone, Debug)]
pub struct IbConfig {
    /// Rank of this process.
    pub rank: u32,
    /// Number of ranks in the job.
    pub size: u32,
    /// Secret of the job; processes with a different secret are unreachable.
    pub job_key: Vec<u8>,
    /// Device and port, such as `mlx5_0` or `mlx5_0:2`; `None` selects the active port with index
    /// `rail`.
    pub device: Option<String>,
    /// Index of this transport among those of the process, 0 to 3. It connects to the transport of
    /// equal index.
    pub rail: u8,
    /// Number of blocks for each peer, which are its credits. 0: all peers share blocks.
    pub blocks: usize,
    /// Number of blocks in the shared receive queue, if `blocks` is 0.
    pub shared_blocks: usize,
    /// Number of blocks to send from, for all peers together.
    pub pool_blocks: usize,
    /// Minimum length of bodies that are sent from the caller's memory instead of a copy (the
    /// *short* protocol of VIA-RPI; see [`btl::HeldSends`]). `None`: never.
    pub held_from: Option<usize>,
    /// Minimum length of *long* bodies, which are moved by one-sided operations without a copy.
    pub long_from: usize,
    /// Supports [`btl::Tx::get`] by RDMA reads, an experiment of the papers: it saves a message
    /// with a key, but most devices read slower than they write. Otherwise long data moves by RDMA
    /// writes only, as in VIA-RPI.
    pub reads: bool,
    /// Maximum number of bytes of unused registrations in the cache. 0: none is kept.
    pub cache_bytes: u64,
    /// Exponent of the packet time-out, 4.096 µs · 2ⁿ. Hardware may take up to four times that.
    pub timeout: u8,
    /// Maximum number of retransmissions of a packet, at most 6.
    pub retries: u8,
    /// Time that `add_peer` waits for the connection, at most 0.5 s.
    pub add_wait: Duration,
}

impl IbConfig {
    /// Returns the defaults: 256 KiB of blocks for each peer.
    #[must_use]
    pub fn new(rank: u32, size: u32, job_key: &[u8]) -> IbConfig {
        IbConfig {
            rank,
            size,
            job_key: job_key.to_vec(),
            device: None,
            rail: 0,
            blocks: 64,
            shared_blocks: 1024,
            pool_blocks: 512,
            held_from: None,
            long_from: 16 << 10,
            reads: false,
            cache_bytes: 1 << 30,
            timeout: 14,
            retries: 6,
            add_wait: Duration::from_millis(300),
        }
    }

    /// Replaces the blocks for each peer by a shared receive queue: memory does not grow with the
    /// number of peers.
    #[must_use]
    pub fn shared(mut self) -> IbConfig {
        self.blocks = 0;
        self
    }

    /// Returns the number of bytes of a peer's blocks, with spare ones for a message that begins
    /// near the end.
    pub(crate) fn ring(&self) -> usize {
        (self.blocks + MESSAGE_BLOCKS - 1) * BLOCK
    }

    /// Returns the number of bytes of registered message memory with `peers` peers.
    #[must_use]
    pub fn message_memory(&self, peers: usize) -> usize {
        let receive = if self.blocks == 0 {
            self.shared_blocks * BLOCK
        } else {
            peers * self.ring()
        };
        receive + self.pool_blocks * BLOCK
    }

    pub(crate) fn check(&self) -> Result<(), IbError> {
        let rules = [
            (
                self.rank < self.size,
                "the rank of this process is not below the number of ranks",
            ),
            (self.rail <= 3, "rails are numbered 0 to 3"),
            (
                self.blocks == 0 || (8..=4096).contains(&self.blocks),
                "a peer has 8 to 4096 blocks, or 0 for shared blocks",
            ),
            (
                self.blocks != 0 || (16..=32768).contains(&self.shared_blocks),
                "the shared receive queue has 16 to 32768 blocks",
            ),
            (
                (16..=65536).contains(&self.pool_blocks),
                "the send pool has 16 to 65536 blocks",
            ),
            (
                (1..=20).contains(&self.timeout),
                "the timeout's exponent is 1 to 20",
            ),
            (
                self.retries <= 6,
                "at most 6 retries: some devices take 7 as unlimited",
            ),
        ];
        match rules.into_iter().find(|(kept, _)| !kept) {
            Some((_, rule)) => Err(IbError::Config(rule.into())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_as_documented() {
        let config = IbConfig::new(0, 2, b"");
        assert_eq!(config.check(), Ok(()));
        assert_eq!(
            config.message_memory(10) - config.message_memory(9),
            67 * 4096
        );
        let shared = config.shared();
        assert_eq!(shared.check(), Ok(()));
        assert_eq!(shared.message_memory(1000), shared.message_memory(1));
        let wrong = IbConfig {
            retries: 7,
            ..IbConfig::new(0, 2, b"")
        };
        assert!(wrong.check().is_err());
    }
}
