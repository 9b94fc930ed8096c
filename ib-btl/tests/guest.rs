//! The suite of the contract over real verbs, each rank a process. Run it where there is an RDMA device: `tests/vm/run` starts it in a
//! guest with soft-RoCE and sets `ESP_TEST_REQUIRE_RDMA`, so that nothing is skipped there.
//!
//! `IB_DEVICES=rxa,rxb`: ranks take these in turn. `IB_MESSAGES`: of the long cases.

use std::time::Duration;

use btl::conformance::{self, Options, Place, ProcessHarness};
use ib_btl::{IbBtl, IbConfig};

struct Guest(&'static str);

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

impl ProcessHarness for Guest {
    fn name(&self) -> String {
        self.0.into()
    }

    fn options(&self) -> Options {
        Options {
            messages: number("IB_MESSAGES", 2000),
            rounds: number("IB_ROUNDS", 100),
            peers: 4,
            limit: Duration::from_secs(60),
            ..Options::default()
        }
    }
}

fn config(place: &Place) -> IbConfig {
    let mut config = IbConfig::new(place.rank, place.size, place.job.as_bytes());
    config.reads = true;
    if let Ok(list) = std::env::var("IB_DEVICES") {
        let names: Vec<&str> = list.split(',').collect();
        config.device = Some(names[place.rank as usize % names.len()].into());
    }
    config
}

fn conforms(test: &'static str, change: fn(IbConfig) -> IbConfig) {
    if let Some(child) = conformance::child() {
        child.run(|place| {
            let btl = IbBtl::new(change(config(place))).map_err(|e| e.to_string())?;
            Ok(Box::new(btl) as Box<dyn btl::Btl>)
        });
    }
    if let Err(why) = ib_btl::ports() {
        assert!(std::env::var_os("ESP_TEST_REQUIRE_RDMA").is_none(), "no RDMA: {why}");
        println!("SKIPPED: {why}");
        return;
    }
    conformance::processes(test, &Guest(test)).verdict().expect("conforms");
}

#[test]
fn blocks_of_each_peer() {
    conforms("blocks_of_each_peer", |config| config);
}

#[test]
fn shared_blocks() {
    conforms("shared_blocks", IbConfig::shared);
}
