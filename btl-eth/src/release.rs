//! Ending connections that are not used, so that their number stays within the limit.

use std::sync::Arc;

use btl::Rank;
use esp_client::Interest;

use crate::peer::{Connection, PeerState};
use crate::record::Kind;
use crate::transport::{EthBtl, SlotOwner};

impl EthBtl {
    /// Begins to end the connection that was not used for the longest time, other than that of
    /// `newest`, if more are established than the limit.
    pub(crate) fn release_excess(&mut self, newest: Rank) {
        let (mut established, mut oldest) = (0, None);
        for (rank, state) in (0..).zip(&self.peers) {
            if let PeerState::Peer(peer) = state
                && matches!(peer.connection, Connection::Established(_))
            {
                established += 1;
                if rank != newest && oldest.is_none_or(|(used, _)| peer.used < used) {
                    oldest = Some((peer.used, rank));
                }
            }
        }
        if established > self.max_connections
            && let Some((_, rank)) = oldest
        {
            self.release(rank);
        }
    }

    fn release(&mut self, rank: Rank) {
        let Some(peer) = self.peer(rank) else { return };
        let idle = Connection::Idle { retry_at: None };
        peer.connection = match std::mem::replace(&mut peer.connection, idle) {
            Connection::Established(mut channel) => {
                if channel.control(Kind::Release, &[]) {
                    channel.stream.arm(Interest::Readable);
                    Connection::Releasing(channel)
                } else {
                    Connection::Established(channel)
                }
            }
            other => other,
        };
        // What arrived before it was armed causes no event.
        self.poll_directly(rank);
    }

    /// Ends a connection whose peer has written RELEASE.
    pub(crate) fn released(&mut self, rank: Rank) {
        let Some(peer) = self.peer(rank) else { return };
        let idle = Connection::Idle { retry_at: None };
        let channel = match std::mem::replace(&mut peer.connection, idle) {
            Connection::Established(mut channel) => {
                channel.control(Kind::Release, &[]);
                channel
            }
            Connection::Releasing(channel) => channel,
            other => {
                peer.connection = other;
                return;
            }
        };
        self.set_owner(channel.slot(), SlotOwner::None);
        self.counters.released += 1;
        self.ended.push(Arc::clone(&channel.stream));
        self.accept_pending(rank);
    }

    /// Closes the streams that ended by RELEASE and whose last bytes are acknowledged.
    pub(crate) fn drop_ended(&mut self) {
        self.ended
            .retain(|stream| stream.unacknowledged() > 0 && stream.is_connected().is_ok());
    }

    /// Returns whether this peer of an open transport has an earlier stream that has not ended.
    pub(crate) fn is_releasing(&self, identity: u64) -> bool {
        let number = self.numbers.get(&identity);
        let state = number.and_then(|rank| self.peers.get(*rank as usize));
        matches!(state, Some(PeerState::Peer(peer))
            if matches!(peer.connection, Connection::Releasing(_)))
    }
}
