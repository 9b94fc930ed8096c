//! Collective operations and the exchange of an integer sort: the work of `dev/bench/peers/mpi.c`.

use std::time::Instant;

use p2p::{Block, Comm, Error, Op};

use super::ours::{Said, nanos};
use super::work::Call;

/// Number of buckets of keys, as in IS.
const BUCKETS: usize = 1024;
/// Keys are below two to this power, as in class A.
const KEY_BITS: u32 = 19;
/// Bits of a key that are not the number of its bucket.
const WITHIN: u32 = KEY_BITS - BUCKETS.ilog2();
/// Number of keys beyond twice its share for which a rank has room.
const MARGIN: usize = 4096;

/// Times calls of a collective operation; a barrier before each is not timed.
pub(super) fn run(comm: &Comm, call: Call, size: usize, count: usize) -> Result<Said, Error> {
    let warm_up = (count / 10).max(10);
    let ranks = comm.size() as usize;
    let out = vec![1u8; size * ranks];
    let mut into = vec![1u8; size * ranks];
    let mine = out.get(..size).unwrap_or_default();
    let mut numbers = vec![1f64; size / 8];
    let mut times = Vec::with_capacity(count);
    for sample in 0..count + warm_up {
        comm.barrier()?;
        let start = Instant::now();
        match call {
            Call::Alltoall => comm.alltoall(&out, &mut into)?,
            Call::Allgather => comm.allgather(mine, &mut into)?,
            Call::Allreduce => comm.allreduce(&mut numbers, Op::Sum)?,
        }
        if sample >= warm_up {
            times.push(nanos(start));
        }
    }
    Ok(said(comm, times))
}

/// Returns the samples of rank 0.
fn said(comm: &Comm, times: Vec<u64>) -> Said {
    match comm.rank() {
        0 => vec![("times", times)],
        _ => Said::new(),
    }
}

/// Returns the bucket of a key.
fn bucket(key: u32) -> usize {
    (key >> WITHIN) as usize % BUCKETS
}

/// Times exchanges of a sort; the first one is not counted.
pub(super) fn sort(comm: &Comm, keys: usize, count: usize) -> Result<Said, Error> {
    let ranks = comm.size() as usize;
    let share = keys / ranks.max(1);
    let mut state = u64::from(comm.rank()) + 1;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> (64 - KEY_BITS)) as u32
    };
    let keys: Vec<u32> = (0..share).map(|_| random()).collect();
    let mut sorted = vec![1u32; share];
    let mut got = vec![1u32; 2 * share + MARGIN];
    let mut ranked = vec![1u32; 1 << KEY_BITS];
    let mut times = Vec::with_capacity(count);
    for sample in 0..=count {
        comm.barrier()?;
        let start = Instant::now();
        let received = exchange(comm, &keys, &mut sorted, &mut got)?;
        ranked.fill(0);
        for key in got.iter().take(received) {
            if let Some(rank) = ranked.get_mut(*key as usize) {
                *rank += 1;
            }
        }
        if sample > 0 {
            times.push(nanos(start));
        }
    }
    Ok(said(comm, times))
}

/// Sends each rank the keys of its range. Returns the number of keys received.
fn exchange(
    comm: &Comm,
    keys: &[u32],
    sorted: &mut [u32],
    got: &mut [u32],
) -> Result<usize, Error> {
    let ranks = comm.size() as usize;
    let mut counts = vec![0u32; BUCKETS];
    for key in keys {
        if let Some(count) = counts.get_mut(bucket(*key)) {
            *count += 1;
        }
    }
    let mut all = counts.clone();
    comm.allreduce(&mut all, Op::Sum)?;
    // Assigns the buckets in order, each to the rank in whose share of all keys it begins.
    let (mut before, mut place) = (0u64, 0usize);
    let mut to = vec![0u32; ranks];
    let mut next = Vec::with_capacity(BUCKETS);
    for (count, of_all) in counts.iter().zip(&all) {
        let owner = before * ranks as u64 / (keys.len() * ranks).max(1) as u64;
        let last = ranks.saturating_sub(1);
        if let Some(keys) = to.get_mut((owner as usize).min(last)) {
            *keys += count;
        }
        before += u64::from(*of_all);
        next.push(place);
        place += *count as usize;
    }
    for key in keys {
        if let Some(next) = next.get_mut(bucket(*key)) {
            if let Some(place) = sorted.get_mut(*next) {
                *place = *key;
            }
            *next += 1;
        }
    }
    let mut from = vec![0u32; ranks];
    comm.alltoall(&to, &mut from)?;
    let (to, from) = (blocks(&to), blocks(&from));
    comm.alltoallv(sorted, &to, got, &from)?;
    Ok(from.iter().map(|block| block.count).sum())
}

/// Returns the places of parts of these lengths, one after the other.
fn blocks(lengths: &[u32]) -> Vec<Block> {
    let mut offset = 0;
    let place = |length: &u32| {
        let block = Block {
            offset,
            count: *length as usize,
        };
        offset += block.count;
        block
    };
    lengths.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other() {
        let places: Vec<_> = blocks(&[2, 0, 3])
            .iter()
            .map(|b| (b.offset, b.count))
            .collect();
        assert_eq!(places, [(0, 2), (2, 0), (2, 3)]);
        assert_eq!(bucket((1 << KEY_BITS) - 1), BUCKETS - 1);
    }
}
