//! What can be chosen.

use std::time::Duration;

use crate::IbError;

/// How a transport is made. All sizes in bytes.
#[derive(Clone, Debug)]
pub struct IbConfig {
    /// Own rank.
    pub rank: u32,
    /// Ranks of the job.
    pub size: u32,
    /// What only processes of this job know.
    pub job_key: Vec<u8>,
    /// Device and port, like `mlx5_0` or `mlx5_0:2`; `None`: the active port of number `rail`.
    pub device: Option<String>,
    /// Several ports are several transports, 0 to 3: rail talks to same rail.
    pub rail: u8,
    /// Entry of the port's table of global ids; `None`: the last with an IPv4 address (RoCE), the first (InfiniBand).
    pub gid_index: Option<u8>,
    /// A block of the memory into which a peer writes its messages: what takes no more is *tiny*.
    pub block: usize,
    /// Blocks for each peer, which are its credits. 0: messages of all peers go to shared blocks.
    pub blocks: usize,
    /// Blocks of the longest message: what takes more than one is *short*.
    pub message_blocks: usize,
    /// Blocks of the shared receive queue, where `blocks` is 0.
    pub shared_blocks: usize,
    /// Blocks for messages that are being sent, all peers together.
    pub pool_blocks: usize,
    /// Bodies of messages from this length on go from the program's memory, registered, instead of from a copy (*short* as VIA-RPI has it). `None`:
    /// all are copied.
    pub held_from: Option<usize>,
    /// Bodies from this length on are *long*: moved without a copy.
    pub long_from: usize,
    /// Whether peers may read (`get`); else all long data moves by RDMA write, as in VIA-RPI.
    pub reads: bool,
    /// Most bytes of registrations that are kept though nobody uses them. 0: none is kept.
    pub cache_bytes: u64,
    /// Exponent of the packet time-out, 4.096 µs · 2ⁿ; hardware may take up to four times that.
    pub timeout: u8,
    /// How often a packet is sent again, at most 6.
    pub retries: u8,
    /// How long a peer's silence is believed while nothing is sent to it.
    pub probe_every: Duration,
    /// How long a peer may not say a word at all, before it is lost. Every process has asked for its connections when it has added its peers.
    pub silent_limit: Duration,
    /// How long one that has asked itself may not answer, for it may compute meanwhile, before it is lost.
    pub connect_limit: Duration,
    /// How long `add_peer` waits for the peer, at most half a second.
    pub add_wait: Duration,
}

impl IbConfig {
    /// The defaults: 256 KiB of blocks for each peer.
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

    /// The same with shared receives: memory does not grow with the number of peers.
    #[must_use]
    pub fn shared(mut self) -> IbConfig {
        (self.blocks, self.message_blocks) = (0, 1);
        self
    }

    /// Bytes of registered message memory with so many peers.
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
            _ if self.rank >= self.size => wrong("the own rank is not below the number of ranks"),
            _ if self.rail > 3 => wrong("rails are numbered 0 to 3"),
            _ if !(2048..=65536).contains(&self.block) => wrong("a block has 2048 to 65536 bytes"),
            _ if self.blocks > 4096 || (self.blocks != 0 && self.blocks < 8) => {
                wrong("8 to 4096 blocks, or none")
            }
            _ if !(1..=7).contains(&self.message_blocks) => wrong("a message has 1 to 7 blocks"),
            _ if self.blocks == 0 && self.message_blocks != 1 => {
                wrong("a message in shared blocks has one block")
            }
            _ if self.blocks == 0 && !(16..=32768).contains(&self.shared_blocks) => {
                wrong("16 to 32768 shared blocks")
            }
            _ if !(16..=65536).contains(&self.pool_blocks) => {
                wrong("16 to 65536 blocks to send from")
            }
            _ if self.timeout > 20 || self.timeout == 0 => {
                wrong("the time-out's exponent is 1 to 20")
            }
            _ if self.retries > 6 => wrong("7 retries are for ever with some devices: at most 6"),
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
