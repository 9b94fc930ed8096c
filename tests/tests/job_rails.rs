//! Jobs on nodes with two interfaces: both are used where that gains something, and either may die.

use std::process::Command;
use std::thread;
use std::time::Duration;

use bench::rails::{Job, Outcome, measure};
use bench::worker::{Path, Role};
use esp_tests::frames::in_switch;
use esp_tests::process::ip_in_switch;
use esp_tests::{lab_or_skip, wait_until};
use lab::{Lab, LabOptions};

/// Bits per second of a link: slow, for a machine busy with other tests must not be what bounds.
const RATE: u64 = 200_000_000;
const LEASES: &str = "[lease]\nallow = \"all\"\n";

fn lab(test: &str, rate: Option<u64>, config: &str) -> Option<Lab> {
    let mut options = LabOptions::new(2);
    (options.rails, options.wire.rate) = (2, rate);
    options.daemon_config = format!("{LEASES}{config}");
    lab_or_skip(test, &options)
}

fn job(warm: u32, count: u32) -> Job {
    Job {
        rails: Role::Client,
        links: 4,
        pings: 50,
        warm,
        count,
    }
}

/// The part that each interface carried while it counted.
fn parts(outcome: &Outcome) -> Vec<f64> {
    let all: u64 = outcome.links.iter().map(|link| link.sent).sum();
    outcome
        .links
        .iter()
        .map(|link| link.sent as f64 / all as f64)
        .collect()
}

fn tc_in_switch(lab: &Lab, args: &str) {
    let ran = in_switch(lab, || Command::new("tc").args(args.split(' ')).status());
    assert!(ran.expect("tc in the switch").success(), "tc {args}");
}

/// Whether one of some jobs does what is to be seen. A machine that is busy with other tests
/// measures what it has; so it is asked more than once.
fn once(lab: &Lab, path: Path, what: impl Fn(&Outcome) -> bool) {
    let mut seen = Vec::new();
    for _ in 0..3 {
        let outcome = measure(lab, path, job(24, 8)).expect("a job");
        assert!(
            outcome.links.len() == 2 && outcome.links.iter().all(|link| link.lost.is_none()),
            "{outcome:?}"
        );
        if what(&outcome) {
            return;
        }
        seen.push(outcome);
    }
    panic!("{path:?}: {seen:#?}");
}

fn says(outcome: &Outcome, words: &str) -> bool {
    outcome.choices.iter().any(|choice| choice.ends_with(words))
}

#[test]
fn two_links_of_their_own_are_used_together() {
    let test = "two_links_of_their_own_are_used_together";
    let Some(lab) = lab(test, Some(RATE), "") else {
        return;
    };
    for path in [Path::Lease, Path::Daemon] {
        once(&lab, path, |outcome| {
            parts(outcome).iter().all(|part| (0.3..0.7).contains(part))
                && says(outcome, "so the fastest 2 together")
        });
    }
}

/// All interfaces hang on two switches with one cable between them.
#[test]
fn two_links_that_share_a_bottleneck_are_not_used_together() {
    let test = "two_links_that_share_a_bottleneck_are_not_used_together";
    let Some(lab) = lab(test, None, "") else {
        return;
    };
    ip_in_switch(
        &lab,
        "link add name cable0 mtu 1500 type veth peer name cable1 mtu 1500",
    );
    for (port, bridge) in [
        ("cable0", "br0"),
        ("port0r1", "br0"),
        ("cable1", "br1"),
        ("port1", "br1"),
    ] {
        ip_in_switch(&lab, &format!("link set dev {port} master {bridge} up"));
    }
    for cable in ["cable0", "cable1"] {
        tc_in_switch(
            &lab,
            &format!("qdisc add dev {cable} root tbf rate 100mbit burst 10000 limit 100000"),
        );
    }
    once(&lab, Path::Lease, |outcome| {
        parts(outcome).iter().any(|part| *part > 0.9) && says(outcome, " alone")
    });
}

/// The nodes' interfaces in another order, so that the first of one node is not in one network with
/// the first of the other.
#[test]
fn interfaces_are_paired_by_what_they_reach() {
    let Some(lab) = lab("interfaces_are_paired_by_what_they_reach", None, "") else {
        return;
    };
    for (port, bridge) in [("port1", "br1"), ("port1r1", "br0")] {
        ip_in_switch(&lab, &format!("link set dev {port} master {bridge}"));
    }
    let outcome = measure(&lab, Path::Daemon, job(4, 4)).expect("a job");
    let mut ways: Vec<&str> = outcome.links.iter().map(|link| link.way.as_str()).collect();
    ways.sort_unstable();
    assert!(ways.len() == 2, "{outcome:?}");
    assert!(
        ways[0].starts_with("eth0 to eth1 ") && ways[1].starts_with("eth1 to eth0 "),
        "{ways:?}"
    );
}

/// Each port of a switch hears nobody: no link goes down.
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

/// A switch dies while long messages go over both: the job ends well, over the other one.
#[test]
fn a_switch_that_dies_under_a_job() {
    let config = "[timers]\npeer_timeout = \"1500ms\"\nkeepalive = \"300ms\"\n";
    for (path, rail) in [(Path::Lease, 0), (Path::Daemon, 1)] {
        let test = "a_switch_that_dies_under_a_job";
        let Some(lab) = lab(test, Some(RATE), config) else {
            return;
        };
        let outcome = thread::scope(|scope| {
            let running = scope.spawn(|| measure(&lab, path, job(24, 24)));
            // Until all ways were measured, and both are in use.
            let goal = 104 << 20;
            let bytes = || {
                thread::sleep(Duration::from_millis(30));
                [sent_by(&lab, "port1"), sent_by(&lab, "port1r1")]
            };
            wait_until("bytes flow", || {
                running.is_finished() || bytes().iter().sum::<u64>() > goal
            });
            let [first, second] = bytes();
            let more = |now: [u64; 2]| now[0] > first + (2 << 20) && now[1] > second + (2 << 20);
            wait_until("bytes flow over both", || {
                running.is_finished() || more(bytes())
            });
            silence(&lab, rail);
            running.join().expect("the job's thread").expect("a job")
        });
        // The connection goes over to the other interface, and the job notices nothing. Where it
        // cannot, the job itself goes on over the other way.
        let lost = outcome
            .links
            .iter()
            .filter(|link| link.lost.is_some())
            .count();
        assert!(lost == 0 || outcome.resent > 0, "{path:?}: {outcome:?}");
    }
}

/// Bytes that a port of the switch has sent to its node.
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
