//! The transport's state, and the methods of the contract.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use btl::{Btl, Capabilities, Events, PeerError, PeerInfo, Probe, Rank, Unreachable};
use esp_client::control::InterfaceInfo;
use esp_client::{
    Client, EspListener, EspStream, Interest, KeyId, Poller, StreamBuilder, peer_timeout,
};

use crate::address::{AddressInterface, EthAddress, job_hash};
use crate::channel::SetupError;
use crate::config::{Carrier, EAGER, EthConfig, EthError, MIN_MAX_SEND};
use crate::counters::Counters;
use crate::keys;
use crate::liveness::{Liveness, silent_attempts};
use crate::own::OwnQueue;
use crate::peer::{Connection, Peer, PeerState};
use crate::pending::PendingConnection;
use crate::probe::{NodePath, Prober};
use crate::record::{self, Kind};

/// Exclusivity of this transport, see [`PeerInfo::exclusivity`].
const EXCLUSIVITY: u32 = 100;
/// Exclusivity of raw Ethernet through the daemon, which costs two more wake-ups for each message.
const EXCLUSIVITY_DAEMON: u32 = EXCLUSIVITY - 10;
/// Latency of a rail over leases, in ns (docs/performance.md).
const LEASE_LATENCY: u32 = 5_000;
/// Latency of a rail over UDP, in ns.
const UDP_LATENCY: u32 = 7_000;
/// Bandwidth of raw Ethernet, in MB/s: about that of a 10 Gbit/s link. It is not measured, because
/// a probe that is long enough would disturb a starting job.
const RAW_BANDWIDTH: u32 = 1000;
/// Bandwidth of UDP, in MB/s: the device cuts the segments, so 64 KiB take one pass through the
/// kernel.
const UDP_BANDWIDTH: u32 = 4000;
/// Number of calls of `progress` between two readings of the clock while a timer is set. Reading it
/// takes longer than the rest of an empty call.
const CALLS_PER_CLOCK: u32 = 16;
/// Length of the header of a frame that counts towards the MTU: without the EtherType (W-08).
const FRAME_HEADER: usize = 11;
/// Maximum number of streams of a program, at the daemon and at its embedded engine together.
const MAX_SLOTS: usize = 8192;
/// Maximum time that `drop_peer` waits for the acknowledgement of the last messages.
const DROP_TIMEOUT: Duration = Duration::from_millis(200);

/// Owner of a stream, by its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotOwner {
    None,
    Peer(Rank),
    /// An accepted stream that waits: see [`PendingConnection`].
    Pending,
    /// A liveness probe.
    Probe,
}

/// The Ethernet transport of one rank. See the crate.
pub struct EthBtl {
    pub(crate) config: EthConfig,
    pub(crate) job: [u8; 16],
    pub(crate) nonce: u64,
    /// Maximum length of a message, header and body.
    pub(crate) max_send: usize,
    /// Number of connections above which one is ended.
    pub(crate) max_connections: usize,
    /// Number of consecutive attempts or probes after which a peer without an answer is lost.
    pub(crate) silent_attempts: u32,
    pub(crate) interfaces: Vec<InterfaceInfo>,
    /// Public names of the keys of packets over UDP. `None`: raw Ethernet.
    keys: Option<Vec<KeyId>>,
    /// `None`: closed.
    pub(crate) open: Option<Open>,
    pub(crate) peers: Vec<PeerState>,
    /// Numbers of the peers of an open transport, by identity.
    pub(crate) numbers: HashMap<u64, Rank>,
    pub(crate) own_queue: OwnQueue,
    pub(crate) slot_owners: Vec<SlotOwner>,
    /// Peers that every `progress` polls.
    pub(crate) polled: Vec<Rank>,
    /// Peers for which a stream was requested.
    pub(crate) requested: Vec<Rank>,
    /// Earliest time of a retry, accept or liveness round.
    pub(crate) next_timer: Option<Instant>,
    /// Number of calls of `progress` so far.
    pub(crate) calls: u64,
    /// Number of calls of `progress` before the clock is read.
    calls_to_clock: u32,
    /// Time of the next accept, after one that failed.
    pub(crate) accept_at: Option<Instant>,
    /// Failures to report.
    pub(crate) failures: VecDeque<(Rank, PeerError)>,
    /// The end of the daemon was handled.
    pub(crate) daemon_gone: bool,
    /// Slots with an event; empty between calls, kept for its memory.
    ready_slots: Vec<u16>,
    pub(crate) counters: Counters,
}

/// Resources that are released by closing.
pub(crate) struct Open {
    poller: Poller,
    prober: Prober,
    pub(crate) listener: EspListener,
    pub(crate) builder: StreamBuilder,
    /// Oldest first.
    pub(crate) pending: VecDeque<PendingConnection>,
    pub(crate) liveness: Liveness,
    /// Dropped last, because the others belong to it.
    pub(crate) client: Client,
}

impl EthBtl {
    /// Connects to the node's daemon, or binds UDP sockets, and listens.
    ///
    /// # Errors
    /// See [`EthError`].
    pub fn new(config: EthConfig) -> Result<EthBtl, EthError> {
        config.check()?;
        let protection = config.protection()?;
        let max_connections = config.connections()?;
        let (client, poller, keys) = match config.carrier {
            Carrier::Raw => {
                let (client, poller) = Client::polled_by(&config.socket, config.path)?;
                (client, poller, None)
            }
            Carrier::Udp => {
                let keys = protection.key_ids();
                let wants = |name: &str| config.wants(name);
                let (client, poller) = Client::polled_udp(wants, Some(protection))?;
                (client, poller, Some(keys))
            }
        };
        let interfaces = config.choose(&client)?;
        let max_send = config.granted_send(&client, &interfaces[0])?;
        let prober = Prober::new(&client, &interfaces, keys.as_deref())?;
        let job = match config.identity {
            Some(_) => EthBtl::open_key(&config.job),
            None => job_hash(&config.job),
        };
        let rings = config.rings;
        let backlog = u16::try_from(config.size.clamp(128, 1024)).unwrap_or(1024);
        let mut listener = EspListener::builder()
            .path(config.path)
            .backlog(backlog)
            .key(job)
            .rings(rings, rings);
        if let [only] = interfaces.as_slice() {
            listener = listener.interface(&only.name);
        }
        let listener = listener.bind_at(&client, 0)?;
        listener.set_nonblocking(true)?;
        let nonce = getrandom::u64().map_err(|e| io::Error::other(e.to_string()))?;
        let builder = EspStream::builder()
            .path(config.path)
            .key(job)
            .rings(rings, rings);
        // The peers of an open transport get their places when they are added.
        let places = config.identity.map_or(config.size as usize, |_| 1);
        let mut peers = Vec::new();
        peers.resize_with(places, || PeerState::Unknown);
        let mut btl = EthBtl {
            job,
            nonce: config.identity.unwrap_or(nonce),
            max_send,
            max_connections,
            silent_attempts: silent_attempts(peer_timeout()?),
            interfaces,
            keys,
            open: Some(Open {
                poller,
                prober,
                listener,
                builder,
                pending: VecDeque::new(),
                liveness: Liveness::new(config.path),
                client,
            }),
            peers,
            numbers: HashMap::new(),
            own_queue: OwnQueue::default(),
            slot_owners: vec![SlotOwner::None; MAX_SLOTS],
            polled: Vec::new(),
            requested: Vec::new(),
            next_timer: None,
            calls: 0,
            calls_to_clock: 0,
            accept_at: None,
            failures: VecDeque::new(),
            daemon_gone: false,
            ready_slots: Vec::new(),
            counters: Counters::default(),
            config,
        };
        btl.accept();
        Ok(btl)
    }

    /// Returns whether messages go through the node's daemon, which then needs a CPU. Over leases
    /// they do not (the node's policy, [`EthConfig::path`]).
    pub fn uses_daemon(&self) -> bool {
        self.open
            .as_ref()
            .is_none_or(|open| !open.client.may_lease(self.config.path))
    }

    /// Returns the maximum length of a message (header and body) that one frame of the first
    /// interface carries, in bytes.
    pub fn frame_room(&self) -> usize {
        let mtu = self.interfaces.first().map_or(0, |first| first.mtu);
        let mtu = usize::try_from(mtu).unwrap_or(usize::MAX);
        mtu.saturating_sub(FRAME_HEADER + record::HEAD)
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of accepted streams that wait: their peer is not identified or not added,
    /// or its earlier stream has not ended.
    pub fn pending_connections(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.pending.len())
    }

    #[inline]
    pub(crate) fn peer(&mut self, rank: Rank) -> Option<&mut Peer> {
        match self.peers.get_mut(rank as usize) {
            Some(PeerState::Peer(peer)) => Some(peer),
            _ => None,
        }
    }

    /// Adds a peer to those that every `progress` polls.
    pub(crate) fn poll_directly(&mut self, rank: Rank) {
        if let Some(peer) = self.peer(rank) {
            peer.empty_polls = 0;
            if !std::mem::replace(&mut peer.polled, true) {
                self.polled.push(rank);
            }
        }
    }

    /// Sets the timer to `at`, or leaves it if it expires earlier.
    pub(crate) fn schedule(&mut self, at: Instant) {
        self.next_timer = Some(self.next_timer.map_or(at, |timer| timer.min(at)));
    }

    fn info(
        &self,
        latency_ns: u32,
        bandwidth: u32,
        exclusivity: u32,
        max_send: usize,
        reason: String,
    ) -> PeerInfo {
        PeerInfo {
            latency_ns: latency_ns.max(1),
            bandwidth,
            exclusivity,
            eager: EAGER.min(max_send),
            eager_skewed: max_send,
            max_send,
            reason,
            ..PeerInfo::default()
        }
    }

    fn own_info(&self) -> PeerInfo {
        let reason = "the process itself: a queue in memory".into();
        self.info(200, 5000, EXCLUSIVITY, self.max_send, reason)
    }

    /// Checks a peer's address and probes the path to its node.
    fn reach(&mut self, rank: Rank, address: &[u8]) -> Result<(PeerState, PeerInfo), String> {
        let address = EthAddress::decode(address)?;
        if address.job != self.job {
            return Err("its address is of another job".into());
        }
        if rank == self.config.rank {
            return Ok((PeerState::Own, self.own_info()));
        }
        if let (Some(own), Some(theirs)) = (&self.keys, &address.keys) {
            keys::compare(own, theirs)?;
        }
        let theirs = usize::try_from(address.max_send).unwrap_or(usize::MAX);
        if theirs < MIN_MAX_SEND {
            return Err(format!(
                "its address is damaged: it accepts messages of {theirs} bytes only"
            ));
        }
        let Some(open) = &self.open else {
            return Err("the transport is closed".into());
        };
        open.client
            .check_waiting()
            .map_err(|error| error.to_string())?;
        // A peer that has connected needs no probe.
        let path = match self.pending_path(rank, &address) {
            Some(path) => path,
            None => self.probed_path(&address)?,
        };
        let max_send = self.max_send.min(theirs);
        let info = self.info_of(&path, max_send);
        let peer = Peer::new(address.port, address.nonce, path, info.clone());
        Ok((PeerState::Peer(Box::new(peer)), info))
    }

    fn probed_path(&mut self, address: &EthAddress) -> Result<NodePath, String> {
        let open = self.open.as_mut().ok_or("the transport is closed")?;
        open.prober.path_to(address, open.client.incarnation())
    }

    /// Returns the figures of a peer.
    pub(crate) fn info_of(&self, path: &NodePath, max_send: usize) -> PeerInfo {
        let measured = u32::try_from((path.round_trip / 2).as_nanos()).unwrap_or(u32::MAX);
        // A rail through the daemon is used only without a better one. The others have the latency
        // of a program that polls, since the echo of a lease is answered by the daemon.
        let (latency, bandwidth, exclusivity) = match self.config.carrier {
            Carrier::Raw if self.uses_daemon() => (measured, RAW_BANDWIDTH, EXCLUSIVITY_DAEMON),
            Carrier::Raw => (LEASE_LATENCY, RAW_BANDWIDTH, EXCLUSIVITY),
            Carrier::Udp => (UDP_LATENCY, UDP_BANDWIDTH, EXCLUSIVITY),
        };
        let reason = path.reason.clone();
        self.info(latency, bandwidth, exclusivity, max_send, reason)
    }

    /// Handles events and answers of the engine and the daemon. Returns their number.
    fn poll_engine(&mut self) -> usize {
        let mut slots = std::mem::take(&mut self.ready_slots);
        let Some(open) = &mut self.open else { return 0 };
        let has_answers = open.poller.poll(|slot| slots.push(slot));
        let (mut events, mut has_probe_event) = (slots.len(), false);
        for slot in slots.drain(..) {
            match self.slot_owners.get(usize::from(slot)) {
                Some(&SlotOwner::Peer(rank)) => self.poll_directly(rank),
                Some(SlotOwner::Pending) => self.poll_pending(slot),
                Some(SlotOwner::Probe) => has_probe_event = true,
                Some(SlotOwner::None) | None => {}
            }
        }
        self.ready_slots = slots;
        if has_probe_event {
            self.poll_liveness();
        }
        if has_answers {
            events += self.handle_answers();
        }
        events
    }

    /// Fails all peers if the daemon is gone and was not replaced. Established streams are read to
    /// their end first.
    pub(crate) fn check_daemon(&mut self) {
        let Some(open) = &self.open else { return };
        let Err(error) = open.client.check_waiting() else {
            return;
        };
        if std::mem::replace(&mut self.daemon_gone, true) {
            return;
        }
        let lost = SetupError::new(&error.into()).error;
        for rank in (0..self.config.size).take(self.peers.len()) {
            let Some(peer) = self.peer(rank) else {
                continue;
            };
            match peer.connection {
                Connection::Established(_) | Connection::Releasing(_) => self.poll_directly(rank),
                Connection::Failed(_) => {}
                _ => self.fail(rank, lost.clone()),
            }
        }
    }
}

impl Btl for EthBtl {
    fn name(&self) -> &'static str {
        match self.config.carrier {
            Carrier::Raw => "eth",
            Carrier::Udp => "udp",
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            blocking: true,
            detects_death: true,
            tick: self
                .next_timer
                .map(|at| at.saturating_duration_since(Instant::now())),
            ..Capabilities::default()
        }
    }

    fn address(&self) -> Vec<u8> {
        let Some(open) = &self.open else {
            return Vec::new();
        };
        let interface = |info: &InterfaceInfo| AddressInterface {
            addr: info.addr,
            mtu: info.mtu,
            name: info.name.clone(),
        };
        let address = EthAddress {
            port: open.listener.port(),
            job: self.job,
            incarnation: open.client.incarnation(),
            nonce: self.nonce,
            max_send: u32::try_from(self.max_send).unwrap_or(u32::MAX),
            keys: self.keys.clone(),
            interfaces: self.interfaces.iter().map(interface).collect(),
        };
        address.encode()
    }

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        let unreachable = |why: &str| Unreachable {
            reason: format!("rank {peer} over Ethernet: {why}"),
        };
        if self.open.is_none() {
            return Err(unreachable("the transport is closed"));
        }
        self.make_place(peer);
        match self.peers.get(peer as usize) {
            None => return Err(unreachable("no such rank in this job")),
            Some(PeerState::Unknown) => {}
            Some(PeerState::Own) => return Ok(self.own_info()),
            Some(PeerState::Peer(known)) => return Ok(known.info.clone()),
        }
        let (state, info) = self.reach(peer, address).map_err(|why| unreachable(&why))?;
        self.enter(peer, state);
        self.accept_pending(peer);
        self.start_liveness();
        Ok(info)
    }

    fn probe(&mut self, peer: Rank, address: &[u8]) -> Probe {
        let is_known = !matches!(
            self.peers.get(peer as usize),
            None | Some(PeerState::Unknown)
        );
        let address = EthAddress::decode(address).ok();
        let address = address.filter(|address| address.job == self.job);
        let pending = |address| self.pending_path(peer, address).is_some();
        if address.as_ref().is_some_and(pending) {
            return Probe::Reached;
        }
        match (&mut self.open, address) {
            (Some(open), Some(address)) if !is_known && peer != self.config.rank => {
                open.prober.poll(&address, open.client.incarnation())
            }
            _ => Probe::Settled,
        }
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        if self.open.is_none() {
            return 0;
        }
        self.calls = self.calls.wrapping_add(1);
        let mut count = self.poll_engine();
        if self.next_timer.is_some() {
            self.calls_to_clock = self.calls_to_clock.wrapping_sub(1);
            if self.calls_to_clock >= CALLS_PER_CLOCK {
                self.calls_to_clock = CALLS_PER_CLOCK;
                count += self.run_timers();
            }
        }
        if !self.own_queue.is_empty() {
            count += self.deliver_own(events);
        }
        count += self.poll_peers(events);
        while let Some((peer, error)) = self.failures.pop_front() {
            events.failed(self, peer, error);
            count += 1;
        }
        count
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.open.as_ref().map(|open| open.poller.fd())
    }

    fn arm(&mut self) -> bool {
        self.calls_to_clock = 0;
        if !self.failures.is_empty() || !self.own_queue.is_empty() {
            return false;
        }
        while let Some(&rank) = self.polled.last() {
            let Some(peer) = self.peer(rank) else { break };
            if let Some(channel) = peer.channel() {
                channel.stream.arm(Interest::Readable);
                if channel.stream.is_readable_beyond(channel.incomplete) {
                    return false;
                }
            }
            peer.polled = false;
            self.polled.pop();
        }
        self.open
            .as_mut()
            .is_some_and(|open| open.poller.try_sleep())
    }

    /// A peer never accesses memory of this process through this transport. Waits at most
    /// `DROP_TIMEOUT` until the last messages to it are acknowledged.
    fn drop_peer(&mut self, rank: Rank) -> bool {
        if let Some(peer) = self.peer(rank) {
            let since = *peer.dropped_at.get_or_insert_with(Instant::now);
            if let Connection::Established(channel)
            | Connection::Releasing(channel)
            | Connection::Ending(channel) = &mut peer.connection
                && channel.stream.unacknowledged() > 0
                && since.elapsed() < DROP_TIMEOUT
            {
                return false;
            }
        }
        let error = PeerError::Lost("this process has dropped it".into());
        self.fail(rank, error);
        true
    }

    fn flush(&mut self) -> bool {
        let mut is_flushed = self.own_queue.is_empty();
        for state in &mut self.peers {
            if let PeerState::Peer(peer) = state
                && let Connection::Established(channel)
                | Connection::Releasing(channel)
                | Connection::Ending(channel) = &mut peer.connection
                && channel.stream.unacknowledged() > 0
            {
                channel.stream.arm(Interest::Writable);
                is_flushed &= channel.stream.unacknowledged() == 0;
            }
        }
        is_flushed
    }

    fn close(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        for state in &mut self.peers {
            if let PeerState::Peer(peer) = state
                && !matches!(
                    peer.connection,
                    Connection::Releasing(_) | Connection::Ending(_)
                )
                && let Some(channel) = peer.channel()
            {
                channel.control(Kind::Goodbye, &[]);
            }
        }
        for mut pending in open.pending.drain(..) {
            pending.channel.control(Kind::Goodbye, &[]);
        }
        self.peers.clear();
        self.own_queue = OwnQueue::default();
        self.failures.clear();
        self.polled.clear();
        self.next_timer = None;
    }
}

impl Drop for EthBtl {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for EthBtl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EthBtl")
            .field("rank", &self.config.rank)
            .field("size", &self.config.size)
            .field("closed", &self.open.is_none())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
