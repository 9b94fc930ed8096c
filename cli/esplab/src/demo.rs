//! `esplab demo`: the tour.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use clap::Args;
use serde::Deserialize;

use super::up;
use bench::plan::{self, Bench};
use bench::report::{self, Row};
use bench::run::Rig;
use cli::out::{self, Doing, Failure, Verdict};
use lab::{Lab, LabOptions};

/// The tour: two nodes, an echo, a checked transfer, a comparison with TCP
#[derive(Debug, Args)]
pub(super) struct Flags {}

/// The port of the transfer.
const PORT: &str = "7000";

/// The part of esping's summary that the table shows.
#[derive(Debug, Deserialize)]
struct Echo {
    sent: u64,
    received: u64,
    avg_us: Option<f64>,
}

/// The part of the transfer's end that the table shows.
#[derive(Debug, Deserialize)]
struct Transfer {
    bytes: u64,
    intact: bool,
    gbit_s: f64,
}

pub(super) fn run(_flags: &Flags) -> Result<Verdict, Failure> {
    let mut rig = Rig::default();
    let options = LabOptions {
        daemon_cpus: rig.cores().daemons(),
        ..LabOptions::new(2)
    };
    out::line("1. Two nodes on one Ethernet segment, an esp-daemon in each")?;
    let lab = up::create(&options)?;
    out::line(format_args!(
        "   {}; the machine's own network is not touched",
        up::describe(&lab.state().wire)
    ))?;

    out::line("\n2. esping node1 (an echo by raw Ethernet frames, no IP)")?;
    let echo = echo(&lab)?;

    out::line("\n3. 64 MiB from a program in node0 to a program in node1, every byte checked")?;
    let transfer = transfer(&lab)?;

    out::line(
        "\n4. Ping-pong over an ESP stream and through the point-to-point layer, beside TCP, in turn on the same wire",
    )?;
    let rows = pingpong(&mut rig, &lab)?;

    out::line(format_args!("\n{}", table(&echo, &transfer, &rows)))?;
    drop(lab);
    out::line("\nThe nodes are gone. To look around yourself: esplab up --nodes 4")?;
    let fine = echo.received == echo.sent && transfer.intact;
    Ok(if fine { Verdict::Done } else { Verdict::Partly })
}

/// Shows esping's lines; gives its summary.
fn echo(lab: &Lab) -> Result<Echo, Failure> {
    let mut esping = lab.command(0, "esping")?;
    esping.args(["-c", "10", "-i", "0.02", "--json", "node1"]);
    let mut summary = None;
    lines(&mut esping, "esping", |line| {
        let value: serde_json::Value = serde_json::from_str(line).doing("esping")?;
        match value["type"].as_str() {
            Some("reply") => {
                let (seq, rtt) = (&value["seq"], value["rtt_us"].as_f64().unwrap_or_default());
                out::line(format_args!("   seq={seq} time={rtt:.1} µs"))?;
            }
            _ => summary = Some(serde_json::from_value(value).doing("esping")?),
        }
        Ok(())
    })?;
    summary.ok_or_else(|| Failure::new("esping ended without a summary"))
}

/// Runs `esplab recv` in node 1 and `esplab send` in node 0; the sender shows its progress on the
/// terminal.
fn transfer(lab: &Lab) -> Result<Transfer, Failure> {
    let mut recv = lab.command(1, "esplab")?;
    recv.args(["recv", "--quiet", PORT])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut recv = recv.spawn().doing("esplab recv")?;
    let mut said = BufReader::new(
        recv.stdout
            .take()
            .ok_or_else(|| Failure::new("a pipe is missing"))?,
    )
    .lines();
    // Its first line: it waits.
    let waits = said.next().transpose().doing("esplab recv")?;
    let result = (|| {
        if waits.is_none() {
            return Err(Failure::new("esplab recv did not start"));
        }
        let mut send = lab.command(0, "esplab")?;
        send.args(["send", "--json", "--bytes", "64m"])
            .arg(format!("node1:{PORT}"));
        let mut transfer = None;
        lines(&mut send, "esplab send", |line| {
            transfer = Some(serde_json::from_str(line).doing("esplab send")?);
            Ok(())
        })?;
        for line in said.map_while(Result::ok) {
            out::line(format_args!("   {line}"))?;
        }
        transfer.ok_or_else(|| Failure::new("esplab send ended without a result"))
    })();
    if result.is_err() {
        // Nobody will send to it any more.
        let _ = recv.kill();
    }
    recv.wait().doing("esplab recv")?;
    result
}

/// Runs a program and hands over its lines as they come. What it says on standard error goes where
/// ours goes.
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
    // 1 is a result too (some echoes lost, content wrong): the table shows it.
    if matches!(status.code(), Some(0 | 1)) {
        Ok(())
    } else {
        Err(Failure::new(format!("{name} ended with {status}")))
    }
}

fn pingpong(rig: &mut Rig, lab: &Lab) -> Result<Vec<Row>, Failure> {
    let mut benches = plan::plan(true, &["pingpong".into()]).map_err(Failure::new)?;
    let bench: &mut Bench = benches
        .first_mut()
        .ok_or_else(|| Failure::new("no bench"))?;
    let steps = (bench.rounds * bench.cases.len()) as u64;
    let bar = out::progress(steps, "{spinner} [{bar:30}] {pos}/{len} {eta} left");
    let results = rig.rounds(bench, &[lab], || bar.inc(1));
    bar.finish_and_clear();
    Ok(report::rows(bench, &results?))
}

fn table(echo: &Echo, transfer: &Transfer, rows: &[Row]) -> String {
    let Echo {
        sent,
        received,
        avg_us,
    } = echo;
    let Transfer {
        bytes,
        intact,
        gbit_s,
    } = transfer;
    let rtt = avg_us.map_or_else(String::new, |avg| format!(", {avg:.1} µs on average"));
    let content = if *intact {
        "every byte right"
    } else {
        "CONTENT WRONG"
    };
    format!(
        "echo       {received} of {sent} answered{rtt}\n\
         transfer   {} MiB at {gbit_s:.2} Gbit/s, {content}\n\
         ping-pong  half a round trip by size and way of waiting:\n\n{}",
        bytes >> 20,
        report::table(rows).trim_end()
    )
}
