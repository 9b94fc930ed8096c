//! Jobs inside the test's process.
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod open;
#[path = "../../src/testing.rs"]
mod random;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use btl::Btl;
use btl_conformance::loopback::{self, Killer, Limits, LoopbackBtl};
use p2p::{Comm, Config, P2p, Rank, Setup, TransportAddress};

/// Time limit after which a test counts as hanging.
pub(crate) const HANG: Duration = Duration::from_secs(60);

#[allow(unused_imports, reason = "each test uses a part of it")]
pub(crate) use random::Random;

/// Returns the configuration: ranks are threads here, more of them than CPUs.
pub(crate) fn config(size: u32) -> Config {
    Config {
        local_ranks: size.max(64),
        ..Config::default()
    }
}

/// Starts every rank of a job with these transports.
pub(crate) fn start(transports: Vec<Vec<Box<dyn Btl>>>, config: &Config) -> Vec<P2p> {
    let size = transports.len() as u32;
    let setups: Vec<Setup> = (0..size)
        .zip(transports)
        .map(|(rank, transports)| Setup {
            rank,
            size,
            transports,
            config: config.clone(),
        })
        .collect();
    let cards: Vec<Vec<TransportAddress>> = setups.iter().map(P2p::addresses).collect();
    let all = |peer: Rank| Ok(cards[peer as usize].clone());
    setups
        .into_iter()
        .map(|setup| P2p::start(setup, all).expect("every rank is reached"))
        .collect()
}

/// Returns a loopback for each rank.
pub(crate) fn loopbacks(size: u32, limits: Limits) -> (Vec<Vec<Box<dyn Btl>>>, Killer) {
    let job = loopback::job(size, limits);
    let killer = job[0].killer();
    (
        job.into_iter()
            .map(|btl: LoopbackBtl| vec![Box::new(btl) as Box<dyn Btl>])
            .collect(),
        killer,
    )
}

/// Runs every rank in a separate thread until all have returned; panics when one does, or hangs.
pub(crate) fn each<R: Send + 'static>(
    layers: Vec<P2p>,
    what: &str,
    f: impl Fn(&P2p, Comm) -> R + Send + Sync + Clone + 'static,
) -> Vec<R> {
    let (done, wait) = mpsc::channel();
    let count = layers.len();
    let over = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = layers
        .into_iter()
        .enumerate()
        .map(|(rank, layer)| {
            let (f, done, over) = (f.clone(), done.clone(), Arc::clone(&over));
            thread::spawn(move || {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    f(&layer, layer.world())
                }));
                let good = result.is_ok();
                // As `finalize` would: remaining messages to others are sent for as long as these
                // are running.
                over.fetch_add(1, Ordering::SeqCst);
                while good && over.load(Ordering::SeqCst) < count {
                    layer.progress();
                    thread::sleep(Duration::from_micros(50));
                }
                let _ = done.send((rank, good, layer));
                result
            })
        })
        .collect();
    // The layers live until all ranks are done: one that is dropped early has left the job.
    let mut alive = Vec::new();
    let mut missing: Vec<usize> = (0..count).collect();
    while !missing.is_empty() {
        match wait.recv_timeout(HANG) {
            Ok((rank, good, layer)) => {
                missing.retain(|other| *other != rank);
                if good {
                    alive.push(layer);
                }
            }
            Err(_) => panic!("{what}: ranks {missing:?} hang"),
        }
    }
    drop(alive);
    threads
        .into_iter()
        .map(|thread| match thread.join().expect("caught") {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        })
        .collect()
}

/// Runs `f` on every rank of a job over one loopback.
pub(crate) fn run<R: Send + 'static>(
    size: u32,
    limits: Limits,
    config: &Config,
    what: &str,
    f: impl Fn(&P2p, Comm) -> R + Send + Sync + Clone + 'static,
) -> Vec<R> {
    each(start(loopbacks(size, limits).0, config), what, f)
}

/// Returns bytes that depend on their position.
pub(crate) fn pattern(length: usize, salt: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ salt.wrapping_mul(97)) as u8)
        .collect()
}

/// Returns limits that cover all protocols of a message, by the transport's capabilities, with
/// names.
pub(crate) fn all_limits() -> Vec<(&'static str, Limits)> {
    let all = Limits::default();
    let tight = Limits::tight();
    vec![
        ("everything", all),
        ("get", Limits { put: false, ..all }),
        (
            "get at once",
            Limits {
                put: false,
                pending: false,
                ..all
            },
        ),
        ("put", Limits { get: false, ..all }),
        (
            "held",
            Limits {
                get: false,
                held_from: Some(600),
                ..all
            },
        ),
        (
            "tight held",
            Limits {
                get: false,
                held_from: Some(20),
                ..tight
            },
        ),
        (
            "put at once",
            Limits {
                get: false,
                pending: false,
                ..all
            },
        ),
        ("fragments", all.plain()),
        ("tight", tight),
        (
            "tight get",
            Limits {
                put: false,
                ..tight
            },
        ),
        (
            "tight put",
            Limits {
                get: false,
                ..tight
            },
        ),
        ("tight fragments", tight.plain()),
    ]
}
