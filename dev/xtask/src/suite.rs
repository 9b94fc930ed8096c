//! All tests of the project, and an honest count: a test that skipped itself is not one that
//! passed.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;

use crate::ompi;
use crate::outcome::{Failure, Outcome, cannot_run, failed};
use crate::process::{cargo, output, quietly, run};
use crate::steps::Steps;
use crate::tools;
use crate::workspace::{Workspace, root};

/// If set to 1, tests panic that would skip themselves for want of a permission.
const REQUIRE: &str = "ESP_TEST_REQUIRE_PRIVILEGE";

/// Tests marked `#[ignore]` that others start in a process of their own.
const HELPERS: &[&str] = &["the_other_process"];

/// Number of tests that run at once for each core. Many tests wait for timers, links and processes.
const TESTS_PER_CORE: usize = 3;

/// Results of tests. A test that skipped itself is in `skipped` only.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    passed: usize,
    failed: usize,
    /// Names and reasons, those marked `#[ignore]` included.
    skipped: Vec<String>,
}

impl Counts {
    fn all(&self) -> usize {
        self.passed + self.failed + self.skipped.len()
    }

    /// Prints the tests that did not run, and the line that closes a run.
    pub(crate) fn report(&self) {
        if !self.skipped.is_empty() {
            println!(
                "\n!!! {} tests were SKIPPED and show nothing:",
                self.skipped.len()
            );
            self.skipped
                .iter()
                .for_each(|skipped| println!("  {skipped}"));
            println!("Most need root: sudo -E env \"PATH=$PATH\" cargo xtask test\n");
        }
        println!("{self}");
    }
}

/// The line that other test runners print, too.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped = self.skipped.len();
        write!(
            f,
            "{} passed, {} failed, {skipped} skipped",
            self.passed, self.failed
        )
    }
}

/// `cargo xtask test`.
pub(crate) fn run_all() -> Result<ExitCode, Failure> {
    let mut steps = Steps::new("test");
    steps.step("packages", || match tools::ensure(tools::LAB) {
        Ok(()) => Ok("the programs of the virtual cluster".into()),
        Err(e) => Ok(format!("tests of the virtual cluster will be SKIPPED: {e}")),
    });
    steps.step("tshark", || match tools::ensure(tools::TESTS) {
        Ok(()) => Ok("the programs of other tests".into()),
        Err(e) => Ok(format!(
            "tests of the Wireshark dissector will be SKIPPED: {e}"
        )),
    });
    let require = std::env::var_os(REQUIRE).is_some_and(|v| v == "1");
    let counts = all(&mut steps, require)?;
    let code = steps.finish();
    counts.report();
    Ok(code)
}

/// Adds all tests to a list of steps. With `require`, a test that skips itself fails.
pub(crate) fn all(steps: &mut Steps, require: bool) -> Result<Counts, Failure> {
    let workspace = Workspace::load()?;
    let mut counts = tests(steps, &workspace, require);
    models_and_docs(steps, &workspace, require, &mut counts);
    Ok(counts)
}

/// Builds everything, and runs unit and integration tests.
pub(crate) fn tests(steps: &mut Steps, workspace: &Workspace, require: bool) -> Counts {
    let mut counts = Counts::default();
    steps.step("build", build);
    steps.step("tests", || {
        let tests = nextest(workspace, &["--workspace"], &workspace.target, require);
        judged(&mut counts, require, tests?)
    });
    counts
}

/// Runs the tests that [`tests`] does not run.
pub(crate) fn models_and_docs(
    steps: &mut Steps,
    workspace: &Workspace,
    require: bool,
    counts: &mut Counts,
) {
    steps.step("models", || {
        judged(counts, require, models(workspace, require)?)
    });
    steps.step("doc tests", || judged(counts, require, doc_tests()?));
}

/// Programs as well as tests, because some tests start the programs.
fn build() -> Outcome {
    run(cargo(["build", "--locked", "--workspace", "--all-targets"]).current_dir(root()))?;
    let component = ompi::for_tests()?;
    Ok(format!(
        "programs and tests; component of Open MPI: {component}"
    ))
}

/// Adds up. Fails if a test failed, if none ran, or if one was skipped although none may be.
fn judged(sum: &mut Counts, require: bool, counts: Counts) -> Outcome {
    let text = counts.to_string();
    let (all, bad, skipped) = (counts.all(), counts.failed, counts.skipped.len());
    sum.passed += counts.passed;
    sum.failed += counts.failed;
    sum.skipped.extend(counts.skipped);
    match () {
        () if bad > 0 => failed(text),
        () if all == 0 => failed("not a single test was run"),
        () if skipped > 0 && require => failed(format!("{text}: skipped, although no test may be")),
        () => Ok(text),
    }
}

/// Models of the shared-memory protocols, checked by loom in every interleaving. The flag changes
/// how dependencies are compiled, so they have a target folder of their own.
fn models(workspace: &Workspace, require: bool) -> Result<Counts, Failure> {
    let mut args = vec!["--lib", "-E", "test(loom) | test(model)"];
    for package in workspace.depending_on("loom") {
        args.extend(["-p", &package.name]);
    }
    let target = workspace.target.join("loom");
    nextest(workspace, &args, &target, require)
}

/// Runs tests by cargo-nextest, which shows its progress itself, and reads its report.
fn nextest(
    workspace: &Workspace,
    args: &[&str],
    target: &Path,
    require: bool,
) -> Result<Counts, Failure> {
    let command = |what: &str| -> Result<Command, Failure> {
        let mut command = tools::subcommand(workspace, "nextest")?;
        command.arg(what).args(args).arg("--target-dir").arg(target);
        if target != workspace.target {
            command.env("RUSTFLAGS", "--cfg loom");
        }
        if require {
            command.env(REQUIRE, "1");
        }
        Ok(command)
    };
    // nextest's store is below the root of the workspace, whatever the target folder is.
    let report = root().join("target/nextest/default/junit.xml");
    // The report of an earlier run.
    let _ = fs::remove_file(&report);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores * TESTS_PER_CORE).to_string();
    let passed = match run(command("run")?.args(["--test-threads", &threads])) {
        Ok(()) => true,
        Err(Failure::Failed(_)) => false,
        Err(other) => return Err(other),
    };
    let mut counts = match fs::read_to_string(&report) {
        Ok(text) => read_report(&text),
        Err(e) => return cannot_run(format!("no report in {}: {e}", report.display())),
    };
    if passed != (counts.failed == 0) {
        return failed(format!("cargo nextest and its report disagree: {counts}"));
    }
    let mut list = command("list")?;
    let ignored = output(list.args(["--run-ignored=only", "--message-format=oneline"]))?;
    counts.skipped.extend(read_ignored(&ignored));
    Ok(counts)
}

/// Names of the tests marked `#[ignore]` except [`HELPERS`].
fn read_ignored(list: &str) -> impl Iterator<Item = String> {
    let names = list.lines().map(str::trim).filter(|name| !name.is_empty());
    names
        .filter(|name| !HELPERS.iter().any(|helper| name.ends_with(helper)))
        .map(|name| format!("{name}: marked #[ignore]"))
}

/// Reads the report, which is XML in the form of JUnit. `.config/nextest.toml` includes the output
/// of the tests that passed.
fn read_report(xml: &str) -> Counts {
    let mut counts = Counts::default();
    for case in xml.split("<testcase ").skip(1) {
        let case = case.split("</testcase>").next().unwrap_or(case);
        let (head, body) = case.split_once('>').unwrap_or((case, ""));
        let mut lines = body.split(['\n', '>']).map(str::trim);
        if body.contains("<failure") || body.contains("<error") {
            counts.failed += 1;
        } else if let Some(reason) = lines.find(|line| line.starts_with("SKIPPED")) {
            let reason = reason.split('<').next().unwrap_or(reason);
            let name = head
                .split("name=\"")
                .nth(1)
                .and_then(|n| n.split('"').next());
            counts
                .skipped
                .push(format!("{}: {reason}", name.unwrap_or("?")));
        } else {
            counts.passed += 1;
        }
    }
    counts
}

/// Documentation tests, which nextest does not run. None of them can skip itself.
fn doc_tests() -> Result<Counts, Failure> {
    let mut command = cargo(["test", "--locked", "--workspace", "--doc", "--no-fail-fast"]);
    let (status, text) = quietly(command.current_dir(root()))?;
    let counts = read_results(&text);
    if !status.success() || counts.failed > 0 {
        eprintln!("{text}");
    }
    if !status.success() && counts.failed == 0 {
        return failed("documentation tests could not be run");
    }
    Ok(counts)
}

/// Adds up lines such as `test result: ok. 5 passed; 0 failed; 1 ignored; …`.
fn read_results(text: &str) -> Counts {
    let mut counts = Counts::default();
    let results = text
        .lines()
        .filter_map(|line| line.strip_prefix("test result: "));
    for part in results.flat_map(|line| line.split(['.', ';'])) {
        let (number, word) = part.trim().split_once(' ').unwrap_or_default();
        let number = number.parse().unwrap_or(0);
        match word {
            "passed" => counts.passed += number,
            "failed" => counts.failed += number,
            "ignored" => {
                let ignored = std::iter::repeat_n("a documentation test marked `ignore`", number);
                counts.skipped.extend(ignored.map(str::to_owned));
            }
            _ => {}
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<testsuites name="nextest-run" tests="4" failures="1" errors="0">
    <testsuite name="netif" tests="4" disabled="0" errors="0" failures="1">
        <testcase name="a::b" classname="netif" timestamp="x" time="0.004">
            <system-out>running 1 test
nothing was SKIPPED
</system-out>
        </testcase>
        <testcase name="c" classname="netif::socket"><system-err>some words
  SKIPPED: needs root
</system-err></testcase>
        <testcase name="d" classname="netif"><failure message="x">SKIPPED?</failure></testcase>
        <testcase name="e" classname="netif"><system-err>SKIPPED at once</system-err></testcase>
    </testsuite>
</testsuites>"#;

    #[test]
    fn a_test_that_skipped_itself_has_not_passed() {
        let counts = read_report(REPORT);
        assert_eq!(counts.to_string(), "1 passed, 1 failed, 2 skipped");
        assert_eq!(
            counts.skipped,
            ["c: SKIPPED: needs root", "e: SKIPPED at once"]
        );
    }

    #[test]
    fn an_ignored_test_is_skipped_and_a_helper_is_not() {
        let list = "p::bin a::slow\np::bin tests::the_other_process\n";
        let names: Vec<String> = read_ignored(list).collect();
        assert_eq!(names, ["p::bin a::slow: marked #[ignore]"]);
    }

    #[test]
    fn results_of_documentation_tests_add_up() {
        let text = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured\n\
                    test result: FAILED. 2 passed; 1 failed; 0 ignored; finished in 0.1s";
        assert_eq!(
            read_results(text).to_string(),
            "7 passed, 1 failed, 1 skipped"
        );
    }

    #[test]
    fn what_fails_a_run() {
        let judge = |passed, failed, skipped, require| {
            let skipped = vec!["t: SKIPPED".to_owned(); skipped];
            judged(
                &mut Counts::default(),
                require,
                Counts {
                    passed,
                    failed,
                    skipped,
                },
            )
        };
        assert!(judge(3, 0, 0, true).is_ok());
        assert!(judge(3, 1, 0, false).is_err());
        assert!(judge(0, 0, 0, false).is_err(), "nothing was run");
        assert!(judge(3, 0, 1, false).is_ok());
        assert!(judge(3, 0, 1, true).is_err());
    }
}
