//! The point-to-point layer over the InfiniBand transport, also mixed with shared memory: every
//! protocol with every length, several rails, few blocks, lost datagrams, a death. Runs on the
//! transport's fabric for tests, or with `IB_DEVICES=rxa,rxb` over real verbs, where ranks and
//! rails use these devices in turn (`tests/vm/ci` does so); there, deaths are tested by the
//! transport's own suite.

#[path = "../../p2p/tests/common/mod.rs"]
mod common;

use btl_conformance as _;
use std::sync::atomic::{AtomicU32, Ordering};

use btl::Btl;
use common::{Random, config, each, pattern, start};
use fake_verbs::Fabric;
use ib_btl::{IbBtl, IbConfig};
use p2p::{Error, Source, Tag};
use shm_btl::{ShmBtl, ShmConfig};

const TAG: i32 = 5;

/// A configuration: name, number of rails, changes of the defaults.
type Setup = (&'static str, usize, fn(&mut IbConfig));

/// Two ranks on each "node", connected by shared memory.
const NODES: Setup = ("shared memory in a node", 1, |_| ());

const WAYS: &[Setup] = &[
    ("put", 1, |_| ()),
    ("get", 1, |config| config.reads = true),
    ("shared blocks", 1, |config| {
        *config = config.clone().shared();
        config.shared_blocks = 32;
    }),
    ("few blocks", 1, |config| {
        (config.blocks, config.pool_blocks) = (8, 16);
    }),
    ("no cache", 1, |config| config.cache_bytes = 0),
    ("held", 1, |config| config.held_from = Some(3000)),
    ("held, shared blocks", 1, |config| {
        *config = config.clone().shared();
        (config.shared_blocks, config.held_from) = (32, Some(3000));
    }),
    ("two rails", 2, |_| ()),
];

/// Returns the devices to use instead of the fabric.
fn devices() -> Option<Vec<String>> {
    let list = std::env::var("IB_DEVICES").ok()?;
    Some(list.split(',').map(str::to_owned).collect())
}

/// Returns the transports of every rank, and their fabric, whose interfaces are numbered by rank
/// and then by rail.
fn transports(
    size: u32,
    (name, rails, change): Setup,
    devices: Option<&[String]>,
) -> (Vec<Vec<Box<dyn Btl>>>, Fabric) {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let job = format!(
        "p2p-ib-{}-{}",
        std::process::id(),
        JOBS.fetch_add(1, Ordering::Relaxed)
    );
    let fabric = Fabric::new();
    fabric.lose_datagrams(200_000, 7);
    let one = |rank: u32, rail: usize| {
        let mut config = IbConfig::new(rank, size, job.as_bytes());
        (config.rail, config.add_wait) = (rail as u8, std::time::Duration::ZERO);
        change(&mut config);
        let made = match devices {
            // The two ends of a rail use different devices where the two ranks do, so it crosses
            // the wire.
            Some(names) => {
                config.device = Some(names[(rank as usize + rail) % names.len()].clone());
                IbBtl::new(config)
            }
            None => IbBtl::over(Box::new(fabric.nic().unwrap().1), config),
        };
        Box::new(made.unwrap()) as Box<dyn Btl>
    };
    let all = |rank: u32| {
        let mut all: Vec<_> = (0..rails).map(|rail| one(rank, rail)).collect();
        if name == NODES.0 {
            let node = format!("{job}-{}", rank / 2);
            all.push(Box::new(
                ShmBtl::new(ShmConfig::new(rank, size, &node)).unwrap(),
            ));
        }
        all
    };
    ((0..size).map(all).collect(), fabric)
}

fn started(size: u32, setup: Setup) -> Vec<p2p::P2p> {
    let layers = start(
        transports(size, setup, devices().as_deref()).0,
        &config(size),
    );
    for (rank, layer) in layers.iter().enumerate() {
        for path in layer
            .paths()
            .iter()
            .filter(|path| path.used && path.transport != "self")
        {
            let by_shm = setup.0 == NODES.0 && path.peer as usize / 2 == rank / 2;
            assert_eq!(path.transport == "shm", by_shm, "{}: {path}", setup.0);
        }
    }
    layers
}

fn lengths(limit: &IbConfig) -> Vec<usize> {
    let mut lengths = vec![0, 1, 8, 63, 64, 65, 3500, 100_000, (1 << 20) + 1, 3 << 20];
    // Around the limits of an inline request, a block, a message, and long messages.
    for edge in [
        188,
        ib_btl::BLOCK,
        ib_btl::BLOCK * ib_btl::MESSAGE_BLOCKS,
        limit.long_from,
    ] {
        // Real verbs are emulated where this runs, so fewer lengths are tested.
        let step = if devices().is_some() { 13 } else { 3 };
        lengths.extend(
            (0..52)
                .step_by(step)
                .map(|less| edge.saturating_sub(less))
                .chain([edge + 1, edge + 2]),
        );
    }
    lengths
}

#[test]
fn every_length_in_every_configuration() {
    for setup in WAYS {
        let mut limits = IbConfig::new(0, 2, b"");
        setup.2(&mut limits);
        let holds = limits.held_from.is_some();
        let stats = each(started(2, *setup), setup.0, move |layer, comm| {
            for (round, length) in lengths(&limits).into_iter().enumerate() {
                if comm.rank() == 0 {
                    // In odd rounds the receive is posted first.
                    if round % 2 == 1 {
                        comm.recv(&mut [0; 0], 1, TAG + 1).unwrap();
                    }
                    comm.send(&pattern(length, round), 1, TAG).unwrap();
                    comm.ssend(&pattern(length, round + 7), 1, TAG).unwrap();
                } else {
                    let (mut first, mut second) = (vec![0; length], vec![0xee; length + 3]);
                    comm.scope(|s| {
                        let a = s.irecv(&mut first, 0, TAG)?;
                        let b = s.irecv(&mut second, Source::Any, Tag::Any)?;
                        if round % 2 == 1 {
                            s.isend(&[], 0, TAG + 1)?;
                        }
                        let status = b.wait()?;
                        assert_eq!((status.source, status.tag, status.length), (0, TAG, length));
                        assert_eq!(a.wait()?.length, length);
                        Ok(())
                    })
                    .unwrap();
                    assert!(
                        first == pattern(length, round),
                        "{}: {length} bytes",
                        setup.0
                    );
                    assert!(
                        second[..length] == pattern(length, round + 7),
                        "{}: {length} bytes",
                        setup.0
                    );
                    assert_eq!(second[length..], [0xee; 3]);
                }
            }
            layer.stats()
        });
        let by = if setup.0 == "get" {
            stats[1].by_get
        } else {
            stats[1].by_put
        };
        assert!(by > 5 && stats[0].eager_sent > 10, "{}: {stats:?}", setup.0);
        assert_eq!(stats[0].held_sent > 0, holds, "{}: {stats:?}", setup.0);
    }
}

/// Long messages in both directions with one buffer, which is registered at both ends.
#[test]
fn memory_is_used_in_both_directions() {
    let stats = each(started(2, WAYS[0]), WAYS[0].0, |layer, comm| {
        let (mine, mut theirs, other) = (pattern(300_000, 1), vec![0; 300_000], 1 - comm.rank());
        for round in 0..20 {
            // Including messages shorter than the buffer, and short messages only.
            let length = [300_000, 100_000, 40][round % 3];
            let send = || comm.send(&mine[..length], other, TAG).unwrap();
            if comm.rank() == 0 {
                send();
            }
            theirs.fill(0);
            assert_eq!(comm.recv(&mut theirs, other, TAG).unwrap().length, length);
            assert!(
                theirs[..length] == mine[..length]
                    && theirs[length..].iter().all(|byte| *byte == 0)
            );
            if comm.rank() == 1 {
                send();
            }
        }
        layer.stats()
    });
    for stats in stats {
        assert!(stats.by_put >= 12, "{stats:?}");
    }
}

#[test]
fn every_rank_exchanges_with_every_rank() {
    for setup in WAYS.iter().chain([&NODES]) {
        each(started(4, *setup), setup.0, move |_, comm| {
            let mine = comm.rank() as usize;
            for length in [0usize, 40, 5000, 20_000, 400_000] {
                let out: Vec<Vec<u8>> = (0..4).map(|to| pattern(length, mine * 10 + to)).collect();
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
                        *buffer == pattern(length, from * 10 + mine),
                        "{}: {length}",
                        setup.0
                    );
                }
                comm.barrier().unwrap();
            }
        });
    }
}

/// Many messages of random lengths in flight in each direction arrive complete, and in order for
/// each tag.
#[test]
fn random_traffic_arrives_in_order() {
    for (at, setup) in WAYS.iter().chain([&NODES]).enumerate() {
        each(started(3, *setup), setup.0, move |_, comm| {
            let (mine, count) = (
                comm.rank() as usize,
                if devices().is_some() { 30 } else { 120 },
            );
            let plan = |from: usize, to: usize| -> Vec<(i32, usize)> {
                let mut random = Random::new((at * 100 + from * 10 + to) as u64);
                let lengths = [0, 9, 180, 190, 3000, 4100, 16_000, 17_000, 70_000];
                (0..count)
                    .map(|_| (random.below(3), *random.pick(&lengths)))
                    .collect()
            };
            let others: Vec<usize> = (0..3).filter(|other| *other != mine).collect();
            let mut requests = Vec::new();
            for &to in &others {
                for (number, (tag, length)) in plan(mine, to).into_iter().enumerate() {
                    requests.push(
                        comm.isend_owned(pattern(length, number), to as u32, tag)
                            .unwrap(),
                    );
                }
            }
            // Receives tag by tag, so that messages of later tags wait.
            for tag in 0..3 {
                for &from in &others {
                    let due = plan(from, mine)
                        .into_iter()
                        .enumerate()
                        .filter(|(_, (of, _))| *of == tag);
                    for (number, (_, length)) in due {
                        let mut buffer = vec![0; 80_000];
                        assert_eq!(
                            comm.recv(&mut buffer, from as u32, tag).unwrap().length,
                            length
                        );
                        assert!(
                            buffer[..length] == pattern(length, number),
                            "{}: {number}",
                            setup.0
                        );
                    }
                }
            }
            for request in requests {
                request.wait().0.unwrap();
            }
        });
    }
}

#[test]
fn a_death_ends_only_operations_with_the_dead_rank() {
    for setup in WAYS {
        let (transports, fabric) = transports(3, *setup, None);
        let rails = setup.1;
        each(start(transports, &config(3)), setup.0, move |_, comm| {
            comm.barrier().unwrap();
            if comm.rank() == 2 {
                (0..rails).for_each(|rail| fabric.kill(2 * rails + rail));
                return;
            }
            let mut buffer = vec![0; 100_000];
            let lost = comm.recv(&mut buffer, 2, TAG);
            assert!(
                matches!(lost, Err(Error::PeerFailed { peer: 2, .. })),
                "{}: {lost:?}",
                setup.0
            );
            let other = 1 - comm.rank();
            let out = pattern(100_000, comm.rank() as usize);
            comm.sendrecv(&out, other, TAG, &mut buffer, other, TAG)
                .unwrap();
            assert!(buffer == pattern(100_000, other as usize), "{}", setup.0);
        });
    }
}
