//! Prints rank and size; each process publishes a value and reads those of all others.
//!
//! ```sh
//! cargo build -p boot --example whoami
//! mpirun -n 4 target/debug/examples/whoami
//! mpiexec -n 4 target/debug/examples/whoami
//! mpiexec -n 4 target/debug/examples/whoami abort    # rank 1 ends the job, with exit code 7
//! ```
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("whoami: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut job = boot::detect()?;
    let (rank, size) = (job.rank(), job.size());
    let length = |rank: u32| (rank as usize * 1000 + 100) % boot::MAX_VALUE;
    let note = |rank: u32| vec![u8::try_from(rank % 256).unwrap_or(0); length(rank)];
    job.put("note", &note(rank))?;
    job.fence()?;
    for peer in 0..size {
        if job.get(peer, "note")?.as_deref() != Some(&note(peer)[..]) {
            return Err(format!("the value of rank {peer} differs from the published one").into());
        }
    }
    if job.get((rank + 1) % size, "nothing")?.is_some() {
        return Err("a value that was never published".into());
    }
    // Values of a second round are visible in addition to those of the first.
    job.put("again", &rank.to_le_bytes())?;
    job.fence()?;
    let last = size - 1;
    if job.get(last, "again")?.as_deref() != Some(&last.to_le_bytes()[..])
        || job.get(last, "note")?.is_none()
    {
        return Err("the values of the second round are wrong".into());
    }
    if std::env::args().nth(1).as_deref() == Some("abort") {
        if rank == 1 % size {
            eprintln!("{}", job.abort(7, "as requested"));
            std::process::exit(7);
        }
        std::thread::sleep(std::time::Duration::from_secs(60));
        return Err("the abort did not end this process".into());
    }
    println!(
        "rank {rank} of {size}, job {}, by {}",
        job.job(),
        job.launcher()
    );
    job.finalize()?;
    Ok(())
}
