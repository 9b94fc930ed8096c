//! The conformance suite over the fabric, with ranks as threads and without hardware.

use std::sync::Arc;
use std::time::Duration;

use btl_conformance::suite::{Harness, Job, Options, threads};
use fake_verbs::Fabric;
use ib_btl::{IbBtl, IbConfig};

struct Fake {
    name: &'static str,
    change: fn(&mut IbConfig),
    datagram_loss: u64,
}

impl Harness for Fake {
    fn name(&self) -> String {
        self.name.into()
    }

    fn job(&self, size: u32) -> Result<Job, String> {
        let fabric = Fabric::new();
        fabric.lose_datagrams(self.datagram_loss, 42);
        let mut ranks = Vec::new();
        for rank in 0..size {
            let (_, nic) = fabric.nic().map_err(|e| e.to_string())?;
            let mut config = IbConfig::new(rank, size, b"conformance");
            config.reads = true;
            (self.change)(&mut config);
            ranks.push(IbBtl::over(Box::new(nic), config).map_err(|e| e.to_string())?);
        }
        let mut job = Job::new(ranks);
        // Interfaces were created in the order of the ranks.
        job.kill = Some(Arc::new(move |rank| fabric.kill(rank as usize)));
        Ok(job)
    }

    fn options(&self) -> Options {
        Options {
            messages: 20_000,
            rounds: 400,
            peers: 8,
            limit: Duration::from_secs(120),
            ..Options::default()
        }
    }
}

#[test]
fn blocks_of_each_peer_conform() {
    threads(&Fake {
        name: "ib, fake",
        change: |_| {},
        datagram_loss: 0,
    })
    .verdict()
    .expect("conforms");
}

#[test]
fn shared_blocks_conform() {
    let change = |config: &mut IbConfig| {
        *config = config.clone().shared();
        (config.shared_blocks, config.held_from) = (64, Some(1000));
    };
    threads(&Fake {
        name: "ib, fake, shared",
        change,
        datagram_loss: 0,
    })
    .verdict()
    .expect("conforms");
}

#[test]
fn few_blocks_and_lost_datagrams_conform() {
    let change = |config: &mut IbConfig| {
        (config.blocks, config.pool_blocks, config.cache_bytes) = (8, 16, 0);
        config.held_from = Some(2000);
    };
    threads(&Fake {
        name: "ib, fake, narrow",
        change,
        datagram_loss: 300_000,
    })
    .verdict()
    .expect("conforms");
}
