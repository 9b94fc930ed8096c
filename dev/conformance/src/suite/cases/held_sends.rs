//! Held sends: the body stays in the caller's memory until the transport has read it.

use super::super::run::demand;
use super::super::{Buffer, Case, Failure, Need, Run};
use super::basic::expect;
use super::one_sided::random;
use btl::{MAX_HEADER, SendError, Started};

pub(super) const CASES: &[Case] = &[Case {
    name: "send_held",
    needs: &[Need::Held],
    ranks: 2,
    added: true,
    run: send_held,
}];

/// Maximum number of messages in flight.
const WINDOW: usize = 6;

/// Held messages arrive in order among ordinary ones and unchanged, although the caller overwrites
/// the body right after the completion. Each completes once, which the event log checks. A message
/// above the maximum is refused, as by `send`.
fn send_held(run: &mut Run) -> Result<(), Failure> {
    let most = run.path(1 - run.rank)?.max_send;
    let from = run.btl.capabilities().held_from.unwrap_or(0);
    let lengths = [
        from,
        0,
        from + 1,
        most - MAX_HEADER,
        from.saturating_sub(1),
        1,
        most - 3,
        from * 2,
    ];
    let rounds = run.rounds.max(40);
    let message = |round: u32| {
        let length = lengths[round as usize % lengths.len()].min(most);
        let header = random(
            (round as usize * 7 % (MAX_HEADER + 1)).min(most - length),
            u64::from(round),
        );
        (header, random(length, u64::from(round) + 9))
    };
    if run.rank == 1 {
        for round in 0..rounds {
            let (header, body) = message(round);
            expect(run, 0, &header, &body)?;
        }
        return run.barrier();
    }
    let long = run.buffer(vec![1; most + 1]);
    let refused = run.send_held(1, b"", &long).result;
    demand(matches!(refused, Err(SendError::TooLong { .. })), || {
        format!("too long: {refused:?}")
    })?;
    let mut open = Vec::new();
    for round in 0..rounds {
        let (header, body) = message(round);
        if round % 3 == 2 {
            run.send(1, &header, &body)?;
            continue;
        }
        let local = run.buffer(body);
        loop {
            let sent = run.send_held(1, &header, &local);
            match sent.result {
                Ok(Started::Done) => local.fill(&vec![0xee; local.bytes().len()]),
                Ok(Started::Pending) => open.push((sent.token, local.clone())),
                Err(SendError::Busy) => {
                    run.step()?;
                    run.in_time("a held send to be accepted")?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            break;
        }
        while open.len() >= WINDOW {
            take_back(run, &mut open)?;
        }
    }
    while !open.is_empty() {
        take_back(run, &mut open)?;
    }
    run.barrier()
}

/// Waits for a completion and overwrites the memory that it returns.
fn take_back(run: &mut Run, open: &mut Vec<(u64, Buffer)>) -> Result<(), Failure> {
    run.until("a completion", |run| !run.log.completed.is_empty())?;
    let Some((token, result)) = run.log.completed.pop() else {
        return Err(Failure::Aborted);
    };
    demand(result.is_ok(), || format!("{result:?}"))?;
    if let Some(at) = open.iter().position(|(of, _)| *of == token) {
        let (_, local) = open.swap_remove(at);
        local.fill(&vec![0xee; local.bytes().len()]);
    }
    Ok(())
}
