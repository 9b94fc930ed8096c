//! Memory under pressure, skew, refusals of transports, several threads, sleeping, reports.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use crate::common::{HANG, config, each, loopbacks, pattern, run, start};
use crate::passed_on::passed_on;
use btl::{
    Btl, Events, HeldSends, NoticedPuts, PeerInfo, PendingPeers, Rank, Region, RegisterError,
    SendError, Started, Tx, Unreachable,
};
use btl_conformance::loopback::{self, Limits};
use p2p::{
    Config, Error, NotStarted, OwnedRequest, P2p, Setup, Source, StartError, Tag, TransportAddress,
    Tuning,
};

/// The minimum limit: eight windows for the one peer.
const LIMIT: usize = 8 << 20;

#[test]
fn a_flood_without_receives_is_held_back_and_arrives_in_order() {
    for length in [8usize, 3000] {
        let config = Config {
            unexpected_bytes: 64 << 10,
            ..config(2)
        };
        let layers = start(loopbacks(2, Limits::default()).0, &config);
        let (sender, receiver) = (layers[0].world(), layers[1].world());
        let count = 3 * LIMIT / (256 + length);
        let sends: Vec<OwnedRequest> = (0..count)
            .map(|n| sender.isend_owned(pattern(length, n), 1, 1).unwrap())
            .collect();
        for _ in 0..20_000 {
            layers[0].progress();
            layers[1].progress();
        }
        let held = layers[1].stats();
        assert!(held.unexpected_bytes > LIMIT / 8, "{held:?}");
        assert!(held.unexpected_peak < LIMIT, "{held:?}");
        assert!(held.pressed >= 1 && layers[0].stats().pressed_by_peers >= 1);
        assert!(
            sends.iter().any(|send| !send.is_complete().unwrap()),
            "the rest waits at the sender"
        );
        let mut receives = Vec::new();
        for n in 0..count {
            let receive = receiver.irecv_owned(vec![0; length], 0, Tag::Any).unwrap();
            let start = Instant::now();
            while !receive.is_complete().unwrap() {
                layers[0].progress();
                assert!(start.elapsed() < HANG, "message {n} does not arrive");
            }
            receives.push(receive);
        }
        for (n, receive) in receives.into_iter().enumerate() {
            let (result, buffer) = receive.wait();
            result.unwrap();
            assert!(buffer == pattern(length, n), "message {n}");
        }
        for send in sends {
            send.wait().0.unwrap();
        }
        // Afterwards the next message is sent at once again.
        let (before, now) = (layers[0].stats().eager_sent, layers[1].stats());
        assert_eq!((now.unexpected_now, now.unexpected_bytes), (0, 0));
        sender.send(&[1; 3000], 1, 1).unwrap();
        assert_eq!(layers[0].stats().eager_sent, before + 1);
    }
}

#[test]
fn one_flooding_peer_does_not_starve_another() {
    let config = Config {
        unexpected_bytes: 64 << 10,
        ..config(3)
    };
    let layers = start(loopbacks(3, Limits::default()).0, &config);
    let comms: Vec<_> = layers.iter().map(P2p::world).collect();
    let flood: Vec<OwnedRequest> = (0..12_000)
        .map(|_| comms[0].isend_owned(vec![1; 3000], 2, 1).unwrap())
        .collect();
    let poll = || layers.iter().map(P2p::progress).sum::<usize>();
    (0..20_000).for_each(|_| {
        poll();
    });
    for n in 0..500 {
        let send = comms[1].isend_owned(pattern(1000, n), 2, 2).unwrap();
        let receive = comms[2].irecv_owned(vec![0; 1000], 1, 2).unwrap();
        let start = Instant::now();
        while !(send.is_complete().unwrap() && receive.is_complete().unwrap()) {
            poll();
            assert!(start.elapsed() < HANG);
        }
        assert!(receive.wait().1 == pattern(1000, n));
    }
    drop(flood);
}

#[test]
fn a_peer_that_is_held_back_goes_on_when_others_make_room() {
    let config = Config {
        unexpected_bytes: 64 << 10,
        ..config(3)
    };
    let layers = start(loopbacks(3, Limits::default()).0, &config);
    let comms: Vec<_> = layers.iter().map(P2p::world).collect();
    // The memory of rank 2 is full of messages to itself.
    let own: Vec<_> = (0..100)
        .map(|_| comms[2].isend_owned(vec![1; 60 << 10], 2, 3).unwrap())
        .collect();
    let mut flood: Vec<_> = (0..1000)
        .map(|_| comms[0].isend_owned(vec![1; 3000], 2, 1).unwrap())
        .collect();
    flood.push(comms[0].isend_owned(vec![2; 10], 2, 2).unwrap());
    let poll = || layers.iter().map(P2p::progress).sum::<usize>();
    (0..20_000).for_each(|_| {
        poll();
    });
    assert!(!flood[1000].is_complete().unwrap(), "it is not held back");
    // Rank 2 receives its messages to itself, and then only the last message of rank 0.
    let mut room = vec![0; 60 << 10];
    for _ in 0..100 {
        comms[2].recv(&mut room, 2, 3).unwrap();
    }
    let last = comms[2].irecv_owned(vec![0; 10], 0, 2).unwrap();
    let start = Instant::now();
    while !last.is_complete().unwrap() {
        poll();
        assert!(start.elapsed() < HANG, "it waits for credit");
    }
    drop((own, flood));
}

#[test]
fn a_receive_outlives_its_communicator() {
    let layers = start(loopbacks(2, Limits::default()).0, &config(2));
    each(layers, "a freed communicator", |_, comm| {
        let other = comm.dup().unwrap();
        for length in [100, 1 << 20] {
            let other = other.dup().unwrap();
            if comm.rank() == 0 {
                let receive = other.irecv_owned(vec![0; length], 1, 7).unwrap();
                let any = other.irecv_owned(vec![0; length], Source::Any, 8).unwrap();
                drop(other);
                comm.barrier().unwrap();
                for (receive, n) in [(receive, 1), (any, 2)] {
                    let (result, buffer) = receive.wait();
                    result.unwrap();
                    assert!(buffer == pattern(length, n), "message {n}");
                }
            } else {
                comm.barrier().unwrap();
                other.send(&pattern(length, 1), 0, 7).unwrap();
                other.send(&pattern(length, 2), 0, 8).unwrap();
            }
        }
    });
}

#[test]
fn messages_and_communicators_may_be_dropped_after_the_end() {
    let layers = start(loopbacks(1, Limits::default()).0, &config(1));
    let comm = layers[0].world();
    let other = comm.dup().unwrap();
    let sends = [&comm, &other].map(|comm| comm.isend_owned(vec![1; 100_000], 0, 7).unwrap());
    let message = comm.mprobe(Source::Any, 7).unwrap();
    let _ = layers[0].clone().finalize();
    for send in sends {
        assert!(matches!(send.wait().0, Err(Error::Closed)));
    }
    drop((message, other));
}

#[test]
fn a_late_receiver_reports_lateness_and_its_end() {
    let config = Config {
        tuning: Tuning {
            skew_queue: 4,
            skew_after: Duration::from_millis(5),
            skew_rest: Duration::from_millis(5),
            ..Tuning::default()
        },
        ..config(2)
    };
    let limits = Limits {
        eager: 100,
        eager_skewed: 5000,
        ..Limits::default()
    };
    let layers = start(loopbacks(2, limits).0, &config);
    let (sender, receiver) = (layers[0].world(), layers[1].world());
    let poll = || {
        layers[0].progress();
        layers[1].progress();
    };
    let medium = || sender.isend_owned(vec![1; 4000], 1, 1).unwrap();
    let receive = || {
        let receive = receiver.irecv_owned(vec![0; 4000], 0, 1).unwrap();
        let start = Instant::now();
        while !receive.is_complete().unwrap() {
            poll();
            assert!(start.elapsed() < HANG);
        }
    };
    // Not late: sent by rendezvous, and complete only when received.
    let first = medium();
    (0..50).for_each(|_| poll());
    assert!(!first.is_complete().unwrap());
    receive();
    // Late: the queue is long, and stays so.
    let waiting: Vec<_> = (0..20).map(|_| medium()).collect();
    (0..50).for_each(|_| poll());
    assert_eq!(
        layers[1].stats().skew_on,
        0,
        "long, but not for long enough"
    );
    std::thread::sleep(Duration::from_millis(6));
    receive();
    (0..50).for_each(|_| poll());
    assert_eq!(
        (layers[1].stats().skew_on, layers[0].stats().skewed_peers),
        (1, 1)
    );
    // Now a medium message completes at once for its sender.
    let next = medium();
    (0..50).for_each(|_| poll());
    assert!(next.is_complete().unwrap());
    (0..20).for_each(|_| receive());
    assert!(waiting.iter().all(|send| send.is_complete().unwrap()));
    // The receiver has caught up, for a while.
    let start = Instant::now();
    while layers[1].stats().skew_off == 0 {
        poll();
        assert!(start.elapsed() < HANG, "skew does not end");
    }
    (0..50).for_each(|_| poll());
    let last = medium();
    (0..50).for_each(|_| poll());
    assert!(!last.is_complete().unwrap(), "sent by rendezvous again");
    receive();
    let off = Config {
        skew: false,
        ..config
    };
    let layers = start_again(&off, limits);
    let sends: Vec<_> = (0..20)
        .map(|_| layers[0].world().isend_owned(vec![1; 4000], 1, 1).unwrap())
        .collect();
    for _ in 0..20 {
        layers[0].progress();
        layers[1].progress();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(layers[1].stats().skew_on, 0, "switched off");
    drop(sends);
}

fn start_again(config: &Config, limits: Limits) -> Vec<P2p> {
    start(loopbacks(2, limits).0, config)
}

/// Transport that refuses one-sided operations after a number of them.
#[derive(Debug)]
struct Refusing {
    inner: Box<dyn Btl>,
    good: usize,
    register: bool,
}

impl Tx for Refusing {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        self.inner.send(peer, header, body)
    }
    unsafe fn get(
        &mut self,
        peer: Rank,
        local: *mut u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        if self.good == 0 {
            return Err(SendError::Unsupported);
        }
        self.good -= 1;
        // SAFETY: guaranteed by the caller.
        unsafe { self.inner.get(peer, local, length, key, offset, token) }
    }
    unsafe fn put(
        &mut self,
        peer: Rank,
        local: *const u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        if self.good == 0 {
            return Err(SendError::BadKey);
        }
        self.good -= 1;
        // SAFETY: guaranteed by the caller.
        unsafe { self.inner.put(peer, local, length, key, offset, token) }
    }
}

impl HeldSends for Refusing {}

impl NoticedPuts for Refusing {}

impl PendingPeers for Refusing {}

impl Btl for Refusing {
    passed_on!();

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        self.inner.add_peer(peer, address)
    }
    fn progress(&mut self, events: &mut dyn Events) -> usize {
        self.inner.progress(events)
    }
    unsafe fn register(&mut self, memory: *mut u8, length: usize) -> Result<Region, RegisterError> {
        if !self.register {
            return Err(RegisterError::Refused("no memory may be locked".into()));
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.inner.register(memory, length) }
    }
}

#[test]
fn refused_operations_fall_back_to_fragments() {
    for get in [true, false] {
        for pending in [true, false] {
            for (good, register) in [(0, true), (1, true), (2, true), (9, false)] {
                let limits = Limits {
                    get,
                    put: !get,
                    pending,
                    ..Limits::default()
                };
                let transports = loopback::job(2, limits)
                    .into_iter()
                    .map(|btl| {
                        vec![Box::new(Refusing {
                            inner: Box::new(btl),
                            good,
                            register,
                        }) as Box<dyn Btl>]
                    })
                    .collect();
                let config = Config {
                    tuning: Tuning {
                        one_sided_part: 30_000,
                        ..Tuning::default()
                    },
                    ..config(2)
                };
                let stats = each(start(transports, &config), "refusing", |layer, comm| {
                    let mut buffer = vec![0; 200_000];
                    if comm.rank() == 0 {
                        comm.send(&pattern(200_000, 3), 1, 1).unwrap();
                    } else {
                        comm.recv(&mut buffer, 0, 1).unwrap();
                        assert!(buffer == pattern(200_000, 3));
                    }
                    comm.barrier().unwrap();
                    layer.stats()
                });
                assert_eq!(stats[1].by_fragments, 1, "get {get}, {good} good ones");
                let fallbacks = stats[0].fallbacks + stats[1].fallbacks;
                // Memory that cannot be registered for a get is never offered.
                assert_eq!(
                    fallbacks,
                    u64::from(register || !get),
                    "get {get}, {good} good ones"
                );
            }
        }
    }
}

#[test]
fn several_threads_use_one_layer() {
    run(2, Limits::default(), &config(2), "threads", |_, comm| {
        let other = 1 - comm.rank();
        std::thread::scope(|threads| {
            for tag in 0..4 {
                let comm = comm.clone();
                threads.spawn(move || {
                    for n in 0..150 {
                        let length = [8, 5000, 70_000][n % 3];
                        let mut buffer = vec![0; length];
                        let out = pattern(length, n + tag as usize);
                        let status = comm
                            .sendrecv(&out, other, tag, &mut buffer, other, tag)
                            .unwrap();
                        assert_eq!(status.length, length);
                        assert!(buffer == out);
                    }
                });
            }
        });
    });
}

#[test]
fn sleepers_are_woken_by_messages_and_by_other_threads() {
    // Sleeps at once.
    let config = Config {
        spin: Some(Duration::ZERO),
        ..config(2)
    };
    let slept = run(2, Limits::default(), &config, "sleep", |layer, comm| {
        let other = 1 - comm.rank();
        std::thread::scope(|threads| {
            let first = comm.clone();
            // Waits for a message that only the second thread sends: both sleep, one as follower of
            // the other.
            threads.spawn(move || first.recv(&mut [0; 8], first.rank(), 5).unwrap());
            let second = comm.clone();
            threads.spawn(move || {
                for n in 0..20 {
                    let mut buffer = [0; 8];
                    if (n + second.rank()) % 2 == 0 {
                        std::thread::sleep(Duration::from_millis(5));
                        second.send(&[n as u8; 8], other, 1).unwrap();
                    } else {
                        second.recv(&mut buffer, other, 1).unwrap();
                        assert_eq!(buffer, [n as u8; 8]);
                    }
                }
                second.send(&[1; 8], second.rank(), 5).unwrap();
            });
        });
        layer.stats().slept
    });
    assert!(slept.iter().all(|slept| *slept > 0), "{slept:?}");
}

#[test]
fn transports_are_chosen_with_a_reason() {
    let kinds = [
        ("slow", 100, 9000, 1000),
        ("fast", 1000, 500, 10_000),
        ("wide", 1000, 700, 20_000),
        ("thin", 1000, 600, 100),
    ];
    let mut transports: Vec<Vec<Box<dyn Btl>>> = vec![Vec::new(), Vec::new()];
    for (name, exclusivity, latency_ns, bandwidth) in kinds {
        let limits = Limits {
            name,
            exclusivity,
            latency_ns,
            bandwidth,
            ..Limits::default().plain()
        };
        for (rank, btl) in loopback::job(2, limits).into_iter().enumerate() {
            transports[rank].push(Box::new(btl));
        }
    }
    let stats = each(start(transports, &config(2)), "rails", |layer, comm| {
        let lines: Vec<String> = layer.paths().iter().map(ToString::to_string).collect();
        let line = |name: &str| {
            lines
                .iter()
                .find(|line| line.contains(&format!("by {name}:")))
                .unwrap()
                .clone()
        };
        assert_eq!(lines.len(), 5);
        assert!(line("self").contains(": used"), "{lines:#?}");
        assert!(
            line("fast").contains(
                ": used, exclusivity 1000 is the highest, and its latency of 500 ns the least"
            ),
            "{lines:#?}"
        );
        assert!(
            line("wide").contains(": used, same exclusivity as fast"),
            "{lines:#?}"
        );
        assert!(
            line("thin").contains(": not used, 100 MB/s are less than half"),
            "{lines:#?}"
        );
        assert!(
            line("slow").contains(": not used, fast reaches it with higher exclusivity"),
            "{lines:#?}"
        );
        // Striped and in order.
        let count = 3000;
        if comm.rank() == 0 {
            for n in 0..count {
                comm.send(&pattern([4000usize, 5000, 8, 300_000][n % 4], n), 1, 1)
                    .unwrap();
            }
        } else {
            let mut buffer = vec![0; 300_000];
            for n in 0..count {
                let length = comm.recv(&mut buffer, 0, Tag::Any).unwrap().length;
                assert!(
                    buffer[..length] == pattern([4000usize, 5000, 8, 300_000][n % 4], n),
                    "message {n}"
                );
            }
        }
        comm.barrier().unwrap();
        layer.stats()
    });
    assert_eq!(stats[1].failed_peers, 0);
}

#[test]
fn a_job_that_cannot_start_reports_the_reason() {
    let setup = |size| Setup {
        rank: 0,
        size,
        transports: vec![Box::new(loopback::job(2, Limits::default()).remove(0)) as Box<dyn Btl>],
        config: Config::default(),
    };
    let error = P2p::start(setup(2), |_| Err("the launcher is gone".into())).unwrap_err();
    assert_eq!(
        error.error,
        StartError::NoAddresses {
            peer: 1,
            reason: "the launcher is gone".into()
        }
    );
    // Others may still access the transports, so the caller determines their lifetime.
    assert_eq!(
        error
            .transports
            .iter()
            .map(|btl| btl.name())
            .collect::<Vec<_>>(),
        ["loopback"]
    );
    let card = |address: Vec<u8>| {
        vec![TransportAddress {
            transport: "loopback".into(),
            address,
        }]
    };
    for address in [vec![], vec![1; 24], vec![0; 5000]] {
        let error = P2p::start(setup(2), |_| Ok(card(address.clone()))).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error.error, StartError::Unreachable { peer: 1, .. })
                && text.contains("loopback: "),
            "{text}"
        );
    }
    let error = P2p::start(setup(2), |_| Ok(Vec::new())).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("loopback: the peer has no such transport"),
        "{error}"
    );
    let invalid = |started| {
        matches!(
            started,
            Err(NotStarted {
                error: StartError::Invalid(_),
                ..
            })
        )
    };
    assert!(invalid(P2p::start(setup(0), |_| Ok(Vec::new()))));
    let tiny = Setup {
        config: Config {
            unexpected_bytes: 10,
            ..Config::default()
        },
        ..setup(1)
    };
    assert!(invalid(P2p::start(tiny, |_| Ok(Vec::new()))));
    let alone = P2p::start(setup(1), |_| Err("not called".into())).unwrap();
    assert_eq!(
        alone.world().recv(&mut [], 1, 0),
        Err(Error::InvalidRank { rank: 1, size: 1 })
    );
    assert_eq!(alone.world().iprobe(Source::Any, Tag::Any), Ok(None));
}
