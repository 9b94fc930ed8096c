//! Cases of access: ranges outside of a region and invalid keys are refused, and each key names its
//! own region.

use super::{Operate, finish, random, same, share};
use crate::suite::run::demand;
use crate::suite::{Failure, Remote, Run};
use btl::{MAX_KEY, SendError};

pub(super) fn get_bounds(run: &mut Run) -> Result<(), Failure> {
    bounds(run, Run::get)
}

pub(super) fn put_bounds(run: &mut Run) -> Result<(), Failure> {
    bounds(run, Run::put)
}

/// Ranges outside of the region are refused, including those whose numbers overflow.
fn bounds(run: &mut Run, operate: Operate) -> Result<(), Failure> {
    const LENGTH: usize = 10_000;
    if run.rank == 1 {
        // The region is an allocation of its own, whose neighbours are the allocator's.
        let region = run.buffer(vec![3; LENGTH]);
        share(run, Some(&region))?;
        run.barrier()?;
        return same(&region.bytes(), &[3; LENGTH]);
    }
    let key = share(run, None)?.swap_remove(1);
    let local = run.buffer(vec![4; LENGTH + 10]);
    let max = usize::MAX;
    let outside = [
        (0, LENGTH + 1),
        (1, LENGTH),
        (LENGTH, 1),
        (LENGTH + 1, 1),
        (max, 1),
        (max - 3, 8),
        (max / 2 + 1, 2),
        (1 << 32, 1),
    ];
    for (offset, size) in outside {
        let operation = operate(
            run,
            Remote {
                peer: 1,
                key: &key,
                offset,
            },
            &local,
            0,
            size,
        )?;
        demand(
            matches!(operation.result, Err(SendError::TooLong { length, .. }) if length == size),
            || {
                format!(
                    "{size} at {offset} of a region of {LENGTH}: {:?}",
                    operation.result
                )
            },
        )?;
    }
    for _ in 0..20 {
        run.step()?;
    }
    same(&local.bytes(), &[4; LENGTH + 10])?;
    run.barrier()
}

pub(super) fn get_keys(run: &mut Run) -> Result<(), Failure> {
    keys(run, Run::get)
}

pub(super) fn put_keys(run: &mut Run) -> Result<(), Failure> {
    keys(run, Run::put)
}

/// Invalid keys of every length are refused, and the peer does not fail.
fn keys(run: &mut Run, operate: Operate) -> Result<(), Failure> {
    let region = run.buffer(vec![1; 4096]);
    let key = share(run, Some(&region))?.swap_remove(1 - run.rank as usize);
    let peer = 1 - run.rank;
    let local = run.buffer(vec![2; 64]);
    let mut wrong: Vec<Vec<u8>> = (0..key.len())
        .map(|length| key[..length].to_vec())
        .collect();
    wrong.push([&key[..], &[0]].concat());
    for length in 0..=MAX_KEY + 8 {
        wrong.push(vec![0; length]);
        wrong.push(vec![0xff; length]);
        wrong.push(random(length, length as u64));
    }
    for bad in wrong {
        let operation = operate(
            run,
            Remote {
                peer,
                key: &bad,
                offset: 0,
            },
            &local,
            0,
            8,
        )?;
        demand(operation.result == Err(SendError::BadKey), || {
            format!(
                "{} invalid bytes (no key): {:?}",
                bad.len(),
                operation.result
            )
        })?;
    }
    let result = finish(
        run,
        operate,
        Remote {
            peer,
            key: &key,
            offset: 8,
        },
        &local,
        0,
        8,
    )?;
    demand(result.is_ok(), || {
        format!("the valid key afterwards: {result:?}")
    })?;
    same(&local.bytes()[8..], &[2; 56])?;
    run.barrier()
}

/// Regions are registered and deregistered in turn; each key keeps naming its own.
pub(super) fn many_regions(run: &mut Run) -> Result<(), Failure> {
    let peer = 1 - run.rank;
    for round in 0..20u64 {
        let mut regions = Vec::new();
        let mut keys = Vec::new();
        for index in 0..8u64 {
            let buffer = run.buffer(random(1000, u64::from(run.rank) << 20 | round << 8 | index));
            let region = run
                .register(&buffer)
                .map_err(|error| Failure::Broken(format!("registration: {error}")))?;
            keys.push(region.key.len() as u8);
            keys.extend(&region.key);
            regions.push(region.handle);
        }
        if !run.path(peer)?.one_sided {
            return Err(Failure::Skipped(
                "no one-sided operations with this peer".into(),
            ));
        }
        let theirs = run
            .exchange(&keys)?
            .swap_remove(peer as usize)
            .ok_or(Failure::Aborted)?;
        let mut rest = &theirs[..];
        for index in 0..8u64 {
            let Some((key, tail)) = rest
                .split_first()
                .and_then(|(length, tail)| tail.split_at_checked(usize::from(*length)))
            else {
                return Err(Failure::Aborted);
            };
            rest = tail;
            let local = run.buffer(vec![0; 1000]);
            let result = finish(
                run,
                Run::get,
                Remote {
                    peer,
                    key,
                    offset: 0,
                },
                &local,
                0,
                1000,
            )?;
            demand(result.is_ok(), || format!("round {round}: {result:?}"))?;
            same(
                &local.bytes(),
                &random(1000, u64::from(peer) << 20 | round << 8 | index),
            )?;
        }
        run.barrier()?;
        for handle in regions {
            run.btl.deregister(handle);
        }
        // No longer known.
        run.btl.deregister(u64::MAX);
    }
    Ok(())
}
