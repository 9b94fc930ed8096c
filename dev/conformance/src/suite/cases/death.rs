//! Death of a rank: pending operations end, the failure is reported once, the others continue.

use super::super::run::demand;
use super::super::{Case, Failure, Need, Remote, Run, Sizes};
use super::ends::{has_died, has_died_or_gone, has_left};
use super::life::refuses;
use super::one_sided::{Operate, share};
use btl::{SendError, Started};

const NEEDS: &[Need] = &[Need::Death, Need::Kill];

pub(super) const CASES: &[Case] = &[
    Case {
        name: "death_idle",
        needs: NEEDS,
        ranks: 3,
        added: true,
        run: idle,
    },
    Case {
        name: "death_before_first_message",
        needs: NEEDS,
        ranks: 3,
        added: true,
        run: before_first_message,
    },
    Case {
        name: "death_mid_send",
        needs: NEEDS,
        ranks: 3,
        added: true,
        run: mid_send,
    },
    Case {
        name: "death_mid_receive",
        needs: NEEDS,
        ranks: 3,
        added: true,
        run: mid_receive,
    },
    Case {
        name: "death_mid_get",
        needs: &[Need::Get, Need::Death, Need::Kill],
        ranks: 3,
        added: true,
        run: mid_get,
    },
    Case {
        name: "death_mid_put",
        needs: &[Need::Put, Need::Death, Need::Kill],
        ranks: 3,
        added: true,
        run: mid_put,
    },
    Case {
        name: "left_mid_get",
        needs: &[Need::Get],
        ranks: 3,
        added: true,
        run: left_mid_get,
    },
    Case {
        name: "death_of_many",
        needs: NEEDS,
        ranks: 6,
        added: true,
        run: many,
    },
];

/// Makes progress until this rank is killed.
fn victim(
    run: &mut Run,
    mut work: impl FnMut(&mut Run) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        work(run)?;
        run.step()?;
        run.in_time("this rank's death")?;
    }
}

/// Exchanges `count` more messages between the two remaining ranks.
fn go_on(run: &mut Run, count: u64) -> Result<(), Failure> {
    let other = 1 - run.rank;
    let (sent, came) = run.streamed(other);
    let theirs = super::basic::counts(run, &came.to_le_bytes())?;
    demand(theirs[other as usize] == sent, || {
        format!("{sent} sent, {} arrived", theirs[other as usize])
    })?;
    for _ in 0..count {
        run.stream(other, Sizes::Mixed)?;
    }
    run.arrived(other, came + count)
}

/// Death while idle.
fn idle(run: &mut Run) -> Result<(), Failure> {
    let rank = run.rank;
    for peer in (0..3).filter(|peer| *peer != rank) {
        run.stream(peer, Sizes::Mixed)?;
        run.arrived(peer, 1)?;
    }
    run.barrier()?;
    die_and_go_on(run)
}

/// Death before any message: a transport that connects late must detect it, too.
fn before_first_message(run: &mut Run) -> Result<(), Failure> {
    die_and_go_on(run)
}

fn die_and_go_on(run: &mut Run) -> Result<(), Failure> {
    if run.rank == 2 {
        return victim(run, |_| Ok(()));
    }
    if run.rank == 0 {
        run.kill(2)?;
    }
    has_died_or_gone(run, 2)?;
    refuses(run, 2)?;
    go_on(run, 200)
}

/// Death between two of many messages: the earlier ones arrive in order or not at all.
fn mid_send(run: &mut Run) -> Result<(), Failure> {
    if run.rank == 2 {
        for _ in 0..150 {
            run.stream(0, Sizes::Mixed)?;
            run.stream(1, Sizes::Mixed)?;
        }
        return Err(run.die());
    }
    let other = 1 - run.rank;
    while run.log.failure(2).is_none() || run.streamed(other).0 < 300 {
        if run.streamed(other).0 < 300 {
            run.stream(other, Sizes::Mixed)?;
        }
        run.step()?;
        run.in_time("the failure of a rank that died")?;
    }
    let came = run.streamed(2).1;
    demand(came <= 150, || {
        format!("{came} messages from a rank that sent 150")
    })?;
    has_died(run, 2)?;
    refuses(run, 2)?;
    run.arrived(other, 300)?;
    go_on(run, 50)
}

/// Death while all ranks send to all.
fn mid_receive(run: &mut Run) -> Result<(), Failure> {
    if run.rank == 2 {
        return victim(run, |run| {
            for peer in [0, 1] {
                match run.stream_now(peer, Sizes::Mixed) {
                    Ok(()) | Err(SendError::Busy | SendError::Closed) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        });
    }
    let other = 1 - run.rank;
    let mut killed = false;
    while run.log.failure(2).is_none() || run.streamed(other).0 < 300 {
        for (peer, sizes) in [(2, Sizes::Mixed), (other, Sizes::Mixed)] {
            if peer == other && run.streamed(other).0 == 300 {
                continue;
            }
            match run.stream_now(peer, sizes) {
                Ok(()) | Err(SendError::Busy | SendError::Failed { peer: 2, .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if run.rank == 0 && !killed && run.streamed(2).1 >= 50 {
            run.kill(2)?;
            killed = true;
        }
        run.step()?;
        run.in_time("the failure of a rank that was killed")?;
    }
    has_died(run, 2)?;
    refuses(run, 2)?;
    run.arrived(other, 300)?;
    go_on(run, 50)
}

fn mid_get(run: &mut Run) -> Result<(), Failure> {
    mid_operation(run, Run::get, false)
}

fn mid_put(run: &mut Run) -> Result<(), Failure> {
    mid_operation(run, Run::put, false)
}

/// Orderly end while other ranks read its memory.
fn left_mid_get(run: &mut Run) -> Result<(), Failure> {
    mid_operation(run, Run::get, true)
}

/// Checks that every pending operation completes before the failure, which the event log verifies.
fn mid_operation(run: &mut Run, operate: Operate, leaves: bool) -> Result<(), Failure> {
    const LENGTH: usize = 1 << 20;
    const WINDOW: usize = 8;
    let buffer = run.buffer(vec![run.rank as u8; LENGTH]);
    let key = share(run, Some(&buffer))?.swap_remove(2);
    if run.rank == 2 {
        if leaves {
            super::basic::expect(run, 0, b"go", b"")?;
            run.flush()?;
            run.btl.close();
            return Ok(());
        }
        return victim(run, |_| Ok(()));
    }
    let local: Vec<_> = (0..WINDOW)
        .map(|_| run.buffer(vec![9; LENGTH / WINDOW]))
        .collect();
    let mut free: Vec<usize> = (0..WINDOW).collect();
    let mut tokens = std::collections::BTreeMap::new();
    let (mut over, mut refused, mut killed) = (0, false, false);
    while run.log.failure(2).is_none() {
        while let Some(slot) = free.pop().filter(|_| !refused) {
            let size = LENGTH / WINDOW;
            let operation = operate(
                run,
                Remote {
                    peer: 2,
                    key: &key,
                    offset: slot * size,
                },
                &local[slot],
                0,
                size,
            )?;
            match operation.result {
                Ok(Started::Pending) => drop(tokens.insert(operation.token, slot)),
                Ok(Started::Done) => {
                    over += 1;
                    free.push(slot);
                    break;
                }
                Err(SendError::Busy) => {
                    free.push(slot);
                    break;
                }
                // The failure may be known before it is reported.
                Err(SendError::Failed { peer: 2, .. }) => refused = true,
                // The system refused the copy, so the failure is about to be reported.
                Err(error) => return Err(error.into()),
            }
        }
        // The death falls between start and end of some operations.
        if run.rank == 0 && !killed && over >= 50 && (over >= 100 || !tokens.is_empty()) {
            if leaves {
                run.send(2, b"go", b"")?;
            } else {
                run.kill(2)?;
            }
            killed = true;
        }
        run.step()?;
        for (token, _) in std::mem::take(&mut run.log.completed) {
            free.extend(tokens.remove(&token));
            over += 1;
        }
        run.in_time("the failure of a rank that was killed")?;
    }
    demand(run.log.pending.is_empty(), || {
        format!("pending after the failure: {:?}", run.log.pending)
    })?;
    if leaves {
        has_left(run, 2)?;
    } else {
        has_died(run, 2)?;
    }
    let result = operate(
        run,
        Remote {
            peer: 2,
            key: &key,
            offset: 0,
        },
        &local[0],
        0,
        8,
    )?
    .result;
    demand(
        matches!(result, Err(SendError::Failed { peer: 2, .. })),
        || format!("after the failure: {result:?}"),
    )?;
    go_on(run, 50)
}

/// Four of six ranks die, one after another.
fn many(run: &mut Run) -> Result<(), Failure> {
    if run.rank >= 2 {
        return victim(run, |run| match run.stream_now(0, Sizes::Tiny) {
            Ok(()) | Err(SendError::Busy | SendError::Closed) => Ok(()),
            Err(error) => Err(error.into()),
        });
    }
    for victim in 2..6 {
        if run.rank == 0 {
            run.kill(victim)?;
        }
        has_died_or_gone(run, victim)?;
        refuses(run, victim)?;
    }
    demand(run.log.failed.len() == 4, || {
        format!("four died, these failed: {:?}", run.log.failed)
    })?;
    go_on(run, 100)
}
