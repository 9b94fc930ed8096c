//! Every protocol with every length, order and wildcard; errors of callers.

use crate::common::{all_limits, config, pattern, run};
use btl_conformance::loopback::Limits;
use p2p::{Error, Source, Tag};

const TAG: i32 = 5;

fn lengths(limits: &Limits) -> Vec<usize> {
    let mut lengths = vec![0, 1, 8, 63, 64, 65];
    for edge in [
        limits.eager,
        limits.eager_skewed,
        limits.max_send,
        limits.one_sided_from,
        3 * limits.max_send,
    ] {
        for near in [-30i64, -29, -28, -27, -13, -12, -11, -1, 0, 1, 2] {
            lengths.push((edge as i64 + near).max(0) as usize);
        }
    }
    lengths.extend([100_000, 1 << 20]);
    lengths
}

#[test]
fn every_length_by_every_protocol_sent_first_or_received_first() {
    for (name, limits) in all_limits() {
        let stats = run(2, limits, &config(2), name, move |layer, comm| {
            for (round, length) in lengths(&limits).into_iter().enumerate() {
                let salt = round + 1;
                if comm.rank() == 0 {
                    // In odd rounds the receive is posted first.
                    if round % 2 == 1 {
                        comm.recv(&mut [0; 0], 1, TAG + 1).unwrap();
                    }
                    comm.send(&pattern(length, salt), 1, TAG).unwrap();
                    comm.ssend(&pattern(length, salt + 7), 1, TAG).unwrap();
                } else {
                    let mut first = vec![0; length];
                    let mut second = vec![0xee; length + 3];
                    comm.scope(|s| {
                        let a = s.irecv(&mut first, 0, TAG)?;
                        let b = s.irecv(&mut second, Source::Any, Tag::Any)?;
                        s.isend(&[], 0, if round % 2 == 1 { TAG + 1 } else { TAG + 2 })?;
                        let status = b.wait()?;
                        assert_eq!((status.source, status.tag, status.length), (0, TAG, length));
                        assert_eq!(a.wait()?.length, length);
                        Ok(())
                    })
                    .unwrap();
                    assert!(first == pattern(length, salt), "{name}: {length} bytes");
                    assert!(
                        second[..length] == pattern(length, salt + 7),
                        "{name}: {length} bytes"
                    );
                    assert_eq!(second[length..], [0xee; 3]);
                }
            }
            layer.stats()
        });
        let (sender, receiver) = (stats[0], stats[1]);
        assert!(sender.eager_sent > 10, "{name}");
        match name {
            "get" | "get at once" | "tight get" | "everything" => {
                assert!(receiver.by_get > 10, "{name}: {receiver:?}");
            }
            "put" | "put at once" | "tight put" => {
                assert!(receiver.by_put > 10, "{name}: {receiver:?}");
            }
            "fragments" | "tight fragments" => {
                assert!(
                    receiver.by_fragments > 10 && sender.fragments_sent > receiver.by_fragments,
                    "{name}"
                );
            }
            _ => {}
        }
        assert_eq!(
            (receiver.fallbacks, receiver.failed_peers),
            (0, 0),
            "{name}"
        );
    }
}

#[test]
fn messages_do_not_overtake_whatever_their_length() {
    for (name, limits) in all_limits() {
        run(2, limits, &config(2), name, move |_, comm| {
            let lengths = [10usize, 100_000, 0, 5000, 30_000, 8, 70_000, 64];
            let count = 48;
            if comm.rank() == 0 {
                let messages: Vec<Vec<u8>> =
                    (0..count).map(|n| pattern(lengths[n % 8] + n, n)).collect();
                comm.scope(|s| {
                    for message in &messages {
                        s.isend(message, 1, TAG)?;
                    }
                    Ok(())
                })
                .unwrap();
            } else {
                for n in 0..count {
                    let mut buffer = vec![0; 110_000];
                    let source = if n % 3 == 0 {
                        Source::Any
                    } else {
                        Source::Rank(0)
                    };
                    let tag = if n % 2 == 0 { Tag::Any } else { Tag::Is(TAG) };
                    let status = comm.recv(&mut buffer, source, tag).unwrap();
                    assert_eq!(status.length, lengths[n % 8] + n, "{name}: message {n}");
                    assert!(
                        buffer[..status.length] == pattern(status.length, n),
                        "{name}: message {n}"
                    );
                }
            }
        });
    }
}

#[test]
fn truncation_fails_one_request_only() {
    for (name, limits) in all_limits() {
        run(2, limits, &config(2), name, move |_, comm| {
            for length in [1usize, 100, 5000, 100_000] {
                if comm.rank() == 0 {
                    comm.send(&pattern(length, 1), 1, TAG).unwrap();
                    comm.ssend(&pattern(length, 2), 1, TAG).unwrap();
                    comm.send(&pattern(length, 3), 1, TAG).unwrap();
                } else {
                    for (salt, room) in [(1, length / 2), (2, 0)] {
                        let mut buffer = vec![0; room];
                        let error = comm.recv(&mut buffer, 0, TAG).unwrap_err();
                        assert_eq!(
                            error,
                            Error::Truncated {
                                source_rank: 0,
                                tag: TAG,
                                length,
                                room
                            },
                            "{name}"
                        );
                        assert!(
                            buffer == pattern(length, salt)[..room],
                            "{name}: the beginning arrived"
                        );
                    }
                    let mut buffer = vec![0; length];
                    assert_eq!(comm.recv(&mut buffer, 0, TAG).unwrap().length, length);
                    assert!(
                        buffer == pattern(length, 3),
                        "{name}: the next message is complete"
                    );
                }
            }
        });
    }
}

#[test]
fn probes_see_and_take() {
    for (name, limits) in all_limits() {
        run(2, limits, &config(2), name, move |layer, comm| {
            for length in [0usize, 9, 9000, 200_000] {
                if comm.rank() == 0 {
                    let messages: Vec<Vec<u8>> = (0..4).map(|salt| pattern(length, salt)).collect();
                    comm.scope(|s| {
                        for (message, tag) in messages.iter().zip(0..) {
                            s.isend(message, 1, tag)?;
                        }
                        s.waitall()
                    })
                    .unwrap();
                    comm.recv(&mut [], 1, 9).unwrap();
                } else {
                    let status = comm.probe(Source::Any, 2).unwrap();
                    assert_eq!((status.source, status.tag, status.length), (0, 2, length));
                    assert_eq!(comm.iprobe(0, 2).unwrap(), Some(status));
                    assert_eq!(comm.iprobe(0, 77).unwrap(), None);
                    let first = comm.mprobe(0, Tag::Any).unwrap();
                    assert_eq!(first.status().tag, 0, "{name}: the oldest");
                    // Taken, so no other receive gets it.
                    assert_eq!(
                        comm.improbe(0, 0).unwrap().map(|message| message.status()),
                        None
                    );
                    let mut buffer = vec![0; length];
                    assert_eq!(comm.recv(&mut buffer, 0, Tag::Any).unwrap().tag, 1);
                    assert!(buffer == pattern(length, 1));
                    assert_eq!(first.recv(&mut buffer).unwrap().length, length);
                    assert!(buffer == pattern(length, 0), "{name}");
                    // For the sender, a dropped message counts as received.
                    drop(comm.mprobe(0, 2).unwrap());
                    let (result, buffer) = comm
                        .mprobe(0, 3)
                        .unwrap()
                        .irecv_owned(buffer)
                        .unwrap()
                        .wait();
                    assert_eq!(result.unwrap().tag, 3);
                    assert!(buffer == pattern(length, 3));
                    let stats = layer.stats();
                    assert_eq!(
                        (stats.unexpected_now, stats.unexpected_bytes),
                        (0, 0),
                        "{name}"
                    );
                    comm.send(&[], 0, 9).unwrap();
                }
            }
        });
    }
}

#[test]
fn every_rank_exchanges_with_every_rank() {
    for (name, limits) in all_limits() {
        run(4, limits, &config(4), name, move |_, comm| {
            for length in [0usize, 40, 20_000, 90_000] {
                let out: Vec<Vec<u8>> = (0..4)
                    .map(|to| pattern(length, comm.rank() as usize * 10 + to))
                    .collect();
                let mut into = vec![vec![0; length]; 4];
                comm.scope(|s| {
                    for (from, buffer) in into.iter_mut().enumerate() {
                        s.irecv(buffer, from as u32, 1)?;
                    }
                    for (to, message) in out.iter().enumerate() {
                        s.isend(message, to as u32, 1)?;
                    }
                    s.waitall()
                })
                .unwrap();
                for (from, buffer) in into.iter().enumerate() {
                    assert!(
                        *buffer == pattern(length, from * 10 + comm.rank() as usize),
                        "{name}"
                    );
                }
                let right = (comm.rank() + 1) % 4;
                let mut buffer = vec![0; length];
                let status = comm
                    .sendrecv(&out[0], right, 3, &mut buffer, (comm.rank() + 3) % 4, 3)
                    .unwrap();
                assert_eq!(status.length, length);
            }
        });
    }
}

#[test]
fn to_itself_before_a_receive_is_posted() {
    run(1, Limits::default(), &config(1), "self", |layer, comm| {
        for length in [0usize, 100, 64 << 10, 65 << 10, 1 << 20] {
            let message = pattern(length, 4);
            let mut buffer = vec![0; length];
            let send = comm.isend_owned(message.clone(), 0, 9).unwrap();
            assert_eq!(send.is_complete().unwrap(), length <= 64 << 10);
            assert_eq!(comm.probe(0, 9).unwrap().length, length);
            comm.recv(&mut buffer, Source::Any, 9).unwrap();
            assert!(buffer == message);
            send.wait().0.unwrap();
            comm.scope(|s| {
                s.irecv(&mut buffer, 0, 9)?;
                s.issend(&message, 0, 9)?.wait()
            })
            .unwrap();
        }
        assert_eq!(layer.stats().self_sent, 10);
    });
}

#[test]
fn errors_of_callers_are_reported() {
    run(2, Limits::default(), &config(2), "errors", |layer, comm| {
        let mut buffer = [0; 4];
        assert_eq!(
            comm.send(&[], 2, 0),
            Err(Error::InvalidRank { rank: 2, size: 2 })
        );
        assert_eq!(
            comm.recv(&mut buffer, 7, 0),
            Err(Error::InvalidRank { rank: 7, size: 2 })
        );
        assert_eq!(comm.send(&[], 0, -1), Err(Error::InvalidTag { tag: -1 }));
        assert_eq!(
            comm.recv(&mut buffer, 0, -5),
            Err(Error::InvalidTag { tag: -5 })
        );
        assert_eq!(
            comm.probe(9, 0),
            Err(Error::InvalidRank { rank: 9, size: 2 })
        );
        // SAFETY: the buffer outlives the requests, which are complete when it is dropped.
        let receive =
            unsafe { comm.irecv_raw(buffer.as_mut_ptr(), 4, Source::Any, Tag::Is(70)) }.unwrap();
        assert_eq!(layer.test(receive), Ok(None));
        assert_eq!(layer.is_complete(receive), Ok(false));
        assert_eq!(layer.cancel(receive), Ok(true));
        assert_eq!(layer.cancel(receive), Ok(false), "it is complete");
        assert_eq!(layer.wait(receive), Err(Error::Cancelled));
        assert_eq!(layer.wait(receive), Err(Error::UnknownRequest));
        assert_eq!(layer.test(receive), Err(Error::UnknownRequest));
        assert_eq!(layer.free(receive), Err(Error::UnknownRequest));
        assert_eq!(
            layer.wait(p2p::RequestId::from_bits(0)),
            Err(Error::UnknownRequest)
        );
        assert_eq!(
            layer.wait(p2p::RequestId::from_bits(u64::MAX)),
            Err(Error::UnknownRequest)
        );
        // SAFETY: a receive that no message matches is never written; it ends with the layer.
        let freed =
            unsafe { comm.irecv_raw(buffer.as_mut_ptr(), 4, Source::Any, Tag::Is(71)) }.unwrap();
        layer.free(freed).unwrap();
        assert_eq!(layer.wait(freed), Err(Error::UnknownRequest));
        assert_eq!(layer.waitany(&[]), None);
        assert_eq!(
            layer.waitany(&[freed]),
            Some((0, Err(Error::UnknownRequest)))
        );
        comm.scope(|s| {
            let receive = s.irecv(&mut buffer, 0, 72)?;
            assert!(
                matches!(layer.free(receive.id()), Err(Error::InvalidArgument(_))),
                "lent memory"
            );
            receive.cancel()?;
            assert_eq!(receive.wait(), Err(Error::Cancelled));
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn leaving_a_scope_by_an_error_or_a_panic_cancels_its_requests() {
    run(2, Limits::default(), &config(2), "scope", |_, comm| {
        let mut buffer = vec![0u8; 100];
        let result: Result<(), Error> = comm.scope(|s| {
            s.irecv(&mut buffer, 1 - comm.rank(), 80)?;
            Err(Error::Cancelled)
        });
        assert_eq!(result, Err(Error::Cancelled));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = comm.scope(|s| -> Result<(), Error> {
                s.irecv(&mut buffer, 1 - comm.rank(), 80)?;
                panic!("of the program");
            });
        }));
        assert!(caught.is_err());
        buffer.fill(1);
        // Both receives are cancelled, so this one is the first that matches.
        let other = 1 - comm.rank();
        let mut small = [0; 1];
        comm.sendrecv(&[7], other, 80, &mut small, other, 80)
            .unwrap();
        assert_eq!((small, &buffer[..]), ([7], &[1; 100][..]));
    });
}

#[test]
fn waiting_for_several() {
    run(
        2,
        Limits::default(),
        &config(2),
        "several",
        |layer, comm| {
            let other = 1 - comm.rank();
            let mut buffers = [[0u8; 8]; 6];
            let ids: Vec<_> = buffers
                .iter_mut()
                .zip(0..)
                .map(|(buffer, tag)| {
                    // SAFETY: the buffers outlive the requests, all of which are waited for.
                    unsafe { comm.irecv_raw(buffer.as_mut_ptr(), 8, Source::Any, Tag::Is(tag)) }
                        .unwrap()
                })
                .collect();
            assert_eq!(layer.testany(&ids), None);
            assert_eq!(layer.testsome(&ids), []);
            assert_eq!(layer.testall(&ids), None);
            comm.sendrecv(&[], other, 50, &mut [], other, 50).unwrap();
            comm.send(&[1; 8], other, 3).unwrap();
            let (at, result) = layer.waitany(&ids).unwrap();
            assert_eq!((at, result.unwrap().tag), (3, 3));
            comm.sendrecv(&[], other, 50, &mut [], other, 50).unwrap();
            let rest: Vec<_> = ids.iter().copied().filter(|id| *id != ids[3]).collect();
            for tag in [0, 1, 2, 4, 5] {
                comm.send(&[2; 8], other, tag).unwrap();
            }
            let mut open = rest;
            let mut seen = Vec::new();
            while !open.is_empty() {
                let over = layer.waitsome(&open);
                assert!(!over.is_empty());
                seen.extend(over.iter().map(|(_, result)| result.clone().unwrap().tag));
                let over: Vec<usize> = over.iter().map(|(at, _)| *at).collect();
                open = open
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| !over.contains(at))
                    .map(|(_, id)| *id)
                    .collect();
            }
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2, 4, 5]);
            assert_eq!(layer.waitall(&ids[..1]), [Err(Error::UnknownRequest)]);
        },
    );
}

#[test]
fn after_finalize_every_call_returns_closed() {
    run(
        2,
        Limits::default(),
        &config(2),
        "finalize",
        |layer, comm| {
            let other = 1 - comm.rank();
            let mut buffer = [0; 8];
            comm.sendrecv(&[1; 8], other, 1, &mut buffer, other, 1)
                .unwrap();
            // SAFETY: the buffer outlives the layer's use of it: it is closed below.
            let open = unsafe {
                comm.irecv_raw(
                    buffer.as_mut_ptr(),
                    8,
                    Source::Rank(comm.rank()),
                    Tag::Is(2),
                )
            }
            .unwrap();
            layer.clone().finalize().unwrap();
            assert_eq!(layer.wait(open), Err(Error::Closed));
            assert_eq!(comm.send(&[], other, 1), Err(Error::Closed));
            assert_eq!(comm.recv(&mut buffer, other, 1), Err(Error::Closed));
            assert_eq!(comm.probe(other, 1), Err(Error::Closed));
            layer.clone().finalize().unwrap();
        },
    );
}
