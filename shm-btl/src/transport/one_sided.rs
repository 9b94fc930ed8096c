//! One-sided copies: `get`, `put`, and messages into posted receives.

use btl::{Envelope, PeerError, PostedDelivery, Rank, SendError, Started};

use super::coop::CoopStart;
use super::{ShmBtl, coarse_now};
use crate::attach::has_ended;
use crate::cma::{self, CmaError};
use crate::layout::PUTTING;
use crate::posted::{claim, end_copy, envelope, is_revoked};
use shmem::sync::Ordering;

/// Bytes of a region's key: nonce of its owner, address, length.
const KEY_BYTES: usize = 24;

pub(super) fn key(nonce: u64, address: u64, length: u64) -> Vec<u8> {
    [nonce, address, length]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

/// Returns the address in a peer's memory, if key and bounds are right.
fn remote(nonce: u64, key: &[u8], offset: usize, length: usize) -> Result<u64, SendError> {
    if key.len() != KEY_BYTES {
        return Err(SendError::BadKey);
    }
    let mut words = [0; 3];
    for (word, bytes) in words.iter_mut().zip(key.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
    let [owner, address, size] = words;
    let limit = usize::try_from(size).map_err(|_| SendError::BadKey)?;
    if owner != nonce {
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
    /// Returns process id and nonce of a peer that cross-memory attach works with.
    fn cma_peer(&mut self, rank: Rank) -> Result<(u32, u64), SendError> {
        self.still_itself(rank)?;
        let (_, peer) = self.peer(rank)?;
        if peer.one_sided {
            Ok((peer.pid, peer.nonce))
        } else {
            Err(SendError::Unsupported)
        }
    }

    /// Checks that the process id is still the peer's, if that was not checked for long. The kernel
    /// uses an id again only after all others.
    pub(super) fn still_itself(&mut self, rank: Rank) -> Result<(), SendError> {
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

    fn copied(&mut self, rank: Rank, result: Result<(), CmaError>) -> Result<Started, SendError> {
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
            CmaError::Fault => PeerError::Violation("memory it offered is not there".into()),
            error => PeerError::Lost(format!("cross-memory attach: {error}")),
        };
        self.end(rank, error)
    }

    /// Reads from a peer's region.
    ///
    /// # Safety
    /// As for [`btl::Tx::get`].
    pub(super) unsafe fn get_now(
        &mut self,
        rank: Rank,
        local: *mut u8,
        length: usize,
        (key, offset): (&[u8], usize),
        token: u64,
    ) -> Result<Started, SendError> {
        let (pid, nonce) = self.cma_peer(rank)?;
        let from = remote(nonce, key, offset, length)?;
        match self.share(rank, local, from, length, token) {
            CoopStart::Over(result) => return self.copied(rank, result),
            CoopStart::Pending => return Ok(Started::Pending),
            CoopStart::Alone => {}
        }
        // SAFETY: as promised to us.
        let result = unsafe { cma::read(pid, local, from, length) };
        self.copied(rank, result)
    }

    /// Writes to a peer's region.
    ///
    /// # Safety
    /// As for [`btl::Tx::put`].
    pub(super) unsafe fn put_now(
        &mut self,
        rank: Rank,
        local: *const u8,
        length: usize,
        key: &[u8],
        offset: usize,
    ) -> Result<Started, SendError> {
        let (pid, nonce) = self.cma_peer(rank)?;
        let to = remote(nonce, key, offset, length)?;
        let (_, peer) = self.peer(rank)?;
        peer.producer
            .mine()
            .writing
            .0
            .copying
            .store(PUTTING, Ordering::Release);
        if is_revoked(peer.producer.theirs())
            || peer.common.about.0.left.load(Ordering::Acquire) != 0
        {
            end_copy(peer.producer.mine());
            let error = self.end(
                rank,
                PeerError::Lost(
                    "it ended the connection because of what this process wrote".into(),
                ),
            );
            return Err(SendError::Failed { peer: rank, error });
        }
        // SAFETY: as promised to us.
        let result = unsafe { cma::write(pid, local, to, length) };
        end_copy(peer.producer.mine());
        self.copied(rank, result)
    }

    /// Copies a message into a posted receive of a peer, if one matches.
    ///
    /// # Safety
    /// As for [`btl::PostedReceives::send_to_posted`].
    pub(super) unsafe fn send_into_posted(
        &mut self,
        rank: Rank,
        message: Envelope,
        local: *const u8,
        length: usize,
    ) -> Result<PostedDelivery, SendError> {
        let (pid, _) = self.cma_peer(rank)?;
        let me = self.config.rank;
        let (_, peer) = self.peer(rank)?;
        // The `FILLED` must fit into the queue, so that nothing is claimed that could not be
        // reported.
        let ready = match peer.producer.slot_free() {
            Ok(true) => peer.producer.all_seen(),
            Ok(false) => {
                peer.producer.set_wants_room(true);
                peer.ring();
                return Err(SendError::Busy);
            }
            Err(corruption) => Err(corruption),
        };
        match ready {
            Ok(true) => {}
            Ok(false) => return Ok(PostedDelivery::NotPosted),
            Err(corruption) => return Err(self.broke(rank, corruption)),
        }
        let word = envelope(message.context, message.tag);
        let view = (&*peer.common, peer.producer.theirs(), &*peer.claims);
        let Some(claimed) = claim(me, word, peer.producer.mine(), view) else {
            return Ok(PostedDelivery::NotPosted);
        };
        let room = usize::try_from(claimed.length).unwrap_or(usize::MAX);
        // SAFETY: readable for `length`, as promised to us, and this is no more.
        let result = unsafe { cma::write(pid, local, claimed.address, length.min(room)) };
        if let Err(error) = result {
            // The receive is claimed and spoilt, and the peer must not wait for it: it learns that
            // we gave it up.
            let error = self.copy_failed(rank, error);
            return Err(SendError::Failed { peer: rank, error });
        }
        peer.producer.push_filled(claimed.id, length as u64, word);
        end_copy(peer.producer.mine());
        peer.ring();
        Ok(PostedDelivery::Delivered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked_to_the_byte() {
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
