//! Workspace-level tests: whole nodes in a virtual cluster. This library has their helpers; the
//! tests are in `tests/`.
//!
//! A program of a node need not be in the node's network namespace, because it talks to its daemon
//! over a Unix socket. So the tests themselves act as the programs of all nodes, and only programs
//! that need a process of their own (to be killed) are started as one.

#![forbid(unsafe_code)]

pub mod exchange;
pub mod frames;
pub mod links;
pub mod marked;
pub mod open_mpi;
pub mod process;
pub mod program;
pub mod protected;
pub mod raw;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use esp_client::{Client, EspAddr, EspListener, EspStream, MacAddr};
use lab::{Lab, LabOptions, Node};

/// Timeout of every wait, ample even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the configuration with leases disabled, unless it configures them: most tests are about
/// the path through the daemon, or end a daemon.
pub fn without_leases(config: &str) -> String {
    if config.contains("[lease]") {
        config.into()
    } else {
        format!("{config}\n[lease]\nallow = \"off\"\n")
    }
}

/// Creates a lab, or returns `None` after printing SKIPPED where the privilege or a tool is
/// missing. See [`without_leases`].
///
/// # Panics
/// When it cannot be created for another reason.
pub fn lab_or_skip(test: &str, options: &LabOptions) -> Option<Lab> {
    if !rustix_is_root() {
        netns::skip(test, "network namespaces need root");
        return None;
    }
    let daemon_config = without_leases(&options.daemon_config);
    match Lab::create(&LabOptions {
        daemon_config,
        ..options.clone()
    }) {
        Ok(lab) => Some(lab),
        Err(error @ lab::LabError::NoTool { .. }) => {
            netns::skip(test, &error.to_string());
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

fn rustix_is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// Connects a program to the daemon of a node.
///
/// # Panics
/// When it cannot be reached.
pub fn client(lab: &Lab, node: usize) -> Client {
    Client::connect(lab.socket(node)).expect("the node's daemon")
}

/// Returns the address of a port of a node.
pub fn address(node: usize, port: u16) -> EspAddr {
    EspAddr::new(MacAddr(Node(node).mac()), port)
}

/// Returns two connected streams: the first at `from`, the second, accepted one, at `to`.
///
/// # Panics
/// When they cannot be connected.
pub fn pair(lab: &Lab, from: usize, to: usize, port: u16) -> (EspStream, EspStream) {
    let listener = EspListener::builder()
        .bind_at(&client(lab, to), port)
        .expect("listen");
    let left = EspStream::builder()
        .connect_at(&client(lab, from), address(to, port))
        .expect("connect");
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    (left, right)
}

/// Returns byte `index` of the test pattern `salt`.
pub fn byte(index: u64, salt: u64) -> u8 {
    ((index ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Writes `len` bytes of a pattern and finishes.
///
/// # Panics
/// When the stream fails.
pub fn send_pattern(stream: &EspStream, len: u64, salt: u64) {
    let mut out = stream;
    let mut block = vec![0; 1 << 16];
    let mut at = 0;
    while at < len {
        let n = block
            .len()
            .min(usize::try_from(len - at).unwrap_or(usize::MAX));
        for (i, slot) in (at..).zip(&mut block[..n]) {
            *slot = byte(i, salt);
        }
        out.write_all(&block[..n]).expect("write");
        at += n as u64;
    }
    stream.shutdown(std::net::Shutdown::Write).expect("finish");
}

/// Reads to the end and checks every byte.
///
/// # Panics
/// When a byte is wrong, missing or surplus.
pub fn check_pattern(stream: &EspStream, len: u64, salt: u64) {
    let mut input = stream;
    let mut block = vec![0; 1 << 16];
    let mut at = 0;
    loop {
        let n = input.read(&mut block).expect("read");
        if n == 0 {
            break;
        }
        for (i, found) in (at..).zip(&block[..n]) {
            assert!(*found == byte(i, salt), "byte {i} is {found:#x}");
        }
        at += n as u64;
    }
    assert_eq!(at, len, "length");
}

/// Waits until `there` is true.
///
/// # Panics
/// After [`PATIENCE`], with `what`.
pub fn wait_until(what: &str, mut there: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !there() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns a node's counter, summed over its interfaces.
///
/// # Panics
/// When there is no such counter.
pub fn counter(client: &Client, name: &str) -> u64 {
    let status = client.status().expect("status");
    let found: Vec<u64> = status
        .counters
        .iter()
        .filter(|c| c.name == name)
        .map(|c| c.value)
        .collect();
    let names = || {
        status
            .counters
            .iter()
            .map(|c| c.name.as_str())
            .collect::<Vec<_>>()
    };
    assert!(!found.is_empty(), "no counter {name} among {:?}", names());
    found.iter().sum()
}

/// Compiles the programs in the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
