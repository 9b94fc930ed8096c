//! Cases of matching: which posted receive a message fills, and how much of it.

use super::super::basic::within;
use super::super::one_sided::{random, same};
use super::{ANY, applies, deliver, envelope, holds, post, refused, tagged, taken};
use crate::suite::run::demand;
use crate::suite::{Failure, Run, Wanted};
use btl::{Envelope, Withdrawn};

/// Of the matching receives, the one posted first is filled.
pub(super) fn oldest(run: &mut Run) -> Result<(), Failure> {
    applies(run)?;
    for round in 0..20 {
        if run.rank == 1 {
            run.barrier()?;
            for text in ["first", "second", "third"] {
                deliver(run, 0, envelope(5), text.as_bytes())?;
            }
            refused(run, 0, envelope(5))?;
            deliver(run, 0, Envelope { context: 2, tag: 5 }, b"fourth")?;
        } else {
            let first = post(run, tagged(5), 16)?;
            let other = post(
                run,
                Wanted {
                    context: 2,
                    ..tagged(5)
                },
                16,
            )?;
            let second = post(
                run,
                Wanted {
                    source: Some(1),
                    ..tagged(5)
                },
                16,
            )?;
            let third = post(run, ANY, 16)?;
            run.barrier()?;
            holds(run, &first, 1, envelope(5), b"first")?;
            holds(run, &second, 1, envelope(5), b"second")?;
            holds(run, &third, 1, envelope(5), b"third")?;
            holds(run, &other, 1, Envelope { context: 2, tag: 5 }, b"fourth")?;
        }
        run.barrier()
            .map_err(|failure| within(failure, &format!("round {round}")))?;
    }
    Ok(())
}

/// A receive for one source is not filled by another, even if it is older.
pub(super) fn sources(run: &mut Run) -> Result<(), Failure> {
    applies(run)?;
    if run.rank == 0 {
        let from_two = post(
            run,
            Wanted {
                source: Some(2),
                ..ANY
            },
            16,
        )?;
        run.barrier()?; // posted
        run.barrier()?; // rank 1 was refused
        let from_any = post(run, ANY, 16)?;
        run.barrier()?; // posted for any source
        holds(run, &from_any, 1, envelope(7), b"one")?;
        holds(run, &from_two, 2, envelope(7), b"two")?;
        return run.barrier();
    }
    run.barrier()?;
    if run.rank == 1 {
        refused(run, 0, envelope(7))?;
    }
    run.barrier()?;
    run.barrier()?;
    let text: &[u8] = if run.rank == 1 { b"one" } else { b"two" };
    deliver(run, 0, envelope(7), text)?;
    run.barrier()
}

/// Tags match exactly; any-tag takes all but the negative ones; contexts never mix.
pub(super) fn tags(run: &mut Run) -> Result<(), Failure> {
    applies(run)?;
    for tag in [0, 1, i32::MAX] {
        if run.rank == 0 {
            let any = post(run, ANY, 8)?;
            run.barrier()?;
            holds(run, &any, 1, envelope(tag), b"any")?;
        } else {
            run.barrier()?;
            for negative in [-1, -2, i32::MIN] {
                refused(run, 0, envelope(negative))?;
            }
            refused(run, 0, Envelope { context: 0, tag })?;
            refused(
                run,
                0,
                Envelope {
                    context: u32::MAX,
                    tag,
                },
            )?;
            deliver(run, 0, envelope(tag), b"any")?;
        }
        run.barrier()?;
    }
    for tag in [-1, 0, i32::MIN, i32::MAX] {
        if run.rank == 0 {
            let exact = post(run, tagged(tag), 8)?;
            run.barrier()?;
            holds(run, &exact, 1, envelope(tag), b"exact")?;
        } else {
            run.barrier()?;
            refused(run, 0, envelope(tag ^ 1))?;
            refused(run, 0, envelope(!tag))?;
            deliver(run, 0, envelope(tag), b"exact")?;
        }
        run.barrier()?;
    }
    Ok(())
}

/// Messages shorter and longer than the buffer, and empty ones: the sent length is reported, and
/// nothing beyond the buffer is written.
pub(super) fn lengths(run: &mut Run) -> Result<(), Failure> {
    applies(run)?;
    let all = [
        (100, 0),
        (100, 1),
        (100, 99),
        (100, 100),
        (100, 101),
        (100, 100_000),
        (0, 0),
        (0, 5),
        (1 << 20, 1 << 20),
    ];
    for (round, (room, sent)) in all.into_iter().enumerate() {
        let bytes = random(sent, round as u64);
        if run.rank == 1 {
            run.barrier()?;
            deliver(run, 0, envelope(1), &bytes)?;
            run.barrier()?;
            continue;
        }
        let buffer = run.buffer(vec![0x5a; room + 32]);
        let posted = run.post(ANY, &buffer, 16, room)?;
        run.barrier()?;
        let received = taken(run, posted)?;
        demand(received.result == Ok(sent), || {
            format!("{sent} bytes into {room}: {:?}", received.result)
        })?;
        let mut wanted = vec![0x5a; room + 32];
        let fits = sent.min(room);
        wanted[16..16 + fits].copy_from_slice(&bytes[..fits]);
        same(&buffer.bytes(), &wanted)
            .map_err(|failure| within(failure, &format!("{sent} bytes into {room}")))?;
        run.barrier()?;
    }
    Ok(())
}

/// A rank may fill its own receives like those of any other.
pub(super) fn itself(run: &mut Run) -> Result<(), Failure> {
    let rank = run.rank;
    if !run.path(rank)?.one_sided {
        return Err(Failure::Skipped("no matched sends to itself".into()));
    }
    for round in 0..20u32 {
        let other = post(
            run,
            Wanted {
                source: Some(1 - rank),
                ..ANY
            },
            8,
        )?;
        let own = post(run, ANY, 8)?;
        deliver(run, rank, envelope(2), &round.to_le_bytes())?;
        holds(run, &own, rank, envelope(2), &round.to_le_bytes())?;
        demand(run.withdraw(other.1) == Withdrawn::Yes, || {
            "filled by a wrong rank".into()
        })?;
    }
    Ok(())
}
