//! Checks a job: every pair of processes exchanges messages of all sizes, by name and by wildcard,
//! and all ranks at once; every byte is checked. Rank 0 prints the transport between each pair of
//! ranks, and PASS.
//!
//! ```sh
//! cargo build --release -p job --example p2p-check
//! mpirun -n 4 target/release/examples/p2p-check
//! mpiexec -n 4 target/release/examples/p2p-check
//! target/release/examples/p2p-check
//! ```
use std::fmt::Write;

use p2p::{Comm, Error, Op, Source, Tag};

/// Lengths of messages, around the limits of all protocols.
const SIZES: &[usize] = &[
    0, 1, 8, 63, 64, 500, 1400, 4096, 20_000, 65_536, 300_001, 2_000_003,
];

/// A check; its error describes the fault.
type Check = fn(&Comm) -> Result<(), String>;

fn main() {
    let job = match job::join() {
        Ok(job) => job,
        Err(error) => {
            eprintln!("p2p-check: {error}");
            std::process::exit(2);
        }
    };
    let world = job.world();
    let checks: &[(&str, Check)] = &[
        ("ring", ring),
        ("all pairs", all_pairs),
        ("order", order),
        ("wildcards", wildcards),
        ("probes", probes),
        ("truncation", truncation),
        ("bad arguments", bad_arguments),
        ("collectives", collectives),
        ("contexts", contexts),
    ];
    let outcome = checks.iter().try_for_each(|(name, check)| {
        check(&world)
            .and_then(|()| world.barrier().map_err(words))
            .map_err(|e| format!("{name}: {e}"))
    });
    let outcome = outcome.and_then(|()| show(&world, &table(&job)));
    if let Err(what) = outcome {
        // Other processes wait for this one, for a limited time.
        job.abort(1, &what);
    }
    let (rank, size, launcher) = (job.rank(), job.size(), job.report().launcher);
    if let Err(error) = job.finalize() {
        eprintln!("p2p-check: rank {rank}: {error}");
        std::process::exit(1);
    }
    if rank == 0 {
        println!(
            "PASS {} checks, {size} ranks, started by {launcher}",
            checks.len()
        );
    }
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn words(error: Error) -> String {
    error.to_string()
}

/// Returns byte `i` of the message `salt`.
fn byte(salt: u64, i: usize) -> u8 {
    ((i as u64 ^ salt.wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        >> 56) as u8
}

fn pattern(from: u32, to: u32, length: usize) -> Vec<u8> {
    let salt = u64::from(from) << 32 | u64::from(to);
    (0..length).map(|i| byte(salt, i)).collect()
}

fn check(found: &[u8], from: u32, to: u32, length: usize) -> Result<(), String> {
    if found.len() != length {
        return Err(format!(
            "{} bytes arrived from rank {from}, which sent {length}",
            found.len()
        ));
    }
    let salt = u64::from(from) << 32 | u64::from(to);
    match found
        .iter()
        .enumerate()
        .find(|(i, b)| **b != byte(salt, *i))
    {
        Some((i, _)) => Err(format!("byte {i} of {length} from rank {from} is wrong")),
        None => Ok(()),
    }
}

fn demand(fine: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if fine { Ok(()) } else { Err(what()) }
}

/// Passes a number around the ring; each rank adds one.
fn ring(comm: &Comm) -> Result<(), String> {
    let (rank, size) = (comm.rank(), comm.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    for lap in 0..10u64 {
        let mut token = [0; 8];
        if rank == 0 {
            comm.sendrecv(&lap.to_le_bytes(), right, 1, &mut token, left, 1)
                .map_err(words)?;
            let expected = lap + u64::from(size) - 1;
            demand(u64::from_le_bytes(token) == expected, || {
                format!("lap {lap}: {token:?}, not {expected}")
            })?;
        } else {
            comm.recv(&mut token, left, 1).map_err(words)?;
            comm.send(&(u64::from_le_bytes(token) + 1).to_le_bytes(), right, 1)
                .map_err(words)?;
        }
    }
    Ok(())
}

/// Sends from each rank to each, including itself, all at once.
fn all_pairs(comm: &Comm) -> Result<(), String> {
    let (rank, size) = (comm.rank(), comm.size());
    for &length in SIZES {
        let out: Vec<Vec<u8>> = (0..size).map(|to| pattern(rank, to, length)).collect();
        let mut into = vec![vec![0; length]; size as usize];
        comm.scope(|s| {
            for (from, buffer) in (0..).zip(&mut into) {
                s.irecv(buffer, from, 2)?;
            }
            for (to, data) in (0..).zip(&out) {
                s.isend(data, to, 2)?;
            }
            s.waitall()
        })
        .map_err(words)?;
        for (from, found) in (0..).zip(&into) {
            check(found, from, rank, length)?;
        }
    }
    Ok(())
}

/// Checks that messages of one sender do not overtake each other, whatever their lengths.
fn order(comm: &Comm) -> Result<(), String> {
    const COUNT: usize = 200;
    let (rank, size) = (comm.rank(), comm.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let length = |i: usize| 8 + (i * 7919) % if i.is_multiple_of(10) { 200_000 } else { 3000 };
    let out: Vec<Vec<u8>> = (0..COUNT)
        .map(|i| {
            let mut data = pattern(rank, right, length(i));
            data[..8].copy_from_slice(&(i as u64).to_le_bytes());
            data
        })
        .collect();
    comm.scope(|s| {
        for data in &out {
            s.isend(data, right, 3)?;
        }
        let mut buffer = vec![0; 210_000];
        for i in 0..COUNT {
            let status = comm.recv(&mut buffer, left, 3)?;
            if status.length != length(i) || buffer[..8] != (i as u64).to_le_bytes() {
                return Ok(Err(format!("message {i} from rank {left} was overtaken")));
            }
        }
        Ok(Ok(()))
    })
    .map_err(words)?
}

/// Receives messages from any rank with any tag at rank 0.
fn wildcards(comm: &Comm) -> Result<(), String> {
    const EACH: i32 = 30;
    let (rank, size) = (comm.rank(), comm.size());
    let length = |tag: i32| (tag as usize * 997) % 9000;
    if rank != 0 {
        return (0..EACH).try_for_each(|tag| {
            comm.send(&pattern(rank, 0, length(tag)), 0, tag)
                .map_err(words)
        });
    }
    let mut next = vec![0; size as usize];
    let mut buffer = vec![0; 9000];
    for _ in 0..EACH * (size as i32 - 1) {
        let status = comm
            .recv(&mut buffer, Source::Any, Tag::Any)
            .map_err(words)?;
        let expected = next[status.source as usize];
        demand(status.tag == expected, || {
            format!(
                "rank {}: tag {} arrived before {expected}",
                status.source, status.tag
            )
        })?;
        check(&buffer[..status.length], status.source, 0, length(expected))?;
        next[status.source as usize] += 1;
    }
    demand(next[1..].iter().all(|n| *n == EACH), || {
        format!("messages by rank: {next:?}")
    })
}

/// Checks that probe finds a message before it is received.
fn probes(comm: &Comm) -> Result<(), String> {
    let (rank, size) = (comm.rank(), comm.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let out = pattern(rank, right, 5000);
    comm.scope(|s| {
        s.isend(&out, right, 4)?;
        s.isend(&out[..10], right, 5)?;
        let seen = comm.probe(left, 4)?;
        let message = comm.mprobe(Source::Any, 5)?;
        let mut short = vec![0; message.status().length];
        message.recv(&mut short)?;
        let mut long = vec![0; seen.length];
        comm.recv(&mut long, seen.source, seen.tag)?;
        Ok(check(&long, left, rank, 5000).and_then(|()| check(&short, left, rank, 10)))
    })
    .map_err(words)?
}

/// Checks that a message that is too long is an error of its own receive only.
fn truncation(comm: &Comm) -> Result<(), String> {
    let (rank, size) = (comm.rank(), comm.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    for length in [100, 100_000] {
        let out = pattern(rank, right, length);
        comm.scope(|s| {
            s.isend(&out, right, 6)?;
            s.isend(&out, right, 6)?;
            let (mut short, mut whole) = (vec![0; length / 2], vec![0; length]);
            let first = comm.recv(&mut short, left, 6);
            comm.recv(&mut whole, left, 6)?;
            Ok(match first {
                Err(Error::Truncated { length: sent, .. }) if sent == length => {
                    check(&short, left, rank, length / 2)
                        .and_then(|()| check(&whole, left, rank, length))
                }
                other => Err(format!("half a buffer: {other:?}")),
            })
        })
        .map_err(words)??;
    }
    Ok(())
}

fn bad_arguments(comm: &Comm) -> Result<(), String> {
    let far = comm.send(b"", comm.size(), 0);
    demand(matches!(far, Err(Error::InvalidRank { .. })), || {
        format!("{far:?}")
    })?;
    let tag = comm.send(b"", 0, -1);
    demand(matches!(tag, Err(Error::InvalidTag { tag: -1 })), || {
        format!("{tag:?}")
    })?;
    let tag = comm.recv(&mut [], 0, -5);
    demand(matches!(tag, Err(Error::InvalidTag { tag: -5 })), || {
        format!("{tag:?}")
    })
}

fn collectives(comm: &Comm) -> Result<(), String> {
    let (rank, size) = (comm.rank(), comm.size());
    for count in [1usize, 100, 30_000] {
        let at = |rank: u32, i: usize| u64::from(rank) * 1000 + i as u64;
        let mine: Vec<u64> = (0..count).map(|i| at(rank, i)).collect();
        let sum = |i: usize| (0..size).map(|r| at(r, i)).sum::<u64>();

        let root = size - 1;
        let mut data = mine.clone();
        comm.bcast(&mut data, root).map_err(words)?;
        demand((0..count).all(|i| data[i] == at(root, i)), || {
            format!("bcast of {count}")
        })?;

        let mut data = mine.clone();
        comm.allreduce(&mut data, Op::Sum).map_err(words)?;
        demand((0..count).all(|i| data[i] == sum(i)), || {
            format!("allreduce of {count}")
        })?;

        let mut data = mine.clone();
        comm.reduce(&mut data, Op::Max, 0).map_err(words)?;
        let of = if rank == 0 { size - 1 } else { rank };
        demand((0..count).all(|i| data[i] == at(of, i)), || {
            format!("reduce of {count}")
        })?;

        let mut all = vec![0; count * size as usize];
        comm.allgather(&mine, &mut all).map_err(words)?;
        let right = |(i, v): (usize, &u64)| *v == at((i / count) as u32, i % count);
        demand(all.iter().enumerate().all(right), || {
            format!("allgather of {count}")
        })?;

        let mut part = vec![0; count];
        comm.scatter(&all, &mut part, 0).map_err(words)?;
        demand(part == mine, || format!("scatter of {count}"))?;
        let mut back = vec![0; count * size as usize];
        comm.gather(&part, &mut back, 0).map_err(words)?;
        demand(rank != 0 || back == all, || format!("gather of {count}"))?;

        let out: Vec<u64> = (0..size)
            .flat_map(|to| (0..count).map(move |i| at(rank * 100 + to, i)))
            .collect();
        let mut into = vec![0; out.len()];
        comm.alltoall(&out, &mut into).map_err(words)?;
        let right = |(i, v): (usize, &u64)| *v == at((i / count) as u32 * 100 + rank, i % count);
        demand(into.iter().enumerate().all(right), || {
            format!("alltoall of {count}")
        })?;
    }
    let mut highest = [f64::from(rank) * 0.5];
    comm.allreduce(&mut highest, Op::Max).map_err(words)?;
    demand(highest[0] == f64::from(size - 1) * 0.5, || {
        format!("maximum {highest:?}")
    })
}

/// Checks that messages of one context are not visible in another.
fn contexts(comm: &Comm) -> Result<(), String> {
    let (rank, size) = (comm.rank(), comm.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let other = comm.dup().map_err(words)?;
    let mut from = ([0], [0]);
    comm.scope(|s| {
        s.isend(b"a", right, 7)?;
        other.scope(|t| {
            t.isend(b"b", right, 7)?;
            other.recv(&mut from.1, left, 7)?;
            comm.recv(&mut from.0, Source::Any, 7)?;
            Ok(())
        })
    })
    .map_err(words)?;
    demand(from == (*b"a", *b"b"), || {
        format!("contexts are mixed up: {from:?}")
    })
}

/// Returns a table of the paths from this rank to each other one.
fn table(job: &job::Job) -> String {
    let node = |rank| job.node_of(rank).unwrap_or_else(|| "?".to_owned());
    let mut text = String::new();
    for path in job.paths() {
        let used = if path.used { "used" } else { "not used" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "path {} ({}) -> {} ({}): {} {used}: {}",
            job.rank(),
            node(job.rank()),
            path.peer,
            node(path.peer),
            path.transport,
            path.path
                .map_or(path.reason, |p| p.reason)
                .replace('\n', " ")
        );
    }
    text
}

/// Prints the tables of all ranks at rank 0, in order.
fn show(comm: &Comm, table: &str) -> Result<(), String> {
    if comm.rank() != 0 {
        return comm.send(table.as_bytes(), 0, 8).map_err(words);
    }
    print!("{table}");
    for from in 1..comm.size() {
        let message = comm.mprobe(from, 8).map_err(words)?;
        let mut text = vec![0; message.status().length];
        message.recv(&mut text).map_err(words)?;
        print!("{}", String::from_utf8_lossy(&text));
    }
    Ok(())
}
