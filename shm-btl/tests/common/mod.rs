//! Ranks in other processes: the test binary is started again to execute only the calling test,
//! with a role.
#![allow(dead_code)] // each test program uses its part

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use btl::{Btl, Events, PeerError, Rank, Tx};
use shm_btl::{ShmBtl, ShmConfig};

const ROLE: &str = "SHM_BTL_TEST_ROLE";
/// Time limit for waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Returns rank, number of ranks, job and the test's argument, if this process is a child.
pub(crate) fn role() -> Option<(Rank, u32, String, String)> {
    let role = std::env::var(ROLE).ok()?;
    let words: Vec<&str> = role.split(' ').collect();
    let word = |i: usize| (*words.get(i).expect("four words")).to_owned();
    Some((
        word(0).parse().expect("a rank"),
        word(1).parse().expect("a size"),
        word(2),
        word(3),
    ))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.trim().as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex"))
        .collect()
}

/// Joins the job in a child: prints its address, reads all addresses, adds all peers, reports that,
/// waits for the start.
pub(crate) fn join(rank: Rank, size: u32, job: &str) -> ShmBtl {
    let mut btl = ShmBtl::new(ShmConfig::new(rank, size, job)).expect("shared memory");
    println!("\naddress {}", hex(&btl.address()));
    let mut lines = std::io::stdin().lines();
    let mut next = || lines.next().expect("the test lives").expect("a line");
    for peer in 0..size {
        let address = unhex(&next());
        btl.add_peer(peer, &address).expect("a peer on this node");
    }
    println!("\nready");
    assert_eq!(next(), "start");
    btl
}

/// A child process, killed on drop.
pub(crate) struct Process {
    pub(crate) child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Returns the rest of the next line that begins with `word`; libtest prints other lines.
    pub(crate) fn wait_for(&mut self, word: &str) -> String {
        loop {
            let line = self.lines.next().expect("the child lives").expect("a line");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{line}").expect("the child lives");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts `children` (the ranks after `here`, each with its argument) and creates one job of all.
/// The ranks of `here` are in this process.
pub(crate) fn job(test: &str, here: u32, children: &[&str]) -> (Vec<ShmBtl>, Vec<Process>) {
    static JOBS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = JOBS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("{test}-{}-{number}", std::process::id());
    let size = here + u32::try_from(children.len()).expect("few");
    let make = |rank| ShmBtl::new(ShmConfig::new(rank, size, name.clone())).expect("shared memory");
    let mut own: Vec<ShmBtl> = (0..here).map(make).collect();
    let start = |(rank, word): (u32, &&str)| {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{rank} {size} {name} {word}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Process { child, lines }
    };
    let mut processes: Vec<Process> = (here..).zip(children).map(start).collect();
    let mut addresses: Vec<String> = own.iter().map(|btl| hex(&btl.address())).collect();
    addresses.extend(
        processes
            .iter_mut()
            .map(|process| process.wait_for("address")),
    );
    for process in &mut processes {
        for address in &addresses {
            process.tell(address);
        }
    }
    for btl in &mut own {
        for (rank, address) in (0..).zip(&addresses) {
            btl.add_peer(rank, &unhex(address))
                .expect("a peer on this node");
        }
    }
    for process in &mut processes {
        process.wait_for("ready");
    }
    for process in &mut processes {
        process.tell("start");
    }
    (own, processes)
}

/// Events in order.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) messages: Vec<(Rank, Vec<u8>, Vec<u8>)>,
    pub(crate) failed: Vec<(Rank, PeerError)>,
    /// Counts messages instead of keeping them.
    pub(crate) forget: bool,
    pub(crate) count: u64,
}

impl Events for Seen {
    fn message(&mut self, _: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        self.count += 1;
        // Reads every byte.
        let sum = body.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        std::hint::black_box(sum);
        if !self.forget {
            self.messages.push((peer, header.to_vec(), body.to_vec()));
        }
    }

    fn completed(&mut self, _: &mut dyn Tx, token: u64, _: Result<(), PeerError>) {
        panic!("no operation is pending here: token {token}");
    }

    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        self.failed.push((peer, error));
    }
}

/// Waits until `done` returns true, or panics at the time limit.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "timed out waiting for: {what}");
    }
}

/// A deterministic random generator.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Returns this process's writable mappings of memory files of this transport: first address and
/// length.
pub(crate) fn writable(name: &str) -> Vec<(u64, u64)> {
    mappings(name, "rw-s")
}

/// Returns this process's mappings of memory files of this transport.
pub(crate) fn mappings(name: &str, mode: &str) -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if *words.get(5)? != format!("/memfd:{name}") || !words[1].starts_with(mode) {
            return None;
        }
        let (from, to) = words[0].split_once('-')?;
        let [from, to] = [from, to].map(|n| u64::from_str_radix(n, 16).expect("an address"));
        Some((from, to - from))
    };
    maps.lines().filter_map(line).collect()
}
