//! Processes of a test: daemons with their own configuration, and their state as seen from outside.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use esp_client::Client;
use lab::{Lab, LabOptions};
use rustix::process::{Pid, Signal, kill_process};

use crate::{PATIENCE, lab_or_skip, wait_until, without_leases};

/// Returns the directory of the programs built with the tests.
///
/// # Panics
/// When the running program cannot be found.
pub fn programs() -> PathBuf {
    let exe = std::env::current_exe().expect("the running program");
    let dir = exe.parent().expect("a program lies in a folder");
    if dir.ends_with("deps") {
        dir.parent().unwrap_or(dir).to_owned()
    } else {
        dir.to_owned()
    }
}

/// A temporary file, removed on drop.
pub struct TempFile(PathBuf);

impl TempFile {
    /// Creates a file with this text, readable for all users.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn new(text: &str) -> TempFile {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("esp-tests-{}-{number}", std::process::id()));
        fs::write(&path, text).expect("write a file");
        TempFile(path)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Creates a lab whose daemons have these lines in their configuration; see [`lab_or_skip`].
pub fn configured_lab(test: &str, nodes: usize, config: &str) -> Option<Lab> {
    let mut options = LabOptions::new(nodes);
    options.daemon_config = config.into();
    lab_or_skip(test, &options)
}

/// Creates a lab without daemons; see [`Daemon`].
pub fn bare_lab(test: &str, nodes: usize) -> Option<Lab> {
    let mut options = LabOptions::new(nodes);
    options.daemon = false;
    lab_or_skip(test, &options)
}

/// Returns the process id of a node's daemon, if the lab started it.
///
/// # Panics
/// When it did not.
pub fn daemon_pid(lab: &Lab, node: usize) -> i32 {
    lab.state().nodes[node]
        .daemon
        .expect("the lab's daemon")
        .pid
}

/// A daemon started by the test.
pub struct Daemon {
    child: Child,
    socket: PathBuf,
    _config: TempFile,
}

impl Daemon {
    /// Starts a daemon in a node, at the lab's socket for it, and waits until it accepts programs.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(lab: &Lab, node: usize, config: &str) -> Daemon {
        Daemon::start_by(lab, node, config, &["env"])
    }

    /// Starts a daemon on these interfaces; see [`start`](Self::start).
    ///
    /// # Panics
    /// When it does not start.
    pub fn on(lab: &Lab, node: usize, interfaces: &[&str], config: &str) -> Daemon {
        Daemon::start_with(lab, node, config, &["env"], interfaces)
    }

    /// Starts a daemon through a wrapper command that executes its arguments.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_by(lab: &Lab, node: usize, config: &str, wrapper: &[&str]) -> Daemon {
        Daemon::start_with(lab, node, config, wrapper, &["eth0"])
    }

    fn start_with(
        lab: &Lab,
        node: usize,
        config: &str,
        wrapper: &[&str],
        interfaces: &[&str],
    ) -> Daemon {
        let config = TempFile::new(&lab::with_engines(&without_leases(config)));
        let socket = lab.socket(node);
        let (first, rest) = wrapper.split_first().expect("a command");
        let mut command = lab.command(node, first).expect("a command of the node");
        command.args(rest).arg(programs().join("esp-daemon"));
        for interface in interfaces {
            command.args(["--interface", interface]);
        }
        command
            .arg("--config")
            .arg(config.path())
            .arg("--socket")
            .arg(&socket);
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .expect("start a daemon");
        let mut daemon = Daemon {
            child,
            socket,
            _config: config,
        };
        wait_until("the daemon is ready", || {
            assert!(
                daemon.child.try_wait().expect("its status").is_none(),
                "the daemon ended at once"
            );
            UnixStream::connect(&daemon.socket).is_ok()
        });
        daemon
    }

    /// Returns its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Returns its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Connects a program to it.
    ///
    /// # Panics
    /// When it cannot be reached.
    pub fn client(&self) -> Client {
        Client::connect(&self.socket).expect("the daemon")
    }

    /// Kills it (`kill -9`) and waits for its end.
    ///
    /// # Panics
    /// When it cannot be killed.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill the daemon");
        self.child.wait().expect("wait for the daemon");
    }

    /// Sends SIGTERM; returns its exit status.
    ///
    /// # Panics
    /// When it does not end.
    pub fn terminate(&mut self) -> ExitStatus {
        self.end_by(Signal::TERM)
    }

    /// Sends SIGINT, by which it ends its streams; returns its exit status.
    ///
    /// # Panics
    /// When it does not end.
    pub fn interrupt(&mut self) -> ExitStatus {
        self.end_by(Signal::INT)
    }

    fn end_by(&mut self, which: Signal) -> ExitStatus {
        signal(self.pid(), which);
        let mut status = None;
        wait_until("the daemon ends", || {
            status = self.child.try_wait().expect("its status");
            status.is_some()
        });
        status.expect("just seen")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process started by this test.
///
/// # Panics
/// When there is no such process.
pub fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process id"), signal).expect("send a signal");
}

/// Returns true if a thread of this or another process sleeps in a function of the kernel whose
/// name contains `function`: `futex` for a lock or a condition, `poll` for descriptors.
pub fn waits_in(thread: Pid, function: &str) -> bool {
    let path = format!("/proc/{}/wchan", thread.as_raw_nonzero());
    std::fs::read_to_string(path).is_ok_and(|name| name.contains(function))
}

/// Resources of a process, from `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Mappings of shared memory files (each region has three, each program's page one).
    pub shared_mappings: usize,
}

/// Returns the current resources of a process.
///
/// # Panics
/// When it has ended.
pub fn holdings(pid: i32) -> Holdings {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("its descriptors")
        .count();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let shared_mappings = maps
        .lines()
        .filter(|line| line.contains("/memfd:esp-"))
        .count();
    Holdings {
        descriptors,
        shared_mappings,
    }
}

/// Returns the private memory of a process in bytes (`RssAnon`: memory shared with programs is
/// theirs).
///
/// # Panics
/// When it has ended.
pub fn private_memory(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .expect("RssAnon");
    let kib = line.trim().strip_suffix(" kB").expect("kB");
    kib.trim().parse::<u64>().expect("a number") << 10
}

/// Resources of an idle daemon, for a later comparison.
pub struct Balance {
    pid: i32,
    holdings: Holdings,
    memory: u64,
}

impl Balance {
    /// Records the current resources of the process.
    pub fn of(pid: i32) -> Balance {
        Balance {
            pid,
            holdings: holdings(pid),
            memory: private_memory(pid),
        }
    }

    /// Asserts that everything taken since has been returned.
    ///
    /// # Panics
    /// When something has not.
    pub fn is_kept(&self) {
        let mut now = holdings(self.pid);
        let deadline = Instant::now() + PATIENCE;
        // An earlier program may still have been connected: fewer are possible, but not more.
        while now.descriptors > self.holdings.descriptors
            || now.shared_mappings > self.holdings.shared_mappings
        {
            assert!(
                Instant::now() < deadline,
                "{now:?} are left, not {:?}",
                self.holdings
            );
            std::thread::sleep(Duration::from_millis(2));
            now = holdings(self.pid);
        }
        let growth = private_memory(self.pid).saturating_sub(self.memory);
        assert!(growth < 24 << 20, "memory has grown by {growth} bytes");
    }
}

/// Runs a command and waits for its end.
///
/// # Panics
/// When it cannot be started.
pub fn output(command: &mut Command) -> Finished {
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("run a command");
    Finished {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Result and output of a command.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Finished {
    /// Returns the only line on standard error.
    ///
    /// # Panics
    /// When the number of lines is not one.
    pub fn complaint(&self) -> &str {
        assert_eq!(self.err.lines().count(), 1, "one line, not {:?}", self.err);
        self.err.trim_end()
    }
}

/// Asserts that a program of MPI has printed PASS and has not printed FAIL.
///
/// # Panics
/// When it has not.
#[track_caller]
pub fn passed(finished: &Finished) {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(
        finished.out.contains("PASS") && !finished.out.contains("FAIL"),
        "{finished:?}"
    );
}

/// A process that is killed on drop.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `ip` in a node.
///
/// # Panics
/// When it fails.
pub fn ip(lab: &Lab, node: usize, args: &str) {
    let output = lab.run(node, "ip", args.split(' ')).expect("ip in a node");
    assert!(
        output.status.success(),
        "ip {args}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs `ip` in the lab's switch, where `portN` leads to node N.
///
/// # Panics
/// When it fails.
pub fn ip_in_switch(lab: &Lab, args: &str) {
    let ran: io::Result<_> =
        crate::frames::in_switch(lab, || Command::new("ip").args(args.split(' ')).output());
    let output = ran.expect("ip in the switch");
    assert!(
        output.status.success(),
        "ip {args}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs `nft` in the lab's switch, and returns its output.
///
/// # Panics
/// When it fails.
pub fn nft_in_switch(lab: &Lab, command: &str) -> String {
    let run = || Command::new("nft").arg(command).output();
    let done = crate::frames::in_switch(lab, run).expect("nft in the switch");
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "nft {command}: {error}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}
