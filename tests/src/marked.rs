//! Processes of a test, found by a variable in their environment wherever they are: those started
//! by launchers are not children of the test.

use std::fs;
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

/// Name of the variable.
const VARIABLE: &str = "ESP_TEST_MARK";

/// A value of the variable that no other test has. Kills the processes that have it on drop.
pub struct Mark(String);

impl Mark {
    /// Creates a value.
    #[allow(clippy::new_without_default)] // each value is different
    pub fn new() -> Mark {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Mark(format!("{}-{number}.", std::process::id()))
    }

    /// Returns the value.
    pub fn value(&self) -> &str {
        &self.0
    }

    /// Marks the processes that the command starts.
    pub fn put_on(&self, command: &mut Command) {
        command.env(VARIABLE, &self.0);
    }

    /// Returns the running marked processes, with their command lines.
    pub fn processes(&self) -> Vec<(i32, String)> {
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| self.is_on(*pid).unwrap_or(false))
            .map(|pid| (pid, command_line(pid)))
            .collect()
    }

    /// Returns the marked processes with a command line that is `wanted`.
    pub fn running(&self, wanted: impl Fn(&str) -> bool) -> Vec<i32> {
        let mut found = self.processes();
        found.retain(|(_, line)| wanted(line));
        found.into_iter().map(|(pid, _)| pid).collect()
    }

    /// Looks into the environment that a process was started with. That of a zombie is empty.
    fn is_on(&self, pid: i32) -> io::Result<bool> {
        let wanted = format!("{VARIABLE}={}", self.0);
        let environment = fs::read(format!("/proc/{pid}/environ"))?;
        Ok(environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == wanted.as_bytes()))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        while let processes @ [_, ..] = &*self.processes() {
            for (pid, _) in processes {
                // It may have ended since.
                let _ = Pid::from_raw(*pid).map(|pid| kill_process(pid, Signal::KILL));
            }
        }
    }
}

/// Returns the words of a process's command line, separated by spaces.
fn command_line(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}
