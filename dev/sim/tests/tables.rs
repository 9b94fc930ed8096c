//! Compares the tables in `dev/sim/tables` with the code.

use esp_proto::Duration;
use esp_sim::tables::{Burst, Cell, Incast, LOSSES};
use std::path::Path;

fn compare(name: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tables")
        .join(name);
    if std::env::var_os("ESP_BLESS").is_some() {
        std::fs::write(&path, now).expect("the table can be written");
        return;
    }
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    if before == now {
        return;
    }
    let changed = now
        .lines()
        .zip(before.lines().chain(std::iter::repeat("")))
        .filter(|(new, old)| new != old);
    let changed: String = changed
        .take(20)
        .map(|(new, old)| format!("- {old}\n+ {new}\n"))
        .collect();
    panic!(
        "{} is not what the code does now:\n{changed}\nIf the change is meant, refresh with\n    \
         ESP_BLESS=1 cargo test -p esp-sim --test tables\nand let the difference be reviewed.",
        path.display()
    );
}

#[test]
fn goodput_by_loss_and_window() {
    compare("goodput.txt", &esp_sim::tables::goodput());
}

#[test]
fn fairness_and_incast() {
    compare("fairness.txt", &esp_sim::tables::fairness());
}

#[test]
fn congestion_marks() {
    compare("ecn.txt", &esp_sim::tables::ecn());
}

/// Marks keep the port busy with a short queue and without drops once the flows have started.
#[test]
fn marks_keep_the_queue_short_and_the_port_busy() {
    let with = |mark| {
        Incast {
            flows: 4,
            mtu: 1500,
            gbits: 1,
            time: Duration::from_millis(200),
            mark,
        }
        .measure_all()
    };
    let (off, on) = (with(None), with(Some(20)));
    assert!(on.used >= 0.98 && on.jain >= 0.95, "{on:?}");
    assert!(on.queue.0 <= 25.0 && on.queue.0 < off.queue.0, "{on:?}");
    assert!(on.again * 10 <= off.again, "{on:?} against {off:?}");
    assert!(on.marked > 0.0 && off.marked == 0.0, "{on:?}");
}

#[test]
fn one_percent_of_random_loss_costs_less_than_a_third() {
    for (mtu, slow) in [
        (1500, None),
        (9000, None),
        (1500, Some(Duration::from_micros(50))),
    ] {
        let cell = |loss| Cell {
            mtu,
            loss,
            window: 1024,
            slow,
        };
        let (whole, lossy) = (cell(LOSSES[0]).measure(), cell(LOSSES[2]).measure());
        assert!(lossy.lost > 50, "{lossy:?}");
        assert!(
            lossy.mbits >= 0.7 * whole.mbits,
            "MTU {mtu}: {lossy:?} of {whole:?}"
        );
        // Selective repair: the number of retransmissions is close to the number of losses.
        assert!(lossy.again <= lossy.lost + lossy.lost / 10 + 5, "{lossy:?}");
    }
}

#[test]
fn eight_flows_into_one_port_use_it_share_it_and_do_not_stall() {
    let time = Duration::from_millis(500);
    let shared = Incast {
        flows: 8,
        mtu: 1500,
        gbits: 1,
        time,
        mark: None,
    }
    .measure_all();
    assert!(shared.used >= 0.9, "{shared:?}");
    assert!(shared.jain >= 0.95, "{shared:?}");
    assert!(shared.stall <= Duration::from_millis(20), "{shared:?}");
}

#[test]
fn blocks_sent_at_one_instant_arrive_in_the_time_the_port_needs() {
    for flows in [2, 4, 8, 16] {
        let burst = Burst {
            flows,
            bytes: 64 << 10,
            mark: None,
        };
        let (_, last, _) = burst.measure(7);
        assert!(
            last <= burst.ideal() * 3 / 2,
            "{burst:?}: {last:?}, ideal {:?}",
            burst.ideal()
        );
    }
}
