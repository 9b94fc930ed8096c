//! The transport: the process's own memory, its peers, and the calls of the contract.

mod contract;
mod coop;
mod events;
mod one_sided;
mod open;
#[cfg(test)]
mod open_tests;
mod peer;
mod send;
mod teardown;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use btl::{PeerError, Rank, SendError};
use rustix::event::epoll;
use rustix::pipe::PipeFlags;

use crate::address::{ShmAddress, sum};
use crate::attach::allow_others;
use crate::cma::Probe;
use crate::config::{ShmConfig, ShmError};
use crate::layout::{CHUNK_STRIDE, Common, Layout, PairHead, Slot};
use crate::pool::Pool;
use crate::process::{NodeView, start_time};
use crate::topology::Topology;
use shmem::{Bytes, Mapping, Shared, SharedFile, SharedSlice, SleepEpoch};

use coop::{CoopGet, Helping};
use open::Open;
use peer::{Inbound, Peer, PeerState};

/// Minimum time between checks of peers' liveness by `progress`.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of messages of one peer in a call of `progress`, for fairness.
const BATCH: usize = 32;

/// Transport between processes of one node; see the crate's documentation.
pub struct ShmBtl {
    config: ShmConfig,
    job: u64,
    node: NodeView,
    topology: Topology,
    layout: Layout,
    address: Vec<u8>,
    /// `None` after `close`.
    own: Option<Own>,
    /// State of an open transport.
    open: Option<Open>,
    peers: Vec<PeerState>,
    /// Receiving ends, separate from the peers: `progress` holds them while callbacks use the rest.
    inbound: Vec<Inbound>,
    /// Number of peers that are connected or hold chunks.
    live: usize,
    /// Peers that are closing.
    closing: Vec<Rank>,
    /// Cross-memory attach is configured, and works with this process itself.
    one_copy: bool,
    /// Global fences of sleepers reach this process.
    registered: bool,
    nonce: [u64; 2],
    /// Address and length of the memory that peers have keys for, by handle.
    regions: HashMap<u64, (u64, u64)>,
    /// Handle of the last region.
    last_region: u64,
    /// Cooperative copies whose completion is not reported yet.
    gets: Vec<CoopGet>,
    /// Messages of this process that peers copy with its help.
    helping: VecDeque<Helping>,
    /// Time of the last liveness check, by the coarse clock.
    checked_at: Duration,
    /// Check at the next call of `progress`, because a peer ended.
    check_now: bool,
    /// Number of calls of `progress`, weighted by activity, since the clock was read.
    calls: u32,
}

/// State of the process until it closes.
struct Own {
    address: ShmAddress,
    data: Arc<Mapping>,
    common: Shared<Common>,
    pool: Pool,
    sleep: SleepEpoch,
    /// Descriptor of the data, named in the address.
    _file: OwnedFd,
    pipe: (OwnedFd, OwnedFd),
    epoll: OwnedFd,
    /// Memory that peers read and write as a probe.
    _probe: Box<Probe>,
}

impl fmt::Debug for ShmBtl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmBtl").finish_non_exhaustive()
    }
}

/// Key of the pipe in the epoll set; the key of a peer is its rank.
const PIPE: u64 = u64::MAX;

impl ShmBtl {
    /// Creates the memory that peers will map. It has no name, and is freed with the process.
    ///
    /// # Errors
    /// The configuration is out of range, or a system call failed.
    pub fn new(config: ShmConfig) -> Result<ShmBtl, ShmError> {
        config.check()?;
        let layout = match config.identity {
            None => Layout::of(config.size),
            Some(_) => Layout::open(),
        };
        let node = NodeView::own().map_err(ShmError::system("reading /proc"))?;
        let none = |_| io::Error::other("no random numbers");
        let random = || getrandom::u64().map_err(none);
        let first = config.identity.map_or_else(random, Ok);
        let nonce = first.and_then(|one| Ok([one, random()?]));
        let nonce = nonce.map_err(ShmError::system("random numbers"))?;
        let no_memory = ShmError::system("creating shared memory (memfd)");
        let (data_file, data) =
            SharedFile::create_private("shm-btl", layout.data_bytes()).map_err(&no_memory)?;
        let open = config.identity.map(|identity| Open::new(identity, nonce));
        let open = open.transpose().map_err(no_memory)?;
        let data_fd = data_file.into_fd();
        let common = Shared::<Common>::new(&data, 0);
        common.about.0.set_nonce(nonce);
        let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(ShmError::system("creating a pipe"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(ShmError::system("creating an epoll set"))?;
        let data_of_pipe = epoll::EventData::new_u64(PIPE);
        epoll::add(&epoll, &pipe.0, data_of_pipe, epoll::EventFlags::IN)
            .map_err(ShmError::system("epoll_ctl"))?;

        allow_others().map_err(ShmError::system("prctl(PR_SET_PTRACER)"))?;
        let probe = Probe::new(nonce);
        let pid = std::process::id();
        let one_copy = config.one_copy && Probe::try_on(pid, probe.address(), nonce) == Ok(true);
        let job = sum(&[config.job.as_bytes(), &config.size.to_le_bytes()].concat());
        let number = |fd: &OwnedFd| fd.as_raw_fd().unsigned_abs();
        let address = ShmAddress {
            job,
            rank: config.rank,
            node: node.clone(),
            pid,
            started: start_time(pid).map_err(ShmError::system("reading /proc"))?,
            data: number(&data_fd),
            bell: number(&pipe.1),
            requests: open.as_ref().map(|open| number(open.file())),
            nonce,
            probe: if one_copy { probe.address() } else { 0 },
            no_heavy_fence: !shmem::register_global_fence(),
        };
        if config.identity.is_some() {
            open::publish(&address, &common);
        }
        let chunk = |i| Bytes::new(&data, layout.chunks_at() + i * CHUNK_STRIDE, CHUNK_STRIDE);
        let encoded = match config.identity {
            None => address.encode(),
            Some(identity) => open::short(identity, &address),
        };
        let registered = !address.no_heavy_fence;
        let own = Own {
            address,
            pool: Pool::new((0..layout.chunks).map(chunk).collect()),
            sleep: SleepEpoch::default(),
            common,
            data,
            _file: data_fd,
            pipe,
            epoll,
            _probe: probe,
        };
        Ok(ShmBtl {
            job,
            node,
            topology: Topology::default(),
            layout,
            open,
            address: encoded,
            own: Some(own),
            peers: match config.identity {
                None => (0..config.size).map(|_| PeerState::NotAdded).collect(),
                Some(_) => Vec::new(),
            },
            inbound: Vec::new(),
            live: 0,
            closing: Vec::new(),
            one_copy,
            registered,
            nonce,
            regions: HashMap::new(),
            last_region: 0,
            gets: Vec::new(),
            helping: VecDeque::new(),
            checked_at: coarse_now(),
            check_now: false,
            calls: 0,
            config,
        })
    }

    /// Returns the peer, if messages can be sent to it.
    #[inline]
    fn peer(&mut self, rank: Rank) -> Result<(&mut Own, &mut Peer), SendError> {
        let Some(own) = &mut self.own else {
            return Err(SendError::Closed);
        };
        let error = match self.peers.get_mut(rank as usize) {
            Some(PeerState::Added(peer)) => match &peer.ending {
                None => return Ok((own, peer)),
                Some(error) => error,
            },
            Some(PeerState::Joining) => return Err(SendError::Busy),
            Some(PeerState::Closed(error)) => error,
            Some(PeerState::NotAdded) | None => return Err(SendError::NoPeer(rank)),
        };
        Err(SendError::Failed {
            peer: rank,
            error: error.clone(),
        })
    }

    /// Returns a peer that was added and still has memory of this process.
    fn added(&self, rank: Rank) -> Option<&Peer> {
        match self.peers.get(rank as usize)? {
            PeerState::Added(peer) => Some(peer),
            _ => None,
        }
    }

    /// Returns an added peer, mutably.
    fn added_mut(&mut self, rank: Rank) -> Option<&mut Peer> {
        match self.peers.get_mut(rank as usize)? {
            PeerState::Added(peer) => Some(peer),
            _ => None,
        }
    }

    /// Ends a peer, which `progress` reports. The first reason is kept, unless a later one is a
    /// violation.
    fn end(&mut self, rank: Rank, error: PeerError) -> PeerError {
        self.check_now = true;
        self.end_joining(rank, &error);
        if let Some(peer) = self.added_mut(rank).filter(|peer| !peer.closing) {
            let violation = |error: &PeerError| matches!(error, PeerError::Violation(_));
            let stays = |known: &PeerError| violation(known) || !violation(&error);
            if !peer.ending.as_ref().is_some_and(stays) {
                peer.ending = Some(error.clone());
            }
        }
        error
    }

    fn broke(&mut self, rank: Rank, corruption: crate::Corruption) -> SendError {
        SendError::Failed {
            peer: rank,
            error: self.end(rank, PeerError::Violation(corruption.to_string())),
        }
    }
}

impl Drop for ShmBtl {
    fn drop(&mut self) {
        btl::Btl::close(self);
    }
}

/// Reads a clock that costs a few nanoseconds and has a resolution of milliseconds.
fn coarse_now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

impl Own {
    /// Returns the process's own words, slots and ring for a rank.
    fn pair(&self, layout: &Layout, rank: Rank) -> (Shared<PairHead>, SharedSlice<Slot>, Bytes) {
        let (data, at) = (&self.data, layout.pair_at(rank));
        data.populate(at, layout.ring_at());
        (
            Shared::new(data, at),
            SharedSlice::slice(data, at + Layout::SLOTS_AT, layout.slots),
            Bytes::new(data, at + layout.ring_at(), layout.ring),
        )
    }
}
