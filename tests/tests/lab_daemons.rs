//! `esplab daemon` by several processes at once: each finds what the others have recorded.

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use esp_tests::lab_or_skip;
use esp_tests::process::{output, programs};
use lab::{Lab, LabOptions};

const NODES: usize = 4;

fn esplab_daemon(lab: &Lab, action: &str, node: usize) -> Command {
    let mut command = Command::new(programs().join("esplab"));
    command.args(["daemon", "--name", lab.name(), action, &node.to_string()]);
    command.env_remove("ESPLAB").env_remove("ESPLAB_STATE");
    command
}

#[track_caller]
fn act(lab: &Lab, action: &str, node: usize) {
    let done = output(&mut esplab_daemon(lab, action, node));
    assert_eq!(done.code, Some(0), "{action} of node {node}: {done:?}");
}

/// Runs commands at once, and returns whether each succeeded and what it wrote.
fn at_once(commands: impl Iterator<Item = Command>) -> Vec<(bool, String)> {
    let start = |mut command: Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::piped()).spawn().expect("start it")
    };
    let started: Vec<Child> = commands.map(start).collect();
    let end = |child: Child| {
        let ended = child.wait_with_output().expect("wait for it");
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        (ended.status.success(), text)
    };
    started.into_iter().map(end).collect()
}

#[test]
fn daemons_of_all_nodes_are_replaced_at_once() {
    let test = "daemons_of_all_nodes_are_replaced_at_once";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(NODES)) else {
        return;
    };
    for round in 0..2 {
        let upgrades = (0..NODES).map(|node| esplab_daemon(&lab, "upgrade", node));
        for (node, (done, text)) in at_once(upgrades).iter().enumerate() {
            assert!(done, "round {round}, node {node}: {text}");
        }
    }
    for node in 0..NODES {
        act(&lab, "stop", node);
        let left = UnixStream::connect(lab.socket(node));
        assert!(left.is_err(), "a daemon of node {node} still runs");
    }
}

#[test]
fn one_daemon_is_started_by_several_commands() {
    let test = "one_daemon_is_started_by_several_commands";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(1)) else {
        return;
    };
    act(&lab, "kill", 0);
    let results = at_once((0..4).map(|_| esplab_daemon(&lab, "start", 0)));
    let started = results.iter().filter(|(done, _)| *done).count();
    assert_eq!(started, 1, "{results:?}");
    let others = results.iter().filter(|(done, _)| !done);
    for (_, text) in others {
        assert!(text.contains("runs already"), "{text}");
    }
    act(&lab, "stop", 0);
}
