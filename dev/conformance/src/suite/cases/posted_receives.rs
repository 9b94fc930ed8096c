//! Posted receives: which sender fills which receive, and when it returns to the poster.

use super::super::run::demand;
use super::super::{Buffer, Case, Event, Failure, Need, Posted, Received, Run, Wanted};
use super::one_sided::{random, same};
use btl::{Envelope, PostId, PostedDelivery, Rank, SendError, Withdrawn};

const NEEDS: &[Need] = &[Need::PostedReceives];

pub(super) const CASES: &[Case] = &[
    Case {
        name: "matched_oldest",
        needs: NEEDS,
        ranks: 2,
        added: true,
        run: oldest,
    },
    Case {
        name: "matched_sources",
        needs: NEEDS,
        ranks: 3,
        added: true,
        run: sources,
    },
    Case {
        name: "matched_tags",
        needs: NEEDS,
        ranks: 2,
        added: true,
        run: tags,
    },
    Case {
        name: "matched_withdraw",
        needs: NEEDS,
        ranks: 2,
        added: true,
        run: withdraw,
    },
    Case {
        name: "matched_lengths",
        needs: NEEDS,
        ranks: 2,
        added: true,
        run: lengths,
    },
    Case {
        name: "matched_unseen",
        needs: NEEDS,
        ranks: 2,
        added: true,
        run: unseen,
    },
    Case {
        name: "matched_callback",
        needs: NEEDS,
        ranks: 2,
        added: true,
        run: callback,
    },
    Case {
        name: "matched_race",
        needs: NEEDS,
        ranks: 3,
        added: true,
        run: race,
    },
    Case {
        name: "matched_self",
        needs: NEEDS,
        ranks: 2,
        added: true,
        run: itself,
    },
    Case {
        name: "matched_full",
        needs: NEEDS,
        ranks: 2,
        added: true,
        run: full,
    },
];

pub(super) const ANY: Wanted = Wanted {
    source: None,
    context: 1,
    tag: None,
};

fn tagged(tag: i32) -> Wanted {
    Wanted {
        tag: Some(tag),
        ..ANY
    }
}

fn envelope(tag: i32) -> Envelope {
    Envelope { context: 1, tag }
}

/// Posts a new buffer.
pub(super) fn post(
    run: &mut Run,
    wanted: Wanted,
    length: usize,
) -> Result<(Buffer, Posted), Failure> {
    let buffer = run.buffer(vec![0x5a; length]);
    let posted = run.post(wanted, &buffer, 0, length)?;
    Ok((buffer, posted))
}

/// Skips the case unless both sides support it. Called first by both.
pub(super) fn applies(run: &Run) -> Result<(), Failure> {
    for peer in (0..run.size).filter(|peer| *peer != run.rank) {
        if !run.path(peer)?.one_sided {
            return Err(Failure::Skipped("no matched sends with this peer".into()));
        }
    }
    Ok(())
}

/// Sends until a posted receive accepts the message.
pub(super) fn deliver(
    run: &mut Run,
    peer: Rank,
    envelope: Envelope,
    bytes: &[u8],
) -> Result<(), Failure> {
    loop {
        match run.send_to_posted(peer, envelope, bytes) {
            Ok(PostedDelivery::Delivered) => return Ok(()),
            Ok(PostedDelivery::NotPosted) | Err(SendError::Busy) => run.step()?,
            Err(error) => return Err(error.into()),
        };
        run.in_time("a posted receive to accept the message")?;
    }
}

/// Checks that no posted receive accepts the envelope.
fn refused(run: &mut Run, peer: Rank, envelope: Envelope) -> Result<(), Failure> {
    for _ in 0..10 {
        match run.send_to_posted(peer, envelope, b"unmatched") {
            Ok(PostedDelivery::NotPosted) | Err(SendError::Busy) => run.step()?,
            Ok(PostedDelivery::Delivered) => {
                return Err(Failure::Broken(format!(
                    "{envelope:?} was accepted by a receive that does not match"
                )));
            }
            Err(error) => return Err(error.into()),
        };
    }
    Ok(())
}

/// Waits for the event of a post.
pub(super) fn taken(run: &mut Run, posted: Posted) -> Result<Received, Failure> {
    let token = posted.token;
    run.until("a filled receive", |run| {
        run.log.received.iter().any(|one| one.token == token)
    })?;
    let at = run
        .log
        .received
        .iter()
        .position(|one| one.token == token)
        .ok_or(Failure::Aborted)?;
    Ok(run.log.received.remove(at))
}

/// Checks the sender, the envelope and the bytes of a filled receive.
fn holds(
    run: &mut Run,
    one: &(Buffer, Posted),
    peer: Rank,
    envelope: Envelope,
    bytes: &[u8],
) -> Result<(), Failure> {
    let received = taken(run, one.1)?;
    let wanted = Received {
        token: one.1.token,
        peer,
        envelope,
        result: Ok(bytes.len()),
    };
    demand(received == wanted, || {
        format!("{received:?}, expected {wanted:?}")
    })?;
    same(&one.0.bytes()[..bytes.len()], bytes)
}

/// Of the matching receives, the one posted first is filled.
fn oldest(run: &mut Run) -> Result<(), Failure> {
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
            .map_err(|failure| super::basic::within(failure, &format!("round {round}")))?;
    }
    Ok(())
}

/// A receive for one source is not filled by another, even if it is older.
fn sources(run: &mut Run) -> Result<(), Failure> {
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
fn tags(run: &mut Run) -> Result<(), Failure> {
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

/// A receive withdrawn in time is not filled and has no event. Withdrawn too late, it has its
/// event.
fn withdraw(run: &mut Run) -> Result<(), Failure> {
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

/// Messages shorter and longer than the buffer, and empty ones: the sent length is reported, and
/// nothing beyond the buffer is written.
fn lengths(run: &mut Run) -> Result<(), Failure> {
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
        same(&buffer.bytes(), &wanted).map_err(|failure| {
            super::basic::within(failure, &format!("{sent} bytes into {room}"))
        })?;
        run.barrier()?;
    }
    Ok(())
}

/// While an older message is in transit, no posted receive may be filled, because the older one may
/// match it.
fn unseen(run: &mut Run) -> Result<(), Failure> {
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
        super::basic::expect(run, 1, b"older", b"message")?;
        holds(run, &posted, 1, envelope(1), b"younger")?;
        run.barrier()?;
    }
    Ok(())
}

/// A message counts as seen when its callback has returned: inside the callback, a receive that
/// matches it can always be withdrawn.
fn callback(run: &mut Run) -> Result<(), Failure> {
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
        super::basic::expect(run, 1, b"older", &round.to_le_bytes())?;
        let second = post(run, ANY, 16)?;
        holds(run, &second, 1, envelope(1), &round.to_le_bytes())?;
        same(&first.0.bytes(), &[0x5a; 16])?;
        run.barrier()?;
    }
    Ok(())
}

/// Two senders that fill or send, and a receiver that posts and withdraws: each number arrives
/// once.
fn race(run: &mut Run) -> Result<(), Failure> {
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

/// The own rank may fill receives like any other.
fn itself(run: &mut Run) -> Result<(), Failure> {
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

/// The number of posted receives is bounded, and withdrawing one frees its room.
fn full(run: &mut Run) -> Result<(), Failure> {
    const MOST: usize = 200_000;
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
            demand(posts.len() < MOST, || {
                format!("{MOST} receives were posted without a bound")
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
