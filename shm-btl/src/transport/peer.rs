//! Adding a peer, and what is kept of it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use btl::{PeerError, PeerInfo, Rank, Unreachable};
use rustix::event::epoll;

use super::sharing::Sharing;
use super::{Own, ShmBtl};
use crate::attach::{Attached, attach, eligible, probe};
use crate::card::Card;
use crate::fifo::{Consumer, Producer};
use crate::layout::{Common, END_OPEN, END_REFUSED, PairHead};
use crate::topology::{CpuSet, Relation, allowed};
use shmem::sync::{AtomicU64, Ordering};
use shmem::{Fence, PeerSleep, Shared, SharedSlice};

/// What became of a rank.
#[derive(Debug)]
pub(super) enum Entry {
    Never,
    Here(Box<Peer>),
    /// Over, and not yet all of it given back; see `parting.rs`.
    Parting(Box<Peer>),
    Gone(PeerError),
}

/// A peer that is there, as far as known: the sending end.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) producer: Producer,
    /// The peer's words for all.
    pub(super) common: Shared<Common>,
    pub(super) sleep: PeerSleep,
    pub(super) claims: SharedSlice<AtomicU64>,
    pub(super) bell: OwnedFd,
    pub(super) pidfd: OwnedFd,
    pub(super) pid: u32,
    /// Cross-memory attach works with it.
    pub(super) one_sided: bool,
    /// What its region keys begin with.
    pub(super) nonce: u64,
    /// Its messages that both sides copy.
    pub(super) sharing: Sharing,
    /// It is over; `progress` reports that when what it has sent is delivered.
    pub(super) ending: Option<PeerError>,
    /// By this process: nothing of it is delivered any more.
    pub(super) closed_out: bool,
    /// Since when it may not begin to copy into this process's memory (coarse clock).
    pub(super) shut: Option<Duration>,
    /// Its end was reported.
    pub(super) told: bool,
}

impl Peer {
    /// Behind something published: wakes the peer if it sleeps.
    #[inline]
    pub(super) fn ring(&mut self) {
        if self.sleep.needs_wake(&self.common.sleep.0) {
            self.write_bell();
        }
    }

    #[cold]
    fn write_bell(&self) {
        // A full pipe wakes as well as another byte would. We hold the reading end, so there is no other error.
        let _ = rustix::io::write(&self.bell, &[1]);
    }
}

/// A peer's receiving end.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) rank: Rank,
    /// In front of looking whether the sender waits for room.
    pub(super) fence: Fence,
    pub(super) consumer: Consumer,
}

impl ShmBtl {
    pub(super) fn add(&mut self, rank: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        self.try_add(rank, address).map_err(|reason| {
            self.tell_refused(rank, address);
            Unreachable {
                reason: format!("shared memory: {reason}"),
            }
        })
    }

    /// Permissions can be such that the peer reaches us although we do not reach it. It then must not send into memory that nobody
    /// reads: our own memory says so. Ranks of other nodes cannot see that, and get no page for it.
    fn tell_refused(&self, rank: Rank, address: &[u8]) {
        let (Some(own), Some(Entry::Never)) = (&self.own, self.peers.get(rank as usize)) else {
            return;
        };
        if Card::decode(address).is_ok_and(|card| card.host.boot == self.host.boot) {
            let head = Shared::<PairHead>::new(&own.data, self.layout.pair_at(rank));
            head.writing.0.end.store(END_REFUSED, Ordering::Release);
        }
    }

    fn try_add(&mut self, rank: Rank, address: &[u8]) -> Result<PeerInfo, String> {
        let Some(own) = &mut self.own else {
            return Err("the transport is closed".into());
        };
        match self.peers.get(rank as usize) {
            Some(Entry::Never) => {}
            Some(_) => return Err(format!("rank {rank} was added before")),
            None => return Err(format!("rank {rank} is not one of {}", self.config.size)),
        }
        if address.is_empty() {
            return Err("the peer offers none".into());
        }
        let card = Card::decode(address).map_err(|error| error.to_string())?;
        eligible(
            &card,
            rank,
            self.job,
            &self.host,
            &self.layout,
            &self.config,
        )?;
        let there = attach(&card, self.config.rank)?;
        if rank != self.config.rank
            && there.pair.writing.0.end.load(Ordering::Acquire) == END_REFUSED
        {
            return Err("the peer could not reach this process this way".into());
        }
        epoll::add(
            &own.epoll,
            &there.pidfd,
            epoll::EventData::new_u64(u64::from(rank)),
            epoll::EventFlags::IN,
        )
        .map_err(|error| format!("epoll_ctl: {error}"))?;
        let one_copy = probe(&card, &self.host, self.config.copies);
        let ranks = (self.config.rank, rank);
        let light = self.registered && !card.no_heavy_fence;
        let fence = if light { Fence::Light } else { Fence::Full };
        let (peer, lane) = join(
            own,
            &self.layout,
            ranks,
            &card,
            there,
            (one_copy.is_ok(), fence),
        );
        peer.producer
            .mine()
            .writing
            .0
            .end
            .store(END_OPEN, Ordering::Release);
        self.peers[rank as usize] = Entry::Here(Box::new(peer));
        self.lanes.push(lane);
        self.live += 1;
        Ok(self.path(&card, &one_copy))
    }

    fn path(&self, card: &Card, one_copy: &Result<(), String>) -> PeerInfo {
        let (mine, theirs) = (allowed(None), allowed(Some(card.pid)));
        let relation = self.config.topology.relation(&mine, &theirs);
        let max_send = self.layout.longest();
        let from = self.config.thresholds.of(relation);
        let (copies, eager, one_sided_from, bandwidth) = match one_copy {
            Ok(()) => {
                let text = format!(
                    "one copy by cross-memory attach from {from} bytes on (probed: read and wrote its memory), two below"
                );
                (text, from.min(max_send), from, 10_000)
            }
            Err(why) => (why.clone(), max_send, usize::MAX, 5_000),
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
                card.pid,
                cpus(&mine),
                cpus(&theirs)
            ),
        }
    }
}

fn join(
    own: &Own,
    layout: &crate::layout::Layout,
    (me, rank): (Rank, Rank),
    card: &Card,
    there: Attached,
    (one_sided, fence): (bool, Fence),
) -> (Peer, Lane) {
    let here = own.pair(layout, rank);
    let producer = Producer::new(
        (me, rank),
        here.slots,
        here.ring,
        here.head.clone(),
        there.pair.clone(),
        own.pool.len().min(layout.slots as usize),
    );
    let pool = (there.pool, layout.chunk_stride());
    let consumer = Consumer::new(
        (rank, me),
        there.slots,
        there.ring,
        pool,
        here.head,
        there.pair,
    );
    let peer = Peer {
        producer,
        common: there.common,
        sleep: PeerSleep::new(fence),
        claims: there.claims,
        bell: there.bell,
        pidfd: there.pidfd,
        pid: card.pid,
        one_sided,
        nonce: card.nonce[0],
        sharing: Sharing::default(),
        ending: None,
        closed_out: false,
        shut: None,
        told: false,
    };
    (
        peer,
        Lane {
            rank,
            fence,
            consumer,
        },
    )
}

/// `CPU 3`, `CPUs 0-7`, `16 CPUs`: for people.
fn cpus(set: &CpuSet) -> String {
    match (set.first(), set.last()) {
        (Some(first), Some(last)) if first == last => format!("CPU {first}"),
        (Some(first), Some(last)) if (last - first) as usize + 1 == set.len() => {
            format!("CPUs {first}-{last}")
        }
        _ => format!("{} CPUs", set.len()),
    }
}
