//! What CI runs. A person can run it, too; it needs the superuser's rights for the network namespaces.

use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::outcome::{Failure, Outcome};
use crate::process::{patient, run as run_command};
use crate::steps::Steps;
use crate::suite::Skips;
use crate::workspace::root;
use crate::{check, demo, fuzz, suite, system};

/// Seconds for each fuzz target.
const FUZZ_SECONDS: u64 = 8;

/// Longest that other people's suites, and the tests in the guest, may take (with their downloads).
const SCRIPT_LIMIT: Duration = Duration::from_secs(12 * 60);

/// Three tiers; a later one is left out when an earlier one failed.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    let mut steps = Steps::new("ci");
    steps.step("system", || {
        system::ensure(system::CI).map(|()| "all tools are there".into())
    });
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
        steps.step("suites", suites);
        steps.step("guest", guest);
        steps.step("demo", demo::demo_step);
        steps.step("bench", demo::bench_step);
    } else {
        ["fuzz", "suites", "guest", "demo", "bench"]
            .into_iter()
            .for_each(|name| steps.left_out(name));
    }
    let code = steps.finish();
    counts.tell_skips();
    println!("{counts}");
    Ok(code)
}

/// Part of each suite of MPI programs, by our component and by TCP, compared. The programs are those of the tests. And the component's shim
/// against the headers of Open MPI 5.
fn suites() -> Outcome {
    let compiled = script("tests/mpi/open-mpi-5")?;
    Ok(format!("{compiled}, {}", script("tests/mpi/run")?))
}

/// The InfiniBand transport over soft-RoCE, in a guest with a kernel of its own.
fn guest() -> Outcome {
    script("tests/vm/ci")
}

fn script(path: &str) -> Outcome {
    run_command(patient(&Command::new(root().join(path)), SCRIPT_LIMIT).current_dir(root()))?;
    Ok(path.into())
}
