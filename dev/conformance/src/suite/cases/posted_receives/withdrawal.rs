//! Cases of withdrawing: in time or too late, while an older message arrives, in a race with
//! senders, and to make room.

use super::super::basic::expect;
use super::super::one_sided::{random, same};
use super::{ANY, applies, deliver, envelope, holds, post, refused};
use crate::suite::run::demand;
use crate::suite::{Buffer, Event, Failure, Posted, Run};
use btl::{Envelope, PostId, PostedDelivery, Rank, SendError, Withdrawn};

/// A receive withdrawn in time is not filled and has no event. Withdrawn too late, it has its
/// event.
pub(super) fn withdraw(run: &mut Run) -> Result<(), Failure> {
    applies(run)?;
    for _ in 0..50 {
        if run.rank == 1 {
            run.barrier()?; // withdrawn
            refused(run, 0, envelope(3))?;
            run.barrier_still()?; // refused
            run.barrier_still()?; // posted again
            deliver(run, 0, envelope(3), b"late")?;
            run.barrier_still()?; // delivered
            run.barrier()?;
            continue;
        }
        let early = post(run, ANY, 8)?;
        let withdrawn = run.withdraw(early.1);
        demand(withdrawn == Withdrawn::Yes, || {
            format!("withdrawing an unfilled receive returned {withdrawn:?}")
        })?;
        run.barrier()?;
        run.barrier_still()?;
        same(&early.0.bytes(), &[0x5a; 8])?;
        let late = post(run, ANY, 8)?;
        run.barrier_still()?;
        run.barrier_still()?;
        // Filled, and the event is not reported yet.
        let taken = run.withdraw(late.1);
        demand(taken == Withdrawn::Taken, || {
            format!("withdrawing a filled receive returned {taken:?}")
        })?;
        holds(run, &late, 1, envelope(3), b"late")?;
        run.barrier()?;
    }
    demand(run.btl.withdraw(PostId(u64::MAX)) == Withdrawn::Yes, || {
        "a receive that was never posted counts as filled".into()
    })
}

/// While an older message is in transit, no posted receive may be filled, because the older one may
/// match it.
pub(super) fn unseen(run: &mut Run) -> Result<(), Failure> {
    applies(run)?;
    for _ in 0..50 {
        if run.rank == 1 {
            run.barrier_still()?; // posted
            run.send(0, b"older", b"message")?;
            refused(run, 0, envelope(1))?;
            run.barrier_still()?; // refused
            deliver(run, 0, envelope(1), b"younger")?;
            run.barrier()?;
            continue;
        }
        let posted = post(run, ANY, 16)?;
        run.barrier_still()?;
        run.barrier_still()?;
        expect(run, 1, b"older", b"message")?;
        holds(run, &posted, 1, envelope(1), b"younger")?;
        run.barrier()?;
    }
    Ok(())
}

/// A message counts as seen when its callback has returned: inside the callback, a receive that
/// matches it can always be withdrawn.
pub(super) fn callback(run: &mut Run) -> Result<(), Failure> {
    applies(run)?;
    for round in 0..run.rounds / 8 {
        if run.rank == 1 {
            run.barrier()?; // posted
            run.send(0, b"older", &round.to_le_bytes())?;
            // Back to back, while the receiver is in its callback.
            deliver(run, 0, envelope(1), &round.to_le_bytes())?;
            run.barrier()?;
            continue;
        }
        let first = post(run, ANY, 16)?;
        // Without `progress`, so that the older message does not arrive before the callback is
        // watched.
        run.barrier_still()?;
        let mut back = None;
        while back.is_none() {
            run.step_with(&mut |tx, event| {
                if let Event::Message(..) = event {
                    std::thread::yield_now();
                    back = Some(tx.withdraw(first.1.id));
                }
            })?;
            run.in_time("the older message")?;
        }
        demand(back == Some(Withdrawn::Yes), || {
            format!("round {round}: a younger message arrived first: {back:?}")
        })?;
        run.log.posted.remove(&first.1.token);
        expect(run, 1, b"older", &round.to_le_bytes())?;
        let second = post(run, ANY, 16)?;
        holds(run, &second, 1, envelope(1), &round.to_le_bytes())?;
        same(&first.0.bytes(), &[0x5a; 16])?;
        run.barrier()?;
    }
    Ok(())
}

/// Two senders that fill or send, and a receiver that posts and withdraws: each number arrives
/// once.
pub(super) fn race(run: &mut Run) -> Result<(), Failure> {
    const LENGTH: usize = 3000;
    applies(run)?;
    let count = run.rounds as usize;
    let bytes = |rank: Rank, number: usize| random(LENGTH, (u64::from(rank) << 40) + number as u64);
    if run.rank > 0 {
        for number in 0..count {
            let body = bytes(run.rank, number);
            loop {
                match run.send_to_posted(
                    0,
                    Envelope {
                        context: 1,
                        tag: number as i32,
                    },
                    &body,
                ) {
                    Ok(PostedDelivery::Delivered) => break,
                    Ok(PostedDelivery::NotPosted) => {
                        let body = [&(number as u32).to_le_bytes(), &body[..200]].concat();
                        run.send(0, b"message", &body)?;
                        break;
                    }
                    Err(SendError::Busy) => run.step()?,
                    Err(error) => return Err(error.into()),
                };
                run.in_time("a matched send to be accepted or refused")?;
            }
            if run.rng.below(4) == 0 {
                run.step()?;
            }
        }
        return Ok(());
    }
    let mut seen = vec![vec![false; count]; 3];
    let mut left = 2 * count;
    let mut posts: Vec<(Buffer, Posted)> = Vec::new();
    let mut spare: Vec<Buffer> = (0..3).map(|_| run.buffer(vec![0; LENGTH])).collect();
    while left > 0 {
        while let Some(buffer) = spare.pop() {
            match run.try_post(ANY, &buffer, 0, LENGTH)? {
                Some(posted) => posts.push((buffer, posted)),
                None => {
                    spare.push(buffer);
                    break;
                }
            }
        }
        if run.rng.below(3) == 0 && !posts.is_empty() {
            let at = run.rng.below(posts.len());
            if run.withdraw(posts[at].1) == Withdrawn::Yes {
                spare.push(posts.swap_remove(at).0);
            }
        }
        run.step()?;
        let mut note = |rank: Rank, number: usize| {
            let flag = seen
                .get_mut(rank as usize)
                .and_then(|all| all.get_mut(number));
            left = left.saturating_sub(1);
            demand(
                flag.is_some_and(|flag| !std::mem::replace(flag, true)),
                || format!("number {number} of rank {rank} arrived twice, or was never sent"),
            )
        };
        for received in std::mem::take(&mut run.log.received) {
            let at = posts
                .iter()
                .position(|(_, posted)| posted.token == received.token)
                .ok_or(Failure::Aborted)?;
            let number = received.envelope.tag as usize;
            note(received.peer, number)?;
            let (buffer, _) = posts.swap_remove(at);
            demand(received.result == Ok(LENGTH), || format!("{received:?}"))?;
            same(&buffer.bytes(), &bytes(received.peer, number))?;
            spare.push(buffer);
        }
        for got in std::mem::take(&mut run.log.messages) {
            let Some((number, body)) = got.body.split_first_chunk::<4>() else {
                return Err(Failure::Aborted);
            };
            let number = u32::from_le_bytes(*number) as usize;
            note(got.peer, number)?;
            same(body, &bytes(got.peer, number)[..200])?;
        }
        run.in_time("all messages of a race")?;
    }
    for (_, posted) in posts {
        let withdrawn = run.withdraw(posted);
        demand(withdrawn == Withdrawn::Yes, || {
            "filled by a surplus message".into()
        })?;
    }
    Ok(())
}

/// The number of posted receives is bounded, and withdrawing one frees its room.
pub(super) fn full(run: &mut Run) -> Result<(), Failure> {
    const MAX_POSTS: usize = 200_000;
    applies(run)?;
    if run.rank == 1 {
        return run.barrier();
    }
    let buffer = run.buffer(vec![0; 8]);
    let mut counts = Vec::new();
    for _ in 0..2 {
        let mut posts = Vec::new();
        while let Some(posted) = run.try_post(ANY, &buffer, 0, 8)? {
            posts.push(posted);
            demand(posts.len() < MAX_POSTS, || {
                format!("{MAX_POSTS} receives were posted without a bound")
            })?;
        }
        counts.push(posts.len());
        for posted in posts {
            demand(run.withdraw(posted) == Withdrawn::Yes, || {
                "an unfilled receive counts as filled".into()
            })?;
        }
        run.step()?;
    }
    demand(counts[0] > 0 && counts[0] == counts[1], || {
        format!("room for {counts:?} posted receives")
    })?;
    run.barrier()
}
