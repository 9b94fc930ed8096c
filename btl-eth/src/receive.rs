//! Receiving: records of established connections and of connections being set up.

use std::sync::Arc;

use btl::{Events, PeerError, Rank};
use esp_client::Interest;

use crate::channel::{Retry, SetupError, established_error};
use crate::peer::Connection;
use crate::record::{self, Kind, Record};
use crate::transport::EthBtl;

/// Maximum number of records of one peer in one `progress`.
const MAX_RECORDS: usize = 64;
/// Maximum number of bytes of one peer in one `progress`, except for a single longer message.
const MAX_BYTES: usize = 256 << 10;
/// Maximum number of peers that are polled directly for a while after they were active. With more,
/// each is polled once after an event.
const MAX_POLLED: usize = 8;
/// Number of empty polls after which a peer is polled only if the engine sets its event bit.
const MAX_EMPTY_POLLS: u32 = 400;

/// Reason why reading a stream ended.
enum End {
    /// GOODBYE, REFUSE, or a violation of the protocol.
    Failed(PeerError),
    Yield,
    /// RELEASE.
    Release,
    /// End of the stream without GOODBYE or RELEASE.
    Eof,
    Error(std::io::Error),
}

impl EthBtl {
    /// Reads from the peers that are polled directly. Returns the number of events.
    pub(crate) fn poll_peers(&mut self, events: &mut dyn Events) -> usize {
        let (mut count, mut at) = (0, 0);
        while let Some(&rank) = self.polled.get(at) {
            let read = self.read(rank, events);
            count += read;
            let few = self.polled.len() <= MAX_POLLED;
            let Some(peer) = self.peer(rank) else {
                self.polled.swap_remove(at);
                continue;
            };
            let mut remove = true;
            if peer.channel().is_some() {
                remove = false;
                let is_established = matches!(peer.connection, Connection::Established(_));
                peer.empty_polls = if read > 0 { 0 } else { peer.empty_polls + 1 };
                if read == 0 && (!few || !is_established || peer.empty_polls > MAX_EMPTY_POLLS) {
                    if let Some(channel) = peer.channel() {
                        channel.stream.arm(Interest::Readable);
                    }
                    // Data that arrived before the stream was armed causes no event.
                    let more = self.read(rank, events);
                    count += more;
                    remove = more == 0;
                }
            }
            if remove {
                if let Some(peer) = self.peer(rank) {
                    peer.polled = false;
                }
                self.polled.swap_remove(at);
            } else {
                at += 1;
            }
        }
        count
    }

    /// Reads the records of one peer. Returns their number, and one more for the end of the stream.
    fn read(&mut self, rank: Rank, events: &mut dyn Events) -> usize {
        let limit = self.max_send;
        let Some(peer) = self.peer(rank) else {
            return 0;
        };
        if let Connection::Ending(_) = peer.connection {
            return self.poll_ending(rank);
        }
        let Some(channel) = peer.channel() else {
            return 0;
        };
        let (mut incomplete, mut next) = (channel.incomplete, channel.next_received);
        let stream = Arc::clone(&channel.stream);
        let (mut count, mut end, mut is_open) = (0, None, false);
        let outcome = stream.try_read_with(incomplete, |bytes| {
            let mut at = 0;
            (incomplete, is_open) = (0, true);
            while end.is_none() && count < MAX_RECORDS && at < MAX_BYTES {
                match record::decode(&bytes[at..], next, limit) {
                    Ok(Some((record, length))) => {
                        at += length;
                        next = next.wrapping_add(1);
                        count += 1;
                        end = self.handle_record(rank, record, events);
                    }
                    Ok(None) => {
                        incomplete = bytes.len() - at;
                        break;
                    }
                    Err(error) => end = Some(End::Failed(PeerError::Violation(error))),
                }
            }
            at
        });
        match outcome {
            Ok(0) if !is_open => end = Some(End::Eof),
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                end = Some(End::Error(error));
            }
            _ => {}
        }
        if let Some(end) = end {
            self.handle_end(rank, end);
            return count + 1;
        }
        let calls = self.calls;
        if let Some(peer) = self.peer(rank)
            && let Some(channel) = peer.channel()
        {
            (channel.incomplete, channel.next_received) = (incomplete, next);
            if count > 0 {
                peer.used = calls;
            }
        }
        count
    }

    #[inline]
    fn handle_record(
        &mut self,
        rank: Rank,
        record: Record<'_>,
        events: &mut dyn Events,
    ) -> Option<End> {
        if record.kind == Kind::Message
            && let Some(Connection::Established(_) | Connection::Releasing(_)) =
                self.peer(rank).map(|peer| &peer.connection)
        {
            events.message(self, rank, record.header, record.body);
            return None;
        }
        self.handle_control(rank, &record)
    }

    fn handle_control(&mut self, rank: Rank, record: &Record<'_>) -> Option<End> {
        let peer = self.peer(rank)?;
        Some(match (&mut peer.connection, record.kind) {
            (Connection::HelloSent(_), Kind::Welcome)
            | (Connection::WelcomeSent(_), Kind::Confirm) => {
                let idle = Connection::Idle { retry_at: None };
                peer.connection = match std::mem::replace(&mut peer.connection, idle) {
                    Connection::HelloSent(mut channel) => {
                        channel.control(Kind::Confirm, &[]);
                        Connection::Established(channel)
                    }
                    Connection::WelcomeSent(channel) => Connection::Established(channel),
                    other => other,
                };
                (peer.failures, peer.unanswered, peer.yields) = (0, 0, 0);
                peer.was_connected = true;
                self.counters.connected += 1;
                self.release_excess(rank);
                return None;
            }
            (Connection::HelloSent(_), Kind::Yield) => End::Yield,
            (Connection::Established(_) | Connection::Releasing(_), Kind::Release) => End::Release,
            (_, Kind::Refuse) => {
                let reason = String::from_utf8_lossy(record.body);
                End::Failed(PeerError::Lost(format!("it refused: {reason}")))
            }
            (_, Kind::Goodbye) => End::Failed(PeerError::Left),
            (_, Kind::Message) => {
                let what = "MESSAGE before the connection was established".into();
                End::Failed(PeerError::Violation(what))
            }
            (_, kind) => {
                let what = format!("unexpected record of the connection set-up: {kind:?}");
                End::Failed(PeerError::Violation(what))
            }
        })
    }

    fn handle_end(&mut self, rank: Rank, end: End) {
        let Some(peer) = self.peer(rank) else { return };
        let is_established = matches!(
            peer.connection,
            Connection::Established(_) | Connection::Releasing(_)
        );
        let is_own_attempt = matches!(peer.connection, Connection::HelloSent(_));
        let setup = match end {
            End::Failed(error) => {
                if let PeerError::Violation(what) = &error {
                    if let Some(channel) = peer.channel() {
                        channel.refuse(&format!("protocol violation: {what}"));
                    }
                    self.counters.violations += 1;
                }
                return self.fail(rank, error);
            }
            End::Yield => return self.yield_to_peer(rank),
            End::Release => return self.released(rank),
            End::Eof if is_established => return self.fail(rank, PeerError::Died),
            End::Error(error) if is_established => {
                return self.fail(rank, established_error(&error));
            }
            End::Error(error) => SetupError::new(&error),
            End::Eof => SetupError {
                error: PeerError::Lost("it ended the connection during set-up".into()),
                retry: Retry::Soon,
            },
        };
        if is_own_attempt {
            self.attempt_failed(rank, setup);
        } else {
            self.accepted_failed(rank, setup);
        }
    }
}
