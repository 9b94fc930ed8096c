//! Sending messages.

use btl::{MAX_HEADER, Rank, SendError};

use super::{Own, ShmBtl};
use crate::fifo::{INLINE_BYTES, PAIR_BYTES};
use crate::layout::MAX_MESSAGE;
use crate::{Corruption, transport::peer::Peer};

/// Maximum length of a message that goes through a ring. The lines of a ring are reused after 64
/// KiB, so they are still in the cache of the core that has read them, and are fetched from there
/// one by one. Chunks are reused later (`pool.rs`), but cost 50 ns more for each message.
const THROUGH_RING: usize = 2048 + MAX_HEADER;

impl ShmBtl {
    #[inline]
    pub(super) fn send_message(
        &mut self,
        rank: Rank,
        header: &[u8],
        body: &[u8],
    ) -> Result<(), SendError> {
        let length = header.len() + body.len();
        let through_ring = (self.layout.ring / 8).min(THROUGH_RING);
        let live = self.live;
        let (own, peer) = self.peer(rank)?;
        let too_long = |length, limit| Err(SendError::TooLong { length, limit });
        if header.len() > MAX_HEADER {
            return too_long(header.len(), MAX_HEADER);
        }
        if length > MAX_MESSAGE {
            return too_long(length, MAX_MESSAGE);
        }
        let sent = match peer.producer.has_room(1) {
            Ok(false) => Ok(false),
            Ok(true) if length <= INLINE_BYTES => {
                peer.producer.push_inline(header, body);
                Ok(true)
            }
            Ok(true) if length <= PAIR_BYTES && header.len() <= INLINE_BYTES => {
                let free = peer.producer.has_room(2);
                if matches!(free, Ok(true)) {
                    peer.producer.push_pair(header, body);
                }
                free
            }
            Ok(true) if length <= through_ring => peer.producer.push_ring(header, body),
            Ok(true) => through_pool(own, peer, live, header, body),
            Err(corruption) => Err(corruption),
        };
        match sent {
            Ok(true) => {
                peer.ring();
                Ok(())
            }
            Ok(false) => {
                // The peer may sleep with unread requests for help, which wake no peer.
                peer.ring();
                Err(SendError::Busy)
            }
            Err(corruption) => Err(self.broke(rank, corruption)),
        }
    }
}

/// Sends through a chunk. Each peer may hold a fair share of the chunks, so that a peer that does
/// not read leaves enough for the others.
fn through_pool(
    own: &mut Own,
    peer: &mut Peer,
    live: usize,
    header: &[u8],
    body: &[u8],
) -> Result<bool, Corruption> {
    // Fetches one line from the peer's cache, which is cheap compared with the copy: it keeps the
    // number of used chunks low, and measures the distance of the peer.
    peer.producer.refresh_timed()?;
    while let Some(chunk) = peer.producer.next_returned(false) {
        own.pool.put_back(chunk);
    }
    let fair = (own.pool.len() / live.max(1)).max(1);
    if peer.producer.lent() >= fair {
        return Ok(false);
    }
    let Some((chunk, bytes)) = own.pool.take() else {
        return Ok(false);
    };
    peer.producer.push_chunk(chunk, bytes, header, body);
    Ok(true)
}
