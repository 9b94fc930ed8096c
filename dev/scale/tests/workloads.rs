//! All workloads over all transports on a few nodes, and one on a thousand.

use scale::fabric::Topology;
use scale::run::{Plan, Row, Transport, run};
use scale::tcp::Control;
use scale::workload::Workload;

fn plan(nodes: u32, seed: u64) -> Plan {
    Plan {
        topology: Topology::of(nodes),
        mtu: 1500,
        seed,
    }
}

/// Runs the cases of a workload and checks what holds for all of them.
fn rows(nodes: u32, workload: Workload, transport: Transport) -> Vec<Row> {
    let plan = plan(nodes, 1);
    let cases = workload.cases(&plan.topology, plan.seed);
    assert!(!cases.is_empty(), "{workload:?}");
    let run = |case| run(&plan, workload, case, transport);
    let rows: Vec<_> = cases.iter().map(run).collect();
    for row in &rows {
        // All messages arrive, each once, or the run ends with an error.
        assert_eq!((row.error.as_deref(), row.failed), (None, 0), "{row:?}");
        assert!(row.ratio >= 1.0 && row.ratio.is_finite(), "{row:?}");
        assert!(row.messages > 0 && row.p50_us > 0.0, "{row:?}");
        assert!(row.p50_us <= row.p99_us && row.p99_us <= row.p999_us);
        assert!(row.p999_us <= row.completion_us * 1.01, "{row:?}");
        assert!(row.jain > 0.0 && row.jain < 1.0 + 1e-9, "{row:?}");
    }
    rows
}

fn all_workloads(transport: Transport) {
    for workload in Workload::ALL {
        let nodes = if workload == Workload::Incast {
            120
        } else {
            48
        };
        rows(nodes, workload, transport);
    }
}

#[test]
fn every_workload_ends_over_esp_in_udp() {
    all_workloads(Transport::EspUdp);
}

#[test]
fn every_workload_ends_over_esp_without_marks() {
    all_workloads(Transport::EspUdpUnmarked);
}

#[test]
fn every_workload_ends_over_raw_esp() {
    all_workloads(Transport::EspRaw);
}

#[test]
fn every_workload_ends_over_reno() {
    all_workloads(Transport::Tcp(Control::Reno));
}

#[test]
fn every_workload_ends_over_cubic() {
    all_workloads(Transport::Tcp(Control::Cubic));
}

#[test]
fn every_workload_ends_over_dctcp() {
    all_workloads(Transport::Tcp(Control::Dctcp));
}

/// The goals of docs/scale.md for an incast of 100 to 1.
#[test]
fn an_incast_on_a_thousand_nodes_meets_its_goals() {
    for (transport, most) in [(Transport::EspUdp, 1.3), (Transport::EspUdpUnmarked, 2.0)] {
        let rows = rows(1000, Workload::Incast, transport);
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!((row.messages, row.timeouts), (900, 0), "{row:?}");
        assert!(row.ratio < most, "{row:?}");
    }
}

#[test]
fn a_job_of_a_thousand_nodes_starts() {
    let rows = rows(1000, Workload::JobStart, Transport::EspUdp);
    assert_eq!((rows[0].retransmits, rows[0].dropped), (0, 0), "{rows:?}");
}

#[test]
fn a_seed_gives_one_result() {
    for transport in [Transport::EspUdp, Transport::Tcp(Control::Cubic)] {
        let run_with = |seed| {
            let plan = plan(48, seed);
            let cases = Workload::Background.cases(&plan.topology, seed);
            let mut row = run(&plan, Workload::Background, &cases[0], transport);
            (row.seconds, row.mframes_per_s) = (0.0, 0.0);
            row
        };
        assert_eq!(run_with(5), run_with(5));
        assert_ne!(run_with(5).p99_us, run_with(6).p99_us);
    }
}

#[test]
fn marks_keep_queues_short() {
    let queue = |transport| rows(120, Workload::Incast, transport)[0].queue_p99_kib;
    let marked = queue(Transport::Tcp(Control::Dctcp));
    assert!(marked < queue(Transport::Tcp(Control::Reno)), "{marked}");
    assert!(queue(Transport::EspUdp) < queue(Transport::EspUdpUnmarked));
}
