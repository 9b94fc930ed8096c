//! `get` and `put`: data, bounds, keys, exactly one completion.

mod access;
mod data;

use self::access::{get_bounds, get_keys, many_regions, put_bounds, put_keys};
use self::data::{get_data, get_flood, put_data, put_flood, put_then_send, self_get};
use super::super::run::demand;
use super::super::{Buffer, Case, Failure, Need, Remote, Run};
use crate::rng::Rng;
use btl::{MAX_KEY, PeerError, Rank, SendError, Started};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "get_data",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: get_data,
    },
    Case {
        name: "put_data",
        needs: &[Need::Put],
        ranks: 2,
        added: true,
        run: put_data,
    },
    Case {
        name: "get_bounds",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: get_bounds,
    },
    Case {
        name: "put_bounds",
        needs: &[Need::Put],
        ranks: 2,
        added: true,
        run: put_bounds,
    },
    Case {
        name: "put_then_send",
        needs: &[Need::Put],
        ranks: 2,
        added: true,
        run: put_then_send,
    },
    Case {
        name: "get_flood",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: get_flood,
    },
    Case {
        name: "put_flood",
        needs: &[Need::Put],
        ranks: 2,
        added: true,
        run: put_flood,
    },
    Case {
        name: "get_keys",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: get_keys,
    },
    Case {
        name: "put_keys",
        needs: &[Need::Put],
        ranks: 2,
        added: true,
        run: put_keys,
    },
    Case {
        name: "self_get",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: self_get,
    },
    Case {
        name: "many_regions",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: many_regions,
    },
];

/// One of the two operations, with the signature of [`Run::get`].
pub(super) type Operate =
    fn(&mut Run, Remote<'_>, &Buffer, usize, usize) -> Result<super::super::Operation, Failure>;

pub(super) fn random(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Registers the buffer and sends its key to all ranks; returns the keys of all ranks.
pub(super) fn share(run: &mut Run, buffer: Option<&Buffer>) -> Result<Vec<Vec<u8>>, Failure> {
    for peer in (0..run.size).filter(|peer| *peer != run.rank) {
        if !run.path(peer)?.one_sided {
            return Err(Failure::Skipped(
                "no one-sided operations with this peer".into(),
            ));
        }
    }
    let mut key = Vec::new();
    if let Some(buffer) = buffer {
        key = run
            .register(buffer)
            .map_err(|error| Failure::Broken(format!("registration: {error}")))?
            .key;
        demand(!key.is_empty() && key.len() <= MAX_KEY, || {
            format!("a key of {} bytes", key.len())
        })?;
    }
    Ok(run
        .exchange(&key)?
        .into_iter()
        .map(Option::unwrap_or_default)
        .collect())
}

/// Executes one operation until it completes, retrying while it is `Busy`.
pub(super) fn finish(
    run: &mut Run,
    operate: Operate,
    remote: Remote<'_>,
    local: &Buffer,
    at: usize,
    length: usize,
) -> Result<Result<(), PeerError>, Failure> {
    loop {
        let operation = operate(run, remote, local, at, length)?;
        match operation.result {
            Ok(Started::Done) => return Ok(Ok(())),
            Ok(Started::Pending) => {
                let token = operation.token;
                run.until("a completion", |run| {
                    run.log.completed.iter().any(|(of, _)| *of == token)
                })?;
                let at = run.log.completed.iter().position(|(of, _)| *of == token);
                return Ok(at.map_or(Ok(()), |at| run.log.completed.remove(at).1));
            }
            Err(SendError::Busy) => run.step()?,
            Err(error) => return Err(error.into()),
        };
        run.in_time("a get or put to be accepted")?;
    }
}

/// Returns a region length that exceeds every threshold of the path.
fn region_length(run: &Run, peer: Rank) -> Result<usize, Failure> {
    let path = run.path(peer)?;
    Ok((path.max_send.max(path.one_sided_from) * 2 + 4097).min(4 << 20))
}

pub(super) fn same(is: &[u8], wanted: &[u8]) -> Result<(), Failure> {
    let at = is.iter().zip(wanted).position(|(is, wanted)| is != wanted);
    demand(at.is_none() && is.len() == wanted.len(), || {
        format!("wrong at byte {at:?} of {}", wanted.len())
    })
}
