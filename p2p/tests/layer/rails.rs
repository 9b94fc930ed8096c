//! Several transports to one peer: the traffic of each, and the effect of a failure of one.

use std::time::Instant;

use crate::common::{HANG, config, each, loopbacks, pattern, start};
use btl::{Btl, PeerError};
use btl_conformance::loopback::{Killer, Limits};
use p2p::{Error, P2p, RailReport, Setup, TransportAddress};

/// Creates two ranks with one rail for each name and bandwidth. The first is the primary rail.
fn layers(rails: &[(&'static str, u32)]) -> (Vec<P2p>, Vec<Killer>) {
    let mut transports: Vec<Vec<Box<dyn Btl>>> = vec![Vec::new(), Vec::new()];
    let mut killers = Vec::new();
    for (latency_ns, (name, bandwidth)) in (100..).zip(rails) {
        let limits = Limits {
            name,
            latency_ns,
            bandwidth: *bandwidth,
            ..Limits::default().plain()
        };
        let (job, killer) = loopbacks(2, limits);
        for (all, one) in transports.iter_mut().zip(job) {
            all.extend(one);
        }
        killers.push(killer);
    }
    (start(transports, &config(2)), killers)
}

fn rail(layer: &P2p, name: &str) -> RailReport {
    let rails = layer.rails();
    let found = rails.into_iter().find(|rail| rail.transport == name);
    found.expect("the rail is used")
}

/// Sends one message of this length from rank 0 to rank 1 and checks it.
fn transfer(layers: &[P2p], length: usize) {
    each(layers.to_vec(), "transfer", move |_, comm| {
        let mut buffer = vec![0; length];
        if comm.rank() == 0 {
            comm.send(&pattern(length, 1), 1, 1).unwrap();
        } else {
            comm.recv(&mut buffer, 0, 1).unwrap();
            assert!(buffer == pattern(length, 1));
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn long_messages_are_striped_by_declared_bandwidth() {
    let length = 8 << 20;
    for (bandwidths, part) in [
        ([1000, 2000], 1.0 / 3.0),
        ([1000, 1000], 0.5),
        ([1000, 4000], 0.0),
    ] {
        let [narrow, wide] = bandwidths;
        let (layers, _killers) = layers(&[("narrow", narrow), ("wide", wide)]);
        transfer(&layers, length);
        let sent = ["narrow", "wide"].map(|name| rail(&layers[0], name).sent);
        assert_eq!(sent[0] + sent[1], length as u64);
        let found = sent[0] as f64 / length as f64;
        assert!((found - part).abs() < 0.01, "{sent:?}");
        let received = ["narrow", "wide"].map(|name| rail(&layers[1], name).received);
        assert!(received[0] >= sent[0] && received[1] >= sent[1]);
    }
}

#[test]
fn at_most_four_rails_are_used() {
    let names = ["one", "two", "three", "four", "five"];
    let (layers, _killers) = layers(&names.map(|name| (name, 1000)));
    transfer(&layers, 4 << 20);
    let rails = layers[0].rails();
    assert_eq!(rails.len(), 4);
    assert!(rails.iter().all(|rail| rail.sent == 1 << 20), "{rails:?}");
    let unused = layers[0].paths().into_iter().filter(|path| !path.used);
    let reasons: Vec<String> = unused.map(|path| path.reason).collect();
    assert_eq!(reasons, ["4 rails are used already"]);
}

#[test]
fn a_rail_that_would_carry_nothing_is_not_used() {
    // The primary rail is used however slow it is.
    for (bandwidths, used) in [
        ([4000, 1000, 1999], [true, false, false]),
        ([4000, 2000, 600], [true, true, false]),
        ([1000, 4000, 1500], [true, true, false]),
        ([100, 4000, 2000], [true, true, true]),
    ] {
        let [first, second, third] = bandwidths;
        let (layers, killers) = layers(&[("one", first), ("two", second), ("three", third)]);
        let paths = layers[0].paths().into_iter();
        let paths: Vec<_> = paths.filter(|path| path.transport != "self").collect();
        let found: Vec<bool> = paths.iter().map(|path| path.used).collect();
        assert_eq!(found, used, "{bandwidths:?}");
        for (path, killer) in paths.iter().zip(&killers) {
            if !path.used {
                assert!(
                    path.reason.contains("less than half of the 4000 MB/s"),
                    "{path}"
                );
                killer.kill(1);
            }
        }
        transfer(&layers[..], 1 << 20);
        assert_eq!(layers[0].stats().failed_peers, 0);
    }
}

#[test]
fn short_messages_use_the_primary_rail() {
    let (layers, _killers) = layers(&[("one", 1000), ("two", 1000)]);
    each(layers.clone(), "short", |_, comm| {
        let other = 1 - comm.rank();
        let mut buffer = [0; 600];
        for n in 0..2000 {
            comm.sendrecv(&pattern(n % 600, n), other, 1, &mut buffer, other, 1)
                .unwrap();
        }
    });
    for layer in &layers {
        let received = layer.rails().into_iter().map(|rail| rail.received);
        let received: Vec<u64> = received.collect();
        assert!(received[0] > 0 && received[1] == 0, "{received:?}");
    }
}

#[test]
fn a_failed_rail_fails_the_peer() {
    for failed in [0, 1] {
        let (layers, killers) = layers(&[("one", 1000), ("two", 1000)]);
        let [layer, _other] = <[P2p; 2]>::try_from(layers).unwrap();
        let receive = layer.world().irecv_owned(vec![0; 9], 1, 1).unwrap();
        killers[failed].kill(1);
        let start = Instant::now();
        while !receive.is_complete().unwrap() {
            layer.progress();
            assert!(start.elapsed() < HANG);
        }
        let result = receive.wait().0;
        let died = Err(Error::PeerFailed {
            peer: 1,
            error: PeerError::Died,
        });
        assert_eq!(result, died, "rail {failed}");
        assert_eq!(layer.stats().failed_peers, 1);
    }
}

#[test]
fn a_failed_rail_ends_long_transfers() {
    let (layers, killers) = layers(&[("one", 1000), ("two", 1000)]);
    let killer = killers[1].clone();
    each(layers, "killed", move |_, comm| {
        let other = 1 - comm.rank();
        let start = Instant::now();
        let error = loop {
            assert!(start.elapsed() < HANG);
            let send = comm.isend_owned(pattern(300_000, 1), other, 1);
            if comm.rank() == 0 && start.elapsed().as_millis() > 20 {
                killer.kill(1);
            }
            let received = comm.recv(&mut vec![0; 300_000], other, 1);
            match (send.map(|send| send.wait().0), received) {
                (Ok(Ok(_)), Ok(_)) => {}
                (Err(error) | Ok(Err(error)), _) | (_, Err(error)) => break error,
            }
        };
        assert!(
            matches!(error, Error::PeerFailed { peer, .. } if peer == other),
            "{error:?}"
        );
    });
}

/// Transports of one name on equal networks, in another order on the other node, and one more.
#[test]
fn transports_of_a_kind_are_paired_by_reachability() {
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
    let addresses: Vec<Vec<TransportAddress>> = setups.iter().map(P2p::addresses).collect();
    let layers: Vec<P2p> = setups
        .into_iter()
        .map(|setup| P2p::start(setup, |peer| Ok(addresses[peer as usize].clone())).unwrap())
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
    assert!(idle.reason.contains("other transports use all"), "{idle:?}");
    transfer(&layers, 400_000);
}
