//! Ending the least recently used connections above the limit.

use btl::Rank;
use esp_client::Interest;

use crate::channel::established_error;
use crate::peer::{Connection, PeerState};
use crate::record::Kind;
use crate::transport::EthBtl;

impl EthBtl {
    /// Begins to end the least recently used connection, other than that of `newest`, if more are
    /// established than the limit permits.
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

    /// Writes RELEASE to an established connection.
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
        // Data that arrived before the stream was armed causes no event.
        self.poll_directly(rank);
    }

    /// Handles RELEASE, and answers it unless it is the answer.
    pub(crate) fn released(&mut self, rank: Rank) {
        let Some(peer) = self.peer(rank) else { return };
        let idle = Connection::Idle { retry_at: None };
        peer.connection = match std::mem::replace(&mut peer.connection, idle) {
            Connection::Established(mut channel) => {
                // If it cannot be written the stream has failed, which is found below.
                channel.control(Kind::Release, &[]);
                Connection::Ending(channel)
            }
            Connection::Releasing(channel) => Connection::Ending(channel),
            other => other,
        };
        self.poll_ending(rank);
    }

    /// Ends a connection by RELEASE when all that was sent is acknowledged. Returns the number of
    /// events.
    pub(crate) fn poll_ending(&mut self, rank: Rank) -> usize {
        let Some(peer) = self.peer(rank) else {
            return 0;
        };
        let Connection::Ending(channel) = &peer.connection else {
            return 0;
        };
        let stream = &channel.stream;
        stream.arm(Interest::Writable);
        if stream.unacknowledged() > 0 {
            if let Err(error) = stream.is_connected() {
                self.fail(rank, established_error(&error));
                return 1;
            }
            return 0;
        }
        self.replace_connection(rank, Connection::Idle { retry_at: None });
        self.counters.released += 1;
        self.accept_pending(rank);
        if std::mem::take(&mut self.daemon_gone) {
            self.check_daemon();
        }
        1
    }

    /// Returns whether this peer of an open transport has an earlier stream that has not ended.
    pub(crate) fn has_earlier_stream(&self, identity: u64) -> bool {
        let number = self.numbers.get(&identity);
        let state = number.and_then(|rank| self.peers.get(*rank as usize));
        matches!(state, Some(PeerState::Peer(peer))
            if matches!(peer.connection, Connection::Releasing(_) | Connection::Ending(_)))
    }
}
