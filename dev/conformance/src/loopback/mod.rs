//! Transport of a job inside one process: each rank is a value that its own thread may use.
//!
//! It serves tests of the layers above transports. Every queue is bounded and every limit is
//! configurable, so small limits reach each branch of the layer. [`Killer`] ends a rank as a crash
//! does.

mod memory;
mod world;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use self::memory::Memory;
use self::world::{Packet, Post, State, World};
use btl::{
    Btl, Capabilities, Envelope, Events, HeldSends, MAX_HEADER, NoticedPuts, PeerError, PeerInfo,
    PendingPeers, PostId, PostedDelivery, PostedReceive, PostedReceives, Rank, Region,
    RegisterError, SendError, Started, Tx, Unreachable, Withdrawn, contiguous, gathered_len,
};

const MAGIC: &[u8; 8] = b"esp-loop";
const ADDRESS_LENGTH: usize = 8 + 8 + 4 + 4;
const KEY: usize = 8 + 8 + 4 + 8 + 8;

/// Number of the next job in this process.
static JOBS: AtomicU64 = AtomicU64::new(1);

/// Capabilities and limits of a job's transport.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// [`Btl::name`]; tests with two loopbacks name them differently.
    pub name: &'static str,
    /// [`PeerInfo::latency_ns`].
    pub latency_ns: u32,
    /// [`PeerInfo::bandwidth`].
    pub bandwidth: u32,
    /// [`PeerInfo::exclusivity`].
    pub exclusivity: u32,
    /// [`PeerInfo::eager`].
    pub eager: usize,
    /// [`PeerInfo::eager_skewed`].
    pub eager_skewed: usize,
    /// [`PeerInfo::max_send`]; raised to the contract's minimum.
    pub max_send: usize,
    /// Maximum number of messages in transit between two ranks, and of `get`s and `put`s pending at
    /// one. At least 1.
    pub entries: usize,
    /// [`Capabilities::get`].
    pub get: bool,
    /// [`Capabilities::put`].
    pub put: bool,
    /// [`PeerInfo::one_sided_from`].
    pub one_sided_from: usize,
    /// `get` and `put` return [`Started::Pending`] and complete in the next `progress`; otherwise
    /// they return [`Started::Done`].
    pub pending: bool,
    /// [`Capabilities::posted_receives`].
    pub posted_receives: bool,
    /// [`Capabilities::held_from`].
    pub held_from: Option<usize>,
    /// Maximum number of posted receives of a rank.
    pub posts: usize,
    /// Maximum number of events of each kind in one `progress`. At least 1.
    pub burst: usize,
}

impl Default for Limits {
    /// Returns limits with all capabilities and ample room.
    fn default() -> Limits {
        Limits {
            name: "loopback",
            latency_ns: 500,
            bandwidth: 10_000,
            exclusivity: 1,
            eager: 4096,
            eager_skewed: 8192,
            max_send: 65536,
            entries: 64,
            get: true,
            put: true,
            one_sided_from: 16384,
            pending: true,
            posted_receives: true,
            held_from: None,
            posts: 64,
            burst: 16,
        }
    }
}

impl Limits {
    /// Returns minimal limits: short messages, two in transit, four posted receives, one event at a
    /// time.
    #[must_use]
    pub fn tight() -> Limits {
        Limits {
            eager: 64,
            eager_skewed: 128,
            max_send: 1024 + MAX_HEADER,
            entries: 2,
            one_sided_from: 256,
            posts: 4,
            burst: 1,
            ..Limits::default()
        }
    }

    /// Removes one-sided operations and posted receives.
    #[must_use]
    pub fn plain(self) -> Limits {
        Limits {
            get: false,
            put: false,
            posted_receives: false,
            held_from: None,
            ..self
        }
    }
}

/// Creates the transports of a job of `size` ranks.
#[must_use]
pub fn job(size: u32, limits: Limits) -> Vec<LoopbackBtl> {
    let limits = Limits {
        max_send: limits.max_send.max(1024 + MAX_HEADER),
        entries: limits.entries.max(1),
        burst: limits.burst.max(1),
        ..limits
    };
    let bells: Vec<_> = (0..size)
        // Without an event descriptor the rank does not support blocking.
        .map(|_| {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .ok()
                .map(Arc::new)
        })
        .collect();
    let world = Arc::new(Mutex::new(World::new(bells.clone())));
    let id = JOBS.fetch_add(1, Ordering::Relaxed);
    (0..size)
        .zip(bells)
        .map(|(rank, bell)| LoopbackBtl {
            world: Arc::clone(&world),
            limits,
            bell,
            job: id,
            rank,
            peers: vec![Peer::Unknown; size as usize],
            pending: VecDeque::new(),
            held: VecDeque::new(),
            turn: 0,
            closed: false,
        })
        .collect()
}

/// Transport of one rank.
#[derive(Debug)]
pub struct LoopbackBtl {
    world: Arc<Mutex<World>>,
    limits: Limits,
    bell: Option<Arc<OwnedFd>>,
    job: u64,
    rank: Rank,
    peers: Vec<Peer>,
    pending: VecDeque<Operation>,
    /// Held sends to complete, with their tokens.
    held: VecDeque<(Rank, u64)>,
    /// Peer whose messages the next `progress` delivers first.
    turn: usize,
    closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Unknown,
    Added,
    Reported,
}

#[derive(Debug)]
struct Operation {
    peer: Rank,
    region: u64,
    offset: usize,
    local: Memory,
    put: bool,
    token: u64,
}

/// Handle that ends ranks of a job.
#[derive(Clone, Debug)]
pub struct Killer {
    world: Arc<Mutex<World>>,
}

impl Killer {
    /// Ends a rank as if its process had crashed: its own calls return `Closed`, and its peers see
    /// [`PeerError::Died`] after the messages it sent before. Unknown, dead and closed ranks are
    /// ignored.
    pub fn kill(&self, rank: Rank) {
        let mut world = lock(&self.world);
        if (rank as usize) < world.nodes.len() {
            world.end(rank, State::Died);
        }
    }
}

impl LoopbackBtl {
    /// Returns a handle that ends ranks of this job.
    #[must_use]
    pub fn killer(&self) -> Killer {
        Killer {
            world: Arc::clone(&self.world),
        }
    }

    /// Locks the job, unless this rank is closed or killed.
    fn open(&self) -> Result<MutexGuard<'_, World>, SendError> {
        if self.closed {
            return Err(SendError::Closed);
        }
        let mut world = lock(&self.world);
        if world.node(self.rank).state != State::Alive {
            return Err(SendError::Closed);
        }
        Ok(world)
    }

    /// Locks the job for an operation on `peer`.
    fn open_to(&self, peer: Rank) -> Result<MutexGuard<'_, World>, SendError> {
        let world = self.open()?;
        if self
            .peers
            .get(peer as usize)
            .is_none_or(|known| *known == Peer::Unknown)
        {
            return Err(SendError::NoPeer(peer));
        }
        match world.error(self.rank, peer) {
            Some(error) => Err(SendError::Failed { peer, error }),
            None => Ok(world),
        }
    }

    fn one_sided(
        &mut self,
        peer: Rank,
        local: Memory,
        key: &[u8],
        offset: usize,
        token: u64,
        put: bool,
    ) -> Result<Started, SendError> {
        let mut world = self.open_to(peer)?;
        if !(if put {
            self.limits.put
        } else {
            self.limits.get
        }) {
            return Err(SendError::Unsupported);
        }
        let region = self.region(key, peer).ok_or(SendError::BadKey)?;
        let memory = *world
            .node(peer)
            .regions
            .get(&region)
            .ok_or(SendError::BadKey)?;
        if memory.part(offset, local.len()).is_none() {
            return Err(SendError::TooLong {
                length: local.len(),
                limit: memory.len().saturating_sub(offset),
            });
        }
        if !self.limits.pending {
            return match world.copy((self.rank, peer), region, offset, local, put) {
                Ok(()) => Ok(Started::Done),
                Err(error) => Err(SendError::Failed { peer, error }),
            };
        }
        drop(world);
        if self.pending.len() >= self.limits.entries {
            return Err(SendError::Busy);
        }
        self.pending.push_back(Operation {
            peer,
            region,
            offset,
            local,
            put,
            token,
        });
        Ok(Started::Pending)
    }

    fn address_of(&self, rank: Rank) -> Vec<u8> {
        let mut address = MAGIC.to_vec();
        address.extend(self.job.to_le_bytes());
        address.extend(rank.to_le_bytes());
        address.extend((self.peers.len() as u32).to_le_bytes());
        address
    }

    fn key(&self, region: u64, length: usize) -> Vec<u8> {
        let mut key = MAGIC.to_vec();
        key.extend(self.job.to_le_bytes());
        key.extend(self.rank.to_le_bytes());
        key.extend(region.to_le_bytes());
        key.extend((length as u64).to_le_bytes());
        key
    }

    /// Returns the region that a key of this job and of `peer` names.
    fn region(&self, key: &[u8], peer: Rank) -> Option<u64> {
        if key.len() != KEY || !key.starts_with(MAGIC) || key[8..16] != self.job.to_le_bytes() {
            return None;
        }
        if key[16..20] != peer.to_le_bytes() {
            return None;
        }
        Some(u64::from_le_bytes(key[20..28].try_into().ok()?))
    }

    fn operate(&mut self, events: &mut dyn Events) -> usize {
        // Operations that callbacks add are left for the next call.
        let count = self.pending.len().min(self.limits.burst);
        let mut done = 0;
        for _ in 0..count {
            let Some(op) = self.pending.pop_front() else {
                break;
            };
            let result = match self.open() {
                Ok(mut world) => {
                    world.copy((self.rank, op.peer), op.region, op.offset, op.local, op.put)
                }
                Err(_) => break,
            };
            events.completed(self, op.token, result);
            done += 1;
        }
        done
    }

    /// Completes held sends, whose bodies have been copied.
    fn complete_held(&mut self, events: &mut dyn Events) -> usize {
        let count = self.held.len().min(self.limits.burst);
        for _ in 0..count {
            let Some((peer, token)) = self.held.pop_front() else {
                break;
            };
            let Ok(world) = self.open() else { break };
            let result = world.error(self.rank, peer).map_or(Ok(()), Err);
            drop(world);
            events.completed(self, token, result);
        }
        count
    }

    fn announce_filled(&mut self, events: &mut dyn Events) -> usize {
        let mut done = 0;
        while done < self.limits.burst {
            let Ok(mut world) = self.open() else { break };
            let Some(at) = world
                .node(self.rank)
                .filled
                .iter()
                // Events of peers that are not added wait, as messages do.
                .position(|filled| self.peers[filled.peer as usize] != Peer::Unknown)
            else {
                break;
            };
            let filled = world.node(self.rank).filled.remove(at);
            drop(world);
            let Some(filled) = filled else { break };
            events.received(
                self,
                filled.token,
                filled.peer,
                filled.envelope,
                Ok(filled.length),
            );
            done += 1;
        }
        done
    }

    fn deliver(&mut self, events: &mut dyn Events) -> usize {
        let size = self.peers.len();
        let first = self.turn;
        self.turn = (self.turn + 1) % size.max(1);
        let mut done = 0;
        for index in 0..size {
            let peer = (first + index) % size;
            if self.peers[peer] != Peer::Added {
                continue;
            }
            while done < self.limits.burst {
                let Ok(mut world) = self.open() else {
                    return done;
                };
                let Some(packet) = world.take(peer as Rank, self.rank) else {
                    break;
                };
                drop(world);
                events.message(self, peer as Rank, &packet.header, &packet.body);
                lock(&self.world).lane(peer as Rank, self.rank).seen += 1;
                done += 1;
            }
        }
        done
    }

    fn announce_failed(&mut self, events: &mut dyn Events) -> usize {
        let mut done = 0;
        for peer in 0..self.peers.len() {
            let Some(error) = self
                .open()
                .ok()
                .and_then(|mut world| self.failure(&mut world, peer))
            else {
                continue;
            };
            self.peers[peer] = Peer::Reported;
            events.failed(self, peer as Rank, error);
            done += 1;
        }
        done
    }

    /// Returns the failure to report now: after the peer's messages and the operations on it.
    fn failure(&self, world: &mut World, peer: usize) -> Option<PeerError> {
        let open = self.pending.iter().any(|op| op.peer as usize == peer)
            || self.held.iter().any(|(to, _)| *to as usize == peer);
        if self.peers[peer] != Peer::Added || open {
            return None;
        }
        let error = world.error(self.rank, peer as Rank)?;
        if world
            .node(self.rank)
            .filled
            .iter()
            .any(|filled| filled.peer as usize == peer)
        {
            return None;
        }
        world
            .lane(peer as Rank, self.rank)
            .queue
            .is_empty()
            .then_some(error)
    }
}

impl Tx for LoopbackBtl {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        let mut world = self.open_to(peer)?;
        if header.len() > MAX_HEADER {
            return Err(SendError::TooLong {
                length: header.len(),
                limit: MAX_HEADER,
            });
        }
        let length = header.len().saturating_add(gathered_len(body));
        if length > self.limits.max_send {
            return Err(SendError::TooLong {
                length,
                limit: self.limits.max_send,
            });
        }
        let lane = world.lane(self.rank, peer);
        if lane.queue.len() >= self.limits.entries {
            lane.starved = true;
            return Err(SendError::Busy);
        }
        lane.queue.push_back(Packet {
            header: header.to_vec(),
            body: contiguous(body).into_owned(),
        });
        lane.sent += 1;
        world.wake(peer);
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
        // SAFETY: the caller's promise, until completion; a pending operation is dropped with this
        // value.
        let local = unsafe { Memory::new(local, length) };
        self.one_sided(peer, local, key, offset, token, false)
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
        // SAFETY: the caller's promise, until completion; a put only reads it.
        let local = unsafe { Memory::source(local, length) };
        self.one_sided(peer, local, key, offset, token, true)
    }
}

impl PostedReceives for LoopbackBtl {
    unsafe fn send_to_posted(
        &mut self,
        peer: Rank,
        envelope: Envelope,
        local: *const u8,
        length: usize,
    ) -> Result<PostedDelivery, SendError> {
        let mut world = self.open_to(peer)?;
        if !self.limits.posted_receives {
            return Err(SendError::Unsupported);
        }
        // SAFETY: the caller's promise, during the call.
        let bytes = unsafe { Memory::source(local, length) };
        Ok(if world.give(self.rank, peer, envelope, bytes) {
            PostedDelivery::Delivered
        } else {
            PostedDelivery::NotPosted
        })
    }

    fn withdraw(&mut self, post: PostId) -> Withdrawn {
        let mut world = lock(&self.world);
        let node = world.node(self.rank);
        if node.filled.iter().any(|filled| filled.id == post.0) {
            return Withdrawn::Taken;
        }
        node.posts.retain(|waiting| waiting.id != post.0);
        Withdrawn::Yes
    }

    unsafe fn post(&mut self, receive: &PostedReceive) -> Option<PostId> {
        let mut world = self.open().ok()?;
        if !self.limits.posted_receives || world.node(self.rank).posts.len() >= self.limits.posts {
            return None;
        }
        let id = world.name();
        // SAFETY: the caller's promise, until the event or the withdrawal, which take the lock; so
        // do closing and dropping.
        let buffer = unsafe { Memory::new(receive.buffer, receive.length) };
        world.node(self.rank).posts.push_back(Post {
            id,
            source: receive.source,
            context: receive.context,
            tag: receive.tag,
            buffer,
            token: receive.token,
        });
        Some(PostId(id))
    }
}

impl HeldSends for LoopbackBtl {
    unsafe fn send_held(
        &mut self,
        peer: Rank,
        header: &[u8],
        body: *const u8,
        length: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        drop(self.open_to(peer)?);
        if self.limits.held_from.is_none() {
            return Err(SendError::Unsupported);
        }
        if self.limits.pending && self.pending.len() + self.held.len() >= self.limits.entries {
            return Err(SendError::Busy);
        }
        // SAFETY: the caller's promise, during the call.
        let bytes = unsafe { Memory::source(body, length) };
        self.send(peer, header, &[IoSlice::new(&bytes.bytes())])?;
        if self.limits.pending {
            self.held.push_back((peer, token));
            return Ok(Started::Pending);
        }
        Ok(Started::Done)
    }
}

impl NoticedPuts for LoopbackBtl {}

impl PendingPeers for LoopbackBtl {}

impl Btl for LoopbackBtl {
    fn name(&self) -> &'static str {
        self.limits.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            get: self.limits.get,
            put: self.limits.put,
            posted_receives: self.limits.posted_receives,
            held_from: self.limits.held_from,
            blocking: self.bell.is_some(),
            detects_death: true,
            tick: None,
        }
    }

    fn address(&self) -> Vec<u8> {
        self.address_of(self.rank)
    }

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        let refuse = |why: &str| {
            Err(Unreachable {
                reason: format!("loopback: {why}"),
            })
        };
        if self.open().is_err() {
            return refuse("this transport is closed");
        }
        if peer as usize >= self.peers.len() {
            return refuse("no such rank in this process");
        }
        if address.len() != ADDRESS_LENGTH || !address.starts_with(MAGIC) {
            return refuse("not a loopback address");
        }
        if address != self.address_of(peer) {
            return refuse("the address of another job, process or rank");
        }
        if self.peers[peer as usize] == Peer::Unknown {
            self.peers[peer as usize] = Peer::Added;
        }
        Ok(PeerInfo {
            latency_ns: self.limits.latency_ns,
            bandwidth: self.limits.bandwidth,
            exclusivity: self.limits.exclusivity,
            eager: self.limits.eager,
            eager_skewed: self.limits.eager_skewed,
            max_send: self.limits.max_send,
            one_sided: self.limits.get || self.limits.put || self.limits.posted_receives,
            one_sided_from: self.limits.one_sided_from,
            reason: "loopback: within this process".into(),
        })
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        match self.open() {
            Ok(mut world) => world.awake(self.rank),
            Err(_) => return 0,
        }
        let operated = self.operate(events) + self.complete_held(events);
        operated
            + self.announce_filled(events)
            + self.deliver(events)
            + self.announce_failed(events)
    }

    unsafe fn register(&mut self, memory: *mut u8, length: usize) -> Result<Region, RegisterError> {
        let mut world = self.open().map_err(|_| RegisterError::Closed)?;
        if !(self.limits.get || self.limits.put) {
            return Err(RegisterError::Unsupported);
        }
        let handle = world.name();
        // SAFETY: the caller's promise, until `deregister`, which takes the lock; closing and
        // dropping take it too.
        let memory = unsafe { Memory::new(memory, length) };
        world.node(self.rank).regions.insert(handle, memory);
        Ok(Region {
            handle,
            key: self.key(handle, length),
        })
    }

    fn deregister(&mut self, handle: u64) {
        lock(&self.world).node(self.rank).regions.remove(&handle);
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|bell| bell.as_fd())
    }

    fn arm(&mut self) -> bool {
        if self.bell.is_none() || !self.pending.is_empty() || !self.held.is_empty() {
            return false;
        }
        let Ok(mut world) = self.open() else {
            return false;
        };
        for peer in 0..self.peers.len() {
            if self.peers[peer] == Peer::Unknown {
                continue;
            }
            let waiting = !world.lane(peer as Rank, self.rank).queue.is_empty();
            if waiting || self.failure(&mut world, peer).is_some() {
                return false;
            }
        }
        let node = world.node(self.rank);
        if !node.filled.is_empty() {
            return false;
        }
        node.armed = true;
        true
    }

    /// Copies happen under the job's lock only, so no copy is in progress.
    fn drop_peer(&mut self, peer: Rank) -> bool {
        if peer != self.rank
            && self.peers.get(peer as usize) == Some(&Peer::Added)
            && let Ok(mut world) = self.open()
        {
            world.drop_peer(self.rank, peer);
        }
        true
    }

    fn flush(&mut self) -> bool {
        // Sent messages are in the job's queues and survive the sender.
        self.closed || (self.pending.is_empty() && self.held.is_empty())
    }

    fn close(&mut self) {
        self.closed = true;
        self.pending.clear();
        self.held.clear();
        lock(&self.world).end(self.rank, State::Left);
    }
}

impl Drop for LoopbackBtl {
    fn drop(&mut self) {
        self.close();
    }
}

/// Locks the job. A panic of another rank's thread leaves the queues consistent: each change is one
/// step.
fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}
