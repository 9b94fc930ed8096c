//! Peers that were never connected to, or are not now: are they still there?
//!
//! A connected peer's end is told by its stream. For the others, now and then a connection with a key that no job has is tried: a
//! port that is listened on answers BAD_KEY (W-20), one that is not REFUSED (W-23). Neither leaves anything at the peer, nor does
//! its program notice. A bounded number of peers is asked each time, in turn, so that large jobs are watched at a constant cost.

use std::time::{Duration, Instant};

use btl::{PeerError, Rank};
use esp_client::{Begun, EspAddr, EspError, EspStream, Interest, StreamBuilder};

use crate::channel::ended_early;
use crate::peer::{Link, Member};
use crate::transport::{EthBtl, Owner};

/// Between two rounds.
pub(crate) const EVERY: Duration = Duration::from_millis(400);
/// Peers asked in a round, and questions under way.
const AT_ONCE: usize = 32;
/// A key as no job has it: theirs are 16 bytes.
const KEY: &[u8] = b"are you there?";

/// Questions under way.
pub(crate) struct Watch {
    builder: StreamBuilder,
    asked: Vec<Asked>,
    /// Where the next round begins.
    next: usize,
    pub(crate) due: Option<Instant>,
}

struct Asked {
    rank: Rank,
    step: Step,
}

enum Step {
    Begun(Begun),
    Stream(EspStream),
}

impl Watch {
    pub(crate) fn new(path: esp_client::Path) -> Watch {
        // No byte will go through them.
        let builder = EspStream::builder()
            .path(path)
            .key(KEY)
            .rings(4 << 10, 4 << 10);
        Watch {
            builder,
            asked: Vec::new(),
            next: 0,
            due: None,
        }
    }
}

impl EthBtl {
    /// There is somebody to watch.
    pub(crate) fn start_watch(&mut self) {
        let at = Instant::now() + EVERY;
        if let Some(open) = &mut self.open
            && open.watch.due.is_none()
        {
            open.watch.due = Some(at);
            self.remind(at);
        }
    }

    /// The next round. Returns 0: nothing that a caller waits for.
    pub(crate) fn ask_around(&mut self, now: Instant) {
        let Some(open) = &mut self.open else { return };
        let size = self.members.len();
        let room = AT_ONCE.saturating_sub(open.watch.asked.len());
        let (mut started, mut seen) = (0, 0);
        while started < room && seen < size {
            let rank = open.watch.next % size;
            (open.watch.next, seen) = (rank + 1, seen + 1);
            let Member::Peer(peer) = &self.members[rank] else {
                continue;
            };
            if !matches!(peer.link, Link::Idle { again: None }) {
                continue;
            }
            let address =
                EspAddr::new(peer.route.peer, peer.port).via(peer.route.interface.clone());
            let Ok(rank) = Rank::try_from(rank) else {
                continue;
            };
            // Not answered is not an answer: the next round asks again.
            if let Ok(begun) = open.watch.builder.begin_at(&open.client, address) {
                open.watch.asked.push(Asked {
                    rank,
                    step: Step::Begun(begun),
                });
                started += 1;
            }
        }
        let at = now + EVERY;
        open.watch.due = Some(at);
        self.remind(at);
    }

    /// Looks for answers.
    pub(crate) fn hear_around(&mut self) {
        let Some(open) = &mut self.open else { return };
        let mut asked = std::mem::take(&mut open.watch.asked);
        asked.retain_mut(|asked| self.still_asked(asked));
        if let Some(open) = &mut self.open {
            open.watch.asked = asked;
        }
    }

    /// Whether the answer is still to come.
    fn still_asked(&mut self, asked: &mut Asked) -> bool {
        if let Step::Begun(begun) = &mut asked.step {
            match begun.poll() {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(stream)) => {
                    self.own(stream.slot(), Owner::Asked);
                    asked.step = Step::Stream(stream);
                }
            }
        }
        let Step::Stream(stream) = &asked.step else {
            return true;
        };
        stream.arm(Interest::State);
        let error = match stream.is_connected() {
            Ok(false) => return true,
            Ok(true) => None,
            Err(error) => Some(error),
        };
        self.own(stream.slot(), Owner::Nobody);
        if let Some(error) = error
            && let Some(EspError::Refused { .. } | EspError::ConnectTimedOut { .. }) =
                EspError::of(&error)
            && let Some(Link::Idle { .. }) = self.peer(asked.rank).map(|peer| &peer.link)
        {
            let gone: PeerError = ended_early(&error).error;
            self.fail(asked.rank, gone);
        }
        false
    }
}
