//! Tables of the simulation, as text and as Markdown.

use bench::table::wrapped;
use scale::fabric::Topology;
use scale::footprint::Footprint;
use scale::run::{Plan, Row, Transport};
use scale::workload::Workload;

use super::DEFAULT_MTU;

/// A column: its heading, with `>` before one of numbers, and the function for the cell of a row.
type Column = (&'static str, fn(&Row) -> String);

const COLUMNS: [Column; 14] = [
    ("case", |row| row.case.clone()),
    ("transport", |row| row.transport.into()),
    (">time µs", |row| number(row.completion_us)),
    (">× bound", |row| format!("{:.2}", row.ratio)),
    (">p50 µs", |row| number(row.p50_us)),
    (">p99 µs", |row| number(row.p99_us)),
    (">p99.9 µs", |row| number(row.p999_us)),
    (">Gbit/s", |row| number(row.goodput_gbits)),
    (">sent again", |row| row.retransmits.to_string()),
    (">timeouts", |row| row.timeouts.to_string()),
    (">drops", |row| {
        (row.dropped + row.lost + row.ring_dropped).to_string()
    }),
    (">queue p99 KiB", |row| number(row.queue_p99_kib)),
    (">max", |row| number(row.queue_max_kib)),
    (">Jain", |row| match &row.error {
        None => format!("{:.2}", row.jain),
        Some(error) => error.clone(),
    }),
];

/// Returns the usual time of a workload for 1000 and for 10 000 nodes.
pub(super) fn usual_time(kind: Workload) -> [&'static str; 2] {
    match kind {
        Workload::Incast => ["5 s", "30 s"],
        Workload::AllToAll => ["3 min", "9 min"],
        Workload::Halo => ["10 s", "2 min"],
        Workload::JobStart => ["2 s", "10 s"],
        Workload::AllReduce => ["30 s", "5 min"],
        Workload::Server => ["10 s", "2 min"],
        Workload::Background => ["1 min", "10 min"],
        Workload::DeadSpine => ["10 s", "2 min"],
        Workload::Flap => ["10 s", "2 min"],
        Workload::Straggler => ["10 s", "2 min"],
    }
}

/// Formats a number with at least three digits.
fn number(value: f64) -> String {
    match value {
        10.0.. => format!("{value:.0}"),
        1.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Returns the table of rows for a terminal.
pub(super) fn text(rows: &[Row]) -> String {
    let headings = COLUMNS.map(|(heading, _)| heading);
    let cells = |row: &Row| COLUMNS.iter().map(|(_, cell)| cell(row)).collect();
    cli::table::text(&headings, rows.iter().map(cells))
}

/// Returns the table of rows in Markdown.
pub(super) fn markdown(rows: &[Row]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let headings = COLUMNS
        .iter()
        .map(|(heading, _)| heading.trim_start_matches('>').to_owned());
    let rules = COLUMNS.iter().map(|(heading, _)| {
        let rule = if heading.starts_with('>') {
            "---:"
        } else {
            "---"
        };
        rule.to_owned()
    });
    let mut text = line(headings.collect()) + &line(rules.collect());
    for row in rows {
        text += &line(COLUMNS.iter().map(|(_, cell)| cell(row)).collect());
    }
    text
}

/// Describes the network in a sentence.
pub(super) fn network(plan: &Plan) -> String {
    let topology = &plan.topology;
    let Topology {
        nodes,
        per_leaf,
        spines,
        host_gbits,
        fabric_gbits,
        delay,
        mark_kib,
        ..
    } = topology;
    let leaves = topology.leaves();
    let buffer = topology.buffer >> 20;
    wrapped(
        &format!(
            "{nodes} nodes at {host_gbits} Gbit/s, MTU {}, {per_leaf} to a leaf switch; {leaves} \
             leaf switches with a link of {fabric_gbits} Gbit/s to each of {spines} spine \
             switches; {delay} ns for each cable with its switch; a shared buffer of {buffer} MiB \
             in a switch; marking threshold {mark_kib} KiB at 25 Gbit/s; seed {}.",
            plan.mtu, plan.seed
        ),
        100,
    )
}

/// Describes the memory of a node and a peer.
pub(super) fn memory(footprint: Footprint) -> String {
    let Footprint { node, peer } = footprint;
    wrapped(
        &format!(
            "Memory of ESP, measured with 1000 nodes of 64 idle peers each, tables of the \
             simulator included: {node} bytes for a node, {peer} bytes for each end of a \
             connection."
        ),
        100,
    )
}

/// Returns the command that repeats the rows of a workload.
pub(super) fn command(plan: &Plan, kind: Workload, rows: &[Row]) -> String {
    let has = |transport: &Transport| rows.iter().any(|row| row.transport == transport.name());
    let ran = Transport::ALL.into_iter().filter(has);
    let names: Vec<_> = ran.map(Transport::name).collect();
    let some = if names.len() == Transport::ALL.len() {
        String::new()
    } else {
        format!(" --transport {}", names.join(","))
    };
    format!(
        "esplab simulate --nodes {} --workload {}{some} --seed {}{}",
        plan.topology.nodes,
        kind.name(),
        plan.seed,
        options(plan)
    )
}

/// Returns the options of a network that differ from their defaults.
fn options(plan: &Plan) -> String {
    let (network, usual) = (&plan.topology, Topology::of(plan.topology.nodes));
    let options = [
        ("mtu", plan.mtu, DEFAULT_MTU),
        ("host-rate", network.host_gbits, usual.host_gbits),
        ("fabric-rate", network.fabric_gbits, usual.fabric_gbits),
        ("per-leaf", network.per_leaf, usual.per_leaf),
        ("spines", network.spines, network.full_spines()),
        ("mark", network.mark_kib, usual.mark_kib),
    ];
    let mut text = String::new();
    for (name, value, _) in options.iter().filter(|(_, value, usual)| value != usual) {
        text += &format!(" --{name} {value}");
    }
    if network.buffer != usual.buffer {
        text += &format!(" --buffer {}", network.buffer >> 20);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_or_more() {
        let texts = [0.123, 1.234, 12.34, 1234.5].map(number);
        assert_eq!(texts, ["0.12", "1.2", "12", "1234"]);
    }
}
