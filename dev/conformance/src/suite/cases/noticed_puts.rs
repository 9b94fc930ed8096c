//! Noticed regions: the write of the last bytes notifies their owner.

use super::super::run::demand;
use super::super::{Case, Failure, Need, Remote, Run};
use super::basic::{expect, within};
use super::one_sided::{finish, random, same};
use btl::{MAX_HEADER, MAX_KEY, Region, SendError, Started};

pub(super) const CASES: &[Case] = &[Case {
    name: "put_last",
    needs: &[Need::Put],
    ranks: 2,
    added: true,
    run: put_last,
}];

/// The notice arrives once, after all bytes, including those of earlier `put`s that were not waited
/// for, and in order after the messages sent before it. Where `put_last` is unsupported, a message
/// notifies the owner.
fn put_last(run: &mut Run) -> Result<(), Failure> {
    if !run.path(1 - run.rank)?.one_sided {
        return Err(Failure::Skipped(
            "no one-sided operations with this peer".into(),
        ));
    }
    for round in 0..run.rounds.max(40) {
        let length = [2, 300, 5000, 70_000, 1_500_000][round as usize % 5];
        // Few long ones: emulated devices are slow.
        let length = if round >= 10 {
            length.min(5000)
        } else {
            length
        };
        let notice = random(round as usize % (MAX_HEADER + 1), u64::from(round));
        let bytes = random(length, u64::from(round) + 7);
        let result = if run.rank == 1 {
            owner(run, &notice, &bytes)
        } else {
            writer(run, &notice, bytes)
        };
        result.map_err(|failure| within(failure, &format!("round {round}, {length} bytes")))?;
    }
    run.barrier()
}

fn owner(run: &mut Run, notice: &[u8], bytes: &[u8]) -> Result<(), Failure> {
    let buffer = run.buffer(vec![0xa5; bytes.len()]);
    // A second registration of the memory changes nothing, whichever of the two ends first.
    let mut second = run.register(&buffer).ok();
    let end_if = |run: &mut Run, second: &mut Option<Region>, now: bool| {
        if let Some(region) = second.take_if(|_| now) {
            run.btl.deregister(region.handle);
        }
    };
    end_if(run, &mut second, notice.len().is_multiple_of(2));
    let region = run.register_noticed(&buffer, 0, notice);
    end_if(run, &mut second, notice.len() % 3 == 1);
    let region = region.map_err(|error| Failure::Broken(format!("registration: {error}")))?;
    demand(region.key.len() <= MAX_KEY, || {
        format!("a key of {} bytes", region.key.len())
    })?;
    run.exchange(&region.key)?;
    expect(run, 0, b"before", b"hand")?;
    expect(run, 0, notice, &[])?;
    same(&buffer.bytes(), bytes)?;
    run.btl.deregister(region.handle);
    end_if(run, &mut second, true);
    run.send(0, b"seen", &[])
}

fn writer(run: &mut Run, notice: &[u8], bytes: Vec<u8>) -> Result<(), Failure> {
    let key = run.exchange(&[])?.swap_remove(1).ok_or(Failure::Aborted)?;
    let (length, middle) = (bytes.len(), bytes.len() / 2);
    let local = run.buffer(bytes);
    let remote = |offset| Remote {
        peer: 1,
        key: &key,
        offset,
    };
    run.send(1, b"before", b"hand")?;
    let mut open = Vec::new();
    let mut by_word = false;
    for (last, at, end) in [(false, 0, middle), (true, middle, length)] {
        loop {
            let operate = if last { Run::put_last } else { Run::put };
            let operation = operate(run, remote(at), &local, at, end - at)?;
            match operation.result {
                Ok(Started::Done) => break,
                Ok(Started::Pending) => {
                    open.push(operation.token);
                    break;
                }
                Err(SendError::Busy) => {
                    run.step()?;
                    run.in_time("a put to be accepted")?;
                }
                Err(SendError::Unsupported) if last => {
                    let result = finish(run, Run::put, remote(at), &local, at, end - at)?;
                    demand(result.is_ok(), || format!("{result:?}"))?;
                    by_word = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    while let Some(token) = open.pop() {
        run.until("a completion", |run| {
            run.log.completed.iter().any(|(of, _)| *of == token)
        })?;
        let at = run.log.completed.iter().position(|(of, _)| *of == token);
        let result = at.map_or(Ok(()), |at| run.log.completed.remove(at).1);
        demand(result.is_ok(), || format!("{result:?}"))?;
    }
    // After the completion the local memory is the caller's again.
    local.fill(&vec![0xee; length]);
    if by_word {
        run.send(1, notice, &[])?;
    }
    expect(run, 1, b"seen", &[])
}
