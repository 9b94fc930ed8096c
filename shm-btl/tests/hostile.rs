//! A peer that corrupts everything it can write, while others continue.

mod common;

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use btl::{Btl, PeerError, SendError, Tx};
use common::{PATIENCE, Random, Seen, job, join, role, until, writable};
use shm_btl::ShmBtl;

/// Bytes of a pair with the default sizes: a page of words, 256 lines, 64 KiB, and a page for their
/// alignment.
const PAIR: u64 = 4096 + 256 * 64 + 65_536 + 4096;

/// Writes random values into its own words until killed.
fn corrupt(mut btl: ShmBtl, seed: u64) -> ! {
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .expect("own memory");
    let mut random = Random(seed);
    let data = writable("shm-btl");
    assert!(!data.is_empty(), "own words");
    let mut seen = Seen {
        forget: true,
        ..Seen::default()
    };
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        for _ in 0..random.below(20) {
            // Valid messages in between, so that laps and counts change.
            let body = vec![7; random.below(3000) as usize];
            let _ = btl.send(random.below(2) as u32, &[1; 16], &[IoSlice::new(&body)]);
        }
        btl.progress(&mut seen);
        for _ in 0..random.below(50) {
            let (base, len) = data[random.below(data.len() as u64) as usize];
            let at = match random.below(4) {
                0 => random.below(len),
                1 => random.below(len.min(8192)),
                // Words of the pairs, and their first slots.
                _ => len
                    .saturating_sub(PAIR * (1 + random.below(3)))
                    .saturating_add(random.below(8192)),
            };
            write(&memory, &mut random, base + at.min(len - 8) / 8 * 8);
        }
    }
    std::process::exit(0);
}

fn write(memory: &File, random: &mut Random, address: u64) {
    let mut old = [0; 8];
    memory.read_exact_at(&mut old, address).expect("own memory");
    let old = u64::from_le_bytes(old);
    let value = match random.below(7) {
        0 => random.next(),
        1 => random.below(1 << 16),
        2 => old.wrapping_add(1),
        3 => old ^ 1 << random.below(64),
        4 => 1 << 48 | 3 << 40 | random.below(1 << 20),
        5 => old.wrapping_sub(1),
        _ => {
            (1 + random.below(3)) << 48
                | random.below(6) << 40
                | random.below(80) << 32
                | random.below(40_000)
        }
    };
    memory
        .write_all_at(&value.to_le_bytes(), address)
        .expect("own memory");
}

/// Exchanges a message each way at every step between two honest ranks in this process, while a
/// third rank is hostile.
fn exchange(ranks: &mut [ShmBtl], seen: &mut [Seen; 2], round: u64) {
    let body: Vec<u8> = (0..round * 97 % 5000).map(|i| (i * round) as u8).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        let header = round.to_le_bytes();
        until("room", || {
            let sent = ranks[from].send(to as u32, &header, &[IoSlice::new(&body)]);
            assert!(matches!(sent, Ok(()) | Err(SendError::Busy)), "{sent:?}");
            ranks[to].progress(&mut seen[to]);
            sent.is_ok()
        });
        until("the message", || {
            ranks[to].progress(&mut seen[to]);
            let at = seen[to]
                .messages
                .iter()
                .position(|(peer, ..)| *peer == from as u32);
            let Some(at) = at else { return false };
            let (_, got_header, got_body) = seen[to].messages.remove(at);
            assert_eq!(
                (got_header, &got_body),
                (header.to_vec(), &body),
                "round {round}"
            );
            true
        });
        // Messages of the hostile rank.
        seen[to].messages.clear();
    }
}

#[test]
fn corruption_of_its_own_words_ends_that_peer_only() {
    const NAME: &str = "corruption_of_its_own_words_ends_that_peer_only";
    if let Some((rank, size, job, seed)) = role() {
        corrupt(join(rank, size, &job), seed.parse().expect("a seed"));
    }
    let mut violations = 0;
    for seed in 1..=12u64 {
        let (mut ranks, _processes) = job(NAME, 2, &[&(seed * 7919).to_string()]);
        let mut seen = [Seen::default(), Seen::default()];
        let begin = Instant::now();
        let mut round = 0;
        while begin.elapsed() < Duration::from_millis(300)
            && seen.iter().any(|seen| seen.failed.is_empty())
        {
            round += 1;
            exchange(&mut ranks, &mut seen, round);
            for (rank, seen) in ranks.iter_mut().zip(&mut seen) {
                let sent = rank.send(
                    2,
                    &[9; 20],
                    &[IoSlice::new(&vec![1; (round % 40_000) as usize % 30_000])],
                );
                assert!(
                    matches!(
                        sent,
                        Ok(()) | Err(SendError::Busy | SendError::Failed { peer: 2, .. })
                    ),
                    "{sent:?}"
                );
                rank.arm();
                rank.flush();
                rank.progress(seen);
            }
        }
        for seen in &seen {
            assert!(
                seen.failed.len() <= 1 && seen.failed.iter().all(|(peer, _)| *peer == 2),
                "{:?}",
                seen.failed
            );
            violations += seen
                .failed
                .iter()
                .filter(|(_, e)| matches!(e, PeerError::Violation(_)))
                .count();
        }
        exchange(&mut ranks, &mut seen, round + 1);
    }
    assert!(violations > 0, "the corruption was not detected");
}
