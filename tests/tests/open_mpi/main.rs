//! Unmodified MPI programs over ESP: Open MPI's mpirun with our component (`bindings/ompi`), on the
//! nodes of a lab.
//!
//! The programs (`tests/mpi/programs`) check every byte. They are compiled here with the system's
//! `mpicc`. `tests/mpi/run` runs foreign suites.

mod ends;
mod interfaces;
mod keys;
mod messages;
mod reached;
mod running;
mod udp;

use std::path::Path;
use std::process::Command;

use esp_tests::lab_or_skip;
use esp_tests::process::programs;
use lab::{Lab, LabOptions};

/// Time limit of a job in seconds, on a machine that is busy with other tests.
const PATIENCE: &str = "150";

/// Returns the command `esplab mpirun` in a lab that is up.
fn mpirun(
    lab: &Lab,
    ranks: u32,
    nodes: usize,
    btl: &str,
    more: &[&str],
    program: &Path,
) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", PATIENCE])
        .arg(programs().join("esplab"))
        .arg("mpirun");
    command.args([
        "--name",
        lab.name(),
        "-n",
        &ranks.to_string(),
        "--nodes",
        &nodes.to_string(),
    ]);
    command
        .args(["--btl", btl])
        .args(more)
        .arg("--")
        .arg(program);
    for name in [
        "PMI_FD",
        "PMI_PORT",
        "PMIX_NAMESPACE",
        "ESP_SOCKET",
        "ESPLAB",
    ] {
        command.env_remove(name);
    }
    command
}

fn lab(test: &str, nodes: usize, mtu: u32, config: &str) -> Option<Lab> {
    let mut options = LabOptions::new(nodes);
    options.wire.mtu = mtu;
    options.daemon_config = config.into();
    lab_or_skip(test, &options)
}
