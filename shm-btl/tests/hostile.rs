//! A peer that corrupts everything it can write, while others continue.

mod common;

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use btl::{
    Btl, Envelope, PeerError, PostedDelivery, PostedReceive, PostedReceives, SendError, Tx,
    Withdrawn,
};
use common::{PATIENCE, Random, Seen, job, join, role, until, writable};
use shm_btl::ShmBtl;

/// Bytes of a pair with the default sizes: a page of words, 256 lines, 64 KiB, and a page for their
/// alignment.
const PAIR: u64 = 4096 + 256 * 64 + 65_536 + 4096;

/// Writes random values until killed. `data`: into its own words; `claims`: into the claims of all.
fn corrupt(mut btl: ShmBtl, seed: u64, (data, claims): (bool, bool)) -> ! {
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .expect("own memory");
    let mut random = Random(seed);
    let data = if data {
        writable("shm-btl")
    } else {
        Vec::new()
    };
    let claims = if claims {
        writable("shm-btl-claims")
    } else {
        Vec::new()
    };
    assert!(
        !data.is_empty() || claims.len() >= 3,
        "own words and those of two peers"
    );
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
            let files = if random.below(2) == 0 && !data.is_empty() || claims.is_empty() {
                &data
            } else {
                &claims
            };
            let (base, len) = files[random.below(files.len() as u64) as usize];
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
    let value = match random.below(8) {
        0 => random.next(),
        1 => random.below(1 << 16),
        2 => old.wrapping_add(1),
        3 => old ^ 1 << random.below(64),
        4 => 1 << 48 | 3 << 40 | random.below(1 << 20),
        5 => old.wrapping_sub(1),
        // Claims: posted or taken, a rank, and a number that may be valid.
        6 => (1 + random.below(3)) << 62 | random.below(4) << 42 | random.below(300),
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

fn hostile(test: &'static str, what: (bool, bool), must_end: bool) {
    if let Some((rank, size, job, seed)) = role() {
        corrupt(join(rank, size, &job), seed.parse().expect("a seed"), what);
    }
    let mut violations = 0;
    for seed in 1..=12u64 {
        let (mut ranks, _processes) = job(test, 2, &[&(seed * 7919).to_string()]);
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
    assert!(
        !must_end || violations > 0,
        "the corruption was not detected"
    );
}

#[test]
fn corruption_of_its_own_words_ends_that_peer_only() {
    hostile(
        "corruption_of_its_own_words_ends_that_peer_only",
        (true, false),
        true,
    );
}

#[test]
fn corruption_of_all_claims_affects_no_messages() {
    hostile(
        "corruption_of_all_claims_affects_no_messages",
        (false, true),
        false,
    );
}

/// Posts receives and sends into them between honest ranks while a third corrupts the claims:
/// requests end, with or without an error, and nothing panics.
#[test]
fn receives_end_whatever_is_written_into_their_claims() {
    const NAME: &str = "receives_end_whatever_is_written_into_their_claims";
    if let Some((rank, size, job, seed)) = role() {
        corrupt(
            join(rank, size, &job),
            seed.parse().expect("a seed"),
            (false, true),
        );
    }
    let (mut ranks, _processes) = job(NAME, 2, &["4242"]);
    if !ranks[0].capabilities().posted_receives {
        println!("SKIPPED: cross-memory attach is not allowed here");
        return;
    }
    let mut seen = [Seen::default(), Seen::default()];
    let mut buffer = vec![0u8; 100];
    let (mut delivered, mut withdrawn) = (0, 0);
    let begin = Instant::now();
    let mut token = 0u64;
    while begin.elapsed() < Duration::from_secs(2) {
        token += 1;
        let source = (!token.is_multiple_of(3)).then_some(1);
        let receive = PostedReceive {
            source,
            context: 1,
            tag: Some(5),
            buffer: buffer.as_mut_ptr(),
            length: 100,
            token,
        };
        // SAFETY: the buffer lives until the end of the test, and only this loop reads it.
        let Some(post) = (unsafe { ranks[0].post(&receive) }) else {
            continue;
        };
        // SAFETY: the array is that long.
        let sent = unsafe {
            ranks[1].send_to_posted(0, Envelope { context: 1, tag: 5 }, [3u8; 50].as_ptr(), 50)
        };
        match sent {
            Ok(PostedDelivery::Delivered) => delivered += 1,
            Ok(PostedDelivery::NotPosted) | Err(SendError::Busy) => {}
            Err(error) => panic!("{error}"),
        }
        ranks[0].progress(&mut seen[0]);
        ranks[1].progress(&mut seen[1]);
        let had = seen[0].received.iter().any(|(got, ..)| *got == token);
        if !had && ranks[0].withdraw(post) == Withdrawn::Taken {
            until("the end of the receive", || {
                ranks[0].progress(&mut seen[0]);
                seen[0].received.iter().any(|(got, ..)| *got == token)
            });
        } else if !had {
            withdrawn += 1;
        }
        let ends = seen[0]
            .received
            .iter()
            .filter(|(got, ..)| *got == token)
            .count();
        assert!(ends <= 1, "a receive ends once");
        seen[0].received.clear();
        assert!(
            seen.iter()
                .all(|seen| seen.failed.iter().all(|(peer, _)| *peer == 2))
        );
    }
    assert!(
        delivered > 0,
        "{delivered} delivered, {withdrawn} withdrawn"
    );
}
