//! Adding a peer, and its state.

use std::os::fd::OwnedFd;
use std::time::Duration;

use btl::{PeerError, PeerInfo, Rank, Unreachable};
use rustix::event::epoll;

use super::{Own, ShmBtl};
use crate::address::ShmAddress;
use crate::attach::{Attached, Files, eligible, probe};
use crate::cma::CmaError;
use crate::fifo::{Consumer, Producer};
use crate::layout::{CHUNK_STRIDE, Common, END_OPEN, END_REFUSED, Layout, MAX_MESSAGE, PairHead};
use crate::revoke::is_revoked;
use crate::topology::{CpuSet, Relation, allowed};
use shmem::sync::Ordering;
use shmem::{Fence, PeerSleep, Shared};

/// State of a rank.
#[derive(Debug)]
pub(super) enum PeerState {
    NotAdded,
    /// Added to an open transport, and not connected yet (`open.rs`).
    Joining,
    Added(Box<Peer>),
    Closed(PeerError),
}

/// A peer, with the sending end.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) producer: Producer,
    /// The peer's words for all processes.
    pub(super) common: Shared<Common>,
    pub(super) sleep: PeerSleep,
    pub(super) bell: OwnedFd,
    pub(super) pidfd: OwnedFd,
    pub(super) pid: u32,
    /// Cross-memory attach works with the peer.
    pub(super) one_sided: bool,
    /// First word of the peer's region keys.
    pub(super) nonce: u64,
    /// Id of the last `get` for which the peer was asked to help.
    pub(super) last_offer: u32,
    /// Reason of the peer's end; `progress` reports it once everything that the peer sent is
    /// delivered.
    pub(super) ending: Option<PeerError>,
    /// Ended by this process: no message of the peer is delivered any more.
    pub(super) closed_here: bool,
    /// Time when the peer's permission to copy from and into this process's memory was revoked
    /// (coarse clock).
    pub(super) revoked_at: Option<Duration>,
    /// Everything that the peer sent is delivered, but its memory is not released yet; see
    /// `teardown.rs`.
    pub(super) closing: bool,
    /// The end of the peer was reported.
    pub(super) reported: bool,
}

impl Peer {
    /// Wakes the peer if it sleeps. Call it after publishing.
    #[inline]
    pub(super) fn ring(&mut self) {
        if self.sleep.needs_wake(&self.common.sleep.0) {
            // A full pipe wakes as well as another byte would. This process holds the reading end,
            // so there is no other error.
            let _ = rustix::io::write(&self.bell, &[1]);
        }
    }

    /// Returns true if no message of the peer is delivered any more.
    pub(super) fn is_cut_off(&self) -> bool {
        self.closed_here || matches!(self.ending, Some(PeerError::Violation(_)))
    }

    /// Returns true if the peer has ended the connection or closed, so that it may use its memory
    /// for something else.
    fn has_revoked(&self) -> bool {
        // SYNC POINT revoke
        is_revoked(self.producer.theirs()) || self.has_left()
    }

    /// Returns the result of a copy of the peer's memory. The copy has failed if the peer may have
    /// used that memory for something else in the meantime.
    pub(super) fn copied_from(&self, result: Result<(), CmaError>) -> Result<(), CmaError> {
        match result {
            Ok(()) | Err(CmaError::Fault) if self.has_revoked() => Err(CmaError::Revoked),
            other => other,
        }
    }

    /// Returns true if the peer has closed. Its earlier messages are visible then.
    pub(super) fn has_left(&self) -> bool {
        self.common.about.0.left.load(Ordering::Acquire) != 0
    }
}

/// The receiving end of a peer.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) rank: Rank,
    pub(super) consumer: Consumer,
}

impl ShmBtl {
    pub(super) fn add(&mut self, rank: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        if self.open.is_some() {
            return self.add_open(rank, address);
        }
        self.add_inner(rank, address).map_err(|reason| {
            self.publish_refused(rank, address);
            Unreachable {
                reason: format!("shared memory: {reason}"),
            }
        })
    }

    /// Publishes that this process cannot reach a peer. The peer may have reached this process, and
    /// must not send into memory that is never read. Ranks of other nodes cannot read it, and get
    /// no page for it.
    fn publish_refused(&self, rank: Rank, address: &[u8]) {
        let (Some(own), Some(PeerState::NotAdded)) = (&self.own, self.peers.get(rank as usize))
        else {
            return;
        };
        if ShmAddress::decode(address).is_ok_and(|address| address.node.boot == self.node.boot) {
            let head = Shared::<PairHead>::new(&own.data, self.layout.pair_at(rank));
            head.end.0.store(END_REFUSED, Ordering::Release);
        }
    }

    fn add_inner(&mut self, rank: Rank, address: &[u8]) -> Result<PeerInfo, String> {
        let Some(own) = &mut self.own else {
            return Err("the transport is closed".into());
        };
        match self.peers.get(rank as usize) {
            Some(PeerState::NotAdded) => {}
            Some(_) => return Err(format!("rank {rank} was added before")),
            None => {
                return Err(format!(
                    "rank {rank} is not in a job of {}",
                    self.config.size
                ));
            }
        }
        if address.is_empty() {
            return Err("the peer does not offer it".into());
        }
        let address = ShmAddress::decode(address).map_err(|error| error.to_string())?;
        eligible(&address, rank, self.job, &self.node)?;
        let there = Files::open(&address, &self.layout)?.attach(&self.layout, self.config.rank)?;
        if rank != self.config.rank && there.pair.end.0.load(Ordering::Acquire) == END_REFUSED {
            return Err("the peer could not reach this process this way".into());
        }
        let data = epoll::EventData::new_u64(rank.into());
        epoll::add(&own.epoll, &there.pidfd, data, epoll::EventFlags::IN)
            .map_err(|error| format!("epoll_ctl: {error}"))?;
        let one_copy = probe(&address, &self.node, self.config.one_copy);
        let places = (self.config.rank, rank);
        self.connect(rank, places, &address, there, one_copy.is_ok());
        Ok(self.path(&address, &one_copy))
    }

    /// Connects a peer. `places`: index of the pair for this process in the peer's memory, and of
    /// the pair for the peer in this process's memory.
    pub(super) fn connect(
        &mut self,
        rank: Rank,
        places: (u32, u32),
        address: &ShmAddress,
        there: Attached,
        one_sided: bool,
    ) {
        let Some(own) = &self.own else { return };
        let fence = if self.registered && !address.no_heavy_fence {
            Fence::Light
        } else {
            Fence::Full
        };
        let (mut peer, mut from) = join(own, &self.layout, places, address, there, fence);
        peer.one_sided = one_sided;
        from.rank = rank;
        let end = &peer.producer.mine().end.0;
        end.store(END_OPEN, Ordering::Release);
        self.peers[rank as usize] = PeerState::Added(Box::new(peer));
        self.inbound.push(from);
        self.live += 1;
    }

    pub(super) fn path(&self, address: &ShmAddress, one_copy: &Result<(), String>) -> PeerInfo {
        let (mine, theirs) = (allowed(None), allowed(Some(address.pid)));
        let relation = self.topology.relation(&mine, &theirs);
        let max_send = MAX_MESSAGE;
        let from = self.config.thresholds.of(relation);
        let (copies, eager, one_sided_from, bandwidth) = match one_copy {
            Ok(()) => {
                let text = format!(
                    "one copy by cross-memory attach for {from} bytes or more (probed: read and wrote its memory), two below"
                );
                (text, from.min(max_send), from, 10_000)
            }
            Err(why) => (format!("two copies: {why}"), max_send, usize::MAX, 5_000),
        };
        let latency_ns = match relation {
            Relation::SharedCache => 150,
            Relation::SameSocket | Relation::Unknown => 250,
            Relation::OtherSocket => 450,
        };
        PeerInfo {
            latency_ns,
            bandwidth,
            exclusivity: 1000,
            eager,
            eager_skewed: max_send,
            max_send,
            one_sided: one_copy.is_ok(),
            one_sided_from,
            reason: format!(
                "shared memory with process {} ({relation}: this one on {}, that one on {}); {copies}",
                address.pid,
                cpus(&mine),
                cpus(&theirs)
            ),
        }
    }
}

fn join(
    own: &Own,
    layout: &Layout,
    (me, rank): (Rank, Rank),
    address: &ShmAddress,
    there: Attached,
    fence: Fence,
) -> (Peer, Inbound) {
    let (head, slots, ring) = own.pair(layout, rank);
    let lent = own.pool.len().min(layout.slots);
    let producer = Producer::new((me, rank), slots, ring, head.clone(), there.pair, lent);
    let consumer = Consumer::new(
        (rank, me),
        there.slots,
        there.ring,
        (there.pool, CHUNK_STRIDE),
        head,
    );
    let peer = Peer {
        producer,
        common: there.common,
        sleep: PeerSleep::new(fence),
        bell: there.bell,
        pidfd: there.pidfd,
        pid: address.pid,
        one_sided: false,
        nonce: address.nonce[0],
        last_offer: 0,
        ending: None,
        closed_here: false,
        revoked_at: None,
        closing: false,
        reported: false,
    };
    (peer, Inbound { rank, consumer })
}

/// Formats a set of CPUs: `CPU 3`, `CPUs 0-7`, `16 CPUs`.
fn cpus(set: &CpuSet) -> String {
    match (set.first(), set.last()) {
        (Some(first), Some(last)) if first == last => format!("CPU {first}"),
        (Some(first), Some(last)) if (last - first) as usize + 1 == set.len() => {
            format!("CPUs {first}-{last}")
        }
        _ => format!("{} CPUs", set.len()),
    }
}
