//! Messages of one collective operation.

use btl::Rank;

use super::Block;
use crate::comm::Comm;
use crate::error::Error;
use crate::memory::{Datum, bytes_of, bytes_of_mut};
use crate::scope::Scope;

/// Messages of one collective operation. Ranks are taken modulo their number.
pub(crate) struct Messages<'a> {
    comm: &'a Comm,
    tag: i32,
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

const DISAGREE: Error =
    Error::InvalidArgument("the ranks of a collective operation disagree on a length");

impl<'a> Messages<'a> {
    pub(crate) fn new(comm: &'a Comm, tag: i32) -> Messages<'a> {
        Messages {
            comm: comm.hidden(),
            tag,
            rank: comm.rank() as usize,
            size: comm.size() as usize,
        }
    }

    fn peer(&self, rank: usize) -> Rank {
        (rank % self.size) as Rank
    }

    pub(crate) fn send<T: Datum>(&self, data: &[T], to: usize) -> Result<(), Error> {
        self.comm.send(bytes_of(data), self.peer(to), self.tag)
    }

    pub(crate) fn recv<T: Datum>(&self, data: &mut [T], from: usize) -> Result<(), Error> {
        let bytes = bytes_of_mut(data);
        let length = bytes.len();
        exact(
            self.comm
                .recv(bytes, self.peer(from), self.tag)
                .map(|status| status.length),
            length,
        )
    }

    pub(crate) fn sendrecv<T: Datum>(
        &self,
        out: &[T],
        to: usize,
        into: &mut [T],
        from: usize,
    ) -> Result<(), Error> {
        let bytes = bytes_of_mut(into);
        let length = bytes.len();
        let (to, from) = (self.peer(to), self.peer(from));
        let result = self
            .comm
            .sendrecv(bytes_of(out), to, self.tag, bytes, from, self.tag);
        exact(result.map(|status| status.length), length)
    }

    /// Runs several sends and receives concurrently.
    pub(crate) fn scope<'env>(
        &self,
        f: impl for<'scope> FnOnce(&Many<'scope, 'env>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.comm.scope(|scope| {
            f(&Many {
                scope,
                tag: self.tag,
            })
        })
    }
}

/// Concurrent sends and receives, see [`Messages::scope`].
pub(crate) struct Many<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    tag: i32,
}

impl<'scope> Many<'scope, '_> {
    pub(crate) fn isend<T: Datum>(&self, data: &'scope [T], to: usize) -> Result<(), Error> {
        self.scope
            .isend(bytes_of(data), to as Rank, self.tag)
            .map(drop)
    }

    pub(crate) fn irecv<T: Datum>(&self, data: &'scope mut [T], from: usize) -> Result<(), Error> {
        self.scope
            .irecv(bytes_of_mut(data), from as Rank, self.tag)
            .map(drop)
    }
}

fn exact(received: Result<usize, Error>, length: usize) -> Result<(), Error> {
    match received {
        Ok(received) if received == length => Ok(()),
        Ok(_) | Err(Error::Truncated { .. }) => Err(DISAGREE),
        Err(error) => Err(error),
    }
}

/// `data` cut into `parts` nearly equal parts of whole units.
pub(crate) fn cut(length: usize, unit: usize, parts: usize) -> Vec<Block> {
    let units = length / unit.max(1);
    let at = |part: usize| (units / parts * part + (units % parts).min(part)) * unit;
    (0..parts)
        .map(|part| Block {
            offset: at(part),
            count: at(part + 1) - at(part),
        })
        .collect()
}

/// The values of a block.
pub(crate) fn part<T>(data: &[T], block: Block) -> &[T] {
    data.get(block.offset..block.offset + block.count)
        .unwrap_or_default()
}

/// Likewise.
pub(crate) fn part_mut<T>(data: &mut [T], block: Block) -> &mut [T] {
    data.get_mut(block.offset..block.offset + block.count)
        .unwrap_or_default()
}

/// One block to read and another, apart from it, to write.
pub(crate) fn two<T>(data: &mut [T], read: Block, write: Block) -> (&[T], &mut [T]) {
    if read.count == 0 {
        return (&[], part_mut(data, write));
    }
    if write.count == 0 {
        return (part(data, read), &mut []);
    }
    if read.offset < write.offset {
        let (low, high) = data.split_at_mut(write.offset);
        (
            part(low, read),
            high.get_mut(..write.count).unwrap_or_default(),
        )
    } else {
        let (low, high) = data.split_at_mut(read.offset);
        (
            high.get(..read.count).unwrap_or_default(),
            part_mut(low, write),
        )
    }
}

/// Each block of the data to write, in the order of the blocks, which are apart.
pub(crate) fn each_mut<'a, T>(data: &'a mut [T], blocks: &[Block]) -> Vec<&'a mut [T]> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_unstable_by_key(|at| blocks.get(*at).map(|block| (block.offset, block.count)));
    let mut parts: Vec<&'a mut [T]> = blocks.iter().map(|_| Default::default()).collect();
    let (mut rest, mut start) = (data, 0);
    for at in order {
        let (Some(block), Some(part)) = (blocks.get(at), parts.get_mut(at)) else {
            continue;
        };
        if block.count == 0 {
            continue;
        }
        let (_, from) = rest.split_at_mut(block.offset - start);
        let (mine, behind) = from.split_at_mut(block.count);
        (*part, rest, start) = (mine, behind, block.offset + block.count);
    }
    parts
}
