//! Measures collectives: prints for each operation and length the algorithm, and the median and the
//! 99th percentile of its time on rank 0, in microseconds.
//!
//! ```sh
//! cargo build --release -p job --example collectives
//! mpirun -n 8 target/release/examples/collectives [--one-level]
//! ```
//!
//! `--one-level`: as if all ranks were on one node.

use std::time::Instant;

use p2p::{Collective, Comm, Error, Op};

/// Lengths in bytes: of the data, or for each rank (allgather, alltoall).
const LENGTHS: &[usize] = &[8, 1024, 16_384, 262_144];
/// Approximate time that one row takes, in seconds.
const SECONDS: f64 = 0.3;

fn main() {
    let one_level = std::env::args().any(|word| word == "--one-level");
    let joined = job::Options::from_env().and_then(|mut options| {
        if one_level {
            // More entries than ranks do no harm.
            options.p2p.nodes = vec![0; 1 << 16];
        }
        job::join_with(options)
    });
    let job = match joined {
        Ok(job) => job,
        Err(error) => {
            eprintln!("collectives: {error}");
            std::process::exit(2);
        }
    };
    if let Err(error) = measure(&job.world()) {
        job.abort(1, &error.to_string());
    }
    if let Err(error) = job.finalize() {
        eprintln!("collectives: {error}");
        std::process::exit(1);
    }
}

fn measure(world: &Comm) -> Result<(), Error> {
    row(world, Collective::Barrier, 0, || world.barrier())?;
    let size = world.size() as usize;
    for &length in LENGTHS {
        let mut data = vec![1_u64; length / 8];
        let mut all = vec![0_u64; length / 8 * size];
        row(world, Collective::Bcast, length, || {
            // So that rank 0 sees the arrival.
            world.bcast(&mut data, world.size() - 1)
        })?;
        row(world, Collective::Reduce, length, || {
            world.reduce(&mut data, Op::Max, 0)
        })?;
        row(world, Collective::Allreduce, length, || {
            world.allreduce(&mut data, Op::Max)
        })?;
        row(world, Collective::Allgather, length * size, || {
            world.allgather(&data, &mut all)
        })?;
        let out = vec![1_u64; length / 8 * size];
        row(world, Collective::Alltoall, length * size, || {
            world.alltoall(&out, &mut all)
        })?;
    }
    Ok(())
}

/// Measures one operation, a barrier before each.
fn row(
    world: &Comm,
    operation: Collective,
    bytes: usize,
    mut run: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    let mut once = || -> Result<f64, Error> {
        world.barrier()?;
        let begin = Instant::now();
        run()?;
        Ok(begin.elapsed().as_secs_f64())
    };
    let mut first = once()?;
    for _ in 0..3 {
        first = first.min(once()?);
    }
    // All ranks run as often as rank 0 chooses.
    let mut count = [(SECONDS / first.max(1e-6)).clamp(20.0, 3000.0) as u64];
    world.bcast(&mut count, 0)?;
    let mut times = (0..count[0])
        .map(|_| once())
        .collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f64::total_cmp);
    if world.rank() == 0 {
        let at = |part: usize| times[times.len() * part / 100] * 1e6;
        let algorithm = world.algorithm(operation, bytes).to_string();
        println!(
            "{operation:<10?} {bytes:>8} {algorithm:<24} {:>10.1} {:>10.1}",
            at(50),
            at(99)
        );
    }
    Ok(())
}
