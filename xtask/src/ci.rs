//! What CI runs. A person can run it, too; it needs the superuser's rights for the network namespaces.

use std::process::ExitCode;

use crate::outcome::Failure;
use crate::steps::Steps;
use crate::suite::Skips;
use crate::{check, demo, fuzz, suite, system};

/// Seconds for each fuzz target.
const FUZZ_SECONDS: u64 = 8;

/// Three tiers; a later one is left out when an earlier one failed.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    let mut steps = Steps::new("ci");
    steps.step("system", || system::ensure(system::CI).map(|()| "all tools are there".into()));
    check::all(&mut steps)?;
    let mut counts = suite::Counts::default();
    if steps.all_passed() {
        counts = suite::all(&mut steps, Skips::Fail)?;
    } else {
        steps.left_out("tests");
    }
    if steps.all_passed() {
        suite::sanitizer(&mut steps, &mut counts, Skips::Fail)?;
    } else {
        steps.left_out("sanitizer");
    }
    if steps.all_passed() {
        steps.step("fuzz", || fuzz::run_all(FUZZ_SECONDS));
        steps.step("demo", demo::demo_step);
        steps.step("bench", demo::bench_step);
    } else {
        ["fuzz", "demo", "bench"].into_iter().for_each(|name| steps.left_out(name));
    }
    let code = steps.finish();
    counts.tell_skips();
    println!("{counts}");
    Ok(code)
}
