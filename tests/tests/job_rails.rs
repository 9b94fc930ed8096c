//! Jobs on nodes with two interfaces: long messages use both, and either may die.

use std::process::Command;
use std::thread;
use std::time::Duration;

use bench::rails::{RailsResult, RailsTask, measure};
use bench::task::{Protocol, Role};
use esp_tests::frames::in_switch;
use esp_tests::process::ip_in_switch;
use esp_tests::{lab_or_skip, wait_until};
use lab::{Lab, LabOptions};

/// Bits per second of a link: slow, so that the job runs long enough.
const RATE: u64 = 200_000_000;
const LEASES: &str = "[lease]\nallow = \"all\"\n";

fn lab(test: &str, rate: Option<u64>, config: &str) -> Option<Lab> {
    let mut options = LabOptions::new(2);
    (options.rails, options.wire.rate) = (2, rate);
    options.daemon_config = format!("{LEASES}{config}");
    lab_or_skip(test, &options)
}

fn job(warm: u32, count: u32) -> RailsTask {
    RailsTask {
        rails: Role::Client,
        links: 4,
        pings: 50,
        warm,
        count,
    }
}

/// Returns the fraction of the bytes that each rail carried.
fn parts(outcome: &RailsResult) -> Vec<f64> {
    let all: u64 = outcome.rails.iter().map(|rail| rail.sent).sum();
    outcome
        .rails
        .iter()
        .map(|rail| rail.sent as f64 / all as f64)
        .collect()
}

#[test]
fn long_messages_are_striped_over_two_links() {
    let test = "long_messages_are_striped_over_two_links";
    let Some(lab) = lab(test, None, "") else {
        return;
    };
    for path in [Protocol::Lease, Protocol::Daemon] {
        let outcome = measure(&lab, path, job(2, 8)).expect("a job");
        let parts = parts(&outcome);
        // By the bytes that each rail took: both links declare the same bandwidth.
        assert!(
            parts.len() == 2 && parts.iter().all(|part| (0.49..0.51).contains(part)),
            "{path:?}: {outcome:?}"
        );
    }
}

/// The first interface of one node is in one network with the second of the other.
#[test]
fn interfaces_are_paired_by_what_they_reach() {
    let Some(lab) = lab("interfaces_are_paired_by_what_they_reach", None, "") else {
        return;
    };
    for (port, bridge) in [("port1", "br1"), ("port1r1", "br0")] {
        ip_in_switch(&lab, &format!("link set dev {port} master {bridge}"));
    }
    let outcome = measure(&lab, Protocol::Daemon, job(4, 4)).expect("a job");
    let rails = outcome.rails.iter();
    let mut interfaces: Vec<&str> = rails.map(|rail| rail.interfaces.as_str()).collect();
    interfaces.sort_unstable();
    assert!(interfaces.len() == 2, "{outcome:?}");
    assert!(
        interfaces[0].starts_with("eth0 to eth1 ") && interfaces[1].starts_with("eth1 to eth0 "),
        "{interfaces:?}"
    );
}

/// Isolates all ports of a switch from each other. No link goes down.
fn silence(lab: &Lab, rail: usize) {
    for node in [0, 1] {
        let port = if rail == 0 {
            format!("port{node}")
        } else {
            format!("port{node}r{rail}")
        };
        ip_in_switch(
            lab,
            &format!("link set dev {port} type bridge_slave isolated on"),
        );
    }
}

/// A switch dies while long messages use both links: ESP moves its connections to the other one.
#[test]
fn a_job_survives_the_death_of_a_switch() {
    let config = "[timers]\npeer_timeout = \"10s\"\nkeepalive = \"300ms\"\n";
    for (path, rail) in [(Protocol::Lease, 0), (Protocol::Daemon, 1)] {
        let test = "a_job_survives_the_death_of_a_switch";
        let Some(lab) = lab(test, Some(RATE), config) else {
            return;
        };
        let outcome = thread::scope(|scope| {
            let running = scope.spawn(|| measure(&lab, path, job(4, 24)));
            let bytes = || [sent_by(&lab, "port1"), sent_by(&lab, "port1r1")];
            wait_until("bytes flow over both links", || {
                thread::sleep(Duration::from_millis(30));
                running.is_finished() || bytes().iter().all(|bytes| *bytes > 8 << 20)
            });
            assert!(
                !running.is_finished(),
                "the job ended before the switch died"
            );
            silence(&lab, rail);
            running.join().expect("the job's thread").expect("a job")
        });
        assert_eq!(outcome.bytes, 24 * (4 << 20), "{path:?}: {outcome:?}");
    }
}

/// Returns the number of bytes that a port of the switch has sent to its node.
fn sent_by(lab: &Lab, port: &str) -> u64 {
    let ran = in_switch(lab, || {
        Command::new("ip")
            .args(["-json", "-statistics", "link", "show", "dev", port])
            .output()
    });
    let text = ran.expect("ip in the switch").stdout;
    let links: serde_json::Value = serde_json::from_slice(&text).expect("what ip says");
    links[0]["stats64"]["tx"]["bytes"]
        .as_u64()
        .expect("a counter")
}
