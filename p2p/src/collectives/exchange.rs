//! All to all.

use super::Block;
use super::messages::{Messages, part, part_mut};
use super::rooted::ring_step;
use crate::error::Error;
use crate::memory::Datum;

/// Maximum total length of an allgather by Bruck, in bytes.
const SHORT_ALLGATHER: usize = 32 << 10;
/// Maximum length of one part of an alltoall by Bruck, in bytes, and the minimum number of ranks.
const SHORT_ALLTOALL: usize = 256;
const MANY: usize = 8;

/// Every rank has its own block; after size - 1 steps all.
pub(crate) fn ring<T: Datum>(
    messages: &Messages<'_>,
    data: &mut [T],
    blocks: &[Block],
) -> Result<(), Error> {
    let (rank, size) = (messages.rank, messages.size);
    for step in 0..size - 1 {
        let (out, into) = ring_step(data, blocks, rank + size - step, rank + size - step - 1);
        messages.sendrecv(out, rank + 1, into, rank + size - 1)?;
    }
    Ok(())
}

pub(crate) fn allgather<T: Datum>(
    messages: &Messages<'_>,
    mine: &[T],
    all: &mut [T],
) -> Result<(), Error> {
    let (rank, size, length) = (messages.rank, messages.size, mine.len());
    if size_of_val(all) > SHORT_ALLGATHER {
        let places: Vec<Block> = (0..size)
            .map(|rank| Block {
                offset: rank * length,
                count: length,
            })
            .collect();
        return allgatherv(messages, mine, all, &places);
    }
    // Bruck: what this rank has begins with its own part; each step doubles it by what the rank
    // above has.
    let mut have = vec![T::default(); all.len()];
    part_mut(
        &mut have,
        Block {
            offset: 0,
            count: length,
        },
    )
    .copy_from_slice(mine);
    let mut count = 1;
    while count < size {
        let more = count.min(size - count);
        let (low, high) = have.split_at_mut(count * length);
        let (Some(out), Some(into)) = (low.get(..more * length), high.get_mut(..more * length))
        else {
            break;
        };
        messages.sendrecv(out, rank + size - count, into, rank + count)?;
        count += more;
    }
    let (low, high) = all.split_at_mut(rank * length);
    let (start, rest) = have.split_at(high.len());
    high.copy_from_slice(start);
    low.copy_from_slice(rest);
    Ok(())
}

pub(crate) fn allgatherv<T: Datum>(
    messages: &Messages<'_>,
    mine: &[T],
    all: &mut [T],
    places: &[Block],
) -> Result<(), Error> {
    if let Some(own) = places.get(messages.rank) {
        part_mut(all, *own).copy_from_slice(mine);
    }
    ring(messages, all, places)
}

pub(crate) fn alltoall<T: Datum>(
    messages: &Messages<'_>,
    out: &[T],
    into: &mut [T],
) -> Result<(), Error> {
    let length = out.len() / messages.size;
    if length * size_of::<T>() <= SHORT_ALLTOALL && messages.size >= MANY {
        return alltoall_bruck(messages, out, into, length);
    }
    let places: Vec<Block> = (0..messages.size)
        .map(|rank| Block {
            offset: rank * length,
            count: length,
        })
        .collect();
    alltoallv(messages, out, &places, into, &places)
}

/// Part i of `parts` is for the rank i above; in step k all parts with bit k in i move on by 2^k
/// ranks.
fn alltoall_bruck<T: Datum>(
    messages: &Messages<'_>,
    out: &[T],
    into: &mut [T],
    length: usize,
) -> Result<(), Error> {
    let (rank, size) = (messages.rank, messages.size);
    let block = |at: usize| Block {
        offset: at * length,
        count: length,
    };
    let mut parts = vec![T::default(); out.len()];
    for at in 0..size {
        part_mut(&mut parts, block(at)).copy_from_slice(part(out, block((rank + at) % size)));
    }
    let (mut packed, mut came) = (Vec::with_capacity(out.len()), vec![T::default(); out.len()]);
    let mut bit = 1;
    while bit < size {
        packed.clear();
        for at in (0..size).filter(|at| at & bit != 0) {
            packed.extend_from_slice(part(&parts, block(at)));
        }
        let came = part_mut(
            &mut came,
            Block {
                offset: 0,
                count: packed.len(),
            },
        );
        messages.sendrecv(&packed, rank + bit, came, rank + size - bit)?;
        for (number, at) in (0..size).filter(|at| at & bit != 0).enumerate() {
            part_mut(&mut parts, block(at)).copy_from_slice(part(came, block(number)));
        }
        bit *= 2;
    }
    // Part i has come from the rank i below.
    for at in 0..size {
        part_mut(into, block((rank + size - at) % size)).copy_from_slice(part(&parts, block(at)));
    }
    Ok(())
}

pub(crate) fn alltoallv<T: Datum>(
    messages: &Messages<'_>,
    out: &[T],
    to: &[Block],
    into: &mut [T],
    from: &[Block],
) -> Result<(), Error> {
    let (rank, size) = (messages.rank, messages.size);
    let at = |blocks: &[Block], rank: usize| blocks.get(rank % size).copied().unwrap_or_default();
    let (own_out, own_in) = (part(out, at(to, rank)), part_mut(into, at(from, rank)));
    if own_out.len() != own_in.len() {
        return Err(Error::InvalidArgument(
            "what goes to the own rank is not as long as what comes from it",
        ));
    }
    own_in.copy_from_slice(own_out);
    for step in 1..size {
        let (up, down) = (rank + step, rank + size - step);
        messages.sendrecv(
            part(out, at(to, up)),
            up,
            part_mut(into, at(from, down)),
            down,
        )?;
    }
    Ok(())
}
