//! Processes that run in the nodes of a lab.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use crate::process::{self, ProcessRef};

/// Time limit for programs to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(1);

/// Network namespace of a node. The value keeps it alive, because a later namespace may reuse its
/// number.
pub(crate) struct Namespace {
    /// Name, such as `net:[4026531840]`.
    name: PathBuf,
    _open: File,
}

impl Namespace {
    /// Returns the namespace of a process; `None` if the process has ended.
    pub(crate) fn of(process: ProcessRef) -> Option<Namespace> {
        let open = File::open(format!("/proc/{}/ns/net", process.pid)).ok()?;
        let name = name(process.pid)?;
        process
            .is_alive()
            .then_some(Namespace { name, _open: open })
    }
}

/// Ends the processes in these namespaces except `spared` by SIGTERM, and after a second by
/// SIGKILL.
pub(crate) fn end(namespaces: &[Namespace], spared: &[ProcessRef]) {
    let others = || {
        let mut found = inhabitants(namespaces);
        found.retain(|process| !spared.contains(process));
        found
    };
    process::end_all(&others(), GRACE);
    process::end_until_none(others);
}

/// Returns the running processes in these namespaces.
pub(crate) fn inhabitants(namespaces: &[Namespace]) -> Vec<ProcessRef> {
    process::all()
        .filter(|pid| name(*pid).is_some_and(|name| namespaces.iter().any(|ns| ns.name == name)))
        .filter_map(|pid| ProcessRef::of(pid).ok())
        .filter(|process| process.is_alive())
        .collect()
}

/// Returns the name of a process's network namespace.
fn name(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}
