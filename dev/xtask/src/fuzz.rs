//! Each fuzz target for a short while: enough to see that it builds, runs, and finds nothing near the surface.

use std::fs;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use crate::outcome::{Failure, Outcome, cannot_run, failed};
use crate::process::{cargo, filtered, find_program, nightly_cargo, output, patient, run};
use crate::system;
use crate::workspace::root;

const BUILD_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Beyond the time a target is given; then it hangs.
const GRACE: Duration = Duration::from_secs(60);

/// Runs every target for `seconds`.
pub(crate) fn run_all(seconds: u64) -> Outcome {
    if !system::has_nightly() {
        return cannot_run(
            "fuzzing needs a nightly toolchain; run: rustup toolchain install nightly",
        );
    }
    if find_program("cargo-fuzz").is_none() {
        run(
            patient(&cargo(["install", "cargo-fuzz", "--locked"]), BUILD_LIMIT).current_dir(root()),
        )?;
    }
    let list = output(nightly_cargo(["fuzz", "list", "--fuzz-dir=fuzz"]).current_dir(root()))?;
    let targets: Vec<&str> = list
        .lines()
        .map(str::trim)
        .filter(|t| !t.is_empty())
        .collect();
    if targets.is_empty() {
        return failed("dev/fuzz/ has no target: nothing was fuzzed");
    }
    run(patient(
        &nightly_cargo(["fuzz", "build", "--fuzz-dir=fuzz"]),
        BUILD_LIMIT,
    )
    .current_dir(root()))?;
    let total = run_beside(&targets, seconds)?;
    Ok(format!(
        "{} targets, {seconds} s each, {total} inputs",
        targets.len()
    ))
}

/// As many at a time as there are processors: a fuzzer uses one.
fn run_beside(targets: &[&str], seconds: u64) -> Result<u64, Failure> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut tried = 0;
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            tried += run_one(target, seconds)?;
        }
        Ok(tried)
    };
    let workers = thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(targets.len());
    thread::scope(|scope| {
        let working: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let ended = |worker: ScopedJoinHandle<'_, _>| {
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        working.into_iter().map(ended).sum()
    })
}

/// Returns how many inputs were tried.
fn run_one(target: &str, seconds: u64) -> Result<u64, Failure> {
    let corpus = format!("dev/fuzz/corpus/{target}");
    if let Err(e) = fs::create_dir_all(root().join(&corpus)) {
        return cannot_run(format!("making {corpus}: {e}"));
    }
    let mut command = nightly_cargo(["fuzz", "run", "--fuzz-dir=fuzz", target, &corpus]);
    let seeds = format!("dev/fuzz/seeds/{target}");
    if root().join(&seeds).is_dir() {
        command.arg(seeds);
    }
    // Bounded in time, in memory, and in the time of one input.
    command.arg("--").arg(format!("-max_total_time={seconds}"));
    command.args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]);
    let mut tried = 0;
    let limit = Duration::from_secs(seconds) + GRACE;
    let passed = filtered(patient(&command, limit).current_dir(root()), |_, line| {
        tried = executed(line).unwrap_or(tried);
        if !is_progress(line) {
            println!("{target}: {line}");
        }
        false
    })?;
    match (passed, tried) {
        (false, _) => failed(format!(
            "{target} found something, or hung; see above and dev/fuzz/artifacts/{target}"
        )),
        (true, 0) => failed(format!("{target} tried no input: nothing was fuzzed")),
        (true, tried) => Ok(tried),
    }
}

/// The count of a line like `stat::number_of_executed_units: 12345`.
fn executed(line: &str) -> Option<u64> {
    line.strip_prefix("stat::number_of_executed_units:")?
        .trim()
        .parse()
        .ok()
}

/// A line like `#1024 pulse  cov: 3 …`, of which there are hundreds.
fn is_progress(line: &str) -> bool {
    line.starts_with('#') || line.contains("NEW_FUNC[") || line.contains("\" # Uses: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_inputs_is_read() {
        assert_eq!(executed("stat::number_of_executed_units: 4711"), Some(4711));
        assert_eq!(executed("stat::average_exec_per_sec:     1"), None);
        assert!(is_progress("#2\tINITED cov: 5") && !is_progress("==1== ERROR: libFuzzer"));
    }
}
