//! RDMA reads, `Tx::get`: an experiment of the papers, off by default
//! ([`reads`](crate::IbConfig::reads)).
//!
//! The receiver of a long message reads it, instead of sending a key for the sender to write. That
//! saves a message. Most devices read slower than they write.

use btl::{Rank, SendError, Started};

use super::IbBtl;
use super::one_sided::How;

/// Maximum number of bytes of one read request. Its answer is the bytes themselves, so it needs no
/// acknowledgement.
pub(super) const READ_PART: usize = 1 << 20;

impl IbBtl {
    /// Starts a read if the configuration allows it.
    ///
    /// # Safety
    /// As for [`btl::Tx::get`].
    #[allow(unsafe_code)]
    pub(super) unsafe fn read(
        &mut self,
        rank: Rank,
        local: usize,
        length: usize,
        remote: (&[u8], usize),
        token: u64,
    ) -> Result<Started, SendError> {
        self.usable(rank)?;
        if !self.config.reads {
            return Err(SendError::Unsupported);
        }
        // SAFETY: the caller's promise, handed on.
        unsafe { self.start(rank, local, length, remote, token, How::Get) }
    }
}
