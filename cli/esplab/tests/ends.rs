//! Processes in a node end with the lab, however the lab ends.

mod common;

use std::fs;
use std::process::{Child, Command, Stdio};

use common::{Downer, TestResult, esplab, esplab_ends, programs, skip, unique, wait_until};
use lab::{Lab, LabError, ProcessRef, State};
use rustix::process::{Pid, Signal, kill_process};

/// Prints its process ID and that of a process that has left its session, and runs forever. Neither
/// ends by SIGTERM.
const STUBBORN: &str = "trap '' TERM INT HUP
    setsid sh -c 'echo $$ > $0.new; mv $0.new $0; while :; do sleep 0.1; done' $1 &
    while :; do sleep 0.1; done";

/// Processes in a node that do not end by themselves. They are killed on drop.
struct Stubborn {
    child: Child,
    processes: [ProcessRef; 2],
}

impl Stubborn {
    /// Starts them in a node.
    fn start(lab: &str, node: usize) -> Result<Stubborn, Box<dyn std::error::Error>> {
        let file = std::env::temp_dir().join(unique("stubborn"));
        let child = Command::new(programs().join("esplab"))
            .args(["exec", "--name", lab, &node.to_string(), "--"])
            .args(["sh", "-c", STUBBORN, "sh"])
            .arg(&file)
            .env_remove("ESPLAB")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let mut second = None;
        wait_until("the program runs", || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            second = text.trim().parse().ok();
            second.is_some()
        });
        fs::remove_file(&file)?;
        let processes = [
            ProcessRef::of(i32::try_from(child.id())?)?,
            ProcessRef::of(second.ok_or("no process id")?)?,
        ];
        Ok(Stubborn { child, processes })
    }

    fn are_alive(&self) -> bool {
        self.processes.into_iter().any(ProcessRef::is_alive)
    }
}

impl Drop for Stubborn {
    fn drop(&mut self) {
        for process in self.processes.iter().filter(|p| p.is_alive()) {
            kill(*process);
        }
        let _ = self.child.wait();
    }
}

fn kill(process: ProcessRef) {
    let _ = Pid::from_raw(process.pid).map(|pid| kill_process(pid, Signal::KILL));
}

/// Creates a lab of two nodes that is kept; `None` (and SKIPPED) if namespaces are not allowed.
fn up(name: &str) -> Option<State> {
    let output = esplab(&["up", "--name", name, "--no-daemon", "--nodes", "2"]);
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("network namespace") {
        skip(&text);
        return None;
    }
    assert!(output.status.success(), "{text}");
    Some(lab::open(name).expect("it is up"))
}

#[test]
fn down_ends_the_processes_of_the_nodes() -> TestResult {
    let name = unique("down");
    let _downer = Downer(name.clone());
    if up(&name).is_none() {
        return Ok(());
    }
    let programs = [Stubborn::start(&name, 0)?, Stubborn::start(&name, 1)?];
    let output = esplab(&["down", "--name", &name]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    assert!(!programs.iter().any(Stubborn::are_alive));
    Ok(())
}

#[test]
fn down_within_a_node_spares_its_callers() -> TestResult {
    let name = unique("inside");
    let _downer = Downer(name.clone());
    if up(&name).is_none() {
        return Ok(());
    }
    let other = Stubborn::start(&name, 1)?;
    let line = "esplab down; echo code $?";
    let out = esplab_ends(&["exec", "--name", &name, "1", "--", "sh", "-c", line], 0);
    assert!(out.ends_with("is down\ncode 0\n"), "{out}");
    assert!(!other.are_alive());
    assert!(matches!(lab::open(&name), Err(LabError::NotFound { .. })));
    Ok(())
}

#[test]
fn a_killed_holder_ends_the_processes_of_its_node() -> TestResult {
    let name = unique("holder");
    let _downer = Downer(name.clone());
    let Some(state) = up(&name) else {
        return Ok(());
    };
    let programs = [Stubborn::start(&name, 0)?, Stubborn::start(&name, 1)?];
    kill(state.nodes[1].holder);
    wait_until("the processes have ended", || !programs[1].are_alive());
    assert!(programs[0].are_alive(), "the other node continues");
    kill(state.switch.ok_or("a switch")?);
    wait_until("the processes have ended", || !programs[0].are_alive());
    Ok(())
}

/// A lab that is not kept ends with its creator.
#[test]
fn a_dropped_lab_ends_the_processes_of_its_nodes() -> TestResult {
    let options = common::bare(2);
    let lab = match Lab::create(&options) {
        Err(LabError::Forbidden(why)) => {
            skip(&why);
            return Ok(());
        }
        lab => lab?,
    };
    let program = Stubborn::start(lab.name(), 1)?;
    drop(lab);
    assert!(!program.are_alive());
    Ok(())
}
