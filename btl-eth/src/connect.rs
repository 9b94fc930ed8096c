//! Setting up connections: attempts of this side, accepted streams, retries.

use std::time::{Duration, Instant};

use btl::{PeerError, Rank};
use esp_client::{EspAddr, Interest};

use crate::address::EthAddress;
use crate::channel::{Channel, Retry, SetupError};
use crate::peer::{Connection, HelloResponse, PeerState};
use crate::pending::{NoHello, PendingConnection};
use crate::probe::NodePath;
use crate::record::{Hello, Kind};
use crate::transport::{EthBtl, SlotOwner};

/// Maximum number of further attempts to set up a connection.
const RETRIES: u32 = 4;
/// Maximum number of accepted streams of an open transport whose peer was not admitted.
const MAX_STRANGERS: usize = 256;
/// Pause after a failed accept, for example because of a limit.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Round-trip time assumed for a path that was not probed: that of an echo through daemons.
const UNMEASURED: Duration = Duration::from_micros(40);

/// Returns true if a peer made `attempt` after `than`.
fn is_later(attempt: u16, than: u16) -> bool {
    (1..0x8000).contains(&attempt.wrapping_sub(than))
}

impl EthBtl {
    /// Requests a stream to an idle peer.
    pub(crate) fn connect(&mut self, rank: Rank) {
        let Some(PeerState::Peer(peer)) = self.peers.get_mut(rank as usize) else {
            return;
        };
        let Some(open) = &self.open else { return };
        let address = EspAddr::new(peer.path.peer, peer.port).via(peer.path.interface.clone());
        match open.builder.begin_at(&open.client, address) {
            Ok(request) => {
                peer.attempts = peer.attempts.wrapping_add(1);
                peer.connection = Connection::Requested(Box::new(request));
                self.requested.push(rank);
            }
            Err(error) => self.attempt_failed(rank, SetupError::new(&error)),
        }
    }

    /// Handles everything that the daemon may have answered. Returns the number of events.
    pub(crate) fn handle_answers(&mut self) -> usize {
        let (mut events, mut at) = (0, 0);
        while let Some(&rank) = self.requested.get(at) {
            let answer = match self.peer(rank).map(|peer| &mut peer.connection) {
                Some(Connection::Requested(request)) => match request.poll() {
                    None => {
                        at += 1;
                        continue;
                    }
                    answer => answer,
                },
                _ => None,
            };
            self.requested.swap_remove(at);
            events += 1;
            match answer {
                Some(Ok(stream)) => self.send_hello(rank, Channel::new(stream)),
                Some(Err(error)) => self.attempt_failed(rank, SetupError::new(&error)),
                None => {}
            }
        }
        events += self.accept();
        self.poll_liveness();
        self.check_daemon();
        events
    }

    /// Writes HELLO to a stream of this side, which need not be connected yet.
    fn send_hello(&mut self, rank: Rank, mut channel: Channel) {
        let (job, from_nonce, max_send) = (self.job, self.nonce, self.max_send);
        let (from, to) = self.hello_numbers(rank);
        let Some(peer) = self.peer(rank) else { return };
        if !channel.holds(max_send) {
            let what = "the daemon of this node grants smaller rings than before: \
                        check [rings] in its configuration";
            let error = PeerError::Lost(what.into());
            let retry = Retry::No;
            return self.attempt_failed(rank, SetupError { error, retry });
        }
        let hello = Hello {
            job,
            from,
            to,
            from_nonce,
            to_nonce: peer.nonce,
            attempt: peer.attempts,
        };
        channel.control(Kind::Hello, &hello.encode());
        let slot = channel.slot();
        peer.connection = Connection::HelloSent(channel);
        self.set_owner(slot, SlotOwner::Peer(rank));
        self.poll_directly(rank);
    }

    pub(crate) fn set_owner(&mut self, slot: u16, owner: SlotOwner) {
        if let Some(entry) = self.slot_owners.get_mut(usize::from(slot)) {
            *entry = owner;
        }
    }

    /// Accepts new streams. Returns their number.
    pub(crate) fn accept(&mut self) -> usize {
        let mut accepted = 0;
        loop {
            let Some(open) = &mut self.open else {
                return accepted;
            };
            match open.listener.accept() {
                Ok((stream, from)) => {
                    accepted += 1;
                    let (channel, hello) = (Channel::new(stream), None);
                    let slot = channel.slot();
                    if self.pending_connections() >= self.max_pending() {
                        self.evict_pending();
                    }
                    self.keep_pending(PendingConnection {
                        channel,
                        from,
                        hello,
                    });
                    self.set_owner(slot, SlotOwner::Pending);
                    self.poll_pending(slot);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return accepted,
                Err(_) if open.client.check_waiting().is_err() => return accepted,
                Err(_) => {
                    let at = Instant::now() + ACCEPT_PAUSE;
                    self.accept_at = Some(at);
                    self.schedule(at);
                    return accepted;
                }
            }
        }
    }

    fn max_pending(&self) -> usize {
        match self.config.identity {
            Some(_) => MAX_STRANGERS,
            None => self.peers.len().saturating_mul(2).saturating_add(16),
        }
    }

    /// Ends the oldest pending connection that has not identified itself, else that of a stranger.
    fn evict_pending(&mut self) {
        let evicted = self.take_pending(|pending| pending.hello.is_none());
        let evicted = evicted.or_else(|| {
            let hellos = self.open.iter().flat_map(|open| &open.pending);
            let mut nonces = hellos.filter_map(|pending| Some(pending.hello?.from_nonce));
            let stranger = nonces.find(|nonce| !self.numbers.contains_key(nonce))?;
            self.take_pending(|pending| pending.is_stranger(stranger))
        });
        if let Some(evicted) = evicted.or_else(|| self.take_pending(|_| true)) {
            self.counters.evicted += 1;
            self.reject(evicted, "too many pending connections");
        }
    }

    /// Removes the oldest pending connection for which `f` returns true.
    pub(crate) fn take_pending(
        &mut self,
        f: impl Fn(&PendingConnection) -> bool,
    ) -> Option<PendingConnection> {
        let pending = &mut self.open.as_mut()?.pending;
        pending.remove(pending.iter().position(f)?)
    }

    /// Handles an event of a pending stream: its HELLO or its end.
    pub(crate) fn poll_pending(&mut self, slot: u16) {
        let of_slot = |pending: &PendingConnection| pending.channel.slot() == slot;
        let Some(mut pending) = self.take_pending(of_slot) else {
            return;
        };
        if pending.hello.is_some() {
            // It waits. Its records are read afterwards.
            self.keep_pending(pending);
            return;
        }
        pending.channel.stream.arm(Interest::Readable);
        match pending.read_hello() {
            Ok(hello) => self.handle_hello(pending, hello),
            Err(NoHello::Awaited) => self.keep_pending(pending),
            Err(reason) => {
                self.counters.malformed += u64::from(matches!(reason, NoHello::Malformed));
                self.reject(pending, "not a HELLO record");
            }
        }
    }

    fn keep_pending(&mut self, pending: PendingConnection) {
        if let Some(open) = &mut self.open {
            open.pending.push_back(pending);
        }
    }

    pub(crate) fn reject(&mut self, mut pending: PendingConnection, reason: &str) {
        pending.channel.refuse(reason);
        self.set_owner(pending.channel.slot(), SlotOwner::None);
    }

    /// Handles the HELLO of a rank that has already connected, now that the rank was added or its
    /// earlier stream has ended.
    pub(crate) fn accept_pending(&mut self, rank: Rank) {
        let is_open = self.config.identity.is_some();
        let identity = self.peer(rank).map(|peer| peer.nonce).filter(|_| is_open);
        let of_peer = |pending: &PendingConnection| match identity {
            Some(identity) => pending.is_stranger(identity),
            None => pending.is_from(rank),
        };
        if let Some(pending) = self.take_pending(of_peer)
            && let Some(hello) = pending.hello
        {
            self.handle_hello(pending, hello);
        }
    }

    /// Returns the path to the node of a peer that has connected.
    pub(crate) fn path_of(&self, pending: &PendingConnection) -> NodePath {
        let from = &pending.from;
        let interface = from.interface.clone();
        let interface = interface.or_else(|| self.interfaces.first().map(|one| one.name.clone()));
        NodePath {
            interface: interface.unwrap_or_default(),
            peer: from.addr,
            round_trip: UNMEASURED,
            reason: format!("it connected from {from}"),
        }
    }

    /// Returns the path to a peer of the job that has already connected, from an interface of its
    /// address.
    pub(crate) fn pending_path(&self, rank: Rank, address: &EthAddress) -> Option<NodePath> {
        let open = self.open.as_ref()?;
        if self.config.identity.is_some() || address.job != self.job {
            return None;
        }
        let is_it = |pending: &&PendingConnection| {
            let by = |hello: Hello| (hello.from, hello.from_nonce) == (rank, address.nonce);
            let mut interfaces = address.interfaces.iter();
            pending.hello.is_some_and(by) && interfaces.any(|one| one.addr == pending.from.addr)
        };
        open.pending
            .iter()
            .find(is_it)
            .map(|pending| self.path_of(pending))
    }

    pub(crate) fn handle_hello(&mut self, mut pending: PendingConnection, hello: Hello) {
        if hello.job != self.job {
            self.counters.refused_job += 1;
            return self.reject(pending, "this is another job");
        }
        let Some(caller) = self.caller(&hello) else {
            self.counters.refused_rank += 1;
            return self.reject(pending, "wrong rank, or the addresses differ");
        };
        let (own, theirs) = match self.config.identity {
            Some(identity) => (identity, hello.from_nonce),
            None => (self.config.rank.into(), hello.from.into()),
        };
        let rank = caller.unwrap_or(hello.from);
        let state = caller.and_then(|rank| self.peers.get_mut(rank as usize));
        let response = match state {
            Some(PeerState::Peer(peer)) if peer.nonce == hello.from_nonce => {
                if peer
                    .answered
                    .is_some_and(|last| !is_later(hello.attempt, last))
                {
                    // The peer has abandoned this attempt.
                    return self.set_owner(pending.channel.slot(), SlotOwner::None);
                }
                let response = peer.connection.respond(own, theirs);
                if response != HelloResponse::Wait {
                    peer.answered = Some(hello.attempt);
                }
                response
            }
            None | Some(PeerState::Unknown) => HelloResponse::Wait,
            _ => {
                self.counters.refused_rank += 1;
                return self.reject(pending, "wrong rank, or the addresses differ");
            }
        };
        match response {
            HelloResponse::Wait => {
                pending.hello = Some(hello);
                let is_open = self.config.identity.is_some();
                let same = |older: &PendingConnection| match is_open {
                    true => older.is_stranger(hello.from_nonce),
                    false => older.is_from(hello.from),
                };
                match self.take_pending(same) {
                    Some(kept)
                        if kept
                            .hello
                            .is_some_and(|it| is_later(it.attempt, hello.attempt)) =>
                    {
                        self.set_owner(pending.channel.slot(), SlotOwner::None);
                        return self.keep_pending(kept);
                    }
                    Some(older) => self.reject(older, "replaced by a newer connection"),
                    None => {}
                }
                self.keep_pending(pending);
            }
            HelloResponse::Refuse(reason) => self.reject(pending, reason),
            HelloResponse::Yield => {
                self.counters.yielded += 1;
                pending.channel.control(Kind::Yield, &[]);
                self.set_owner(pending.channel.slot(), SlotOwner::None);
            }
            HelloResponse::Welcome if !pending.channel.holds(self.max_send) => {
                self.reject(
                    pending,
                    "the daemon of this node grants rings that are too small",
                );
            }
            HelloResponse::Welcome => self.send_welcome(rank, pending.channel),
        }
    }

    fn send_welcome(&mut self, rank: Rank, mut channel: Channel) {
        if let Some(Connection::Requested(_) | Connection::HelloSent(_)) =
            self.peer(rank).map(|peer| &peer.connection)
        {
            self.counters.yielded += 1;
        }
        self.replace_connection(rank, Connection::Idle { retry_at: None });
        channel.control(Kind::Welcome, &[]);
        self.set_owner(channel.slot(), SlotOwner::Peer(rank));
        if let Some(peer) = self.peer(rank) {
            peer.connection = Connection::WelcomeSent(channel);
        }
        self.poll_directly(rank);
    }

    /// Replaces a peer's connection and releases its slot.
    pub(crate) fn replace_connection(&mut self, rank: Rank, next: Connection) {
        let Some(peer) = self.peer(rank) else { return };
        let slot = peer.channel().map(|channel| channel.slot());
        peer.connection = next;
        if let Some(slot) = slot {
            self.set_owner(slot, SlotOwner::None);
        }
    }

    /// Schedules the next attempt after one of this side has failed, or fails the peer.
    pub(crate) fn attempt_failed(&mut self, rank: Rank, setup: SetupError) {
        self.counters.failed_attempts += 1;
        let silent_attempts = self.silent_attempts;
        let Some(peer) = self.peer(rank) else { return };
        let may_retry = match setup.retry {
            Retry::No => false,
            Retry::Soon | Retry::Closed => {
                peer.unanswered = 0;
                peer.failures = peer.failures.saturating_add(1);
                peer.failures <= RETRIES
            }
            Retry::Silent => {
                peer.unanswered = peer.unanswered.saturating_add(1);
                peer.unanswered < silent_attempts
            }
        };
        if !may_retry {
            let has_left = peer.was_connected && setup.retry == Retry::Closed;
            let error = if has_left {
                PeerError::Gone
            } else {
                setup.error
            };
            return self.fail(rank, error);
        }
        let pause = peer.retry_pause();
        self.retry_after(rank, pause);
    }

    /// Handles the end of an accepted stream that was not established.
    pub(crate) fn accepted_failed(&mut self, rank: Rank, setup: SetupError) {
        if setup.error == PeerError::Died {
            return self.fail(rank, setup.error);
        }
        self.counters.failed_attempts += 1;
        self.replace_connection(rank, Connection::Idle { retry_at: None });
    }

    /// Waits for the peer's attempt after it has answered YIELD.
    pub(crate) fn yield_to_peer(&mut self, rank: Rank) {
        self.counters.yielded += 1;
        let Some(peer) = self.peer(rank) else { return };
        peer.yields = peer.yields.saturating_add(1);
        let pause = peer.yield_pause();
        self.retry_after(rank, pause);
    }

    fn retry_after(&mut self, rank: Rank, pause: Duration) {
        let at = Instant::now() + pause;
        self.replace_connection(rank, Connection::Idle { retry_at: Some(at) });
        self.schedule(at);
    }

    /// Runs the timers that have expired. Returns the number of attempts and accepts.
    pub(crate) fn run_timers(&mut self) -> usize {
        let now = Instant::now();
        if self.next_timer.is_none_or(|at| at > now) {
            return 0;
        }
        self.next_timer = None;
        let mut events = 0;
        // An open transport has far fewer peers than it may have.
        for rank in (0..self.config.size).take(self.peers.len()) {
            let Some(peer) = self.peer(rank) else {
                continue;
            };
            match peer.connection {
                Connection::Idle { retry_at: Some(at) } if at > now => self.schedule(at),
                Connection::Idle { retry_at: Some(_) } => {
                    events += 1;
                    self.connect(rank);
                }
                _ => {}
            }
        }
        match self.accept_at {
            Some(at) if at > now => self.schedule(at),
            Some(_) => {
                self.accept_at = None;
                events += self.accept();
            }
            None => {}
        }
        match self.open.as_ref().and_then(|open| open.liveness.next_round) {
            Some(at) if at > now => self.schedule(at),
            Some(_) => self.start_liveness_round(now),
            None => {}
        }
        events
    }

    /// Marks a peer as permanently failed, and queues the event.
    pub(crate) fn fail(&mut self, rank: Rank, error: PeerError) {
        let connection = self.peer(rank).map(|peer| &peer.connection);
        if matches!(connection, None | Some(Connection::Failed(_))) {
            return;
        }
        self.replace_connection(rank, Connection::Failed(error.clone()));
        self.failures.push_back((rank, error));
        // A pending connection of the peer waits for an answer.
        self.accept_pending(rank);
    }
}
