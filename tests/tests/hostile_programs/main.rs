//! Programs that violate the control protocol and the protocol of shared memory: they are
//! disconnected and counted, and no other program is affected.

mod control;
mod corruption;
mod shared;
mod stalled;

use std::os::fd::AsFd;

use esp_client::control::{Request, Rings};
use esp_tests::raw::{RawProgram, RawSocket, Welcome};
use esp_tests::{check_pattern, pair, send_pattern};
use lab::Lab;
use rustix::io::{pwrite, write};

/// Words of the shared memory, as `esp-engine/src/shm/layout.rs` draws it.
const TX_HEAD: u64 = 128;
const RX_TAIL: u64 = 192;
const HEADER_PAGE: u64 = 4096;
const DOORBELL_SUMMARY: u64 = 128;
const DOORBELL_WORDS: u64 = 256;

/// Asserts that the daemon serves a new client completely.
fn serves(lab: &Lab) {
    let (left, right) = pair(lab, 0, 1, 6001);
    send_pattern(&left, 100_000, 8);
    check_pattern(&right, 100_000, 8);
}

/// Writes words into shared memory, as a program can at any time.
fn overwrite(memory: impl AsFd, at: u64, bytes: &[u8]) {
    assert_eq!(
        pwrite(memory, bytes, at).expect("write into the memory"),
        bytes.len()
    );
}

/// Rings the doorbell of a slot, whatever the engine does.
fn ring(welcome: &Welcome, slot: u16) {
    let (word, bit) = (u64::from(slot) / 64, 1u64 << (slot % 64));
    overwrite(
        &welcome.client_page,
        DOORBELL_WORDS + 8 * word,
        &bit.to_le_bytes(),
    );
    overwrite(
        &welcome.client_page,
        DOORBELL_SUMMARY,
        &(1u64 << word).to_le_bytes(),
    );
    let _ = write(&welcome.doorbell, &1u64.to_ne_bytes());
}

/// Binds port 9000 for datagrams.
fn datagram_socket(program: &mut RawProgram) -> RawSocket {
    program.socket_of(Request::BindEdp {
        interface: None,
        port: 9000,
        rings: Rings {
            tx: 1 << 16,
            rx: 1 << 16,
        },
    })
}
