//! A user is served while a program of another user does all it may.

use bench::bystander::{Neighbour, measure};
use bench::run::Rig;
use esp_tests::lab_or_skip;
use lab::LabOptions;

/// Round trips of each measurement.
const COUNT: u64 = 200;

#[test]
fn a_user_is_served_beside_each_program_of_another() {
    let test = "a_user_is_served_beside_each_program_of_another";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(2)) else {
        return;
    };
    let mut rig = Rig::default();
    for neighbour in Neighbour::ALL {
        let measured = measure(&mut rig, &lab, neighbour, COUNT);
        let measured = measured.unwrap_or_else(|error| panic!("{neighbour:?}: {error}"));
        assert_eq!(measured.times.len(), COUNT, "{neighbour:?}");
    }
}
