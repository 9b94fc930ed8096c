//! Skeleton; the engine follows.
#![allow(unused_variables, dead_code, clippy::needless_pass_by_value)]

use std::sync::Arc;

use btl::Rank;

use crate::error::{Error, StartError};
use crate::group::Group;
use crate::memory::{ReadMem, WriteMem};
use crate::types::{Card, PathReport, RequestId, Setup, Stats, Status};

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) context: u32,
    pub(crate) peer: Rank,
    pub(crate) tag: i32,
}

/// What a receive asks for; ranks of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) context: u32,
    pub(crate) source: Option<Rank>,
    pub(crate) tag: Option<i32>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    world: Arc<Group>,
}

impl Shared {
    pub(crate) fn start(
        setup: Setup,
        cards: impl FnMut(Rank) -> Result<Vec<Card>, String>,
    ) -> Result<Arc<Shared>, StartError> {
        Ok(Arc::new(Shared { world: Arc::new(Group::world(setup.size, setup.rank)) }))
    }
    pub(crate) fn world(&self) -> Arc<Group> {
        Arc::clone(&self.world)
    }
    pub(crate) fn paths(&self) -> &[PathReport] {
        &[]
    }
    pub(crate) fn stats(&self) -> Stats {
        Stats::default()
    }
    pub(crate) fn progress(&self) -> usize {
        0
    }
    pub(crate) fn finalize(&self) -> Result<(), Error> {
        Ok(())
    }
    pub(crate) fn send(&self, e: Envelope, b: &[u8], sync: bool) -> Result<(), Error> {
        Err(Error::Closed)
    }
    pub(crate) fn recv(&self, w: Wanted, b: &mut [u8]) -> Result<Status, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn sendrecv(&self, e: Envelope, out: &[u8], w: Wanted, b: &mut [u8]) -> Result<Status, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn isend(&self, e: Envelope, m: ReadMem, sync: bool) -> Result<RequestId, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn irecv(&self, w: Wanted, m: WriteMem) -> Result<RequestId, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn probe(&self, w: Wanted) -> Result<Status, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn iprobe(&self, w: Wanted) -> Result<Option<Status>, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn mprobe(&self, w: Wanted) -> Result<(u64, Status), Error> {
        Err(Error::Closed)
    }
    pub(crate) fn improbe(&self, w: Wanted) -> Result<Option<(u64, Status)>, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn recv_taken(&self, context: u32, taken: u64, b: &mut [u8]) -> Result<Status, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn irecv_taken(&self, context: u32, taken: u64, m: WriteMem) -> Result<RequestId, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn throw_away(&self, taken: u64) {}
    pub(crate) fn abandon(&self, id: RequestId, buffer: Vec<u8>) {}
    pub(crate) fn forget_context(&self, context: u32) {}
    pub(crate) fn test(&self, id: RequestId) -> Result<Option<Status>, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn wait(&self, id: RequestId) -> Result<Status, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn is_over(&self, id: RequestId) -> Result<bool, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn waitany(&self, ids: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
        None
    }
    pub(crate) fn testany(&self, ids: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
        None
    }
    pub(crate) fn waitsome(&self, ids: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
        Vec::new()
    }
    pub(crate) fn testsome(&self, ids: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
        Vec::new()
    }
    pub(crate) fn testall(&self, ids: &[RequestId]) -> Option<Vec<Result<Status, Error>>> {
        None
    }
    pub(crate) fn cancel(&self, id: RequestId) -> Result<bool, Error> {
        Err(Error::Closed)
    }
    pub(crate) fn free(&self, id: RequestId) -> Result<(), Error> {
        Err(Error::Closed)
    }
}
