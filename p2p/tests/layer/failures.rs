//! Peers that die, leave, or send invalid messages: their requests end with an error, others
//! continue.

use std::io::IoSlice;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{self, HANG, Random, all_limits, config, loopbacks, pattern, start};
use btl::{Btl, Events, PeerError, Tx};
use btl_conformance::loopback::{self, Limits};
use p2p::wire::{Header, Sequenced};
use p2p::{Comm, Error, OwnedRequest, P2p, Rank, Setup, Source, Tag, TransportAddress};

/// Polls all layers until `f` returns true.
fn until(layers: &[&P2p], what: &str, mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        layers.iter().for_each(|layer| {
            layer.progress();
        });
        assert!(start.elapsed() < HANG, "{what} hangs");
    }
}

fn failed(result: &Result<p2p::Status, Error>, peer: Rank) -> bool {
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
            assert!(request.is_over().unwrap(), "seed {seed} ({name})");
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
                .all(|request| request.is_over().unwrap())
        },
    );
    for (at, request) in ins.into_iter().enumerate() {
        let (result, buffer) = request.wait();
        assert_eq!(result.unwrap().length, 30_000);
        assert!(buffer == pattern(30_000, 1 - at));
    }
    drop(outs);
    for (peer, request) in requests {
        if request.is_over().unwrap() || request.cancel() == Ok(true) {
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
fn leaving_in_order_does_not_end_waits_for_others() {
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
    until(&[&layers[0]], "leaving", || named.is_over().unwrap());
    assert!(matches!(
        named.wait().0,
        Err(Error::PeerFailed {
            peer: 2,
            error: PeerError::Left
        })
    ));
    assert!(!any.is_over().unwrap());
    layers[1].world().send(&[1; 4], 0, 0).unwrap();
    until(&[&layers[0]], "the other", || any.is_over().unwrap());
    assert_eq!(any.wait().0.unwrap().source, 1);
    // No peer is left to wait for.
    let any = layers[0]
        .world()
        .irecv_owned(vec![0; 4], Source::Any, Tag::Any)
        .unwrap();
    layers[1].clone().finalize().unwrap();
    until(&[&layers[0]], "the end of all peers", || {
        any.is_over().unwrap()
    });
    assert!(matches!(any.wait().0, Err(Error::PeerFailed { .. })));
    assert!(matches!(
        layers[0].world().recv(&mut [], Source::Any, 1),
        Err(Error::PeerFailed { .. })
    ));
}

/// Header and body.
type Message = (Vec<u8>, Vec<u8>);

/// Messages that a bare transport receives.
#[derive(Default)]
struct Heard(Mutex<Vec<Message>>);

impl Events for Heard {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, header: &[u8], body: &[u8]) {
        self.0
            .lock()
            .unwrap()
            .push((header.to_vec(), body.to_vec()));
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, _: Rank, _: PeerError) {}
}

/// Ranks 0 and 1 are regular layers, rank 2 is a bare transport that sends arbitrary messages.
struct Hostile {
    layers: Vec<P2p>,
    bare: Box<dyn Btl>,
    heard: Heard,
}

impl Hostile {
    fn new() -> Hostile {
        let mut job = loopback::job(3, Limits::default());
        let mut bare: Box<dyn Btl> = Box::new(job.pop().unwrap());
        let cards: Vec<TransportAddress> = job
            .iter()
            .map(|btl| TransportAddress {
                transport: "loopback".into(),
                address: btl.address(),
            })
            .chain([TransportAddress {
                transport: "loopback".into(),
                address: bare.address(),
            }])
            .collect();
        let layers = job
            .into_iter()
            .zip(0..)
            .map(|(btl, rank)| {
                let setup = Setup {
                    rank,
                    size: 3,
                    transports: vec![Box::new(btl)],
                    config: config(3),
                };
                P2p::start(setup, |peer| Ok(vec![cards[peer as usize].clone()])).unwrap()
            })
            .collect();
        for rank in 0..2 {
            bare.add_peer(rank, &cards[rank as usize].address).unwrap();
        }
        Hostile {
            layers,
            bare,
            heard: Heard::default(),
        }
    }

    fn send(&mut self, header: &[u8], body: &[u8]) {
        for _ in 0..1000 {
            if self.bare.send(0, header, &[IoSlice::new(body)]).is_ok() {
                return;
            }
            self.layers[0].progress();
        }
        panic!("no room for a hostile message");
    }

    /// Checks that rank 0 closes rank 2 with a reason and continues with rank 1.
    fn expect_closed(mut self, what: &str) {
        let receive = self.layers[0].world().irecv_owned(vec![0; 9], 2, 12345);
        let layer = &self.layers[0];
        until(&[layer], what, || layer.stats().failed_peers == 1);
        if let Ok(receive) = receive {
            let result = receive.wait().0;
            assert!(
                matches!(
                    &result,
                    Err(Error::PeerFailed {
                        peer: 2,
                        error: PeerError::Violation(_)
                    })
                ),
                "{what}: {result:?}"
            );
        }
        for _ in 0..100 {
            self.bare.progress(&mut self.heard);
        }
        let heard = self.heard.0.lock().unwrap();
        let (header, reason) = heard.last().unwrap();
        assert_eq!(Header::decode(header), Ok(Header::Bye), "{what}");
        assert!(!reason.is_empty() && reason.len() <= 256, "{what}");
        let (a, b) = (self.layers[0].world(), self.layers[1].world());
        a.send(&[5], 1, 1).unwrap();
        assert_eq!(b.recv(&mut [0], 0, 1).unwrap().length, 1);
        b.send(&[5], 0, 1).unwrap();
        assert_eq!(a.recv(&mut [0], 1, 1).unwrap().length, 1);
    }
}

fn envelope(sequence: u16) -> Sequenced {
    Sequenced {
        flags: 0,
        sequence,
        context: 0,
        tag: 1,
        data: None,
    }
}

#[test]
fn every_malformed_header_closes_its_sender_only() {
    let bad: Vec<(&str, Vec<u8>, Vec<u8>)> = vec![
        ("empty", vec![], vec![]),
        ("kind 0", vec![0; 12], vec![]),
        ("kind 11", vec![11, 0, 0, 0], vec![]),
        (
            "short",
            Header::Eager(envelope(0), None).encode().bytes()[..11].to_vec(),
            vec![],
        ),
        ("flags", vec![1, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], vec![]),
        ("tag", vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80], vec![]),
        (
            "sequence",
            Header::Eager(envelope(1), None).encode().bytes().to_vec(),
            vec![],
        ),
        (
            "context",
            Header::Eager(
                Sequenced {
                    context: 77,
                    ..envelope(0)
                },
                None,
            )
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "length",
            Header::Rts(envelope(0), u64::MAX, 1)
                .encode()
                .bytes()
                .to_vec(),
            vec![],
        ),
        (
            "long key",
            Header::Rts(envelope(0), 10, 1).encode().bytes().to_vec(),
            vec![1; 41],
        ),
        (
            "done",
            Header::Fin {
                request: 0x1_0000_0000,
                written: false,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "written",
            Header::Fin {
                request: 0x1_0000_0000,
                written: true,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "FIN with a body",
            Header::Fin {
                request: 1,
                written: false,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![1],
        ),
        (
            "accept",
            Header::Cts {
                request: 1,
                target: 1,
                length: 1,
                put: false,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "CTS without key",
            Header::Cts {
                request: 1,
                target: 1,
                length: 1,
                put: true,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "fragment",
            Header::Fragment {
                target: 1,
                offset: 0,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![1],
        ),
        (
            "empty fragment",
            Header::Fragment {
                target: 1,
                offset: 0,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "credit",
            Header::Credit {
                amount: 1,
                rts_only: false,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
    ];
    for (what, header, body) in bad {
        let mut hostile = Hostile::new();
        hostile.send(&header, &body);
        hostile.expect_closed(what);
    }
}

#[test]
fn a_peer_that_answers_an_rts_wrongly_is_closed() {
    type Answer = fn(u64) -> Header;
    let wrong: [(&str, Answer, usize); 5] = [
        (
            "more than the message",
            |request| Header::Cts {
                request,
                target: 1,
                length: 100_001,
                put: false,
            },
            0,
        ),
        (
            "another request",
            |request| Header::Cts {
                request: request + 1,
                target: 1,
                length: 1,
                put: false,
            },
            0,
        ),
        (
            "an older request",
            |request| Header::Fin {
                request: request ^ 1 << 40,
                written: false,
            },
            0,
        ),
        (
            "FIN of the wrong side",
            |request| Header::Fin {
                request,
                written: true,
            },
            0,
        ),
        (
            "a fragment to a send",
            |request| Header::Fragment {
                target: request,
                offset: 0,
            },
            5,
        ),
    ];
    for (what, header, body) in wrong {
        let mut hostile = Hostile::new();
        let send = hostile.layers[0]
            .world()
            .isend_owned(vec![1; 100_000], 2, 1)
            .unwrap();
        until(&[&hostile.layers[0]], what, || {
            hostile.bare.progress(&mut hostile.heard);
            !hostile.heard.0.lock().unwrap().is_empty()
        });
        let announced = hostile.heard.0.lock().unwrap()[0].0.clone();
        let Ok(Header::Rts(_, 100_000, request)) = Header::decode(&announced) else {
            panic!("{announced:?}")
        };
        hostile.send(header(request).encode().bytes(), &vec![0; body]);
        let layer = hostile.layers[0].clone();
        until(&[&layer], what, || send.is_over().unwrap());
        assert!(failed(&send.wait().0, 2), "{what}");
        hostile.expect_closed(what);
    }
}

#[test]
fn fragments_that_do_not_fit_close_their_sender_and_write_nothing() {
    let wrong: [(&str, u64, usize); 4] = [
        ("beyond the end", 90, 11),
        ("far beyond", u64::MAX >> 1, 1),
        ("too long", 0, 101),
        ("twice", 0, 60),
    ];
    for (what, offset, length) in wrong {
        let mut hostile = Hostile::new();
        let receive = hostile.layers[0]
            .world()
            .irecv_owned(vec![0xee; 120], 2, 1)
            .unwrap();
        hostile.send(Header::Rts(envelope(0), 100, 77).encode().bytes(), &[]);
        until(&[&hostile.layers[0]], what, || {
            hostile.bare.progress(&mut hostile.heard);
            !hostile.heard.0.lock().unwrap().is_empty()
        });
        let accept = hostile.heard.0.lock().unwrap()[0].0.clone();
        let Ok(Header::Cts {
            request: 77,
            target,
            length: 100,
            put: false,
        }) = Header::decode(&accept)
        else {
            panic!("{accept:?}")
        };
        let fragment = Header::Fragment { target, offset };
        hostile.send(fragment.encode().bytes(), &vec![1; length]);
        if what == "twice" {
            hostile.send(fragment.encode().bytes(), &vec![1; length]);
        }
        let layer = hostile.layers[0].clone();
        until(&[&layer], what, || receive.is_over().unwrap());
        let (result, buffer) = receive.wait();
        assert!(failed(&result, 2), "{what}");
        assert_eq!(buffer[100..], [0xee; 20], "{what}");
        hostile.expect_closed(what);
    }
}

#[test]
fn a_peer_that_sends_without_credit_is_closed_before_memory_is_full() {
    let mut hostile = Hostile::new();
    let mut sequence = 0u16;
    let mut bytes = 0;
    while hostile.layers[0].stats().failed_peers == 0 {
        hostile.send(
            Header::Eager(envelope(sequence), None).encode().bytes(),
            &[7; 3000],
        );
        sequence = sequence.wrapping_add(1);
        bytes += 3000;
        hostile.layers[0].progress();
        assert!(bytes < 4 << 20, "no limit");
    }
    assert!(
        hostile.layers[0].stats().unexpected_peak <= 2 << 20,
        "two windows"
    );
    hostile.expect_closed("without credit");
}

#[test]
fn the_reason_of_a_bye_is_reported() {
    let mut hostile = Hostile::new();
    hostile.send(Header::Bye.encode().bytes(), "you \u{7} lie".as_bytes());
    until(&[&hostile.layers[0]], "bye", || {
        hostile.layers[0].stats().failed_peers == 1
    });
    let error = hostile.layers[0].world().send(&[], 2, 1).unwrap_err();
    assert!(error.to_string().contains("you   lie"), "{error}");
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
        receive.is_over() == Ok(true) && send.is_over() == Ok(true)
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
            // It polls again only when the other has left, if that does not need its help.
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
