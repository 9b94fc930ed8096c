//! Cost of protecting packets by a key or a checksum, on one core: seal and open, for each suite
//! and size. Run it on an idle machine:
//!
//! ```sh
//! cargo run --release -p esp-engine --example securebench
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use esp_engine::Aead;
use esp_proto::secure::{DATA_AT, Key, Layer, Opened, SecureConfig, Suite};
use esp_proto::{MacAddr, NodeAddr};

/// Measured time of each row.
const TIME: Duration = Duration::from_millis(300);
/// Packets sealed before they are opened: a batch of the engine.
const BATCH: usize = 32;
const HEADER: usize = 13;

fn layer(own: NodeAddr, suite: Suite, seed: u8) -> Layer<Aead> {
    let config = if suite == Suite::CHECKSUM {
        SecureConfig::checksum(true, 0x88b6)
    } else {
        SecureConfig {
            keys: vec![Key::new([7; 32])],
            require: true,
            suite,
            edp_ethertype: 0x88b6,
        }
    };
    Layer::new(config, Aead, own, [seed; 32])
}

fn main() {
    let suites = [
        ("checksum, CRC-32C", Suite::CHECKSUM),
        ("integrity, AES-128-GCM", Suite::INTEGRITY),
        ("encrypt, AES-128-GCM", Suite::ENCRYPT),
        ("integrity, ChaCha20-Poly1305", Suite::CHACHA),
        (
            "encrypt, ChaCha20-Poly1305",
            Suite::CHACHA.union(Suite::ENCRYPT),
        ),
    ];
    println!(
        "{:<30} {:>8} {:>10} {:>10} {:>8}",
        "suite", "bytes", "seal ns", "open ns", "GB/s"
    );
    for (name, suite) in suites {
        for len in [48, 256, 1472, 8972] {
            let (seal, open) = measure(suite, len);
            let rate = len as f64 / seal.max(open);
            println!("{name:<30} {len:>8} {seal:>10.0} {open:>10.0} {rate:>8.2}");
        }
    }
}

/// Returns the times of sealing and opening one packet in nanoseconds.
fn measure(suite: Suite, len: usize) -> (f64, f64) {
    let a = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 1]));
    let b = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 2]));
    let now = esp_proto::Instant::from_nanos(1_000_000_000);
    let (mut left, mut right) = (layer(a, suite, 1), layer(b, suite, 2));
    let packet = vec![0u8; DATA_AT + len - HEADER];
    left.seal(now, b, packet.clone());
    for _ in 0..2 {
        while let Some((_, body)) = left.poll_transmit() {
            right.open(now, a, b, &body);
        }
        while let Some((_, body)) = right.poll_transmit() {
            left.open(now, b, a, &body);
        }
    }
    let (mut sealing, mut opening, mut count) = (Duration::ZERO, Duration::ZERO, 0u32);
    let mut sealed = Vec::with_capacity(BATCH);
    // The engine reuses the buffers of sent packets, too.
    let mut spare = vec![Vec::new(); BATCH];
    while sealing + opening < TIME {
        // The copy of the payload out of the program's ring is part of the cost.
        let start = Instant::now();
        for mut buffer in spare.drain(..) {
            buffer.clear();
            buffer.extend_from_slice(black_box(&packet));
            sealed.extend(left.seal(now, b, buffer));
        }
        sealing += start.elapsed();
        let start = Instant::now();
        for body in &sealed {
            let opened = right.open(now, a, b, body);
            assert!(matches!(black_box(opened), Opened::Packet(_)));
        }
        opening += start.elapsed();
        spare.append(&mut sealed);
        count += BATCH as u32;
    }
    let each = |time: Duration| time.as_nanos() as f64 / f64::from(count);
    (each(sealing), each(opening))
}
