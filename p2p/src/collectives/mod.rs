//! Collective operations: every rank of the communicator calls them in the same order.
//!
//! They use the communicator's hidden context, so they never receive the program's messages. All of
//! them work for any number of ranks and for zero lengths. If the ranks disagree on root, lengths
//! or operation, the result is `InvalidArgument` where it is detected, and undefined otherwise, as
//! in MPI. After an error do not use the communicator any more.
//!
//! | operation | short | long |
//! |---|---|---|
//! | barrier (2) | dissemination | |
//! | bcast (2) | binomial tree | scatter, then ring allgather |
//! | reduce (2) | binomial tree | ring reduce-scatter, then gather |
//! | allreduce (2) | recursive doubling | ring reduce-scatter, then ring allgather |
//! | scan | recursive doubling | recursive doubling |
//! | gather, scatter | linear | linear |
//! | allgather (2) | gather, then broadcast | ring |
//! | alltoall | pairwise | pairwise |
//! | with different lengths | linear, ring, pairwise | linear, ring, pairwise |
//!
//! (2): short ones have two levels if there are several nodes and some have several ranks: within
//! each node, between one rank of each node, and within each node. A ring over ranks that are
//! numbered node by node enters and leaves each node once, so it has no second level; with ranks in
//! another order, long reductions and broadcasts have two levels, too. Where nodes are unknown
//! ([`Config::nodes`](crate::Config::nodes)) there is one level. [`Comm::algorithm`] returns the
//! algorithm that an operation uses.
//!
//! # Order of reductions
//! The grouping depends only on the ranks and their nodes, the length and the operation's
//! commutativity: a repeated run gives equal bits, and so do all ranks. Short reductions, and all
//! that are not commutative, combine in the order of ranks (a tree over neighbours), node by node
//! if there are two levels. Long commutative ones combine part b of the data in the order b + 1,
//! b + 2, …, b (modulo the number of ranks).

mod choice;
mod exchange;
mod messages;
mod nodes;
mod op;
mod reductions;

use std::sync::Arc;

use btl::Rank;

use crate::comm::Comm;
use crate::error::Error;
use crate::group::Group;
use crate::memory::Datum;
pub use choice::{Algorithm, Collective};
use messages::{Messages, cut};
pub(crate) use nodes::Placement;
pub use op::{Number, Op, Reduction};

/// Part of a buffer: `count` values starting at `offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// First value.
    pub offset: usize,
    /// Number of values.
    pub count: usize,
}

impl Comm {
    /// Returns the algorithm that an operation uses for this many bytes: of the data; of all ranks'
    /// data together (allgather); of a rank's data (alltoall). This holds for reductions that are
    /// commutative and have a unit of one byte; others may use another algorithm.
    #[must_use]
    pub fn algorithm(&self, operation: Collective, bytes: usize) -> Algorithm {
        choice::of(operation, Messages::new(self, 0).ranks(), bytes)
    }

    /// Waits until all ranks have called this function.
    ///
    /// # Errors
    /// `PeerFailed` and `Closed`, which all collectives return.
    pub fn barrier(&self) -> Result<(), Error> {
        exchange::barrier(&Messages::new(self, 0))
    }

    /// Sends `data` of rank `root` to all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Comm::barrier); `InvalidRank`.
    pub fn bcast<T: Datum>(&self, data: &mut [T], root: Rank) -> Result<(), Error> {
        self.world_rank(root)?;
        exchange::bcast(&Messages::new(self, 1), data, root as usize)
    }

    /// Combines the `data` of all ranks into that of `root`. That of the other ranks is unchanged.
    ///
    /// # Errors
    /// As [`bcast`](Comm::bcast).
    pub fn reduce<T: Number>(&self, data: &mut [T], op: Op, root: Rank) -> Result<(), Error> {
        op::with(op, |reduction| self.reduce_with(data, reduction, root))
    }

    /// Like [`reduce`](Comm::reduce), with an operation defined by the caller.
    ///
    /// # Errors
    /// As [`bcast`](Comm::bcast); `InvalidArgument` when the length is not a multiple of the unit.
    pub fn reduce_with<T: Datum>(
        &self,
        data: &mut [T],
        op: &Reduction<'_, T>,
        root: Rank,
    ) -> Result<(), Error> {
        self.world_rank(root)?;
        op.check(data)?;
        reductions::reduce(&Messages::new(self, 2), data, op, root as usize)
    }

    /// Combines the `data` of all ranks into that of all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Comm::barrier).
    pub fn allreduce<T: Number>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        op::with(op, |reduction| self.allreduce_with(data, reduction))
    }

    /// Like [`allreduce`](Comm::allreduce), with an operation defined by the caller.
    ///
    /// # Errors
    /// As [`reduce_with`](Comm::reduce_with).
    pub fn allreduce_with<T: Datum>(
        &self,
        data: &mut [T],
        op: &Reduction<'_, T>,
    ) -> Result<(), Error> {
        op.check(data)?;
        reductions::allreduce(&Messages::new(self, 3), data, op)
    }

    /// Combines on rank r the `data` of ranks 0 to r, in that order.
    ///
    /// # Errors
    /// As [`barrier`](Comm::barrier).
    pub fn scan<T: Number>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        op::with(op, |reduction| self.scan_with(data, reduction))
    }

    /// Like [`scan`](Comm::scan), with an operation defined by the caller.
    ///
    /// # Errors
    /// As [`reduce_with`](Comm::reduce_with).
    pub fn scan_with<T: Datum>(&self, data: &mut [T], op: &Reduction<'_, T>) -> Result<(), Error> {
        op.check(data)?;
        reductions::scan(&Messages::new(self, 4), data, op)
    }

    /// Collects `mine` of all ranks in `all` of `root`, in the order of ranks. Other ranks may pass
    /// an empty `all`.
    ///
    /// # Errors
    /// As [`bcast`](Comm::bcast); `InvalidArgument` when the length of `all` is not the sum of the
    /// parts.
    pub fn gather<T: Datum>(&self, mine: &[T], all: &mut [T], root: Rank) -> Result<(), Error> {
        self.world_rank(root)?;
        if self.rank() == root {
            self.check_equal(mine.len(), all.len())?;
        }
        let places = cut(all.len(), mine.len(), self.size() as usize);
        exchange::gatherv(&Messages::new(self, 5), mine, all, &places, root as usize)
    }

    /// Like [`gather`](Comm::gather), with different lengths: data of rank r goes to `places[r]` of
    /// `all`. Other ranks may pass both empty.
    ///
    /// # Errors
    /// As [`bcast`](Comm::bcast); `InvalidArgument` when places overlap, or do not fit.
    pub fn gatherv<T: Datum>(
        &self,
        mine: &[T],
        all: &mut [T],
        places: &[Block],
        root: Rank,
    ) -> Result<(), Error> {
        self.world_rank(root)?;
        if self.rank() == root {
            self.check_places(all.len(), places, Some(mine.len()), true)?;
        }
        exchange::gatherv(&Messages::new(self, 6), mine, all, places, root as usize)
    }

    /// Distributes equal parts of `all` of `root` to `mine` of each rank. Other ranks may pass an
    /// empty `all`.
    ///
    /// # Errors
    /// As [`gather`](Comm::gather).
    pub fn scatter<T: Datum>(&self, all: &[T], mine: &mut [T], root: Rank) -> Result<(), Error> {
        self.world_rank(root)?;
        if self.rank() == root {
            self.check_equal(mine.len(), all.len())?;
        }
        let places = cut(all.len(), mine.len(), self.size() as usize);
        exchange::scatterv(&Messages::new(self, 7), all, &places, mine, root as usize)
    }

    /// Like [`scatter`](Comm::scatter), with different lengths: `places[r]` of `all` goes to rank
    /// r.
    ///
    /// # Errors
    /// As [`gatherv`](Comm::gatherv).
    pub fn scatterv<T: Datum>(
        &self,
        all: &[T],
        places: &[Block],
        mine: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        self.world_rank(root)?;
        if self.rank() == root {
            self.check_places(all.len(), places, Some(mine.len()), false)?;
        }
        exchange::scatterv(&Messages::new(self, 8), all, places, mine, root as usize)
    }

    /// Collects `mine` of all ranks in `all` of each rank, in the order of ranks.
    ///
    /// # Errors
    /// As [`barrier`](Comm::barrier); `InvalidArgument` when the length of `all` is not the sum of
    /// the parts.
    pub fn allgather<T: Datum>(&self, mine: &[T], all: &mut [T]) -> Result<(), Error> {
        self.check_equal(mine.len(), all.len())?;
        exchange::allgather(&Messages::new(self, 9), mine, all)
    }

    /// Like [`allgather`](Comm::allgather), with different lengths; all ranks pass equal `places`.
    ///
    /// # Errors
    /// As [`barrier`](Comm::barrier); `InvalidArgument` when places overlap, or do not fit.
    pub fn allgatherv<T: Datum>(
        &self,
        mine: &[T],
        all: &mut [T],
        places: &[Block],
    ) -> Result<(), Error> {
        self.check_places(all.len(), places, Some(mine.len()), true)?;
        exchange::allgatherv(&Messages::new(self, 10), mine, all, places)
    }

    /// Sends part r of `out` to rank r and receives its part into part r of `into`. All parts have
    /// equal length.
    ///
    /// # Errors
    /// As [`barrier`](Comm::barrier); `InvalidArgument` when the lengths differ, or are not
    /// multiples of the number of ranks.
    pub fn alltoall<T: Datum>(&self, out: &[T], into: &mut [T]) -> Result<(), Error> {
        let size = self.size() as usize;
        if out.len() != into.len() || !out.len().is_multiple_of(size) {
            return Err(Error::InvalidArgument(
                "alltoall needs two buffers with one part for each rank",
            ));
        }
        let places = cut(out.len(), out.len() / size, size);
        exchange::alltoallv(&Messages::new(self, 11), out, &places, into, &places)
    }

    /// Like [`alltoall`](Comm::alltoall), with different lengths: `to[r]` of `out` goes to rank r,
    /// and its data to `from[r]` of `into`.
    ///
    /// # Errors
    /// As [`barrier`](Comm::barrier); `InvalidArgument` when places overlap (`from` only), or do
    /// not fit.
    pub fn alltoallv<T: Datum>(
        &self,
        out: &[T],
        to: &[Block],
        into: &mut [T],
        from: &[Block],
    ) -> Result<(), Error> {
        self.check_places(out.len(), to, None, false)?;
        self.check_places(into.len(), from, None, true)?;
        exchange::alltoallv(&Messages::new(self, 12), out, to, into, from)
    }

    /// Creates a communicator of these ranks with a new context. Collective.
    ///
    /// # Errors
    /// As [`barrier`](Comm::barrier); `InvalidContext` when no context number is free on all ranks.
    pub fn dup(&self) -> Result<Comm, Error> {
        let comm = self.agree(Some(&self.inner.group))?;
        comm.ok_or(Error::InvalidContext {
            context: self.context(),
        })
    }

    /// Creates a communicator of all ranks with equal `color`, ordered by `key`, then by rank here.
    /// A rank with `None` takes part and gets no communicator. Collective.
    ///
    /// # Errors
    /// As [`dup`](Comm::dup).
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Comm>, Error> {
        let mine = [color.map_or(-1, i64::from), i64::from(key)];
        let mut all = vec![0; 2 * self.size() as usize];
        self.allgather(&mine, &mut all)?;
        let group = color.and_then(|color| {
            let mut members: Vec<(i64, Rank)> = (0..self.size())
                .zip(all.chunks_exact(2))
                .filter(|(_, chosen)| chosen[0] == i64::from(color))
                .map(|(rank, chosen)| (chosen[1], rank))
                .collect();
            members.sort_unstable();
            let members = members
                .iter()
                .filter_map(|(_, rank)| self.inner.group.peer(*rank))
                .collect();
            Group::of(members, self.inner.group.peer(self.rank())?).map(Arc::new)
        });
        self.agree(group.as_ref())
    }

    /// Agrees with all ranks on a context that is new to all of them: the highest proposal, unless
    /// another agreement has taken it in the meantime, which a second round detects.
    fn agree(&self, group: Option<&Arc<Group>>) -> Result<Option<Comm>, Error> {
        let layer = self.layer();
        for _ in 0..64 {
            let proposed = layer.shared.lock().protocol.contexts.propose();
            let mut highest = [proposed];
            self.allreduce(&mut highest, Op::Max)?;
            let [context] = highest;
            let reserve = |group| {
                let contexts = &mut layer.shared.lock().protocol.contexts;
                contexts.reserve(context, proposed, group)
            };
            let reserved = group.is_none_or(reserve);
            let comm = group
                .filter(|_| reserved)
                .map(|group| Comm::new(layer, group, context));
            let mut all = [u8::from(reserved)];
            self.allreduce(&mut all, Op::Min)?;
            if all == [1] {
                return Ok(comm);
            }
            // Dropping `comm` frees its context.
        }
        Err(Error::InvalidContext {
            context: self.context(),
        })
    }

    fn check_equal(&self, part: usize, all: usize) -> Result<(), Error> {
        if part.checked_mul(self.size() as usize) == Some(all) {
            return Ok(());
        }
        Err(Error::InvalidArgument(
            "the length of the whole buffer is not one part for each rank",
        ))
    }

    /// Checks that there is a place for each rank, within the buffer, and that this rank's has the
    /// length of its part; with `apart`, also that they do not overlap.
    fn check_places(
        &self,
        length: usize,
        places: &[Block],
        mine: Option<usize>,
        apart: bool,
    ) -> Result<(), Error> {
        if places.len() != self.size() as usize {
            return Err(Error::InvalidArgument(
                "there must be one place for each rank",
            ));
        }
        let fits = |place: &Block| {
            place
                .offset
                .checked_add(place.count)
                .is_some_and(|end| end <= length)
        };
        if !places.iter().all(fits) {
            return Err(Error::InvalidArgument("a place is not within the buffer"));
        }
        let own = places.get(self.rank() as usize).map(|place| place.count);
        if mine.is_some() && mine != own {
            return Err(Error::InvalidArgument(
                "the length of this rank's place differs from that of its part",
            ));
        }
        if apart {
            let mut sorted: Vec<&Block> = places.iter().filter(|place| place.count != 0).collect();
            sorted.sort_unstable_by_key(|place| place.offset);
            if sorted
                .windows(2)
                .any(|pair| pair[0].offset + pair[0].count > pair[1].offset)
            {
                return Err(Error::InvalidArgument("places overlap"));
            }
        }
        Ok(())
    }
}
