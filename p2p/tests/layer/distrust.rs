//! Memory lent to a peer, answers to unknown requests, data that does not fit, transports that work
//! in one direction only.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use crate::common::{HANG, config, loopbacks, start};
use crate::passed_on::passed_on;
use btl::{
    Btl, Events, HeldSends, NoticedPuts, PeerError, PeerInfo, PendingPeers, Rank, Region,
    RegisterError, SendError, Started, Tx, Unreachable,
};
use btl_conformance::loopback::{self, Limits};
use p2p::wire::{Header, Sequenced};
use p2p::{Config, Error, P2p, REACH_BYTES, RequestId, Setup, Tag, TransportAddress};

/// Loopback that misbehaves on request.
#[derive(Debug)]
struct Odd {
    inner: Box<dyn Btl>,
    /// Result of `drop_peer`: the peer is out of reach.
    quiet: Arc<AtomicBool>,
    /// Number of calls of `drop_peer`.
    asked: Arc<AtomicU32>,
    /// The transport reaches no peer.
    unreachable: bool,
}

fn odd(inner: Box<dyn Btl>) -> Odd {
    Odd {
        inner,
        quiet: Arc::new(AtomicBool::new(true)),
        asked: Arc::default(),
        unreachable: false,
    }
}

impl Tx for Odd {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        self.inner.send(peer, header, body)
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
        // SAFETY: guaranteed by the caller.
        unsafe { self.inner.put(peer, local, length, key, offset, token) }
    }
}

impl HeldSends for Odd {}

impl NoticedPuts for Odd {}

impl PendingPeers for Odd {}

impl Btl for Odd {
    passed_on!();

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        if self.unreachable {
            return Err(Unreachable {
                reason: "no memory may be locked".into(),
            });
        }
        self.inner.add_peer(peer, address)
    }
    fn progress(&mut self, events: &mut dyn Events) -> usize {
        self.inner.progress(events)
    }
    unsafe fn register(&mut self, memory: *mut u8, length: usize) -> Result<Region, RegisterError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.inner.register(memory, length) }
    }

    fn drop_peer(&mut self, peer: Rank) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.quiet.load(Ordering::Relaxed) && self.inner.drop_peer(peer)
    }
}

/// The messages received by a bare transport.
#[derive(Default)]
struct Heard(Vec<(Vec<u8>, Vec<u8>)>);

impl Events for Heard {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, header: &[u8], body: &[u8]) {
        self.0.push((header.to_vec(), body.to_vec()));
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, _: Rank, _: PeerError) {}
}

/// Starts rank 0 as a layer and rank 1 as a bare transport.
fn with_bare(limits: Limits) -> (P2p, Box<dyn Btl>, Arc<AtomicBool>, Arc<AtomicU32>) {
    let [inner, mut bare] = <[_; 2]>::try_from(loopback::job(2, limits)).unwrap();
    let card = |btl: &dyn Btl| TransportAddress {
        transport: btl.name().into(),
        address: btl.address(),
    };
    let (own, other) = (card(&inner), card(&bare));
    bare.add_peer(0, &own.address).unwrap();
    let odd = odd(Box::new(inner));
    let (quiet, asked) = (Arc::clone(&odd.quiet), Arc::clone(&odd.asked));
    let setup = Setup {
        rank: 0,
        size: 2,
        transports: vec![Box::new(odd)],
        // Bounds the answers that may wait, too.
        config: Config {
            unexpected_bytes: 8 << 20,
            ..config(2)
        },
    };
    (
        P2p::start(setup, |_| Ok(vec![other.clone()])).unwrap(),
        Box::new(bare),
        quiet,
        asked,
    )
}

fn until(layer: &P2p, what: &str, mut over: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !over() {
        layer.progress();
        assert!(begin.elapsed() < HANG, "{what} hangs");
    }
}

#[test]
fn memory_is_returned_once_the_peer_cannot_write_it() {
    let (layer, mut bare, quiet, asked) = with_bare(Limits {
        get: false,
        ..Limits::default()
    });
    let receive = layer.world().irecv_owned(vec![0; 100_000], 1, 1).unwrap();
    let bystander = layer.world().irecv_owned(vec![0; 10], 1, 2).unwrap();
    let envelope = Sequenced {
        flags: 0,
        sequence: 0,
        context: 0,
        tag: 1,
        data: None,
    };
    bare.send(0, Header::Rts(envelope, 100_000, 77).encode().bytes(), &[])
        .unwrap();
    let mut heard = Heard::default();
    until(&layer, "the CTS for a put", || {
        bare.progress(&mut heard);
        !heard.0.is_empty()
    });
    assert!(matches!(
        Header::decode(&heard.0[0].0),
        Ok(Header::Cts { put: true, .. })
    ));
    quiet.store(false, Ordering::Relaxed);
    bare.send(0, b"nonsense", &[]).unwrap();
    until(&layer, "the end of requests without lent memory", || {
        bystander.is_complete().unwrap()
    });
    let before = asked.load(Ordering::Relaxed);
    for _ in 0..100 {
        layer.progress();
        assert!(!receive.is_complete().unwrap(), "the peer may be writing");
    }
    assert!(
        asked.load(Ordering::Relaxed) >= before + 100,
        "asked in every poll"
    );
    quiet.store(true, Ordering::Relaxed);
    until(&layer, "the end", || receive.is_complete().unwrap());
    let failed = |result| {
        matches!(
            result,
            Err(Error::PeerFailed {
                peer: 1,
                error: PeerError::Violation(_)
            })
        )
    };
    assert!(failed(receive.wait().0) && failed(bystander.wait().0));
    layer.finalize().unwrap();
}

#[test]
fn answers_for_a_peer_that_reads_none_are_bounded() {
    let (layer, mut bare, ..) = with_bare(Limits::default());
    let begin = Instant::now();
    let mut sent = 0u32;
    let mut buffer = [0; 1];
    // It knows its credit without reading it, and requests confirmation of every message.
    while layer.stats().failed_peers == 0 {
        let flags = if sent % 1024 == 1023 { 1 } else { 0 };
        let envelope = Sequenced {
            flags,
            sequence: sent as u16,
            context: 0,
            tag: 1,
            data: None,
        };
        match bare.send(0, Header::Eager(envelope, Some(1)).encode().bytes(), &[]) {
            Ok(()) => {
                sent += 1;
                let _ = layer.world().recv(&mut buffer, 1, Tag::Any);
            }
            Err(_) => drop(layer.progress()),
        }
        assert!(
            begin.elapsed() < HANG && sent < 200_000,
            "{sent} answers wait"
        );
    }
    let error = layer.world().recv(&mut buffer, 1, 1).unwrap_err();
    assert!(error.to_string().contains("answers"), "{error}");
    assert!(sent > 8192 * 4, "{sent} answers, more than any peer needs");
}

/// More messages wait than credit pays for at once, and the sender of all of them computes.
#[test]
fn a_peer_that_waits_for_many_confirmations_need_not_read_them_meanwhile() {
    const COUNT: usize = 70_000;
    static BODY: [u8; 8] = [1; 8];
    let layers = start(loopbacks(2, Limits::default()).0, &config(2));
    let sends: Vec<RequestId> = (0..COUNT)
        .map(|_| {
            // SAFETY: static.
            unsafe { layers[0].world().issend_raw(BODY.as_ptr(), 8, 1, 1) }.unwrap()
        })
        .collect();
    let begin = Instant::now();
    while layers[1].stats().unexpected_now < COUNT {
        layers.iter().for_each(|layer| {
            layer.progress();
        });
        assert!(begin.elapsed() < HANG, "{:?}", layers[1].stats());
    }
    for n in 0..COUNT {
        let received = layers[1].world().recv(&mut [0; 8], 0, 1);
        assert_eq!(received.map(|status| status.length), Ok(8), "message {n}");
    }
    for (n, send) in sends.into_iter().enumerate() {
        let over = loop {
            layers[1].progress();
            if let Some(over) = layers[0].test(send).transpose() {
                break over;
            }
            assert!(begin.elapsed() < HANG, "confirmation {n}");
        };
        assert!(over.is_ok(), "confirmation {n}: {over:?}");
    }
}

/// Starts ranks of which rank 1 cannot use the better one of two transports, while rank 0 could.
fn one_way(agreed: bool) -> [P2p; 2] {
    let [better, worse] = [9, 1].map(|exclusivity| {
        let name = if exclusivity == 9 { "better" } else { "worse" };
        loopbacks(
            2,
            Limits {
                name,
                exclusivity,
                ..Limits::default()
            },
        )
        .0
    });
    let mut setups =
        better
            .into_iter()
            .zip(worse)
            .zip(0..)
            .map(|((mut better, mut worse), rank)| {
                let better = Odd {
                    unreachable: rank == 1,
                    ..odd(better.remove(0))
                };
                let transports: Vec<Box<dyn Btl>> = vec![Box::new(better), worse.remove(0)];
                Setup {
                    rank,
                    size: 2,
                    transports,
                    config: config(2),
                }
            });
    let setups = [setups.next().unwrap(), setups.next().unwrap()];
    let cards = [P2p::addresses(&setups[0]), P2p::addresses(&setups[1])];
    let meeting = std::sync::Barrier::new(2);
    let said = std::sync::Mutex::new([Vec::new(), Vec::new()]);
    std::thread::scope(|threads| {
        setups
            .map(|setup| {
                let (cards, meeting, said) = (&cards, &meeting, &said);
                threads.spawn(move || {
                    let rank = setup.rank as usize;
                    let cards = |peer: Rank| Ok(cards[peer as usize].clone());
                    if !agreed {
                        return P2p::start(setup, cards).unwrap();
                    }
                    P2p::start_agreed(setup, cards, |mine| {
                        said.lock().unwrap()[rank].clone_from(&mine.all);
                        meeting.wait();
                        let part = rank * REACH_BYTES..(rank + 1) * REACH_BYTES;
                        let said = said.lock().unwrap();
                        let parts = said.iter().map(|said| said[part.clone()].to_vec());
                        Ok(Some(parts.flatten().collect()))
                    })
                    .unwrap()
                })
            })
            .map(|thread| thread.join().unwrap())
    })
}

/// Rank 0 reaches the other one over a lower transport, too, which does not matter.
#[test]
fn transports_of_a_lower_class_are_not_compared() {
    let loopbacks = |name, exclusivity| {
        let limits = Limits {
            name,
            exclusivity,
            ..Limits::default().plain()
        };
        loopbacks(2, limits).0
    };
    let (upper, lower) = (loopbacks("upper", 1000), loopbacks("lower", 499));
    let setups = upper.into_iter().zip(lower).zip(0..);
    let setups: Vec<Setup> = setups
        .map(|((mut upper, mut lower), rank)| {
            let lower = Odd {
                unreachable: rank == 1,
                ..odd(lower.remove(0))
            };
            Setup {
                rank,
                size: 2,
                transports: vec![upper.remove(0), Box::new(lower)],
                config: config(2),
            }
        })
        .collect();
    let all: Vec<_> = setups.iter().map(P2p::addresses).collect();
    let meeting = std::sync::Barrier::new(2);
    let digests = std::sync::Mutex::new([None; 2]);
    let start = |setup: Setup| {
        let rank = setup.rank;
        let addresses = |peer: Rank| Ok(all[peer as usize].clone());
        let started = P2p::start_agreed(setup, addresses, |mine| {
            digests.lock().unwrap()[rank as usize] = p2p::reach_digest(rank, &mine.best);
            assert_eq!(mine.all == mine.best, rank == 1);
            meeting.wait();
            let [one, other] = *digests.lock().unwrap();
            assert!(one.is_some() && one == other, "mutual");
            Ok(None)
        });
        started.unwrap()
    };
    let layers: Vec<P2p> = std::thread::scope(|threads| {
        let started: Vec<_> = setups
            .into_iter()
            .map(|setup| threads.spawn(|| start(setup)))
            .collect();
        let all = started.into_iter().map(|thread| thread.join().unwrap());
        all.collect()
    });
    let path = layers[0]
        .paths()
        .into_iter()
        .find(|path| path.transport == "lower");
    let path = path.unwrap();
    assert!(
        !path.used && path.reason.contains("much higher exclusivity"),
        "{path:?}"
    );
    let send = layers[0].world().isend_owned(vec![7; 10], 1, 1).unwrap();
    layers[1].world().recv(&mut [0; 10], 0, 1).unwrap();
    send.wait().0.unwrap();
}

#[test]
fn a_transport_that_works_in_one_direction_is_not_used() {
    let layers = one_way(true);
    for (rank, layer) in layers.iter().enumerate() {
        let paths = layer.paths();
        let used: Vec<&str> = paths
            .iter()
            .filter(|path| path.used && path.peer as usize != rank)
            .map(|path| &*path.transport)
            .collect();
        assert_eq!(used, ["worse"], "{paths:?}");
    }
    let refused = layers[0]
        .paths()
        .into_iter()
        .find(|path| path.transport == "better")
        .unwrap();
    assert!(
        refused.reason.contains("the peer cannot use it"),
        "{refused:?}"
    );
    let send = layers[0].world().isend_owned(vec![7; 10], 1, 1).unwrap();
    let receive = layers[1].world().irecv_owned(vec![0; 10], 0, 1).unwrap();
    until(&layers[0], "the message", || {
        layers[1].progress();
        receive.is_complete().unwrap()
    });
    send.wait().0.unwrap();
    assert_eq!(receive.wait().0.unwrap().length, 10);
    // Without agreement, one side uses a transport on which the other does not receive.
    let layers = one_way(false);
    assert!(
        layers[0]
            .paths()
            .iter()
            .any(|path| path.used && path.transport == "better")
    );
}
