//! Connections: attempts, guests, and what becomes of them.

use std::time::{Duration, Instant};

use btl::{PeerError, Rank};
use esp_client::{EspAddr, Interest};

use crate::channel::{Channel, Ended, ended_early};
use crate::frame::{Hello, Kind};
use crate::lobby::{Guest, Looked};
use crate::peer::{Link, Member, Verdict};
use crate::transport::{EthBtl, Owner};

/// After an accept that failed (a limit, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

impl EthBtl {
    /// Asks the daemon for a stream to a peer that is idle.
    pub(crate) fn begin(&mut self, rank: Rank) {
        let Some(Member::Peer(peer)) = self.members.get_mut(rank as usize) else {
            return;
        };
        let Some(open) = &self.open else { return };
        let address = EspAddr::new(peer.route.peer, peer.port).via(peer.route.interface.clone());
        match open.builder.begin_at(&open.client, address) {
            Ok(begun) => {
                peer.link = Link::Begun(begun);
                self.begun.push(rank);
            }
            Err(error) => self.attempt_failed(rank, ended_early(&error)),
        }
    }

    /// Looks for everything the daemon may have answered.
    pub(crate) fn answers(&mut self) -> usize {
        let mut done = 0;
        let mut at = 0;
        while let Some(&rank) = self.begun.get(at) {
            let answer = match self.peer(rank).map(|peer| &mut peer.link) {
                Some(Link::Begun(begun)) => match begun.poll() {
                    None => {
                        at += 1;
                        continue;
                    }
                    answer => answer,
                },
                _ => None,
            };
            self.begun.swap_remove(at);
            done += 1;
            match answer {
                Some(Ok(stream)) => self.greet(rank, Channel::new(stream)),
                Some(Err(error)) => self.attempt_failed(rank, ended_early(&error)),
                None => {}
            }
        }
        done += self.accept();
        self.hear_around();
        self.lose_daemon();
        done
    }

    /// Our stream is there, though perhaps not connected: the introduction goes ahead.
    fn greet(&mut self, rank: Rank, mut channel: Channel) {
        let own = (self.job, self.config.rank, self.nonce);
        let max_send = self.max_send;
        let Some(peer) = self.peer(rank) else { return };
        if !channel.holds(max_send) {
            self.attempt_failed(rank, small_rings());
            return;
        }
        let (job, from, from_nonce) = own;
        channel.hello(&Hello {
            job,
            from,
            to: rank,
            from_nonce,
            to_nonce: peer.nonce,
        });
        let slot = channel.slot();
        peer.link = Link::Greeting(channel);
        self.own(slot, Owner::Peer(rank));
        self.watch(rank);
    }

    pub(crate) fn own(&mut self, slot: u16, owner: Owner) {
        if let Some(place) = self.owners.get_mut(usize::from(slot)) {
            *place = owner;
        }
    }

    /// Takes the connections that have come.
    pub(crate) fn accept(&mut self) -> usize {
        let mut done = 0;
        loop {
            let Some(open) = &mut self.open else {
                return done;
            };
            match open.listener.accept() {
                Ok((stream, _)) => {
                    done += 1;
                    let guest = Guest {
                        channel: Channel::new(stream),
                        hello: None,
                    };
                    let slot = guest.channel.slot();
                    let evicted = open.lobby.push(guest);
                    self.own(slot, Owner::Guest);
                    if let Some(guest) = evicted {
                        self.counters.evicted += 1;
                        self.turn_away(guest, "too many connections wait here");
                    }
                    self.greet_guest(slot);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return done,
                Err(_) if open.client.check().is_err() => return done,
                Err(_) => {
                    let again = Instant::now() + ACCEPT_PAUSE;
                    self.accept_again = Some(again);
                    self.remind(again);
                    return done;
                }
            }
        }
    }

    /// A guest has news: its introduction, or its end.
    pub(crate) fn greet_guest(&mut self, slot: u16) {
        let Some(mut guest) = self.open.as_mut().and_then(|open| open.lobby.take(slot)) else {
            return;
        };
        if guest.hello.is_some() {
            // It waits for its rank to be added; what it writes meanwhile is read then.
            self.wait(guest);
            return;
        }
        guest.channel.stream.arm(Interest::Readable);
        match guest.look() {
            Looked::Silent => self.wait(guest),
            Looked::Hello(hello) => self.settle(guest, hello),
            Looked::Gone { malformed } => {
                self.counters.malformed += u64::from(malformed);
                self.turn_away(guest, "not an introduction");
            }
        }
    }

    fn wait(&mut self, guest: Guest) {
        if let Some(open) = &mut self.open {
            // It was in there before, so nobody has to go for it.
            let _ = open.lobby.push(guest);
        }
    }

    pub(crate) fn turn_away(&mut self, mut guest: Guest, words: &str) {
        guest.channel.refuse(words);
        self.own(guest.channel.slot(), Owner::Nobody);
    }

    /// A rank was added: its guest may come in.
    pub(crate) fn admit(&mut self, rank: Rank) {
        let guest = self
            .open
            .as_mut()
            .and_then(|open| open.lobby.take_rank(rank));
        if let Some(guest) = guest
            && let Some(hello) = guest.hello
        {
            self.settle(guest, hello);
        }
    }

    /// A stream has introduced itself.
    fn settle(&mut self, mut guest: Guest, hello: Hello) {
        let own = self.config.rank;
        if hello.job != self.job {
            self.counters.refused_job += 1;
            return self.turn_away(guest, "this is another job");
        }
        let impossible = hello.to != own || hello.from == own || hello.to_nonce != self.nonce;
        let member = self
            .members
            .get_mut(hello.from as usize)
            .filter(|_| !impossible);
        let verdict = match member {
            Some(Member::Peer(peer)) if peer.nonce == hello.from_nonce => {
                peer.link.judge(own, hello.from)
            }
            Some(Member::Unknown) => {
                guest.hello = Some(hello);
                let older = self
                    .open
                    .as_mut()
                    .and_then(|open| open.lobby.take_rank(hello.from));
                if let Some(older) = older {
                    self.turn_away(older, "a younger connection took its place");
                }
                return self.wait(guest);
            }
            _ => {
                self.counters.refused_rank += 1;
                return self.turn_away(guest, "this is another rank, or the cards differ");
            }
        };
        match verdict {
            Verdict::Refuse(words) => {
                self.counters.refused_state += 1;
                self.turn_away(guest, words);
            }
            Verdict::Yield => {
                self.counters.yielded += 1;
                guest.channel.control(Kind::Yield, &[]);
                self.own(guest.channel.slot(), Owner::Nobody);
            }
            Verdict::Welcome if !guest.channel.holds(self.max_send) => {
                self.turn_away(
                    guest,
                    "the daemon of this node gives rings that are too small",
                );
            }
            Verdict::Welcome => self.welcome(hello.from, guest.channel),
        }
    }

    fn welcome(&mut self, rank: Rank, mut channel: Channel) {
        if let Some(Link::Begun(_) | Link::Greeting(_)) = self.peer(rank).map(|peer| &peer.link) {
            self.counters.yielded += 1;
        }
        self.drop_link(rank, Link::Idle { again: None });
        channel.control(Kind::Welcome, &[]);
        self.own(channel.slot(), Owner::Peer(rank));
        if let Some(peer) = self.peer(rank) {
            peer.link = Link::Welcomed(channel);
        }
        self.watch(rank);
    }

    /// Puts something else in the place of a peer's link.
    pub(crate) fn drop_link(&mut self, rank: Rank, next: Link) {
        let Some(peer) = self.peer(rank) else { return };
        let slot = peer.channel().map(|channel| channel.slot());
        peer.link = next;
        if let Some(slot) = slot {
            self.own(slot, Owner::Nobody);
        }
    }

    /// An own attempt came to nothing.
    pub(crate) fn attempt_failed(&mut self, rank: Rank, ended: Ended) {
        self.counters.failed_attempts += 1;
        let retries = self.config.retries;
        let Some(peer) = self.peer(rank) else { return };
        peer.tries = peer.tries.saturating_add(1);
        if !ended.again || peer.tries > retries {
            return self.fail(rank, ended.error);
        }
        let pause = peer.pause();
        self.pause(rank, pause);
    }

    /// A stream of the peer's ended before it was confirmed.
    pub(crate) fn guest_failed(&mut self, rank: Rank, ended: Ended) {
        if ended.error == PeerError::Died {
            return self.fail(rank, ended.error);
        }
        self.counters.failed_attempts += 1;
        self.drop_link(rank, Link::Idle { again: None });
    }

    /// The peer's attempt goes on instead.
    pub(crate) fn give_way(&mut self, rank: Rank) {
        self.counters.yielded += 1;
        let Some(peer) = self.peer(rank) else { return };
        peer.yields = peer.yields.saturating_add(1);
        let pause = peer.yield_pause();
        self.pause(rank, pause);
    }

    fn pause(&mut self, rank: Rank, pause: Duration) {
        let again = Instant::now() + pause;
        self.drop_link(rank, Link::Idle { again: Some(again) });
        if !self.pausing.contains(&rank) {
            self.pausing.push(rank);
        }
        self.remind(again);
    }

    /// Begins what is due. Called while something is.
    pub(crate) fn timers(&mut self) -> usize {
        let now = Instant::now();
        if self.due.is_none_or(|due| due > now) {
            return 0;
        }
        self.due = None;
        let mut done = 0;
        for rank in std::mem::take(&mut self.pausing) {
            match self.peer(rank).map(|peer| &peer.link) {
                Some(Link::Idle { again: Some(again) }) if *again > now => {
                    let again = *again;
                    self.pausing.push(rank);
                    self.remind(again);
                }
                Some(Link::Idle { again: Some(_) }) => {
                    done += 1;
                    self.begin(rank);
                }
                _ => {}
            }
        }
        match self.accept_again {
            Some(again) if again > now => self.remind(again),
            Some(_) => {
                self.accept_again = None;
                done += self.accept();
            }
            None => {}
        }
        match self.open.as_ref().and_then(|open| open.watch.due) {
            Some(round) if round > now => self.remind(round),
            Some(_) => self.ask_around(now),
            None => {}
        }
        done
    }

    /// A peer is gone for good.
    pub(crate) fn fail(&mut self, rank: Rank, error: PeerError) {
        if matches!(
            self.peer(rank).map(|peer| &peer.link),
            None | Some(Link::Failed(_))
        ) {
            return;
        }
        self.drop_link(rank, Link::Failed(error.clone()));
        self.failures.push_back((rank, error));
    }
}

fn small_rings() -> Ended {
    let what =
        "the daemon of this node gives smaller rings than before; its configuration says how large";
    Ended {
        error: PeerError::Lost(what.into()),
        again: false,
    }
}
