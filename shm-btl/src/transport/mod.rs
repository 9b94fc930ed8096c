//! The transport: what a process has of its own, its peers, and the calls of the contract.

mod contract;
mod events;
mod one_sided;
mod parting;
mod peer;
mod send;
mod sharing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use btl::{PeerError, Rank, SendError};
use rustix::event::epoll;
use rustix::pipe::PipeFlags;

use crate::attach::{allow_others, introduce};
use crate::board::Board;
use crate::card::{Card, sum};
use crate::cma::Probe;
use crate::config::{Copies, ShmConfig, ShmError};
use crate::host::{Host, start_time};
use crate::layout::{About, CLAIMS_MAGIC, Common, DATA_MAGIC, Layout};
use crate::pool::Pool;
use crate::regions::Regions;
use shmem::{Access, Bytes, LINE, Line, Mapping, Shared, SharedFile, SharedSlice, SleepEpoch};

use peer::{Entry, Lane, Peer};

/// How often peers' liveness is looked at, at most, while `progress` is called.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Calls of `progress` that are further apart are not made without pause; about two ticks of the coarse clock.
const TICK: Duration = Duration::from_millis(10);
/// Messages of one peer in a call of `progress`, so that others come to their turn.
const BATCH: usize = 32;

/// The byte transport between processes of one node. See the crate's documentation, and [`btl::Btl`] for what it promises.
pub struct ShmBtl {
    config: ShmConfig,
    job: u64,
    host: Host,
    layout: Layout,
    card: Vec<u8>,
    /// Gone after `close`.
    own: Option<Own>,
    peers: Vec<Entry>,
    /// Receiving ends, apart from the peers: `progress` holds them while callbacks use the rest.
    lanes: Vec<Lane>,
    /// Peers that are there, or hold chunks.
    live: usize,
    /// Those of which something is still out.
    parting: Vec<Rank>,
    /// Cross-memory attach is wanted, and works with ourselves.
    one_copy: bool,
    /// Sleepers' fences reach this process.
    registered: bool,
    nonce: [u64; 2],
    /// What peers were given keys for.
    regions: Regions,
    /// Messages that both sides copy, and whose end is not reported yet.
    sharing: usize,
    /// Messages of ours that peers copy, and that we help with.
    helping: usize,
    /// When liveness was looked at last, by the coarse clock.
    looked: Duration,
    /// Look at once: something ended.
    look_now: bool,
    /// Calls of `progress` since the clock was read, and how many make it worth to read it again.
    calls: u32,
    calls_between: u32,
    /// When the clock was read last.
    read_clock: Duration,
}

/// What a process has until it closes.
struct Own {
    data: std::sync::Arc<Mapping>,
    common: Shared<Common>,
    pool: Pool,
    board: Board,
    sleep: SleepEpoch,
    /// Descriptors that the card names.
    _files: [OwnedFd; 2],
    pipe: (OwnedFd, OwnedFd),
    epoll: OwnedFd,
    /// Peers read and write it.
    _probe: Box<Probe>,
}

impl fmt::Debug for ShmBtl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmBtl")
            .field("rank", &self.config.rank)
            .field("size", &self.config.size)
            .field("peers", &self.live)
            .field("closed", &self.own.is_none())
            .finish_non_exhaustive()
    }
}

/// Marks the pipe in the epoll set; peers are their ranks.
const PIPE: u64 = u64::MAX;

impl ShmBtl {
    /// Makes the memory that peers will find. Nothing has a name; all of it is gone with the process.
    ///
    /// # Errors
    /// A configuration out of range, or what the system refused.
    pub fn new(config: ShmConfig) -> Result<ShmBtl, ShmError> {
        let layout = config.layout()?;
        let host = Host::own().map_err(ShmError::system("reading /proc"))?;
        let random = || getrandom::u64().map_err(|_| std::io::Error::other("no random numbers"));
        let nonce = [random(), random()].map(|n| n.map_err(ShmError::system("random numbers")));
        let [nonce0, nonce1] = nonce;
        let nonce = [nonce0?, nonce1?];

        let memfd = "making shared memory (memfd)";
        let (data_file, data) = SharedFile::create_private("shm-btl", layout.data_bytes())
            .map_err(ShmError::system(memfd))?;
        let claims_file = SharedFile::create("shm-btl-claims", layout.claims_bytes())
            .map_err(ShmError::system(memfd))?;
        let claims = claims_file
            .map(0, claims_file.len(), Access::Write)
            .map_err(ShmError::system(memfd))?;
        let (data_fd, claims_fd) = (data_file.into_fd(), claims_file.into_fd());
        let common = Shared::<Common>::new(&data, 0);
        introduce(&common.about.0, DATA_MAGIC, nonce);
        introduce(
            &Shared::<Line<About>>::new(&claims, 0).0,
            CLAIMS_MAGIC,
            nonce,
        );
        let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(ShmError::system("making a pipe"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(ShmError::system("making an epoll set"))?;
        epoll::add(
            &epoll,
            &pipe.0,
            epoll::EventData::new_u64(PIPE),
            epoll::EventFlags::IN,
        )
        .map_err(ShmError::system("epoll_ctl"))?;

        allow_others().map_err(ShmError::system("prctl(PR_SET_PTRACER)"))?;
        let probe = Probe::new(nonce);
        let pid = std::process::id();
        let one_copy = config.copies == Copies::OneIfAllowed
            && Probe::try_on(pid, probe.address(), nonce) == Ok(true);
        let job = sum(config.job.as_bytes());
        let number = |fd: &OwnedFd| fd.as_raw_fd().unsigned_abs();
        let card = Card {
            job,
            rank: config.rank,
            host: host.clone(),
            pid,
            started: start_time(pid).map_err(ShmError::system("reading /proc"))?,
            data: number(&data_fd),
            claims: number(&claims_fd),
            bell: number(&pipe.1),
            layout,
            nonce,
            probe: if one_copy { probe.address() } else { 0 },
            no_heavy_fence: !shmem::register_global_fence(),
        };
        let chunk = |i: u32| {
            let at = layout.chunks_at() + i as usize * layout.chunk_stride();
            Bytes::new(&data, at, layout.chunk_stride())
        };
        let own = Own {
            pool: Pool::new((0..layout.chunks).map(chunk).collect()),
            board: Board::new(
                common.clone(),
                SharedSlice::new(&claims, LINE, layout.claims()),
            ),
            sleep: SleepEpoch::default(),
            common,
            data,
            _files: [data_fd, claims_fd],
            pipe,
            epoll,
            _probe: probe,
        };
        Ok(ShmBtl {
            job,
            host,
            layout,
            card: card.encode(),
            own: Some(own),
            peers: (0..config.size).map(|_| Entry::Never).collect(),
            lanes: Vec::new(),
            live: 0,
            parting: Vec::new(),
            one_copy,
            registered: !card.no_heavy_fence,
            nonce,
            regions: Regions::default(),
            sharing: 0,
            helping: 0,
            looked: coarse_now(),
            look_now: false,
            calls: 0,
            calls_between: 1,
            read_clock: coarse_now(),
            config,
        })
    }

    /// The peer, if something can be sent to it.
    #[inline]
    fn peer(&mut self, rank: Rank) -> Result<(&mut Own, &mut Peer), SendError> {
        let Some(own) = &mut self.own else {
            return Err(SendError::Closed);
        };
        match self.peers.get_mut(rank as usize) {
            Some(Entry::Here(peer)) => match &peer.ending {
                None => Ok((own, peer)),
                Some(error) => Err(SendError::Failed {
                    peer: rank,
                    error: error.clone(),
                }),
            },
            Some(Entry::Parting(peer)) => {
                let error = peer.ending.clone().unwrap_or(PeerError::Died);
                Err(SendError::Failed { peer: rank, error })
            }
            Some(Entry::Gone(error)) => Err(SendError::Failed {
                peer: rank,
                error: error.clone(),
            }),
            Some(Entry::Never) | None => Err(SendError::NoPeer(rank)),
        }
    }

    /// Gives a peer up; `progress` reports it. The first reason counts, but that something impossible was found counts more.
    fn end(&mut self, rank: Rank, error: PeerError) -> PeerError {
        self.look_now = true;
        if let Some(Entry::Here(peer)) = self.peers.get_mut(rank as usize) {
            let worse = matches!(error, PeerError::Violation(_));
            if peer.ending.is_none()
                || worse && !matches!(peer.ending, Some(PeerError::Violation(_)))
            {
                peer.ending = Some(error.clone());
            }
        }
        error
    }

    fn broke(&mut self, rank: Rank, scribble: crate::Scribble) -> SendError {
        SendError::Failed {
            peer: rank,
            error: self.end(rank, PeerError::Violation(scribble.to_string())),
        }
    }

    /// Receives of peers that say they are filling this receive.
    fn stands_by(peers: &[Entry], who: Option<Rank>, id: u64) -> bool {
        let one = |entry: &Entry| matches!(entry, Entry::Here(peer) | Entry::Parting(peer) if crate::board::stands_by(peer.producer.theirs(), id));
        match who {
            Some(rank) => peers.get(rank as usize).is_some_and(one),
            None => peers.iter().any(one),
        }
    }
}

impl Drop for ShmBtl {
    fn drop(&mut self) {
        btl::Btl::close(self);
    }
}

/// A clock that costs a few nanoseconds and is milliseconds coarse.
fn coarse_now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

impl Own {
    /// Own words and memory for a rank.
    fn pair(&self, layout: &Layout, rank: Rank) -> OwnPair {
        let at = layout.pair_at(rank);
        self.data.populate(at, layout.ring_at());
        OwnPair {
            head: Shared::new(&self.data, at),
            slots: SharedSlice::new(&self.data, at + Layout::SLOTS_AT, layout.slots as usize),
            ring: Bytes::new(&self.data, at + layout.ring_at(), layout.ring as usize),
        }
    }
}

struct OwnPair {
    head: Shared<crate::layout::PairHead>,
    slots: SharedSlice<crate::layout::Slot>,
    ring: Bytes,
}
