//! Peers that die or leave: their requests end with an error, others continue.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{self, HANG, Random, all_limits, config, loopbacks, pattern, start};
use btl::PeerError;
use btl_conformance::loopback::{self, Limits};
use p2p::{Comm, Error, OwnedRequest, P2p, Rank, Source, Tag};

/// Polls all layers until `f` returns true.
pub(crate) fn until(layers: &[&P2p], what: &str, mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        layers.iter().for_each(|layer| {
            layer.progress();
        });
        assert!(start.elapsed() < HANG, "{what} hangs");
    }
}

pub(crate) fn failed(result: &Result<p2p::Status, Error>, peer: Rank) -> bool {
    matches!(result, Err(Error::PeerFailed { peer: failed, .. }) if *failed == peer)
}

/// Three ranks with traffic between all of them; rank 2 dies at a random moment.
fn death(seed: u64) {
    let mut random = Random::new(seed);
    let ways = all_limits();
    let (name, limits) = *random.pick(&ways);
    let (transports, killer) = loopbacks(
        3,
        Limits {
            entries: 1 + random.below(8),
            ..limits
        },
    );
    let layers = start(transports, &config(3));
    let comms: Vec<Comm> = layers.iter().map(P2p::world).collect();
    let lengths = [
        0,
        10,
        limits.eager,
        limits.eager + 1,
        limits.max_send * 2,
        limits.one_sided_from * 3,
    ];
    let mut requests: Vec<(Option<usize>, OwnedRequest)> = Vec::new();
    let die = 20 + random.below(100);
    let mut dead = false;
    for step in 0..140 {
        if step == die {
            killer.kill(2);
            dead = true;
        }
        let at = random.below(if dead { 2 } else { 3 });
        let (other, tag) = (random.below(3), random.below(2));
        let length = *random.pick(&lengths);
        // Room for the longest message, so that remaining messages of rank 2 are never truncated.
        let longest = *lengths.iter().max().unwrap();
        let request = match random.below(5) {
            0 | 1 => comms[at]
                .isend_owned(pattern(length, step), other as u32, tag)
                .map(|request| (Some(other), request)),
            2 => comms[at]
                .irecv_owned(vec![0; longest], other as u32, tag)
                .map(|request| (Some(other), request)),
            3 if !dead => comms[at]
                .irecv_owned(vec![0; longest], Source::Any, tag)
                .map(|request| (None, request)),
            _ => {
                layers[at].progress();
                continue;
            }
        };
        match request {
            Ok(request) if at != 2 => requests.push(request),
            // Requests of the dead rank itself do not matter.
            Ok(_) => {}
            Err(error) => assert!(other == 2 && dead, "seed {seed} ({name}): {error}"),
        }
    }
    if !dead {
        killer.kill(2);
    }
    let alive = [&layers[0], &layers[1]];
    until(&alive, &format!("seed {seed} ({name})"), || {
        alive.iter().all(|layer| layer.stats().failed_peers == 1)
    });
    // Requests that name the dead rank, or could be served by it, are complete.
    for (peer, request) in &requests {
        if *peer == Some(2) {
            assert!(request.is_complete().unwrap(), "seed {seed} ({name})");
        }
    }
    for comm in &comms[..2] {
        assert!(matches!(
            comm.send(&[1], 2, 0),
            Err(Error::PeerFailed {
                peer: 2,
                error: PeerError::Died
            })
        ));
        let result = comm.recv(&mut vec![0; 1 << 20], 2, 999);
        assert!(failed(&result, 2), "seed {seed}: {result:?}");
        assert!(matches!(
            comm.probe(2, 999),
            Err(Error::PeerFailed { peer: 2, .. })
        ));
    }
    // Ranks 0 and 1 continue: a message each way, past all open requests.
    let outs: Vec<OwnedRequest> = (0..2)
        .map(|at| {
            comms[at]
                .isend_owned(pattern(30_000, at), 1 - at as u32, 7)
                .unwrap()
        })
        .collect();
    let ins: Vec<OwnedRequest> = (0..2)
        .map(|at| {
            comms[at]
                .irecv_owned(vec![0; 30_000], 1 - at as u32, 7)
                .unwrap()
        })
        .collect();
    until(
        &alive,
        &format!("seed {seed} ({name}): the remaining ranks"),
        || {
            outs.iter()
                .chain(&ins)
                .all(|request| request.is_complete().unwrap())
        },
    );
    for (at, request) in ins.into_iter().enumerate() {
        let (result, buffer) = request.wait();
        assert_eq!(result.unwrap().length, 30_000);
        assert!(buffer == pattern(30_000, 1 - at));
    }
    drop(outs);
    for (peer, request) in requests {
        if request.is_complete().unwrap() || request.cancel() == Ok(true) {
            let (result, _) = request.wait();
            let fine = match &result {
                Ok(_) | Err(Error::Cancelled) => true,
                Err(Error::PeerFailed { peer: 2, .. }) => peer.is_none() || peer == Some(2),
                Err(_) => false,
            };
            assert!(fine, "seed {seed} ({name}): {peer:?} ended with {result:?}");
        }
    }
}

#[test]
fn death_at_any_point() {
    for seed in 0..600 {
        println!("seed {seed}");
        death(seed);
    }
}

#[test]
fn leaving_gracefully_does_not_end_waits_for_others() {
    let layers = start(loopbacks(3, Limits::default()).0, &config(3));
    let any = layers[0]
        .world()
        .irecv_owned(vec![0; 4], Source::Any, Tag::Any)
        .unwrap();
    let named = layers[0]
        .world()
        .irecv_owned(vec![0; 4], 2, Tag::Any)
        .unwrap();
    layers[2].clone().finalize().unwrap();
    until(&[&layers[0]], "leaving", || named.is_complete().unwrap());
    assert!(matches!(
        named.wait().0,
        Err(Error::PeerFailed {
            peer: 2,
            error: PeerError::Left
        })
    ));
    assert!(!any.is_complete().unwrap());
    layers[1].world().send(&[1; 4], 0, 0).unwrap();
    until(&[&layers[0]], "the other", || any.is_complete().unwrap());
    assert_eq!(any.wait().0.unwrap().source, 1);
    // There is no peer left to wait for.
    let any = layers[0]
        .world()
        .irecv_owned(vec![0; 4], Source::Any, Tag::Any)
        .unwrap();
    layers[1].clone().finalize().unwrap();
    until(&[&layers[0]], "the end of all peers", || {
        any.is_complete().unwrap()
    });
    assert!(matches!(any.wait().0, Err(Error::PeerFailed { .. })));
    assert!(matches!(
        layers[0].world().recv(&mut [], Source::Any, 1),
        Err(Error::PeerFailed { .. })
    ));
}

#[test]
fn a_blocked_call_ends_when_its_peer_dies() {
    let (transports, killer) = loopbacks(2, Limits::default());
    let layers = start(transports, &config(2));
    let victim = Arc::new(Mutex::new(Some(killer)));
    common::each(layers, "blocked", move |_, comm| {
        if comm.rank() == 1 {
            // Most probably rank 0 waits by then; if not, it fails at once.
            std::thread::sleep(Duration::from_millis(50));
            victim.lock().unwrap().take().unwrap().kill(1);
            return;
        }
        assert!(failed(&comm.recv(&mut [0; 8], 1, 1), 1));
        assert!(matches!(
            comm.send(&[0; 100_000], 1, 1),
            Err(Error::PeerFailed { peer: 1, .. })
        ));
        assert!(matches!(
            comm.barrier(),
            Err(Error::PeerFailed { peer: 1, .. })
        ));
    });
}

/// Returns ranks with two transports each, and the killers of the first and of the second.
fn two_transports(size: u32, exclusivity: [u32; 2]) -> (Vec<P2p>, [loopback::Killer; 2]) {
    let [first, second] = exclusivity.map(|exclusivity| {
        loopbacks(
            size,
            Limits {
                exclusivity,
                ..Limits::default()
            },
        )
    });
    let both = first
        .0
        .into_iter()
        .zip(second.0)
        .map(|(one, two)| one.into_iter().chain(two).collect());
    (start(both.collect(), &config(size)), [first.1, second.1])
}

#[test]
fn a_transport_that_is_not_used_for_a_peer_may_lose_it() {
    let (layers, [_, unused]) = two_transports(2, [5, 1]);
    let all: Vec<&P2p> = layers.iter().collect();
    unused.kill(1);
    let receive = layers[1].world().irecv_owned(vec![0; 9], 0, 1).unwrap();
    for _ in 0..100 {
        all.iter().for_each(|layer| {
            layer.progress();
        });
    }
    let send = layers[0]
        .world()
        .isend_owned(b"over both".to_vec(), 1, 1)
        .unwrap();
    until(&all, "a message over the other", || {
        receive.is_complete() == Ok(true) && send.is_complete() == Ok(true)
    });
    assert_eq!(receive.wait().0.map(|status| status.length), Ok(9));
    assert_eq!(
        [0, 1].map(|rank: usize| layers[rank].stats().failed_peers),
        [0, 0]
    );
}

#[test]
fn messages_of_a_peer_that_leaves_arrive_on_all_rails() {
    for length in [10, 5_000, 70_000] {
        let (layers, _) = two_transports(2, [1, 1]);
        let [near, far] = <[P2p; 2]>::try_from(layers).unwrap();
        let sends: Vec<_> = (0..12)
            .map(|i| near.world().isend_owned(pattern(length, i), 1, 1).unwrap())
            .collect();
        let receiver = std::thread::spawn(move || {
            // It polls again only when the other has left, if the other does not need its help.
            std::thread::sleep(Duration::from_millis(20));
            for i in 0..12 {
                let (result, bytes) = far
                    .world()
                    .irecv_owned(vec![0; length], 0, 1)
                    .unwrap()
                    .wait();
                assert_eq!(
                    result.map(|status| status.length),
                    Ok(length),
                    "message {i}"
                );
                assert!(bytes == pattern(length, i), "message {i}");
            }
        });
        for send in sends {
            send.wait().0.unwrap();
        }
        near.finalize().unwrap();
        receiver.join().unwrap();
    }
}

/// Every send to a peer that has left is refused before its messages are read.
#[test]
fn messages_of_a_peer_that_left_arrive_though_it_takes_no_answers() {
    let limits = Limits {
        burst: 4,
        entries: 128,
        ..Limits::default()
    };
    let mut config = config(2);
    // SKEW is sent upon the second message.
    config.tuning.skew_queue = 1;
    config.tuning.skew_after = Duration::ZERO;
    // Lengths of the message sent to it in the meantime: none, EAGER, and RTS.
    for answer in [None, Some(8), Some(100_000)] {
        let [near, far] = <[P2p; 2]>::try_from(start(loopbacks(2, limits).0, &config)).unwrap();
        for i in 0..100u64 {
            far.world().send(&i.to_le_bytes(), 0, 1).unwrap();
        }
        far.finalize().unwrap();
        let comm = near.world();
        if let Some(length) = answer {
            let sent = comm.send(&vec![1; length], 1, 1);
            let left = Err(Error::PeerFailed {
                peer: 1,
                error: PeerError::Left,
            });
            assert_eq!(sent, left, "{answer:?}");
        }
        for i in 0..100u64 {
            let mut buffer = [0; 8];
            let result = comm.recv(&mut buffer, 1, 1);
            assert_eq!(result.map(|status| status.length), Ok(8), "{answer:?} {i}");
            assert_eq!(buffer, i.to_le_bytes());
        }
        assert!(failed(&comm.recv(&mut [], 1, 1), 1), "{answer:?}");
    }
}

/// The receiver asks for the bytes of a message whose sender has left.
#[test]
fn a_long_message_of_a_peer_that_left_fails_after_its_others() {
    for (name, limits) in all_limits() {
        let limits = Limits {
            burst: 1,
            entries: 16,
            ..limits
        };
        let layers = start(loopbacks(2, limits).0, &config(2));
        let [near, far] = <[P2p; 2]>::try_from(layers).unwrap();
        let long = far.world().isend_owned(vec![1; 100_000], 0, 1).unwrap();
        for _ in 0..9 {
            far.world().send(b"short", 0, 2).unwrap();
        }
        // It leaves without waiting for its send.
        far.clone().finalize().unwrap();
        drop(long);
        let comm = near.world();
        assert!(failed(&comm.recv(&mut vec![0; 100_000], 1, 1), 1), "{name}");
        for i in 0..9 {
            let result = comm.recv(&mut [0; 8], 1, 2);
            assert_eq!(result.map(|status| status.length), Ok(5), "{name} {i}");
        }
    }
}

#[test]
fn a_claimed_message_whose_sender_died_is_given_up_when_it_is_received() {
    let (transports, killer) = loopbacks(2, Limits::default());
    let [near, far] = <[P2p; 2]>::try_from(start(transports, &config(2))).unwrap();
    let _long = far.world().isend_owned(vec![1; 100_000], 0, 1).unwrap();
    let claimed = near.world().mprobe(1, 1).unwrap();
    killer.kill(1);
    until(&[&near], "the failure", || near.stats().failed_peers == 1);
    assert!(failed(&claimed.recv(&mut vec![0; 100_000]), 1));
    let stats = near.stats();
    assert_eq!((stats.unexpected_now, stats.unexpected_bytes), (0, 0));
}

#[test]
fn finalize_waits_for_room_until_the_peer_has_failed() {
    let limits = Limits {
        entries: 2,
        ..Limits::default()
    };
    let (transports, killer) = loopbacks(3, limits);
    let [near, far, _dead] = <[P2p; 3]>::try_from(start(transports, &config(3))).unwrap();
    let sends: Vec<OwnedRequest> = (0..40)
        .map(|i| near.world().isend_owned(vec![i], 1 + u32::from(i) % 2, 1))
        .collect::<Result<_, _>>()
        .unwrap();
    let leaves = near.clone();
    let leaving = std::thread::spawn(move || leaves.finalize());
    // Longer than an endpoint would wait.
    std::thread::sleep(Duration::from_secs(11));
    killer.kill(2);
    for i in (0..40).step_by(2) {
        let mut buffer = [0];
        far.world().recv(&mut buffer, 0, 1).unwrap();
        assert_eq!(buffer, [i]);
    }
    assert_eq!(leaving.join().unwrap(), Ok(()));
    assert!(failed(&far.world().recv(&mut [], 0, 1), 0));
    for (i, send) in sends.into_iter().enumerate() {
        let result = send.wait().0;
        // Some of those to the dead rank found room before.
        assert!(
            result.is_ok() || i % 2 == 1 && failed(&result, 2),
            "{result:?}"
        );
    }
}
