//! Thousands of generated scenarios, each a function of its seed.

use esp_sim::runner;

/// First seed; raise it to test others, or set `ESP_SIM_SEED`.
const FIRST: u64 = 1;
/// Number of seeds; under a minute in CI on two cores.
const COUNT: u64 = 10_000;

#[test]
fn thousands_of_seeds_keep_every_rule() {
    let seeds = runner::seeds(FIRST, COUNT);
    let count = seeds.end - seeds.start;
    let summary = runner::run_all(seeds, "-p esp-sim --test seeds");
    eprintln!("{summary:?}");
    assert_eq!(summary.seeds, count);
    assert!(
        summary.frames >= 20 * count,
        "too little traffic: {summary:?}"
    );
    if count >= 100 {
        assert!(
            summary.connections >= count
                && summary.datagrams > summary.frames / 4
                && summary.retransmits > count
                && summary.marks > count
                && summary.resumptions > count / 10
                && summary.moves > count / 20
                && summary.opened > 20 * count
                && summary.refused > count
                && summary.forged > count,
            "nothing was tested: {summary:?}"
        );
    }
}

/// Seeds that failed once, each by a fault of the protocol core, the last by one of the checker.
#[test]
fn found_faults_stay_mended() {
    for seed in [100_015_479, 100_029_592, 100_251_532] {
        runner::run_all(seed..seed + 1, "-p esp-sim --test seeds");
    }
}
