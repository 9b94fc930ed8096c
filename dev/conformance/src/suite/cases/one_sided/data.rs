//! Cases of data: the right bytes arrive, nothing else changes, each operation completes once.

use std::collections::BTreeMap;

use super::super::basic::{expect, within};
use super::{Operate, finish, random, region_length, same, share};
use crate::rng::Rng;
use crate::suite::run::demand;
use crate::suite::{Failure, Remote, Run};
use btl::{Rank, SendError, Started};

/// Returns ranges of a region that cover the corner cases.
fn ranges(length: usize, run: &mut Run) -> Vec<(usize, usize)> {
    let mut all = vec![
        (0, 0),
        (length, 0),
        (0, 1),
        (length - 1, 1),
        (0, length),
        (1, length - 1),
        (0, length - 1),
    ];
    for power in 0..22 {
        let size = 1usize << power;
        for size in [size - 1, size, size + 1] {
            if size < length {
                all.push((run.rng.below(length - size), size));
            }
        }
    }
    all
}

/// `get` returns the bytes of the range and changes nothing outside of its target.
pub(super) fn get_data(run: &mut Run) -> Result<(), Failure> {
    let length = region_length(run, 1 - run.rank)?;
    let truth = random(length, 11);
    if run.rank == 1 {
        let region = run.buffer(truth);
        share(run, Some(&region))?;
        return run.barrier();
    }
    let key = share(run, None)?.swap_remove(1);
    for (offset, size) in ranges(length, run) {
        let before = run.rng.below(9);
        let local = run.buffer(vec![0xa5; size + before + 7]);
        let result = finish(
            run,
            Run::get,
            Remote {
                peer: 1,
                key: &key,
                offset,
            },
            &local,
            before,
            size,
        )?;
        demand(result.is_ok(), || {
            format!("get of {size} at {offset}: {result:?}")
        })?;
        let mut wanted = vec![0xa5; size + before + 7];
        wanted[before..before + size].copy_from_slice(&truth[offset..offset + size]);
        same(&local.bytes(), &wanted)
            .map_err(|failure| within(failure, &format!("get of {size} at {offset}")))?;
    }
    run.barrier()
}

/// `put` writes the bytes of the range and changes nothing outside of it.
pub(super) fn put_data(run: &mut Run) -> Result<(), Failure> {
    let length = region_length(run, 1 - run.rank)?;
    let mut wanted = vec![0xa5; length];
    let region = run.buffer(wanted.clone());
    let mut rng = Rng::new(5);
    // Both sides make equal choices.
    let mut all = vec![(0, length), (0, 1), (length - 1, 1), (0, 0), (length, 0)];
    for power in 0..22 {
        let size = (1usize << power) - 1 + rng.below(3);
        if size < length {
            all.push((rng.below(length - size), size));
        }
    }
    let key = share(run, (run.rank == 1).then_some(&region))?.swap_remove(1);
    for (round, (offset, size)) in all.into_iter().enumerate() {
        let bytes = random(size, round as u64);
        if run.rank == 0 {
            let before = round % 9;
            let local = run.buffer([&vec![0x11; before], &bytes[..], &[0x22; 5]].concat());
            let result = finish(
                run,
                Run::put,
                Remote {
                    peer: 1,
                    key: &key,
                    offset,
                },
                &local,
                before,
                size,
            )?;
            demand(result.is_ok(), || {
                format!("put of {size} at {offset}: {result:?}")
            })?;
            // The message arrives after the bytes, and then the receiver checks them.
            run.send(1, b"look", &[])?;
            expect(run, 1, b"seen", &[])?;
        } else {
            expect(run, 0, b"look", &[])?;
            wanted[offset..offset + size].copy_from_slice(&bytes);
            same(&region.bytes(), &wanted)
                .map_err(|failure| within(failure, &format!("put of {size} at {offset}")))?;
            run.send(0, b"seen", &[])?;
        }
    }
    Ok(())
}

/// When a message arrives that was sent after the completion of a put, the bytes of the put are in
/// place.
pub(super) fn put_then_send(run: &mut Run) -> Result<(), Failure> {
    let rounds = (run.rounds / 4).max(20);
    let length = region_length(run, 1 - run.rank)?.min(64 << 10);
    let region = run.buffer(vec![0; length]);
    let key = share(run, (run.rank == 1).then_some(&region))?.swap_remove(1);
    for round in 0..rounds {
        let size = Rng::new(u64::from(round)).below(length) + 1;
        let bytes = random(size, u64::from(round) + 99);
        if run.rank == 0 {
            region.fill(&bytes);
            let result = finish(
                run,
                Run::put,
                Remote {
                    peer: 1,
                    key: &key,
                    offset: 0,
                },
                &region,
                0,
                size,
            )?;
            demand(result.is_ok(), || format!("round {round}: {result:?}"))?;
            // After the completion the local memory is the caller's again.
            region.fill(&vec![0xee; size]);
            run.send(1, &round.to_le_bytes(), &[])?;
            expect(run, 1, b"next", &[])?;
        } else {
            expect(run, 0, &round.to_le_bytes(), &[])?;
            same(&region.bytes()[..size], &bytes)
                .map_err(|failure| within(failure, &format!("round {round}")))?;
            run.send(0, b"next", &[])?;
        }
    }
    Ok(())
}

pub(super) fn get_flood(run: &mut Run) -> Result<(), Failure> {
    flood(run, Run::get, false)
}

pub(super) fn put_flood(run: &mut Run) -> Result<(), Failure> {
    flood(run, Run::put, true)
}

/// As many operations at once as are accepted, in both directions; each completes once, and none
/// touches another's bytes.
fn flood(run: &mut Run, operate: Operate, put: bool) -> Result<(), Failure> {
    const SLOT: usize = 300;
    let (peer, slots) = (1 - run.rank, (run.rounds / 4).max(50) as usize);
    let truth = |rank: Rank| random(slots * SLOT, u64::from(rank) + 40);
    let empty = vec![0x77; slots * SLOT];
    let (there, here) = if put {
        (empty, truth(run.rank))
    } else {
        (truth(run.rank), empty)
    };
    let region = run.buffer(there);
    let local = run.buffer(here);
    let key = share(run, Some(&region))?.swap_remove(peer as usize);
    let mut open = BTreeMap::new();
    let (mut next, mut over) = (0, 0);
    while over < slots {
        while next < slots && open.len() < 64 {
            let remote = Remote {
                peer,
                key: &key,
                offset: next * SLOT,
            };
            let operation = operate(run, remote, &local, next * SLOT, SLOT)?;
            match operation.result {
                Ok(Started::Done) => over += 1,
                Ok(Started::Pending) => drop(open.insert(operation.token, next)),
                Err(SendError::Busy) => break,
                Err(error) => return Err(error.into()),
            }
            next += 1;
        }
        run.step()?;
        for (token, result) in std::mem::take(&mut run.log.completed) {
            demand(open.remove(&token).is_some() && result.is_ok(), || {
                format!("token {token}: {result:?}")
            })?;
            over += 1;
        }
        run.in_time("all gets or puts")?;
    }
    if put {
        run.send(peer, b"all there", &[])?;
        expect(run, peer, b"all there", &[])?;
        same(&region.bytes(), &truth(peer))
    } else {
        same(&local.bytes(), &truth(peer))
    }
}

/// Operations of a rank on itself: source and target are memory of one process.
pub(super) fn self_get(run: &mut Run) -> Result<(), Failure> {
    let rank = run.rank;
    if !run.path(rank)?.one_sided {
        return Err(Failure::Skipped(
            "no one-sided operations with itself".into(),
        ));
    }
    let truth = random(50_000, u64::from(rank));
    let region = run.buffer(truth.clone());
    let key = share(run, Some(&region))?.swap_remove(rank as usize);
    let local = run.buffer(vec![0; 50_000]);
    for (offset, size) in [(0, 50_000), (1, 49_999), (33_333, 1), (50_000, 0)] {
        let result = finish(
            run,
            Run::get,
            Remote {
                peer: rank,
                key: &key,
                offset,
            },
            &local,
            0,
            size,
        )?;
        demand(result.is_ok(), || {
            format!("get of {size} at {offset}: {result:?}")
        })?;
        same(&local.bytes()[..size], &truth[offset..offset + size])?;
    }
    Ok(())
}
