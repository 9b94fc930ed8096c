//! One to all and all to one.

use super::messages::{Messages, cut, each_mut, part, part_mut, two};
use super::{Block, exchange};
use crate::error::Error;
use crate::memory::Datum;

/// Minimum length of a broadcast by scatter and allgather, in bytes.
const LONG_BCAST: usize = 128 << 10;
/// Maximum length of one rank for gather and scatter along a tree, in bytes.
const SHORT_PART: usize = 4096;

/// Runs the dissemination barrier: in round k each rank receives from the one 2^k below it.
pub(crate) fn barrier(messages: &Messages<'_>) -> Result<(), Error> {
    let mut distance = 1;
    while distance < messages.size {
        let (to, from) = (
            messages.rank + distance,
            messages.rank + messages.size - distance,
        );
        messages.sendrecv::<u8>(&[], to, &mut [], from)?;
        distance *= 2;
    }
    Ok(())
}

pub(crate) fn bcast<T: Datum>(
    messages: &Messages<'_>,
    data: &mut [T],
    root: u32,
) -> Result<(), Error> {
    let root = root as usize;
    if messages.size > 2 && size_of_val(data) >= LONG_BCAST {
        return bcast_long(messages, data, root);
    }
    // Ranks counted from the root; the lowest bit set says from whom.
    let mine = (messages.rank + messages.size - root) % messages.size;
    let mut bit = 1;
    while bit < messages.size {
        if mine & bit != 0 {
            messages.recv(data, mine - bit + root)?;
            break;
        }
        bit *= 2;
    }
    while bit > 1 {
        bit /= 2;
        if mine + bit < messages.size {
            messages.send(data, mine + bit + root)?;
        }
    }
    Ok(())
}

fn bcast_long<T: Datum>(messages: &Messages<'_>, data: &mut [T], root: usize) -> Result<(), Error> {
    let blocks = cut(data.len(), 1, messages.size);
    if messages.rank == root {
        let data = &*data;
        messages.scope(|many| {
            for (to, block) in blocks.iter().enumerate().filter(|(to, _)| *to != root) {
                many.isend(part(data, *block), to)?;
            }
            Ok(())
        })?;
    } else if let Some(block) = blocks.get(messages.rank) {
        messages.recv(part_mut(data, *block), root)?;
    }
    exchange::ring(messages, data, &blocks)
}

/// Returns the end of the subtree of `mine`, counted from the root.
fn end_of_branch(mine: usize, size: usize) -> usize {
    let lowest = if mine == 0 {
        size
    } else {
        1 << mine.trailing_zeros()
    };
    (mine + lowest).min(size)
}

pub(crate) fn gather<T: Datum>(
    messages: &Messages<'_>,
    mine: &[T],
    all: &mut [T],
    root: u32,
) -> Result<(), Error> {
    let (root, size, length) = (root as usize, messages.size, mine.len());
    if size_of_val(mine) > SHORT_PART || size <= 2 {
        return gatherv(messages, mine, all, &equal(size, length), root as u32);
    }
    let own = (messages.rank + size - root) % size;
    let mut branch = mine.to_vec();
    branch.resize((end_of_branch(own, size) - own) * length, T::default());
    let mut bit = 1;
    while bit < size {
        if own & bit != 0 {
            return messages.send(&branch, own - bit + root);
        }
        let child = own + bit;
        if child < size {
            let block = Block {
                offset: bit * length,
                count: (end_of_branch(child, size) - child) * length,
            };
            messages.recv(part_mut(&mut branch, block), child + root)?;
        }
        bit *= 2;
    }
    // The root: from its own count to the ranks'.
    rotate_into(&branch, all, root, length);
    Ok(())
}

/// `from` begins with the part of rank `first`, `into` with that of rank 0.
fn rotate_into<T: Datum>(from: &[T], into: &mut [T], first: usize, length: usize) {
    let (low, high) = into.split_at_mut(first * length);
    let (start, rest) = from.split_at(high.len());
    high.copy_from_slice(start);
    low.copy_from_slice(rest);
}

fn equal(size: usize, length: usize) -> Vec<Block> {
    (0..size)
        .map(|rank| Block {
            offset: rank * length,
            count: length,
        })
        .collect()
}

pub(crate) fn gatherv<T: Datum>(
    messages: &Messages<'_>,
    mine: &[T],
    all: &mut [T],
    places: &[Block],
    root: u32,
) -> Result<(), Error> {
    let root = root as usize;
    if messages.rank != root {
        return messages.send(mine, root);
    }
    messages.scope(|many| {
        for (from, place) in each_mut(all, places).into_iter().enumerate() {
            if from == root {
                place.copy_from_slice(mine);
            } else {
                many.irecv(place, from)?;
            }
        }
        Ok(())
    })
}

pub(crate) fn scatter<T: Datum>(
    messages: &Messages<'_>,
    all: &[T],
    mine: &mut [T],
    root: u32,
) -> Result<(), Error> {
    let (root, size, length) = (root as usize, messages.size, mine.len());
    if size_of_val(mine) > SHORT_PART || size <= 2 {
        return scatterv(messages, all, &equal(size, length), mine, root as u32);
    }
    let own = (messages.rank + size - root) % size;
    let mut branch = vec![T::default(); (end_of_branch(own, size) - own) * length];
    let mut bit = 1;
    if own == 0 {
        let (low, high) = all.split_at(root * length);
        let (start, rest) = branch.split_at_mut(high.len());
        start.copy_from_slice(high);
        rest.copy_from_slice(low);
        while bit < size {
            bit *= 2;
        }
    } else {
        bit = 1 << own.trailing_zeros();
        messages.recv(&mut branch, own - bit + root)?;
    }
    while bit > 1 {
        bit /= 2;
        let child = own + bit;
        if child < size {
            let block = Block {
                offset: bit * length,
                count: (end_of_branch(child, size) - child) * length,
            };
            messages.send(part(&branch, block), child + root)?;
        }
    }
    mine.copy_from_slice(part(
        &branch,
        Block {
            offset: 0,
            count: length,
        },
    ));
    Ok(())
}

pub(crate) fn scatterv<T: Datum>(
    messages: &Messages<'_>,
    all: &[T],
    places: &[Block],
    mine: &mut [T],
    root: u32,
) -> Result<(), Error> {
    let root = root as usize;
    if messages.rank != root {
        return messages.recv(mine, root);
    }
    messages.scope(|many| {
        for (to, place) in places.iter().enumerate() {
            if to == root {
                mine.copy_from_slice(part(all, *place));
            } else {
                many.isend(part(all, *place), to)?;
            }
        }
        Ok(())
    })
}

/// Used by [`exchange`], too: the block that is sent and the one that is received in step `step` of
/// a ring.
pub(crate) fn ring_step<'a, T>(
    data: &'a mut [T],
    blocks: &[Block],
    out: usize,
    into: usize,
) -> (&'a [T], &'a mut [T]) {
    let block = |at: usize| {
        blocks
            .get(at % blocks.len().max(1))
            .copied()
            .unwrap_or_default()
    };
    two(data, block(out), block(into))
}
