//! Transport of a job inside one process: each rank is a value that its own thread may use.
//!
//! It serves tests of the layers above transports. Every queue is bounded and every limit is
//! configurable, so small limits reach each branch of the layer. [`Killer`] ends a rank as a crash
//! does.

mod limits;
mod memory;
mod operations;
mod progress;
mod world;

pub use limits::Limits;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use self::memory::Memory;
use self::world::{State, World};
use btl::{
    Btl, Capabilities, Events, MAX_HEADER, PeerInfo, Rank, Region, RegisterError, SendError,
    Unreachable,
};

const MAGIC: &[u8; 8] = b"esp-loop";
const ADDRESS_LENGTH: usize = 8 + 8 + 4 + 4;
const KEY: usize = 8 + 8 + 4 + 8 + 8;

/// Number of the next job in this process.
static JOBS: AtomicU64 = AtomicU64::new(1);

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
    /// [`btl::PeerError::Died`] after the messages it sent before. Unknown, dead and closed ranks
    /// are ignored.
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
}

impl Btl for LoopbackBtl {
    fn name(&self) -> &'static str {
        self.limits.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            get: self.limits.get,
            put: self.limits.put,
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
            one_sided: self.limits.get || self.limits.put,
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
        operated + self.deliver(events) + self.announce_failed(events)
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
        world.node(self.rank).armed = true;
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
