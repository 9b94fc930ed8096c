//! State that the ranks of a job share, under one lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::memory::{self, Memory};
use btl::{PeerError, Rank};

/// A message in transit.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) header: Vec<u8>,
    pub(super) body: Vec<u8>,
}

/// Queue from one rank to another.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) queue: VecDeque<Packet>,
    /// `Busy` was returned since the last message was removed.
    pub(super) starved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Alive,
    Died,
    Left,
}

impl State {
    pub(super) fn error(self) -> Option<PeerError> {
        match self {
            State::Alive => None,
            State::Died => Some(PeerError::Died),
            State::Left => Some(PeerError::Left),
        }
    }
}

/// State of a rank.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) state: State,
    pub(super) bell: Option<Arc<OwnedFd>>,
    pub(super) armed: bool,
    pub(super) rung: bool,
    pub(super) regions: BTreeMap<u64, Memory>,
}

/// State of a job.
#[derive(Debug)]
pub(super) struct World {
    pub(super) nodes: Vec<Node>,
    lanes: Vec<Lane>,
    /// Pairs of ranks in which the first has dropped the second.
    dropped: BTreeSet<(Rank, Rank)>,
    names: u64,
}

impl World {
    pub(super) fn new(bells: Vec<Option<Arc<OwnedFd>>>) -> World {
        let size = bells.len();
        let nodes = bells
            .into_iter()
            .map(|bell| Node {
                state: State::Alive,
                bell,
                armed: false,
                rung: false,
                regions: BTreeMap::new(),
            })
            .collect();
        World {
            nodes,
            lanes: (0..size * size).map(|_| Lane::default()).collect(),
            dropped: BTreeSet::new(),
            names: 0,
        }
    }

    /// Returns a number that is new in this job.
    pub(super) fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub(super) fn node(&mut self, rank: Rank) -> &mut Node {
        &mut self.nodes[rank as usize]
    }

    pub(super) fn lane(&mut self, from: Rank, to: Rank) -> &mut Lane {
        let size = self.nodes.len();
        &mut self.lanes[to as usize * size + from as usize]
    }

    /// Returns why `rank` cannot use `peer`, if so.
    pub(super) fn error(&self, rank: Rank, peer: Rank) -> Option<PeerError> {
        let lost = |why: &str| Some(PeerError::Lost(why.into()));
        if self.dropped.contains(&(rank, peer)) {
            return lost("this process dropped the peer");
        }
        let error = self.nodes.get(peer as usize)?.state.error();
        error.or_else(|| {
            if self.dropped.contains(&(peer, rank)) {
                lost("the peer dropped this process")
            } else {
                None
            }
        })
    }

    /// Drops `peer` at `rank`. The peer still receives the messages sent to it.
    pub(super) fn drop_peer(&mut self, rank: Rank, peer: Rank) {
        if self.dropped.insert((rank, peer)) {
            self.lane(peer, rank).queue.clear();
            self.wake(peer);
            self.wake(rank);
        }
    }

    /// Wakes `rank` if it sleeps.
    pub(super) fn wake(&mut self, rank: Rank) {
        let node = self.node(rank);
        if !node.armed {
            return;
        }
        node.armed = false;
        if let Some(bell) = &node.bell {
            // Cannot fail: the counter is 0 or 1, far from its end.
            node.rung = rustix::io::write(bell, &1u64.to_ne_bytes()).is_ok();
        }
    }

    /// Marks `rank` as awake.
    pub(super) fn awake(&mut self, rank: Rank) {
        let node = self.node(rank);
        node.armed = false;
        if std::mem::take(&mut node.rung)
            && let Some(bell) = &node.bell
        {
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
        }
    }

    /// Removes the oldest message from one rank to another.
    pub(super) fn take(&mut self, from: Rank, to: Rank) -> Option<Packet> {
        let lane = self.lane(from, to);
        let packet = lane.queue.pop_front()?;
        if std::mem::take(&mut lane.starved) {
            self.wake(from);
        }
        Some(packet)
    }

    /// Copies between a rank's memory and a peer's region.
    pub(super) fn copy(
        &mut self,
        (rank, peer): (Rank, Rank),
        region: u64,
        offset: usize,
        local: Memory,
        put: bool,
    ) -> Result<(), PeerError> {
        if let Some(error) = self.error(rank, peer) {
            return Err(error);
        }
        let node = self.node(peer);
        let Some(remote) = node
            .regions
            .get(&region)
            .and_then(|all| all.part(offset, local.len()))
        else {
            return Err(PeerError::Violation(
                "the peer deregistered its region".into(),
            ));
        };
        if put {
            memory::copy(local, remote)
        } else {
            memory::copy(remote, local)
        };
        Ok(())
    }

    /// Ends a rank: its memory becomes inaccessible, its messages remain, messages to it are
    /// dropped.
    pub(super) fn end(&mut self, rank: Rank, state: State) {
        let node = self.node(rank);
        if node.state != State::Alive {
            return;
        }
        node.state = state;
        node.regions.clear();
        for other in 0..self.nodes.len() {
            let other = other as Rank;
            self.lane(other, rank).queue.clear();
            self.wake(other);
        }
    }
}
