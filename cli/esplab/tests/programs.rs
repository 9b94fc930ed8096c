//! Tests of the programs on the nodes of a lab: esping, espstat, transfers, the demo, a benchmark.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use common::{TestResult, esplab, programs, skip, unique};
use lab::{Lab, LabError, LabOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Creates nodes with daemons; `None` (and SKIPPED) if namespaces are not allowed.
fn lab(nodes: usize, change: impl FnOnce(&mut LabOptions)) -> Option<Lab> {
    let mut options = LabOptions {
        programs: Some(programs()),
        ..LabOptions::new(nodes)
    };
    // Leases are off, because the daemon has no state of connections over leases.
    options.daemon_config = "[lease]\nallow = \"off\"\n".into();
    change(&mut options);
    match Lab::create(&options) {
        Ok(lab) => Some(lab),
        Err(LabError::Forbidden(why)) => {
            skip(&why);
            None
        }
        // The error names the command to build the missing esp-daemon.
        Err(e) => panic!("{e}"),
    }
}

/// Runs a program in node 0 and asserts this exit code; returns its output as JSON, line by line.
#[track_caller]
fn json(lab: &Lab, program: &str, args: &[&str], code: i32) -> Vec<Value> {
    let output = lab.run(0, program, args).expect("the node can be entered");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(
        output.status.code(),
        Some(code),
        "{program} {args:?}\n{out}\n{err}"
    );
    out.lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect()
}

/// Returns the one line of a program that could not run.
#[track_caller]
fn refusal(output: &Output) -> String {
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), err.lines().count()),
        (Some(2), 1),
        "{err}"
    );
    assert!(output.stdout.is_empty());
    err
}

#[test]
fn an_echo_is_answered() -> TestResult {
    let Some(lab) = lab(2, |_| ()) else {
        return Ok(());
    };
    let lines = json(
        &lab,
        "esping",
        &["-c", "3", "-i", "0.01", "-s", "1000", "--json", "node1"],
        0,
    );
    assert_eq!(lines.len(), 4);
    assert_eq!(
        (&lines[2]["type"], &lines[2]["seq"], &lines[2]["bytes"]),
        (&"reply".into(), &3.into(), &1000.into())
    );
    let summary = &lines[3];
    assert_eq!(
        (
            &summary["sent"],
            &summary["received"],
            &summary["interface"]
        ),
        (&3.into(), &3.into(), &"eth0".into())
    );
    assert!(
        summary["min_us"].as_f64() <= summary["max_us"].as_f64()
            && summary["avg_us"].as_f64() > Some(0.0)
    );

    // Text output.
    let output = lab.run(0, "esping", ["-c", "1", "02:e5:00:00:00:02"])?;
    let text = String::from_utf8(output.stdout)?;
    assert!(text.starts_with("ESPING 02:e5:00:00:00:02 via eth0: 56 bytes of data\n56 bytes from 02:e5:00:00:00:02: seq=1 time="), "{text}");
    assert!(
        text.contains("1 packets transmitted, 1 received, 0% packet loss")
            && text.contains("rtt min/avg/max/mdev"),
        "{text}"
    );
    Ok(())
}

#[test]
fn an_echo_without_answer_is_lost() -> TestResult {
    let Some(lab) = lab(1, |_| ()) else {
        return Ok(());
    };
    let lines = json(
        &lab,
        "esping",
        &[
            "-c",
            "2",
            "-i",
            "0.01",
            "-W",
            "0.05",
            "--json",
            "02:00:00:00:00:77",
        ],
        1,
    );
    assert_eq!(
        (
            &lines[0]["type"],
            &lines[0]["received"],
            &lines[0]["loss_percent"]
        ),
        (&"summary".into(), &0.into(), &100.0.into())
    );
    json(
        &lab,
        "esping",
        &["--mtu", "-W", "0.01", "--json", "02:00:00:00:00:77"],
        1,
    );
    json(
        &lab,
        "esping",
        &["--discover", "-W", "0.05", "-i", "0.01", "--json"],
        1,
    );
    let text = refusal(&lab.run(0, "esping", ["-c", "1", "node7"])?);
    assert!(text.contains("node7"), "{text}");
    let text = refusal(&lab.run(0, "esping", ["-c", "1", "-s", "2000", "node0"])?);
    assert!(text.contains("at most 1488"), "{text}");
    let text = refusal(&lab.run(0, "esping", ["-c", "1", "-I", "eth7", "node0"])?);
    assert!(text.contains("eth7"), "{text}");
    Ok(())
}

#[test]
fn a_missing_daemon_is_reported_in_one_line() -> TestResult {
    for program in ["esping", "espstat"] {
        let mut command = Command::new(programs().join(program));
        if program == "esping" {
            command.arg("02:00:00:00:00:01");
        }
        let text = refusal(
            &command
                .env("ESP_SOCKET", "/nonexistent/esp.sock")
                .stdin(Stdio::null())
                .output()?,
        );
        assert!(
            text.contains("/nonexistent/esp.sock") && text.contains("esp-daemon"),
            "{text}"
        );
    }
    Ok(())
}

#[test]
fn an_interrupted_esping_prints_its_summary() -> TestResult {
    let Some(lab) = lab(2, |_| ()) else {
        return Ok(());
    };
    let mut command = lab.command(0, "esping")?;
    let mut esping = command
        .args(["-i", "0.01", "node1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(esping.stdout.take().ok_or("no pipe")?).lines();
    let third = lines.nth(2).ok_or("it ended")??;
    assert!(third.contains("seq=2"), "{third}");
    kill_process(
        Pid::from_raw(i32::try_from(esping.id())?).ok_or("pid 0")?,
        Signal::INT,
    )?;
    let rest: Vec<String> = lines.collect::<Result<_, _>>()?;
    assert!(
        rest.iter().any(|line| line.contains("packets transmitted")),
        "{rest:?}"
    );
    assert!(
        matches!(esping.wait()?.code(), Some(0 | 1)),
        "1 when the last request was not answered yet"
    );
    Ok(())
}

#[test]
fn the_largest_payload_is_that_of_the_wire() -> TestResult {
    let Some(lab) = lab(2, |o| o.wire.mtu = 9000) else {
        return Ok(());
    };
    let found = json(&lab, "esping", &["--mtu", "--json", "node1"], 0);
    assert_eq!(
        (
            &found[0]["payload"],
            &found[0]["mtu"],
            &found[0]["peer_payload"]
        ),
        (&8989.into(), &9000.into(), &8989.into())
    );
    Ok(())
}

#[test]
fn all_nodes_are_discovered() -> TestResult {
    let Some(lab) = lab(3, |_| ()) else {
        return Ok(());
    };
    let mut found = json(&lab, "esping", &["--discover", "--json"], 0);
    found.sort_by_key(|line| line["mac"].to_string());
    let names: Vec<_> = found
        .iter()
        .map(|line| (&line["name"], &line["node_name"]))
        .collect();
    assert_eq!(
        names,
        [
            (&"node1".into(), &"node1".into()),
            (&"node2".into(), &"node2".into())
        ]
    );
    Ok(())
}

#[test]
fn a_transfer_under_loss_arrives_intact_and_is_seen_by_espstat() -> TestResult {
    let Some(lab) = lab(2, |o| o.wire.loss_ppm = 10_000) else {
        return Ok(());
    };
    let mut command = lab.command(1, "esplab")?;
    let mut recv = command
        .args(["recv", "7000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output_lines = BufReader::new(recv.stdout.take().ok_or("no pipe")?).lines();
    assert_eq!(
        output_lines.next().ok_or("it ended")??,
        "waiting at port 7000"
    );
    let listening = lab.run(1, "espstat", ["--json"])?;
    assert!(
        String::from_utf8(listening.stdout)?
            .lines()
            .any(|l| l.contains("\"listener\"") && l.contains("7000"))
    );

    let sent = json(
        &lab,
        "esplab",
        &["send", "--json", "--bytes", "16m", "node1:7000"],
        0,
    );
    assert_eq!(
        (&sent[0]["bytes"], &sent[0]["intact"]),
        (&(16 << 20).into(), &true.into())
    );
    let last = output_lines.next().ok_or("it ended")??;
    assert!(
        last.contains("16.00 MiB received from node0") && last.contains("content verified"),
        "{last}"
    );
    assert!(recv.wait()?.success());
    assert!(lab.frames_lost()? > 0);

    let counters = json(&lab, "espstat", &["--counters", "--json"], 0);
    let value = |name: &str| {
        counters
            .iter()
            .find(|c| c["name"] == name)
            .and_then(|c| c["value"].as_u64())
    };
    assert!(
        value("tx_retransmits") > Some(0) && value("tx_data_bytes") >= Some(16 << 20),
        "{counters:?}"
    );
    Ok(())
}

#[test]
fn a_port_without_receiver_refuses() -> TestResult {
    let Some(lab) = lab(2, |_| ()) else {
        return Ok(());
    };
    let text = refusal(&lab.run(0, "esplab", ["send", "node1:7000"])?);
    assert!(text.contains("refused"), "{text}");
    Ok(())
}

#[test]
fn the_demo_succeeds() {
    let output = esplab(&["demo"]);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if err.contains("network namespace") {
        return skip(&err);
    }
    assert!(output.status.success(), "{out}\n{err}");
    assert!(err.is_empty(), "progress without a terminal: {err}");
    for carrier in ["raw Ethernet", "UDP"] {
        let is_right = |start: &str, result: &str| {
            let start = format!("{start}, {carrier} ");
            out.lines()
                .any(|line| line.starts_with(&start) && line.contains(result))
        };
        assert!(is_right("echo", "5 of 5 answered"), "{carrier}: {out}");
        assert!(is_right("transfer", "every byte right"), "{carrier}: {out}");
    }
    // Rows of both carriers.
    for path in ["lease", "daemon", "p2p", "udp", "p2p-udp"] {
        let is_row = |line: &str| {
            let mut words = line.split_whitespace();
            words.next() == Some(path) && words.next() == Some("poll")
        };
        assert!(out.lines().any(is_row), "no row of {path} in\n{out}");
    }
}

#[test]
fn a_benchmark_gives_rows() -> TestResult {
    let output = esplab(&[
        "bench", "--quick", "--json", "--only", "send", "--only", "loss",
    ]);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if err.contains("network namespace") {
        skip(&err);
        return Ok(());
    }
    assert!(output.status.success(), "{err}");
    let rows: Vec<Value> = out
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let row = |bench: &str, path: &str, lossy: bool| {
        rows.iter()
            .find(|r| r["bench"] == bench && r["path"] == path && r["loss"].is_number() == lossy)
    };
    let send = row("send", "daemon", false).ok_or("no send row")?;
    assert!(
        send["p50_us"].is_number()
            && send["ratio_to_tcp"]["median"].is_number()
            && send["gbit_s"].is_null(),
        "{send}"
    );
    let lossy = row("loss", "daemon", true).ok_or("no loss row")?;
    assert!(
        lossy["gbit_s"].is_number() && lossy["ratio_to_lossless"]["median"].is_number(),
        "{lossy}"
    );
    assert_eq!((&lossy["mtu"], &lossy["rounds"]), (&1500.into(), &3.into()));
    Ok(())
}

#[test]
fn a_report_that_cannot_be_continued_is_refused_before_the_measurement() -> TestResult {
    let dir = std::env::temp_dir().join(unique("report"));
    fs::create_dir(&dir)?;
    fs::write(dir.join("results.json"), "{}")?;
    let folder = dir.to_string_lossy();
    let output = esplab(&["bench", "--quick", "--only", "send", "--report", &folder]);
    fs::remove_dir_all(&dir)?;
    // Only one line, because no benchmark has begun.
    let text = refusal(&output);
    assert!(text.contains("results.json is not a report"), "{text}");
    Ok(())
}

#[test]
fn an_unknown_bench_is_refused() {
    let text = refusal(&esplab(&["bench", "--only", "speed"]));
    assert!(text.contains("pingpong"), "{text}");
    assert!(
        ["incast", "shm", "sharing"]
            .iter()
            .all(|name| text.contains(name)),
        "{text}"
    );
}

#[test]
fn esping_crosses_a_router_by_udp_and_not_by_raw_frames() -> TestResult {
    let routed = |options: &mut LabOptions| {
        options.wire.routed = true;
        options.carriers = lab::Carriers::Both;
    };
    let Some(lab) = lab(4, routed) else {
        return Ok(());
    };
    // Nodes 0 and 1 are on one segment, 2 and 3 on the other.
    for (carrier, node, code) in [
        ("raw", "node1", 0),
        ("raw", "node2", 1),
        ("udp", "node1", 0),
        ("udp", "node3", 0),
    ] {
        let wait = if code == 0 { "5" } else { "0.2" };
        let args = [
            "-c",
            "3",
            "-i",
            "0.01",
            "-W",
            wait,
            "--json",
            "--carrier",
            carrier,
            node,
        ];
        json(&lab, "esping", &args, code);
    }
    let lines = json(&lab, "esping", &["--mtu", "--json", "10.99.0.4"], 0);
    let largest = lines.last().and_then(|line| line["payload"].as_u64());
    assert_eq!(largest, Some(1459), "{lines:?}");
    Ok(())
}
