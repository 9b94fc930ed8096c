//! Jobs that run while a test acts.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use esp_tests::open_mpi::Program;
use esp_tests::process::Finished;
use lab::Lab;

use super::mpirun;

/// A job that runs until it is ended.
pub(super) struct Running {
    child: Child,
    program: Program,
}

impl Running {
    pub(super) fn start(
        test: &str,
        lab: &Lab,
        more: &[&str],
        arguments: &[&str],
    ) -> Option<Running> {
        let program = Program::new(test, "endless")?;
        let mut command = mpirun(lab, 2, 2, "esp,self", more, program.file());
        let child = command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let running = Running {
            child: child.expect("start mpirun"),
            program,
        };
        // Each rank writes its file when it has received from the other.
        let deadline = Instant::now() + Duration::from_secs(60);
        while running.pids().len() < 2 {
            assert!(Instant::now() < deadline, "the job did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(running)
    }

    /// Returns the process ids of the ranks, which they write to files.
    pub(super) fn pids(&self) -> Vec<i32> {
        let read = |rank: u32| {
            let text = fs::read_to_string(
                self.program
                    .file()
                    .with_file_name(format!("endless.{rank}")),
            )
            .ok()?;
            text.trim().parse().ok()
        };
        (0..2).filter_map(read).collect()
    }

    /// Waits for the end of the job.
    pub(super) fn end(self) -> Finished {
        let Running { child, program: _ } = self;
        let output = child.wait_with_output().expect("wait for mpirun");
        Finished {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
