//! The tour, and what a release build is good for besides.

use std::process::Command;
use std::time::Duration;

use crate::outcome::{Failure, Outcome};
use crate::process::{cargo, patient, run};
use crate::system;
use crate::workspace::{Workspace, root};

const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);
const DEMO_LIMIT: Duration = Duration::from_secs(3 * 60);
const BENCH_LIMIT: Duration = Duration::from_secs(10 * 60);

/// Gets what is missing, builds, and runs `esplab demo`.
pub(crate) fn demo(args: &[String]) -> Result<(), Failure> {
    system::ensure(system::LAB)?;
    build()?;
    run(patient(esplab()?.arg("demo").args(args), DEMO_LIMIT).current_dir(root()))
}

/// For CI: the same, then a short round of the benchmarks.
pub(crate) fn demo_step() -> Outcome {
    demo(&[])?;
    Ok("esplab demo".into())
}

pub(crate) fn bench_step() -> Outcome {
    build()?;
    run(patient(esplab()?.args(["bench", "--quick"]), BENCH_LIMIT).current_dir(root()))?;
    Ok("esplab bench --quick".into())
}

fn build() -> Result<(), Failure> {
    run(patient(&cargo(["build", "--release", "-p", "esp-daemon", "-p", "cli"]), BUILD_LIMIT)
        .current_dir(root()))
}

fn esplab() -> Result<Command, Failure> {
    Ok(Command::new(Workspace::load()?.target.join("release/esplab")))
}
