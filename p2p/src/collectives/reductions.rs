//! Reductions. `combine(left, right)` leaves the result in `right`; `left` is always of the lower ranks where the order matters.

use super::op::Reduction;
use super::spread::ring_step;
use super::talk::{Talk, cut, part, part_mut};
use super::{Block, exchange};
use crate::error::Error;
use crate::memory::Datum;

/// Bytes from which on a reduction is cut into a part for each rank.
const LONG: usize = 32 << 10;

/// Whether each rank shall reduce its part, and the parts.
fn parts<T: Datum>(talk: &Talk<'_>, data: &[T], op: &Reduction<'_, T>) -> Option<Vec<Block>> {
    let long = op.commutative
        && talk.size > 2
        && size_of_val(data) >= LONG
        && data.len() / op.unit >= talk.size;
    long.then(|| cut(data.len(), op.unit, talk.size))
}

pub(crate) fn reduce<T: Datum>(
    talk: &Talk<'_>,
    data: &mut [T],
    op: &Reduction<'_, T>,
    root: u32,
) -> Result<(), Error> {
    let root = root as usize;
    let mut sum = data.to_vec();
    if let Some(blocks) = parts(talk, data, op) {
        reduce_scatter(talk, &mut sum, op, &blocks)?;
        let own = blocks.get(talk.rank).copied().unwrap_or_default();
        return super::spread::gatherv(talk, part(&sum, own), data, &blocks, root as u32);
    }
    // A tree over neighbours with rank 0 on top: whoever hears has the ranks just below those it hears of.
    let mut theirs = vec![T::default(); data.len()];
    let mut bit = 1;
    while bit < talk.size {
        if talk.rank & bit != 0 {
            talk.send(&sum, talk.rank - bit)?;
            break;
        }
        if talk.rank + bit < talk.size {
            talk.recv(&mut theirs, talk.rank + bit)?;
            (op.combine)(&sum, &mut theirs);
            std::mem::swap(&mut sum, &mut theirs);
        }
        bit *= 2;
    }
    match (talk.rank == 0, talk.rank == root) {
        (true, true) => data.copy_from_slice(&sum),
        (true, false) => talk.send(&sum, root)?,
        (false, true) => talk.recv(data, 0)?,
        (false, false) => {}
    }
    Ok(())
}

/// Each rank's own block becomes the sum of all ranks'.
fn reduce_scatter<T: Datum>(
    talk: &Talk<'_>,
    data: &mut [T],
    op: &Reduction<'_, T>,
    blocks: &[Block],
) -> Result<(), Error> {
    let (rank, size) = (talk.rank, talk.size);
    let longest = blocks.iter().map(|block| block.count).max().unwrap_or(0);
    let mut came = vec![T::default(); longest];
    for step in 0..size - 1 {
        let (out, into) = ring_step(
            data,
            blocks,
            rank + 2 * size - step - 1,
            rank + 2 * size - step - 2,
        );
        let came = part_mut(
            &mut came,
            Block {
                offset: 0,
                count: into.len(),
            },
        );
        talk.sendrecv(out, rank + 1, came, rank + size - 1)?;
        (op.combine)(came, into);
    }
    Ok(())
}

pub(crate) fn allreduce<T: Datum>(
    talk: &Talk<'_>,
    data: &mut [T],
    op: &Reduction<'_, T>,
) -> Result<(), Error> {
    if let Some(blocks) = parts(talk, data, op) {
        reduce_scatter(talk, data, op, &blocks)?;
        return exchange::ring(talk, data, &blocks);
    }
    let (rank, size) = (talk.rank, talk.size);
    if size == 1 {
        return Ok(());
    }
    // Those beyond a power of two join a neighbour first: pairs (0, 1), (2, 3), … of which the odd one goes on.
    let power = 1 << size.ilog2();
    let extra = size - power;
    let mut theirs = vec![T::default(); data.len()];
    if rank < 2 * extra && rank % 2 == 0 {
        talk.send(data, rank + 1)?;
        return talk.recv(data, rank + 1);
    }
    let mine = if rank < 2 * extra {
        talk.recv(&mut theirs, rank - 1)?;
        (op.combine)(&theirs, data);
        rank / 2
    } else {
        rank - extra
    };
    let real = |number: usize| {
        if number < extra {
            2 * number + 1
        } else {
            number + extra
        }
    };
    let mut bit = 1;
    while bit < power {
        let partner = real(mine ^ bit);
        talk.sendrecv(data, partner, &mut theirs, partner)?;
        if mine & bit != 0 {
            (op.combine)(&theirs, data);
        } else {
            (op.combine)(data, &mut theirs);
            data.copy_from_slice(&theirs);
        }
        bit *= 2;
    }
    if rank < 2 * extra {
        talk.send(data, rank - 1)?;
    }
    Ok(())
}

pub(crate) fn scan<T: Datum>(
    talk: &Talk<'_>,
    data: &mut [T],
    op: &Reduction<'_, T>,
) -> Result<(), Error> {
    let rank = talk.rank;
    // Of the aligned group of ranks around this one, as far as it was heard of.
    let mut group = data.to_vec();
    let mut theirs = vec![T::default(); data.len()];
    let mut bit = 1;
    while bit < talk.size {
        let partner = rank ^ bit;
        if partner < talk.size {
            talk.sendrecv(&group, partner, &mut theirs, partner)?;
            if partner < rank {
                (op.combine)(&theirs, &mut group);
                (op.combine)(&theirs, data);
            } else {
                (op.combine)(&group, &mut theirs);
                std::mem::swap(&mut group, &mut theirs);
            }
        }
        bit *= 2;
    }
    Ok(())
}
