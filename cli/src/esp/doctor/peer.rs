//! Checks of the paths to each peer, and of names and addresses that must be unique.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Facts, Network, Node, Peer, Route};
use super::finding::Finding;

/// Number of bytes after the EtherType that are not payload.
const HEADER: usize = 11;
/// Version of the set-up protocol that this program speaks.
const VERSION: u8 = esp_proto::wire::VERSION;

/// Checks the segment, then each peer.
pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(network) = &facts.network else {
        return;
    };
    names(network, findings);
    addresses(network, findings);
    not_asked(network, findings);
    if network.all && network.peers.is_empty() && network.interrupted == 0 {
        findings.push(
            Finding::warning("segment.alone", "no other node answers a broadcast")
                .fix("start esp-daemon on the others; check the VLAN of each switch port"),
        );
    }
    for peer in &network.peers {
        let mut of_peer = Vec::new();
        self::peer(network, peer, &mut of_peer);
        findings.extend(of_peer.into_iter().map(|finding| finding.of(&peer.name)));
    }
}

/// Reports how many nodes were not probed.
fn not_asked(network: &Network, findings: &mut Vec<Finding>) {
    let Network {
        left_out,
        interrupted,
        ..
    } = network;
    if *left_out > 0 {
        findings.push(Finding::note(
            "segment.many",
            format!("{left_out} more nodes answered the broadcast but were not asked"),
        ));
    }
    if *interrupted > 0 {
        findings.push(
            Finding::warning(
                "segment.interrupted",
                format!("{interrupted} nodes were not asked because of a signal"),
            )
            .fix("let doctor finish, or name some nodes with --peer"),
        );
    }
}

/// Returns all known nodes, including this one.
fn nodes(network: &Network) -> impl Iterator<Item = &Node> {
    network.own.iter().chain(&network.heard)
}

/// Checks that all nodes have different names.
fn names(network: &Network, findings: &mut Vec<Finding>) {
    let mut daemons: BTreeMap<&str, BTreeMap<u64, String>> = BTreeMap::new();
    for node in nodes(network).filter(|node| !node.info.name.is_empty()) {
        let of_name = daemons.entry(&node.info.name).or_default();
        of_name
            .entry(node.info.incarnation)
            .or_insert_with(|| node.addr.to_string());
    }
    for (name, daemons) in daemons {
        if daemons.len() < 2 {
            continue;
        }
        let addresses: BTreeSet<_> = daemons.into_values().collect();
        if addresses.len() < 2 {
            continue; // one address, see `addresses`
        }
        let list = addresses.into_iter().collect::<Vec<_>>().join(", ");
        findings.push(
            Finding::warning(
                "segment.name",
                format!("several nodes have the name {name}: {list}"),
            )
            .fix("node_name = \"…\" in esp-daemon.toml of one, or hostnamectl hostname"),
        );
    }
}

/// Checks that all nodes on a segment have different addresses.
fn addresses(network: &Network, findings: &mut Vec<Finding>) {
    let mut daemons: BTreeMap<(&str, String), BTreeMap<u64, &str>> = BTreeMap::new();
    for node in nodes(network) {
        let of_address = daemons.entry((&node.interface, node.addr.to_string()));
        let name = node.info.name.as_str();
        of_address.or_default().insert(node.info.incarnation, name);
    }
    for ((interface, addr), daemons) in daemons {
        if daemons.len() < 2 {
            continue;
        }
        let names: BTreeSet<_> = daemons.into_values().collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        findings.push(
            Finding::error(
                "segment.address",
                format!("several nodes on {interface} have the address {addr}: {names}"),
            )
            .fix("ip link set IF address … on one of them, then restart its daemon"),
        );
    }
}

fn peer(network: &Network, peer: &Peer, findings: &mut Vec<Finding>) {
    if let Some(why) = &peer.unknown {
        let list = "esping --discover lists the nodes";
        let fix = match &peer.meant {
            Some(name) => format!("did you mean {name}? {list}"),
            None => list.to_owned(),
        };
        findings.push(Finding::error("peer.unknown", why).fix(fix));
        return;
    }
    if peer.routes.is_empty() {
        findings.push(Finding::note(
            "peer.untried",
            "it was not asked: this node's daemon does not answer, or none of its interfaces is up",
        ));
        return;
    }
    version(network, peer, findings);
    reached(network, peer, findings);
    for route in peer.routes.iter().filter(|route| route.answers()) {
        quality(route, findings);
    }
}

fn version(network: &Network, peer: &Peer, findings: &mut Vec<Finding>) {
    let Some(node) = network
        .heard
        .iter()
        .find(|node| Some(node.addr) == peer.mac)
    else {
        return;
    };
    if node.info.version != VERSION {
        findings.push(
            Finding::error(
                "peer.version",
                format!(
                    "it speaks set-up version {}, this node {VERSION}: streams cannot connect",
                    node.info.version
                ),
            )
            .fix("install one version on both"),
        );
    }
}

/// Checks which carriers and EtherTypes reach the peer.
fn reached(network: &Network, peer: &Peer, findings: &mut Vec<Finding>) {
    let edp = peer.raw().any(Route::answers);
    let esp = peer.esp == Some(true);
    let udp = peer.udp().map(Route::answers);
    let interfaces: Vec<_> = peer.raw().map(|route| route.interface.as_str()).collect();
    let over = interfaces.join(", ");
    if !edp && !esp && udp != Some(true) {
        findings.push(silent(peer, &over));
        return;
    }
    if let Some(addr) = peer.mac {
        if edp && esp {
            findings.push(Finding::ok(
                "peer.raw",
                format!("{addr} answers over {over}"),
            ));
        }
        if !edp && esp {
            findings.push(filtered("peer.edp", "EDP datagrams", "0x88b6"));
        }
        if edp && peer.esp == Some(false) {
            findings.push(filtered("peer.esp", "ESP packets of streams", "0x88b5"));
        }
        if !edp && !esp && !interfaces.is_empty() {
            findings.push(
                Finding::warning(
                    "peer.raw",
                    format!("raw Ethernet does not reach it over {over}, but UDP does"),
                )
                .fix("put both into one VLAN; let EtherTypes 0x88b5 and 0x88b6 pass"),
            );
        }
    }
    match peer.udp() {
        Some(route) if route.answers() => findings.push(Finding::ok(
            "peer.udp",
            format!("{} answers in UDP", route.addr),
        )),
        Some(route) if network.serves_udp => findings.push(
            Finding::warning(
                "peer.udp",
                format!(
                    "{} does not answer in UDP, though raw Ethernet passes",
                    route.addr
                ),
            )
            .fix("open UDP port 2805 in the firewalls of both; set udp in its esp-daemon.toml"),
        ),
        _ => {}
    }
}

fn silent(peer: &Peer, over: &str) -> Finding {
    let failure = peer.routes.iter().find_map(|route| route.failure.as_ref());
    let failure = failure.map_or_else(String::new, |failure| format!(" ({failure})"));
    let over = match (over, peer.udp()) {
        ("", _) => "in UDP".to_owned(),
        (over, None) => format!("over {over}"),
        (over, Some(_)) => format!("over {over}, nor in UDP"),
    };
    Finding::error("peer.silent", format!("it does not answer {over}{failure}"))
        .fix("run esp doctor there; check cable, switch port and VLAN")
}

fn filtered(check: &'static str, what: &str, ethertype: &str) -> Finding {
    Finding::error(
        check,
        format!("{what} do not pass: EtherType {ethertype} is filtered"),
    )
    .fix("allow it at the switch and on both nodes (nft list ruleset)")
}

/// Checks losses and payloads of a path that answers.
fn quality(route: &Route, findings: &mut Vec<Finding>) {
    let interface = &route.interface;
    if route.received < route.sent {
        findings.push(
            Finding::warning(
                "peer.loss",
                format!(
                    "{} of {} echoes over {interface} were not answered",
                    route.sent - route.received,
                    route.sent
                ),
            )
            .fix("esping -c 1000 -i 0.001 NODE; ethtool -S on both ends and the switch"),
        );
    }
    if route.addr.is_udp() {
        return;
    }
    if let Some(peer) = route.peer_payload
        && peer != route.own_payload
    {
        let (own, peer) = (route.own_payload + HEADER, peer + HEADER);
        findings.push(
            Finding::warning(
                "peer.mtu",
                format!(
                    "{interface} has MTU {own}, the peer {peer}: packets have the smaller size"
                ),
            )
            .fix(format!("ip link set IF mtu {} on both", own.max(peer))),
        );
    }
    let ends = route
        .peer_payload
        .map_or(route.own_payload, |peer| peer.min(route.own_payload));
    if let Some(payload) = route.payload.filter(|payload| *payload < ends) {
        findings.push(
            Finding::warning(
                "peer.path",
                format!(
                    "payloads of up to {payload} bytes pass over {interface}, but the ends \
                     support {ends}"
                ),
            )
            .fix(format!(
                "set MTU {} or more at the switch, or {} on all nodes",
                ends + HEADER,
                payload + HEADER
            )),
        );
    }
}
