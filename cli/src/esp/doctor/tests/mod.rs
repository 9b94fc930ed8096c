//! Tests that plant each fault into the facts of a healthy node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use esp_client::control::InterfaceInfo;
use esp_client::{MacAddr, NodeAddr, NodeInfo};

use super::facts::{
    Daemon, Host, Lease, Link, Mpi, Network, Node, OpenMpi, Peer, Present, Process, Route, State,
    Unreached,
};
use super::*;

mod faults;
mod output;
mod peers;

const OWN: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 1]));
const PEER: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 2]));

fn udp_addr() -> NodeAddr {
    NodeAddr::Udp(([10, 1, 0, 2], 2805).into())
}

fn node(addr: NodeAddr, incarnation: u64, name: &str) -> Node {
    Node {
        interface: "eth0".into(),
        addr,
        info: NodeInfo {
            version: 1,
            max_payload: 1489,
            features: 0,
            incarnation,
            name: name.into(),
        },
    }
}

fn route(addr: NodeAddr) -> Route {
    Route {
        interface: "eth0".into(),
        sent: 10,
        received: 10,
        rtt_us: Some(12.3),
        payload: Some(1489),
        own_payload: 1489,
        peer_payload: Some(1489),
        ..Route::untried(addr)
    }
}

/// A node without a fault, and a peer.
fn healthy() -> Facts {
    let counters = BTreeMap::from([(("eth0".to_owned(), "rx_frames".to_owned()), 1_000_000)]);
    let state = State {
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_s: 3600.0,
        interfaces: vec![InterfaceInfo {
            name: "eth0".into(),
            addr: OWN,
            mtu: 1500,
            up: true,
        }],
        later: counters.clone(),
        counters,
        between: Duration::from_millis(300),
    };
    Facts {
        daemon: Daemon {
            socket: "/run/esp/esp.sock".into(),
            reached: Ok(Ok(state)),
            process: Some(Process {
                pid: 7,
                capabilities: 1 << 13,
                cores: BTreeSet::from([0, 1, 2, 3]),
            }),
            lease: Lease::Granted,
            ..Daemon::default()
        },
        links: vec![Link {
            name: "eth0".into(),
            present: Some(Present {
                enabled: true,
                carrier: true,
                mtu: 1500,
                speed: Some(10_000),
                duplex: Some("full".into()),
                near_cores: Some(BTreeSet::from([0, 1, 2, 3])),
                ring: Some((1024, 4096)),
                coalescing: Some((0, false)),
                ..Present::default()
            }),
            up_at_daemon: Some(true),
        }],
        host: Host {
            ptrace_scope: Some(1),
            cores: BTreeSet::from([0, 1, 2, 3]),
            governors: BTreeMap::from([(("performance".into(), "intel_pstate".into()), 4)]),
            clock: Some("tsc".into()),
            rmem_max: Some(16 << 20),
            wmem_max: Some(16 << 20),
            ..Host::default()
        },
        mpi: Mpi {
            open_mpi: Some(OpenMpi {
                version: "4.1.4".into(),
                dlopen: true,
                component: Some("4.1.2".into()),
            }),
            components: vec![PathBuf::from("/root/.openmpi/components/mca_btl_esp.so")],
        },
        network: Some(Network {
            heard: vec![node(PEER, 2, "node1")],
            own: vec![node(OWN, 1, "node0")],
            serves_udp: true,
            all: true,
            left_out: 0,
            interrupted: 0,
            peers: vec![Peer {
                name: "node1".into(),
                mac: Some(PEER),
                routes: vec![route(PEER), route(udp_addr())],
                esp: Some(true),
                ..Peer::default()
            }],
        }),
    }
}

/// Plants a fault; returns the findings above `ok`, by check.
fn planted(fault: impl FnOnce(&mut Facts)) -> Vec<(&'static str, Level)> {
    let mut facts = healthy();
    fault(&mut facts);
    let findings = check(&facts);
    let bad = findings.iter().filter(|finding| finding.level > Level::Ok);
    bad.map(|finding| {
        assert!(
            finding.fix.is_some() || finding.level == Level::Note,
            "{finding:?} has no fix"
        );
        (finding.check, finding.level)
    })
    .collect()
}

fn link(facts: &mut Facts) -> &mut Present {
    facts.links[0].present.as_mut().expect("it is present")
}

fn state(facts: &mut Facts) -> &mut State {
    let reached = facts.daemon.reached.as_mut().expect("it is reached");
    reached.as_mut().expect("it has a state")
}

fn count(facts: &mut Facts, interface: &str, name: &str, before: u64, later: u64) {
    let key = (interface.to_owned(), name.to_owned());
    state(facts).counters.insert(key.clone(), before);
    state(facts).later.insert(key, later);
}

fn network(facts: &mut Facts) -> &mut Network {
    facts.network.as_mut().expect("peers were asked")
}

fn peer(facts: &mut Facts) -> &mut Peer {
    &mut network(facts).peers[0]
}

/// A fault in the facts, and the findings that it must cause.
type Case = (fn(&mut Facts), &'static [(&'static str, Level)]);

#[track_caller]
fn all_found(cases: &[Case]) {
    for (number, (fault, expected)) in cases.iter().enumerate() {
        assert_eq!(planted(fault), *expected, "case {number}: {expected:?}");
    }
}
