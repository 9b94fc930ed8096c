//! Skeleton of the collectives; the algorithms follow.
#![allow(unused_variables, clippy::missing_errors_doc)]

mod op;

use btl::Rank;

use crate::comm::Comm;
use crate::error::Error;
use crate::memory::Datum;
pub use op::{Number, Op, Reduction};

/// A part of a buffer: values from `offset` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// First value.
    pub offset: usize,
    /// Number of values.
    pub count: usize,
}

impl Comm {
    /// Returns when all ranks have called it.
    pub fn barrier(&self) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// `data` of rank `root` to all.
    pub fn bcast<T: Datum>(&self, data: &mut [T], root: Rank) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// Combines the `data` of all into that of `root`; the others' stays as it is.
    pub fn reduce<T: Number>(&self, data: &mut [T], op: Op, root: Rank) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// Combines the `data` of all into that of all.
    pub fn allreduce<T: Number>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// `reduce` with an operation of the caller's.
    pub fn reduce_with<T: Datum>(
        &self,
        data: &mut [T],
        op: &Reduction<'_, T>,
        root: Rank,
    ) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// `allreduce` with an operation of the caller's.
    pub fn allreduce_with<T: Datum>(&self, data: &mut [T], op: &Reduction<'_, T>) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// Rank r gets the combination of ranks 0 to r.
    pub fn scan<T: Number>(&self, data: &mut [T], op: Op) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// `scan` with an operation of the caller's.
    pub fn scan_with<T: Datum>(&self, data: &mut [T], op: &Reduction<'_, T>) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// `mine` of all ranks to `all` of `root`, in the order of ranks. Elsewhere `all` is not looked at.
    pub fn gather<T: Datum>(&self, mine: &[T], all: &mut [T], root: Rank) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// `gather` with different lengths: rank r's goes to `places[r]` of `all`.
    pub fn gatherv<T: Datum>(
        &self,
        mine: &[T],
        all: &mut [T],
        places: &[Block],
        root: Rank,
    ) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// `all` of `root`, cut into equal parts, to `mine` of each rank.
    pub fn scatter<T: Datum>(&self, all: &[T], mine: &mut [T], root: Rank) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// `scatter` with different lengths: `places[r]` of `all` goes to rank r.
    pub fn scatterv<T: Datum>(
        &self,
        all: &[T],
        places: &[Block],
        mine: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// `mine` of all ranks to `all` of all, in the order of ranks.
    pub fn allgather<T: Datum>(&self, mine: &[T], all: &mut [T]) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// `allgather` with different lengths; `places` is the same on all ranks.
    pub fn allgatherv<T: Datum>(&self, mine: &[T], all: &mut [T], places: &[Block]) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// Part r of `out` to rank r, where it is part (own rank) of `into`.
    pub fn alltoall<T: Datum>(&self, out: &[T], into: &mut [T]) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// `alltoall` with different lengths: `to[r]` of `out` goes to rank r, and what comes from there to `from[r]` of `into`.
    pub fn alltoallv<T: Datum>(
        &self,
        out: &[T],
        to: &[Block],
        into: &mut [T],
        from: &[Block],
    ) -> Result<(), Error> {
        Err(Error::Closed)
    }
    /// The same ranks with a context of their own. Collective.
    pub fn dup(&self) -> Result<Comm, Error> {
        Err(Error::Closed)
    }
    /// Ranks of the same `color` together, ordered by `key`, then by rank here. `None` takes part but belongs to none. Collective.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Comm>, Error> {
        Err(Error::Closed)
    }
}
