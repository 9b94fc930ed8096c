//! Each fault planted into the facts of a healthy node.

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
            finding.mend.is_some() || finding.level == Level::Note,
            "{finding:?} has no remedy"
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

#[test]
fn a_healthy_node_has_no_finding() {
    assert_eq!(planted(|_| ()), []);
    assert_eq!(verdict(&check(&healthy())), Verdict::Done);
}

#[test]
fn faults_of_the_daemon_are_found() {
    let down: fn(&mut Facts, Unreached) = |facts, why| {
        facts.daemon.reached = Err(why);
        facts.daemon.lease = Lease::Unknown;
        facts.network = None;
    };
    for (why, check) in [
        (Unreached::NoSocket, "daemon.stopped"),
        (Unreached::Stale, "daemon.stale"),
        (Unreached::NoPermission, "daemon.permission"),
        (Unreached::Silent, "daemon.silent"),
        (
            Unreached::Version("it speaks version 3".into()),
            "daemon.control",
        ),
        (Unreached::Other("x".into()), "daemon.unreached"),
    ] {
        assert_eq!(planted(|facts| down(facts, why)), [(check, Level::Error)]);
    }
    all_found(&[
        (
            |facts| state(facts).version = "9.9.9".into(),
            &[("daemon.version", Level::Warning)],
        ),
        (
            |facts| facts.daemon.reached = Ok(Err("missing field".into())),
            &[("daemon.state", Level::Warning)],
        ),
        (
            |facts| facts.daemon.process.as_mut().expect("seen").capabilities = 0,
            &[("daemon.capability", Level::Warning)],
        ),
        (
            |facts| facts.daemon.lease = Lease::Forbidden,
            &[("daemon.lease", Level::Note)],
        ),
        (
            |facts| {
                facts.daemon.lease = Lease::Forbidden;
                facts.daemon.path = "lease".into();
            },
            &[("daemon.lease", Level::Error)],
        ),
        (
            |facts| facts.daemon.lease = Lease::Failed("limit".into()),
            &[("daemon.lease", Level::Warning)],
        ),
        (
            |facts| count(facts, "", "refused_limit", 3, 3),
            &[("daemon.limits", Level::Note)],
        ),
        (
            |facts| count(facts, "", "refused_limit", 3, 4),
            &[("daemon.limits", Level::Warning)],
        ),
        (
            |facts| count(facts, "", "programs_corrupted_memory", 1, 1),
            &[("daemon.corrupted", Level::Warning)],
        ),
    ]);
}

#[test]
fn another_daemon_of_the_namespace_is_named() {
    let mut facts = healthy();
    facts.daemon.reached = Err(Unreached::NoSocket);
    facts.daemon.others = vec![4711];
    let findings = check(&facts);
    assert!(findings[0].what.contains("process 4711"), "{findings:?}");
}

#[test]
fn faults_of_a_link_are_found() {
    all_found(&[
        (|facts| facts.links.clear(), &[("link.none", Level::Note)]),
        (
            |facts| facts.links[0].present = None,
            &[("link.elsewhere", Level::Note)],
        ),
        (
            |facts| {
                facts.links[0].present = None;
                facts.links[0].up_at_daemon = Some(false);
            },
            &[("link.gone", Level::Error)],
        ),
        (
            |facts| {
                facts.links[0].present = None;
                facts.links[0].up_at_daemon = None;
            },
            &[("link.unknown", Level::Error)],
        ),
        (
            |facts| link(facts).enabled = false,
            &[("link.down", Level::Error)],
        ),
        (
            |facts| link(facts).carrier = false,
            &[("link.carrier", Level::Error)],
        ),
        (
            |facts| facts.links[0].up_at_daemon = Some(false),
            &[("link.daemon", Level::Error)],
        ),
        (
            |facts| link(facts).duplex = Some("half".into()),
            &[("link.duplex", Level::Error)],
        ),
        (
            |facts| link(facts).speed = Some(100),
            &[("link.speed", Level::Warning)],
        ),
        (
            |facts| link(facts).ring = Some((256, 4096)),
            &[("link.ring", Level::Note)],
        ),
        (
            |facts| link(facts).device_later.rx_fifo = 9,
            &[("link.ring", Level::Warning)],
        ),
        (
            |facts| link(facts).coalescing = Some((100, false)),
            &[("link.coalescing", Level::Warning)],
        ),
        (
            |facts| link(facts).coalescing = Some((100, true)),
            &[("link.coalescing", Level::Note)],
        ),
        (
            |facts| link(facts).near_cores = Some(BTreeSet::from([8, 9])),
            &[("link.numa", Level::Warning)],
        ),
        (
            |facts| link(facts).near_cores = Some(BTreeSet::from([2, 3])),
            &[("link.numa", Level::Note)],
        ),
    ]);
}

#[test]
fn counters_of_a_link_are_judged() {
    all_found(&[
        (
            |facts| {
                link(facts).device_later.rx_errors = 1;
                link(facts).device.rx_errors = 1;
                link(facts).device_later.rx_packets = 1_000_000;
            },
            &[("link.damaged", Level::Note)],
        ),
        (
            |facts| link(facts).device_later.rx_errors = 1,
            &[("link.damaged", Level::Warning)],
        ),
        (
            |facts| link(facts).device_later.tx_errors = 1,
            &[("link.send", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "socket_rx_dropped", 10, 10),
            &[("link.dropped", Level::Note)],
        ),
        (
            |facts| count(facts, "eth0", "socket_rx_dropped", 10, 11),
            &[("link.dropped", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "socket_rx_dropped", 10_000, 10_000),
            &[("link.dropped", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "rx_drop_echo", 1, 1),
            &[("link.duplicate", Level::Error)],
        ),
        (
            |facts| count(facts, "eth0", "link_rx_truncated", 1, 1),
            &[("link.long", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "rx_drop_version", 1, 1),
            &[("link.version", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "link_tx_given_up", 1, 2),
            &[("link.refused", Level::Warning)],
        ),
        (
            |facts| count(facts, "eth0", "rx_drop_edp_port", 0, 3000),
            &[("link.storm", Level::Warning)],
        ),
        // The counters of another interface are not those of this one.
        (|facts| count(facts, "eth1", "rx_drop_echo", 1, 1), &[]),
        (|facts| count(facts, "eth0", "rx_drop_edp_port", 0, 30), &[]),
    ]);
}

#[test]
fn faults_of_the_machine_are_found() {
    all_found(&[
        (
            |facts| facts.host.memlock = Some(64 << 10),
            &[("host.memlock", Level::Note)],
        ),
        (
            |facts| {
                facts.host.memlock = Some(64 << 10);
                facts.host.rdma = vec!["mlx5_0".into()];
            },
            &[("host.memlock", Level::Warning)],
        ),
        (
            |facts| facts.host.ptrace_scope = Some(2),
            &[("host.ptrace", Level::Warning)],
        ),
        (
            |facts| {
                facts.host.ptrace_scope = Some(2);
                facts.host.capabilities = 1 << 19;
            },
            &[],
        ),
        (
            |facts| facts.host.ptrace_scope = Some(3),
            &[("host.ptrace", Level::Warning)],
        ),
        (
            |facts| facts.host.cross_memory = Some("Operation not permitted".into()),
            &[("host.cma", Level::Warning)],
        ),
        (
            |facts| {
                let key = ("powersave".to_owned(), "acpi-cpufreq".to_owned());
                facts.host.governors = BTreeMap::from([(key, 4)]);
            },
            &[("host.governor", Level::Warning)],
        ),
        (
            |facts| {
                let key = ("powersave".to_owned(), "intel_pstate".to_owned());
                facts.host.governors = BTreeMap::from([(key, 4)]);
            },
            &[("host.governor", Level::Note)],
        ),
        (|facts| facts.host.load = 9.0, &[("host.load", Level::Note)]),
        (
            |facts| facts.host.quota = Some(1.5),
            &[("host.quota", Level::Note)],
        ),
        (
            |facts| facts.host.clock = Some("hpet".into()),
            &[("host.clock", Level::Warning)],
        ),
        (
            |facts| facts.host.rmem_max = Some(212_992),
            &[("host.buffers", Level::Note)],
        ),
    ]);
}

#[test]
fn a_component_for_another_open_mpi_is_found() {
    fn open_mpi(facts: &mut Facts) -> &mut OpenMpi {
        facts.mpi.open_mpi.as_mut().expect("it is installed")
    }
    all_found(&[
        (
            |facts| open_mpi(facts).version = "5.0.7".into(),
            &[("mpi.component", Level::Error)],
        ),
        (
            |facts| open_mpi(facts).version = "4.10.1".into(),
            &[("mpi.component", Level::Error)],
        ),
        (
            |facts| open_mpi(facts).component = None,
            &[("mpi.component", Level::Error)],
        ),
        (
            |facts| {
                open_mpi(facts).component = None;
                facts.mpi.components.clear();
            },
            &[("mpi.component", Level::Note)],
        ),
        (
            |facts| open_mpi(facts).dlopen = false,
            &[("mpi.dlopen", Level::Note)],
        ),
        (
            |facts| facts.mpi.open_mpi = None,
            &[("mpi.none", Level::Note)],
        ),
    ]);
}

#[test]
fn faults_of_the_segment_are_found() {
    all_found(&[
        (
            |facts| {
                let other = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 3]));
                network(facts).heard.push(node(other, 3, "node1"));
            },
            &[("segment.name", Level::Warning)],
        ),
        (
            |facts| network(facts).heard[0].info.name = "node0".into(),
            &[("segment.name", Level::Warning)],
        ),
        (
            |facts| network(facts).heard.push(node(PEER, 3, "node2")),
            &[("segment.address", Level::Error)],
        ),
        // The second interface of a node has its name and another address.
        (
            |facts| {
                let other = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 1, 2]));
                network(facts).heard.push(node(other, 2, "node1"));
            },
            &[],
        ),
        (
            |facts| network(facts).peers.clear(),
            &[("segment.alone", Level::Warning)],
        ),
    ]);
}

#[test]
fn faults_of_the_way_to_a_peer_are_found() {
    fn silence(route: &mut Route) {
        *route = Route {
            interface: route.interface.clone(),
            sent: 3,
            ..Route::untried(route.addr)
        };
    }
    all_found(&[
        (
            |facts| peer(facts).unknown = Some("unknown name".into()),
            &[("peer.unknown", Level::Error)],
        ),
        (
            |facts| {
                peer(facts).routes.clear();
                peer(facts).esp = None;
            },
            &[("peer.untried", Level::Note)],
        ),
        (
            |facts| {
                peer(facts).routes.iter_mut().for_each(silence);
                peer(facts).esp = Some(false);
            },
            &[("peer.silent", Level::Error)],
        ),
        (
            |facts| silence(&mut peer(facts).routes[0]),
            &[("peer.edp", Level::Error)],
        ),
        (
            |facts| peer(facts).esp = Some(false),
            &[("peer.esp", Level::Error)],
        ),
        (
            |facts| {
                silence(&mut peer(facts).routes[0]);
                peer(facts).esp = Some(false);
            },
            &[("peer.raw", Level::Warning)],
        ),
        (
            |facts| silence(&mut peer(facts).routes[1]),
            &[("peer.udp", Level::Warning)],
        ),
        (
            |facts| peer(facts).routes[0].received = 8,
            &[("peer.loss", Level::Warning)],
        ),
        (
            |facts| peer(facts).routes[0].own_payload = 8989,
            &[("peer.mtu", Level::Warning)],
        ),
        (
            |facts| {
                peer(facts).routes[0].own_payload = 8989;
                peer(facts).routes[0].peer_payload = Some(8989);
            },
            &[("peer.path", Level::Warning)],
        ),
        (
            |facts| network(facts).heard[0].info.version = 2,
            &[("peer.version", Level::Error)],
        ),
    ]);
}

#[test]
fn the_exit_code_is_that_of_the_worst_finding() {
    let code = |fault: fn(&mut Facts)| {
        let mut facts = healthy();
        fault(&mut facts);
        verdict(&check(&facts))
    };
    assert_eq!(code(|facts| facts.host.load = 9.0), Verdict::Done);
    assert_eq!(code(|facts| link(facts).speed = Some(10)), Verdict::Partly);
    assert_eq!(code(|facts| link(facts).enabled = false), Verdict::Code(2));
}

#[test]
fn each_check_is_documented() {
    let page = include_str!("../../../../docs/doctor.md");
    let sources = [
        include_str!("daemon.rs"),
        include_str!("link.rs"),
        include_str!("host.rs"),
        include_str!("mpi.rs"),
        include_str!("peer.rs"),
    ];
    let quoted = |text: &'static str| text.split('"').filter(|word| is_check(word));
    let checks: BTreeSet<_> = sources.into_iter().flat_map(quoted).collect();
    assert!(checks.len() > 40, "{checks:?}");
    for check in checks {
        assert!(page.contains(&format!("`{check}`")), "{check}");
    }
}

fn is_check(word: &str) -> bool {
    let groups = ["daemon", "link", "host", "mpi", "peer", "segment"];
    word.split_once('.').is_some_and(|(group, check)| {
        groups.contains(&group) && check.chars().all(|c| c.is_ascii_lowercase())
    })
}

#[test]
fn the_text_is_grouped_and_fits_80_columns() {
    let mut facts = healthy();
    facts.daemon.lease = Lease::Forbidden;
    link(&mut facts).enabled = false;
    let findings = check(&facts);
    let choices = paths::choices(&facts);
    let text = report::text(&facts, &findings, &choices, false, false);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "{text}");
    let heading = |line: &&str| !line.starts_with(' ') && !line.contains(',');
    let headings: Vec<_> = text.lines().filter(heading).collect();
    let groups = ["daemon", "link eth0", "host", "mpi", "peer node1", "paths"];
    assert_eq!(headings[..6], groups, "{text}");
    assert!(
        text.contains("  error    the interface is disabled\n"),
        "{text}"
    );
    assert!(
        text.contains("           → ip link set eth0 up\n"),
        "{text}"
    );
    assert!(text.ends_with("1 error, 0 warnings, 1 note"), "{text}");
    let quiet = report::text(&facts, &findings, &choices, true, true);
    assert!(
        !quiet.contains("paths") && !quiet.contains("lease"),
        "{quiet}"
    );
    assert!(quiet.contains('\x1b'), "{quiet:?}");
}

#[test]
fn the_matrix_has_a_row_for_each_node_and_a_column_for_each_way() {
    let mut facts = healthy();
    let mut second = peer(&mut facts).clone();
    second.name = "node2".into();
    second.routes[1] = Route::untried(udp_addr());
    network(&mut facts).peers.push(second);
    let text = report::text(&facts, &[], &[], false, false);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows[1], ["node", "eth0", "udp"]);
    assert_eq!(rows[2], ["node1", "12.3/1489", "12.3/1489"]);
    assert_eq!(rows[3], ["node2", "12.3/1489", "no", "answer"]);
}

#[test]
fn json_has_a_line_for_each_finding_and_way() -> Result<(), serde_json::Error> {
    let facts = healthy();
    let (findings, choices) = (check(&facts), paths::choices(&facts));
    let text = report::json(&facts, &findings, &choices, false)?;
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let of_type = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count();
    assert_eq!(
        (of_type("finding"), of_type("route"), of_type("path")),
        (findings.len(), 2, 3)
    );
    let summary = lines.last().expect("a summary");
    assert_eq!(summary["type"], "summary");
    assert_eq!(
        (&summary["errors"], &summary["warnings"]),
        (&0.into(), &0.into())
    );
    Ok(())
}

#[test]
fn choices_follow_what_answers() {
    let choices = |fault: fn(&mut Facts)| {
        let mut facts = healthy();
        fault(&mut facts);
        let choices = paths::choices(&facts);
        choices.iter().map(|c| c.path).collect::<Vec<_>>()
    };
    assert_eq!(choices(|_| ()), ["lease", "lease", "udp"]);
    let without_lease = choices(|facts| facts.daemon.lease = Lease::Forbidden);
    assert_eq!(without_lease, ["daemon", "udp", "udp"]);
    let without_udp = choices(|facts| peer(facts).routes.truncate(1));
    assert_eq!(without_udp, ["lease"; 3]);
    let udp_only = choices(|facts| peer(facts).esp = Some(false));
    assert_eq!(udp_only, ["udp"; 3]);
    assert!(choices(|facts| peer(facts).routes.clear()).is_empty());
}
