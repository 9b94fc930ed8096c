//! Processes identified by id and start time.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal, set_child_subreaper,
};
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
        let Stat { start, .. } = stat(pid)?;
        Ok(ProcessRef { pid, start })
    }

    /// Returns the calling process.
    pub fn me() -> io::Result<ProcessRef> {
        ProcessRef::of(getpid().as_raw_nonzero().get())
    }

    /// Returns true while one of the process's threads runs; a zombie does not.
    pub fn is_alive(self) -> bool {
        stat(self.pid).is_ok_and(|found| found.start == self.start && found.runs())
    }

    /// Opens a descriptor of exactly this process, which is readable once the process has ended;
    /// `None` if it has ended already.
    pub fn open(self) -> Option<OwnedFd> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // Checked after opening, because the descriptor stays with its process.
        self.is_alive().then_some(fd)
    }
}

/// Formats as `PID:START`, as options of programs do.
impl fmt::Display for ProcessRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pid, self.start)
    }
}

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: i32,
    threads: u32,
    start: u64,
}

impl Stat {
    /// Returns false for a zombie. The state is that of the first thread, which may have ended
    /// before others: a killed process closes its descriptors in the last one.
    fn runs(self) -> bool {
        !matches!(self.state, 'Z' | 'X') || self.threads > 1
    }
}

/// Reads the fields of a process.
fn stat(pid: i32) -> io::Result<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&text).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "/proc/PID/stat is not as expected",
        )
    })
}

/// Parses `/proc/PID/stat` from the last parenthesis: the command name may contain any character.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    Some(Stat {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        threads: fields.nth(15)?.parse().ok()?,
        start: fields.nth(1)?.parse().ok()?,
    })
}

/// Returns the process ids of this machine.
pub(crate) fn all() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the calling process, its parent, and so on.
pub(crate) fn lineage() -> Vec<ProcessRef> {
    let mut found = Vec::new();
    let mut pid = getpid().as_raw_nonzero().get();
    // Process 0 is the parent of the first process, or of another namespace.
    while pid > 0
        && let Ok(Stat { parent, start, .. }) = stat(pid)
    {
        found.push(ProcessRef { pid, start });
        pid = parent;
    }
    found
}

/// Makes the calling process the parent of its descendants whose parent ends, so that
/// [`end_descendants`] finds all of them.
pub fn adopt_descendants() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Waits for the end of all descendants of the calling process, and kills them by SIGKILL after
/// `grace`. Returns when there are none, or after five more seconds. See [`adopt_descendants`].
pub fn end_descendants(grace: Duration) {
    let me = getpid().as_raw_nonzero().get();
    let end = Instant::now() + grace;
    while Instant::now() < end && !descendants(me).is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    end_until_none(|| descendants(me));
}

/// Ends the processes that `find` returns, until it returns none, or for five seconds: processes
/// may have started others before they end.
pub(crate) fn end_until_none(find: impl Fn() -> Vec<ProcessRef>) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let found = find();
        if found.is_empty() || Instant::now() > end {
            return;
        }
        end_all(&found, Duration::ZERO);
    }
}

/// Returns the running descendants of a process.
fn descendants(of: i32) -> Vec<ProcessRef> {
    let mut rest: Vec<(i32, Stat)> = all()
        .filter_map(|pid| Some((pid, stat(pid).ok()?)))
        .collect();
    let mut family = HashSet::from([of]);
    let mut found = Vec::new();
    loop {
        let (children, others): (Vec<_>, Vec<_>) = rest
            .into_iter()
            .partition(|(_, stat)| family.contains(&stat.parent));
        if children.is_empty() {
            return found;
        }
        family.extend(children.iter().map(|(pid, _)| *pid));
        let running = children.into_iter().filter(|(_, stat)| stat.runs());
        found.extend(running.map(|(pid, Stat { start, .. })| ProcessRef { pid, start }));
        rest = others;
    }
}

/// Returns the CPU time of all threads of a process in nanoseconds; `None` if it has ended or the
/// kernel does not report it.
pub fn cpu_time(process: ProcessRef) -> Option<u64> {
    Some(cpu_times(process)?.values().sum())
}

/// Returns the CPU time of each thread of a process in nanoseconds, by the thread's id; `None` if
/// the process has ended or the kernel does not report it.
pub fn cpu_times(process: ProcessRef) -> Option<BTreeMap<String, u64>> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid)).ok()?;
    // A thread may have ended since.
    let times = tasks.filter_map(|task| {
        let task = task.ok()?;
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let time = text.split_ascii_whitespace().next()?.parse().ok()?;
        Some((task.file_name().to_string_lossy().into_owned(), time))
    });
    let times: BTreeMap<_, _> = times.collect();
    (process.is_alive() && !times.is_empty()).then_some(times)
}

/// Stops the processes, so that none reacts to the end of another, until [`end_all`].
pub(crate) fn stop_all(processes: &[ProcessRef]) {
    for fd in processes.iter().filter_map(|p| p.open()) {
        // The process may have ended since.
        let _ = pidfd_send_signal(fd, Signal::STOP);
    }
}

/// Ends the processes: SIGTERM, then SIGKILL after `grace`, or SIGKILL at once if it is zero.
/// Returns true when all have ended, or false after five seconds.
pub(crate) fn end_all(processes: &[ProcessRef], grace: Duration) -> bool {
    let mut open: Vec<OwnedFd> = processes.iter().filter_map(|p| p.open()).collect();
    if !grace.is_zero() {
        for fd in &open {
            // The process may have ended since.
            let _ = pidfd_send_signal(fd, Signal::TERM);
        }
        wait_all(&mut open, grace);
    }
    for fd in &open {
        let _ = pidfd_send_signal(fd, Signal::KILL);
    }
    wait_all(&mut open, Duration::from_secs(5));
    open.is_empty()
}

/// Waits until all have ended or `limit` has passed. Retains those that still run.
fn wait_all(open: &mut Vec<OwnedFd>, limit: Duration) {
    let end = Instant::now() + limit;
    while let Some(first) = open.first() {
        let left = end.saturating_duration_since(Instant::now());
        if !matches!(wait_any(&[first], Some(left)), Ok([true])) {
            break;
        }
        open.swap_remove(0);
    }
}

/// Waits until one of the descriptors is readable or closed, or `limit` has passed. Returns which
/// of them are.
pub fn wait_any<const N: usize>(
    descriptors: &[impl AsFd; N],
    limit: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut fds = descriptors
        .each_ref()
        .map(|fd| PollFd::new(fd, PollFlags::IN));
    wait_for(&mut fds, limit)?;
    Ok(fds.map(|fd| !fd.revents().is_empty()))
}

/// Waits like [`wait_any`].
pub(crate) fn wait_for(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(fds, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map(drop).map_err(Into::into),
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
        let expected = Stat {
            state: 'R',
            parent: 1,
            threads: 1,
            start: 987_654,
        };
        assert_eq!(parse_stat(line), Some(expected));
        assert!(expected.runs());
        for bad in ["", "42", "42 (x)", "42 (x) S 1 2 3"] {
            assert_eq!(parse_stat(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_process_runs_until_its_last_thread_has_ended() {
        let of = |threads| Stat {
            state: 'Z',
            parent: 1,
            threads,
            start: 1,
        };
        assert!(of(2).runs() && !of(1).runs() && !of(0).runs());
    }

    #[test]
    fn descendants_are_found_at_any_depth() -> io::Result<()> {
        let mut child = Command::new("sh")
            .args(["-c", "sh -c 'sleep 60; true' & echo; wait"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let end = Instant::now() + Duration::from_secs(30);
        while descendants(pid).len() < 2 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let found = descendants(pid);
        assert_eq!(found.len(), 2, "a shell and its child: {found:?}");
        end_until_none(|| descendants(pid));
        assert!(!found.into_iter().any(ProcessRef::is_alive));
        child.kill()?;
        child.wait()?;
        Ok(())
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
