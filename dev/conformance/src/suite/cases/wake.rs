//! Sleeping: no wake-up is lost.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::run::demand;
use super::super::{Case, Failure, Need, Remote, Run};
use super::ends::has_left;
use super::one_sided::share;
use btl::{SendError, Started};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "wake",
        needs: &[Need::Blocking],
        ranks: 2,
        added: true,
        run: wake,
    },
    Case {
        name: "wake_quiet",
        needs: &[Need::Blocking],
        ranks: 2,
        added: true,
        run: quiet,
    },
    Case {
        name: "wake_by_completion",
        needs: &[Need::Blocking, Need::Get],
        ranks: 2,
        added: true,
        run: by_completion,
    },
    Case {
        name: "wake_by_leaving",
        needs: &[Need::Blocking],
        ranks: 2,
        added: true,
        run: by_leaving,
    },
    Case {
        name: "wake_by_death",
        needs: &[Need::Blocking, Need::Death, Need::Kill],
        ranks: 3,
        added: true,
        run: by_death,
    },
];

/// Longer than any event takes here: a sleep this long means that the wake-up was lost.
const LONG: Duration = Duration::from_secs(5);

/// Sleeps on the descriptor. Returns false on timeout.
fn sleep(run: &Run, most: Duration) -> Result<bool, Failure> {
    let Some(fd) = run.btl.wait_fd() else {
        return Err(Failure::Broken("no descriptor".into()));
    };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let time = Timespec {
        tv_sec: most.as_secs() as i64,
        tv_nsec: i64::from(most.subsec_nanos()),
    };
    match poll(&mut fds, Some(&time)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(Failure::Broken(format!("poll of the descriptor: {error}"))),
    }
}

/// Sleeps and polls until `done`. With `ticks`, also wakes up at the transport's tick, for events
/// that its descriptor does not signal.
fn asleep_until(
    run: &mut Run,
    what: &str,
    ticks: bool,
    done: impl Fn(&Run) -> bool,
) -> Result<(), Failure> {
    while !done(run) {
        if run.poll_with(&mut |_, _| {})? > 0 || done(run) {
            continue;
        }
        run.in_time(what)?;
        if !run.btl.arm() {
            // An event is there, or will be soon.
            std::thread::yield_now();
            continue;
        }
        let tick = run.btl.capabilities().tick.filter(|_| ticks);
        if sleep(run, tick.unwrap_or(LONG).min(LONG))? || tick.is_some() {
            continue;
        }
        run.poll_with(&mut |_, _| {})?;
        demand(!done(run), || {
            format!("{what}: the event had arrived, but the sleeper was not woken")
        })?;
    }
    Ok(())
}

/// Message and answer; both sides sleep while they wait.
fn wake(run: &mut Run) -> Result<(), Failure> {
    let peer = 1 - run.rank;
    for round in 0..run.rounds {
        if round > 0 || run.rank == 1 {
            asleep_until(run, "a message", false, |run| !run.log.messages.is_empty())?;
            let due = if run.rank == 1 { round } else { round - 1 };
            super::basic::expect(run, peer, &due.to_le_bytes(), b"")?;
        }
        // Varies the point at which the message meets the other side falling asleep.
        for _ in 0..run.rng.below(400) {
            std::hint::spin_loop();
        }
        if run.rng.below(8) == 0 {
            std::thread::sleep(Duration::from_micros(run.rng.below(300) as u64));
        }
        run.send(peer, &round.to_le_bytes(), b"")?;
    }
    if run.rank == 0 {
        asleep_until(run, "the last answer", false, |run| {
            !run.log.messages.is_empty()
        })?;
        super::basic::expect(run, peer, &(run.rounds - 1).to_le_bytes(), b"")?;
    }
    // Until the last answer has left.
    run.flush()
}

/// Without events a sleeper sleeps: a descriptor that is always readable is a fault.
fn quiet(run: &mut Run) -> Result<(), Failure> {
    run.send(1 - run.rank, b"once", b"")?;
    super::basic::expect(run, 1 - run.rank, b"once", b"")?;
    run.flush()?;
    run.barrier()?;
    let mut slept = 0;
    for _ in 0..50 {
        for _ in 0..100 {
            if run.poll_with(&mut |_, _| {})? == 0 {
                break;
            }
        }
        if run.btl.arm() && !sleep(run, Duration::from_millis(5))? {
            slept += 1;
        }
    }
    demand(slept > 0, || {
        "the rank could not sleep once in 50 attempts, although nothing happened".into()
    })?;
    run.barrier()
}

/// A completion wakes a sleeper.
fn by_completion(run: &mut Run) -> Result<(), Failure> {
    let buffer = run.buffer(vec![run.rank as u8; 100_000]);
    let key = share(run, Some(&buffer))?.swap_remove(1);
    if run.rank == 1 {
        return run.barrier();
    }
    let local = run.buffer(vec![9; 100_000]);
    for _ in 0..run.rounds / 8 {
        let operation = run.get(
            Remote {
                peer: 1,
                key: &key,
                offset: 0,
            },
            &local,
            0,
            100_000,
        )?;
        match operation.result {
            Ok(Started::Done) => continue,
            Ok(Started::Pending) => {}
            Err(SendError::Busy) => {
                run.step()?;
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        asleep_until(run, "a completion", false, |run| {
            !run.log.completed.is_empty()
        })?;
        run.log.completed.clear();
    }
    run.barrier()
}

/// An orderly end of a peer wakes a sleeper.
fn by_leaving(run: &mut Run) -> Result<(), Failure> {
    if run.rank == 1 {
        run.send(0, b"last", b"")?;
        run.flush()?;
        run.barrier()?;
        std::thread::sleep(Duration::from_millis(30));
        run.btl.close();
        return Ok(());
    }
    super::basic::expect(run, 1, b"last", b"")?;
    run.barrier()?;
    asleep_until(run, "a peer that leaves", true, |run| {
        run.log.failure(1).is_some()
    })?;
    has_left(run, 1)
}

/// The death of a peer wakes a sleeper, by the descriptor or by the transport's tick.
fn by_death(run: &mut Run) -> Result<(), Failure> {
    run.barrier()?;
    match run.rank {
        1 => loop {
            run.step()?;
            run.in_time("this rank's death")?;
        },
        2 => {
            std::thread::sleep(Duration::from_millis(30));
            run.kill(1)
        }
        _ => asleep_until(run, "a peer that dies", true, |run| {
            run.log.failure(1).is_some()
        }),
    }
}
