//! Operations that move data and do not combine it.

use super::choice::{self, Algorithm};
use super::messages::{Messages, cut, part, part_mut, two};
use super::{Block, nodes};
use crate::error::Error;
use crate::memory::{Datum, bytes_of};

/// In round k of dissemination each rank receives from the one 2^k below it.
pub(crate) fn barrier(messages: &Messages<'_>) -> Result<(), Error> {
    if let (Algorithm::TwoLevels, Some(placement)) =
        (choice::barrier(messages.ranks()), messages.placement)
    {
        return nodes::barrier(messages, placement);
    }
    let (rank, size) = (messages.rank, messages.size);
    let mut distance = 1;
    while distance < size {
        messages.sendrecv::<u8>(&[], rank + distance, &mut [], rank + size - distance)?;
        distance *= 2;
    }
    Ok(())
}

pub(crate) fn bcast<T: Datum>(
    messages: &Messages<'_>,
    data: &mut [T],
    root: usize,
) -> Result<(), Error> {
    let (rank, size) = (messages.rank, messages.size);
    let algorithm = choice::bcast(messages.ranks(), size_of_val(data));
    match (algorithm, messages.placement) {
        (Algorithm::ScatterRing, _) => return scatter_ring(messages, data, root),
        (Algorithm::TwoLevels, Some(placement)) => {
            return nodes::bcast(messages, placement, data, root);
        }
        _ => {}
    }
    // Ranks count from the root; the lowest bit set determines the sender.
    let mine = (rank + size - root) % size;
    let mut bit = 1;
    while bit < size {
        if mine & bit != 0 {
            messages.recv(data, mine - bit + root)?;
            break;
        }
        bit *= 2;
    }
    while bit > 1 {
        bit /= 2;
        if mine + bit < size {
            messages.send(data, mine + bit + root)?;
        }
    }
    Ok(())
}

fn scatter_ring<T: Datum>(
    messages: &Messages<'_>,
    data: &mut [T],
    root: usize,
) -> Result<(), Error> {
    let blocks = cut(data.len(), 1, messages.size);
    if messages.rank == root {
        scatterv(messages, data, &blocks, &mut [], root)?;
    } else {
        messages.recv(part_mut(data, blocks[messages.rank]), root)?;
    }
    ring(messages, data, &blocks)
}

pub(crate) fn gatherv<T: Datum>(
    messages: &Messages<'_>,
    mine: &[T],
    all: &mut [T],
    places: &[Block],
    root: usize,
) -> Result<(), Error> {
    if messages.rank != root {
        return messages.send(mine, root);
    }
    for (from, place) in places.iter().enumerate() {
        let place = part_mut(all, *place);
        if from == root {
            place.copy_from_slice(mine);
        } else {
            messages.recv(place, from)?;
        }
    }
    Ok(())
}

/// The root's `mine` may be empty: its own part stays in place.
pub(crate) fn scatterv<T: Datum>(
    messages: &Messages<'_>,
    all: &[T],
    places: &[Block],
    mine: &mut [T],
    root: usize,
) -> Result<(), Error> {
    if messages.rank != root {
        return messages.recv(mine, root);
    }
    // Concurrently, so that a late rank does not delay the others.
    messages.comm.scope(|scope| {
        for (to, place) in places.iter().enumerate() {
            let part = part(all, *place);
            if to != root {
                scope.isend(bytes_of(part), messages.peer(to), messages.tag)?;
            } else if !mine.is_empty() {
                mine.copy_from_slice(part);
            }
        }
        Ok(())
    })
}

/// Every rank starts with its own block and has all after size - 1 steps.
pub(crate) fn ring<T: Datum>(
    messages: &Messages<'_>,
    data: &mut [T],
    blocks: &[Block],
) -> Result<(), Error> {
    let (rank, size) = (messages.rank, messages.size);
    for step in 0..size - 1 {
        let (out, into) = (rank + size - step, rank + size - step - 1);
        let (out, into) = two(data, blocks[out % size], blocks[into % size]);
        messages.sendrecv(out, rank + 1, into, rank + size - 1)?;
    }
    Ok(())
}

pub(crate) fn allgatherv<T: Datum>(
    messages: &Messages<'_>,
    mine: &[T],
    all: &mut [T],
    places: &[Block],
) -> Result<(), Error> {
    part_mut(all, places[messages.rank]).copy_from_slice(mine);
    ring(messages, all, places)
}

/// Like [`allgatherv`], with parts of equal length.
pub(crate) fn allgather<T: Datum>(
    messages: &Messages<'_>,
    mine: &[T],
    all: &mut [T],
) -> Result<(), Error> {
    let places = cut(all.len(), mine.len(), messages.size);
    let algorithm = choice::allgather(messages.ranks(), size_of_val(all));
    match (algorithm, messages.placement) {
        (Algorithm::Ring, _) => return allgatherv(messages, mine, all, &places),
        (Algorithm::TwoLevels, Some(placement)) => {
            return nodes::allgather(messages, placement, mine, all);
        }
        _ => {}
    }
    gatherv(messages, mine, all, &places, 0)?;
    bcast(messages, all, 0)
}

pub(crate) fn alltoallv<T: Datum>(
    messages: &Messages<'_>,
    out: &[T],
    to: &[Block],
    into: &mut [T],
    from: &[Block],
) -> Result<(), Error> {
    let (rank, size) = (messages.rank, messages.size);
    let (own_out, own_in) = (part(out, to[rank]), part_mut(into, from[rank]));
    if own_out.len() != own_in.len() {
        return Err(Error::InvalidArgument(
            "the parts that this rank sends to itself and receives from itself differ in length",
        ));
    }
    own_in.copy_from_slice(own_out);
    for step in 1..size {
        let (up, down) = ((rank + step) % size, (rank + size - step) % size);
        messages.sendrecv(part(out, to[up]), up, part_mut(into, from[down]), down)?;
    }
    Ok(())
}
