//! State of a layer for one peer address.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::session::Session;
use super::window::Window;
use super::{FORGET, HELD_TIME, RETRY, SILENCE};
use crate::time::{Duration, Instant};

/// Maximum number of sessions that a peer has proposed and not used yet.
const MAX_PROPOSED: usize = 4;
/// Maximum number of packets that wait for a session with a peer.
const MAX_HELD: usize = 64;
/// Interval of set-up packets to a peer to which packets without protection are sent.
const PLAIN_RETRY: Duration = Duration::from_millis(500);

/// Set-up that this side has begun.
pub(super) struct Hello {
    pub(super) nonce: [u8; 16],
    /// Number of packets sent.
    pub(super) tries: usize,
    sent: Instant,
}

/// A session that the peer has proposed. It is in use once a packet of it arrives: only then is it
/// known that the peer's HELLO was not a replay.
pub(super) struct Proposed<K> {
    pub(super) session: Session<K>,
    /// The answer to its HELLO, for a repetition.
    pub(super) answer: Vec<u8>,
    pub(super) run: Run,
}

/// Broadcasts that the peer has sent in its current run.
pub(super) struct Run {
    pub(super) boot: [u8; 16],
    pub(super) window: Window,
}

/// A verified broadcast that waits for a session, without protection.
pub(super) struct Broadcast {
    pub(super) boot: [u8; 16],
    pub(super) counter: u64,
    pub(super) packet: Vec<u8>,
}

/// State of a peer.
pub(super) struct Peer<K> {
    /// Session whose keys protect sent packets.
    pub(super) current: Option<Session<K>>,
    /// Previous session, whose packets may still be in transit.
    pub(super) previous: Option<Session<K>>,
    pub(super) proposed: VecDeque<Proposed<K>>,
    pub(super) run: Option<Run>,
    /// The last broadcast of a run that is not known yet.
    pub(super) broadcast: Option<Broadcast>,
    pub(super) hello: Option<Hello>,
    /// Packets that wait for a session.
    pub(super) held: VecDeque<(Instant, Vec<u8>)>,
    /// Time of the last packet with a valid tag, or of the first contact.
    pub(super) heard: Instant,
    /// Time of the first packet sent since then.
    unanswered: Option<Instant>,
}

impl<K> Peer<K> {
    pub(super) fn new(now: Instant) -> Peer<K> {
        Peer {
            current: None,
            previous: None,
            proposed: VecDeque::new(),
            run: None,
            broadcast: None,
            hello: None,
            held: VecDeque::new(),
            heard: now,
            unanswered: None,
        }
    }

    /// Returns true if the peer has used a session recently.
    pub(super) fn is_live(&self, now: Instant) -> bool {
        self.current.is_some() && now.since(self.heard) < FORGET
    }

    /// Returns the session of this number, and whether it is a proposed one.
    pub(super) fn session(&mut self, id: u32) -> Option<(&mut Session<K>, bool)> {
        let used = [&mut self.current, &mut self.previous];
        let used = used.into_iter().flatten().map(|session| (session, false));
        let proposed = self.proposed.iter_mut().map(|p| (&mut p.session, true));
        used.chain(proposed).find(|(session, _)| session.id == id)
    }

    /// Makes a session the current one.
    pub(super) fn adopt(&mut self, session: Session<K>, run: Run) {
        self.previous = self.current.replace(session);
        if self.run.as_ref().map(|run| run.boot) != Some(run.boot) {
            self.run = Some(run);
        }
        self.hello = None;
    }

    /// Puts a proposed session into use.
    pub(super) fn confirm(&mut self, id: u32) {
        let at = self.proposed.iter().position(|p| p.session.id == id);
        if let Some(Proposed { session, run, .. }) = at.and_then(|at| self.proposed.remove(at)) {
            self.adopt(session, run);
        }
    }

    pub(super) fn propose(&mut self, proposed: Proposed<K>) {
        if self.proposed.len() >= MAX_PROPOSED {
            self.proposed.pop_front();
        }
        self.proposed.push_back(proposed);
    }

    /// Returns true if the session of these nonces is or was in use.
    pub(super) fn knows(&self, first_nonce: &[u8]) -> bool {
        let used = [&self.current, &self.previous];
        let mut used = used.into_iter().flatten();
        used.any(|session| session.nonces.starts_with(first_nonce))
    }

    /// Keeps a packet until there is a session. Returns the number of packets dropped.
    pub(super) fn hold(&mut self, now: Instant, packet: Vec<u8>) -> u64 {
        let mut lost = 0;
        while self.held.len() >= MAX_HELD {
            self.held.pop_front();
            lost += 1;
        }
        self.held.push_back((now, packet));
        lost
    }

    /// Drops the packets that have waited too long. Returns their number.
    pub(super) fn expire_held(&mut self, now: Instant) -> usize {
        let is_old = |(since, _): &(Instant, Vec<u8>)| now.since(*since) >= HELD_TIME;
        let old = self.held.iter().take_while(|held| is_old(held)).count();
        self.held.drain(..old);
        old
    }

    /// Records a packet with a valid tag.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.unanswered = None;
    }

    /// Records that a packet is sent. Returns true if the peer has not answered for so long that it
    /// may have lost the session (W-145).
    pub(super) fn sends(&mut self, now: Instant) -> bool {
        now.since(*self.unanswered.get_or_insert(now)) >= SILENCE
    }

    /// Returns true if a set-up packet is due. `held`: a packet waits for the session.
    pub(super) fn hello_is_due(&self, now: Instant, held: bool) -> bool {
        let interval = match (&self.current, held) {
            (Some(_), _) => SILENCE,
            (None, true) => RETRY,
            (None, false) => PLAIN_RETRY,
        };
        let sent = self.hello.as_ref().map(|hello| hello.sent);
        sent.is_none_or(|sent| now.since(sent) >= interval)
    }

    /// Records a set-up packet; `fresh` is the nonce of a new attempt. Returns nonce and number of
    /// the packet.
    pub(super) fn says_hello(&mut self, now: Instant, fresh: [u8; 16]) -> ([u8; 16], usize) {
        let hello = self.hello.get_or_insert(Hello {
            nonce: fresh,
            tries: 0,
            sent: now,
        });
        (hello.sent, hello.tries) = (now, hello.tries + 1);
        (hello.nonce, hello.tries)
    }
}
