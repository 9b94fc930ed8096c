//! Messages: order, exactly-once delivery, sizes, back-pressure.

use super::super::run::demand;
use super::super::{Case, Failure, Run, Sizes};
use btl::{MAX_HEADER, Rank, SendError};
use std::io::IoSlice;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "figures",
        needs: &[],
        ranks: 2,
        added: true,
        run: figures,
    },
    Case {
        name: "order",
        needs: &[],
        ranks: 3,
        added: true,
        run: order,
    },
    Case {
        name: "empty",
        needs: &[],
        ranks: 2,
        added: true,
        run: empty,
    },
    Case {
        name: "limits",
        needs: &[],
        ranks: 2,
        added: true,
        run: limits,
    },
    Case {
        name: "edges",
        needs: &[],
        ranks: 2,
        added: true,
        run: edges,
    },
    Case {
        name: "busy",
        needs: &[],
        ranks: 2,
        added: true,
        run: busy,
    },
    Case {
        name: "both_full",
        needs: &[],
        ranks: 2,
        added: true,
        run: both_full,
    },
    Case {
        name: "many_messages",
        needs: &[],
        ranks: 2,
        added: true,
        run: many_messages,
    },
];

/// Maximum number of bytes that a transport may accept for a peer that reads nothing.
const MAX_ACCEPTED: usize = 256 << 20;

/// Checks that capabilities and peer infos are consistent.
fn figures(run: &mut Run) -> Result<(), Failure> {
    let capabilities = run.btl.capabilities();
    let name = run.btl.name();
    demand(
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()),
        || format!("the name {name:?} is not short and plain"),
    )?;
    demand(!run.btl.address().is_empty(), || {
        "an empty address of a transport that reaches its peers".into()
    })?;
    let descriptor = run.btl.wait_fd().is_some();
    demand(descriptor == capabilities.blocking, || {
        format!(
            "blocking {}, descriptor {descriptor}",
            capabilities.blocking
        )
    })?;
    let path = run.path(1 - run.rank)?;
    demand(path.max_send >= 1024 + MAX_HEADER, || {
        format!("max_send {}", path.max_send)
    })?;
    demand(
        path.eager <= path.max_send && path.eager_skewed <= path.max_send,
        || {
            format!(
                "eager {}, skewed {}, but max_send {}",
                path.eager, path.eager_skewed, path.max_send
            )
        },
    )?;
    demand(path.exclusivity <= 65535, || {
        format!("exclusivity {}", path.exclusivity)
    })?;
    demand(path.latency_ns > 0 && path.bandwidth > 0, || {
        "no latency or no bandwidth".into()
    })?;
    demand(!path.reason.is_empty(), || "no reason for the path".into())?;
    let any = capabilities.get || capabilities.put;
    demand(any || !path.one_sided, || {
        "one_sided without get or put".into()
    })?;
    // Only the time until the next liveness check of peers may change.
    let later = btl::Capabilities {
        tick: capabilities.tick,
        ..run.btl.capabilities()
    };
    demand(later == capabilities, || "capabilities changed".into())
}

/// Messages of every rank to every other arrive in order and once.
fn order(run: &mut Run) -> Result<(), Failure> {
    let (rank, size, count) = (run.rank, run.size, 500);
    for _ in 0..count {
        for peer in (0..size).filter(|peer| *peer != rank) {
            run.stream(peer, Sizes::Mixed)?;
        }
    }
    for peer in (0..size).filter(|peer| *peer != rank) {
        run.arrived(peer, count)?;
    }
    Ok(())
}

/// Messages with an empty header, an empty body, or both arrive in order with others.
fn empty(run: &mut Run) -> Result<(), Failure> {
    let all: [(&[u8], &[u8]); 6] = [
        (b"", b""),
        (b"h", b""),
        (b"", b"body"),
        (b"", b""),
        (b"header", b"body"),
        (b"", b""),
    ];
    if run.rank == 0 {
        for _ in 0..20 {
            for (header, body) in all {
                run.send(1, header, body)?;
            }
        }
        return Ok(());
    }
    for round in 0..20 {
        for (header, body) in all {
            expect(run, 0, header, body)
                .map_err(|failure| within(failure, &format!("round {round}")))?;
        }
    }
    Ok(())
}

/// Lengths around the maximum of header and message; a refused message has no effect.
fn limits(run: &mut Run) -> Result<(), Failure> {
    let peer = 1 - run.rank;
    let most = run.path(peer)?.max_send;
    let theirs: [u8; 8] = run.exchange(&(most as u64).to_le_bytes())?[peer as usize]
        .as_deref()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(Failure::Aborted)?;
    let theirs = u64::from_le_bytes(theirs) as usize;
    let pairs = |most: usize| {
        [
            (MAX_HEADER, 0),
            (MAX_HEADER - 1, 0),
            (MAX_HEADER, most - MAX_HEADER),
            (MAX_HEADER, most - MAX_HEADER - 1),
            (MAX_HEADER - 1, most - MAX_HEADER + 1),
            (0, most),
            (0, most - 1),
            (1, most - 1),
        ]
    };
    let bytes = |length: usize, salt: usize| {
        (0..length)
            .map(|at| ((at * 31 + salt) >> 3) as u8)
            .collect::<Vec<u8>>()
    };
    let refused = |most: usize| {
        [
            (MAX_HEADER + 1, 0, MAX_HEADER + 1, MAX_HEADER),
            (MAX_HEADER, most - MAX_HEADER + 1, most + 1, most),
            (0, most + 1, most + 1, most),
            (1, most, most + 1, most),
        ]
    };
    let mut next = 0;
    for (salt, (header, body)) in pairs(most).into_iter().enumerate() {
        run.send(peer, &bytes(header, salt), &bytes(body, salt))?;
        for (header, body, length, limit) in refused(most) {
            let result = run
                .btl
                .send(peer, &bytes(header, 9), &[IoSlice::new(&bytes(body, 9))]);
            demand(result == Err(SendError::TooLong { length, limit }), || {
                format!("{header} + {body} bytes, at most {most}: {result:?}")
            })?;
        }
        while let Some((header, body)) = pairs(theirs)
            .get(next)
            .filter(|_| !run.log.messages.is_empty())
        {
            expect(run, peer, &bytes(*header, next), &bytes(*body, next))?;
            next += 1;
        }
    }
    for (salt, (header, body)) in pairs(theirs).into_iter().enumerate().skip(next) {
        expect(run, peer, &bytes(header, salt), &bytes(body, salt))?;
    }
    Ok(())
}

/// Lengths around every power of two and every limit of the peer info.
fn edges(run: &mut Run) -> Result<(), Failure> {
    let path = run.path(1 - run.rank)?;
    let mut lengths: Vec<usize> = (0..24).map(|bit| 1 << bit).collect();
    lengths.extend([
        path.eager,
        path.eager_skewed,
        path.one_sided_from,
        path.max_send,
        1460,
        1486,
        1500,
        8986,
        9000,
    ]);
    let lengths = lengths.into_iter().flat_map(|length| {
        (length.saturating_sub(2)..=length.saturating_add(2)).chain([
            length.saturating_sub(MAX_HEADER),
            length.saturating_add(MAX_HEADER),
        ])
    });
    let mut sent = 0u32;
    for length in lengths.filter(|length| *length <= path.max_send - 4) {
        if run.rank == 0 {
            run.send(1, &sent.to_le_bytes(), &vec![sent as u8; length])?;
        }
        sent += 1;
        if run.rank == 1 {
            expect(
                run,
                0,
                &(sent - 1).to_le_bytes(),
                &vec![(sent - 1) as u8; length],
            )?;
        }
    }
    Ok(())
}

/// A peer that reads nothing makes the sender `Busy` at a bound. Refused messages do not arrive,
/// and taken ones are not lost.
fn busy(run: &mut Run) -> Result<(), Failure> {
    for sizes in [Sizes::Tiny, Sizes::Mixed, Sizes::Longest] {
        if run.rank == 0 {
            let before = run.streamed(1).0;
            fill(run, 1, sizes)?;
            let (mut again, full) = (0, run.streamed(1).0);
            // A refused send can be repeated and is refused again while the peer reads nothing.
            while again < 100 && matches!(run.stream_now(1, sizes), Err(SendError::Busy)) {
                run.step()?;
                again += 1;
            }
            run.barrier_still()?;
            for _ in 0..full - before + 50 {
                run.stream(1, sizes)?;
            }
            let total = run.streamed(1).0.to_le_bytes();
            run.exchange(&total)?;
        } else {
            run.barrier_still()?;
            let total = counts(run, &[])?[0];
            run.arrived(0, total)?;
        }
        run.barrier()?;
    }
    Ok(())
}

/// Both ranks send until `Busy` before either reads: no deadlock.
fn both_full(run: &mut Run) -> Result<(), Failure> {
    let peer = 1 - run.rank;
    for sizes in [Sizes::Longest, Sizes::Tiny] {
        fill(run, peer, sizes)?;
        run.barrier_still()?;
        for _ in 0..200 {
            run.stream(peer, sizes)?;
        }
        let total = run.streamed(peer).0.to_le_bytes();
        let theirs = counts(run, &total)?[peer as usize];
        run.arrived(peer, theirs)?;
        run.barrier()?;
    }
    Ok(())
}

/// Many messages in both directions at once, with every byte checked.
fn many_messages(run: &mut Run) -> Result<(), Failure> {
    let (peer, count) = (1 - run.rank, u64::from(run.messages));
    while run.streamed(peer).0 < count {
        for _ in 0..1 + run.rng.below(20) {
            if run.streamed(peer).0 == count {
                break;
            }
            match run.stream_now(peer, Sizes::Mixed) {
                Ok(()) => {}
                Err(SendError::Busy) => break,
                Err(error) => return Err(error.into()),
            }
        }
        run.step()?;
        run.in_time("many messages")?;
    }
    run.arrived(peer, count)
}

/// Sends until `Busy`, without `progress`.
pub(super) fn fill(run: &mut Run, peer: Rank, sizes: Sizes) -> Result<(), Failure> {
    let most = run.path(peer)?.max_send;
    let room = MAX_ACCEPTED / if sizes == Sizes::Longest { most } else { 128 };
    for _ in 0..room {
        match run.stream_now(peer, sizes) {
            Ok(()) => {}
            Err(SendError::Busy) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failure::Broken(format!(
        "{room} messages accepted for a peer that reads nothing: the queue has no bound"
    )))
}

/// Returns the numbers of all ranks.
pub(super) fn counts(run: &mut Run, mine: &[u8]) -> Result<Vec<u64>, Failure> {
    let all = run.exchange(mine)?;
    let number = |one: Option<Vec<u8>>| {
        one.and_then(|one| one.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    };
    Ok(all.into_iter().map(number).collect())
}

/// Waits for a message and checks its sender, header and body.
pub(super) fn expect(run: &mut Run, peer: Rank, header: &[u8], body: &[u8]) -> Result<(), Failure> {
    run.until("a message", |run| !run.log.messages.is_empty())?;
    let Some(got) = run.log.messages.pop_front() else {
        return Err(Failure::Aborted);
    };
    let same = got.peer == peer && got.header == header && got.body == body;
    demand(same, || {
        let at = got.body.iter().zip(body).position(|(is, want)| is != want);
        format!(
            "{} + {} bytes arrived from rank {}, expected {} + {} from rank {peer}; first difference: {at:?}",
            got.header.len(),
            got.body.len(),
            got.peer,
            header.len(),
            body.len()
        )
    })
}

/// Adds the context to a failure.
pub(super) fn within(failure: Failure, context: &str) -> Failure {
    match failure {
        Failure::Broken(what) => Failure::Broken(format!("{context}: {what}")),
        other => other,
    }
}
