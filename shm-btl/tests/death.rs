//! Processes killed at any point leave nothing behind, and the others detect it. There is only one
//! test, because it counts the mappings of its process.

mod common;

use std::io::IoSlice;
use std::time::{Duration, Instant};

use btl::{Btl, PeerError, Tx};
use common::{PATIENCE, Random, Seen, job, join, mappings, role, until};
use shm_btl::ShmBtl;

/// Sends to all peers until one fails.
fn busy(mut btl: ShmBtl, size: u32, rank: u32) {
    let mut seen = Seen {
        forget: true,
        ..Seen::default()
    };
    let mut random = Random(u64::from(rank) + 99);
    let data = vec![5u8; 50_000];
    let until = Instant::now() + PATIENCE;
    while seen.failed.is_empty() && Instant::now() < until {
        let peer = random.below(u64::from(size)) as u32;
        let length = random.below(20_000) as usize;
        let _ = btl.send(peer, &[1; 16], &[IoSlice::new(&data[..length])]);
        btl.progress(&mut seen);
    }
    assert!(
        matches!(seen.failed.first(), Some((_, PeerError::Died))),
        "{:?}",
        seen.failed
    );
    drop(btl);
    println!("\nlearned {}", seen.failed[0].0);
}

fn files_of_the_system() -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.retain(|name| name.contains("btl"));
    names
}

fn descriptors() -> usize {
    let links = std::fs::read_dir("/proc/self/fd")
        .expect("procfs")
        .flatten();
    links
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|to| to.to_string_lossy().contains("shm-btl"))
        .count()
}

#[test]
fn a_killed_process_leaves_nothing_and_the_others_continue() {
    const NAME: &str = "a_killed_process_leaves_nothing_and_the_others_continue";
    if let Some((rank, size, job, _)) = role() {
        busy(join(rank, size, &job), size, rank);
        return;
    }
    let mut random = Random(31);
    let mut slowest = Duration::ZERO;
    for round in 0..15 {
        let (mut ranks, mut processes) = job(NAME, 1, &["-", "-"]);
        let mut btl = ranks.remove(0);
        let mut seen = Seen {
            forget: true,
            ..Seen::default()
        };
        assert_eq!(mappings("shm-btl", "rw").len(), 1, "own data");
        let begin = Instant::now();
        let alive = Duration::from_micros(random.below(15_000));
        while begin.elapsed() < alive {
            let _ = btl.send(
                1 + random.below(2) as u32,
                &[2; 10],
                &[IoSlice::new(&[3; 5000])],
            );
            btl.progress(&mut seen);
        }
        processes[0].child.kill().expect("running");
        let killed = Instant::now();
        // The remaining rank detects it as well, and leaves gracefully, possibly before this
        // process has read everything that the dead one sent.
        let failure =
            |seen: &Seen, rank| seen.failed.iter().find(|(peer, _)| *peer == rank).cloned();
        until("the failures", || {
            btl.progress(&mut seen);
            failure(&seen, 1).is_some()
        });
        slowest = slowest.max(killed.elapsed());
        assert_eq!(processes[1].wait_for("learned"), "1");
        until("the graceful end of the other rank", || {
            btl.progress(&mut seen);
            failure(&seen, 2).is_some()
        });
        assert_eq!(
            failure(&seen, 1),
            Some((1, PeerError::Died)),
            "round {round}"
        );
        assert_eq!(
            failure(&seen, 2),
            Some((2, PeerError::Left)),
            "round {round}"
        );
        assert_eq!(seen.failed.len(), 2, "once each");
        // Nothing of either is mapped or open here any more; own data is mapped for writing and
        // reading.
        assert_eq!(
            (
                mappings("shm-btl", "rw").len(),
                mappings("shm-btl", "r--").len()
            ),
            (1, 2)
        );
        assert_eq!(descriptors(), 1, "the file of this process");
        drop(btl);
        assert_eq!((mappings("shm-btl", "").len(), descriptors()), (0, 0));
    }
    assert_eq!(files_of_the_system(), Vec::<String>::new());
    println!("learned of a death after at most {slowest:?}");
}
