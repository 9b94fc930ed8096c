//! The transport's state, and the contract's methods.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use btl::{Btl, Capabilities, Events, PeerError, PeerInfo, Rank, Unreachable};
use esp_client::control::InterfaceInfo;
use esp_client::{Client, EspListener, EspStream, Interest, Poller, StreamBuilder};

use crate::card::{Card, CardInterface, job_hash};
use crate::channel::ended_early;
use crate::config::{EthConfig, EthError, LEAST_MESSAGE};
use crate::counters::Counters;
use crate::frame::Kind;
use crate::lobby::Lobby;
use crate::make::{choose, longest, typed};
use crate::peer::{Link, Member, Peer};
use crate::probe::Prober;
use crate::watch::Watch;

/// Among transports, see [`PeerInfo::exclusivity`].
const EXCLUSIVITY: u32 = 100;
/// Every so many calls of `progress` read the clock, when something is due at all, and each after sleeping.
const CLOCK: u32 = 16;
/// Slots of a program at its daemon, and as many at its own engine.
const SLOTS: usize = 8192;
/// How long the last messages to a peer that is closed out are waited for.
const GOODBYE: Duration = Duration::from_millis(200);

/// Who a slot of the daemon belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Nobody,
    Peer(Rank),
    Guest,
    /// A question of `watch.rs`.
    Asked,
}

/// The Ethernet transport of one rank. See the crate.
pub struct EthBtl {
    pub(crate) config: EthConfig,
    pub(crate) job: [u8; 16],
    pub(crate) nonce: u64,
    /// Longest message taken, header and body.
    pub(crate) max_send: usize,
    interfaces: Vec<InterfaceInfo>,
    /// `None`: closed.
    pub(crate) open: Option<Open>,
    pub(crate) members: Vec<Member>,
    pub(crate) own_queue: VecDeque<(usize, Vec<u8>)>,
    pub(crate) own_bytes: usize,
    pub(crate) owners: Vec<Owner>,
    /// Peers that are looked at in every `progress`.
    pub(crate) watched: Vec<Rank>,
    /// Peers whose attempt waits for the daemon's answer.
    pub(crate) begun: Vec<Rank>,
    /// Peers whose next attempt waits for its time.
    pub(crate) pausing: Vec<Rank>,
    /// When the first of those is due, or the next accept, or the next round of `watch.rs`.
    pub(crate) due: Option<Instant>,
    /// Calls of `progress` before the clock is read again.
    clock_in: u32,
    /// After an accept that failed: ask again then.
    pub(crate) accept_again: Option<Instant>,
    /// Not reported yet.
    pub(crate) failures: VecDeque<(Rank, PeerError)>,
    /// The daemon's end was dealt with.
    pub(crate) daemon_gone: bool,
    /// Slots with news, while they are looked at; kept for its memory.
    news: Vec<u16>,
    pub(crate) counters: Counters,
}

/// What is given back by closing.
pub(crate) struct Open {
    poller: Poller,
    prober: Prober,
    pub(crate) listener: EspListener,
    pub(crate) builder: StreamBuilder,
    pub(crate) lobby: Lobby,
    pub(crate) watch: Watch,
    /// Last: the others belong to it.
    pub(crate) client: Client,
}

impl EthBtl {
    /// Connects to the node's daemon and listens.
    ///
    /// # Errors
    /// See [`EthError`].
    pub fn new(config: EthConfig) -> Result<EthBtl, EthError> {
        config.check()?;
        let (client, poller) = Client::polled_by(&config.socket, config.path)?;
        let interfaces = choose(&config, client.interfaces())?;
        let max_send = longest(&config, &client, &interfaces[0])?;
        let prober = Prober::new(&client, &interfaces)?;
        let job = job_hash(&config.job);
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
        let listener = listener
            .bind_at(&client, 0)
            .map_err(|error| typed(&error))?;
        listener
            .set_nonblocking(true)
            .map_err(|error| typed(&error))?;
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(EthError::Random)?;
        let builder = EspStream::builder()
            .path(config.path)
            .key(job)
            .rings(rings, rings);
        let room = (config.size as usize).saturating_mul(2).saturating_add(16);
        let mut members = Vec::new();
        members.resize_with(config.size as usize, || Member::Unknown);
        let mut btl = EthBtl {
            job,
            nonce: u64::from_le_bytes(nonce),
            max_send,
            interfaces,
            open: Some(Open {
                poller,
                prober,
                listener,
                builder,
                lobby: Lobby::new(room),
                watch: Watch::new(config.path),
                client,
            }),
            members,
            own_queue: VecDeque::new(),
            own_bytes: 0,
            owners: vec![Owner::Nobody; SLOTS],
            watched: Vec::new(),
            begun: Vec::new(),
            pausing: Vec::new(),
            due: None,
            clock_in: 0,
            accept_again: None,
            failures: VecDeque::new(),
            daemon_gone: false,
            news: Vec::new(),
            counters: Counters::default(),
            config,
        };
        btl.accept();
        Ok(btl)
    }

    /// Whether peers are reached through this node's daemon, which then wants a CPU, too. False: over a lease (the node's policy,
    /// [`EthConfig::path`]).
    pub fn by_daemon(&self) -> bool {
        self.open
            .as_ref()
            .is_none_or(|open| !open.client.may_lease(self.config.path))
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Streams that were accepted and have not introduced themselves, or whose rank is not added.
    pub fn waiting_guests(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.lobby.len())
    }

    #[inline]
    pub(crate) fn peer(&mut self, rank: Rank) -> Option<&mut Peer> {
        match self.members.get_mut(rank as usize) {
            Some(Member::Peer(peer)) => Some(peer),
            _ => None,
        }
    }

    /// Puts a peer among those that are looked at.
    pub(crate) fn watch(&mut self, rank: Rank) {
        if let Some(peer) = self.peer(rank) {
            peer.quiet = 0;
            if !std::mem::replace(&mut peer.watched, true) {
                self.watched.push(rank);
            }
        }
    }

    /// Whether an instant has come at which something is to be done.
    pub(crate) fn remind(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn own_path(&self) -> PeerInfo {
        PeerInfo {
            latency_ns: 200,
            bandwidth: 5000,
            exclusivity: EXCLUSIVITY,
            eager: self.config.eager.min(self.max_send),
            eager_skewed: self.max_send,
            max_send: self.max_send,
            one_sided: false,
            one_sided_from: usize::MAX,
            reason: "this process itself: a queue in memory".into(),
        }
    }

    fn probe(&mut self, rank: Rank, address: &[u8]) -> Result<Member, String> {
        let card = Card::decode(address).map_err(|error| error.to_string())?;
        if card.job != self.job {
            return Err("its card is of another job".into());
        }
        if rank == self.config.rank {
            return Ok(Member::Own(self.own_path()));
        }
        let theirs = usize::try_from(card.max_send).unwrap_or(usize::MAX);
        if theirs < LEAST_MESSAGE {
            return Err(format!(
                "its card is damaged: it takes messages of {theirs} bytes"
            ));
        }
        let Some(open) = &mut self.open else {
            return Err("the transport is closed".into());
        };
        open.client.check().map_err(|error| error.to_string())?;
        let route = open.prober.route(&card, open.client.incarnation())?;
        let max_send = self.max_send.min(theirs);
        let one_way = (route.round_trip / 2).as_nanos();
        let path = PeerInfo {
            latency_ns: u32::try_from(one_way).unwrap_or(u32::MAX).max(1),
            bandwidth: self.config.bandwidth.max(1),
            exclusivity: EXCLUSIVITY,
            eager: self.config.eager.min(max_send),
            eager_skewed: max_send,
            max_send,
            one_sided: false,
            one_sided_from: usize::MAX,
            reason: format!("{}; bandwidth by configuration", route.reason),
        };
        Ok(Member::Peer(Box::new(Peer::new(
            card.port, card.nonce, route, path,
        ))))
    }

    /// Delivers the messages to the own rank that are there now.
    fn deliver_own(&mut self, events: &mut dyn Events) -> usize {
        let count = self.own_queue.len();
        let own = self.config.rank;
        for _ in 0..count {
            let Some((header, bytes)) = self.own_queue.pop_front() else {
                break;
            };
            self.own_bytes -= bytes.len();
            let (header, body) = bytes.split_at(header);
            events.message(self, own, header, body);
        }
        count
    }

    /// Takes the events and answers of the daemon.
    fn hear(&mut self) -> usize {
        let mut news = std::mem::take(&mut self.news);
        let Some(open) = &mut self.open else { return 0 };
        let answers = open.poller.poll(|slot| news.push(slot));
        let (mut done, mut asked) = (news.len(), false);
        for slot in news.drain(..) {
            match self.owners.get(usize::from(slot)) {
                Some(&Owner::Peer(rank)) => self.watch(rank),
                Some(Owner::Guest) => self.greet_guest(slot),
                Some(Owner::Asked) => asked = true,
                _ => {}
            }
        }
        self.news = news;
        if asked {
            self.hear_around();
        }
        if answers {
            done += self.answers();
        }
        done
    }
}

impl Btl for EthBtl {
    fn name(&self) -> &'static str {
        "eth"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            blocking: true,
            detects_death: true,
            tick: self
                .due
                .map(|due| due.saturating_duration_since(Instant::now())),
            ..Capabilities::default()
        }
    }

    fn address(&self) -> Vec<u8> {
        let Some(open) = &self.open else {
            return Vec::new();
        };
        let interface = |info: &InterfaceInfo| CardInterface {
            mac: esp_client::MacAddr(info.mac),
            mtu: info.mtu,
            name: info.name.clone(),
        };
        let card = Card {
            port: open.listener.port(),
            job: self.job,
            incarnation: open.client.incarnation(),
            nonce: self.nonce,
            max_send: u32::try_from(self.max_send).unwrap_or(u32::MAX),
            interfaces: self.interfaces.iter().map(interface).collect(),
        };
        card.encode()
    }

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        let unreachable = |why: &str| Unreachable {
            reason: format!("rank {peer} over Ethernet: {why}"),
        };
        if self.open.is_none() {
            return Err(unreachable("the transport is closed"));
        }
        match self.members.get(peer as usize) {
            None => return Err(unreachable("no such rank in this job")),
            Some(Member::Unknown) => {}
            Some(Member::Own(path)) => return Ok(path.clone()),
            Some(Member::Peer(known)) => return Ok(known.path.clone()),
        }
        let member = self.probe(peer, address).map_err(|why| unreachable(&why))?;
        let path = match &member {
            Member::Own(path) => path.clone(),
            Member::Peer(known) => known.path.clone(),
            Member::Unknown => return Err(unreachable("it was not probed")),
        };
        self.members[peer as usize] = member;
        self.admit(peer);
        self.start_watch();
        Ok(path)
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        if self.open.is_none() {
            return 0;
        }
        let mut done = self.hear();
        if self.due.is_some() {
            // Reading the clock takes longer than all the rest of a call in vain.
            self.clock_in = self.clock_in.wrapping_sub(1);
            if self.clock_in >= CLOCK {
                self.clock_in = CLOCK;
                done += self.timers();
            }
        }
        if !self.own_queue.is_empty() {
            done += self.deliver_own(events);
        }
        done += self.look(events);
        while let Some((peer, error)) = self.failures.pop_front() {
            events.failed(self, peer, error);
            done += 1;
        }
        done
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.open.as_ref().map(|open| open.poller.fd())
    }

    fn arm(&mut self) -> bool {
        self.clock_in = 0;
        if !self.failures.is_empty() || !self.own_queue.is_empty() {
            return false;
        }
        while let Some(&rank) = self.watched.last() {
            let Some(peer) = self.peer(rank) else { break };
            if let Some(channel) = peer.channel() {
                channel.stream.arm(Interest::Readable);
                if channel.stream.has_news(channel.known) {
                    return false;
                }
            }
            peer.watched = false;
            self.watched.pop();
        }
        self.open.as_mut().is_some_and(|open| open.poller.doze())
    }

    /// No peer reaches memory this way. The last messages to it are given a moment to arrive.
    fn drop_peer(&mut self, rank: Rank) -> bool {
        if let Some(peer) = self.peer(rank) {
            let since = *peer.dropping.get_or_insert_with(Instant::now);
            if let Link::Live(channel) = &mut peer.link
                && channel.stream.unacknowledged() > 0
                && since.elapsed() < GOODBYE
            {
                return false;
            }
        }
        self.fail(
            rank,
            PeerError::Lost("this process has closed it out".into()),
        );
        true
    }

    fn flush(&mut self) -> bool {
        let mut out = self.own_queue.is_empty();
        for member in &mut self.members {
            let Member::Peer(peer) = member else { continue };
            let Link::Live(channel) = &mut peer.link else {
                continue;
            };
            if channel.stream.unacknowledged() > 0 {
                channel.stream.arm(Interest::Writable);
                out &= channel.stream.unacknowledged() == 0;
            }
        }
        out
    }

    fn close(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        for member in &mut self.members {
            if let Member::Peer(peer) = member
                && let Some(channel) = peer.channel()
            {
                channel.control(Kind::Goodbye, &[]);
            }
        }
        for mut guest in open.lobby.drain() {
            guest.channel.refuse("this rank has left the job");
        }
        self.members.clear();
        self.own_queue.clear();
        self.failures.clear();
        self.watched.clear();
        self.due = None;
    }
}

impl Drop for EthBtl {
    fn drop(&mut self) {
        self.close();
    }
}

impl EthBtl {
    /// The daemon is gone: what has come from it is read to its end, and nothing else will.
    pub(crate) fn lose_daemon(&mut self) {
        let Some(open) = &self.open else { return };
        let Err(error) = open.client.check() else {
            return;
        };
        if std::mem::replace(&mut self.daemon_gone, true) {
            return;
        }
        let lost = ended_early(&error.into()).error;
        for rank in 0..self.config.size {
            let Some(peer) = self.peer(rank) else {
                continue;
            };
            match peer.link {
                Link::Live(_) => self.watch(rank),
                Link::Failed(_) => {}
                _ => self.fail(rank, lost.clone()),
            }
        }
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
