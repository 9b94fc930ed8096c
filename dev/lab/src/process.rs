//! Processes identified by id and start time.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process since the machine booted. Ids are reused; an id with its start time is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRef {
    /// Process id.
    pub pid: i32,
    /// Clock ticks since boot at which it started (field 22 of `/proc/PID/stat`).
    pub start: u64,
}

impl ProcessRef {
    /// Returns the process that has this id now.
    pub fn of(pid: i32) -> io::Result<ProcessRef> {
        let (_, start) = stat(pid)?;
        Ok(ProcessRef { pid, start })
    }

    /// Returns the calling process.
    pub fn me() -> io::Result<ProcessRef> {
        ProcessRef::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Returns true while it runs; a zombie does not.
    pub fn is_alive(self) -> bool {
        stat(self.pid)
            .is_ok_and(|(state, start)| start == self.start && !matches!(state, 'Z' | 'X'))
    }

    /// Opens a descriptor of exactly this process; `None` if it has ended.
    pub(crate) fn open(self) -> Option<OwnedFd> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // Checked after opening: the descriptor stays with its process.
        self.is_alive().then_some(fd)
    }
}

/// Reads state letter and start time.
fn stat(pid: i32) -> io::Result<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&text).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "/proc/PID/stat is not as expected",
        )
    })
}

/// Parses `/proc/PID/stat` from the last parenthesis: the command name may contain any character.
fn parse_stat(text: &str) -> Option<(char, u64)> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

/// Returns the CPU time of all threads of a process in nanoseconds; `None` if it has ended or the
/// kernel does not report it.
pub fn cpu_time(process: ProcessRef) -> Option<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid)).ok()?;
    let times = tasks.map(|task| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    });
    let sum = times.sum();
    if process.is_alive() { sum } else { None }
}

/// Ends the processes: SIGTERM, then SIGKILL after `grace`, or SIGKILL at once if it is zero.
/// Returns when all have ended, or after five seconds.
pub(crate) fn end_all(processes: &[ProcessRef], grace: Duration) {
    let mut open: Vec<OwnedFd> = processes.iter().filter_map(|p| p.open()).collect();
    if !grace.is_zero() {
        for fd in &open {
            // The process may have ended meanwhile.
            let _ = pidfd_send_signal(fd, Signal::TERM);
        }
        wait_all(&mut open, grace);
    }
    for fd in &open {
        let _ = pidfd_send_signal(fd, Signal::KILL);
    }
    wait_all(&mut open, Duration::from_secs(5));
}

/// Waits until all have ended or the time is over; retains those that run.
fn wait_all(open: &mut Vec<OwnedFd>, limit: Duration) {
    let end = Instant::now() + limit;
    while let Some(first) = open.first() {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        });
        let mut fds = [PollFd::new(first, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => break,
            Ok(_) => {
                open.swap_remove(0);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn stat_is_parsed_with_any_command_name() {
        let line = "42 (a) S (b)) R 1 1 1 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 987654 1000 10 18446744073709551615";
        assert_eq!(parse_stat(line), Some(('R', 987_654)));
        for bad in ["", "42", "42 (x)", "42 (x) S 1 2 3"] {
            assert_eq!(parse_stat(bad), None, "{bad}");
        }
    }

    #[test]
    fn ends_only_the_named_process() -> io::Result<()> {
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()?;
        let named = ProcessRef::of(i32::try_from(child.id()).map_err(io::Error::other)?)?;
        let another = ProcessRef {
            start: named.start + 1,
            ..named
        };
        assert!(named.is_alive());
        assert!(!another.is_alive());
        end_all(&[another], Duration::ZERO);
        assert!(named.is_alive(), "another start time is another process");
        end_all(&[named], Duration::from_secs(5));
        assert!(!named.is_alive());
        child.wait()?;
        Ok(())
    }
}
