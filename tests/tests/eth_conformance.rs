//! The Ethernet transport keeps the contract: each rank a process, at the daemon of its node, or
//! over UDP without a daemon.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use btl::Btl;
use btl_conformance::suite::{self, Options, Place, ProcessHarness};
use btl_eth::{CONNECTIONS_VARIABLE, Carrier, EthBtl, EthConfig};
use esp_tests::lab_or_skip;
use lab::{Lab, LabOptions};

/// Where a rank's process finds its daemon; without it the rank uses UDP.
const SOCKET: &str = "ETH_CONFORMANCE_SOCKET";

/// Ranks dealt out to nodes.
struct Nodes {
    name: &'static str,
    lab: Lab,
    nodes: u32,
    messages: u32,
    carrier: Carrier,
    /// Limit of each rank's connections.
    connections: Option<u32>,
}

impl ProcessHarness for Nodes {
    fn name(&self) -> String {
        self.name.into()
    }

    fn command(&self, program: &Path, place: &Place) -> Result<Command, String> {
        let node = (place.rank % self.nodes) as usize;
        let mut command = match self.carrier {
            Carrier::Raw => {
                let mut command = Command::new(program);
                command.env(SOCKET, self.lab.socket(node));
                command
            }
            // Its sockets are those of its node.
            Carrier::Udp => {
                let command = self.lab.command(node, program);
                let mut command = command.map_err(|error| error.to_string())?;
                // The ends of processes are noticed after this time.
                command.env("ESP_PEER_TIMEOUT", "10");
                command
            }
        };
        if let Some(limit) = self.connections {
            command.env(CONNECTIONS_VARIABLE, limit.to_string());
        }
        Ok(command)
    }

    fn options(&self) -> Options {
        let limit = Duration::from_secs(180);
        Options {
            limit,
            messages: self.messages,
            rounds: 300,
            peers: 8,
            ends_connections: self.connections.is_some(),
            // Without a daemon, the end of a process is noticed later.
            deaths_at_once: self.carrier == Carrier::Udp,
            ..Options::default()
        }
    }
}

/// Executes the rank of this process and does not return, if the process is one.
fn be_a_rank() {
    if let Some(child) = suite::child() {
        child.run(|place| {
            let mut config = EthConfig::new(place.rank, place.size, place.job.as_bytes());
            match std::env::var_os(SOCKET) {
                Some(socket) => config.socket = PathBuf::from(socket),
                None => config.carrier = Carrier::Udp,
            }
            let btl = EthBtl::new(config).map_err(|error| error.to_string())?;
            Ok(Box::new(btl) as Box<dyn Btl>)
        });
    }
}

fn conforms(test: &str, options: &LabOptions, nodes: u32, messages: u32) {
    let Some(lab) = lab_or_skip(test, options) else {
        return;
    };
    let carrier = match options.daemon {
        true => Carrier::Raw,
        false => Carrier::Udp,
    };
    let name = match test {
        "four_nodes_udp" => "udp, four nodes",
        "one_node_udp" => "udp, one node",
        "with_loss_udp" => "udp, three nodes, packets lost",
        "one_node" => "eth, one node",
        "with_loss" => "eth, three nodes, frames lost",
        "one_connection_leased" => "eth over leases, two nodes, one connection a rank",
        "four_nodes_leased" => "eth over leases, four nodes",
        "with_loss_leased" => "eth over leases, three nodes, frames lost",
        _ => "eth, four nodes",
    };
    suite::processes(
        test,
        &Nodes {
            name,
            lab,
            nodes,
            messages,
            carrier,
            connections: test.starts_with("one_connection").then_some(1),
        },
    )
    .verdict()
    .unwrap();
}

#[test]
fn four_nodes() {
    be_a_rank();
    conforms("four_nodes", &LabOptions::new(4), 4, 20_000);
}

#[test]
fn one_node() {
    be_a_rank();
    conforms("one_node", &LabOptions::new(1), 1, 20_000);
}

#[test]
fn with_loss() {
    be_a_rank();
    let mut options = LabOptions::new(3);
    options.wire.loss_ppm = 20_000;
    conforms("with_loss", &options, 3, 3_000);
}

/// Each rank keeps one connection, and ends it for the next peer.
#[test]
fn one_connection_leased() {
    be_a_rank();
    let options = leased(LabOptions::new(2));
    conforms("one_connection_leased", &options, 2, 500);
}

/// Engines in the ranks themselves.
fn leased(mut options: LabOptions) -> LabOptions {
    options.daemon_config = "[lease]\nallow = \"all\"\n".into();
    options
}

#[test]
fn four_nodes_leased() {
    be_a_rank();
    conforms("four_nodes_leased", &leased(LabOptions::new(4)), 4, 20_000);
}

#[test]
fn with_loss_leased() {
    be_a_rank();
    let mut options = leased(LabOptions::new(3));
    options.wire.loss_ppm = 20_000;
    conforms("with_loss_leased", &options, 3, 3_000);
}

/// No daemon: the ranks use UDP.
fn bare(mut options: LabOptions) -> LabOptions {
    options.daemon = false;
    options
}

#[test]
fn four_nodes_udp() {
    be_a_rank();
    conforms("four_nodes_udp", &bare(LabOptions::new(4)), 4, 20_000);
}

#[test]
fn one_node_udp() {
    be_a_rank();
    conforms("one_node_udp", &bare(LabOptions::new(1)), 1, 20_000);
}

#[test]
fn with_loss_udp() {
    be_a_rank();
    let mut options = bare(LabOptions::new(3));
    options.wire.loss_ppm = 20_000;
    conforms("with_loss_udp", &options, 3, 3_000);
}
