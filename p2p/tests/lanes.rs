//! Several transports to one peer: what they carry together, and what happens when one of them ends.

mod common;

use std::io::IoSlice;
use std::time::Instant;

use btl::{Btl, Events, Tx};
use btl_conformance::faulty::{Faults, Faulty};
use btl_conformance::loopback::{self, Limits};
use common::{HANG, config, each, loopbacks, pattern, start};
use p2p::wire::{Header, Sequenced};
use p2p::{Card, Config, Error, P2p, Setup, Tag};

/// Two transports between two ranks. `cut`: rank, lane, and after how many messages that rank loses the other by that lane.
fn two(cuts: &[(usize, usize, u64)], limits: Limits, adapt: bool) -> Vec<P2p> {
    let mut transports: Vec<Vec<Box<dyn Btl>>> = vec![Vec::new(), Vec::new()];
    for (lane, name) in ["one", "two"].into_iter().enumerate() {
        for (rank, btl) in loopback::job(2, Limits { name, ..limits })
            .into_iter()
            .enumerate()
        {
            let cut = cuts.iter().find(|cut| (cut.0, cut.1) == (rank, lane));
            let faults = Faults {
                cut: cut.map(|cut| (1 - rank as u32, cut.2)),
                ..Faults::default()
            };
            let seed = 7 * lane as u64 + rank as u64;
            transports[rank].push(Box::new(Faulty::new(Box::new(btl), seed, faults)));
        }
    }
    start(transports, &Config { adapt, ..config(2) })
}

/// Messages of all sorts both ways; content, order and number are checked.
fn traffic(layers: Vec<P2p>, what: &str) -> Vec<p2p::Stats> {
    let lengths = [8, 5_000, 100_000, 0, 400_000, 70_000, 1];
    each(layers, what, move |layer, comm| {
        let other = 1 - comm.rank();
        let mut buffer = vec![0; 3_000_000];
        for round in 0..3 {
            let sends: Vec<_> = lengths
                .iter()
                .enumerate()
                .map(|(n, length)| {
                    comm.isend_owned(pattern(*length, n + round), other, 1)
                        .unwrap()
                })
                .collect();
            for (n, length) in lengths.iter().enumerate() {
                let got = comm.recv(&mut buffer, other, Tag::Any).unwrap().length;
                assert_eq!(got, *length, "message {n} of round {round}");
                assert!(
                    buffer[..got] == pattern(got, n + round),
                    "message {n} of round {round}"
                );
            }
            for send in sends {
                send.wait().0.unwrap();
            }
        }
        comm.barrier().unwrap();
        layer.stats()
    })
}

#[test]
fn a_lane_that_ends_at_any_message_takes_nothing_with_it() {
    let mut lost = 0;
    for (name, limits) in common::all_limits() {
        for lane in [0, 1] {
            for after in [0, 1, 2, 3, 5, 8, 13, 30] {
                let what = format!("{name}, lane {lane} after {after}");
                let stats = traffic(two(&[(0, lane, after)], limits, false), &what);
                for stats in stats {
                    assert!(
                        stats.failed_peers == 0 && stats.lost_lanes <= 1,
                        "{what}: {stats:?}"
                    );
                    lost += stats.lost_lanes;
                }
            }
        }
    }
    // Where the bytes move by `get`, the second lane has nothing to do.
    assert!(lost > 200, "{lost}");
}

#[test]
fn a_lane_that_both_ends_lose_at_once() {
    for after in [0, 4, 9, 40] {
        let what = format!("after {after}");
        let limits = Limits::default().plain();
        let stats = traffic(
            two(&[(0, 0, after), (1, 0, after / 2)], limits, false),
            &what,
        );
        for stats in stats {
            assert_eq!(
                (stats.failed_peers, stats.lost_lanes),
                (0, 1),
                "{what}: {stats:?}"
            );
        }
    }
}

#[test]
fn what_was_under_way_on_a_lost_lane_is_sent_again() {
    let layers = two(&[(1, 1, 20)], Limits::default().plain(), false);
    let all = layers.clone();
    // Answers take the first lane, so what the second loses is the 21st fragment on it.
    each(layers, "one way", |_, comm| {
        if comm.rank() == 0 {
            comm.send(&pattern(3_000_000, 1), 1, 1).unwrap();
        } else {
            let mut buffer = vec![0; 3_000_000];
            comm.recv(&mut buffer, 0, 1).unwrap();
            assert!(buffer == pattern(3_000_000, 1));
        }
    });
    let stats = all[0].stats();
    assert!(stats.resent > 0 && stats.failed_peers == 0, "{stats:?}");
    for layer in &all {
        let [rails] = <[_; 1]>::try_from(layer.rails()).unwrap();
        assert_eq!(rails.rails.len(), 2);
        assert!(
            rails.rails[1].lost.is_some() && rails.rails[0].lost.is_none(),
            "{rails}"
        );
        assert!(
            rails.rails.iter().all(|rail| rail.sent + rail.received > 0),
            "{rails}"
        );
        assert!(rails.to_string().contains(", lost ("), "{rails}");
    }
}

#[test]
fn when_the_last_lane_ends_the_peer_has_failed() {
    let layers = two(&[(0, 0, 30), (0, 1, 60)], Limits::default().plain(), false);
    each(layers, "both lanes", |_, comm| {
        let other = 1 - comm.rank();
        let start = Instant::now();
        let error = loop {
            assert!(start.elapsed() < HANG);
            let send = comm.isend_owned(pattern(300_000, 1), other, 1);
            let received = comm.recv(&mut vec![0; 300_000], other, 1);
            match (send.map(|send| send.wait().0), received) {
                (Ok(Ok(_)), Ok(_)) => {}
                (Err(error), _) | (Ok(Err(error)), _) | (_, Err(error)) => break error,
            }
        };
        assert!(
            matches!(error, Error::PeerFailed { peer, .. } if peer == other),
            "{error:?}"
        );
    });
}

#[test]
fn both_carry_long_messages_by_their_transports_words_when_nothing_is_measured() {
    let mut transports: Vec<Vec<Box<dyn Btl>>> = vec![Vec::new(), Vec::new()];
    for (name, bandwidth) in [("narrow", 1000), ("wide", 3000)] {
        let limits = Limits {
            name,
            bandwidth,
            ..Limits::default().plain()
        };
        for (rank, btl) in loopback::job(2, limits).into_iter().enumerate() {
            transports[rank].push(Box::new(btl));
        }
    }
    let layers = start(
        transports,
        &Config {
            adapt: false,
            ..config(2)
        },
    );
    let near = layers[0].clone();
    each(layers, "both", |_, comm| {
        let mut buffer = vec![0; 8 << 20];
        if comm.rank() == 0 {
            comm.send(&pattern(8 << 20, 1), 1, 1).unwrap();
        } else {
            comm.recv(&mut buffer, 0, 1).unwrap();
            assert!(buffer == pattern(8 << 20, 1));
        }
        comm.barrier().unwrap();
    });
    let rails = near.rails().remove(0);
    let of = |name: &str| {
        rails
            .rails
            .iter()
            .find(|rail| rail.transport == name)
            .unwrap()
            .sent as f64
    };
    let part = of("narrow") / (of("narrow") + of("wide"));
    assert!((0.24..0.26).contains(&part), "{rails}");
}

/// In-process lanes share the one memory: nothing is gained by both, and short messages keep to the preferred one.
#[test]
fn short_messages_keep_to_one_lane() {
    let layers = two(&[], Limits::default().plain(), true);
    let all = layers.clone();
    each(layers, "short", |_, comm| {
        let other = 1 - comm.rank();
        let mut buffer = [0; 600];
        for n in 0..2000 {
            comm.sendrecv(&pattern(n % 600, n), other, 1, &mut buffer, other, 1)
                .unwrap();
        }
    });
    for layer in &all {
        let rails = layer.rails().remove(0);
        assert!(rails.rails[0].sent > 0, "{rails}");
        assert_eq!(
            (rails.rails[1].sent, rails.rails[1].received),
            (0, 0),
            "{rails}"
        );
        assert!(
            rails.to_string().contains("no long messages so far"),
            "{rails}"
        );
    }
}

/// Transports of one name: the same networks, in another order on the other node, and one too many.
#[test]
fn transports_of_a_kind_find_their_likes() {
    let mut networks: Vec<_> = (0..3)
        .map(|_| loopbacks(2, Limits::default().plain()).0)
        .collect();
    let mut take = |network: usize, rank: usize| networks[network][rank].remove(0);
    let transports: Vec<Vec<Box<dyn Btl>>> = vec![
        vec![take(0, 0), take(1, 0), take(2, 0)],
        vec![take(1, 1), take(0, 1)],
    ];
    let setups: Vec<Setup> = (0..)
        .zip(transports)
        .map(|(rank, transports)| Setup {
            rank,
            size: 2,
            transports,
            config: config(2),
        })
        .collect();
    let cards: Vec<Vec<Card>> = setups.iter().map(P2p::cards).collect();
    let layers: Vec<P2p> = setups
        .into_iter()
        .map(|setup| P2p::start(setup, |peer| Ok(cards[peer as usize].clone())).unwrap())
        .collect();
    let used = |layer: &P2p| -> Vec<bool> {
        layer
            .paths()
            .iter()
            .filter(|path| path.transport != "self")
            .map(|path| path.used)
            .collect()
    };
    assert_eq!(
        (used(&layers[0]), used(&layers[1])),
        (vec![true, true, false], vec![true, true])
    );
    let idle = layers[0]
        .paths()
        .into_iter()
        .rfind(|path| path.peer == 1)
        .unwrap();
    assert!(idle.reason.contains("others'"), "{idle:?}");
    drop(idle);
    traffic(layers, "networks");
}

/// Rank 1 as the test plays it over two bare transports: it gives credit and says what it saw when it is asked, and has no other answers.
#[derive(Default)]
struct Taker {
    spent: u32,
    answers: Vec<Header>,
}

impl Events for Taker {
    fn message(&mut self, _: &mut dyn Tx, _: u32, header: &[u8], body: &[u8]) {
        let Ok(Header::Eager(envelope, None)) = Header::decode(header) else {
            return;
        };
        self.spent += 256 + body.len() as u32 * 5 / 4;
        if envelope.flags & 1 != 0 {
            let amount = std::mem::take(&mut self.spent);
            self.answers.push(Header::Credit {
                amount,
                announce: false,
            });
        }
        if envelope.flags & 2 != 0 {
            self.answers.push(Header::Seen {
                sequence: envelope.sequence,
            });
        }
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), btl::PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, _: u32, _: btl::PeerError) {}
}

/// A layer of rank 0, and rank 1's two transports.
fn against_bare() -> (P2p, [Box<dyn Btl>; 2]) {
    let mut first = loopbacks(
        2,
        Limits {
            name: "one",
            ..Limits::default().plain()
        },
    )
    .0;
    let mut second = loopbacks(
        2,
        Limits {
            name: "two",
            ..Limits::default().plain()
        },
    )
    .0;
    let mut bare = [first.remove(1).remove(0), second.remove(1).remove(0)];
    let transports = vec![first.remove(0).remove(0), second.remove(0).remove(0)];
    let setup = Setup {
        rank: 0,
        size: 2,
        transports,
        config: config(2),
    };
    let own = P2p::cards(&setup);
    let theirs = [0, 1].map(|at: usize| Card {
        transport: bare[at].name().to_owned(),
        address: bare[at].address(),
    });
    for (bare, own) in bare.iter_mut().zip(&own) {
        bare.add_peer(0, &own.address).unwrap();
    }
    (P2p::start(setup, |_| Ok(theirs.to_vec())).unwrap(), bare)
}

#[test]
fn one_that_takes_everything_and_confirms_nothing_is_closed_out() {
    let (layer, [mut bare, _other]) = against_bare();
    let (world, mut taker) = (layer.world(), Taker::default());
    let (mut sent, start) = (0, Instant::now());
    let error = loop {
        assert!(
            start.elapsed() < HANG && sent < 64 << 20,
            "{sent} bytes are kept"
        );
        match world.isend_owned(pattern(1000, 1), 1, 1) {
            Ok(send) => {
                while !send.is_over().unwrap() {
                    layer.progress();
                    bare.progress(&mut taker);
                    for answer in taker.answers.drain(..) {
                        bare.send(0, answer.encode().bytes(), &[]).unwrap();
                    }
                    assert!(start.elapsed() < HANG);
                }
                match send.wait().0 {
                    Ok(_) => sent += 1000,
                    Err(error) => break error,
                }
            }
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("confirms nothing"), "{error}");
    assert!(sent > 10 << 20, "{sent}");
}

#[test]
fn one_that_lies_about_its_lanes_is_closed_out() {
    let note = |card, received, gone| {
        Header::Lane {
            card,
            received,
            gone,
        }
        .encode()
        .bytes()
        .to_vec()
    };
    let lies: [(&str, Vec<Vec<u8>>, bool); 7] = [
        ("nothing", vec![], false),
        (
            "a count of nothing",
            vec![note(0, 0, false), note(1, 0, false)],
            false,
        ),
        ("one lane gone", vec![note(1, 0, true)], false),
        (
            "messages that were not sent",
            vec![note(0, 1000, false)],
            true,
        ),
        ("a last word of as many", vec![note(1, 1000, true)], true),
        ("a lane that is not there", vec![note(2, 0, false)], true),
        ("gone twice", vec![note(1, 0, true), note(1, 0, true)], true),
    ];
    for (what, notes, ends) in lies {
        let (layer, [mut bare, mut other]) = against_bare();
        for header in notes {
            bare.send(0, &header, &[]).unwrap();
        }
        // An ordinary message behind it.
        let envelope = Sequenced {
            flags: 0,
            sequence: 0,
            context: 0,
            tag: 1,
        };
        bare.send(
            0,
            Header::Eager(envelope, None).encode().bytes(),
            &[IoSlice::new(&[5])],
        )
        .unwrap();
        let receive = layer.world().irecv_owned(vec![0; 9], 1, 1);
        let result = receive.map(|receive| {
            let start = Instant::now();
            while !receive.is_over().unwrap() {
                layer.progress();
                bare.progress(&mut Taker::default());
                other.progress(&mut Taker::default());
                assert!(start.elapsed() < HANG, "{what}");
                std::thread::yield_now();
            }
            receive.wait().0
        });
        let failed = !matches!(result, Ok(Ok(_)));
        assert_eq!(
            (failed, layer.stats().failed_peers),
            (ends, u64::from(ends)),
            "{what}"
        );
    }
}

/// A process that dies is lost by one transport after the other.
#[test]
fn a_death_is_told_when_the_last_lane_has_noticed() {
    let mut transports: Vec<Vec<Box<dyn Btl>>> = vec![Vec::new(), Vec::new()];
    let mut killers = Vec::new();
    for name in ["one", "two"] {
        let (job, killer) = loopbacks(
            2,
            Limits {
                name,
                ..Limits::default().plain()
            },
        );
        transports
            .iter_mut()
            .zip(job)
            .for_each(|(all, one)| all.extend(one));
        killers.push(killer);
    }
    let [layer, _dead] = <[P2p; 2]>::try_from(start(transports, &config(2))).unwrap();
    let receive = layer.world().irecv_owned(vec![0; 9], 1, 1).unwrap();
    killers[1].kill(1);
    for _ in 0..100 {
        layer.progress();
    }
    assert_eq!(
        (receive.is_over(), layer.stats().failed_peers),
        (Ok(false), 0)
    );
    killers[0].kill(1);
    let start = Instant::now();
    while !receive.is_over().unwrap() {
        layer.progress();
        assert!(start.elapsed() < HANG);
    }
    let result = receive.wait().0;
    assert!(
        matches!(
            result,
            Err(Error::PeerFailed {
                peer: 1,
                error: btl::PeerError::Died
            })
        ),
        "{result:?}"
    );
}
