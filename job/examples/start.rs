//! Measures the cost of a job's start for each rank: the time to join, the time of the first and of
//! the next message to a neighbour, the process's memory, its descriptors, and the values that it
//! reads from the launcher. Prints the median and the maximum over all ranks.
//!
//! ```sh
//! cargo build --release -p job --example start
//! mpiexec -n 64 target/release/examples/start
//! ```

use std::fs;
use std::io;
use std::time::Instant;

use job::Job;
use p2p::{Comm, Error, Rank};

/// Labels of the values of a rank, in the order of [`measure`].
const ROWS: [&str; 7] = [
    "join, ms",
    "first message, µs",
    "next message, µs",
    "own memory after the join, KiB",
    "own memory at the end, KiB",
    "descriptors",
    "values read from the launcher",
];

fn main() {
    let begin = Instant::now();
    let job = match job::join() {
        Ok(job) => job,
        Err(error) => {
            eprintln!("start: {error}");
            std::process::exit(2);
        }
    };
    let joined = begin.elapsed().as_millis();
    let joined = u64::try_from(joined).unwrap_or(u64::MAX);
    let measured = measure(&job, joined);
    if let Err(error) = measured {
        job.abort(1, &error.to_string());
    }
    if let Err(error) = job.finalize() {
        eprintln!("start: {error}");
        std::process::exit(1);
    }
}

fn measure(job: &Job, joined: u64) -> Result<(), Box<dyn std::error::Error>> {
    let world = &job.world();
    let after_join = own_memory()?;
    let first = to_neighbour(world)?;
    let next = to_neighbour(world)?;
    let own = [
        joined,
        first,
        next,
        after_join,
        own_memory()?,
        descriptors()?,
        job.lookups(),
    ];
    let is_first = world.rank() == 0;
    let ranks = if is_first { world.size() as usize } else { 0 };
    let mut all = vec![0; ROWS.len() * ranks];
    world.gather(&own, &mut all, 0)?;
    if is_first {
        println!("{ranks} ranks{:32} median   maximum", "");
        for (at, label) in ROWS.iter().enumerate() {
            let mut row: Vec<u64> = all.iter().skip(at).step_by(ROWS.len()).copied().collect();
            row.sort_unstable();
            let median = row.get(row.len() / 2).copied().unwrap_or(0);
            let most = row.last().copied().unwrap_or(0);
            println!("{label:34} {median:12} {most:9}");
        }
    }
    Ok(())
}

/// Sends a message to the next rank and receives that of the previous one, all ranks at once.
/// Returns the time in microseconds.
fn to_neighbour(world: &Comm) -> Result<u64, Error> {
    world.barrier()?;
    let (own, size) = (world.rank(), world.size());
    let next: Rank = (own + 1) % size;
    let previous: Rank = (own + size - 1) % size;
    let begin = Instant::now();
    let mut got = [0; 8];
    world.sendrecv(&[1; 8], next, 0, &mut got, previous, 0)?;
    Ok(u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX))
}

/// Returns the memory that belongs to this process alone, in KiB.
fn own_memory() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    let sizes = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Ok(sizes.sum())
}

fn descriptors() -> io::Result<u64> {
    Ok(fs::read_dir("/proc/self/fd")?.count() as u64)
}
