//! Tests of espcat and esperf between nodes: over raw Ethernet through the daemon, and over UDP
//! without one.

mod common;

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};

use common::{bare, lab, programs, wait_until};
use lab::{Lab, LabOptions, Node};
use serde_json::Value;

/// Creates two nodes with daemons that grant no leases, because a daemon knows little of
/// connections over leases.
fn with_daemons() -> Option<Lab> {
    let mut options = LabOptions {
        programs: Some(programs()),
        ..LabOptions::new(2)
    };
    options.daemon_config = "[lease]\nallow = \"off\"\n".into();
    lab(&options)
}

/// A program in a node, ended on drop.
struct Running(Child);

impl Running {
    fn start(lab: &Lab, node: usize, program: &str, args: &[&str], input: Stdio) -> Running {
        let mut command: Command = lab.command(node, program).expect("a command of the node");
        command.args(args).stdin(input);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().expect("start a program"))
    }

    /// Passes it this input, and waits for its end.
    fn ends(mut self, input: Vec<u8>) -> Output {
        let pipe = self.0.stdin.take();
        let writer = std::thread::spawn(move || {
            // An error means that the program has ended already, as its exit code shows.
            pipe.map(|mut pipe| pipe.write_all(&input))
        });
        let stub = Command::new("true").stdout(Stdio::null()).spawn();
        let child = std::mem::replace(&mut self.0, stub.expect("start true"));
        let output = child.wait_with_output().expect("wait for a program");
        drop(writer.join());
        output
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns bytes in which a lost or repeated block is detectable.
fn pattern(len: usize, salt: u32) -> Vec<u8> {
    (0..len)
        .map(|i| ((i as u32 ^ salt).wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect()
}

/// Runs espcat as a client until the server listens.
fn connects(lab: &Lab, args: &[&str], input: &[u8]) -> Output {
    let mut output = None;
    wait_until("the server listens", || {
        let client = Running::start(lab, 0, "espcat", args, Stdio::piped());
        let ended = client.ends(input.to_vec());
        let err = String::from_utf8_lossy(&ended.stderr).into_owned();
        output = Some(ended);
        // Over UDP, a node without its server does not answer.
        !err.contains("refused") && !err.contains("no answer")
    });
    output.expect("just made")
}

#[track_caller]
fn is(output: &Output, code: i32) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{err}");
}

/// Sends a file in each direction at once between two nodes. The server gets these options.
fn files_cross(lab: &Lab, server: &[&str], node: &str) {
    let [to, back] = [1, 2].map(|salt| pattern(3 << 20, salt));
    let args = [server, &["-l", "5000"]].concat();
    let server = Running::start(lab, 1, "espcat", &args, Stdio::piped());
    let sent = back.clone();
    let server = std::thread::spawn(move || server.ends(sent));
    let client = connects(lab, &[node, "5000"], &to);
    is(&client, 0);
    assert!(client.stdout == back, "the answer is another one");
    let server = server.join().expect("no panic");
    is(&server, 0);
    assert!(server.stdout == to, "another file has arrived");
}

#[test]
fn espcat_copies_files_both_ways_by_the_daemon() {
    let Some(lab) = with_daemons() else { return };
    files_cross(&lab, &[], "node1");
}

#[test]
fn espcat_copies_files_both_ways_without_a_daemon() {
    let Some(lab) = lab(&bare(2)) else { return };
    let node = Node(1).ip().to_string();
    files_cross(&lab, &["--carrier", "udp"], &node);
}

#[test]
fn espcat_says_how_a_connection_failed() {
    let Some(lab) = with_daemons() else { return };
    let run = |args: &[&str]| Running::start(&lab, 0, "espcat", args, Stdio::piped()).ends(vec![]);
    let refused = run(&["node1", "5001"]);
    is(&refused, 1);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("refused the connection"));
    is(&run(&["-w", "0.1", "-l", "5002"]), 1);
    is(&run(&["no-such-node", "5002"]), 2);
    is(&run(&["node1"]), 2);
    is(&run(&["-l", "node1", "5000"]), 2);
}

#[test]
fn espcat_carries_datagrams_and_their_answers() {
    let Some(lab) = with_daemons() else { return };
    let server = Running::start(
        &lab,
        1,
        "espcat",
        &["-u", "-w", "3", "-l", "5000"],
        Stdio::piped(),
    );
    let server = std::thread::spawn(move || server.ends(b"pong\n".to_vec()));
    let mut answer = Vec::new();
    // Datagrams sent before the server is ready are lost.
    wait_until("an answer arrives", || {
        let client = Running::start(
            &lab,
            0,
            "espcat",
            &["-u", "-w", "0.5", "node1", "5000"],
            Stdio::piped(),
        );
        let ended = client.ends(b"ping\n".to_vec());
        is(&ended, 0);
        answer = ended.stdout;
        !answer.is_empty()
    });
    assert_eq!(answer, b"pong\n");
    let server = server.join().expect("no panic");
    is(&server, 0);
    assert!(server.stdout.starts_with(b"ping\n"));
}

/// Runs a test of esperf against a server that serves one test, and returns both JSON objects.
fn measured(lab: &Lab, server: &[&str], args: &[&str]) -> [Value; 2] {
    let server = Running::start(
        lab,
        1,
        "esperf",
        &[&["-s", "-1", "--json"], server].concat(),
        Stdio::null(),
    );
    let server = std::thread::spawn(move || server.ends(Vec::new()));
    let mut client = None;
    wait_until("the server serves", || {
        let args = [&["--json"], args].concat();
        let ended = Running::start(lab, 0, "esperf", &args, Stdio::null()).ends(vec![]);
        let is_done = ended.status.success();
        client = Some(ended);
        is_done
    });
    let server = server.join().expect("no panic");
    is(&server, 0);
    [client.expect("just made"), server].map(|output| {
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    })
}

fn number(value: &Value, path: &str) -> u64 {
    let found = value.pointer(path).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no number at {path}: {value}"))
}

#[test]
fn esperf_reports_the_bytes_of_both_sides_as_iperf3_does() {
    let Some(lab) = with_daemons() else { return };
    let args = ["-c", "node1", "-n", "4M", "-P", "3", "-l", "10000"];
    for reverse in [false, true] {
        let args = [&args[..], if reverse { &["-R"] } else { &[] }].concat();
        let [client, server] = measured(&lab, &[], &args);
        for side in [&client, &server] {
            for sum in ["sum_sent", "sum_received"] {
                assert_eq!(
                    number(side, &format!("/end/{sum}/bytes")),
                    4 << 20,
                    "{side}"
                );
            }
            let streams = side.pointer("/end/streams").and_then(Value::as_array);
            assert_eq!(streams.map(Vec::len), Some(3), "{side}");
            assert!(
                side.pointer("/end/cpu_utilization_percent/remote_total")
                    .is_some()
            );
        }
        // The sender's daemon counts its retransmissions.
        let sender = if reverse { &server } else { &client };
        number(sender, "/end/sum_sent/retransmits");
        assert_eq!(
            number(&client, "/start/test_start/reverse"),
            u64::from(reverse)
        );
    }
}

#[test]
fn esperf_measures_for_a_time_without_a_daemon() {
    let Some(lab) = lab(&bare(2)) else { return };
    let node = Node(1).ip().to_string();
    let args = ["-c", &node, "-t", "0.3", "-i", "0.1"];
    let [client, _] = measured(&lab, &["--carrier", "udp"], &args);
    let received = number(&client, "/end/sum_received/bytes");
    assert!(received > 0);
    assert_eq!(number(&client, "/end/sum_sent/bytes"), received);
    let intervals = client.pointer("/intervals").and_then(Value::as_array);
    assert!(
        intervals.is_some_and(|intervals| intervals.len() >= 2),
        "{client}"
    );
    // Without a daemon, the number is unknown, and not reported as zero.
    assert_eq!(client.pointer("/end/sum_sent/retransmits"), None);
}

#[test]
fn esperf_counts_losses_of_datagrams() {
    // The switch loses every tenth frame, including those of streams.
    let options = LabOptions {
        programs: Some(programs()),
        daemon_config: "[lease]\nallow = \"off\"\n".into(),
        ..LabOptions::new(2)
    };
    for (loss, carrier) in [(100_000, &[][..]), (0, &[]), (0, &["--carrier", "udp"])] {
        let mut options = options.clone();
        options.wire.loss_ppm = loss;
        options.daemon = carrier.is_empty();
        let Some(lab) = lab(&options) else { return };
        let ip = Node(1).ip().to_string();
        let node = if carrier.is_empty() { "node1" } else { &ip };
        for reverse in [&[][..], &["-R"]] {
            let args = [
                "-c", node, "-u", "-b", "8m", "-n", "500000", "-l", "1000", "-P", "2",
            ];
            let args = [&args[..], reverse].concat();
            let [client, server] = measured(&lab, carrier, &args);
            for side in [&client, &server] {
                assert_eq!(number(side, "/end/sum_sent/packets"), 500, "{side}");
                let sum = "/end/sum_received";
                assert_eq!(number(side, &format!("{sum}/packets")), 500, "{side}");
                let lost = number(side, &format!("{sum}/lost_packets"));
                let arrived = number(side, &format!("{sum}/bytes")) / 1000;
                assert_eq!(lost + arrived, 500, "{side}");
                assert_eq!(lost > 0, loss > 0, "{side}");
                assert_eq!(lost, number(side, "/end/sum/lost_packets"), "{side}");
                let jitter = side.pointer("/end/sum/jitter_ms").and_then(Value::as_f64);
                assert!(jitter.is_some_and(|jitter| jitter > 0.0), "{side}");
                assert_eq!(
                    side.pointer("/start/test_start/protocol"),
                    Some(&"EDP".into())
                );
            }
        }
    }
}

#[test]
fn esperf_refuses_what_is_no_test() {
    let Some(lab) = with_daemons() else { return };
    let run = |args: &[&str]| Running::start(&lab, 0, "esperf", args, Stdio::null()).ends(vec![]);
    is(&run(&["-c", "node1", "-p", "5999"]), 1);
    is(&run(&["-c", "node1", "-l", "2M"]), 2);
    let server = Running::start(&lab, 1, "esperf", &["-s", "-1"], Stdio::null());
    let server = std::thread::spawn(move || server.ends(Vec::new()));
    connects(&lab, &["-w", "5", "node1", "5201"], b"rubbish\n");
    let server = server.join().expect("no panic");
    is(&server, 1);
    let text = String::from_utf8_lossy(&server.stderr).into_owned();
    assert!(text.contains("not an esperf of this version"), "{text}");
}
