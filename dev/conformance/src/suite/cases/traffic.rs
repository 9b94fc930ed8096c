//! Traffic patterns: a rank to itself, many ranks, sends from callbacks.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::super::run::demand;
use super::super::{Case, Event, Failure, MANY, Run, Sizes};
use btl::{Rank, SendError, Tx};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "self_send",
        needs: &[],
        ranks: 2,
        added: true,
        run: self_send,
    },
    Case {
        name: "bounded_progress",
        needs: &[],
        ranks: 2,
        added: true,
        run: bounded_progress,
    },
    Case {
        name: "many_peers",
        needs: &[],
        ranks: MANY,
        added: true,
        run: many_peers,
    },
    Case {
        name: "all_to_one",
        needs: &[],
        ranks: MANY,
        added: true,
        run: all_to_one,
    },
    Case {
        name: "callbacks_ping_pong",
        needs: &[],
        ranks: 2,
        added: true,
        run: callbacks_ping_pong,
    },
    Case {
        name: "callbacks_flood",
        needs: &[],
        ranks: 2,
        added: true,
        run: callbacks_flood,
    },
];

/// Messages of a rank to itself, between messages to another.
fn self_send(run: &mut Run) -> Result<(), Failure> {
    let (rank, peer) = (run.rank, 1 - run.rank);
    run.path(rank)?;
    for _ in 0..300 {
        run.stream(rank, Sizes::Mixed)?;
        run.stream(peer, Sizes::Tiny)?;
    }
    run.arrived(rank, 300)?;
    run.arrived(peer, 300)
}

/// The callback of each message of a rank to itself sends the next one: an unbounded `progress`
/// would never return.
fn bounded_progress(run: &mut Run) -> Result<(), Failure> {
    /// Exceeds any sensible bound of one `progress`.
    const LINKS: u32 = 100_000;
    run.path(run.rank)?;
    let (rank, mut links, mut most) = (run.rank, 0u32, 0);
    run.send(rank, b"link", &[])?;
    let mut held = Held::default();
    while links < LINKS {
        let before = links;
        run.step_with(&mut |tx, event| {
            if let Event::Message(..) = event {
                links += 1;
                if links < LINKS {
                    // An error ends the chain, which the case detects.
                    let _ = held.send(tx, rank, b"link", &[]);
                }
            }
        })?;
        run.log.messages.clear();
        most = most.max(links - before);
        held.again(&mut *run.btl)?;
        run.in_time("a chain of messages to itself")?;
        if most > LINKS / 10 {
            break;
        }
    }
    demand(most <= LINKS / 10, || {
        format!("one progress delivered {most} messages")
    })
}

/// All ranks send to all others at once.
fn many_peers(run: &mut Run) -> Result<(), Failure> {
    let (rank, size, count) = (run.rank, run.size, 60);
    let others = || (0..size).filter(move |peer| *peer != rank);
    while others().any(|peer| run.streamed(peer).0 < count) {
        for peer in others() {
            if run.streamed(peer).0 == count {
                continue;
            }
            // A busy peer delays no other.
            match run.stream_now(peer, Sizes::Mixed) {
                Ok(()) | Err(SendError::Busy) => {}
                Err(error) => return Err(error.into()),
            }
        }
        run.step()?;
        run.in_time("messages from all ranks to all ranks")?;
    }
    others().try_for_each(|peer| run.arrived(peer, count))
}

/// All ranks send to rank 0, which answers the last message of each.
fn all_to_one(run: &mut Run) -> Result<(), Failure> {
    let count = 200;
    if run.rank == 0 {
        for peer in 1..run.size {
            run.arrived(peer, count)?;
            run.stream(peer, Sizes::Tiny)?;
        }
        return Ok(());
    }
    for _ in 0..count {
        run.stream(0, Sizes::Mixed)?;
    }
    run.arrived(0, 1)
}

/// Messages that a callback could not send, in order.
#[derive(Default)]
struct Held(VecDeque<(Rank, Vec<u8>, Vec<u8>)>);

impl Held {
    /// Sends a message, or queues it after those already queued.
    fn send(
        &mut self,
        tx: &mut dyn Tx,
        peer: Rank,
        header: &[u8],
        body: &[u8],
    ) -> Result<(), SendError> {
        self.0.push_back((peer, header.to_vec(), body.to_vec()));
        self.again(tx)
    }

    fn again(&mut self, tx: &mut dyn Tx) -> Result<(), SendError> {
        while let Some((peer, header, body)) = self.0.front() {
            match tx.send(*peer, header, &[IoSlice::new(body)]) {
                Ok(()) => self.0.pop_front(),
                Err(SendError::Busy) => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }
}

/// Waits for all ranks before any event, so that the case sees every later one.
fn watched(run: &mut Run) -> Result<(), Failure> {
    run.barrier_still()
}

/// Each message is answered from its callback.
fn callbacks_ping_pong(run: &mut Run) -> Result<(), Failure> {
    let (peer, last) = (1 - run.rank, run.rounds);
    let (mut held, mut next, mut error) = (Held::default(), run.rank, None);
    watched(run)?;
    if run.rank == 1 {
        run.send(0, &0u32.to_le_bytes(), b"ball")?;
        next = 1;
    }
    // Rank 0 gets the even numbers, rank 1 the odd ones.
    let own_last = if last % 2 == run.rank { last } else { last - 1 };
    while next <= own_last {
        run.step_with(&mut |tx, event| {
            let Event::Message(_, header, body) = event else {
                return;
            };
            if header != next.to_le_bytes() || body != b"ball" {
                error.get_or_insert(format!("{header:?} arrived, expected {next}"));
            }
            if next < last
                && let Err(wrong) = held.send(tx, peer, &(next + 1).to_le_bytes(), body)
            {
                error.get_or_insert(wrong.to_string());
            }
            next += 2;
        })?;
        held.again(&mut *run.btl)?;
        run.log.messages.clear();
        demand(error.is_none(), || error.take().unwrap_or_default())?;
        run.in_time("the ping-pong of callbacks")?;
    }
    run.until("the last answer to be sent", |run| {
        held.again(&mut *run.btl).is_ok() && held.0.is_empty()
    })
}

/// Each message is answered by three from its callback, in both directions at once, so that
/// callbacks meet `Busy`.
fn callbacks_flood(run: &mut Run) -> Result<(), Failure> {
    const ANSWERS: u32 = 3;
    let (peer, count) = (1 - run.rank, run.rounds);
    let (mut held, mut error) = (Held::default(), None);
    let (mut asked, mut requests, mut answers) = (0, 0u32, 0u32);
    let body = [7; 200];
    watched(run)?;
    while asked < count || requests < count || answers < count * ANSWERS || !held.0.is_empty() {
        while asked < count
            && run
                .btl
                .send(
                    peer,
                    &[b"?", &asked.to_le_bytes()[..]].concat(),
                    &[IoSlice::new(&body)],
                )
                .is_ok()
        {
            asked += 1;
        }
        run.step_with(&mut |tx, event| {
            let Event::Message(_, header, got) = event else {
                return;
            };
            let question = header.first() == Some(&b'?');
            let number = if question {
                &mut requests
            } else {
                &mut answers
            };
            if header.get(1..) != Some(&number.to_le_bytes()[..]) || got != body {
                error.get_or_insert(format!("{header:?} arrived, expected {number}"));
            }
            *number += 1;
            for answer in 0..if question { ANSWERS } else { 0 } {
                let header =
                    [b"!", &((requests - 1) * ANSWERS + answer).to_le_bytes()[..]].concat();
                if let Err(wrong) = held.send(tx, peer, &header, &body) {
                    error.get_or_insert(wrong.to_string());
                }
            }
        })?;
        held.again(&mut *run.btl)?;
        run.log.messages.clear();
        demand(error.is_none(), || error.take().unwrap_or_default())?;
        run.in_time("the answers of callbacks")?;
    }
    Ok(())
}
