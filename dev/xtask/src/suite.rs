//! All tests of the project, and an honest count of them.

mod count;
mod libtest;
mod nextest;

use std::process::{Command, ExitCode};
use std::time::Duration;

pub(crate) use count::Counts;

use crate::ompi;
use crate::outcome::{Failure, Outcome, failed};
use crate::process::{cargo, filtered, find_program, nightly_cargo, patient, run};
use crate::steps::Steps;
use crate::system::{self, Missing};
use crate::workspace::{Workspace, root};

const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);
const TEST_LIMIT: Duration = Duration::from_secs(15 * 60);
/// Set, it makes tests panic that would skip themselves for want of a permission.
const REQUIRE: &str = "ESP_TEST_REQUIRE_PRIVILEGE";

/// What a skipped test means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skips {
    /// It is said loudly.
    Tell,
    /// It fails the run.
    Fail,
}

/// `cargo xtask test`.
pub(crate) fn run_all() -> Result<ExitCode, Failure> {
    let skips = if std::env::var_os(REQUIRE).is_some_and(|v| v == "1") {
        Skips::Fail
    } else {
        Skips::Tell
    };
    let mut steps = Steps::new("test");
    steps.step("packages", || packages(skips));
    let counts = all(&mut steps, skips)?;
    let code = steps.finish();
    counts.tell_skips();
    println!("{counts}");
    Ok(code)
}

/// Adds all tests to a list of steps.
pub(crate) fn all(steps: &mut Steps, skips: Skips) -> Result<Counts, Failure> {
    let workspace = Workspace::load()?;
    let mut counts = Counts::default();
    steps.step("build", build);
    steps.step("tests", || {
        judged(&mut counts, skips, || workspace_tests(&workspace, skips))
    });
    steps.step("doc tests", || {
        judged(&mut counts, skips, || doc_tests(skips))
    });
    steps.step("loom", || {
        judged(&mut counts, skips, || loom(&workspace, skips))
    });
    Ok(counts)
}

/// Tests that need the missing ones skip themselves, so a user who cannot install them gets on.
fn packages(skips: Skips) -> Outcome {
    if skips == Skips::Fail {
        system::ensure(system::CI)?;
    } else if system::is_root() {
        system::ensure(system::LAB)?;
    }
    match Missing::of(system::LAB) {
        None => Ok("all tools are there".into()),
        Some(missing) => Ok(format!(
            "tests of the virtual cluster will be SKIPPED: {missing}"
        )),
    }
}

/// Programs as well as tests: some tests start the programs.
fn build() -> Outcome {
    run(patient(
        &cargo(["build", "--workspace", "--all-targets"]),
        BUILD_LIMIT,
    )
    .current_dir(root()))?;
    Ok(format!(
        "programs and tests; component of Open MPI: {}",
        ompi::for_tests()?
    ))
}

/// Adds up, and fails when something failed, when nothing ran, or when something was skipped that may not be.
fn judged(
    sum: &mut Counts,
    skips: Skips,
    work: impl FnOnce() -> Result<Counts, Failure>,
) -> Outcome {
    let counts = work()?;
    let text = counts.to_string();
    let (all, bad, skipped) = (counts.all(), counts.failed, counts.skipped.len());
    sum.add(counts);
    match () {
        () if bad > 0 => failed(text),
        () if all == 0 => failed("not a single test was run"),
        () if skipped > 0 && skips == Skips::Fail => {
            failed(format!("{text}: skipped where nothing may be"))
        }
        () => Ok(text),
    }
}

fn workspace_tests(workspace: &Workspace, skips: Skips) -> Result<Counts, Failure> {
    if find_program("cargo-nextest").is_some() {
        nextest::run(&workspace.target, |command| prepared(command, skips))
    } else {
        let kinds = [
            "test",
            "--workspace",
            "--no-fail-fast",
            "--lib",
            "--bins",
            "--tests",
            "--examples",
        ];
        libtest(&mut cargo(kinds), skips)
    }
}

fn doc_tests(skips: Skips) -> Result<Counts, Failure> {
    libtest(
        &mut cargo(["test", "--workspace", "--doc", "--no-fail-fast"]),
        skips,
    )
}

/// Models of the shared-memory protocols, every interleaving of them. The flag changes what dependencies are, too, so
/// it has a target folder of its own.
fn loom(workspace: &Workspace, skips: Skips) -> Result<Counts, Failure> {
    let modelled: Vec<&str> = workspace
        .depending_on("loom")
        .map(|package| package.name.as_str())
        .collect();
    if modelled.is_empty() {
        return failed("no crate depends on loom: no model was checked");
    }
    let mut command = cargo(["test", "--no-fail-fast", "--lib"]);
    command
        .args(modelled.iter().flat_map(|name| ["-p", name]))
        .arg("--target-dir");
    command
        .arg(workspace.target.join("loom"))
        .arg("loom")
        .env("RUSTFLAGS", "--cfg loom");
    libtest(&mut command, skips)
}

/// Crates whose tests run under the address sanitizer, too: those that share memory, or hold pointers of their callers.
const SANITIZED: &[&str] = &["esp-engine", "shm-btl", "p2p"];
/// For which the nightly toolchain has the sanitizer's runtime.
const SANITIZER_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Unit tests and own integration tests of [`SANITIZED`] with each access to memory checked.
pub(crate) fn sanitizer(
    steps: &mut Steps,
    counts: &mut Counts,
    skips: Skips,
) -> Result<(), Failure> {
    let workspace = Workspace::load()?;
    steps.step("sanitizer", || {
        judged(counts, skips, || {
            let mut command =
                nightly_cargo(["test", "--no-fail-fast", "--lib", "--tests", "--target"]);
            command
                .arg(SANITIZER_TARGET)
                .arg("--target-dir")
                .arg(workspace.target.join("sanitizer"));
            command.args(SANITIZED.iter().flat_map(|name| ["-p", name]));
            // Leaks are no memory errors, and what a killed child process leaves is none either.
            command
                .env("RUSTFLAGS", "-Zsanitizer=address")
                .env("ASAN_OPTIONS", "detect_leaks=0");
            libtest(&mut command, skips)
        })
    });
    Ok(())
}

/// Runs `cargo test …` and reads its output. `--show-output` is how the words of a test that passed are to be had.
fn libtest(command: &mut Command, skips: Skips) -> Result<Counts, Failure> {
    let mut reader = libtest::Reader::default();
    let passed = filtered(
        &mut prepared(command.args(["--", "--show-output"]), skips),
        |output, line| reader.line(output, line),
    )?;
    let counts = reader.finish();
    if !passed && counts.failed == 0 {
        return failed("it did not build, or a test program ended before its tests did");
    }
    Ok(counts)
}

fn prepared(command: &Command, skips: Skips) -> Command {
    let mut command = patient(command, TEST_LIMIT);
    if skips == Skips::Fail {
        command.env(REQUIRE, "1");
    }
    command.current_dir(root());
    command
}

#[cfg(test)]
mod judging {
    use super::*;

    fn judge(passed: usize, bad: usize, skipped: usize, skips: Skips) -> Outcome {
        let skipped = (0..skipped)
            .map(|i| format!("test {i}: SKIPPED no permission"))
            .collect();
        judged(&mut Counts::default(), skips, || {
            Ok(Counts {
                passed,
                failed: bad,
                skipped,
            })
        })
    }

    #[test]
    fn what_fails_and_what_does_not() {
        assert!(judge(3, 0, 0, Skips::Fail).is_ok());
        assert!(judge(3, 1, 0, Skips::Tell).is_err());
        assert!(judge(0, 0, 0, Skips::Tell).is_err(), "nothing was run");
        assert!(judge(3, 0, 1, Skips::Tell).is_ok());
        assert!(judge(3, 0, 1, Skips::Fail).is_err());
    }
}
