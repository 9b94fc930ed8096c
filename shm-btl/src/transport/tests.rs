//! Tests of transports in one process, and their common helpers.

mod addresses;
mod help;
mod memory;
mod messages;

use btl::Tx;

use super::ShmBtl;
use crate::config::ShmConfig;

fn config(rank: u32) -> ShmConfig {
    ShmConfig::new(rank, 2, format!("addresses-{}", std::process::id()))
}

fn transport(rank: u32) -> ShmBtl {
    ShmBtl::new(config(rank)).expect("shared memory")
}

fn expect_word(reason: &str, word: &str) {
    assert!(
        reason.contains(word),
        "{reason:?} does not mention {word:?}"
    );
}

/// The reported failures.
#[derive(Default)]
struct Failures(Vec<(u32, btl::PeerError)>);

impl btl::Events for Failures {
    fn message(&mut self, _: &mut dyn Tx, _: u32, _: &[u8], _: &[u8]) {}
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), btl::PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, peer: u32, error: btl::PeerError) {
        self.0.push((peer, error));
    }
}

/// Events in order, and bodies.
#[derive(Default)]
struct Seen(Vec<String>, Vec<Vec<u8>>);

impl btl::Events for Seen {
    fn message(&mut self, _: &mut dyn Tx, peer: u32, _: &[u8], body: &[u8]) {
        self.0.push(format!("message of {peer}"));
        self.1.push(body.to_vec());
    }
    fn completed(&mut self, _: &mut dyn Tx, token: u64, result: Result<(), btl::PeerError>) {
        self.0.push(format!(
            "{token} {}",
            if result.is_ok() { "done" } else { "failed" }
        ));
    }
    fn failed(&mut self, _: &mut dyn Tx, peer: u32, _: btl::PeerError) {
        self.0.push(format!("lost {peer}"));
    }
}
