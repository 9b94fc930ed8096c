//! Unambiguous identity of a process: its id and start time in one pid namespace.

use std::fmt;
use std::fs;
use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::BootError;
use crate::error::Context;

/// Identity as three numbers: process id, start time in clock ticks since boot, inode of the pid
/// namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    start: u64,
    namespace: u64,
}

impl Process {
    /// Returns the identity of this process.
    pub(super) fn me() -> Result<Process, BootError> {
        let doing = || format!("{}: reading /proc", super::NAME);
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let (_, start) = stat("self").context(doing)?;
        Ok(Process {
            pid,
            start,
            namespace: namespace().context(doing)?,
        })
    }

    /// Parses the three numbers.
    pub(super) fn parse(text: &str) -> Option<Process> {
        let mut words = text.split(' ');
        let pid = words.next()?.parse().ok().filter(|&pid: &i32| pid > 1)?;
        let process = Process {
            pid,
            start: words.next()?.parse().ok()?,
            namespace: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(process)
    }

    /// Returns true if the process is known to have ended; false if it runs, or is not visible from
    /// here.
    pub(super) fn is_dead(self) -> bool {
        self.is_here() && !self.runs()
    }

    /// Sends SIGTERM to the process if it runs on this machine and still has its identity.
    pub(super) fn end(self) {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_here()) else {
            return;
        };
        if let Ok(fd) = pidfd_open(pid, PidfdFlags::empty())
            // Checked after opening, because the descriptor keeps its process even if the id is
            // reused.
            && self.runs()
        {
            // The process may have ended in the meantime.
            let _ = pidfd_send_signal(&fd, Signal::TERM);
        }
    }

    fn is_here(self) -> bool {
        namespace().is_ok_and(|namespace| namespace == self.namespace)
    }

    /// Returns true if the process runs; a zombie does not.
    fn runs(self) -> bool {
        stat(&self.pid.to_string())
            .is_ok_and(|(state, start)| start == self.start && !matches!(state, 'Z' | 'X'))
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.pid, self.start, self.namespace)
    }
}

fn namespace() -> io::Result<u64> {
    fs::metadata("/proc/self/ns/pid").map(|m| std::os::unix::fs::MetadataExt::ino(&m))
}

/// Parses the state letter and the start time after the last parenthesis (the program's name may
/// contain any character).
fn stat(process: &str) -> io::Result<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let parse = || {
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        Some((
            fields.next()?.chars().next()?,
            fields.nth(18)?.parse().ok()?,
        ))
    };
    parse().ok_or_else(|| io::Error::other("/proc/PID/stat has an unknown format"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn only_the_named_process_is_ended() {
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let id = child.id();
        let (_, start) = stat(&id.to_string()).unwrap();
        let me = Process::me().unwrap();
        let named = Process {
            pid: i32::try_from(id).unwrap(),
            start,
            ..me
        };
        assert_eq!(Process::parse(&named.to_string()), Some(named));
        let another = Process {
            start: start + 1,
            ..named
        };
        another.end();
        let elsewhere = Process {
            namespace: 1,
            ..named
        };
        elsewhere.end();
        assert!(another.is_dead() && !elsewhere.is_dead() && !named.is_dead());
        assert!(
            child.try_wait().unwrap().is_none(),
            "a process with another start time"
        );
        named.end();
        assert!(!child.wait().unwrap().success());
        assert!(named.is_dead());
    }

    #[test]
    fn invalid_text_is_not_a_process() {
        for text in [
            "",
            "1 2 3",
            "-5 2 3",
            "0 1 2",
            "7",
            "7 1",
            "7 1 2 3",
            "x y z",
            "99999999999 1 1",
        ] {
            assert_eq!(Process::parse(text), None, "{text}");
        }
    }
}
