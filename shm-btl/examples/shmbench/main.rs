//! Measures latency and bandwidth of the shared-memory transport between two pinned processes,
//! compared with the limits of the machine: the transfer of a cache line between these two CPUs,
//! and memcpy.
//!
//! `cargo run --release -p shm-btl --example shmbench [-- cpu cpu rounds]`, or `-- poll` for the
//! cost of polling many peers, `-- self` for the CPU time of a message. Rounds of all measurements
//! alternate; the best of each is printed. Compare the ratios.

mod mover;

use std::hint::{black_box, spin_loop};
use std::io::IoSlice;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use btl::{Btl, Tx};
use mover::Mover;
use shm_btl::{ShmBtl, ShmConfig};

const MAX_LENGTH: usize = 4 << 20;
/// Number of bytes that exceeds every cache, on both sides.
const COLD: usize = 192 << 20;
const SLICE: Duration = Duration::from_millis(20);
/// Duration of one sample, see [`timed`].
const INSTANT: Duration = Duration::from_micros(100);

type Outcome<T> = Result<T, String>;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("child") => child(&args[1..]),
        Some("poll") => poll_cost(),
        Some("self") => own_cost(),
        _ => parent(&args),
    };
    if let Err(error) = result {
        eprintln!("shmbench: {error}");
        std::process::exit(1);
    }
}

fn number(args: &[String], index: usize, otherwise: u32) -> Outcome<u32> {
    args.get(index).map_or(Ok(otherwise), |arg| {
        arg.parse().map_err(|_| format!("{arg} is not a number"))
    })
}

fn pin(cpu: u32) -> Outcome<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| format!("CPU {cpu}: {error}"))
}

fn transport(rank: u32, job: &str) -> Outcome<ShmBtl> {
    ShmBtl::new(ShmConfig::new(rank, 2, job)).map_err(|error| error.to_string())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Outcome<Vec<u8>> {
    let pairs = text.trim().as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs
        .map(|pair| byte(pair).ok_or_else(|| "not an address".to_owned()))
        .collect()
}

/// Answers as rank 1. It waits without spinning while other measurements run.
fn child(args: &[String]) -> Outcome<()> {
    pin(number(args, 0, 1)?)?;
    let mut btl = transport(1, args.get(1).map_or("", String::as_str))?;
    println!("{}", hex(&btl.address()));
    let mut lines = std::io::stdin().lines();
    let mut next = || lines.next().transpose().map_err(|error| error.to_string());
    let address = unhex(&next()?.unwrap_or_default())?;
    btl.add_peer(0, &address).map_err(|error| error.reason)?;
    println!("ready");
    // One line of input for each measurement that needs answers.
    let mut mover = Mover::new(COLD);
    while next()?.is_some() {
        mover.serve(&mut btl)?;
    }
    Ok(())
}

struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Other {
    fn line(&mut self) -> Outcome<String> {
        self.lines
            .next()
            .ok_or("the other process ended")?
            .map_err(|error| error.to_string())
    }

    fn tell(&mut self, line: &str) -> Outcome<()> {
        let stdin = self
            .child
            .stdin
            .as_mut()
            .ok_or("no pipe to the other process")?;
        writeln!(stdin, "{line}").map_err(|error| error.to_string())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the time of one call in nanoseconds: the best average over a sample, which is so short
/// that both processes probably run throughout it even on a busy machine.
fn timed(mut call: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed() < SLICE {
        let instant = Instant::now();
        let mut calls = 0u32;
        while calls == 0 || instant.elapsed() < INSTANT {
            for _ in 0..8 {
                call()?;
            }
            calls += 8;
        }
        best = best.min(instant.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    Ok(best)
}

#[repr(align(128))]
struct Ball(AtomicU64);

/// Returns the time of one transfer of a cache line between two CPUs, measured by two threads that
/// do nothing else.
fn line_latency(cpus: (u32, u32)) -> Outcome<f64> {
    const LAPS: u64 = 100_000;
    const BLOCK: u64 = 500;
    let ball = Ball(AtomicU64::new(0));
    let side = |cpu: u32, odd: u64| -> Outcome<f64> {
        pin(cpu)?;
        let (mut begin, mut best) = (Instant::now(), f64::INFINITY);
        for lap in 0..LAPS {
            if lap % BLOCK == 0 {
                if lap > 0 {
                    best = best.min(begin.elapsed().as_nanos() as f64 / (2 * BLOCK) as f64);
                }
                begin = Instant::now();
            }
            while ball.0.load(Ordering::Acquire) != 2 * lap + odd {
                spin_loop();
            }
            ball.0.store(2 * lap + odd + 1, Ordering::Release);
        }
        Ok(best)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| side(cpus.1, 1));
        let one = scope.spawn(|| side(cpus.0, 0));
        let ended = |_| "a thread ended".to_owned();
        let (other, one) = (other.join().map_err(ended)?, one.join().map_err(ended)?);
        Ok(f64::min(other?, one?))
    })
}

#[derive(Default)]
struct Best(std::collections::BTreeMap<String, f64>);

impl Best {
    fn note(&mut self, name: impl Into<String>, ns: f64) {
        let best = self.0.entry(name.into()).or_insert(f64::INFINITY);
        *best = best.min(ns);
    }

    fn of(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(f64::NAN)
    }
}

fn parent(args: &[String]) -> Outcome<()> {
    let cpus = (number(args, 0, 0)?, number(args, 1, 1)?);
    let rounds = number(args, 2, 15)?;
    let job = format!("shmbench-{}", std::process::id());
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .args(["child", &cpus.1.to_string(), &job])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let lines = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
    let mut other = Other { child, lines };
    pin(cpus.0)?;
    let mut btl = transport(0, &job)?;
    let address = unhex(&other.line()?)?;
    let path = btl.add_peer(1, &address).map_err(|error| error.reason)?;
    other.tell(&hex(&btl.address()))?;
    other.line()?;
    println!("{}", path.reason);

    let mut best = Best::default();
    let mut data = vec![3u8; COLD];
    let mut target = vec![1u8; COLD];
    let mut place = 0;
    let key = if path.one_sided {
        Some(Mover::offer(&mut btl, &mut data)?)
    } else {
        None
    };
    let sizes: Vec<usize> = (12..=22).step_by(2).map(|bits| 1 << bits).collect();
    for _ in 0..rounds {
        best.note("line", line_latency(cpus)?);
        pin(cpus.0)?;
        other.tell("serve")?;
        let mut mover = Mover::new(0);
        mover.ping(&mut btl, 1, &data[..8])?;
        for size in [8, 40, 64, 1024] {
            best.note(
                format!("ping {size}"),
                timed(|| mover.ping(&mut btl, 1, &data[..size]))? / 2.0,
            );
        }
        for &size in &sizes {
            let two = timed(|| mover.two_copies(&mut btl, 1, &data[..size], path.max_send))?;
            best.note(format!("two {size}"), two);
            if let Some(key) = &key {
                best.note(
                    format!("one {size}"),
                    timed(|| mover.one_copy(&mut btl, 1, key, (0, size)))?,
                );
            }
            let copy = || {
                black_box(&mut target[..size]).copy_from_slice(black_box(&data[..size]));
                Ok(())
            };
            best.note(format!("copy {size}"), timed(copy)?);
        }
        // Uses other memory each time, so that nothing is cached.
        let mut next = || {
            place = (place + MAX_LENGTH) % COLD;
            place
        };
        if let Some(key) = &key {
            let cold = || mover.one_copy(&mut btl, 1, key, (next(), MAX_LENGTH));
            best.note("one cold", timed(cold)?);
        }
        let copy = || {
            let at = next();
            black_box(&mut target[at..at + MAX_LENGTH])
                .copy_from_slice(black_box(&data[at..at + MAX_LENGTH]));
            Ok(())
        };
        best.note("copy cold", timed(copy)?);
        mover.stop(&mut btl, 1)?;
    }
    show(&best, &sizes);
    Ok(())
}

fn show(best: &Best, sizes: &[usize]) {
    let line = best.of("line");
    println!("\none way                ns    x line\ncache line       {line:8.1}      1.00");
    for size in [8, 40, 64, 1024] {
        let ns = best.of(&format!("ping {size}"));
        println!("{size:5} B          {ns:8.1}  {:8.2}", ns / line);
    }
    println!(
        "\ntransfer and reply, GB/s          two copies   one copy     memcpy   one/memcpy  one/two"
    );
    for size in sizes {
        let rate = |what: &str| *size as f64 / best.of(&format!("{what} {size}"));
        let (two, one, copy) = (rate("two"), rate("one"), rate("copy"));
        println!(
            "{size:9} B {two:34.2} {one:10.2} {copy:10.2} {:12.2} {:8.2}",
            one / copy,
            one / two
        );
    }
    let rate = |what: &str| MAX_LENGTH as f64 / best.of(&format!("{what} cold"));
    let (one, copy) = (rate("one"), rate("copy"));
    println!(
        "{MAX_LENGTH:9} B, out of cache {one:29.2} {copy:10.2} {:12.2}",
        one / copy
    );
}

/// Prints the cost of an idle call of `progress` by number of peers.
fn poll_cost() -> Outcome<()> {
    struct Nothing;
    impl btl::Events for Nothing {
        fn message(&mut self, _: &mut dyn btl::Tx, _: u32, _: &[u8], _: &[u8]) {}
        fn completed(&mut self, _: &mut dyn btl::Tx, _: u64, _: Result<(), btl::PeerError>) {}
        fn failed(&mut self, _: &mut dyn btl::Tx, _: u32, _: btl::PeerError) {}
    }
    for peers in [1, 2, 4, 8, 16, 32, 64] {
        let make =
            |rank| ShmBtl::new(ShmConfig::new(rank, peers + 1, "poll")).map_err(|e| e.to_string());
        let mut all = (0..=peers).map(make).collect::<Outcome<Vec<ShmBtl>>>()?;
        let mut one = all.remove(0);
        for (rank, peer) in (1..).zip(&all) {
            one.add_peer(rank, &peer.address())
                .map_err(|error| error.reason)?;
        }
        let mut ns = f64::INFINITY;
        for _ in 0..20 {
            let begin = Instant::now();
            for _ in 0..10_000 {
                one.progress(&mut Nothing);
            }
            ns = ns.min(begin.elapsed().as_nanos() as f64 / 10_000.0);
        }
        println!(
            "{peers:3} idle peers: {ns:7.1} ns for a progress, {:5.2} ns a peer",
            ns / f64::from(peers)
        );
    }
    Ok(())
}

/// Prints the CPU time of a short message of a rank to itself, for which no cache line has to move.
fn own_cost() -> Outcome<()> {
    struct Count(u64);
    impl btl::Events for Count {
        fn message(&mut self, _: &mut dyn btl::Tx, _: u32, _: &[u8], _: &[u8]) {
            self.0 += 1;
        }
        fn completed(&mut self, _: &mut dyn btl::Tx, _: u64, _: Result<(), btl::PeerError>) {}
        fn failed(&mut self, _: &mut dyn btl::Tx, _: u32, _: btl::PeerError) {}
    }
    let mut btl = ShmBtl::new(ShmConfig::new(0, 1, "self")).map_err(|error| error.to_string())?;
    btl.add_peer(0, &btl.address())
        .map_err(|error| error.reason)?;
    let mut count = Count(0);
    let (mut send, mut both) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..50 {
        let begin = Instant::now();
        for _ in 0..200 {
            btl.send(0, black_box(&[1; 16]), &[IoSlice::new(black_box(&[2; 8]))])
                .map_err(|error| error.to_string())?;
        }
        send = send.min(begin.elapsed().as_nanos() as f64 / 200.0);
        while btl.progress(&mut count) > 0 {}
        let begin = Instant::now();
        for _ in 0..1000 {
            for _ in 0..20 {
                btl.send(0, black_box(&[1; 16]), &[IoSlice::new(black_box(&[2; 8]))])
                    .map_err(|error| error.to_string())?;
            }
            btl.progress(&mut count);
        }
        both = both.min(begin.elapsed().as_nanos() as f64 / 20_000.0);
    }
    println!(
        "send {send:.1} ns; send and delivery {both:.1} ns; {} messages",
        count.0
    );
    Ok(())
}
