//! Ends and starts the esp-daemon of a node while the lab runs.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::daemon::{self, Daemon};
use crate::error::LabError;
use crate::options::Node;
use crate::process::{self, ProcessRef};
use crate::state::{self, Root, State};
use crate::tools::Programs;

/// Time limit for a daemon to end by SIGTERM.
const STOPS: Duration = Duration::from_secs(10);

/// Time limit for a killed daemon to be gone.
const GONE: Duration = Duration::from_secs(60);

/// Action on the daemon of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonAction {
    /// Kills it (SIGKILL).
    Kill,
    /// Stops it (SIGTERM); the next one resumes its streams.
    Stop,
    /// Starts the next one.
    Start,
    /// Stops it and starts the next one: the program of this build.
    Upgrade,
}

/// Acts on the daemon of a node of this lab, and returns when it has ended, or accepts programs.
/// Actions on one node wait for each other; those on several nodes may be at the same time.
///
/// # Errors
/// There is no such lab, node or daemon, a daemon runs already, or the next one does not start.
pub fn daemon(name: &str, node: usize, action: DaemonAction) -> Result<(), LabError> {
    let root = Root::new();
    let (state, dir) = root.open(name)?;
    state.check_made()?;
    state.holder(node)?;
    let _lock = state::lock(&daemon::node_dir(&dir, node))?;
    // As the last action on this node has left it.
    let (state, _) = root.open(name)?;
    let running = running(&state, node);
    match (action, running) {
        (DaemonAction::Start, None) => {}
        (DaemonAction::Start, Some(_)) => {
            return Err(LabError::BadOption(format!(
                "the daemon of {} runs already; use `esplab daemon upgrade {node}`",
                Node(node)
            )));
        }
        (_, None) => {
            return Err(LabError::BadOption(format!(
                "no daemon runs in {}; start one with `esplab daemon start {node}`",
                Node(node)
            )));
        }
        (DaemonAction::Kill, Some(daemon)) => end(daemon, Duration::ZERO, &dir, node)?,
        (DaemonAction::Stop | DaemonAction::Upgrade, Some(daemon)) => {
            end(daemon, STOPS, &dir, node)?;
        }
    }
    if matches!(action, DaemonAction::Start | DaemonAction::Upgrade) {
        start(&state, &dir, node)?;
    }
    Ok(())
}

/// Ends the daemon, and waits until the kernel has closed its packet sockets.
fn end(daemon: ProcessRef, grace: Duration, dir: &Path, node: usize) -> Result<(), LabError> {
    let end = Instant::now() + grace + GONE;
    let mut grace = grace;
    while !process::end_all(&[daemon], grace) {
        if Instant::now() >= end {
            let (pid, waited) = (daemon.pid, GONE.as_secs());
            let how = format!(
                "(process {pid}) has not ended {waited} s after SIGKILL: see /proc/{pid}/stack for \
                 what the kernel waits for"
            );
            return Err(LabError::Daemon {
                node,
                how,
                log: daemon::tail(&daemon::node_dir(dir, node).join("daemon.log"))
                    .unwrap_or_default(),
            });
        }
        grace = Duration::ZERO;
    }
    Ok(())
}

fn running(state: &State, node: usize) -> Option<ProcessRef> {
    let daemon = state.nodes.get(node)?.daemon?;
    daemon.is_alive().then_some(daemon)
}

/// Starts a daemon with the arguments of the one that the lab began with.
fn start(state: &State, dir: &Path, node: usize) -> Result<(), LabError> {
    let programs = Programs::locate(None)?;
    let arguments = state
        .nodes
        .get(node)
        .map(|node| node.daemon_arguments.clone())
        .unwrap_or_default();
    if arguments.is_empty() {
        return Err(LabError::BadOption(format!(
            "lab `{}` has no daemons (it was made with --no-daemon)",
            state.name
        )));
    }
    let mut enter = Command::new(programs.esplab()?);
    enter.args(["exec", "--name", &state.name]);
    enter.arg(node.to_string()).arg("--");
    let mut daemon = Daemon::spawn(dir, node, enter, &programs.daemon()?, &arguments)?;
    let process = daemon.process;
    State::update(dir, |state| {
        if let Some(entry) = state.nodes.get_mut(node) {
            entry.daemon = Some(process);
        }
    })?;
    daemon.await_ready()
}
