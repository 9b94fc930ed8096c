//! Dropping of a live peer: it learns of it, the other ranks continue, and it can no longer reach
//! this rank's memory.

use std::time::{Duration, Instant};

use super::super::run::demand;
use super::super::{Buffer, Case, Failure, Need, Remote, Run, Sizes};
use super::ends::has_left;
use super::life::refuses;
use super::one_sided::share;
use btl::{PeerError, SendError, Started};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "drop_peer",
        needs: &[],
        ranks: 3,
        added: true,
        run: closed_out,
    },
    Case {
        name: "drop_peer_that_is_not_there",
        needs: &[],
        ranks: 2,
        added: false,
        run: not_there,
    },
    Case {
        name: "drop_peer_mid_get",
        needs: &[Need::Get],
        ranks: 2,
        added: true,
        run: mid_get,
    },
    Case {
        name: "drop_peer_mid_put",
        needs: &[Need::Put],
        ranks: 2,
        added: true,
        run: mid_put,
    },
];

/// Time for which the dropped peer continues to send or write.
const TRIES: Duration = Duration::from_millis(30);

/// Drops a peer, waits until it cannot reach this rank, and checks the report.
fn drop_peer(run: &mut Run, peer: u32) -> Result<(), Failure> {
    run.until("the peer is out of reach", |run| run.btl.drop_peer(peer))?;
    Ok(())
}

fn is_lost(run: &mut Run, peer: u32) -> Result<(), Failure> {
    let error = run.until_failed(peer)?;
    demand(matches!(error, PeerError::Lost(_)), || {
        format!("rank {peer} was dropped: {error:?}")
    })
}

/// The dropped peer receives the messages sent before, and then the failure.
fn closed_out(run: &mut Run) -> Result<(), Failure> {
    let rank = run.rank;
    for peer in (0..3).filter(|peer| *peer != rank) {
        run.stream(peer, Sizes::Mixed)?;
        run.arrived(peer, 1)?;
    }
    run.barrier()?;
    match run.rank {
        0 => {
            run.send(1, b"bye", b"")?;
            drop_peer(run, 1)?;
            is_lost(run, 1)?;
            refuses(run, 1)?;
            demand(run.btl.drop_peer(1), || {
                "a dropped peer is reachable again".into()
            })?;
        }
        1 => {
            let error = run.until_failed(0)?;
            demand(error != PeerError::Left, || {
                "reported as an orderly end".into()
            })?;
            refuses(run, 0)?;
            // The message may have arrived, first and last.
            run.log
                .messages
                .retain(|got| !(got.peer == 0 && got.header == b"bye"));
            demand(run.log.messages.is_empty(), || {
                format!("arrived: {:?}", run.log.messages)
            })?;
        }
        _ => {}
    }
    // The other ranks are not affected.
    for (one, other) in [(0, 2), (1, 2)] {
        if run.rank == one || run.rank == other {
            let peer = one + other - run.rank;
            for _ in 0..50 {
                run.stream(peer, Sizes::Mixed)?;
            }
            run.arrived(peer, 51)?;
        }
    }
    demand(run.rank != 2 || run.log.failed.is_empty(), || {
        format!("failed: {:?}", run.log.failed)
    })
}

fn not_there(run: &mut Run) -> Result<(), Failure> {
    let peer = 1 - run.rank;
    for stranger in [peer, 2, u32::MAX] {
        demand(run.btl.drop_peer(stranger), || {
            format!("rank {stranger} was never added")
        })?;
    }
    run.add_all()?;
    run.barrier()?;
    run.stream(peer, Sizes::Mixed)?;
    run.arrived(peer, 1)?;
    run.flush()?;
    run.barrier()?;
    if run.rank == 0 {
        has_left(run, 1)?;
        return demand(run.btl.drop_peer(1), || "a peer that left".into());
    }
    run.btl.close();
    demand(run.btl.drop_peer(0), || "after close".into())
}

/// Checks that memory does not change any more.
fn rests(run: &mut Run, buffers: &[Buffer]) -> Result<(), Failure> {
    let before: Vec<Vec<u8>> = buffers.iter().map(Buffer::bytes).collect();
    let begin = Instant::now();
    let same = || {
        let all = buffers
            .iter()
            .zip(&before)
            .all(|(buffer, before)| buffer.bytes() == *before);
        demand(all, || "written by a dropped peer".into())
    };
    while begin.elapsed() < TRIES * 2 {
        run.step()?;
        same()?;
    }
    // Until the peer has stopped trying.
    run.barrier()?;
    same()
}

/// Pending reads end once each, before the failure is reported. Afterwards nothing is written.
fn mid_get(run: &mut Run) -> Result<(), Failure> {
    const LENGTH: usize = 1 << 20;
    let source = run.buffer(vec![7; LENGTH]);
    let key = share(run, (run.rank == 1).then_some(&source))?.swap_remove(1);
    if run.rank == 1 {
        return run.barrier();
    }
    let local: Vec<Buffer> = (0..4).map(|_| run.buffer(vec![0; LENGTH])).collect();
    for buffer in &local {
        let result = run
            .get(
                Remote {
                    peer: 1,
                    key: &key,
                    offset: 0,
                },
                buffer,
                0,
                LENGTH,
            )?
            .result;
        demand(matches!(result, Ok(_) | Err(SendError::Busy)), || {
            format!("get: {result:?}")
        })?;
    }
    drop_peer(run, 1)?;
    is_lost(run, 1)?;
    demand(run.log.pending.is_empty(), || {
        format!("pending: {:?}", run.log.pending)
    })?;
    rests(run, &local)
}

/// A dropped peer's writes into a region that is still registered are refused or fail.
fn mid_put(run: &mut Run) -> Result<(), Failure> {
    const LENGTH: usize = 1 << 20;
    let region = run.buffer(vec![0; LENGTH]);
    let key = share(run, (run.rank == 0).then_some(&region))?.swap_remove(0);
    if run.rank == 0 {
        run.until("the first put", |run| {
            run.log.messages.pop_front().is_some()
        })?;
        drop_peer(run, 1)?;
        run.log.messages.clear();
        return rests(run, &[region]);
    }
    let local = [1, 2].map(|value| run.buffer(vec![value; LENGTH]));
    let mut round = 0;
    let (mut since, mut refused) = (None, false);
    while !refused && since.is_none_or(|since: Instant| since.elapsed() < TRIES) {
        round += 1;
        let result = run.put(
            Remote {
                peer: 0,
                key: &key,
                offset: 0,
            },
            &local[round % 2],
            0,
            LENGTH,
        )?;
        match result.result {
            Ok(Started::Done) => {}
            Ok(Started::Pending) => {
                let token = result.token;
                run.until("a completion", |run| {
                    run.log.completed.iter().any(|(of, _)| *of == token)
                })?;
            }
            Err(SendError::Busy) => {}
            Err(SendError::Failed { peer: 0, .. }) => refused = true,
            Err(error) => return Err(error.into()),
        }
        if round == 1 {
            run.send(0, b"look", b"")?;
        }
        if since.is_none() && run.log.failure(0).is_some() {
            since = Some(Instant::now());
        }
        run.step()?;
        run.in_time("the drop by rank 0")?;
    }
    run.barrier()
}
