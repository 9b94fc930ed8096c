//! Messages and `get`.

use std::io::IoSlice;

use btl::{HeldSends, NoticedPuts, PeerError, Rank, SendError, Started, Tx};

use super::peer::Peer;
use super::{ShmBtl, coarse_now};
use crate::attach::has_ended;
use crate::cma::{self, CmaError};

/// Reason of the failure of a peer that has ended the connection to this process.
pub(super) const BROKEN: &str =
    "it ended the connection, perhaps because this process wrote invalid values";

/// Encodes the key of a region: nonce of its owner, address, length.
pub(super) fn key(nonce: u64, address: u64, length: u64) -> Vec<u8> {
    [nonce, address, length]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

/// Returns the address in a peer's memory, if key and bounds are right.
fn remote(nonce: u64, key: &[u8], offset: usize, length: usize) -> Result<u64, SendError> {
    let (words, rest) = key.as_chunks::<8>();
    let &[owner, address, size] = words else {
        return Err(SendError::BadKey);
    };
    let [owner, address, size] = [owner, address, size].map(u64::from_le_bytes);
    let limit = usize::try_from(size).map_err(|_| SendError::BadKey)?;
    if owner != nonce || !rest.is_empty() {
        return Err(SendError::BadKey);
    }
    if offset.checked_add(length).is_none_or(|end| end > limit) {
        return Err(SendError::TooLong {
            length,
            limit: limit.saturating_sub(offset),
        });
    }
    address.checked_add(offset as u64).ok_or(SendError::BadKey)
}

impl ShmBtl {
    /// Returns a peer with which cross-memory attach works.
    fn cma_peer(&mut self, rank: Rank) -> Result<&mut Peer, SendError> {
        self.check_identity(rank)?;
        let (_, peer) = self.peer(rank)?;
        peer.one_sided.then_some(peer).ok_or(SendError::Unsupported)
    }

    /// Checks that the process id still belongs to the peer, if the last check was long ago. The
    /// kernel reuses an id only after all others.
    pub(super) fn check_identity(&mut self, rank: Rank) -> Result<(), SendError> {
        if coarse_now().saturating_sub(self.checked_at) < 2 * super::LIVENESS_INTERVAL {
            return Ok(());
        }
        let (_, peer) = self.peer(rank)?;
        if has_ended(&peer.pidfd) {
            let error = self.end(rank, PeerError::Died);
            return Err(SendError::Failed { peer: rank, error });
        }
        Ok(())
    }

    pub(super) fn copied(
        &mut self,
        rank: Rank,
        result: Result<(), CmaError>,
    ) -> Result<Started, SendError> {
        let error = match result {
            Ok(()) => return Ok(Started::Done),
            Err(CmaError::Refused(_)) => return Err(SendError::Unsupported),
            Err(CmaError::Other(libc::ENOMEM | libc::EAGAIN)) => return Err(SendError::Busy),
            Err(error) => error,
        };
        Err(SendError::Failed {
            peer: rank,
            error: self.copy_failed(rank, error),
        })
    }

    pub(super) fn copy_failed(&mut self, rank: Rank, error: CmaError) -> PeerError {
        let error = match error {
            CmaError::Gone => PeerError::Died,
            CmaError::Fault => {
                PeerError::Violation("the memory that it registered is not mapped".into())
            }
            CmaError::Revoked if self.added(rank).is_some_and(Peer::has_left) => PeerError::Left,
            CmaError::Revoked => PeerError::Lost(BROKEN.into()),
            error => PeerError::Lost(format!("cross-memory attach: {error}")),
        };
        self.end(rank, error)
    }
}

impl Tx for ShmBtl {
    #[inline]
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        self.send_message(peer, header, &btl::contiguous(body))
    }

    unsafe fn get(
        &mut self,
        rank: Rank,
        local: *mut u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        let peer = self.cma_peer(rank)?;
        let from = remote(peer.nonce, key, offset, length)?;
        if let Some(started) = self.start_coop(rank, local, from, length, token) {
            return started;
        }
        let (_, peer) = self.peer(rank)?;
        // SAFETY: guaranteed by the caller.
        let result = unsafe { cma::read(peer.pid, local, from, length) };
        let result = peer.copied_from(result);
        self.copied(rank, result)
    }
}

impl HeldSends for ShmBtl {}

impl NoticedPuts for ShmBtl {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_key_is_checked() {
        let made = key(7, 4096, 100);
        assert_eq!(remote(7, &made, 0, 100), Ok(4096));
        assert_eq!(remote(7, &made, 100, 0), Ok(4196));
        assert_eq!(
            remote(7, &made, 1, 100),
            Err(SendError::TooLong {
                length: 100,
                limit: 99
            })
        );
        assert_eq!(remote(8, &made, 0, 1), Err(SendError::BadKey));
        assert_eq!(remote(7, &made[1..], 0, 1), Err(SendError::BadKey));
        assert_eq!(remote(7, &[], 0, 1), Err(SendError::BadKey));
        let too_long = SendError::TooLong {
            length: 2,
            limit: 0,
        };
        assert_eq!(remote(7, &made, usize::MAX, 2), Err(too_long));
        assert_eq!(
            remote(7, &key(7, u64::MAX, u64::MAX), 2, 1),
            Err(SendError::BadKey)
        );
    }
}
