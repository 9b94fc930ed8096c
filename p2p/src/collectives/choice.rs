//! Choice of the algorithm of a collective operation, by length, number of ranks and their nodes.

use std::fmt;

use super::nodes::Placement;

/// Minimum length of a broadcast by scatter and allgather, in bytes.
const LONG_BCAST: usize = 128 << 10;
/// Minimum length of a reduction that is divided among the ranks, in bytes.
const LONG_REDUCTION: usize = 32 << 10;
/// Maximum total length of an allgather by gather and broadcast, in bytes.
const SHORT_ALLGATHER: usize = 32 << 10;

/// Collective operation whose algorithm can be queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// [`Comm::barrier`](crate::Comm::barrier)
    Barrier,
    /// [`Comm::bcast`](crate::Comm::bcast)
    Bcast,
    /// [`Comm::reduce`](crate::Comm::reduce)
    Reduce,
    /// [`Comm::allreduce`](crate::Comm::allreduce)
    Allreduce,
    /// [`Comm::allgather`](crate::Comm::allgather)
    Allgather,
    /// [`Comm::alltoall`](crate::Comm::alltoall)
    Alltoall,
}

/// Algorithm of a collective operation. Displayed as words, such as `recursive doubling`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Within each node, then between one rank of each node, then within each node.
    TwoLevels,
    /// In round k each rank sends to the one 2^k above it.
    Dissemination,
    /// A binomial tree.
    Binomial,
    /// The root distributes parts, which then go round a ring.
    ScatterRing,
    /// Pairs of ranks at doubling distances exchange everything.
    RecursiveDoubling,
    /// Each rank combines or passes on one part at a time, round a ring.
    Ring,
    /// Rank 0 collects, then broadcasts.
    GatherBcast,
    /// In round k each rank sends to the one k above it.
    Pairwise,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Algorithm::TwoLevels => "two levels",
            Algorithm::Dissemination => "dissemination",
            Algorithm::Binomial => "binomial tree",
            Algorithm::ScatterRing => "scatter, then ring",
            Algorithm::RecursiveDoubling => "recursive doubling",
            Algorithm::Ring => "ring",
            Algorithm::GatherBcast => "gather, then broadcast",
            Algorithm::Pairwise => "pairwise exchange",
        })
    }
}

/// Ranks that take part in an operation.
#[derive(Clone, Copy)]
pub(crate) struct Ranks<'a> {
    pub(crate) size: usize,
    /// Their nodes, if that matters: several nodes, of which one has several ranks.
    pub(crate) placement: Option<&'a Placement>,
}

impl Ranks<'_> {
    /// Returns true if the ranks of each node are consecutive, so that data sent round a ring
    /// enters and leaves each node once, or if nodes do not matter.
    fn are_ring(&self) -> bool {
        self.placement.is_none_or(Placement::is_consecutive)
    }

    /// Returns `flat`, or two levels if the ranks are on several nodes.
    fn or_levels(&self, flat: Algorithm) -> Algorithm {
        match self.placement {
            Some(_) => Algorithm::TwoLevels,
            None => flat,
        }
    }
}

pub(crate) fn barrier(ranks: Ranks<'_>) -> Algorithm {
    ranks.or_levels(Algorithm::Dissemination)
}

pub(crate) fn bcast(ranks: Ranks<'_>, bytes: usize) -> Algorithm {
    if ranks.size > 2 && bytes >= LONG_BCAST && ranks.are_ring() {
        return Algorithm::ScatterRing;
    }
    ranks.or_levels(Algorithm::Binomial)
}

/// `is_ordered`: the order of ranks must be kept. `units`: number of parts that may be separated.
pub(crate) fn reduce(
    ranks: Ranks<'_>,
    bytes: usize,
    is_ordered: bool,
    units: usize,
    flat: Algorithm,
) -> Algorithm {
    let is_long = bytes >= LONG_REDUCTION && ranks.size > 2 && units >= ranks.size;
    if is_long && !is_ordered && ranks.are_ring() {
        return Algorithm::Ring;
    }
    match is_ordered && !ranks.are_ring() {
        true => flat,
        false => ranks.or_levels(flat),
    }
}

/// `bytes`: of all ranks together.
pub(crate) fn allgather(ranks: Ranks<'_>, bytes: usize) -> Algorithm {
    if bytes > SHORT_ALLGATHER {
        return Algorithm::Ring;
    }
    match ranks.are_ring() {
        true => ranks.or_levels(Algorithm::GatherBcast),
        false => Algorithm::GatherBcast,
    }
}

/// Returns the algorithm for `bytes` bytes of data, of which all parts may be separated and
/// combined in any order. Of an allgather these are the bytes of all ranks.
pub(crate) fn of(operation: Collective, ranks: Ranks<'_>, bytes: usize) -> Algorithm {
    let flat = Algorithm::RecursiveDoubling;
    match operation {
        Collective::Barrier => barrier(ranks),
        Collective::Bcast => bcast(ranks, bytes),
        Collective::Reduce => reduce(ranks, bytes, false, bytes, Algorithm::Binomial),
        Collective::Allreduce => reduce(ranks, bytes, false, bytes, flat),
        Collective::Allgather => allgather(ranks, bytes),
        Collective::Alltoall => Algorithm::Pairwise,
    }
}
