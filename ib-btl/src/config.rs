//! Configuration.

use std::time::Duration;

use crate::IbError;

/// Configuration of an [`IbBtl`](crate::IbBtl). All sizes are in bytes.
#[derive(Clone, Debug)]
pub struct IbConfig {
    /// Rank of this process.
    pub rank: u32,
    /// Number of ranks in the job.
    pub size: u32,
    /// Secret of the job; processes with another one are unreachable.
    pub job_key: Vec<u8>,
    /// Device and port, such as `mlx5_0` or `mlx5_0:2`; `None`: the active port with index `rail`.
    pub device: Option<String>,
    /// Index of this transport among those of the process, 0 to 3. It connects to the same index.
    pub rail: u8,
    /// Index into the port's table of global ids; `None`: the last entry with an IPv4 address
    /// (RoCE), or the first (InfiniBand).
    pub gid_index: Option<u8>,
    /// Size of a block of receive memory. Messages that fit into one are *tiny*.
    pub block: usize,
    /// Number of blocks for each peer, which are its credits. 0: all peers share blocks.
    pub blocks: usize,
    /// Maximum number of blocks of a message. Messages of more than one are *short*.
    pub message_blocks: usize,
    /// Number of blocks in the shared receive queue, if `blocks` is 0.
    pub shared_blocks: usize,
    /// Number of blocks to send from, for all peers together.
    pub pool_blocks: usize,
    /// Length from which bodies are sent from the caller's memory instead of a copy (the *short*
    /// protocol of VIA-RPI; see [`btl::HeldSends`]). `None`: never.
    pub held_from: Option<usize>,
    /// Length from which bodies are *long*: moved by one-sided operations without a copy.
    pub long_from: usize,
    /// Supports [`btl::Tx::get`] by RDMA reads (`transport/reads.rs`). Otherwise long data moves by
    /// RDMA writes only, as in VIA-RPI.
    pub reads: bool,
    /// Maximum number of bytes of unused registrations in the cache. 0: none is kept.
    pub cache_bytes: u64,
    /// Exponent of the packet time-out, 4.096 µs · 2ⁿ. Hardware may take up to four times that.
    pub timeout: u8,
    /// Maximum number of retransmissions of a packet, at most 6.
    pub retries: u8,
    /// Time of silence after which a connected peer is probed.
    pub probe_every: Duration,
    /// Time without any datagram of a peer after which it is lost. A live process requests its
    /// connections when it adds its peers.
    pub silent_limit: Duration,
    /// Time after which a peer is lost that has requested a connection and does not answer. It may
    /// compute meanwhile.
    pub connect_limit: Duration,
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
            gid_index: None,
            block: 4096,
            blocks: 64,
            message_blocks: 4,
            shared_blocks: 1024,
            pool_blocks: 512,
            held_from: None,
            long_from: 16 << 10,
            reads: false,
            cache_bytes: 1 << 30,
            timeout: 14,
            retries: 6,
            probe_every: Duration::from_millis(150),
            silent_limit: Duration::from_secs(8),
            connect_limit: Duration::from_secs(60),
            add_wait: Duration::from_millis(300),
        }
    }

    /// Replaces the blocks for each peer by a shared receive queue: memory does not grow with the
    /// number of peers.
    #[must_use]
    pub fn shared(mut self) -> IbConfig {
        (self.blocks, self.message_blocks) = (0, 1);
        self
    }

    /// Returns the number of bytes of registered message memory with `peers` peers.
    #[must_use]
    pub fn message_memory(&self, peers: usize) -> usize {
        let receive = if self.blocks == 0 {
            self.shared_blocks * self.block
        } else {
            peers * (self.blocks + self.message_blocks - 1) * self.block
        };
        receive + self.pool_blocks * self.block
    }

    pub(crate) fn check(&self) -> Result<(), IbError> {
        let wrong = |what: &str| Err(IbError::Config(what.into()));
        match self {
            _ if self.rank >= self.size => {
                wrong("the rank of this process is not below the number of ranks")
            }
            _ if self.rail > 3 => wrong("rails are numbered 0 to 3"),
            _ if !(2048..=65536).contains(&self.block) => wrong("a block has 2048 to 65536 bytes"),
            _ if self.blocks > 4096 || (self.blocks != 0 && self.blocks < 8) => {
                wrong("a peer has 8 to 4096 blocks, or 0 for shared blocks")
            }
            _ if !(1..=7).contains(&self.message_blocks) => wrong("a message has 1 to 7 blocks"),
            _ if self.blocks == 0 && self.message_blocks != 1 => {
                wrong("a message in shared blocks has one block")
            }
            _ if self.blocks == 0 && !(16..=32768).contains(&self.shared_blocks) => {
                wrong("the shared receive queue has 16 to 32768 blocks")
            }
            _ if !(16..=65536).contains(&self.pool_blocks) => {
                wrong("the send pool has 16 to 65536 blocks")
            }
            _ if self.timeout > 20 || self.timeout == 0 => {
                wrong("the timeout's exponent is 1 to 20")
            }
            _ if self.retries > 6 => wrong("at most 6 retries: some devices take 7 for no limit"),
            _ => Ok(()),
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
        assert!(
            IbConfig {
                retries: 7,
                ..IbConfig::new(0, 2, b"")
            }
            .check()
            .is_err()
        );
        assert!(
            IbConfig {
                message_blocks: 2,
                ..IbConfig::new(0, 2, b"").shared()
            }
            .check()
            .is_err()
        );
    }
}
