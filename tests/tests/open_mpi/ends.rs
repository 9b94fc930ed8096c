//! Ends of a rank, a daemon or a link: the job ends with an error.

use std::process::Command;

use esp_tests::process::{Finished, daemon_pid, signal};
use rustix::process::Signal;

use super::lab;
use super::running::Running;

/// Daemon configuration with short timeouts.
const IMPATIENT: &str =
    "[timers]\npeer_timeout = \"1500ms\"\nkeepalive = \"400ms\"\nconnect_timeout = \"1s\"\n";

#[track_caller]
fn ended_with(finished: &Finished, words: &[&str]) {
    assert!(
        !matches!(finished.code, Some(0 | 124)),
        "the job ends by itself, with an error: {finished:?}"
    );
    assert!(
        words.iter().any(|words| finished.err.contains(words)),
        "{words:?}: {finished:?}"
    );
}

#[test]
fn a_killed_rank_ends_the_job() {
    let test = "a_killed_rank_ends_the_job";
    let Some(lab) = lab(test, 2, 1500, "") else {
        return;
    };
    let Some(job) = Running::start(test, &lab, &[], &[]) else {
        return;
    };
    signal(job.pids()[1], Signal::KILL);
    // Printed by mpirun or by the other rank, whichever notices first.
    ended_with(&job.end(), &["its process ended", "signal 9"]);
}

#[test]
fn a_killed_daemon_ends_the_job() {
    let test = "a_killed_daemon_ends_the_job";
    let Some(lab) = lab(test, 2, 1500, IMPATIENT) else {
        return;
    };
    let Some(job) = Running::start(test, &lab, &[], &[]) else {
        return;
    };
    signal(daemon_pid(&lab, 1), Signal::KILL);
    ended_with(
        &job.end(),
        &[
            "esp: rank 1 on node node1, interface eth0, has lost rank 0 on node node0",
            "esp: rank 0 on node node0, interface eth0, has lost rank 1 on node node1",
        ],
    );
}

#[test]
fn a_pulled_link_ends_the_job() {
    let test = "a_pulled_link_ends_the_job";
    let Some(lab) = lab(test, 2, 1500, IMPATIENT) else {
        return;
    };
    let Some(job) = Running::start(test, &lab, &[], &[]) else {
        return;
    };
    // Only ESP's frames are dropped: without its own connections mpirun would end the job.
    esp_tests::frames::in_switch(&lab, || {
        let rules = "add table bridge pulled; add chain bridge pulled frames { type filter hook forward priority 0; }; add rule bridge pulled frames ether type != { ip, ip6, arp } drop";
        let done = Command::new("nft").arg(rules).output().expect("nft");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    });
    ended_with(&job.end(), &["has lost rank"]);
}
