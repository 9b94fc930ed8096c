//! What comes out of the streams.

use std::sync::Arc;

use btl::{Events, PeerError, Rank};
use esp_client::Interest;

use crate::channel::{Ended, ended_early, ended_late};
use crate::frame::{self, Kind, Record};
use crate::peer::Link;
use crate::transport::EthBtl;

/// Most records of one peer in one `progress`.
const RECORDS: usize = 64;
/// Most bytes of one peer in one `progress`, but for a longer message.
const BYTES: usize = 256 << 10;
/// Up to so many peers are looked at directly for a while after their last word; with more, each but once.
const FEW: usize = 8;
/// Looks in vain after which a peer is left to the engine's event bits.
const PATIENCE: u32 = 400;

/// Why a stream is not read on.
enum End {
    Violation(String),
    Refused(String),
    Left,
    GiveWay,
    /// The stream's own end, without a goodbye.
    Eof,
    Error(std::io::Error),
}

impl EthBtl {
    /// Reads from everyone who is watched.
    pub(crate) fn look(&mut self, events: &mut dyn Events) -> usize {
        let (mut done, mut at) = (0, 0);
        while let Some(&rank) = self.watched.get(at) {
            let found = self.read(rank, events);
            done += found;
            let few = self.watched.len() <= FEW;
            let Some(peer) = self.peer(rank) else {
                self.watched.swap_remove(at);
                continue;
            };
            let mut leave = true;
            if peer.channel().is_some() {
                leave = false;
                let live = matches!(peer.link, Link::Live(_));
                peer.quiet = if found > 0 { 0 } else { peer.quiet + 1 };
                if found == 0 && (!few || !live || peer.quiet > PATIENCE) {
                    if let Some(channel) = peer.channel() {
                        channel.stream.arm(Interest::Readable);
                    }
                    // What came before that is no news.
                    let more = self.read(rank, events);
                    done += more;
                    leave = more == 0;
                }
            }
            if leave {
                if let Some(peer) = self.peer(rank) {
                    peer.watched = false;
                }
                self.watched.swap_remove(at);
            } else {
                at += 1;
            }
        }
        done
    }

    /// Reads what one peer has sent; returns the number of records and ends.
    fn read(&mut self, rank: Rank, events: &mut dyn Events) -> usize {
        let limit = self.max_send;
        let Some(channel) = self.peer(rank).and_then(|peer| peer.channel()) else {
            return 0;
        };
        let (mut known, mut due) = (channel.known, channel.due);
        let stream = Arc::clone(&channel.stream);
        let (mut done, mut end, mut shown) = (0, None, false);
        let outcome = stream.try_read_with(known, |bytes| {
            let mut at = 0;
            (known, shown) = (0, true);
            while end.is_none() && done < RECORDS && at < BYTES {
                match frame::decode(&bytes[at..], due, limit) {
                    Ok(Some((record, length))) => {
                        at += length;
                        due = due.wrapping_add(1);
                        done += 1;
                        end = self.take(rank, record, events);
                    }
                    Ok(None) => {
                        known = bytes.len() - at;
                        break;
                    }
                    Err(error) => end = Some(End::Violation(error.to_string())),
                }
            }
            at
        });
        match outcome {
            Ok(0) if !shown => end = Some(End::Eof),
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                end = Some(End::Error(error))
            }
            _ => {}
        }
        if let Some(end) = end {
            self.end(rank, end);
            return done + 1;
        }
        if let Some(channel) = self.peer(rank).and_then(|peer| peer.channel()) {
            (channel.known, channel.due) = (known, due);
        }
        done
    }

    /// One record.
    #[inline]
    fn take(&mut self, rank: Rank, record: Record<'_>, events: &mut dyn Events) -> Option<End> {
        if let Record::Message { header, body } = record
            && let Some(Link::Live(_)) = self.peer(rank).map(|peer| &peer.link)
        {
            self.counters.received += 1;
            events.message(self, rank, header, body);
            return None;
        }
        self.take_control(rank, &record)
    }

    fn take_control(&mut self, rank: Rank, record: &Record<'_>) -> Option<End> {
        let peer = self.peer(rank)?;
        match (&mut peer.link, record) {
            (Link::Greeting(_), Record::Welcome) | (Link::Welcomed(_), Record::Confirm) => {
                peer.link = match std::mem::replace(&mut peer.link, Link::Idle { again: None }) {
                    Link::Greeting(mut channel) => {
                        channel.control(Kind::Confirm, &[]);
                        Link::Live(channel)
                    }
                    Link::Welcomed(channel) => Link::Live(channel),
                    other => other,
                };
                (peer.tries, peer.yields) = (0, 0);
                self.counters.connected += 1;
                None
            }
            (Link::Greeting(_), Record::Yield) => Some(End::GiveWay),
            (_, Record::Refuse(words)) => Some(End::Refused((*words).to_owned())),
            (_, Record::Goodbye) => Some(End::Left),
            (_, Record::Message { .. }) => Some(End::Violation(
                "a message before the connection was confirmed".into(),
            )),
            (_, Record::Hello(_) | Record::Welcome | Record::Confirm | Record::Yield) => Some(
                End::Violation("a record of the set-up where none is due".into()),
            ),
        }
    }

    fn end(&mut self, rank: Rank, end: End) {
        let Some(peer) = self.peer(rank) else { return };
        let (live, greeting) = (
            matches!(peer.link, Link::Live(_)),
            matches!(peer.link, Link::Greeting(_)),
        );
        match end {
            End::Left => self.fail(rank, PeerError::Left),
            End::Refused(words) => self.fail(rank, PeerError::Lost(format!("it refused: {words}"))),
            End::GiveWay => self.give_way(rank),
            End::Violation(what) => {
                if let Some(channel) = peer.channel() {
                    channel.refuse(&format!("protocol violated: {what}"));
                }
                self.counters.violations += 1;
                self.fail(rank, PeerError::Violation(what));
            }
            End::Eof if live => self.fail(rank, PeerError::Died),
            End::Error(error) if live => self.fail(rank, ended_late(&error)),
            End::Eof | End::Error(_) => {
                let ended = match &end {
                    End::Error(error) => ended_early(error),
                    _ => Ended {
                        error: PeerError::Lost(
                            "it ended the connection while that was set up".into(),
                        ),
                        again: true,
                    },
                };
                if greeting {
                    self.attempt_failed(rank, ended);
                } else {
                    self.guest_failed(rank, ended);
                }
            }
        }
    }
}
