//! Faults of the daemon: it ends with an error that it reports, or goes on serving.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use esp_tests::process::{Killed, TempFile, programs, signal};
use esp_tests::{lab_or_skip, wait_until};
use lab::{Lab, LabOptions};
use rustix::process::{Pid, Signal, kill_process};

use crate::strace::{faults, is_here, recording, was_injected};
use crate::{Content, Transfer, conclude, crash, echo};

/// Panics of the runtime when it cannot have a thread, a descriptor or memory at its start, before
/// programs find the daemon.
const AT_START: [&str; 2] = [
    "OS can't spawn worker thread",
    "failed to create UnixStream",
];

/// Text of the log when programs find the daemon.
const READY: &str = " is ready ";

/// Errors that the kernel does not return for descriptors of the runtime, which do not block, and
/// that it answers by a panic.
const IMPOSSIBLE: [(&str, &str); 3] = [
    ("recvfrom", "EINTR"),
    ("recvfrom", "ENOMEM"),
    ("write", "EINTR"),
];

/// Transfers through a daemon in which calls fail. A call of each of its threads fails once.
const TRANSFERS: usize = 6;

/// Time limit of an end after a signal.
const PATIENCE: Duration = Duration::from_secs(5);

/// A daemon of node 0 below strace.
struct Traced {
    strace: Killed,
    /// The daemon, once it runs.
    pid: Option<i32>,
    log: TempFile,
}

impl Traced {
    /// Starts it, and waits until it accepts programs or has ended.
    fn start(lab: &Lab, config: &TempFile, options: &[String]) -> Traced {
        let _ = fs::remove_file(lab.socket(0));
        let log = TempFile::new("");
        let mut command: Command = lab.command(0, "strace").expect("a command");
        command.args(options).arg(programs().join("esp-daemon"));
        command.args(["--interface", "eth0", "--config"]);
        command
            .arg(config.path())
            .arg("--socket")
            .arg(lab.socket(0));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(log.path()).expect("a log"));
        let strace = Killed(command.spawn().expect("start strace"));
        let mut traced = Traced {
            strace,
            pid: None,
            log,
        };
        wait_until("the daemon is ready or has ended", || {
            // Anew each time: strace's first child is one that tries what it may do.
            traced.pid = child(&traced.strace.0);
            traced.has_ended() || lab.socket(0).exists() && traced.pid.is_some()
        });
        traced
    }

    fn has_ended(&mut self) -> bool {
        let ended = self.strace.0.try_wait().expect("its status");
        ended.is_some()
    }

    /// Requests its end, and returns its exit code and its log; `None`: it does not end.
    fn end(mut self) -> (Option<Option<i32>>, String) {
        // A signal is lost if the runtime cannot write to its pipe, so there are two.
        for _ in 0..2 {
            if let Some(pid) = self.pid.and_then(Pid::from_raw)
                && !self.has_ended()
            {
                let _ = kill_process(pid, Signal::TERM);
            }
            let deadline = Instant::now() + PATIENCE;
            while !self.has_ended() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let status = self.strace.0.try_wait().expect("its status");
        let mut text = String::new();
        let mut file = fs::File::open(self.log.path()).expect("its log");
        file.read_to_string(&mut text).expect("read it");
        (status.map(|status| status.code()), text)
    }
}

impl Drop for Traced {
    /// Kills the daemon first: without strace it would go on.
    fn drop(&mut self) {
        if let Some(pid) = self.pid
            && let Some(pid) = Pid::from_raw(pid)
            && !self.has_ended()
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Returns the process that strace has started.
fn child(strace: &Child) -> Option<i32> {
    let id = strace.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Returns what is wrong with a daemon's end.
fn fault_of_end(code: Option<i32>, log: &str) -> Option<&'static str> {
    if !log.contains(READY) && AT_START.iter().any(|text| log.contains(text)) {
        return None;
    }
    match crash(code, log) {
        Some(what) => Some(what),
        None if code != Some(0) && !log.contains("esp-daemon: ") => Some("an end without a text"),
        None => None,
    }
}

/// Runs a daemon and transfers by a lease of it, then through it until that succeeds. Returns what
/// is wrong.
fn serve(lab: &Lab, config: &TempFile, content: &Content, options: &[String]) -> Option<String> {
    let mut daemon = Traced::start(lab, config, options);
    let mut wrong = None;
    let mut last = None;
    for turn in 0..TRANSFERS {
        let path = if turn == 0 { "lease" } else { "daemon" };
        let wrapper = ["env".to_owned(), format!("ESP_PATH={path}")];
        let transfer = Transfer::run(lab, content, &wrapper);
        if let Some(what) = transfer.fault(content) {
            wrong = Some(format!("{what} by {path}: {:?}", transfer.finished));
        }
        let done = turn > 0 && transfer.finished.code == Some(0);
        last = Some(transfer.finished);
        if done || daemon.has_ended() {
            break;
        }
    }
    let (code, log) = daemon.end();
    let Some(code) = code else {
        return Some(format!("it does not end: {last:?}\nits log: {log}"));
    };
    if let Some(what) = fault_of_end(code, &log) {
        return Some(format!("{what}, code {code:?}: {log}"));
    }
    match last {
        Some(last) if code == Some(0) && last.code != Some(0) => {
            Some(format!("it serves no more: {last:?}\nits log: {log}"))
        }
        _ => wrong,
    }
}

#[test]
fn calls_of_the_daemon_fail() {
    let test = "calls_of_the_daemon_fail";
    if !is_here(test) {
        return;
    }
    let mut options = LabOptions::new(2);
    options.daemon_config = "[lease]\nallow = \"all\"\n".into();
    let Some(lab) = lab_or_skip(test, &options) else {
        return;
    };
    echo(&lab);
    signal(esp_tests::process::daemon_pid(&lab, 0), Signal::KILL);
    let config = TempFile::new(&options.daemon_config);
    let content = Content::new();
    let clean = TempFile::new("");
    assert_eq!(serve(&lab, &config, &content, &recording(&clean)), None);
    let marker = format!("\"{}\", O_RDONLY", config.path().display());
    let mut faults = faults(&clean, &marker);
    faults.retain(|fault| !IMPOSSIBLE.contains(&(fault.call, fault.error)));
    let (mut injected, mut failures) = (0, Vec::new());
    for fault in &faults {
        let file = TempFile::new("");
        let what = serve(&lab, &config, &content, &fault.options(&file));
        injected += usize::from(was_injected(&file));
        if let Some(what) = what {
            eprintln!("{fault:?}: {what}");
            failures.push(format!("{fault:?}: {what}"));
        }
    }
    conclude(faults.len(), injected, &failures);
}
