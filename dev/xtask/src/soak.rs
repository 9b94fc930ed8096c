//! `tests/soak` in the background of CI: mixed load on four nodes while links flap and daemons end.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::outcome::{Failure, Outcome, cannot_run, failed};
use crate::workspace::{Workspace, root};

/// Minutes of load in CI.
const MINUTES: &str = "5";
/// Seconds between two programs of each kind of load, so that the gates that run at the same time
/// get processors.
const REST: &str = "3";
/// Programs that the soak starts, and the component for its MPI jobs, if it was built.
const PROGRAMS: [&str; 4] = ["esplab", "esp-daemon", "esping", "espstat"];
const COMPONENT: [&str; 2] = ["mca_btl_esp.so", "help-mpi-btl-esp.txt"];

/// A soak that runs. Dropped, it ends early and leaves nothing behind.
pub(crate) struct Soak {
    child: Child,
    report: PathBuf,
}

impl Soak {
    /// Starts the soak with copies of the built programs: later steps may build these anew.
    pub(crate) fn start(workspace: &Workspace) -> Result<Soak, Failure> {
        let dir = workspace.target.join("soak");
        copy_programs(&workspace.target.join("debug"), &dir)
            .or_else(|e| cannot_run(format!("copying programs to {}: {e}", dir.display())))?;
        let mut soak = Command::new(root().join("tests/soak"));
        soak.arg(MINUTES).env("PROGRAMS", &dir).env("REST", REST);
        Soak::run(soak, &dir.join("report"))
    }

    fn run(mut soak: Command, report: &Path) -> Result<Soak, Failure> {
        let mut started = || -> io::Result<Child> {
            let out = File::create(report)?;
            let errors = out.try_clone()?;
            // It ends when the other end of this pipe is closed, even if CI was killed.
            soak.env("LEASH", "1").stdin(Stdio::piped());
            soak.stdout(out).stderr(errors).spawn()
        };
        match started() {
            Ok(child) => Ok(Soak {
                child,
                report: report.to_owned(),
            }),
            Err(e) => cannot_run(format!("tests/soak did not start: {e}")),
        }
    }

    /// Waits for the end. A failure prints the report, which has the seed.
    pub(crate) fn finish(mut self) -> Outcome {
        // `wait` would close the pipe.
        let pipe = self.child.stdin.take();
        let status = self.child.wait();
        drop(pipe);
        let report = fs::read_to_string(&self.report).unwrap_or_default();
        let seed = report.lines().next().unwrap_or("no seed").to_owned();
        match status {
            Ok(status) if status.success() => {
                let last = report.lines().last().unwrap_or_default();
                Ok(format!("{last} ({seed})"))
            }
            Ok(status) => {
                eprintln!("{report}");
                failed(format!(
                    "{status}, {seed}: repeat by tests/soak {MINUTES} SEED"
                ))
            }
            Err(e) => cannot_run(format!("waiting for tests/soak: {e}")),
        }
    }
}

impl Drop for Soak {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn copy_programs(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for name in PROGRAMS.iter().chain(&COMPONENT) {
        // An earlier soak that was killed may still run it: replaced, not overwritten.
        let new = to.join("new");
        match fs::copy(from.join(name), &new) {
            Ok(_) => fs::rename(&new, to.join(name))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound && COMPONENT.contains(name) => {}
            Err(e) => return Err(io::Error::new(e.kind(), format!("{name}: {e}"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(name: &str, text: &str) -> Result<Soak, Failure> {
        let report = std::env::temp_dir().join(format!("esp-soak-{name}-{}", std::process::id()));
        let mut command = Command::new("bash");
        command.args(["-c", text]);
        Soak::run(command, &report)
    }

    #[test]
    fn its_exit_code_decides_and_its_seed_is_named() {
        let passed = script("passed", "echo seed 7; echo fine").and_then(Soak::finish);
        assert_eq!(passed, Ok("fine (seed 7)".into()));
        let bad = script("failed", "echo seed 8; exit 1").and_then(Soak::finish);
        assert!(matches!(bad, Err(Failure::Failed(text)) if text.contains("seed 8")));
    }

    #[test]
    fn it_ends_when_ci_does() {
        let name = "ended";
        let soak = script(name, "read -r _; echo ended").expect("started");
        let report = soak.report.clone();
        drop(soak);
        assert_eq!(fs::read_to_string(report).expect("a report"), "ended\n");
    }

    #[test]
    fn a_missing_program_is_named() {
        let dir = std::env::temp_dir().join(format!("esp-soak-copy-{}", std::process::id()));
        let (from, to) = (dir.join("from"), dir.join("to"));
        fs::create_dir_all(&from).expect("a folder");
        for name in &PROGRAMS[1..] {
            fs::write(from.join(name), name).expect("a file");
        }
        let missing = copy_programs(&from, &to).expect_err("without esplab");
        assert!(missing.to_string().starts_with("esplab"), "{missing}");
        fs::write(from.join(PROGRAMS[0]), "x").expect("a file");
        copy_programs(&from, &to).expect("without the component");
        assert_eq!(fs::read_dir(&to).expect("a folder").count(), PROGRAMS.len());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
