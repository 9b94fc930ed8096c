//! `esplab demo`: a tour of the stack.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::Value;

use super::up;
use bench::plan;
use bench::report;
use bench::run::Rig;
use bench::table::Style;
use cli::out::{self, Context, Failure, Verdict};
use lab::{Carriers, Lab, LabOptions};

/// Show the stack at work: two nodes; echoes and checked transfers over raw Ethernet and UDP;
/// latency and throughput in comparison with TCP
#[derive(Debug, Args)]
pub(super) struct Flags {}

/// Port of the transfers.
const PORT: &str = "7000";
/// The second node for each carrier: by name (raw Ethernet) and by IP address (UDP).
const TARGETS: [(&str, &str); 2] = [("raw Ethernet", "node1"), ("UDP", "10.99.0.2")];

pub(super) fn run(_flags: &Flags) -> Result<Verdict, Failure> {
    let mut rig = Rig::default();
    let options = LabOptions {
        daemon_cpus: rig.cores().daemons(),
        carriers: Carriers::Both,
        ..LabOptions::new(2)
    };
    out::line("1. Two nodes on one Ethernet segment, each with an esp-daemon")?;
    let lab = up::create(&options)?;
    out::line(format_args!(
        "   {}; the machine's own network is not touched",
        up::describe(&lab.state().wire)
    ))?;

    out::line("\n2. esping: echoes by raw Ethernet frames and by UDP")?;
    let mut is_fine = true;
    let mut summary = String::new();
    for (carrier, target) in TARGETS {
        out::line(format_args!("   esping {target} ({carrier})"))?;
        let echo = echo(&lab, target)?;
        is_fine &= is_answered(&echo);
        summary += &format!(
            "{:23} {} of {} answered, {:.1} µs on average\n",
            format!("echo, {carrier}"),
            echo["received"],
            echo["sent"],
            echo["avg_us"].as_f64().unwrap_or(f64::NAN)
        );
    }

    out::line("\n3. 64 MiB from a program in node0 to a program in node1, every byte checked")?;
    for (carrier, target) in TARGETS {
        out::line(format_args!("   esplab send {target}:{PORT} ({carrier})"))?;
        let transfer = transfer(&lab, target)?;
        let intact = transfer["intact"] == true;
        is_fine &= intact;
        summary += &format!(
            "{:23} 64 MiB at {:.2} Gbit/s, {}\n",
            format!("transfer, {carrier}"),
            transfer["gbit_s"].as_f64().unwrap_or_default(),
            if intact {
                "every byte right"
            } else {
                "CONTENT WRONG"
            }
        );
    }

    out::line("\n4. Latency and throughput of ESP, the point-to-point layer and TCP, in turn")?;
    let latency = measure(&mut rig, &lab, "pingpong")?;
    let throughput = measure(&mut rig, &lab, "stream")?;

    out::line(format_args!(
        "\n{summary}\nhalf a round trip:\n\n{}\n\none way:\n\n{}",
        latency.trim_end(),
        throughput.trim_end()
    ))?;
    drop(lab);
    out::line("\nThe nodes are removed. To try it yourself: esplab up --nodes 4")?;
    Ok(if is_fine {
        Verdict::Done
    } else {
        Verdict::Partly
    })
}

/// Runs esping, shows its lines and returns its summary.
fn echo(lab: &Lab, target: &str) -> Result<Value, Failure> {
    let mut esping = lab.command(0, "esping")?;
    esping.args(["-c", "5", "-i", "0.02", "--json", target]);
    let mut summary = None;
    lines(&mut esping, "esping", |line| {
        let value: Value = serde_json::from_str(line).doing("esping")?;
        if value["type"] == "reply" {
            let (seq, rtt) = (&value["seq"], value["rtt_us"].as_f64().unwrap_or_default());
            out::line(format_args!("   seq={seq} time={rtt:.1} µs"))?;
        }
        keep_summary(&mut summary, value);
        Ok(())
    })?;
    summary.ok_or_else(|| Failure::new("esping ended without a summary"))
}

/// Keeps the object with the summary. After a total loss, others with the probable cause follow it.
fn keep_summary(summary: &mut Option<Value>, value: Value) {
    if value["type"] == "summary" {
        *summary = Some(value);
    }
}

/// Returns true if each echo of a summary was answered.
fn is_answered(summary: &Value) -> bool {
    let count = |name: &str| summary[name].as_u64();
    count("received").is_some() && count("received") == count("sent")
}

/// Runs `esplab recv` in node 1 and `esplab send` in node 0, which shows its progress.
fn transfer(lab: &Lab, target: &str) -> Result<Value, Failure> {
    let mut recv = lab.command(1, "esplab")?;
    recv.args(["recv", "--quiet", PORT])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut recv = recv.spawn().doing("esplab recv")?;
    let mut output = BufReader::new(
        recv.stdout
            .take()
            .ok_or_else(|| Failure::new("a pipe is missing"))?,
    )
    .lines();
    // Its first line confirms that it listens.
    let waits = output.next().transpose().doing("esplab recv")?;
    let result = (|| {
        if waits.is_none() {
            return Err(Failure::new("esplab recv did not start"));
        }
        let mut send = lab.command(0, "esplab")?;
        send.args(["send", "--json", "--bytes", "64m"])
            .arg(format!("{target}:{PORT}"));
        let mut transfer = None;
        lines(&mut send, "esplab send", |line| {
            transfer = Some(serde_json::from_str(line).doing("esplab send")?);
            Ok(())
        })?;
        for line in output.map_while(Result::ok) {
            out::line(format_args!("   {line}"))?;
        }
        transfer.ok_or_else(|| Failure::new("esplab send ended without a result"))
    })();
    if result.is_err() {
        let _ = recv.kill();
    }
    recv.wait().doing("esplab recv")?;
    result
}

/// Runs a program and passes each line of its standard output to `each`.
fn lines(
    command: &mut Command,
    name: &str,
    mut each: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .doing(name)?;
    let stdout = child
        .stdout
        .take()
        .ok_or_else(|| Failure::new("a pipe is missing"))?;
    let result = BufReader::new(stdout)
        .lines()
        .try_for_each(|line| each(&line.doing(name)?));
    if result.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().doing(name)?;
    result?;
    // Exit code 1 (echoes lost, content wrong) is a result, which the table shows.
    if matches!(status.code(), Some(0 | 1)) {
        Ok(())
    } else {
        Err(Failure::new(format!("{name} ended with {status}")))
    }
}

/// Runs the short form of a benchmark in this lab, and returns its table.
fn measure(rig: &mut Rig, lab: &Lab, name: &str) -> Result<String, Failure> {
    let benches = plan::plan(true, &[name.into()]).map_err(Failure::new)?;
    let mut table = String::new();
    for mut bench in benches {
        // The first lab has the default MTU, as this one.
        bench.cases.retain(|case| case.lab == 0);
        let steps = (bench.rounds * bench.cases.len()) as u64;
        let bar = out::progress(steps, "{spinner} {msg} [{bar:30}] {pos}/{len} {eta} left");
        bar.set_message(bench.about.name);
        let results = rig.rounds(&bench, &[lab], || bar.inc(1));
        bar.finish_and_clear();
        table = report::table(&report::rows(&bench, &results?), Style::Text);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_loss_is_not_fine() -> Result<(), serde_json::Error> {
        let lines = |received: u32| {
            [
                format!(r#"{{"type":"summary","sent":5,"received":{received}}}"#),
                r#"{"type":"streams","datagrams":false,"streams":null}"#.to_owned(),
            ]
        };
        for (received, fine) in [(5, true), (4, false), (0, false)] {
            let mut summary = None;
            for line in lines(received) {
                keep_summary(&mut summary, serde_json::from_str(&line)?);
            }
            let summary = summary.unwrap_or_default();
            assert_eq!(is_answered(&summary), fine, "{received} of 5: {summary}");
        }
        assert!(!is_answered(&Value::Null), "nothing is known");
        Ok(())
    }
}
