//! Leases that end while there is no daemon.

use esp_client::control::{Reply, Request};
use esp_client::{EspListener, Path};
use rustix::process::Signal;

use super::Cluster;
use super::support::eventually;
use super::support::program::Program;

/// The next daemon would reserve the port for a minute.
#[test]
fn the_port_of_a_lease_that_ended_without_a_daemon_is_free_at_the_next() {
    let config = Some("[lease]\ngrace = \"60s\"\n");
    let test = "the_port_of_a_lease_that_ended";
    let Some(mut cluster) = Cluster::configured_or_skip(test, config) else {
        return;
    };
    let client = cluster.client(0);
    let listener = EspListener::builder()
        .path(Path::Lease)
        .bind_at(&client, 7000)
        .expect("listen");
    cluster.end(0, Signal::KILL);
    eventually("the client waits", || client.check().is_err());
    drop(listener);
    cluster.start(0);
    let mut other = Program::connect(&cluster.socket(0));
    other.hello("other");
    eventually("the port is free", || {
        let reply = other.ask(Request::Listen {
            interface: None,
            port: 7000,
            backlog: 1,
            key: Vec::new(),
        });
        matches!(reply, Reply::Listening { .. })
    });
}
