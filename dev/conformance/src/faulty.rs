//! Fault injection: wraps a transport and produces, from one seed, all behaviour that the contract
//! allows but that a good transport rarely shows. [`Faults::corrupt`], [`Faults::truncate`] and
//! [`Faults::cut`] also imitate hostile or broken peers.
//!
//! The wrapper keeps order, exactly-once delivery, one completion per operation, one failure per
//! peer after its completions, and never lets a message to a posted receive overtake another.
//! Without the hostile faults it therefore passes the conformance suite whenever the wrapped
//! transport does. It breaks one promise: with [`Faults::late_send`], an accepted message waits for
//! the next `progress`.
//!
//! Equal seeds and calls produce equal faults. Print the seed when a test fails.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;

use crate::forward;
use crate::rng::Rng;
use btl::{
    Btl, Envelope, Events, HeldSends, MAX_HEADER, NoticedPuts, PeerError, PeerInfo, PendingPeers,
    PostId, PostedDelivery, PostedReceive, PostedReceives, Rank, SendError, Started, Tx,
    Unreachable, Withdrawn, contiguous, gathered_len,
};

/// Maximum number of messages held back in each direction for each peer.
const HELD: usize = 16;
/// Maximum number of calls of [`Btl::drop_peer`] that wait for messages held back.
const PATIENCE: u32 = 100;

/// Frequencies of the faults, in parts of a thousand unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// [`Tx::send`] returns `Busy` although there is room.
    pub busy: u16,
    /// A message is held back at its sender for some calls of `progress`.
    pub late_send: u16,
    /// An event is held back at its receiver for some calls of `progress`. With
    /// [`Capabilities::posted_receives`](btl::Capabilities::posted_receives) messages are exempt,
    /// because the sender would count them as seen.
    pub late_event: u16,
    /// [`Started::Done`] becomes [`Started::Pending`], with a late completion.
    pub pending: u16,
    /// A send to a posted receive returns `NotPosted` although one matches.
    pub not_posted: u16,
    /// [`PostedReceives::post`] returns no room. Not in [`allowed`](Faults::allowed), because the
    /// conformance suite has to post.
    pub no_room: u16,
    /// `progress` reports at most one event. Messages are exempt with
    /// [`Capabilities::posted_receives`](btl::Capabilities::posted_receives).
    pub one_event: bool,
    /// Flips a bit of an arriving header (hostile).
    pub corrupt: u16,
    /// Truncates an arriving header (hostile).
    pub truncate: u16,
    /// Loses this peer after this many messages from or to it, as seen by this side (hostile).
    pub cut: Option<(Rank, u64)>,
}

impl Faults {
    /// Returns all faults that a conforming transport may show, frequently.
    #[must_use]
    pub fn allowed() -> Faults {
        Faults {
            busy: 200,
            late_send: 200,
            late_event: 300,
            pending: 500,
            not_posted: 200,
            one_event: true,
            ..Faults::default()
        }
    }
}

/// A transport with injected faults.
#[derive(Debug)]
pub struct Faulty {
    inner: Box<dyn Btl>,
    state: State,
}

#[derive(Debug)]
struct State {
    faults: Faults,
    rng: Rng,
    matched: bool,
    closed: bool,
    peers: BTreeMap<Rank, Peer>,
    /// Operations pending at the wrapped transport, by token.
    tokens: BTreeMap<u64, Rank>,
    /// Tokens of the posted receives whose event was not reported.
    posts: BTreeMap<u64, u64>,
    /// Number of faults made.
    made: u64,
}

#[derive(Debug, Default)]
struct Peer {
    /// Messages accepted here and not yet sent by the wrapped transport.
    out: VecDeque<(Vec<u8>, Vec<u8>)>,
    out_wait: u32,
    /// Events of the wrapped transport, not yet reported.
    held: VecDeque<Held>,
    held_wait: u32,
    messages: u64,
    /// [`PeerInfo::max_send`], known once the peer was added.
    max_send: Option<usize>,
    /// Failure of the peer, held back or reported.
    gone: Option<PeerError>,
    /// Number of calls of [`Btl::drop_peer`].
    dropping: u32,
    /// The peer is lost by [`Faults::cut`].
    cut: bool,
}

#[derive(Debug)]
enum Held {
    Message(Vec<u8>, Vec<u8>),
    Completed(u64, Result<(), PeerError>),
    Received(u64, Envelope, Result<usize, PeerError>),
    Failed(PeerError),
}

impl Faulty {
    /// Wraps a transport.
    #[must_use]
    pub fn new(inner: Box<dyn Btl>, seed: u64, faults: Faults) -> Faulty {
        let matched = inner.capabilities().posted_receives;
        let state = State {
            faults,
            rng: Rng::new(seed),
            matched,
            closed: false,
            peers: BTreeMap::new(),
            tokens: BTreeMap::new(),
            posts: BTreeMap::new(),
            made: 0,
        };
        Faulty { inner, state }
    }

    /// Returns the number of injected faults. A test with none proves nothing.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.state.made
    }

    fn tx(&mut self) -> FaultyTx<'_> {
        FaultyTx {
            tx: &mut *self.inner,
            state: &mut self.state,
        }
    }

    /// Sends messages that were held back.
    fn push_out(&mut self) -> usize {
        let mut done = 0;
        for (rank, peer) in &mut self.state.peers {
            if peer.out_wait > 0 {
                peer.out_wait -= 1;
                done += 1;
                continue;
            }
            while let Some((header, body)) = peer.out.front() {
                match self.inner.send(*rank, header, &[IoSlice::new(body)]) {
                    Err(SendError::Busy) => break,
                    // Sent, or the peer failed, which is reported.
                    _ => drop(peer.out.pop_front()),
                }
                done += 1;
            }
        }
        done
    }

    /// Reports held events whose delay has passed.
    fn release(&mut self, events: &mut dyn Events, mut room: usize) -> usize {
        let ranks: Vec<Rank> = self.state.peers.keys().copied().collect();
        let first = self.state.rng.below(ranks.len());
        let mut done = 0;
        for index in 0..ranks.len() {
            let rank = ranks[(first + index) % ranks.len()];
            let Some(peer) = self.state.peers.get_mut(&rank) else {
                continue;
            };
            if peer.held_wait > 0 {
                peer.held_wait -= 1;
                done += usize::from(!peer.held.is_empty());
                continue;
            }
            // Events that callbacks add are left for the next call.
            let count = peer.held.len();
            for _ in 0..count.min(room) {
                if self.state.closed {
                    return done;
                }
                let Some(held) = self
                    .state
                    .peers
                    .get_mut(&rank)
                    .and_then(|peer| peer.held.pop_front())
                else {
                    break;
                };
                self.tx().report(events, rank, held);
                room -= 1;
                done += 1;
            }
        }
        done
    }

    fn is_holding(&self) -> bool {
        self.state
            .peers
            .values()
            .any(|peer| !peer.held.is_empty() || !peer.out.is_empty())
    }
}

impl State {
    fn chance(&mut self, permille: u16) -> bool {
        let yes = self.rng.chance(permille);
        self.made += u64::from(yes);
        yes
    }

    /// Holds an event back.
    fn hold(&mut self, rank: Rank, event: Held) {
        let late = self.chance(self.faults.late_event);
        let wait = if late {
            1 + self.rng.below(6) as u32
        } else {
            0
        };
        let peer = self.peers.entry(rank).or_default();
        peer.held_wait = peer.held_wait.max(wait);
        peer.held.push_back(event);
    }

    /// Counts a message from or to a peer; at the limit of [`Faults::cut`] the peer is lost.
    fn count(&mut self, rank: Rank) {
        let Some((victim, after)) = self.faults.cut else {
            return;
        };
        let peer = self.peers.entry(rank).or_default();
        peer.messages += 1;
        if victim == rank && peer.messages > after && !peer.cut {
            peer.cut = true;
            peer.out.clear();
            peer.held.retain(|held| !matches!(held, Held::Message(..)));
            self.made += 1;
        }
    }

    /// Fails cut peers that have no pending operations, which might still write memory.
    fn end_cut(&mut self) -> usize {
        let mut done = 0;
        for (rank, peer) in &mut self.peers {
            if peer.cut && peer.gone.is_none() && !self.tokens.values().any(|of| of == rank) {
                peer.gone = Some(lost());
                peer.held.push_back(Held::Failed(lost()));
                done += 1;
            }
        }
        done
    }

    /// Returns whether the event of a filled receive is held back.
    fn holds_post(&self, post: PostId) -> bool {
        let Some(wanted) = self.posts.get(&post.0) else {
            return false;
        };
        let is = |held: &Held| matches!(held, Held::Received(token, ..) if token == wanted);
        self.peers.values().any(|peer| peer.held.iter().any(is))
    }

    /// Returns a header as a hostile peer might have sent it.
    fn spoil(&mut self, header: &[u8]) -> Vec<u8> {
        let mut header = header.to_vec();
        if !header.is_empty() && self.chance(self.faults.corrupt) {
            let at = self.rng.below(header.len());
            header[at] ^= 1 << self.rng.below(8);
        }
        if !header.is_empty() && self.chance(self.faults.truncate) {
            header.truncate(self.rng.below(header.len()));
        }
        header
    }
}

/// Sending half: the wrapped one with faults.
struct FaultyTx<'a> {
    tx: &'a mut dyn Tx,
    state: &'a mut State,
}

impl FaultyTx<'_> {
    fn report(&mut self, events: &mut dyn Events, peer: Rank, event: Held) {
        match event {
            Held::Message(header, body) => events.message(self, peer, &header, &body),
            Held::Completed(token, result) => events.completed(self, token, result),
            Held::Received(token, envelope, result) => {
                self.state.posts.retain(|_, posted| *posted != token);
                events.received(self, token, peer, envelope, result);
            }
            Held::Failed(error) => events.failed(self, peer, error),
        }
    }

    /// Fails if the transport is closed or the peer has failed.
    fn refuse(&mut self, peer: Rank) -> Result<(), SendError> {
        if self.state.closed {
            return Err(SendError::Closed);
        }
        let Some(known) = self.state.peers.get(&peer) else {
            return Ok(());
        };
        let error = known.gone.clone().or_else(|| known.cut.then(lost));
        error.map_or(Ok(()), |error| Err(SendError::Failed { peer, error }))
    }

    /// Returns the result of the wrapped transport's length checks; `None` if the peer is unknown.
    fn judge(
        &self,
        peer: Rank,
        header: &[u8],
        body: &[IoSlice<'_>],
    ) -> Option<Result<(), SendError>> {
        let limit = self.state.peers.get(&peer)?.max_send?;
        if header.len() > MAX_HEADER {
            return Some(Err(SendError::TooLong {
                length: header.len(),
                limit: MAX_HEADER,
            }));
        }
        let length = header.len() + gathered_len(body);
        Some(if length > limit {
            Err(SendError::TooLong { length, limit })
        } else {
            Ok(())
        })
    }

    fn started(
        &mut self,
        peer: Rank,
        token: u64,
        result: Result<Started, SendError>,
    ) -> Result<Started, SendError> {
        match result {
            Ok(Started::Pending) => drop(self.state.tokens.insert(token, peer)),
            Ok(Started::Done) if self.state.chance(self.state.faults.pending) => {
                self.state.hold(peer, Held::Completed(token, Ok(())));
                return Ok(Started::Pending);
            }
            _ => {}
        }
        result
    }
}

impl Tx for FaultyTx<'_> {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        self.refuse(peer)?;
        match self.judge(peer, header, body) {
            None => return self.tx.send(peer, header, body),
            Some(result) => result?,
        }
        let waiting = self
            .state
            .peers
            .get(&peer)
            .map_or(0, |known| known.out.len());
        if waiting >= HELD || self.state.chance(self.state.faults.busy) {
            return Err(SendError::Busy);
        }
        if waiting == 0 && !self.state.chance(self.state.faults.late_send) {
            self.tx.send(peer, header, body)?;
        } else {
            let wait = self.state.rng.below(6) as u32;
            let known = self.state.peers.entry(peer).or_default();
            known
                .out
                .push_back((header.to_vec(), contiguous(body).into_owned()));
            known.out_wait = known.out_wait.max(wait);
        }
        self.state.count(peer);
        Ok(())
    }

    unsafe fn get(
        &mut self,
        peer: Rank,
        local: *mut u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        self.refuse(peer)?;
        // SAFETY: the caller's promise, handed on.
        let result = unsafe { self.tx.get(peer, local, length, key, offset, token) };
        self.started(peer, token, result)
    }

    unsafe fn put(
        &mut self,
        peer: Rank,
        local: *const u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        self.refuse(peer)?;
        // SAFETY: the caller's promise, handed on.
        let result = unsafe { self.tx.put(peer, local, length, key, offset, token) };
        self.started(peer, token, result)
    }
}

impl PostedReceives for FaultyTx<'_> {
    unsafe fn send_to_posted(
        &mut self,
        peer: Rank,
        envelope: Envelope,
        local: *const u8,
        length: usize,
    ) -> Result<PostedDelivery, SendError> {
        self.refuse(peer)?;
        let held = self
            .state
            .peers
            .get(&peer)
            .is_some_and(|known| !known.out.is_empty());
        if held || self.state.chance(self.state.faults.not_posted) {
            return Ok(PostedDelivery::NotPosted);
        }
        // SAFETY: the caller's promise, handed on.
        unsafe { self.tx.send_to_posted(peer, envelope, local, length) }
    }

    fn withdraw(&mut self, post: PostId) -> Withdrawn {
        if self.state.holds_post(post) {
            return Withdrawn::Taken;
        }
        let result = self.tx.withdraw(post);
        if result == Withdrawn::Yes {
            self.state.posts.remove(&post.0);
        }
        result
    }
}

impl HeldSends for FaultyTx<'_> {
    /// Copies the body, and possibly completes late.
    unsafe fn send_held(
        &mut self,
        peer: Rank,
        header: &[u8],
        body: *const u8,
        length: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        let body = if length == 0 {
            &[]
        } else {
            // SAFETY: readable for `length` bytes, as the caller promises.
            unsafe { std::slice::from_raw_parts(body, length) }
        };
        self.send(peer, header, &[IoSlice::new(body)])?;
        self.started(peer, token, Ok(Started::Done))
    }
}

impl NoticedPuts for FaultyTx<'_> {}

/// Handler of the wrapped transport's events.
struct Collector<'a> {
    state: &'a mut State,
    events: &'a mut dyn Events,
}

impl Events for Collector<'_> {
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        self.state.count(peer);
        if self.state.peers.get(&peer).is_some_and(|known| known.cut) {
            return;
        }
        let event = Held::Message(self.state.spoil(header), body.to_vec());
        if self.state.matched {
            // After the return the sender counts the message as seen.
            FaultyTx {
                tx,
                state: self.state,
            }
            .report(self.events, peer, event);
        } else {
            self.state.hold(peer, event);
        }
    }

    fn completed(&mut self, _: &mut dyn Tx, token: u64, result: Result<(), PeerError>) {
        if let Some(peer) = self.state.tokens.remove(&token) {
            self.state.hold(peer, Held::Completed(token, result));
        }
    }

    fn received(
        &mut self,
        _: &mut dyn Tx,
        token: u64,
        peer: Rank,
        envelope: Envelope,
        result: Result<usize, PeerError>,
    ) {
        // Reported for a cut peer, too: the bytes are already in the buffer. If the failure of the
        // peer was reported before, the poster regains the buffer by withdrawing, and only the
        // event is lost.
        if self
            .state
            .peers
            .get(&peer)
            .is_none_or(|known| known.gone.is_none())
        {
            self.state
                .hold(peer, Held::Received(token, envelope, result));
        }
    }

    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        let known = self.state.peers.entry(peer).or_default();
        if !known.cut {
            known.gone = Some(error.clone());
            known.out.clear();
            self.state.hold(peer, Held::Failed(error));
        }
    }
}

impl Tx for Faulty {
    forward!(tx() => send get put);
}

impl PostedReceives for Faulty {
    forward!(tx() => withdraw send_to_posted);

    unsafe fn post(&mut self, receive: &PostedReceive) -> Option<PostId> {
        if self.state.closed || self.state.chance(self.state.faults.no_room) {
            return None;
        }
        // SAFETY: the caller's promise, handed on.
        let post = unsafe { self.inner.post(receive) }?;
        self.state.posts.insert(post.0, receive.token);
        Some(post)
    }
}

impl HeldSends for Faulty {
    forward!(tx() => send_held);
}

impl NoticedPuts for Faulty {}

impl PendingPeers for Faulty {
    forward!(inner => pending_peer refuse);
}

impl Btl for Faulty {
    forward!(inner => name capabilities address register deregister wait_fd);

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        let path = self.inner.add_peer(peer, address)?;
        self.state.peers.entry(peer).or_default().max_send = Some(path.max_send);
        Ok(path)
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        if self.state.closed {
            return 0;
        }
        let mut done = self.push_out();
        let held: usize = self.state.peers.values().map(|peer| peer.held.len()).sum();
        // At the limit, events stay in the wrapped transport, which delays the senders.
        if held < 4 * HELD {
            done += self.inner.progress(&mut Collector {
                state: &mut self.state,
                events,
            });
        }
        done += self.state.end_cut();
        done + self.release(
            events,
            if self.state.faults.one_event {
                1
            } else {
                usize::MAX
            },
        )
    }

    fn arm(&mut self) -> bool {
        let cut = self
            .state
            .peers
            .values()
            .any(|peer| peer.cut && peer.gone.is_none());
        !self.is_holding() && !cut && self.inner.arm()
    }

    /// Sends messages held back for the peer first, if there is room soon enough.
    fn drop_peer(&mut self, peer: Rank) -> bool {
        if let Some(known) = self.state.peers.get_mut(&peer) {
            known.dropping += 1;
            if !known.out.is_empty() && known.dropping < PATIENCE {
                return false;
            }
            known.out.clear();
        }
        self.inner.drop_peer(peer)
    }

    fn flush(&mut self) -> bool {
        self.state.closed
            || (self.state.peers.values().all(|peer| peer.out.is_empty()) && self.inner.flush())
    }

    fn close(&mut self) {
        self.state.closed = true;
        self.state.peers.clear();
        self.state.tokens.clear();
        self.state.posts.clear();
        self.inner.close();
    }
}

fn lost() -> PeerError {
    PeerError::Lost("cut by the fault injection".into())
}
