//! The transport's state. Its parts: connections, messages, one-sided operations, ends of peers.

mod connect;
mod contract;
mod ends;
mod message;
mod one_sided;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use btl::{PeerError, Rank, SendError};

use crate::cache::{Cache, CacheStats};
use crate::credit::{Credits, ReceiveCredits};
use crate::nic::{Completion, Nic, Queue, Registered, Sge, Source};
use crate::raw::memory::Memory;
use crate::raw::verbs::{Verbs, ports};
use crate::raw::watch::Watch;
use crate::wire::{Hello, PeerAddress, hash};
use crate::{BLOCK, IbConfig, IbError, MESSAGE_BLOCKS};

/// Maximum number of completions taken by one poll.
const BATCH: usize = 16;
const BATCHES: usize = 4;
/// Number of receives beyond one for each block, for credits and the end.
const CONTROL: usize = 8;
/// Maximum number of posted work requests of one-sided operations for each connection.
const PIECES: usize = 16;
/// Maximum number of one-sided operations for each peer.
const OPERATIONS: usize = 64;
/// Number of inline messages per requested completion.
const UNSIGNALED: usize = 16;
/// Number of receives that are posted together.
const REPOST: usize = 8;
/// Maximum number of waiting datagrams in each direction.
const MAX_DATAGRAMS: usize = 128;
/// Maximum number of memory pieces of a message: blocks, and a held body.
const SGES: usize = MESSAGE_BLOCKS + 1;

/// Counters of a transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Received messages of no known peer.
    pub strays: u64,
    /// Connection requests from a port or queue pair other than that in the rank's address.
    pub forged: u64,
    /// Counters of the registration cache.
    pub cache: CacheStats,
}

/// The transport over one port.
#[derive(Debug)]
pub struct IbBtl {
    // Dropped before all memory, which ends the device's accesses to it. `None` when closed.
    nic: Option<Box<dyn Nic>>,
    config: IbConfig,
    job: u64,
    nonce: u64,
    address: Vec<u8>,
    peers: Vec<Option<Box<Peer>>>,
    pool: Pool,
    shared: Option<(Memory, Registered)>,
    cache: Cache,
    operations: Vec<Option<Operation>>,
    /// Completions taken in places that must not report events.
    stash: VecDeque<Completion>,
    batch: Vec<Completion>,
    /// Requests of pending peers, which are not added yet.
    early: BTreeMap<Rank, (Source, Hello)>,
    scratch: Vec<u8>,
    /// Held sends that have completed.
    held: Vec<u32>,
    /// Time of the last check of the timers.
    timers: Duration,
    /// Number of polls.
    polls: u32,
    /// A peer is failing.
    failing: bool,
    /// Completions taken since a peer began to fail.
    taken: usize,
    /// A wake-up was requested.
    armed: bool,
    /// Peers to which credits must be returned and whose queue was full.
    credit_returns: Vec<Rank>,
    /// Peers being dropped, and since when.
    closing: Vec<(Rank, Duration)>,
    /// Registrations by handle: their use, and the number of their notice or 0.
    regions: HashMap<u64, (u64, u32)>,
    next_region: u64,
    /// Notices by number.
    notices: HashMap<u32, Notice>,
    stats: Stats,
}

/// Header of the message that the owner of a region receives when `peer` has filled it.
#[derive(Clone, Copy, Debug)]
struct Notice {
    peer: Rank,
    header: [u8; btl::MAX_HEADER],
    length: usize,
}

/// Blocks from which messages are sent.
#[derive(Debug)]
struct Pool {
    memory: Memory,
    lkey: u32,
    free: Vec<u16>,
}

/// A message whose work request is not complete.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    count: usize,
    blocks: [u16; SGES],
    /// Credits that it took, where the peer's receives are shared.
    theirs: usize,
    /// Number of its work request.
    sequence: u32,
    /// Operation that holds its body, if that was not copied.
    held: Option<u32>,
}

/// State of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// `since`: start; `next`: time of the next request; `tries`: number of requests sent.
    Connecting {
        since: Duration,
        next: Duration,
        tries: u32,
    },
    Connected,
    /// The queue pair is stopped; reported when all arrivals are delivered.
    Failing(PeerError),
    Ended(PeerError),
}

#[derive(Debug)]
struct Peer {
    address: PeerAddress,
    state: State,
    queue: Queue,
    qpn: u32,
    psn: u32,
    /// The peer's part of the connection, once received.
    theirs: Option<Hello>,
    ring: Option<(Memory, Registered)>,
    credits: Credits,
    receive_credits: ReceiveCredits,
    flights: VecDeque<Flight>,
    /// Work requests without completion.
    posted: usize,
    /// Messages posted since the last request with a completion. The next one completes all.
    unsignaled: usize,
    /// Number of the last request, truncated to the bits of an id.
    sequence: u32,
    /// Receives consumed and not posted again.
    used: usize,
    pieces: usize,
    /// Operations with bytes that are not posted.
    unposted: VecDeque<u32>,
    operations: usize,
    /// Time of the last post.
    spoke: Duration,
}

/// A `get` or `put`, or the body of a held send.
#[derive(Debug)]
struct Operation {
    peer: Rank,
    token: u64,
    reads: bool,
    held: u64,
    lkey: u32,
    local: u64,
    remote: u64,
    rkey: u32,
    left: usize,
    open: usize,
    /// Number of the notice that the last bytes deliver. They take one credit.
    notice: Option<u32>,
}

/// State needed to send to a peer.
type Usable<'a> = (&'a mut Box<dyn Nic>, &'a mut Peer, &'a mut Pool);

/// Returns an added peer, borrowing only the table.
fn find(peers: &mut [Option<Box<Peer>>], rank: Rank) -> Option<&mut Peer> {
    peers.get_mut(rank as usize)?.as_deref_mut()
}

/// Returns the time since a fixed moment, with a resolution of a few milliseconds. The coarse clock
/// is cheap even where the precise one is not.
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

impl Peer {
    /// Returns the number of the next work request that is not one-sided. `signaled`: it has a
    /// completion.
    fn next_sequence(&mut self, signaled: bool) -> u32 {
        self.sequence = (self.sequence + 1) & INDEX;
        self.posted += 1;
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        self.sequence
    }

    /// Completes a request and the messages before it, which may have no completion of their own.
    fn complete(&mut self, number: u32, mut each: impl FnMut(&mut Credits, &Flight)) {
        if number & !INDEX != MESSAGE {
            self.posted = self.posted.saturating_sub(1);
        }
        // Numbers of one queue are never more than half of the range apart.
        let past = |flight: &Flight| number.wrapping_sub(flight.sequence) & INDEX <= INDEX / 2;
        while number & !INDEX != OPERATION && self.flights.front().is_some_and(past) {
            self.posted = self.posted.saturating_sub(1);
            self.flights
                .pop_front()
                .iter()
                .for_each(|flight| each(&mut self.credits, flight));
        }
    }
}

/// Ids of work requests: the peer's rank, kind, index. Receives have kind 0 and index 0.
const MESSAGE: u32 = 1 << 28;
const OPERATION: u32 = 2 << 28;
const OTHER: u32 = 3 << 28;
const INDEX: u32 = (1 << 28) - 1;

fn id(rank: Rank, kind: u32, index: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(kind | index)
}

impl Pool {
    /// Copies the parts into consecutive free blocks; the caller has checked that there are enough.
    fn fill(&mut self, parts: [&[u8]; 3], sges: &mut [Sge; SGES]) -> Flight {
        let mut flight = Flight::default();
        let mut room = 0;
        for mut part in parts {
            while !part.is_empty() {
                if room == 0 {
                    let Some(block) = self.free.pop() else {
                        return flight;
                    };
                    flight.blocks[flight.count] = block;
                    sges[flight.count] = Sge {
                        address: (self.memory.address() + usize::from(block) * BLOCK) as u64,
                        length: 0,
                        lkey: self.lkey,
                    };
                    flight.count += 1;
                    room = BLOCK;
                }
                let (now, later) = part.split_at(part.len().min(room));
                let at = usize::from(flight.blocks[flight.count - 1]) * BLOCK + BLOCK - room;
                let _ = self.memory.write(at, now);
                sges[flight.count - 1].length += now.len() as u32;
                room -= now.len();
                part = later;
            }
        }
        flight
    }

    fn give(&mut self, flight: &Flight) {
        self.free.extend(&flight.blocks[..flight.count]);
    }
}

impl IbBtl {
    /// Opens a port of this machine.
    ///
    /// # Errors
    /// There is no port, or it cannot be used; the error contains the reason.
    pub fn new(config: IbConfig) -> Result<IbBtl, IbError> {
        config.check()?;
        let (device, port) = match &config.device {
            Some(text) => {
                let (name, port) = text.split_once(':').unwrap_or((text, "1"));
                let port = port
                    .parse()
                    .map_err(|_| IbError::Config(format!("{text}: not a device and its port")))?;
                (name.to_owned(), port)
            }
            None => {
                let all = ports()?;
                let count = all.len();
                all.into_iter().nth(config.rail.into()).ok_or_else(|| {
                    IbError::NoPort(format!(
                        "{count} active ports, no port for rail {}",
                        config.rail
                    ))
                })?
            }
        };
        let room = completions(&config, config.size as usize).min(1 << 22);
        let nic = Verbs::open(&device, port, room)?;
        IbBtl::over(Box::new(nic), config)
    }

    /// Creates the transport over an interface provided by the caller.
    ///
    /// # Errors
    /// See [`new`](IbBtl::new).
    pub fn over(nic: Box<dyn Nic>, config: IbConfig) -> Result<IbBtl, IbError> {
        config.check()?;
        let mut nic = nic;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|_| IbError::NoRandom)?;
        let nonce = u64::from_ne_bytes(random);
        let job = hash(&[&config.job_key, &config.size.to_le_bytes(), &[config.rail]]);
        let (memory, keys) = registered(&mut *nic, config.pool_blocks * BLOCK, false)?;
        let pool = Pool {
            memory,
            lkey: keys.lkey,
            free: (0..u16::try_from(config.pool_blocks).unwrap_or(u16::MAX)).collect(),
        };
        let shared = (config.blocks == 0).then(|| share(&mut *nic, &config));
        let shared = shared.transpose()?;
        let address = PeerAddress::new(&config, nic.about(), job, nonce).encode();
        let watch = (config.cache_bytes > 0).then(|| Watch::new().ok());
        let cache = Cache::new(watch.flatten(), config.cache_bytes);
        let peers = (0..config.size).map(|_| None).collect();
        Ok(IbBtl {
            nic: Some(nic),
            config,
            job,
            nonce,
            address,
            peers,
            pool,
            shared,
            cache,
            operations: Vec::new(),
            stash: VecDeque::new(),
            batch: Vec::new(),
            early: BTreeMap::new(),
            scratch: Vec::new(),
            held: Vec::new(),
            timers: now(),
            polls: 0,
            failing: false,
            taken: 0,
            armed: false,
            credit_returns: Vec::new(),
            closing: Vec::new(),
            regions: HashMap::new(),
            next_region: 0,
            notices: HashMap::new(),
            stats: Stats::default(),
        })
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            cache: self.cache.stats(),
            ..self.stats
        }
    }

    /// Describes the port and the protocol as text.
    fn describe(&self) -> String {
        let Some(nic) = &self.nic else {
            return "closed".into();
        };
        let about = nic.about();
        let kind = if about.ethernet { "RoCE" } else { "InfiniBand" };
        let cache = if self.cache.keeps() {
            "registrations are kept"
        } else {
            "no userfaultfd: memory is registered for each use"
        };
        format!("{kind} by {} port {}, {cache}", about.device, about.port)
    }

    /// Returns the state needed to send to a peer, if it can be sent to.
    fn usable(&mut self, rank: Rank) -> Result<Usable<'_>, SendError> {
        let Some(nic) = &mut self.nic else {
            return Err(SendError::Closed);
        };
        let peer = find(&mut self.peers, rank).ok_or(SendError::NoPeer(rank))?;
        match &peer.state {
            State::Failing(error) | State::Ended(error) => Err(SendError::Failed {
                peer: rank,
                error: error.clone(),
            }),
            State::Connecting { .. } | State::Connected => Ok((nic, peer, &mut self.pool)),
        }
    }

    /// Returns a peer that was added.
    fn peer(&self, rank: Rank) -> Option<&Peer> {
        self.peers.get(rank as usize)?.as_deref()
    }

    /// Returns a peer that was added.
    fn peer_mut(&mut self, rank: Rank) -> Option<&mut Peer> {
        find(&mut self.peers, rank)
    }

    /// Returns the peer of a connection, whose number is the peer's rank, unless it has ended.
    fn rank_of(&self, connection: u32) -> Option<Rank> {
        let peer = self.peer(connection)?;
        (!matches!(peer.state, State::Ended(_))).then_some(connection)
    }

    /// Returns the maximum number of waiting completions. After taking this many, all that were
    /// waiting at the start are taken.
    fn max_waiting(&self) -> usize {
        let peers = self.peers.iter().flatten().count();
        completions(&self.config, peers).saturating_add(2 * MAX_DATAGRAMS)
    }

    /// Returns the maximum number of work requests of a connection.
    fn depth(&self) -> usize {
        depth(&self.config)
    }
}

/// Returns the number of receives of a connection: one for each block, and some for credits, the
/// end, and those not posted again yet.
fn receives(config: &IbConfig) -> usize {
    config.blocks + CONTROL + REPOST
}

/// Returns the maximum number of work requests of a connection.
fn depth(config: &IbConfig) -> usize {
    config.blocks.max(64) + PIECES + CONTROL
}

/// Returns the maximum number of waiting completions with `peers` peers, except those of datagrams.
/// A device without room for them breaks connections.
fn completions(config: &IbConfig, peers: usize) -> usize {
    let shared = if config.blocks == 0 {
        config.shared_blocks
    } else {
        0
    };
    peers
        .saturating_mul(depth(config) + receives(config))
        .saturating_add(shared)
}

/// Allocates and registers memory.
#[allow(unsafe_code)]
fn registered(
    nic: &mut dyn Nic,
    length: usize,
    remote: bool,
) -> Result<(Memory, Registered), IbError> {
    let memory = Memory::new(length).ok_or(IbError::NoMemory)?;
    // SAFETY: kept until the interface is dropped or the registration has ended; read and written
    // by copies only.
    let keys = unsafe { nic.register(memory.address(), memory.length(), remote) }?;
    Ok((memory, keys))
}

/// Creates the shared receive queue with all its blocks.
fn share(nic: &mut dyn Nic, config: &IbConfig) -> Result<(Memory, Registered), IbError> {
    let (memory, keys) = registered(nic, config.shared_blocks * BLOCK, false)?;
    for index in 0..config.shared_blocks {
        post_shared(nic, config, (&memory, keys.lkey), index as u32)?;
    }
    Ok((memory, keys))
}

/// Adds a block to the shared receive queue.
#[allow(unsafe_code)]
fn post_shared(
    nic: &mut dyn Nic,
    config: &IbConfig,
    (memory, lkey): (&Memory, u32),
    index: u32,
) -> Result<(), crate::nic::NicError> {
    let address = (memory.address() + index as usize * BLOCK) as u64;
    let buffer = Sge {
        address,
        length: BLOCK as u32,
        lkey,
    };
    // SAFETY: registered memory of the transport, dropped after the interface.
    unsafe { nic.share(index, buffer, config.shared_blocks) }
}
