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

/// What to build with: a person wants the fastest programs, CI to know within its time that they work.
const FOR_PEOPLE: &str = "release";
const FOR_CI: &str = "ci";

/// Gets what is missing, builds, and runs `esplab demo`.
pub(crate) fn demo(args: &[String]) -> Result<(), Failure> {
    show(FOR_PEOPLE, args)
}

/// For CI: the same, then a short round of the benchmarks.
pub(crate) fn demo_step() -> Outcome {
    show(FOR_CI, &[])?;
    Ok("esplab demo".into())
}

pub(crate) fn bench_step() -> Outcome {
    build(FOR_CI)?;
    run(patient(esplab(FOR_CI)?.args(["bench", "--quick"]), BENCH_LIMIT).current_dir(root()))?;
    Ok("esplab bench --quick".into())
}

fn show(profile: &str, args: &[String]) -> Result<(), Failure> {
    system::ensure(system::LAB)?;
    build(profile)?;
    run(patient(esplab(profile)?.arg("demo").args(args), DEMO_LIMIT).current_dir(root()))
}

fn build(profile: &str) -> Result<(), Failure> {
    let build = cargo([
        "build",
        "--profile",
        profile,
        "-p",
        "esp-daemon",
        "-p",
        "cli",
    ]);
    run(patient(&build, BUILD_LIMIT).current_dir(root()))
}

fn esplab(profile: &str) -> Result<Command, Failure> {
    Ok(Command::new(
        Workspace::load()?.target.join(profile).join("esplab"),
    ))
}
