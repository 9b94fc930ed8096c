//! Messages of one collective operation, and parts of buffers.

use btl::Rank;

use super::Block;
use super::choice::Ranks;
use super::nodes::Placement;
use crate::comm::Comm;
use crate::error::Error;
use crate::memory::{Datum, bytes_of, bytes_of_mut};
use crate::types::Status;

/// Messages of one collective operation among all ranks of a communicator, or some of them, which
/// are then numbered from 0. Ranks are taken modulo their number.
pub(crate) struct Messages<'a> {
    pub(crate) comm: &'a Comm,
    pub(crate) tag: i32,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The ranks that take part; `None`: all.
    members: Option<&'a [Rank]>,
    /// Nodes of the ranks, if the operation may have two levels.
    pub(crate) placement: Option<&'a Placement>,
}

impl<'a> Messages<'a> {
    pub(crate) fn new(comm: &'a Comm, tag: i32) -> Messages<'a> {
        Messages {
            comm: comm.hidden(),
            tag,
            rank: comm.rank() as usize,
            size: comm.size() as usize,
            members: None,
            placement: comm.placement(),
        }
    }

    /// Returns the messages among these ranks; `None` if this rank is not one of them.
    pub(crate) fn among(&self, members: &'a [Rank]) -> Option<Messages<'a>> {
        let own = |member: &Rank| *member as usize == self.rank;
        Some(Messages {
            comm: self.comm,
            tag: self.tag,
            rank: members.iter().position(own)?,
            size: members.len(),
            members: Some(members),
            placement: None,
        })
    }

    /// Returns the ranks that take part, for the choice of an algorithm.
    pub(crate) fn ranks(&self) -> Ranks<'a> {
        Ranks {
            size: self.size,
            placement: self.placement,
        }
    }

    /// Returns the communicator's rank of a rank that takes part.
    pub(crate) fn peer(&self, rank: usize) -> Rank {
        let rank = rank % self.size;
        match self.members {
            Some(members) => members.get(rank).copied().unwrap_or_default(),
            None => rank as Rank,
        }
    }

    pub(crate) fn send<T: Datum>(&self, data: &[T], to: usize) -> Result<(), Error> {
        self.comm.send(bytes_of(data), self.peer(to), self.tag)
    }

    pub(crate) fn recv<T: Datum>(&self, data: &mut [T], from: usize) -> Result<(), Error> {
        let length = size_of_val(data);
        let bytes = bytes_of_mut(data);
        exact(self.comm.recv(bytes, self.peer(from), self.tag), length)
    }

    pub(crate) fn sendrecv<T: Datum>(
        &self,
        out: &[T],
        to: usize,
        into: &mut [T],
        from: usize,
    ) -> Result<(), Error> {
        let length = size_of_val(into);
        let (out, into) = (bytes_of(out), bytes_of_mut(into));
        let (to, from) = (self.peer(to), self.peer(from));
        let result = self.comm.sendrecv(out, to, self.tag, into, from, self.tag);
        exact(result, length)
    }
}

fn exact(received: Result<Status, Error>, length: usize) -> Result<(), Error> {
    match received {
        Ok(status) if status.length == length => Ok(()),
        Ok(_) | Err(Error::Truncated { .. }) => Err(Error::InvalidArgument(
            "the ranks of a collective operation disagree on a length",
        )),
        Err(error) => Err(error),
    }
}

/// Splits `length` values into `parts` nearly equal parts of whole units.
pub(crate) fn cut(length: usize, unit: usize, parts: usize) -> Vec<Block> {
    let units = length / unit.max(1);
    let at = |part: usize| (units / parts * part + (units % parts).min(part)) * unit;
    let block = |part| Block {
        offset: at(part),
        count: at(part + 1) - at(part),
    };
    (0..parts).map(block).collect()
}

/// Returns the values of a block.
pub(crate) fn part<T>(data: &[T], block: Block) -> &[T] {
    &data[block.offset..block.offset + block.count]
}

/// Returns the values of a block, mutably.
pub(crate) fn part_mut<T>(data: &mut [T], block: Block) -> &mut [T] {
    &mut data[block.offset..block.offset + block.count]
}

/// Returns one block to read and another, disjoint one to write.
pub(crate) fn two<T>(data: &mut [T], read: Block, write: Block) -> (&[T], &mut [T]) {
    if read.count == 0 {
        return (&[], part_mut(data, write));
    }
    if write.count == 0 {
        return (part(data, read), &mut []);
    }
    if read.offset < write.offset {
        let (low, high) = data.split_at_mut(write.offset);
        (part(low, read), &mut high[..write.count])
    } else {
        let (low, high) = data.split_at_mut(read.offset);
        (&high[..read.count], part_mut(low, write))
    }
}
