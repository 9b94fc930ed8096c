//! Evaluates every query of the dashboard for Grafana and every alert rule by a Prometheus that
//! scrapes a lab under load, and draws the panels.
//!
//! `promtool` checks the rules alone; whether a metric or a label of that name exists, only metrics
//! of running daemons show.
#![forbid(unsafe_code)]

mod check;
mod file;
mod load;
mod picture;
mod plot;
mod prometheus;
mod unit;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use check::Evaluated;
use cli::out::{self, Context, Failure, Verdict};
use file::Dashboard;
use load::{Cluster, NODES};
use prometheus::Prometheus;

/// Check the dashboard and the alert rules by a Prometheus that scrapes a lab under load
///
/// Exit code 1: a query has a fault or no values, which is printed.
#[derive(Debug, Parser)]
struct Args {
    /// Draw the panels to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Seconds of load, 30 to 600
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u16).range(30..=600))]
    seconds: u16,
    /// Program of Prometheus
    #[arg(long, value_name = "PROGRAM", default_value = "prometheus")]
    prometheus: PathBuf,
}

fn main() -> ExitCode {
    out::finish("dashboard", run(&Args::parse()))
}

fn run(args: &Args) -> Result<Verdict, Failure> {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let path = packaging.join("grafana/esp.json");
    let text = fs::read_to_string(&path).doing(path.display())?;
    let dashboard = Dashboard::parse(&text).doing(path.display())?;
    let rules = fs::canonicalize(packaging.join("prometheus/esp-alerts.yaml")).doing("rules")?;

    let cluster = Cluster::new()?;
    let mut prometheus = Prometheus::start(&cluster, &args.prometheus, &rules)?;
    prometheus.await_targets(NODES)?;
    let start = out::clock();
    cluster.run(args.seconds)?;
    let range = (start, out::clock());

    let mut faults = Vec::new();
    let values = check::variables(&prometheus, &dashboard, &mut faults);
    let panels = check::panels(&prometheus, &dashboard, &values, range, &mut faults);
    let alerts = check::alerts(&prometheus, &mut faults);
    let count = |all: &[Evaluated]| all.iter().map(|panel| panel.queries).sum::<usize>();
    out::line(format_args!(
        "{} panels with {} queries, {} alerts; faults: {}",
        panels.len(),
        count(&panels),
        alerts,
        faults.len()
    ))?;
    for fault in &faults {
        out::line(fault)?;
    }
    if let Some(file) = &args.svg {
        let text =
            picture::draw(&dashboard.title, &panels, range.1 - range.0).doing(file.display())?;
        fs::write(file, text).doing(file.display())?;
    }
    Ok(if faults.is_empty() {
        Verdict::Done
    } else {
        Verdict::Partly
    })
}
