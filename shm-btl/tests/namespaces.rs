//! Processes in other namespaces are refused with a reason, on both sides.

mod common;

use std::io::IoSlice;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use btl::{Btl, Tx};
use shm_btl::{ShmBtl, ShmConfig};

const ADDRESS: &str = "SHM_BTL_TEST_ADDRESS";
const JOB: &str = "namespaces";

fn transport(rank: u32) -> ShmBtl {
    ShmBtl::new(ShmConfig::new(rank, 2, JOB)).expect("shared memory")
}

/// Runs as rank 1 in the namespaces: prints its result for rank 0, and its address.
fn rank_one() {
    let mut btl = transport(1);
    let address = common::unhex(&std::env::var(ADDRESS).expect("an address"));
    let reason = match btl.add_peer(0, &address) {
        Ok(path) => format!("reached: {}", path.reason),
        Err(error) => error.reason,
    };
    println!("\nreason {reason}\naddress {}", common::hex(&btl.address()));
    // Stays until rank 0 has finished.
    let _ = std::io::stdin().read(&mut [0]);
}

/// Returns the results of rank 1 for rank 0 and of rank 0 for rank 1; `None` if such namespaces
/// cannot be created here.
fn both(test: &str, unshare: &[&str]) -> Option<(String, String)> {
    if std::env::var_os(ADDRESS).is_some() {
        rank_one();
        return None;
    }
    let can = Command::new("unshare").args(unshare).arg("true").output();
    if !can.is_ok_and(|output| output.status.success()) {
        assert!(
            std::env::var_os("ESP_TEST_REQUIRE_PRIVILEGE").is_none(),
            "unshare {unshare:?} must work"
        );
        println!("SKIPPED: unshare {unshare:?} is not possible here");
        return None;
    }
    let mut btl = transport(0);
    let mut child = Command::new("unshare")
        .args(unshare)
        .arg(std::env::current_exe().expect("this binary"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ADDRESS, common::hex(&btl.address()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut wait_for = |word: &str| loop {
        let line = lines.next().expect("the child lives").expect("a line");
        if let Some(rest) = line.strip_prefix(word) {
            return rest.trim().to_owned();
        }
    };
    let theirs = wait_for("reason");
    let address = common::unhex(&wait_for("address"));
    let ours = match btl.add_peer(1, &address) {
        Ok(path) => {
            btl.send(1, &[1], &[IoSlice::new(&[2])]).expect("room");
            format!("reached: {}", path.reason)
        }
        Err(error) => error.reason,
    };
    drop(child.stdin.take());
    child.wait().expect("the child");
    Some((theirs, ours))
}

#[test]
fn another_network_namespace_is_another_node() {
    let Some((theirs, ours)) = both("another_network_namespace_is_another_node", &["-n"]) else {
        return;
    };
    assert!(
        theirs.contains("network namespace") && ours.contains("network namespace"),
        "{theirs}; {ours}"
    );
}

#[test]
fn another_pid_namespace_is_refused() {
    let options = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let Some((theirs, ours)) = both("another_pid_namespace_is_refused", &options) else {
        return;
    };
    assert!(
        theirs.contains("PID namespace") && ours.contains("PID namespace"),
        "{theirs}; {ours}"
    );
}

/// Processes outside cannot be reached from inside a user namespace, but can reach those inside, so
/// both must refuse.
#[test]
fn a_user_namespace_is_refused_by_both_sides() {
    let test = "a_user_namespace_is_refused_by_both_sides";
    let Some((theirs, ours)) = both(test, &["--user", "--map-current-user"]) else {
        return;
    };
    assert!(theirs.contains("no permission to open"), "{theirs}");
    assert!(
        ours.contains("the peer could not reach this process"),
        "{ours}"
    );
}
