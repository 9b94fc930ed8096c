//! Life cycle: addresses, adding, closing.

use super::super::run::demand;
use super::super::{Case, Failure, Remote, Run, Sizes};
use super::ends::has_left;
use super::one_sided::random;
use btl::{Btl, MAX_ADDRESS, RegisterError, SendError};
use std::io::IoSlice;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "garbage_addresses",
        needs: &[],
        ranks: 2,
        added: false,
        run: garbage_addresses,
    },
    Case {
        name: "early_message",
        needs: &[],
        ranks: 2,
        added: false,
        run: early_message,
    },
    Case {
        name: "never_added",
        needs: &[],
        ranks: 3,
        added: false,
        run: never_added,
    },
    Case {
        name: "use_after_close",
        needs: &[],
        ranks: 2,
        added: true,
        run: use_after_close,
    },
    Case {
        name: "left",
        needs: &[],
        ranks: 3,
        added: true,
        run: left,
    },
    Case {
        name: "flush_exit",
        needs: &[],
        ranks: 3,
        added: true,
        run: flush_exit,
    },
    Case {
        name: "drop_closes",
        needs: &[],
        ranks: 2,
        added: true,
        run: drop_closes,
    },
    Case {
        name: "close_while_peers_send",
        needs: &[],
        ranks: 3,
        added: true,
        run: close_while_peers_send,
    },
];

/// Invalid addresses of every length are unreachable, with a reason; the valid one works
/// afterwards.
fn garbage_addresses(run: &mut Run) -> Result<(), Failure> {
    let (rank, peer) = (run.rank, 1 - run.rank);
    let address = run.addresses[peer as usize].clone();
    let mut wrong: Vec<Vec<u8>> = (0..address.len())
        .map(|length| address[..length].to_vec())
        .collect();
    for length in 0..=MAX_ADDRESS + 1 {
        wrong.push(vec![0; length]);
        wrong.push(vec![0xff; length]);
        wrong.push(random(length, length as u64));
    }
    for bad in wrong {
        match run.btl.add_peer(peer, &bad) {
            Err(why) => demand(!why.reason.is_empty(), || {
                "unreachable without a reason".into()
            })?,
            Ok(path) => {
                return Err(Failure::Broken(format!(
                    "{} invalid bytes accepted as an address: {path:?}",
                    bad.len()
                )));
            }
        }
    }
    run.add(rank)?;
    run.add(peer)?;
    run.barrier()?;
    run.stream(peer, Sizes::Mixed)?;
    run.arrived(peer, 1)
}

/// Messages of a rank that is not added yet are kept, or delivered at once, in order.
fn early_message(run: &mut Run) -> Result<(), Failure> {
    let peer = 1 - run.rank;
    if run.rank == 0 {
        run.add_all()?;
        // A transport that needs both sides may return `Busy` until then.
        let mut sent = 0;
        while sent < 20 && run.stream_now(peer, Sizes::Tiny).is_ok() {
            sent += 1;
        }
        run.barrier()?;
        while sent < 40 {
            run.stream(peer, Sizes::Tiny)?;
            sent += 1;
        }
        return run.arrived(peer, 1);
    }
    // There is no peer info yet that gives a limit for these messages.
    run.barrier()?;
    for _ in 0..20 {
        run.step()?;
    }
    run.add_all()?;
    run.arrived(peer, 40)?;
    run.stream(peer, Sizes::Tiny)
}

/// Sends to a rank that was not added fail and have no effect on others.
fn never_added(run: &mut Run) -> Result<(), Failure> {
    let (rank, peer) = (run.rank, 1u32.wrapping_sub(run.rank));
    if rank == 2 {
        return run.barrier();
    }
    run.add(rank)?;
    run.add(peer)?;
    let local = run.buffer(vec![0; 8]);
    for stranger in [2, 3, 4, 1000, u32::MAX] {
        let result = run.btl.send(stranger, b"header", &[IoSlice::new(b"body")]);
        demand(result == Err(SendError::NoPeer(stranger)), || {
            format!("to rank {stranger}: {result:?}")
        })?;
        for operate in [Run::get, Run::put] {
            let result = operate(
                run,
                Remote {
                    peer: stranger,
                    key: &[0; 24],
                    offset: 0,
                },
                &local,
                0,
                8,
            )?
            .result;
            let right = [
                Err(SendError::NoPeer(stranger)),
                Err(SendError::Unsupported),
            ]
            .contains(&result);
            demand(right, || {
                format!("get or put with rank {stranger}: {result:?}")
            })?;
        }
    }
    for _ in 0..100 {
        run.stream(peer, Sizes::Tiny)?;
    }
    run.arrived(peer, 100)?;
    demand(run.log.failed.is_empty(), || {
        format!("failed: {:?}", run.log.failed)
    })?;
    run.barrier()
}

/// Every call after `close` returns `Closed`, repeatedly.
fn use_after_close(run: &mut Run) -> Result<(), Failure> {
    let peer = 1 - run.rank;
    run.stream(peer, Sizes::Mixed)?;
    run.arrived(peer, 1)?;
    run.barrier()?;
    if run.rank == 0 {
        return has_left(run, 1);
    }
    let capabilities = run.btl.capabilities();
    let buffer = run.buffer(vec![0; 64]);
    let key = run
        .register(&buffer)
        .map(|region| region.key)
        .unwrap_or_else(|_| vec![0; 24]);
    run.flush()?;
    run.btl.close();
    let before = run.log.events;
    for _ in 0..2 {
        demand(
            run.btl.send(peer, b"h", &[IoSlice::new(b"b")]) == Err(SendError::Closed),
            || "send after close".into(),
        )?;
        let closed = |result: SendError, there: bool| {
            result == SendError::Closed || (!there && result == SendError::Unsupported)
        };
        let remote = Remote {
            peer,
            key: &key,
            offset: 0,
        };
        let get = run.get(remote, &buffer, 0, 8)?.result;
        demand(
            get.clone()
                .is_err_and(|error| closed(error, capabilities.get)),
            || format!("get after close: {get:?}"),
        )?;
        let put = run.put(remote, &buffer, 0, 8)?.result;
        demand(
            put.clone()
                .is_err_and(|error| closed(error, capabilities.put)),
            || format!("put after close: {put:?}"),
        )?;
        let register = run.register(&buffer);
        let unsupported =
            register == Err(RegisterError::Unsupported) && !(capabilities.get || capabilities.put);
        demand(
            register == Err(RegisterError::Closed) || unsupported,
            || format!("register after close: {register:?}"),
        )?;
        run.btl.deregister(1);
        let address = run.addresses[0].clone();
        demand(run.btl.add_peer(0, &address).is_err(), || {
            "add_peer after close".into()
        })?;
        let _ = run.btl.arm();
        demand(run.step()? == 0, || {
            "progress after close reported events".into()
        })?;
        demand(run.btl.flush(), || "flush after close still waits".into())?;
        run.btl.close();
    }
    demand(run.log.events == before, || "an event after close".into())
}

/// Flushed messages arrive, then `Left` is reported, not a death.
fn left(run: &mut Run) -> Result<(), Failure> {
    leave(run, 300, Sizes::Mixed)
}

/// With many messages in transit, the process ends right after `flush` and `close`.
fn flush_exit(run: &mut Run) -> Result<(), Failure> {
    leave(run, 60, Sizes::Longest)
}

fn leave(run: &mut Run, count: u64, sizes: Sizes) -> Result<(), Failure> {
    if run.rank == 2 {
        for _ in 0..count {
            run.stream(0, sizes)?;
            run.stream(1, sizes)?;
        }
        run.flush()?;
        run.btl.close();
        return Ok(());
    }
    let other = 1 - run.rank;
    run.until_failed(2)?;
    let came = run.streamed(2).1;
    demand(came == count, || {
        format!("{came} of {count} flushed messages arrived")
    })?;
    has_left(run, 2)?;
    refuses(run, 2)?;
    for _ in 0..100 {
        run.stream(other, Sizes::Mixed)?;
    }
    run.arrived(other, 100)
}

/// Dropping a transport is an orderly end.
fn drop_closes(run: &mut Run) -> Result<(), Failure> {
    run.stream(1 - run.rank, Sizes::Tiny)?;
    run.arrived(1 - run.rank, 1)?;
    run.barrier()?;
    if run.rank == 0 {
        has_left(run, 1)?;
        return run.barrier();
    }
    // The runner expects nothing more of this rank, because the replacement is closed.
    let Some(mut closed) = crate::loopback::job(1, crate::loopback::Limits::default()).pop() else {
        return Err(Failure::Aborted);
    };
    closed.close();
    run.btl = Box::new(closed);
    // Otherwise the peer might detect the end of the process first.
    run.barrier()
}

/// Checks that every operation on a peer returns `Failed` once its failure was reported.
pub(super) fn refuses(run: &mut Run, peer: u32) -> Result<(), Failure> {
    for _ in 0..3 {
        let result = run.stream_now(peer, Sizes::Tiny);
        demand(
            matches!(result, Err(SendError::Failed { peer: failed, .. }) if failed == peer),
            || format!("a send to rank {peer} after its failure was reported: {result:?}"),
        )?;
        run.step()?;
    }
    Ok(())
}

/// A rank closes without reading while the others send to it.
fn close_while_peers_send(run: &mut Run) -> Result<(), Failure> {
    if run.rank == 2 {
        run.stream(0, Sizes::Tiny)?;
        run.stream(1, Sizes::Tiny)?;
        run.arrived_at_least(0, 3)?;
        run.flush()?;
        run.btl.close();
        return Ok(());
    }
    let other = 1 - run.rank;
    while run.log.failure(2).is_none() || run.streamed(other).0 < 300 {
        match run.stream_now(2, Sizes::Mixed) {
            Ok(()) | Err(SendError::Busy | SendError::Failed { peer: 2, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if run.streamed(other).0 < 300 {
            run.stream(other, Sizes::Tiny)?;
        }
        run.step()?;
        run.in_time("the failure of a peer that closed")?;
    }
    has_left(run, 2)?;
    refuses(run, 2)?;
    run.arrived(other, 300)
}
