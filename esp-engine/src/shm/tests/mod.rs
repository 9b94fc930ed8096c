//! Tests with real memory; `model.rs` has those for the model checker.

mod echo;
mod hostile;
mod pages;
mod process;
mod records;
mod rings;
mod threads;

use std::os::fd::AsFd;
use std::sync::Arc;

use super::record::DgramHeader;
use super::{Corruption, Region, RingSizes, TxConsumer};

/// Returns the engine's and the program's mapping of one region, at different addresses.
fn pair(tx: u32, rx: u32) -> (Arc<Region>, Arc<Region>) {
    let sizes = RingSizes { tx, rx };
    let (engine, fd) = Region::create(sizes).expect("memory");
    let program = Region::open(fd.as_fd(), sizes).expect("the engine's own file");
    (engine, program)
}

/// Takes the next datagram of a ring.
fn taken(from: &mut TxConsumer) -> Result<Option<(DgramHeader, Vec<u8>)>, Corruption> {
    let mut bytes = Vec::new();
    let header = from.take_record(&mut bytes, |header, _| Some(*header))?;
    Ok(header.flatten().map(|header| (header, bytes)))
}

/// Returns byte `index` of every checked stream: 8 bits of a hash of the index, so that a shift by
/// any distance is detected.
fn pattern(index: u64) -> u8 {
    let mixed = (index ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 56) as u8
}

/// Returns bytes `from..from + len` of the checked stream.
fn stretch(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(pattern).collect()
}

/// Deterministic generator of test values (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Atomics come from `shmem::sync` only: the model checker does not see others.
#[test]
fn atomics_are_named_in_one_place() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/shm");
    let mut looked_at = 0;
    for entry in std::fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default()
            .to_owned();
        if path.extension().is_none_or(|e| e != "rs") || name == "model.rs" {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source file");
        for foreign in ["sync::atomic", "std::hint", "core::hint", "loom::"] {
            assert!(
                !text.contains(foreign),
                "{name} names {foreign}; take it from shmem::sync"
            );
        }
        looked_at += 1;
    }
    assert!(looked_at >= 9, "checked {looked_at} files only");
}

/// Every `SYNC POINT` name occurs at least at both of its ends.
#[test]
fn sync_points_have_two_ends() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/shm");
    let mut names = std::collections::BTreeMap::<String, usize>::new();
    for entry in std::fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("an entry").path();
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        for line in text
            .lines()
            .filter(|l| l.trim_start().starts_with("// SYNC POINT "))
        {
            let name = line.trim_start().trim_start_matches("// SYNC POINT ");
            let name = name.split([':', ' ']).next().unwrap_or_default();
            *names.entry(name.to_owned()).or_default() += 1;
        }
    }
    assert!(names.len() >= 8, "found {names:?} only");
    for (name, ends) in names {
        assert!(ends >= 2, "SYNC POINT {name} has one end");
    }
}
