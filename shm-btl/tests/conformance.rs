//! The conformance suite with one process for each rank, with two copies and with one.

use btl::Btl;
use btl_conformance::suite::{self, Place, ProcessHarness};
use shm_btl::{ShmBtl, ShmConfig};

struct Shm(&'static str);

impl ProcessHarness for Shm {
    fn name(&self) -> String {
        self.0.into()
    }
}

fn make(place: &Place, one_copy: bool) -> Result<Box<dyn Btl>, String> {
    let mut config = ShmConfig::new(place.rank, place.size, place.job.clone());
    config.one_copy = one_copy;
    match ShmBtl::new(config) {
        Ok(transport) => Ok(Box::new(transport)),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn two_copies_conform() {
    if let Some(child) = suite::child() {
        child.run(|place| make(place, false));
    }
    suite::processes("two_copies_conform", &Shm("shm, two copies"))
        .verdict()
        .expect("conforms");
}

#[test]
fn one_copy_conforms() {
    if let Some(child) = suite::child() {
        child.run(|place| make(place, true));
    }
    suite::processes("one_copy_conforms", &Shm("shm, one copy"))
        .verdict()
        .expect("conforms");
}
