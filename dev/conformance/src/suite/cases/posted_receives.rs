//! Posted receives: which sender fills which receive, and when it returns to the poster.

mod matching;
mod withdrawal;

use self::matching::{itself, lengths, oldest, sources, tags};
use self::withdrawal::{callback, full, race, unseen, withdraw};
use super::super::run::demand;
use super::super::{Buffer, Case, Failure, Need, Posted, Received, Run, Wanted};
use super::one_sided::same;
use btl::{Envelope, PostedDelivery, Rank, SendError};

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
