//! `esplab guard`: runs a launcher, or a command such as `esplab bench`, and leaves none of its
//! processes and temporary files behind. Only `esplab mpirun`, `bench`, `papers` and `tune` start
//! it.
//!
//! A launcher's helpers on other nodes are not its children, and the processes of a job do not
//! notice the end of their nodes. So the guard adopts all descendants of the launcher, and ends
//! them when the launcher or `esplab mpirun` ends for any reason. It has a separate process group,
//! because `timeout` and terminals send signals to groups. If the guard is killed, `esplab mpirun`
//! adopts the processes and ends them. If both are killed, the job ends with the lab.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, getpgrp, kill_process};

use super::internal::parse_process;
use cli::out::{Context, Failure, Verdict};
use cli::signal::Signals;
use lab::ProcessRef;

/// Time limit for a launcher to end its job after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Time limit for a launcher's helpers on other nodes to end after the launcher.
pub(super) const HELPERS: Duration = Duration::from_secs(1);
/// Time limit for a lab to end after a benchmark. Its daemons get 3 seconds of it.
const LABS: Duration = Duration::from_secs(10);
/// Environment variable of a program that already runs under a guard.
const GUARDED: &str = "ESPLAB_GUARDED";
/// Time limit for a launcher that has received the terminal's signal itself: a second signal would
/// make it end without cleaning up.
const TERMINAL: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(super) struct Flags {
    #[arg(long, value_name = "PID:START", value_parser = parse_process)]
    creator: ProcessRef,
    #[arg(long, value_name = "DIR")]
    scratch: PathBuf,
    #[arg(long, value_name = "PID")]
    group: Option<i32>,
    /// Time in milliseconds that descendants have to end after the command
    #[arg(long, value_name = "TIME")]
    helpers: u64,
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    lab::adopt_descendants().doing("guard")?;
    let (program, arguments) = flags
        .command
        .split_first()
        .ok_or_else(|| Failure::new("guard: no command was given"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(group) = flags.group {
        command.process_group(group);
    }
    let mut launcher = command.spawn().doing("starting the program")?;
    let status = guard(&mut launcher, flags.creator);
    lab::end_descendants(Duration::from_millis(flags.helpers));
    // Removes files that the launcher has left behind.
    let _ = std::fs::remove_dir_all(&flags.scratch);
    Ok(Verdict::Code(code(
        status.doing("waiting for the program")?,
    )))
}

/// Waits until the launcher ends; ends it if its creator has ended, or on request.
fn guard(launcher: &mut Child, creator: ProcessRef) -> io::Result<ExitStatus> {
    // Blocked only now, because the launcher must not inherit the blocked signal.
    let request = Signals::block(&[Signal::TERM.as_raw()])?;
    if let Some(ended) = process(launcher)? {
        let is_over = match creator.open() {
            Some(creator) => {
                lab::wait_any(&[ended.as_fd(), creator.as_fd(), request.as_fd()], None)?[0]
            }
            None => false,
        };
        if !is_over {
            send(launcher, Signal::TERM);
            if let [false] = lab::wait_any(&[ended], Some(GRACE))? {
                send(launcher, Signal::KILL);
            }
        }
    }
    launcher.wait()
}

/// Folder for temporary files. It is removed on drop, or by the guard if this process is killed.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Scratch, Failure> {
        let path = std::env::temp_dir().join(format!("esplab-run-{}", std::process::id()));
        std::fs::create_dir(&path).doing(format!("making {}", path.display()))?;
        Ok(Scratch(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // After an error, the remaining files are in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Does the work of this program under a guard, in another process with the same arguments and the
/// variable [`GUARDED`].
pub(super) fn guarded(work: impl FnOnce() -> Result<Verdict, Failure>) -> Result<Verdict, Failure> {
    if std::env::var_os(GUARDED).is_some() {
        return work();
    }
    let exe = std::env::current_exe().doing("finding the running program")?;
    let mut words: Vec<OsString> = ["/usr/bin/env".into(), format!("{GUARDED}=1").into()].into();
    words.push(exe.into());
    words.extend(std::env::args_os().skip(1));
    let scratch = Scratch::new()?;
    launch(&words, &scratch, LABS).map(Verdict::Code)
}

/// Runs a launcher under a guard. Returns the launcher's exit code, or that of a shell after a
/// signal. SIGINT and SIGTERM end the job first. `helpers`: time for the launcher's descendants to
/// end after it.
pub(super) fn launch(
    launcher: &[OsString],
    scratch: &Scratch,
    helpers: Duration,
) -> Result<u8, Failure> {
    lab::adopt_descendants().doing("adopting processes")?;
    let exe = std::env::current_exe().doing("finding the running program")?;
    let creator = ProcessRef::me().doing("reading /proc")?;
    let mut command = Command::new(exe);
    command.args(["guard", "--creator", &creator.to_string()]);
    command.args(["--helpers", &helpers.as_millis().to_string()]);
    command.arg("--scratch").arg(scratch.path());
    command.env("TMPDIR", scratch.path()).process_group(0);
    // In another process group, the launcher could not read from the terminal.
    let has_terminal = io::stdin().is_terminal();
    if has_terminal {
        command.args(["--group", &getpgrp().to_string()]);
    }
    command.arg("--").args(launcher);
    let mut guard = command.spawn().doing("starting the guard")?;
    let result = watch(&mut guard, has_terminal);
    // The guard leaves no process behind, unless it was killed.
    lab::end_descendants(Duration::ZERO);
    result.doing("waiting for the program")
}

/// Waits until the guard ends; passes signals on as a request to end the job.
fn watch(guard: &mut Child, has_terminal: bool) -> io::Result<u8> {
    // Before this, a signal would end this process, and the guard would then end the job.
    let signals = Signals::block(&[Signal::INT, Signal::TERM].map(Signal::as_raw))?;
    let mut caught = None;
    if let Some(ended) = process(guard)?
        && let [false, _] = lab::wait_any(&[ended.as_fd(), signals.as_fd()], None)?
    {
        caught = signals.next();
        if !has_terminal || !lab::wait_any(&[ended], Some(TERMINAL))?[0] {
            send(guard, Signal::TERM);
        }
    }
    let status = guard.wait()?;
    Ok(caught.map_or_else(|| code(status), of_signal))
}

/// Returns a descriptor that is readable once the child has ended; `None` if it has already.
fn process(child: &Child) -> io::Result<Option<OwnedFd>> {
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    Ok(ProcessRef::of(pid)?.open())
}

/// Sends a signal to a child that was not waited for yet.
fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // Fails if the child has ended, which its status will show.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Returns the exit code; for a process that a signal has ended, the one that a shell returns.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or_else(|| status.signal().map_or(1, of_signal))
}

/// Returns the exit code that a shell returns for a command that a signal has ended.
fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
