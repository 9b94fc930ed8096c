//! RDMA over soft-RoCE in the guest of `tests/vm`, which has a kernel of its own.
//!
//! The guest is started by the scripts of the source tree, with the examples of the build that this
//! program is from. It is not set up here, because that downloads a kernel and an emulator.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Context;
use super::mpi::{Collected, Value};
use super::results::Outcome;
use crate::results::Unit;
use cli::out::{Context as _, Failure};

/// Time limit of the guest in seconds.
const PATIENCE: u32 = 600;

/// Command that builds the programs of the guest.
const BUILD: &str = "cargo build --release -p ib-btl -p job --examples";

/// Measures in the guest.
pub(super) fn measure(context: &Context<'_>) -> Result<Outcome, Failure> {
    let (scripts, examples) = place()?;
    let files = ["ibbench", "ib-figure6"].map(|name| examples.join(name));
    if let Some(file) = files.iter().find(|file| !file.is_file()) {
        let file = file.display();
        return Err(Failure::new(format!("not run: no {file}: {BUILD}")));
    }
    let figures = scripts.join("figures.sh");
    let list = files.iter().chain([&figures]).map(|p| p.display());
    let list: Vec<_> = list.map(|path| path.to_string()).collect();
    let mut command = Command::new(scripts.join("run"));
    command
        .arg(scripts.join("papers.sh"))
        .arg(context.rounds.to_string())
        .env("ESP_VM_PRE", "wire; ordered")
        .env("ESP_VM_FILES", list.join(" "))
        .env("ESP_VM_TIMEOUT", PATIENCE.to_string())
        .stdin(Stdio::null());
    let output = command.output().doing("tests/vm/run")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut all = Collected::default();
    for (contender, value) in values(&said) {
        all.add(context.run.name, contender, vec![value]);
    }
    let note = (!output.status.success()).then(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().unwrap_or("no message").to_owned();
        format!("the guest ended with {}: {last}", output.status)
    });
    Ok(Outcome {
        figures: all.figures(),
        note,
    })
}

/// Returns the folder of the scripts and that of the examples.
fn place() -> Result<(PathBuf, PathBuf), Failure> {
    let exe = std::env::current_exe().doing("finding the running program")?;
    let folder = exe.parent().unwrap_or(Path::new("/"));
    let scripts = folder.join("../../tests/vm");
    if !scripts.join("run").is_file() {
        return Err(Failure::new(
            "not run: the guest needs the source tree: run target/release/esplab",
        ));
    }
    let scripts = scripts.canonicalize().doing(scripts.display())?;
    let vm = std::env::var_os("ESP_VM_DIR").map(PathBuf::from);
    let vm = vm.unwrap_or_else(|| scripts.join("../../target/vm"));
    if !vm.join("stamp").is_file() {
        return Err(Failure::new(
            "not run: no guest: tests/vm/setup, which downloads a kernel and QEMU",
        ));
    }
    Ok((scripts, folder.join("examples")))
}

/// Columns of the tables of `ib-figure6`, by the name of the table.
const TABLES: [(&str, [&str; 3]); 2] = [
    ("ping-pong", ["copies", "RDMA", "RDMA + cache"]),
    ("held", ["copied", "held", "held + cache"]),
];

/// Parses the guest's output: lines of `round N:`, and tables of `ib-figure6`.
fn values(said: &str) -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    let mut table = None;
    for line in said.lines().map(str::trim) {
        if let Some((_, rest)) = line
            .strip_prefix("round ")
            .and_then(|rest| rest.split_once(": "))
        {
            all.extend(round(rest));
        } else if line.starts_with("bytes") {
            table = TABLES.iter().find(|(_, names)| line.contains(names[2]));
        } else if let Some((what, names)) = table {
            all.extend(row(line, what, names));
        }
    }
    all
}

/// Parses `ib_write_lat 12.5 us`, `ours latency 12.5 us` and the like.
fn round(text: &str) -> Option<(&'static str, Value)> {
    let words: Vec<_> = text.split_whitespace().collect();
    let number = |text: &str| text.parse::<f64>().ok().filter(|v| (0.0..1e9).contains(v));
    let (contender, number, unit) = match *words.as_slice() {
        ["ib_write_lat", n, "us"] => ("ib_write_lat", number(n)?, Unit::Micros),
        ["ib_send_lat", n, "us"] => ("ib_send_lat", number(n)?, Unit::Micros),
        ["ours", "latency", n, "us"] => ("ib", number(n)?, Unit::Micros),
        ["ib_write_bw", n, "MB/s"] => ("ib_write_bw", number(n)?, Unit::MbS),
        ["ours", "bandwidth", n, "MB/s"] => ("ib", number(n)?, Unit::MbS),
        _ => return None,
    };
    let what = match unit {
        Unit::Micros => "half a round trip of 8 B",
        _ => "put of 1 MiB",
    };
    Some((
        contender,
        Value {
            what: what.into(),
            size: None,
            unit,
            value: number,
            p99: None,
        },
    ))
}

/// Parses a row of `ib-figure6`: bytes, and for each column the median and its quarters.
fn row(line: &str, what: &str, names: &[&'static str; 3]) -> Vec<(&'static str, Value)> {
    let mut words = line.split_whitespace();
    let Some(size) = words.next().and_then(|word| word.parse::<u64>().ok()) else {
        return Vec::new();
    };
    let numbers = words.filter_map(|word| word.parse::<f64>().ok());
    let value = |(name, value): (&&'static str, f64)| {
        let value = Value {
            what: what.into(),
            size: Some(size),
            unit: Unit::MbS,
            value,
            p99: None,
        };
        (*name, value)
    };
    names.iter().zip(numbers).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_prints_is_parsed() {
        let said = "round 1: ib_write_lat 70.5 us\nround 1: ours latency 75.10 us\n\
             round 1: ours bandwidth 30.00 MB/s\nround 1: ib_send_lat  us\nsteps 3\n   \
             bytes  copies  RDMA  RDMA + cache   MB/s; middle (quarters)\n    4096  \
             5.0 (4.0-6.0)   4.5 (4.0-5.0)   5.5 (5.0-6.0)   time with cache / copies 0.91, less\n   \
             bytes  copied   held  held + cache   MB/s; middle (quarters)\n    1024 \
             1.0 (0.9-1.1)   0.5 (0.4-0.6)   0.7 (0.6-0.8)   time with cache / copies 1.42, less\n";
        let values = values(said);
        let short: Vec<_> = values
            .iter()
            .map(|(name, v)| (*name, v.what.as_str(), v.size, v.value))
            .collect();
        let half = "half a round trip of 8 B";
        assert_eq!(
            short,
            [
                ("ib_write_lat", half, None, 70.5),
                ("ib", half, None, 75.1),
                ("ib", "put of 1 MiB", None, 30.0),
                ("copies", "ping-pong", Some(4096), 5.0),
                ("RDMA", "ping-pong", Some(4096), 4.5),
                ("RDMA + cache", "ping-pong", Some(4096), 5.5),
                ("copied", "held", Some(1024), 1.0),
                ("held", "held", Some(1024), 0.5),
                ("held + cache", "held", Some(1024), 0.7),
            ]
        );
    }
}
