//! All workloads over all transports on a few nodes, and one of them on a thousand.

use scale::fabric::Topology;
use scale::run::{Plan, Row, Transport, run};
use scale::workload::Workload;

fn plan(nodes: u32, seed: u64) -> Plan {
    Plan {
        topology: Topology::of(nodes),
        mtu: 1500,
        seed,
    }
}

/// Runs all cases of a workload.
fn rows(nodes: u32, workload: Workload, transport: Transport) -> Vec<Row> {
    let plan = plan(nodes, 1);
    let cases = workload.cases(&plan.topology, plan.seed);
    assert!(!cases.is_empty(), "{workload:?}");
    let rows = cases
        .iter()
        .map(|case| run(&plan, workload, case, transport));
    rows.inspect(|row| {
        assert_eq!((row.error.as_deref(), row.failed), (None, 0), "{row:?}");
        // No transport beats the bound, and each message arrives.
        assert!(row.ratio >= 1.0 && row.ratio.is_finite(), "{row:?}");
        assert!(row.messages > 0 && row.p50_us > 0.0, "{row:?}");
        assert!(row.p50_us <= row.p99_us && row.p99_us <= row.p999_us);
        assert!(row.p999_us <= row.completion_us * 1.01, "{row:?}");
        assert!(row.jain > 0.0 && row.jain < 1.0 + 1e-9, "{row:?}");
    })
    .collect()
}

/// Leaves out what differs from run to run.
fn timeless(mut row: Row) -> Row {
    (row.seconds, row.mframes_per_s) = (0.0, 0.0);
    row
}

#[test]
fn every_workload_ends_over_every_transport() {
    for workload in Workload::ALL {
        for transport in Transport::ALL {
            for row in rows(120, workload, transport) {
                println!("{row:?}");
            }
        }
    }
}

#[test]
fn a_seed_gives_one_result() {
    for transport in [
        Transport::EspUdp,
        Transport::Tcp(scale::tcp::Control::Cubic),
    ] {
        let run_with = |seed| {
            let plan = plan(120, seed);
            let cases = Workload::Background.cases(&plan.topology, seed);
            timeless(run(&plan, Workload::Background, &cases[0], transport))
        };
        assert_eq!(run_with(5), run_with(5));
        assert_ne!(run_with(5).p99_us, run_with(6).p99_us);
    }
}
