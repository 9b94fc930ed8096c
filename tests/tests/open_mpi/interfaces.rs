//! Several interfaces: messages are striped over them, and one of them is down or fails.

use esp_tests::links::{silence, two_rails};
use esp_tests::open_mpi::Program;
use esp_tests::process::{output, passed};
use esp_tests::{client, counter, wait_until};
use lab::Lab;

use super::mpirun;
use super::running::Running;

/// Returns the number of frames that a node's interface has sent.
fn frames_sent(lab: &Lab, node: usize, interface: &str) -> u64 {
    let mut command = lab.command(node, "ip").expect("a command");
    let shown = output(command.args(["-s", "link", "show", "dev", interface]));
    let mut lines = shown
        .out
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("TX:"))
        .skip(1);
    let words = lines.next().unwrap_or_default().split_whitespace().nth(1);
    words
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{shown:?}"))
}

/// Two interfaces are two modules, and messages are striped over them.
#[test]
fn several_interfaces() {
    let test = "several_interfaces";
    let Some(lab) = two_rails(test, "") else {
        return;
    };
    for (name, ranks) in [("talk", 4), ("onesided", 2), ("threads", 2)] {
        let Some(program) = Program::new(test, name) else {
            return;
        };
        let before = ["eth0", "eth1"].map(|interface| frames_sent(&lab, 0, interface));
        let more = [
            "--mca",
            "btl_esp_if_include=eth0,eth1",
            "--mca",
            "btl_esp_verbose=1",
        ];
        let finished = output(&mut mpirun(
            &lab,
            ranks,
            2,
            "esp,self",
            &more,
            program.file(),
        ));
        passed(&finished);
        for pair in [
            "eth0 to eth0 02:e5:00:00:00:",
            "eth1 to eth1 02:e5:00:00:01:",
        ] {
            assert!(finished.err.contains(pair), "{pair}: {finished:?}");
        }
        // One-sided communication uses one interface only.
        let most = if name == "onesided" { 1 } else { 2 };
        for interface in &["eth0", "eth1"][..most] {
            let sent = frames_sent(&lab, 0, interface) - before[usize::from(*interface == "eth1")];
            assert!(sent > 200, "{name}: {sent} frames over {interface}");
        }
    }
}

/// An interface whose counterpart is down is not used. The others are.
#[test]
fn an_interface_that_is_down_at_one_node() {
    let test = "an_interface_that_is_down_at_one_node";
    let Some(program) = Program::new(test, "talk") else {
        return;
    };
    let Some(lab) = two_rails(test, "") else {
        return;
    };
    let mut command = lab.command(1, "ip").expect("a command");
    let done = output(command.args(["link", "set", "dev", "eth1", "down"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    let more = ["--mca", "btl_esp_verbose=1"];
    let finished = output(&mut mpirun(&lab, 2, 2, "esp,self", &more, program.file()));
    passed(&finished);
    for words in [
        "rank 0 on node node0, interface eth1, has no path to rank 1 on node node1: ",
        "esp: rank 1 on node node1 to rank 0 on node node0: eth0 to eth0",
    ] {
        assert!(finished.err.contains(words), "{words}: {finished:?}");
    }
}

/// Connections over a failed link continue over the other one.
#[test]
fn one_of_two_links_is_pulled() {
    let test = "one_of_two_links_is_pulled";
    for path in ["daemon", "lease"] {
        let Some(lab) = two_rails(test, "[lease]\nallow = \"all\"\n") else {
            return;
        };
        let more = ["--mca", &format!("btl_esp_path={path}")];
        let Some(job) = Running::start(test, &lab, &more, &["5000"]) else {
            return;
        };
        // More frames than the set-up of connections takes.
        wait_until("eth1 is used", || frames_sent(&lab, 0, "eth1") > 20);
        silence(&lab, 1, true);
        passed(&job.end());
        if path == "daemon" {
            let moved: u64 = [0, 1]
                .map(|node| counter(&client(&lab, node), "connections_moved"))
                .iter()
                .sum();
            assert!(moved > 0, "nothing had to move");
        }
    }
}
