//! Open transports: peers without ranks, see [`btl::PendingPeers`].
//!
//! A peer is known by its identity, the first word of its nonce. Each side of a connection assigns
//! one of the pairs of its own file to the other one, and publishes that in its directory:
//!
//! ```text
//! A adds B                                   B
//!   opens B's files, finds B's address there
//!   directory[k] = B
//!   writes to B's requests, wakes B  ──────▶  finds A's address: a stranger, until it is admitted
//!                                             directory[j] = A
//!   finds itself in B's directory  ◀────────  finds itself in A's directory, wakes A
//! ```
//!
//! A request that is not answered is repeated: it may have arrived while B was ending an earlier
//! connection to A, or its refusal may have been displaced by others.
//!
//! The words of a pair do not change while its peer may read them: they show that the connection
//! has ended. Afterwards the pair is assigned again.
//!
//! Requests and directories are untrusted: they can only lead to files, which are checked like
//! those of an address.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::time::Duration;

use btl::{Events, PeerError, PeerInfo, PendingPeers, Rank, Unreachable};
use rustix::event::epoll;

use super::peer::PeerState;
use super::{Own, ShmBtl, coarse_now};
use crate::address::{OpenAddress, ShmAddress};
use crate::attach::{Files, eligible, has_ended, probe, read_address};
use crate::layout::{
    ADDRESS_WORDS, About, Common, END_BROKEN, Layout, OPEN_PEERS, PairHead, REFUSED, REQUESTS,
    Requests,
};
use crate::process::NodeView;
use shmem::sync::{AtomicU64, Ordering};
use shmem::{Access, Shared, SharedFile};

/// Time after which a request that was not answered is repeated.
const REPEAT: Duration = Duration::from_millis(500);

/// State of an open transport in addition to that of a rank.
pub(super) struct Open {
    identity: u64,
    /// Descriptor of the requests, named in the address.
    file: OwnedFd,
    pub(super) requests: Shared<Requests>,
    /// Number of requests that were handled.
    seen: u64,
    /// Peers by identity.
    numbers: HashMap<u64, Rank>,
    /// Pairs of this process's file, by peer.
    places: HashMap<Rank, u32>,
    /// Pairs of former peers that may still read them.
    retired: Vec<(u32, Reader)>,
    /// Pairs that are free again.
    free: Vec<u32>,
    /// Number of pairs that were assigned at least once.
    used: u32,
    joining: Vec<Joining>,
    strangers: VecDeque<ShmAddress>,
    /// Number of refusals.
    refusals: usize,
}

/// A peer that was added and has not assigned a pair to this process yet.
struct Joining {
    rank: Rank,
    place: u32,
    address: ShmAddress,
    /// `None` after a failure.
    files: Option<Files>,
    one_sided: bool,
    /// Time of the last request (coarse clock).
    requested: Option<Duration>,
    /// Reason of its failure, which `progress` reports.
    ending: Option<PeerError>,
}

/// A former peer that may still read its pair.
pub(super) struct Reader {
    common: Shared<Common>,
    pidfd: OwnedFd,
    /// It had assigned a pair to this process.
    connected: bool,
}

/// Publishes the address of an open transport in its memory.
pub(super) fn publish(address: &ShmAddress, common: &Common) {
    let bytes = address.encode();
    let (words, _) = bytes.as_chunks::<8>();
    assert_eq!(words.len(), ADDRESS_WORDS, "room for an address");
    for (place, word) in common.address.iter().zip(words) {
        place.store(u64::from_le_bytes(*word), Ordering::Release);
    }
}

/// Returns the address of an open transport.
pub(super) fn short(identity: u64, address: &ShmAddress) -> Vec<u8> {
    let (pid, data) = (address.pid, address.data);
    OpenAddress {
        identity,
        pid,
        data,
    }
    .encode()
}

fn contains(words: &[AtomicU64], identity: u64) -> Option<u32> {
    let place = words
        .iter()
        .position(|word| word.load(Ordering::Acquire) == identity);
    place.and_then(|place| u32::try_from(place).ok())
}

impl Open {
    /// Creates the memory for requests.
    pub(super) fn new(identity: u64, nonce: [u64; 2]) -> io::Result<Open> {
        let file = SharedFile::create("shm-btl-requests", Layout::requests_bytes())?;
        let map = file.map(0, file.len(), Access::Write)?;
        Shared::<About>::new(&map, 0).set_nonce(nonce);
        Ok(Open {
            identity,
            file: file.into_fd(),
            requests: Shared::new(&map, Layout::REQUESTS_AT),
            seen: 0,
            numbers: HashMap::new(),
            places: HashMap::new(),
            retired: Vec::new(),
            free: Vec::new(),
            used: 0,
            joining: Vec::new(),
            strangers: VecDeque::new(),
            refusals: 0,
        })
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    fn has_requests(&self) -> bool {
        self.requests.count.load(Ordering::Acquire) != self.seen && self.strangers.len() < REQUESTS
    }

    /// Returns true if there is no free pair.
    fn is_full(&self) -> bool {
        self.free.is_empty() && self.used as usize >= OPEN_PEERS
    }

    /// Publishes whether there is a free pair.
    fn publish_full(&self, common: &Common) {
        common.full.store(self.is_full().into(), Ordering::Release);
    }

    /// Assigns a pair to a peer.
    fn take_place(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let place = self.used;
            let fits = (place as usize) < OPEN_PEERS;
            self.used += u32::from(fits);
            fits.then_some(place)
        })
    }
}

impl Reader {
    pub(super) fn new(common: Shared<Common>, pidfd: OwnedFd, connected: bool) -> Reader {
        Reader {
            common,
            pidfd,
            connected,
        }
    }

    /// Returns true if the process has died or closed, or has released its end of the connection to
    /// this process, which has this identity.
    fn is_gone(&self, identity: u64) -> bool {
        // It removes the identity from its directory when it has released its end, and does not add
        // it again.
        let released = || self.connected && contains(&self.common.directory, identity).is_none();
        let left = || self.common.about.0.left.load(Ordering::Acquire) != 0;
        released() || left() || has_ended(&self.pidfd)
    }
}

impl Joining {
    /// Returns the pair that the peer has assigned to this process, once it has.
    fn place_there(&self, identity: u64) -> Option<u32> {
        contains(&self.files.as_ref()?.common.directory, identity)
    }

    fn is_refused(&self, identity: u64) -> bool {
        let files = self.files.as_ref();
        files.is_some_and(|files| contains(&files.common.refused, identity).is_some())
    }

    /// Returns true if the peer should be asked for a connection, for the first time or again.
    fn is_due(&self) -> bool {
        let overdue = |at| coarse_now().saturating_sub(at) >= REPEAT;
        self.requested.is_none_or(overdue)
    }

    /// Asks the peer for a connection. Returns false if too many others do.
    fn request(&self, own: &ShmAddress) -> bool {
        let Some(files) = &self.files else {
            return true;
        };
        let Some(requests) = &files.requests else {
            return true;
        };
        let word = u64::from(own.pid) << 32 | u64::from(own.data);
        if contains(&requests.from, word).is_some() {
            // The peer has not read the last request yet.
            return true;
        }
        let free = |place: &&AtomicU64| {
            let taken = place.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        };
        let found = requests.from.iter().find(free).is_some();
        if found {
            requests.count.fetch_add(1, Ordering::AcqRel);
            files.ring();
        }
        found
    }
}

impl ShmBtl {
    /// Adds a peer by its address.
    pub(super) fn add_open(&mut self, rank: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        let found = || {
            let named =
                OpenAddress::decode(address).ok_or("it is not an address of an open transport")?;
            let elsewhere = |why| format!("it is not on this node: {why}");
            let full = read_address(named.pid, named.data, &self.layout).map_err(elsewhere)?;
            if full.nonce[0] != named.identity {
                return Err(elsewhere(
                    "the process and descriptor belong to another transport".into(),
                ));
            }
            Ok(full)
        };
        let added = found().and_then(|address| self.join_peer(rank, address));
        added.map_err(|reason: String| Unreachable {
            reason: format!("shared memory: {reason}"),
        })
    }

    fn join_peer(&mut self, rank: Rank, address: ShmAddress) -> Result<PeerInfo, String> {
        self.make_places();
        let (Some(own), Some(open)) = (&self.own, &mut self.open) else {
            return Err("the transport is closed".into());
        };
        let identity = address.nonce[0];
        if rank == 0 || rank >= self.config.size || identity == open.identity {
            return Err(format!("{rank} is not the number of a peer"));
        }
        let number = rank as usize;
        if self.peers.len() <= number {
            self.peers.resize_with(number + 1, || PeerState::NotAdded);
        }
        if !matches!(self.peers[number], PeerState::NotAdded) {
            return Err(format!("peer {rank} was added before"));
        }
        if open.numbers.contains_key(&identity) {
            return Err("its identity was added before".into());
        }
        eligible(&address, 0, self.job, &self.node)?;
        let files = Files::open(&address, &self.layout)?;
        if files.requests.is_none() {
            return Err("it is not an open transport".into());
        }
        // It publishes that it is full after it has assigned its last pair.
        if files.common.full.load(Ordering::Acquire) != 0
            && contains(&files.common.directory, open.identity).is_none()
        {
            return Err(format!("it has {OPEN_PEERS} peers on this node"));
        }
        let one_copy = probe(&address, &self.node, self.config.one_copy);
        let Some(place) = open.take_place() else {
            return Err(format!("this process has {OPEN_PEERS} peers on this node"));
        };
        let data = epoll::EventData::new_u64(rank.into());
        if let Err(error) = epoll::add(&own.epoll, &files.pidfd, data, epoll::EventFlags::IN) {
            open.free.push(place);
            return Err(format!("epoll_ctl: {error}"));
        }
        open.numbers.insert(identity, rank);
        open.places.insert(rank, place);
        open.strangers.retain(|other| other.nonce[0] != identity);
        own.common.directory[place as usize].store(identity, Ordering::Release);
        open.publish_full(&own.common);
        self.peers[number] = PeerState::Joining;
        let info = self.path(&address, &one_copy);
        let joining = Joining {
            rank,
            place,
            address,
            files: Some(files),
            one_sided: one_copy.is_ok(),
            requested: None,
            ending: None,
        };
        self.join_or_wait(joining);
        Ok(info)
    }

    /// Handles requests, and connects to peers that have assigned a pair. Returns the number of
    /// connections.
    pub(super) fn advance_open(&mut self) -> usize {
        let Some(open) = &mut self.open else { return 0 };
        if open.has_requests() {
            let view = (&self.layout, self.job, &self.node);
            open.take_requests(view, self.own.as_ref(), &self.peers);
        }
        let joining = mem::take(&mut open.joining).into_iter();
        joining.map(|one| usize::from(self.join_or_wait(one))).sum()
    }

    /// Connects to a peer if it has assigned a pair to this process, otherwise asks it to do so.
    fn join_or_wait(&mut self, mut joining: Joining) -> bool {
        let Some(open) = &mut self.open else {
            return false;
        };
        let there = joining.place_there(open.identity);
        if let (None, Some(there)) = (&joining.ending, there) {
            let files = joining.files.take();
            files.as_ref().inspect(|files| files.ring());
            match files.map(|files| files.attach(&self.layout, there)) {
                Some(Ok(attached)) => {
                    let places = (there, joining.place);
                    let (rank, one_sided) = (joining.rank, joining.one_sided);
                    self.connect(rank, places, &joining.address, attached, one_sided);
                    return true;
                }
                Some(Err(why)) => joining.ending = Some(PeerError::Lost(why)),
                None => {}
            }
        } else if joining.is_refused(open.identity) {
            let refused = || PeerError::Lost("it refused the connection".into());
            joining.ending.get_or_insert_with(refused);
        } else if joining.ending.is_none()
            && joining.is_due()
            && let Some(own) = &self.own
            && joining.request(&own.address)
        {
            joining.requested = Some(coarse_now());
        }
        self.check_now |= joining.ending.is_some();
        open.joining.push(joining);
        false
    }

    /// Returns true if there is something to do, before this process sleeps.
    pub(super) fn open_waits(&self) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let joins = |joining: &Joining| {
                joining.place_there(open.identity).is_some() || joining.is_refused(open.identity)
            };
            open.has_requests() || !open.strangers.is_empty() || open.joining.iter().any(joins)
        })
    }

    /// Ends a peer that is not connected yet.
    pub(super) fn end_joining(&mut self, rank: Rank, error: &PeerError) {
        let Some(open) = &mut self.open else { return };
        if let Some(joining) = open.joining.iter_mut().find(|one| one.rank == rank) {
            joining.ending.get_or_insert_with(|| error.clone());
            self.check_now = true;
        }
    }

    /// Reports peers that ended before they were connected.
    pub(super) fn report_joining(&mut self, events: &mut dyn Events) -> usize {
        let mut count = 0;
        let has_ended = |joining: &Joining| {
            let files = joining.files.as_ref();
            let left = files.is_some_and(|f| f.common.about.0.left.load(Ordering::Acquire) != 0);
            joining.ending.is_some() || left
        };
        while let Some(open) = &mut self.open
            && let Some(at) = open.joining.iter().position(has_ended)
        {
            let joining = open.joining.swap_remove(at);
            let error = joining.ending.unwrap_or(PeerError::Left);
            if let (Some(own), Some(files)) = (&self.own, &joining.files) {
                let _ = epoll::delete(&own.epoll, &files.pidfd);
                let head = Shared::<PairHead>::new(&own.data, self.layout.pair_at(joining.place));
                head.end.0.store(END_BROKEN, Ordering::Release);
                files.ring();
            }
            self.peers[joining.rank as usize] = PeerState::Closed(error.clone());
            // Without its files it is not known when the peer is gone.
            let reader = |files: Files| Reader::new(files.common, files.pidfd, false);
            let reader = joining.files.map(reader);
            self.release_place(joining.rank, reader);
            events.failed(self, joining.rank, error);
            count += 1;
        }
        count
    }

    /// Releases the pair of a peer that has ended. It is assigned again once the peer no longer
    /// reads it; without `reader`, never.
    pub(super) fn release_place(&mut self, rank: Rank, reader: Option<Reader>) {
        let (Some(own), Some(open)) = (&self.own, &mut self.open) else {
            return;
        };
        let Some(place) = open.places.remove(&rank) else {
            return;
        };
        own.common.directory[place as usize].store(0, Ordering::Release);
        open.retired.extend(reader.map(|reader| (place, reader)));
        self.free_places();
    }

    /// Frees pairs that former peers no longer read, if no pair is free.
    pub(super) fn make_places(&mut self) {
        if self.open.as_ref().is_some_and(Open::is_full) {
            self.free_places();
        }
    }

    /// Frees the pairs of former peers that no longer read them.
    fn free_places(&mut self) {
        let (Some(own), Some(open)) = (&self.own, &mut self.open) else {
            return;
        };
        let identity = open.identity;
        let gone = |(_, reader): &mut (u32, Reader)| reader.is_gone(identity);
        for (place, _) in open.retired.extract_if(.., gone) {
            clear(own, &self.layout, place);
            open.free.push(place);
        }
        open.publish_full(&own.common);
    }
}

/// Resets the words of a pair for the next peer.
fn clear(own: &Own, layout: &Layout, place: u32) {
    let (head, slots, _) = own.pair(layout, place);
    let words = [&head.consumed.0, &head.end.0].into_iter();
    let words = words.chain(&head.offers.0).chain(&head.shares.0);
    for word in words.chain(slots.iter().flat_map(|slot| &slot.0)) {
        word.store(0, Ordering::Release);
    }
}

impl Open {
    /// Reads the requests of other processes. `peers` are this process's.
    fn take_requests(
        &mut self,
        (layout, job, node): (&Layout, u64, &NodeView),
        own: Option<&Own>,
        peers: &[PeerState],
    ) {
        let count = self.requests.count.load(Ordering::Acquire);
        let requests = self.requests.clone();
        for word in &requests.from {
            if self.strangers.len() >= REQUESTS {
                return;
            }
            let word = word.swap(0, Ordering::AcqRel);
            let [data, pid] = [word, word >> 32].map(|half| half & u64::from(u32::MAX));
            let (Ok(pid), Ok(data)) = (u32::try_from(pid), u32::try_from(data)) else {
                continue;
            };
            if word == 0 {
                continue;
            }
            let Ok(address) = read_address(pid, data, layout) else {
                continue;
            };
            let identity = address.nonce[0];
            let peer = self.numbers.get(&identity);
            let peer = peer.and_then(|number| peers.get(*number as usize));
            let closed = matches!(peer, Some(PeerState::Closed(_)));
            let is_known = identity == self.identity
                || peer.is_some()
                || self.strangers.iter().any(|one| one.nonce[0] == identity);
            if is_known && !closed {
                continue;
            }
            // A peer that has ended is not added again under its identity.
            if !closed && eligible(&address, 0, job, node).is_ok() {
                self.strangers.push_back(address);
            } else if let Some(own) = own {
                self.refuse(identity, &own.common);
            }
        }
        self.seen = count;
    }

    fn refuse(&mut self, identity: u64, common: &Common) {
        if contains(&common.refused, identity).is_some() {
            return;
        }
        common.refused[self.refusals % REFUSED].store(identity, Ordering::Release);
        self.refusals += 1;
    }
}

impl PendingPeers for ShmBtl {
    fn stranger(&self) -> Option<u64> {
        let strangers = &self.open.as_ref()?.strangers;
        strangers.front().map(|address| address.nonce[0])
    }

    fn admit(&mut self, peer: Rank, stranger: u64) -> Result<PeerInfo, Unreachable> {
        let open = self.open.as_mut();
        let found = open.and_then(|open| {
            let mut at = open.strangers.iter();
            let at = at.position(|address| address.nonce[0] == stranger)?;
            open.strangers.remove(at)
        });
        let found = found.ok_or_else(|| "it has gone".to_owned());
        let added = found.and_then(|address| self.join_peer(peer, address));
        added.map_err(|reason| {
            self.refuse_stranger(stranger, &reason);
            Unreachable {
                reason: format!("shared memory: {reason}"),
            }
        })
    }

    fn refuse_stranger(&mut self, stranger: u64, _reason: &str) {
        if let (Some(own), Some(open)) = (&self.own, &mut self.open) {
            open.strangers.retain(|one| one.nonce[0] != stranger);
            open.refuse(stranger, &own.common);
        }
    }
}
