//! `get` and `put`: data, bounds, keys, exactly one completion.

use std::collections::BTreeMap;

use super::super::run::demand;
use super::super::{Buffer, Case, Failure, Need, Remote, Run};
use super::basic::within;
use crate::rng::Rng;
use btl::{MAX_KEY, PeerError, Rank, SendError, Started};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "get_data",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: get_data,
    },
    Case {
        name: "put_data",
        needs: &[Need::Put],
        ranks: 2,
        added: true,
        run: put_data,
    },
    Case {
        name: "get_bounds",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: get_bounds,
    },
    Case {
        name: "put_bounds",
        needs: &[Need::Put],
        ranks: 2,
        added: true,
        run: put_bounds,
    },
    Case {
        name: "put_then_send",
        needs: &[Need::Put],
        ranks: 2,
        added: true,
        run: put_then_send,
    },
    Case {
        name: "get_flood",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: get_flood,
    },
    Case {
        name: "put_flood",
        needs: &[Need::Put],
        ranks: 2,
        added: true,
        run: put_flood,
    },
    Case {
        name: "get_keys",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: get_keys,
    },
    Case {
        name: "put_keys",
        needs: &[Need::Put],
        ranks: 2,
        added: true,
        run: put_keys,
    },
    Case {
        name: "self_get",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: self_get,
    },
    Case {
        name: "many_regions",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: many_regions,
    },
];

/// One of the two operations, with the signature of [`Run::get`].
pub(super) type Operate =
    fn(&mut Run, Remote<'_>, &Buffer, usize, usize) -> Result<super::super::Operation, Failure>;

pub(super) fn random(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Registers the buffer and sends its key to all ranks; returns the keys of all ranks.
pub(super) fn share(run: &mut Run, buffer: Option<&Buffer>) -> Result<Vec<Vec<u8>>, Failure> {
    for peer in (0..run.size).filter(|peer| *peer != run.rank) {
        if !run.path(peer)?.one_sided {
            return Err(Failure::Skipped(
                "no one-sided operations with this peer".into(),
            ));
        }
    }
    let mut key = Vec::new();
    if let Some(buffer) = buffer {
        key = run
            .register(buffer)
            .map_err(|error| Failure::Broken(format!("registration: {error}")))?
            .key;
        demand(!key.is_empty() && key.len() <= MAX_KEY, || {
            format!("a key of {} bytes", key.len())
        })?;
    }
    Ok(run
        .exchange(&key)?
        .into_iter()
        .map(Option::unwrap_or_default)
        .collect())
}

/// Executes one operation until it completes, retrying while it is `Busy`.
pub(super) fn finish(
    run: &mut Run,
    operate: Operate,
    remote: Remote<'_>,
    local: &Buffer,
    at: usize,
    length: usize,
) -> Result<Result<(), PeerError>, Failure> {
    loop {
        let operation = operate(run, remote, local, at, length)?;
        match operation.result {
            Ok(Started::Done) => return Ok(Ok(())),
            Ok(Started::Pending) => {
                let token = operation.token;
                run.until("a completion", |run| {
                    run.log.completed.iter().any(|(of, _)| *of == token)
                })?;
                let at = run.log.completed.iter().position(|(of, _)| *of == token);
                return Ok(at.map_or(Ok(()), |at| run.log.completed.remove(at).1));
            }
            Err(SendError::Busy) => run.step()?,
            Err(error) => return Err(error.into()),
        };
        run.in_time("a get or put to be accepted")?;
    }
}

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

/// Returns a region length that exceeds every threshold of the path.
fn region_length(run: &Run, peer: Rank) -> Result<usize, Failure> {
    let path = run.path(peer)?;
    Ok((path.max_send.max(path.one_sided_from) * 2 + 4097).min(4 << 20))
}

/// `get` returns the bytes of the range and changes nothing outside of its target.
fn get_data(run: &mut Run) -> Result<(), Failure> {
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
fn put_data(run: &mut Run) -> Result<(), Failure> {
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
            super::basic::expect(run, 1, b"seen", &[])?;
        } else {
            super::basic::expect(run, 0, b"look", &[])?;
            wanted[offset..offset + size].copy_from_slice(&bytes);
            same(&region.bytes(), &wanted)
                .map_err(|failure| within(failure, &format!("put of {size} at {offset}")))?;
            run.send(0, b"seen", &[])?;
        }
    }
    Ok(())
}

fn get_bounds(run: &mut Run) -> Result<(), Failure> {
    bounds(run, Run::get)
}

fn put_bounds(run: &mut Run) -> Result<(), Failure> {
    bounds(run, Run::put)
}

/// Ranges outside of the region are refused, also with numbers that overflow.
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

/// A message sent after the completion of a put finds the bytes there.
fn put_then_send(run: &mut Run) -> Result<(), Failure> {
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
            super::basic::expect(run, 1, b"next", &[])?;
        } else {
            super::basic::expect(run, 0, &round.to_le_bytes(), &[])?;
            same(&region.bytes()[..size], &bytes)
                .map_err(|failure| within(failure, &format!("round {round}")))?;
            run.send(0, b"next", &[])?;
        }
    }
    Ok(())
}

fn get_flood(run: &mut Run) -> Result<(), Failure> {
    flood(run, Run::get, false)
}

fn put_flood(run: &mut Run) -> Result<(), Failure> {
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
        super::basic::expect(run, peer, b"all there", &[])?;
        same(&region.bytes(), &truth(peer))
    } else {
        same(&local.bytes(), &truth(peer))
    }
}

fn get_keys(run: &mut Run) -> Result<(), Failure> {
    keys(run, Run::get)
}

fn put_keys(run: &mut Run) -> Result<(), Failure> {
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

/// Operations on the own rank: source and target are memory of one process.
fn self_get(run: &mut Run) -> Result<(), Failure> {
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

/// Regions are registered and deregistered in turn; each key keeps naming its own.
fn many_regions(run: &mut Run) -> Result<(), Failure> {
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

pub(super) fn same(is: &[u8], wanted: &[u8]) -> Result<(), Failure> {
    let at = is.iter().zip(wanted).position(|(is, wanted)| is != wanted);
    demand(at.is_none() && is.len() == wanted.len(), || {
        format!("wrong at byte {at:?} of {}", wanted.len())
    })
}
