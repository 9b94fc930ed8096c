//! Nodes with two interfaces, and failures of those.

use lab::{Lab, LabOptions};

use crate::lab_or_skip;
use crate::process::ip_in_switch;

/// Creates a lab whose nodes have two interfaces, each on a switch of its own.
pub fn two_rails(test: &str, config: &str) -> Option<Lab> {
    let mut options = LabOptions::new(2);
    options.rails = 2;
    options.daemon_config = config.into();
    lab_or_skip(test, &options)
}

/// Creates such a lab without daemons; see [`Daemon`](crate::process::Daemon).
pub fn two_rails_bare(test: &str) -> Option<Lab> {
    let mut options = LabOptions::new(2);
    (options.rails, options.daemon) = (2, false);
    lab_or_skip(test, &options)
}

/// Sets an interface of a node `up` or `down`.
///
/// # Panics
/// When that fails.
pub fn set(lab: &Lab, node: usize, interface: &str, state: &str) {
    let words = ["link", "set", "dev", interface, state];
    let done = lab
        .command(node, "ip")
        .expect("a command")
        .args(words)
        .status()
        .expect("run ip");
    assert!(done.success(), "ip {words:?}");
}

/// Makes a switch drop everything silently, or restores it: no link goes down.
pub fn silence(lab: &Lab, rail: usize, apart: bool) {
    let state = if apart { "on" } else { "off" };
    for node in [0, 1] {
        let port = if rail == 0 {
            format!("port{node}")
        } else {
            format!("port{node}r{rail}")
        };
        ip_in_switch(
            lab,
            &format!("link set dev {port} type bridge_slave isolated {state}"),
        );
    }
}
