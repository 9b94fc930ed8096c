//! The layer: sessions with all peers of one address.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::keys::{Path, Ready};
use super::packet::{self, Form, SetUpPacket, Step};
use super::peer::{Peer, Proposed, Run};
use super::session::{Refused, Session};
use super::window::Window;
use super::{Crypto, Key, RETRY, SecureConfig, SecureCounters, Suite};
use crate::addr::NodeAddr;
use crate::time::Instant;
use crate::token_bucket::TokenBucket;

/// Maximum number of peers whose state is kept.
const MAX_PEERS: usize = 16384;
/// Maximum number of packets that wait for sessions, of all peers.
const MAX_HELD: usize = 1024;
/// Average rate per second and burst of answers to HELLO: a node may restart amid a large job.
const ANSWER_RATE: (u32, u32) = (10_000, 4096);

/// Protection of the packets of one endpoint. See the [module](super).
pub struct Layer<C: Crypto> {
    pub(super) crypto: C,
    pub(super) keys: Vec<Ready>,
    pub(super) require: bool,
    pub(super) suite: Suite,
    edp_ethertype: u16,
    pub(super) own: NodeAddr,
    rng: ChaCha8Rng,
    /// Random number of this run.
    pub(super) boot: [u8; 16],
    /// Counter of the next broadcast, and its key.
    pub(super) group: u64,
    pub(super) group_key: Option<C::Key>,
    /// The broadcasts of the last second: time and counter.
    pub(super) recent: VecDeque<(Instant, u64)>,
    pub(super) peers: HashMap<NodeAddr, Peer<C::Key>, FixedState>,
    /// Number of packets that wait, over all peers.
    held: usize,
    /// Peers for which packets wait; some may have none any more.
    waiting: BTreeSet<NodeAddr>,
    /// Time of [`handle_timeout`](Self::handle_timeout), while packets wait.
    due: Option<Instant>,
    answers: TokenBucket,
    outbox: VecDeque<(NodeAddr, Vec<u8>)>,
    /// The last opened packet.
    pub(super) opened: Vec<u8>,
    pub(super) counters: SecureCounters,
}

/// Result of [`Layer::open`].
#[derive(Debug, PartialEq, Eq)]
pub enum Opened<'a> {
    /// The packet as its sender's endpoint built it.
    Packet(&'a [u8]),
    /// A broadcast that has waited for the session that this packet completes (W-146), as its
    /// sender's endpoint built it: to be processed as a broadcast frame, which this packet is not.
    Broadcast(&'a [u8]),
    /// Nothing is to be processed: a set-up packet, or a dropped one, which has been counted.
    Nothing,
}

impl<C: Crypto> Layer<C> {
    /// Creates the layer of an endpoint with the address `own`. `seed` must be unpredictable and
    /// differ at every start.
    pub fn new(config: SecureConfig, crypto: C, own: NodeAddr, seed: [u8; 32]) -> Layer<C> {
        let mut rng = ChaCha8Rng::from_seed(seed);
        let mut boot = [0; 16];
        rng.fill_bytes(&mut boot);
        let hasher = FixedState::with_seed(rng.next_u64());
        let mut layer = Layer {
            crypto,
            keys: Vec::new(),
            require: config.require,
            suite: config.suite,
            edp_ethertype: config.edp_ethertype,
            own,
            rng,
            boot,
            group: 0,
            group_key: None,
            recent: VecDeque::new(),
            peers: HashMap::with_hasher(hasher),
            held: 0,
            waiting: BTreeSet::new(),
            due: None,
            answers: TokenBucket::new(ANSWER_RATE.0, ANSWER_RATE.1),
            outbox: VecDeque::new(),
            opened: Vec::new(),
            counters: SecureCounters::default(),
        };
        layer.replace_keys(config.keys);
        layer
    }

    /// Replaces the keys. Sessions of keys that are no longer among them end. Without effect on a
    /// layer of checksums.
    pub fn set_keys(&mut self, keys: Vec<Key>) {
        if !self.is_checksum() {
            self.replace_keys(keys);
        }
    }

    /// Returns true if the layer checks packets for damage alone (W-148).
    pub(super) fn is_checksum(&self) -> bool {
        self.suite.contains(Suite::CHECKSUM)
    }

    fn replace_keys(&mut self, keys: Vec<Key>) {
        let crypto = &self.crypto;
        self.keys = keys
            .into_iter()
            .map(|key| Ready::new(crypto, key))
            .collect();
        self.derive_group_key();
        let keys = &self.keys;
        let is_known = |session: &Session<C::Key>| keys.iter().any(|key| key.id == session.key);
        for peer in self.peers.values_mut() {
            peer.current = peer.current.take().filter(is_known);
            peer.previous = peer.previous.take().filter(is_known);
            peer.proposed.retain(|proposed| is_known(&proposed.session));
        }
    }

    /// Changes the endpoint's address. All sessions end, because their keys depend on the old one.
    pub fn set_addr(&mut self, own: NodeAddr) {
        self.own = own;
        self.peers.clear();
        self.outbox.clear();
        self.held = 0;
        self.waiting.clear();
        self.due = None;
        self.derive_group_key();
    }

    fn derive_group_key(&mut self) {
        let (first, cipher) = (self.keys.first(), self.group_cipher());
        self.group_key =
            first.and_then(|key| key.group(&self.crypto, cipher, self.own, &self.boot));
    }

    /// Returns the counters.
    pub fn counters(&self) -> &SecureCounters {
        &self.counters
    }

    /// Returns name, help text and value of every counter, in a fixed order. Those of a layer of
    /// checksums have names of their own.
    pub fn named_counters(
        &self,
    ) -> impl Iterator<Item = (&'static str, &'static str, u64)> + use<C> {
        self.counters.named(self.is_checksum())
    }

    /// Returns true if packets to `dst` have to be protected by [`seal`](Self::seal); otherwise
    /// they are sent as they are.
    pub fn protects(&mut self, now: Instant, dst: NodeAddr) -> bool {
        if self.require {
            return true;
        }
        if dst.is_group() {
            return false;
        }
        if self.peer(now, dst).is_live(now) {
            return true;
        }
        self.greet(now, dst, false);
        false
    }

    /// Protects a packet, which starts with the packet type; the bytes between the header and
    /// [`DATA_AT`](super::DATA_AT) may have any value. Returns the packet to be sent; `None` if the
    /// packet waits for a session with the peer, or cannot be sent.
    pub fn seal(&mut self, now: Instant, dst: NodeAddr, mut packet: Vec<u8>) -> Option<Vec<u8>> {
        if dst.is_group() {
            return self.seal_group(now, packet);
        }
        let crypto = &self.crypto;
        let peer = peer_of(&mut self.peers, &mut self.held, now, dst);
        let Some(session) = &mut peer.current else {
            self.hold(now, dst, packet);
            return None;
        };
        if session.seal(crypto, &mut packet).is_none() {
            self.counters.auth_unsent += 1;
            return None;
        }
        self.counters.auth_sealed += 1;
        if peer.sends(now) {
            self.greet(now, dst, true);
        }
        Some(packet)
    }

    fn hold(&mut self, now: Instant, dst: NodeAddr, packet: Vec<u8>) {
        if self.held >= MAX_HELD {
            self.counters.auth_unsent += 1;
        } else {
            let lost = self.peer(now, dst).hold(now, packet);
            self.counters.auth_unsent += lost;
            if lost == 0 {
                self.held += 1;
            }
            self.waiting.insert(dst);
            self.due.get_or_insert(now + RETRY);
        }
        self.greet(now, dst, true);
    }

    /// Returns the time of the next [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Repeats HELLO to the peers for which packets wait, and drops packets that have waited too
    /// long: they would occupy the room of others, and be outdated once the peer answers.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let mut waiting = core::mem::take(&mut self.waiting);
        waiting.retain(|&addr| {
            let Some(peer) = self.peers.get_mut(&addr) else {
                return false; // forgotten with its packets
            };
            let lost = peer.expire_held(now);
            let waits = !peer.held.is_empty();
            self.held = self.held.saturating_sub(lost);
            self.counters.auth_unsent += lost as u64;
            if waits {
                self.greet(now, addr, true);
            }
            waits
        });
        self.due = (!waiting.is_empty()).then(|| now + RETRY);
        self.waiting = waiting;
    }

    /// Sends HELLO if one is due. `held`: packets wait for the session.
    pub(super) fn greet(&mut self, now: Instant, dst: NodeAddr, held: bool) {
        let mut nonce = [0; 16];
        self.rng.fill_bytes(&mut nonce);
        let peer = peer_of(&mut self.peers, &mut self.held, now, dst);
        if self.keys.is_empty() || !peer.hello_is_due(now, held) {
            return;
        }
        let (nonce, tries) = peer.says_hello(now, nonce);
        // While keys are replaced, the peer may not know the first one yet.
        let Some(key) = self.keys.get((tries - 1) % self.keys.len()) else {
            return;
        };
        let mut nonces = [0; 32];
        crate::wire::put(&mut nonces, 0, &nonce);
        let hello = SetUpPacket {
            step: Step::Hello,
            suite: self.suite,
            key: key.id,
            boot: self.boot,
            group: self.first_recent(now),
            nonces,
        };
        let bytes = self.signed(key, dst, hello);
        self.send_setup(dst, bytes);
    }

    fn signed(&self, key: &Ready, dst: NodeAddr, fields: SetUpPacket) -> Vec<u8> {
        let path = Path { src: self.own, dst };
        let bytes = fields.emit(self.edp_ethertype, |signed| {
            key.sign(&self.crypto, path, signed)
        });
        bytes.to_vec()
    }

    fn send_setup(&mut self, dst: NodeAddr, bytes: Vec<u8>) {
        self.counters.auth_setups_sent += 1;
        self.outbox.push_back((dst, bytes));
    }

    /// Returns the next packet of the layer itself, starting with the packet type.
    pub fn poll_transmit(&mut self) -> Option<(NodeAddr, Vec<u8>)> {
        self.outbox.pop_front()
    }

    /// Returns true if [`poll_transmit`](Self::poll_transmit) has a packet.
    pub fn wants_transmit(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Verifies a received packet, which starts with the packet type, and removes its protection.
    pub fn open<'a>(
        &'a mut self,
        now: Instant,
        src: NodeAddr,
        dst: NodeAddr,
        body: &'a [u8],
    ) -> Opened<'a> {
        let form = packet::parse(body);
        // The frame's destination is part of the key, not of the packet. A packet from this
        // endpoint's own address was reflected: a session with itself would have one key for both
        // directions.
        let misdirected = match form {
            Form::Plain | Form::Malformed => false,
            _ if src == self.own => true,
            Form::Group { .. } => dst != NodeAddr::BROADCAST,
            Form::SetUp(..) | Form::Data { .. } => dst != self.own,
        };
        match form {
            _ if misdirected => self.counters.auth_drop_malformed += 1,
            Form::Plain if self.takes_plain(now, src, dst) => return Opened::Packet(body),
            Form::Plain => self.counters.auth_drop_plain += 1,
            Form::Malformed => self.counters.auth_drop_malformed += 1,
            Form::SetUp(fields, signed, tag) => {
                self.on_setup(now, src, fields, (signed, tag));
                if fields.step == Step::Accept && self.take_broadcast(src) {
                    return Opened::Broadcast(&self.opened);
                }
            }
            Form::Data { session, counter } => {
                if self.open_data(now, src, (session, counter), body) {
                    return Opened::Packet(&self.opened);
                }
            }
            Form::Group { counter, key, boot } => {
                if self.open_group(now, src, (key, boot), counter, body) {
                    return Opened::Packet(&self.opened);
                }
            }
        }
        Opened::Nothing
    }

    /// Returns true if a packet without protection is accepted (W-147).
    fn takes_plain(&self, now: Instant, src: NodeAddr, dst: NodeAddr) -> bool {
        let is_live = || self.peers.get(&src).is_some_and(|peer| peer.is_live(now));
        !self.require && (dst.is_group() || !is_live())
    }

    fn open_data(
        &mut self,
        now: Instant,
        src: NodeAddr,
        (id, counter): (u32, u64),
        body: &[u8],
    ) -> bool {
        let peer = self.peers.get_mut(&src);
        let Some(peer) = peer else {
            self.counters.auth_drop_session += 1;
            return false;
        };
        let Some((session, proposed)) = peer.session(id) else {
            self.counters.auth_drop_session += 1;
            return false;
        };
        match session.open(&self.crypto, counter, body, &mut self.opened) {
            Ok(()) => {}
            Err(Refused::Replay) => {
                self.counters.auth_drop_replay += 1;
                return false;
            }
            Err(Refused::Forged) => {
                self.counters.auth_drop_forged += 1;
                return false;
            }
        }
        self.counters.auth_opened += 1;
        peer.heard(now);
        if proposed {
            peer.confirm(id);
            self.counters.auth_sessions += 1;
            self.release(now, src);
        }
        true
    }

    /// Verifies a set-up packet and carries out its step (W-143).
    fn on_setup(
        &mut self,
        now: Instant,
        src: NodeAddr,
        fields: SetUpPacket,
        (signed, tag): (&[u8], &[u8]),
    ) {
        // A key is used for checksums, or for authentication (W-148).
        if fields.suite.contains(Suite::CHECKSUM) != self.is_checksum() {
            self.counters.auth_drop_key += 1;
            return;
        }
        let at = self.keys.iter().position(|key| key.id == fields.key);
        let Some(key) = at.and_then(|at| self.keys.get(at)) else {
            self.counters.auth_drop_key += 1;
            return;
        };
        let path = Path { src, dst: self.own };
        if !key.verify(&self.crypto, path, signed, tag) {
            self.counters.auth_drop_setup_forged += 1;
            return;
        }
        match fields.step {
            Step::Hello => self.on_hello(now, src, fields),
            Step::Accept => self.on_accept(now, src, fields),
        }
    }

    fn on_hello(&mut self, now: Instant, src: NodeAddr, hello: SetUpPacket) {
        let (first, _) = hello.nonces.split_at(16);
        let peer = peer_of(&mut self.peers, &mut self.held, now, src);
        if peer.knows(first) {
            self.counters.auth_drop_setup_stale += 1;
            return;
        }
        if !self.answers.take(now) {
            self.counters.auth_drop_setup_rate += 1;
            return;
        }
        let repeated = peer
            .proposed
            .iter()
            .find(|p| p.session.nonces.starts_with(first) && p.session.key == hello.key);
        if let Some(repeated) = repeated {
            let answer = repeated.answer.clone();
            return self.send_setup(src, answer);
        }
        let Some(key) = self.keys.iter().find(|key| key.id == hello.key) else {
            return;
        };
        let (mut nonces, mut second) = (hello.nonces, [0; 16]);
        self.rng.fill_bytes(&mut second);
        crate::wire::put(&mut nonces, 16, &second);
        let suite = self.suite.union(hello.suite);
        let accept = SetUpPacket {
            step: Step::Accept,
            suite,
            key: hello.key,
            boot: self.boot,
            group: self.first_recent(now),
            nonces,
        };
        let answer = self.signed(key, src, accept);
        let (session, run) = self.session(key, src, suite, &hello, nonces);
        let proposed = Proposed {
            session,
            answer: answer.clone(),
            run,
        };
        self.peer(now, src).propose(proposed);
        self.send_setup(src, answer);
    }

    fn on_accept(&mut self, now: Instant, src: NodeAddr, accept: SetUpPacket) {
        let expected = self.peers.get(&src).and_then(|peer| peer.hello.as_ref());
        let is_expected = expected.is_some_and(|hello| accept.nonces.starts_with(&hello.nonce));
        let key = self.keys.iter().find(|key| key.id == accept.key);
        let Some(key) = key.filter(|_| is_expected && accept.suite.contains(self.suite)) else {
            self.counters.auth_drop_setup_stale += 1;
            return;
        };
        let (session, run) = self.session(key, src, accept.suite, &accept, accept.nonces);
        let peer = self.peer(now, src);
        peer.adopt(session, run);
        peer.heard(now);
        self.counters.auth_sessions += 1;
        self.release(now, src);
    }

    /// Creates a session and the state of the peer's broadcasts.
    fn session(
        &self,
        key: &Ready,
        peer: NodeAddr,
        suite: Suite,
        theirs: &SetUpPacket,
        nonces: [u8; 32],
    ) -> (Session<C::Key>, Run) {
        let secret = key.session(&self.crypto, &nonces);
        let out = Path {
            src: self.own,
            dst: peer,
        };
        let session = Session::new(&self.crypto, secret, (key.id, nonces), suite, out);
        let run = Run {
            boot: theirs.boot,
            window: Window::starting_at(theirs.group),
        };
        (session, run)
    }

    /// Queues the packets that have waited for a session.
    fn release(&mut self, now: Instant, dst: NodeAddr) {
        let held = core::mem::take(&mut self.peer(now, dst).held);
        self.held = self.held.saturating_sub(held.len());
        for (_, packet) in held {
            if let Some(sealed) = self.seal(now, dst, packet) {
                self.outbox.push_back((dst, sealed));
            }
        }
    }

    /// Takes the broadcast that the session with its sender has shown to be recent.
    fn take_broadcast(&mut self, src: NodeAddr) -> bool {
        let Some(peer) = self.peers.get_mut(&src).filter(|peer| peer.hello.is_none()) else {
            return false;
        };
        let Some(waiting) = peer.broadcast.take() else {
            return false;
        };
        let run = peer.run.as_mut();
        let run = run.filter(|run| run.boot == waiting.boot && run.window.is_new(waiting.counter));
        let Some(run) = run else {
            return false;
        };
        run.window.record(waiting.counter);
        self.opened = waiting.packet;
        self.counters.auth_opened += 1;
        true
    }

    pub(super) fn peer(&mut self, now: Instant, addr: NodeAddr) -> &mut Peer<C::Key> {
        peer_of(&mut self.peers, &mut self.held, now, addr)
    }
}

/// Returns the state of a peer. If there is no room for another one, a peer without a session is
/// forgotten, otherwise the one that has been silent longest.
fn peer_of<'a, K>(
    peers: &'a mut HashMap<NodeAddr, Peer<K>, FixedState>,
    held: &mut usize,
    now: Instant,
    addr: NodeAddr,
) -> &'a mut Peer<K> {
    if peers.len() >= MAX_PEERS && !peers.contains_key(&addr) {
        let evicted = peers
            .iter()
            .min_by_key(|(_, peer)| (peer.current.is_some(), peer.heard))
            .map(|(addr, _)| *addr);
        if let Some(gone) = evicted.and_then(|addr| peers.remove(&addr)) {
            *held = held.saturating_sub(gone.held.len());
        }
    }
    peers.entry(addr).or_insert_with(|| Peer::new(now))
}

impl<C: Crypto> core::fmt::Debug for Layer<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Layer")
            .field("own", &self.own)
            .field("require", &self.require)
            .field("keys", &self.keys.len())
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}
