//! Messages of all kinds, within a node and between two, with little room and lost frames.

use esp_tests::lab_or_skip;
use esp_tests::open_mpi::Program;
use esp_tests::process::{output, passed};
use lab::LabOptions;

use super::{lab, mpirun};

/// Runs a program on two nodes, over ESP alone, then with shared memory within the nodes.
fn passes(test: &str, name: &str, ranks: u32, mtu: u32) {
    let Some(program) = Program::new(test, name) else {
        return;
    };
    let Some(lab) = lab(test, 2, mtu, "") else {
        return;
    };
    for btl in ["esp,self", "esp,vader,self"] {
        passed(&output(&mut mpirun(
            &lab,
            ranks,
            2,
            btl,
            &[],
            program.file(),
        )));
    }
}

#[test]
fn ping_pong() {
    passes("ping_pong", "pingpong", 2, 9000);
}

#[test]
fn many_messages_of_all_kinds() {
    passes("many_messages_of_all_kinds", "talk", 4, 1500);
}

#[test]
fn one_sided() {
    passes("one_sided", "onesided", 4, 1500);
}

#[test]
fn several_threads() {
    passes("several_threads", "threads", 4, 9000);
}

/// Runs messages of all kinds over ESP alone, with MCA parameters.
fn talks(test: &str, options: &LabOptions, ranks: u32, parameters: &[&str]) {
    let Some(program) = Program::new(test, "talk") else {
        return;
    };
    let Some(lab) = lab_or_skip(test, options) else {
        return;
    };
    let more: Vec<&str> = parameters
        .iter()
        .flat_map(|parameter| ["--mca", parameter])
        .collect();
    passed(&output(&mut mpirun(
        &lab,
        ranks,
        options.wire.nodes,
        "esp,self",
        &more,
        program.file(),
    )));
}

/// Ranks of one node are connected by its daemon.
#[test]
fn within_a_node() {
    talks("within_a_node", &LabOptions::new(1), 3, &[]);
}

/// Eager messages may be longer than fragments, and must not be truncated.
#[test]
fn fragments_shorter_than_eager_messages() {
    let parameters = ["btl_esp_max_send_size=16384"];
    talks(
        "fragments_shorter_than_eager_messages",
        &LabOptions::new(2),
        2,
        &parameters,
    );
}

/// Parameters that leave little room.
const SMALL: [&str; 4] = [
    "btl_esp_rings=32768",
    "btl_esp_eager_limit=4096",
    "btl_esp_max_send_size=8000",
    "btl_esp_rndv_eager_limit=4096",
];

/// Short messages are copied when there is no room, and long ones wait.
#[test]
fn small_rings_and_lost_frames() {
    let mut options = LabOptions::new(2);
    options.wire.loss_ppm = 2000;
    talks("small_rings_and_lost_frames", &options, 2, &SMALL);
}

/// A process whose backlog is full refuses messages, and Open MPI repeats them.
#[test]
fn a_full_backlog_loses_nothing() {
    let parameters = [&["btl_esp_backlog=1000"], &SMALL[..]].concat();
    talks(
        "a_full_backlog_loses_nothing",
        &LabOptions::new(2),
        2,
        &parameters,
    );
}

/// Bursts of short messages over leases arrive in order and in time when their sender computes
/// instead of calling MPI.
#[test]
fn bursts_arrive_while_the_sender_computes() {
    let test = "bursts_arrive_while_the_sender_computes";
    let Some(program) = Program::new(test, "bursts") else {
        return;
    };
    let Some(lab) = lab(test, 2, 1500, "[lease]\nallow = \"all\"\n") else {
        return;
    };
    passed(&output(&mut mpirun(
        &lab,
        2,
        2,
        "esp,self",
        &[],
        program.file(),
    )));
}
