//! `esplab simulate`.

mod page;
mod table;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bench::table::wrapped;
use clap::Args;
use indicatif::ProgressBar;
use scale::fabric::Topology;
use scale::footprint;
use scale::run::{self, Plan, Row, Transport};
use scale::workload::{Case, Workload};

use cli::out::{self, Failure, Verdict};

/// Default of `--mtu`.
const DEFAULT_MTU: u32 = 1500;

/// Simulate ESP and TCP on thousands of nodes in a leaf-spine network
///
/// Each node runs the real protocol core; network, time and programs are simulated. The seed
/// determines the result of a run. Needs neither privileges nor a network.
#[derive(Debug, Args)]
#[command(after_long_help = explained())]
pub(super) struct Flags {
    /// Number of nodes
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=60_000))]
    nodes: u32,
    /// Only these workloads, separated by commas. Default: all
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = workload)]
    workload: Vec<Workload>,
    /// Only these transports, separated by commas: esp-udp, esp-udp-noecn (switches do not mark),
    /// esp-raw (one path, no marks), tcp-reno, tcp-cubic, tcp-dctcp. Default: all
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = transport)]
    transport: Vec<Transport>,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// MTU of the nodes' links
    #[arg(long, default_value_t = DEFAULT_MTU)]
    #[arg(value_parser = clap::value_parser!(u32).range(576..=9000))]
    mtu: u32,
    /// Rate of a node's link, in Gbit/s
    #[arg(long, value_name = "GBIT", default_value = "25", value_parser = gbits)]
    host_rate: u32,
    /// Rate of a link between switches, in Gbit/s
    #[arg(long, value_name = "GBIT", default_value = "100", value_parser = gbits)]
    fabric_rate: u32,
    /// Number of nodes per leaf switch
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=250))]
    per_leaf: u32,
    /// Number of spine switches [default: enough to carry the full rate of a leaf's nodes]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=250))]
    spines: Option<u32>,
    /// Shared buffer of a switch, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 12,
        value_parser = clap::value_parser!(u64).range(1..=1024))]
    buffer: u64,
    /// ECN marking threshold of a 25 Gbit/s port, in KiB of queued data; scaled to the rate of
    /// other ports
    #[arg(long, value_name = "KIB", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    mark: u32,
    /// One JSON object per row
    #[arg(long, conflicts_with = "report")]
    json: bool,
    /// Write tables and charts to DIR/scale.md and DIR/scale/. In an existing page, only the
    /// simulated workloads are replaced
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "docs")]
    report: Option<PathBuf>,
}

fn workload(text: &str) -> Result<Workload, String> {
    let known = || Workload::ALL.map(Workload::name).join(", ");
    Workload::named(text).ok_or_else(|| format!("no such workload: write one of {}", known()))
}

fn transport(text: &str) -> Result<Transport, String> {
    let known = || Transport::ALL.map(Transport::name).join(", ");
    Transport::named(text).ok_or_else(|| format!("no such transport: write one of {}", known()))
}

/// Parses a rate at which a byte takes a whole number of picoseconds.
fn gbits(text: &str) -> Result<u32, String> {
    const RATES: [u32; 8] = [1, 10, 25, 40, 50, 100, 200, 400];
    let rate = text.parse().ok().filter(|rate| RATES.contains(rate));
    rate.ok_or_else(|| "not the rate of a port: write 1, 10, 25, 40, 50, 100, 200 or 400".into())
}

/// Returns the explanation of each workload, for `--help`.
fn explained() -> String {
    let mut text = "Workloads, with the usual time for all transports on two cores, for 1000 and \
                    for 10000 nodes:"
        .to_owned();
    for kind in Workload::ALL {
        let [short, long] = table::usual_time(kind);
        text += &format!("\n  {:<11} {short:>7} {long:>7}", kind.name());
        for line in wrapped(kind.about(), 86).lines() {
            text += &format!("\n      {line}");
        }
    }
    text
}

impl Flags {
    fn plan(&self) -> Plan {
        let mut topology = Topology {
            per_leaf: self.per_leaf,
            host_gbits: self.host_rate,
            fabric_gbits: self.fabric_rate,
            buffer: self.buffer << 20,
            mark_kib: self.mark,
            ..Topology::of(self.nodes)
        };
        topology.spines = self.spines.unwrap_or_else(|| topology.full_spines());
        Plan {
            topology,
            mtu: self.mtu,
            seed: self.seed,
        }
    }
}

/// Returns the chosen values, or all if none were chosen.
fn or_all<T: Copy>(chosen: &[T], all: &[T]) -> Vec<T> {
    if chosen.is_empty() { all } else { chosen }.to_vec()
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let plan = flags.plan();
    let workloads = or_all(&flags.workload, &Workload::ALL);
    let transports = or_all(&flags.transport, &Transport::ALL);
    if cfg!(debug_assertions) && !flags.json {
        out::note("esplab simulate: built without optimisation, it takes several times as long");
    }
    let network = table::network(&plan);
    let mut memory = None;
    if !flags.json {
        memory = footprint::measure(plan.mtu).map_err(Failure::broken)?;
    }
    let memory = memory.map(table::memory).unwrap_or_default();
    if !flags.json && flags.report.is_none() {
        out::line(format_args!("{network}\n{memory}"))?;
    }
    let mut sections = Vec::new();
    let mut verdict = Verdict::Done;
    for kind in workloads {
        let rows = simulate(&plan, kind, &transports);
        if rows.iter().any(|row| row.error.is_some() || row.failed > 0) {
            verdict = Verdict::Partly;
        }
        if flags.json {
            rows.iter().try_for_each(out::json)?;
        } else if flags.report.is_some() {
            sections.push(page::Section::new(&plan, kind, &rows));
        } else {
            let (name, about) = (kind.name(), wrapped(kind.about(), 92));
            let table = table::text(&rows);
            out::line(format_args!("\n{name}: {about}\n{}", table.trim_end()))?;
        }
    }
    if let Some(folder) = &flags.report {
        let path = page::write(folder, &memory, &sections)?;
        out::line(path.display())?;
    }
    Ok(verdict)
}

/// Runs all cases of a workload over all transports, two at a time if there are two cores.
fn simulate(plan: &Plan, kind: Workload, transports: &[Transport]) -> Vec<Row> {
    let cases = kind.cases(&plan.topology, plan.seed);
    let jobs: Vec<(&Case, Transport)> = cases
        .iter()
        .flat_map(|case| transports.iter().map(move |transport| (case, *transport)))
        .collect();
    let bar = out::progress(
        jobs.len() as u64,
        "{spinner} {msg} [{bar:30}] {pos}/{len} {elapsed}",
    );
    bar.set_message(kind.name());
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    let work = || {
        let take = || next.fetch_add(1, Ordering::Relaxed);
        for number in std::iter::repeat_with(take) {
            let Some((case, transport)) = jobs.get(number) else {
                return;
            };
            let row = run::run(plan, kind, case, *transport);
            note(&bar, &row);
            if let Ok(mut rows) = rows.lock() {
                rows.push((number, row));
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores.clamp(1, 2) {
            scope.spawn(work);
        }
    });
    bar.finish_and_clear();
    let mut rows = rows.into_inner().unwrap_or_default();
    rows.sort_by_key(|(number, _)| *number);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Reports the end of a run.
fn note(bar: &ProgressBar, row: &Row) {
    bar.inc(1);
    if bar.is_hidden() {
        out::note(format_args!(
            "esplab simulate: {} {}, {}: {:.0} s, {:.2} million frames a second",
            row.workload, row.case, row.transport, row.seconds, row.mframes_per_s
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(line: &str) -> Result<Flags, clap::Error> {
        Line::try_parse_from(["simulate"].into_iter().chain(line.split_whitespace()))
            .map(|line| line.flags)
    }

    #[test]
    fn names_and_rates_are_checked() {
        for line in [
            "--workload incest",
            "--transport tcp",
            "--host-rate 12",
            "--nodes 1",
            "--nodes x",
            "--mtu 100",
            "--json --report",
        ] {
            let error = flags(line).map(|_| ()).map_err(|error| error.to_string());
            assert!(error.is_err(), "{line}");
        }
        let error = flags("--workload x").map(|_| ()).map_err(|e| e.to_string());
        assert!(error.is_err_and(|text| text.contains("write one of incast, alltoall")));
    }

    #[test]
    fn spines_carry_what_nodes_send() -> Result<(), clap::Error> {
        let spines = |line| flags(line).map(|flags| flags.plan().topology.spines);
        assert_eq!(spines("")?, 10);
        assert_eq!(
            spines("--per-leaf 32 --host-rate 100 --fabric-rate 400")?,
            8
        );
        assert_eq!(spines("--spines 3")?, 3);
        Ok(())
    }

    #[test]
    fn the_command_of_a_report_repeats_its_network() -> Result<(), clap::Error> {
        let rows = simulate(
            &flags("--nodes 12")?.plan(),
            Workload::JobStart,
            &[Transport::EspUdp],
        );
        for line in [
            "--nodes 12",
            "--nodes 12 --seed 7 --mtu 9000 --host-rate 100 --fabric-rate 400 --per-leaf 6 \
             --spines 1 --buffer 24 --mark 200",
            // The number of spine switches that the changed rates need.
            "--nodes 400 --host-rate 100",
        ] {
            let plan = flags(line)?.plan();
            let command = table::command(&plan, Workload::JobStart, &rows);
            let options = command.trim_start_matches("esplab simulate");
            let repeated = flags(options)?.plan();
            assert_eq!(format!("{repeated:?}"), format!("{plan:?}"), "{command}");
            let names_default = command.contains("mtu") || command.contains("spines");
            assert_eq!(names_default, line.contains("spines"), "{command}");
        }
        Ok(())
    }

    #[test]
    fn rows_are_in_the_order_of_the_transports() -> Result<(), clap::Error> {
        let plan = flags("--nodes 12")?.plan();
        let rows = simulate(&plan, Workload::AllToAll, &Transport::ALL);
        let names: Vec<_> = rows.iter().map(|row| row.transport).collect();
        assert_eq!(names, Transport::ALL.map(Transport::name).repeat(3));
        Ok(())
    }
}
