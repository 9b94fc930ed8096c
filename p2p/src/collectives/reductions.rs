//! Reductions. `combine(left, right)` leaves the result in `right`; `left` always comes from lower
//! ranks where the order matters.

use super::choice::{self, Algorithm};
use super::messages::{Messages, cut, part, two};
use super::op::Reduction;
use super::{Block, exchange, nodes};
use crate::error::Error;
use crate::memory::Datum;

/// Returns the algorithm of a reduction; `flat`: that of a short one on one level.
fn algorithm<T: Datum>(
    messages: &Messages<'_>,
    data: &[T],
    op: &Reduction<'_, T>,
    flat: Algorithm,
) -> Algorithm {
    let units = data.len() / op.unit;
    let bytes = size_of_val(data);
    choice::reduce(messages.ranks(), bytes, !op.commutative, units, flat)
}

pub(crate) fn reduce<T: Datum>(
    messages: &Messages<'_>,
    data: &mut [T],
    op: &Reduction<'_, T>,
    root: usize,
) -> Result<(), Error> {
    let algorithm = algorithm(messages, data, op, Algorithm::Binomial);
    if let (Algorithm::TwoLevels, Some(placement)) = (algorithm, messages.placement) {
        return nodes::reduce(messages, placement, data, op, root);
    }
    let mut sum = data.to_vec();
    if algorithm == Algorithm::Ring {
        let blocks = cut(data.len(), op.unit, messages.size);
        reduce_scatter(messages, &mut sum, op, &blocks)?;
        let own = part(&sum, blocks[messages.rank]);
        return exchange::gatherv(messages, own, data, &blocks, root);
    }
    // A tree over neighbours with rank 0 on top: the receiver has combined the ranks just below
    // those of the sender.
    let mut theirs = vec![T::default(); data.len()];
    let mut bit = 1;
    while bit < messages.size {
        if messages.rank & bit != 0 {
            messages.send(&sum, messages.rank - bit)?;
            break;
        }
        if messages.rank + bit < messages.size {
            messages.recv(&mut theirs, messages.rank + bit)?;
            (op.combine)(&sum, &mut theirs);
            std::mem::swap(&mut sum, &mut theirs);
        }
        bit *= 2;
    }
    match (messages.rank == 0, messages.rank == root) {
        (true, true) => data.copy_from_slice(&sum),
        (true, false) => messages.send(&sum, root)?,
        (false, true) => messages.recv(data, 0)?,
        (false, false) => {}
    }
    Ok(())
}

/// Turns each rank's own block into the combination of all ranks' blocks.
fn reduce_scatter<T: Datum>(
    messages: &Messages<'_>,
    data: &mut [T],
    op: &Reduction<'_, T>,
    blocks: &[Block],
) -> Result<(), Error> {
    let (rank, size) = (messages.rank, messages.size);
    let longest = blocks.iter().map(|block| block.count).max().unwrap_or(0);
    let mut came = vec![T::default(); longest];
    for step in 0..size - 1 {
        let (out, into) = (rank + 2 * size - step - 1, rank + 2 * size - step - 2);
        let (out, into) = two(data, blocks[out % size], blocks[into % size]);
        let came = &mut came[..into.len()];
        messages.sendrecv(out, rank + 1, came, rank + size - 1)?;
        (op.combine)(came, into);
    }
    Ok(())
}

pub(crate) fn allreduce<T: Datum>(
    messages: &Messages<'_>,
    data: &mut [T],
    op: &Reduction<'_, T>,
) -> Result<(), Error> {
    let algorithm = algorithm(messages, data, op, Algorithm::RecursiveDoubling);
    match (algorithm, messages.placement) {
        (Algorithm::Ring, _) => {
            let blocks = cut(data.len(), op.unit, messages.size);
            reduce_scatter(messages, data, op, &blocks)?;
            return exchange::ring(messages, data, &blocks);
        }
        (Algorithm::TwoLevels, Some(placement)) => {
            return nodes::allreduce(messages, placement, data, op);
        }
        _ => {}
    }
    let (rank, size) = (messages.rank, messages.size);
    if size == 1 {
        return Ok(());
    }
    // Ranks beyond a power of two first join a neighbour: pairs (0, 1), (2, 3), … of which the odd
    // one continues.
    let power = 1 << size.ilog2();
    let extra = size - power;
    let mut theirs = vec![T::default(); data.len()];
    if rank < 2 * extra && rank % 2 == 0 {
        messages.send(data, rank + 1)?;
        return messages.recv(data, rank + 1);
    }
    let mine = if rank < 2 * extra {
        messages.recv(&mut theirs, rank - 1)?;
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
        messages.sendrecv(data, partner, &mut theirs, partner)?;
        if mine & bit != 0 {
            (op.combine)(&theirs, data);
        } else {
            (op.combine)(data, &mut theirs);
            data.copy_from_slice(&theirs);
        }
        bit *= 2;
    }
    if rank < 2 * extra {
        messages.send(data, rank - 1)?;
    }
    Ok(())
}

pub(crate) fn scan<T: Datum>(
    messages: &Messages<'_>,
    data: &mut [T],
    op: &Reduction<'_, T>,
) -> Result<(), Error> {
    let rank = messages.rank;
    // Combination of the data of an aligned group of ranks around this one. The group doubles each
    // round.
    let mut group = data.to_vec();
    let mut theirs = vec![T::default(); data.len()];
    let mut bit = 1;
    while bit < messages.size {
        let partner = rank ^ bit;
        if partner < messages.size {
            messages.sendrecv(&group, partner, &mut theirs, partner)?;
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
