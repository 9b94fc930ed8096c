//! The suite of the contract, with one process for each rank: two copies and one copy.

use btl::Btl;
use btl_conformance::suite::{self, Place, ProcessHarness};
use shm_btl::{Copies, ShmBtl, ShmConfig};

struct Shm(&'static str);

impl ProcessHarness for Shm {
    fn name(&self) -> String {
        self.0.into()
    }
}

fn make(place: &Place, copies: Copies) -> Result<Box<dyn Btl>, String> {
    let mut config = ShmConfig::new(place.rank, place.size, place.job.clone());
    config.copies = copies;
    match ShmBtl::new(config) {
        Ok(transport) => Ok(Box::new(transport)),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn two_copies_conform() {
    if let Some(child) = suite::child() {
        child.run(|place| make(place, Copies::Two));
    }
    suite::processes("two_copies_conform", &Shm("shm, two copies"))
        .verdict()
        .expect("conforms");
}

#[test]
fn one_copy_conforms() {
    if let Some(child) = suite::child() {
        child.run(|place| make(place, Copies::OneIfAllowed));
    }
    suite::processes("one_copy_conforms", &Shm("shm, one copy"))
        .verdict()
        .expect("conforms");
}
