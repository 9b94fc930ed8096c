//! The conformance suite over the loopback transport with faults, and tests of the hostile faults,
//! which the suite would not pass.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use btl::{Btl, Events, PeerError, Rank, SendError, Tx};
use btl_conformance::faulty::{Faults, Faulty};
use btl_conformance::loopback::{self, Limits};
use btl_conformance::suite::{Harness, Job, Options, threads};

struct FaultyLoopback {
    name: String,
    limits: Limits,
    faults: Faults,
    /// Differs for each rank of each job.
    seed: AtomicU64,
}

impl Harness for FaultyLoopback {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn job(&self, size: u32) -> Result<Job, String> {
        let ranks = loopback::job(size, self.limits);
        let killer = ranks[0].killer();
        let mut job = Job::new(ranks.into_iter().map(|rank| {
            let seed = self.seed.fetch_add(1, Ordering::Relaxed);
            Faulty::new(Box::new(rank), seed, self.faults)
        }));
        job.kill = Some(Arc::new(move |rank| killer.kill(rank)));
        Ok(job)
    }

    fn options(&self) -> Options {
        Options {
            messages: 4000,
            rounds: 400,
            ..Options::default()
        }
    }
}

/// Runs the suite with all faults and three seeds.
fn conforms(sort: &str, limits: Limits) {
    for seed in [1, 1000, 77_777] {
        let name = format!("faulty loopback, {sort}, seed {seed}");
        let seed = AtomicU64::new(seed);
        threads(&FaultyLoopback {
            name,
            limits,
            faults: Faults::allowed(),
            seed,
        })
        .verdict()
        .unwrap();
    }
}

#[test]
fn with_room() {
    conforms("with room", Limits::default());
}

#[test]
fn tight() {
    conforms("tight", Limits::tight());
}

#[test]
fn done_becomes_pending() {
    conforms(
        "one-sided at once",
        Limits {
            pending: false,
            ..Limits::default()
        },
    );
}

#[test]
fn messages_only() {
    conforms("messages only", Limits::default().plain());
}

/// Events of one rank, in order.
#[derive(Default)]
struct EventLog(Vec<String>);

impl Events for EventLog {
    fn message(&mut self, _: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        self.0.push(format!("message {peer} {header:?} {body:?}"));
    }

    fn completed(&mut self, _: &mut dyn Tx, token: u64, result: Result<(), PeerError>) {
        self.0.push(format!("completed {token} {}", result.is_ok()));
    }

    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        self.0.push(format!("failed {peer}: {error}"));
    }
}

/// Returns two ranks that have added each other; the first has faults.
fn pair(limits: Limits, seed: u64, faults: Faults) -> (Faulty, loopback::LoopbackBtl) {
    let mut ranks = loopback::job(2, limits);
    let (mut right, left) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let mut left = Faulty::new(Box::new(left), seed, faults);
    for rank in 0..2 {
        let address = if rank == 0 {
            left.address()
        } else {
            right.address()
        };
        left.add_peer(rank, &address).unwrap();
        right.add_peer(rank, &address).unwrap();
    }
    (left, right)
}

/// Exchanges 200 messages each way and returns the events of both sides.
fn script(seed: u64, faults: Faults) -> (Vec<String>, u64) {
    let (mut left, mut right) = pair(Limits::default().plain(), seed, faults);
    let mut log = EventLog::default();
    for number in 0u8..200 {
        let result = left.send(1, &[number], &[IoSlice::new(&[1, 2, 3])]);
        log.0.push(format!("send {result:?}"));
        while right.send(0, &[number], &[IoSlice::new(&[4])]).is_err() {
            let done = left.progress(&mut log);
            log.0.push(format!("progress {done}"));
        }
        left.progress(&mut log);
        right.progress(&mut log);
    }
    for _ in 0..3000 {
        left.progress(&mut log);
        right.progress(&mut log);
    }
    (log.0, left.made())
}

#[test]
fn equal_seeds_give_equal_faults() {
    let (first, made) = script(42, Faults::allowed());
    assert!(made > 50, "{made} faults");
    assert_eq!((first.clone(), made), script(42, Faults::allowed()));
    assert_ne!(first, script(43, Faults::allowed()).0);
    assert_eq!(script(42, Faults::default()).1, 0);
}

#[test]
fn only_headers_are_corrupted_and_truncated() {
    for faults in [
        Faults {
            corrupt: 500,
            ..Faults::default()
        },
        Faults {
            truncate: 500,
            ..Faults::default()
        },
    ] {
        let (mut left, mut right) = pair(
            Limits {
                entries: 200,
                ..Limits::default()
            },
            3,
            faults,
        );
        for _ in 0..100 {
            right
                .send(0, &[0x55; 20], &[IoSlice::new(b"body")])
                .unwrap();
        }
        let mut log = EventLog::default();
        for _ in 0..200 {
            left.progress(&mut log);
        }
        assert_eq!(log.0.len(), 100);
        let whole = format!("message 1 {:?} {:?}", [0x55u8; 20], b"body");
        let changed = log.0.iter().filter(|text| **text != whole).count();
        assert!(
            (20..80).contains(&changed),
            "{changed} of 100 by {faults:?}"
        );
        assert!(
            log.0
                .iter()
                .all(|text| text.ends_with(&format!("{:?}", b"body")))
        );
        assert_eq!(left.made(), changed as u64);
    }
}

/// After a number of messages the peer is lost: pending operations end first, the loss is reported
/// once, and nothing passes any more.
#[test]
fn a_peer_is_cut_after_a_number_of_messages() {
    let (mut left, mut right) = pair(
        Limits::default(),
        9,
        Faults {
            cut: Some((1, 10)),
            ..Faults::default()
        },
    );
    let mut memory = [7u8; 64];
    // SAFETY: `memory` outlives both transports' use of it: they are closed below.
    let region = unsafe { right.register(memory.as_mut_ptr(), memory.len()) }.unwrap();
    let mut local = [0u8; 64];
    // SAFETY: `local` lives until the completion, which the test waits for.
    let started = unsafe { left.get(1, local.as_mut_ptr(), 64, &region.key, 0, 5) };
    assert_eq!(started, Ok(btl::Started::Pending));
    for number in 0u8..11 {
        left.send(1, &[number], &[]).unwrap();
    }
    assert!(matches!(
        left.send(1, &[11], &[]),
        Err(SendError::Failed {
            peer: 1,
            error: PeerError::Lost(_)
        })
    ));
    right.send(0, b"unheard", &[]).unwrap();
    let mut log = EventLog::default();
    for _ in 0..50 {
        left.progress(&mut log);
    }
    assert_eq!(
        log.0,
        [
            "completed 5 true",
            "failed 1: lost: cut by the fault injection"
        ]
    );
    assert_eq!(local, [7; 64]);
    assert!(matches!(
        left.send(1, &[11], &[]),
        Err(SendError::Failed { peer: 1, .. })
    ));
    left.send(0, b"to itself", &[]).unwrap();
    left.close();
    right.close();
}
