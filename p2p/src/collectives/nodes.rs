//! Nodes of a communicator's ranks, and collectives in two levels: within each node, and between
//! the leaders, one rank of each node. A message between nodes costs several times one within a
//! node, and all ranks of a node share its link.

use std::collections::HashMap;

use btl::Rank;

use super::messages::{Messages, cut};
use super::op::Reduction;
use super::{Block, exchange, reductions};
use crate::error::Error;
use crate::group::Group;
use crate::memory::Datum;

/// Ranks of a communicator by node.
#[derive(Debug)]
pub(crate) struct Placement {
    /// Ranks of each node in ascending order; nodes in the order of their first rank.
    nodes: Vec<Vec<Rank>>,
    /// Index of each rank's node.
    node_of: Vec<usize>,
    is_consecutive: bool,
}

impl Placement {
    /// Returns the placement of a group, or `None` if there is only one level: one node, or one
    /// rank on each. `nodes`: see [`Config::nodes`](crate::Config::nodes).
    pub(crate) fn of(group: &Group, nodes: &[u32]) -> Option<Placement> {
        let mut numbers = HashMap::new();
        let mut all: Vec<Vec<Rank>> = Vec::new();
        let mut node_of = Vec::new();
        for rank in 0..group.size() {
            let node = nodes.get(group.peer(rank)?.rank() as usize)?;
            let number = *numbers.entry(node).or_insert(all.len());
            if number == all.len() {
                all.push(Vec::new());
            }
            all[number].push(rank);
            node_of.push(number);
        }
        if all.len() < 2 || all.len() == node_of.len() {
            return None;
        }
        Some(Placement {
            is_consecutive: node_of.is_sorted(),
            nodes: all,
            node_of,
        })
    }

    /// Returns whether the ranks of each node are consecutive.
    pub(crate) fn is_consecutive(&self) -> bool {
        self.is_consecutive
    }
}

/// The two levels as one rank sees them.
struct Levels<'a> {
    /// Messages within this rank's node.
    local: Messages<'a>,
    /// Index of the leader among the ranks of this rank's node.
    leader: usize,
    /// Messages between leaders, if this rank is one.
    leaders: Option<Messages<'a>>,
}

/// Returns the leader of each node: `root` for its own node, elsewhere the first rank.
fn leaders(placement: &Placement, root: usize) -> Vec<Rank> {
    let root_node = placement.node_of.get(root);
    let leader = |(node, ranks): (usize, &Vec<Rank>)| match Some(&node) == root_node {
        true => root as Rank,
        false => ranks.first().copied().unwrap_or_default(),
    };
    placement.nodes.iter().enumerate().map(leader).collect()
}

/// Returns the levels of an operation with these leaders, and the index of this rank's node.
fn levels<'a>(
    messages: &Messages<'a>,
    placement: &'a Placement,
    leaders: &'a [Rank],
) -> Result<(Levels<'a>, usize), Error> {
    // The group of a placement contains this rank.
    let absent = || Error::InvalidArgument("this rank is on no node");
    let node = *placement.node_of.get(messages.rank).ok_or_else(absent)?;
    let (members, leader) = placement
        .nodes
        .get(node)
        .zip(leaders.get(node))
        .ok_or_else(absent)?;
    let levels = Levels {
        local: messages.among(members).ok_or_else(absent)?,
        leader: members.iter().position(|rank| rank == leader).unwrap_or(0),
        leaders: messages.among(leaders),
    };
    Ok((levels, node))
}

pub(crate) fn barrier(messages: &Messages<'_>, placement: &Placement) -> Result<(), Error> {
    let nothing = Reduction::<u8> {
        combine: &|_, _| (),
        commutative: true,
        unit: 1,
    };
    let leaders = leaders(placement, 0);
    let (levels, _) = levels(messages, placement, &leaders)?;
    reductions::reduce(&levels.local, &mut [], &nothing, levels.leader)?;
    if let Some(leaders) = &levels.leaders {
        exchange::barrier(leaders)?;
    }
    exchange::bcast::<u8>(&levels.local, &mut [], levels.leader)
}

pub(crate) fn bcast<T: Datum>(
    messages: &Messages<'_>,
    placement: &Placement,
    data: &mut [T],
    root: usize,
) -> Result<(), Error> {
    let leaders = leaders(placement, root);
    let (levels, _) = levels(messages, placement, &leaders)?;
    if let Some(leaders) = &levels.leaders {
        exchange::bcast(leaders, data, placement.node_of[root])?;
    }
    exchange::bcast(&levels.local, data, levels.leader)
}

pub(crate) fn reduce<T: Datum>(
    messages: &Messages<'_>,
    placement: &Placement,
    data: &mut [T],
    op: &Reduction<'_, T>,
    root: usize,
) -> Result<(), Error> {
    let leaders = leaders(placement, root);
    let (levels, _) = levels(messages, placement, &leaders)?;
    let mut sum = data.to_vec();
    reductions::reduce(&levels.local, &mut sum, op, levels.leader)?;
    if let Some(leaders) = &levels.leaders {
        reductions::reduce(leaders, &mut sum, op, placement.node_of[root])?;
    }
    if messages.rank == root {
        data.copy_from_slice(&sum);
    }
    Ok(())
}

pub(crate) fn allreduce<T: Datum>(
    messages: &Messages<'_>,
    placement: &Placement,
    data: &mut [T],
    op: &Reduction<'_, T>,
) -> Result<(), Error> {
    let leaders = leaders(placement, 0);
    let (levels, _) = levels(messages, placement, &leaders)?;
    reductions::reduce(&levels.local, data, op, levels.leader)?;
    if let Some(leaders) = &levels.leaders {
        reductions::allreduce(leaders, data, op)?;
    }
    exchange::bcast(&levels.local, data, levels.leader)
}

/// For nodes of consecutive ranks: the parts of a node are one block of `all`.
pub(crate) fn allgather<T: Datum>(
    messages: &Messages<'_>,
    placement: &Placement,
    mine: &[T],
    all: &mut [T],
) -> Result<(), Error> {
    let leaders = leaders(placement, 0);
    let (levels, node) = levels(messages, placement, &leaders)?;
    let mut offset = 0;
    let blocks: Vec<Block> = placement
        .nodes
        .iter()
        .map(|ranks| {
            let block = Block {
                offset,
                count: ranks.len() * mine.len(),
            };
            offset += block.count;
            block
        })
        .collect();
    let own = blocks[node];
    let places = cut(own.count, mine.len(), levels.local.size);
    let part = &mut all[own.offset..own.offset + own.count];
    exchange::gatherv(&levels.local, mine, part, &places, levels.leader)?;
    if let Some(leaders) = &levels.leaders {
        exchange::ring(leaders, all, &blocks)?;
    }
    exchange::bcast(&levels.local, all, levels.leader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PeerId;

    fn placement(nodes: &[u32]) -> Option<Placement> {
        Placement::of(&group(nodes.len() as u32), nodes)
    }

    fn group(size: u32) -> Group {
        let members: Vec<_> = (0..size)
            .filter_map(|rank| PeerId::new(rank, size))
            .collect();
        let own = members[0];
        Group::of(members, own).unwrap()
    }

    #[test]
    fn one_node_or_one_rank_for_each_is_one_level() {
        for nodes in [&[0, 0, 0][..], &[0, 1, 2], &[5]] {
            assert!(placement(nodes).is_none(), "{nodes:?}");
        }
        assert!(Placement::of(&group(2), &[]).is_none(), "unknown nodes");
    }

    #[test]
    fn ranks_are_listed_by_node() {
        let placed = placement(&[7, 7, 3, 3, 3]).unwrap();
        assert_eq!(placed.nodes, [vec![0, 1], vec![2, 3, 4]]);
        assert!(placed.is_consecutive());
        assert_eq!(leaders(&placed, 0), [0, 2]);
        assert_eq!(leaders(&placed, 4), [0, 4]);
        let placed = placement(&[7, 3, 7, 3]).unwrap();
        assert_eq!(placed.nodes, [vec![0, 2], vec![1, 3]]);
        assert!(!placed.is_consecutive());
    }
}
