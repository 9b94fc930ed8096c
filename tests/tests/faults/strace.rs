//! Failing one system call of a program, by the fault injection of strace(1).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use esp_tests::process::TempFile;

/// Number of a call's errors and of their places in the short form and, for `ESP_FAULTS=all`, the
/// long one.
const FEW: (usize, usize) = (1, 1);
const MANY: (usize, usize) = (usize::MAX, 25);

/// A system call that is made to fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// Its name.
    pub(crate) call: &'static str,
    pub(crate) error: &'static str,
    /// Which call of each thread fails, from 1.
    pub(crate) number: usize,
}

/// Errors that the kernel may return for a call. A futex is not among them: waking one does not
/// fail, and strace cannot tell waking from waiting.
const ERRORS: &[(&str, &[&str])] = &[
    ("accept4", &["EMFILE", "ENOBUFS", "EINTR"]),
    ("bind", &["ENOMEM", "EADDRINUSE"]),
    ("chmod", &["EPERM", "EIO"]),
    ("clone3", &["EAGAIN", "ENOMEM"]),
    ("connect", &["EAGAIN", "EINTR"]),
    ("epoll_create1", &["EMFILE", "ENOMEM"]),
    ("epoll_ctl", &["ENOMEM"]),
    ("epoll_pwait", &["EINTR"]),
    ("epoll_pwait2", &["EINTR"]),
    ("epoll_wait", &["EINTR"]),
    ("eventfd2", &["EMFILE", "ENOMEM"]),
    ("fchmod", &["EPERM", "EIO"]),
    ("fcntl", &["EMFILE"]),
    ("flock", &["EINTR", "ENOLCK"]),
    ("fsync", &["EIO", "ENOSPC"]),
    ("ftruncate", &["EINTR", "ENOMEM"]),
    ("getrandom", &["EINTR"]),
    ("getsockname", &["ENOBUFS"]),
    ("getsockopt", &["ENOBUFS"]),
    ("ioctl", &["ENODEV", "ENOMEM"]),
    ("listen", &["EADDRINUSE"]),
    ("madvise", &["ENOMEM", "EAGAIN"]),
    ("memfd_create", &["EMFILE", "ENOMEM"]),
    ("mkdir", &["EACCES", "ENOSPC"]),
    ("mmap", &["ENOMEM"]),
    ("munmap", &["ENOMEM"]),
    ("openat", &["EMFILE", "ENOMEM"]),
    ("poll", &["EINTR", "ENOMEM"]),
    ("ppoll", &["EINTR", "ENOMEM"]),
    ("read", &["EINTR", "EAGAIN"]),
    ("recvfrom", &["EINTR", "EAGAIN", "ENOMEM"]),
    ("recvmmsg", &["EINTR", "EAGAIN", "ENOMEM"]),
    ("recvmsg", &["EINTR", "EAGAIN", "ENOMEM"]),
    ("rename", &["ENOSPC", "EACCES"]),
    ("renameat", &["ENOSPC", "EACCES"]),
    ("sendmmsg", &["EINTR", "EAGAIN", "ENOBUFS", "ENOMEM"]),
    ("sendmsg", &["EINTR", "EAGAIN", "ENOBUFS", "ENOMEM"]),
    ("sendto", &["EINTR", "EAGAIN", "ENOBUFS", "ENOMEM"]),
    ("setsockopt", &["ENOMEM"]),
    ("shutdown", &["ENOTCONN"]),
    ("socket", &["EMFILE", "ENOBUFS"]),
    ("socketpair", &["EMFILE", "ENOMEM"]),
    ("statx", &["EACCES", "ENOMEM"]),
    ("timerfd_create", &["EMFILE", "ENOMEM"]),
    ("unlink", &["EACCES", "EBUSY"]),
    ("unlinkat", &["EACCES", "EBUSY"]),
    ("write", &["EINTR", "EAGAIN"]),
];

/// Returns false after printing SKIPPED where strace is missing.
pub(crate) fn is_here(test: &str) -> bool {
    let found = Command::new("strace").arg("-V").output();
    let found = found.is_ok_and(|done| done.status.success());
    if !found {
        netns::skip(test, "no strace (Debian: apt install strace)");
    }
    found
}

/// Returns the options of strace that write all calls to a file.
pub(crate) fn recording(file: &TempFile) -> Vec<String> {
    let file = file.path().to_str().expect("a path of text");
    ["-f", "-qq", "-o", file].map(String::from).to_vec()
}

impl Fault {
    /// Returns the options of strace that inject it, and write the calls of its name to a file.
    pub(crate) fn options(&self, file: &TempFile) -> Vec<String> {
        let Fault {
            call,
            error,
            number,
        } = self;
        let mut options = recording(file);
        options.extend(["-e".into(), format!("trace={call}")]);
        options.extend([
            "-e".into(),
            format!("inject={call}:error={error}:when={number}"),
        ]);
        options
    }
}

/// Returns true if strace has injected the fault.
pub(crate) fn was_injected(file: &TempFile) -> bool {
    fs::read_to_string(file.path()).is_ok_and(|text| text.contains("(INJECTED)"))
}

/// Returns the faults of the calls in a recording that follow the first line with `marker`. What
/// fails before is the program's loader.
pub(crate) fn faults(recording: &TempFile, marker: &str) -> Vec<Fault> {
    let text = fs::read_to_string(recording.path()).expect("a recording");
    let mut marked = false;
    // Numbers of the calls after the marker, by name. strace counts those of each thread.
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut places: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    let mut before: BTreeSet<(&str, usize)> = BTreeSet::new();
    for line in text.lines() {
        marked |= line.contains(marker);
        let Some((thread, rest)) = line.split_once(' ') else {
            continue;
        };
        let Some((call, _)) = rest.trim_start().split_once('(') else {
            continue;
        };
        let count = counts.entry((thread, call)).or_default();
        *count += 1;
        if marked {
            places.entry(call).or_default().insert(*count);
        } else {
            before.insert((call, *count));
        }
    }
    assert!(marked, "no call with {marker}");
    let (errors_limit, limit) = match std::env::var_os("ESP_FAULTS") {
        Some(_) => MANY,
        None => FEW,
    };
    let mut all = Vec::new();
    for (call, errors) in ERRORS {
        let numbers = places.get(call).into_iter().flatten().copied();
        let numbers: Vec<usize> = numbers.filter(|n| !before.contains(&(call, *n))).collect();
        for (at, error) in errors.iter().enumerate().take(errors_limit) {
            for place in chosen(&numbers, limit, at) {
                all.push(Fault {
                    call,
                    error,
                    number: place,
                });
            }
        }
    }
    all
}

/// Chooses at most `limit` of these numbers, spread evenly; others for each `turn`.
fn chosen(numbers: &[usize], limit: usize, turn: usize) -> Vec<usize> {
    let step = numbers.len().div_ceil(limit).max(1);
    let first = (turn * numbers.len() / 3) % step;
    numbers.iter().skip(first).step_by(step).copied().collect()
}
