//! Ends of a rank, a daemon or a link: the job ends with an error.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use esp_tests::open_mpi::Program;
use esp_tests::process::{Finished, daemon_pid, output, passed, signal};
use rustix::process::Signal;

use super::running::Running;
use super::{lab, mpirun};

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

/// Stops rank 1 for longer than a connection is tried twice, and expects the job to go on.
fn a_stopped_rank_goes_on(test: &str, carrier: &str) {
    let Some(lab) = lab(test, 2, 1500, "[lease]\nallow = \"all\"\n") else {
        return;
    };
    let carrier = format!("btl_esp_carrier={carrier}");
    let Some(job) = Running::start(test, &lab, &["--mca", &carrier], &["3000"]) else {
        return;
    };
    let stopped = job.pids()[1];
    signal(stopped, Signal::STOP);
    sleep(Duration::from_secs(13));
    signal(stopped, Signal::CONT);
    passed(&job.end());
}

/// It once was lost after ten seconds: no part of its node answers for it.
#[test]
fn a_stopped_rank_goes_on_over_udp() {
    a_stopped_rank_goes_on("a_stopped_rank_goes_on_over_udp", "udp");
}

/// It once was lost as a peer over UDP, while its node answered for it over raw Ethernet.
#[test]
fn a_stopped_rank_goes_on_over_both_carriers() {
    a_stopped_rank_goes_on("a_stopped_rank_goes_on_over_both_carriers", "auto");
}

#[test]
fn the_environment_limits_the_silence_of_a_rank() {
    let test = "the_environment_limits_the_silence_of_a_rank";
    let Some(lab) = lab(test, 2, 1500, "") else {
        return;
    };
    let carrier = ["--mca", "btl_esp_carrier=udp"];
    let limited = |limit| [["-x", limit], carrier].concat();
    let Some(job) = Running::start(test, &lab, &limited("ESP_PEER_TIMEOUT=1"), &[]) else {
        return;
    };
    signal(job.pids()[1], Signal::STOP);
    ended_with(&job.end(), &["has lost rank 1"]);

    let program = Program::new(test, "endless").expect("a program, as before");
    let options = limited("ESP_PEER_TIMEOUT=soon");
    let finished = output(mpirun(&lab, 2, 2, "esp,self", &options, program.file()).arg("10"));
    ended_with(&finished, &["ESP_PEER_TIMEOUT=soon: expected a number"]);
}
