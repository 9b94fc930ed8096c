//! Probes the other nodes: which nodes answer, over which paths, their round-trip times and maximum
//! payloads.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use esp_client::{Client, NodeAddr, NodeInfo, resolve, resolve_udp};

use crate::esp::doctor::facts::{Daemon, Network, Node, Peer, Route, State};
use crate::esp::doctor::flags::Flags;
use crate::esping::discover::{Ask, find};
use crate::esping::echo::body;
use crate::esping::mtu::{Tries, measure};
use crate::esping::wire::{Answer, Datagrams, STREAM_WAIT, Wire};
use crate::names::Names;
use crate::out::{Failure, printable, progress};
use crate::signal::Interrupt;
use crate::suggest::closest;

/// Parameters of the broadcast that finds nodes.
const ASK: Ask = Ask {
    requests: 3,
    interval: Duration::from_millis(100),
    wait: Duration::from_millis(400),
    own: true,
};
/// Number of echo requests to a peer, their length, and the maximum wait for each answer.
const ECHOES: usize = 10;
const ECHO_LEN: usize = 56;
const ECHO_WAIT: Duration = Duration::from_millis(500);
/// Number of unanswered echoes after which a path counts as dead.
const SILENT: usize = 3;
/// Parameters of the search for the maximum payload.
const TRIES: Tries = Tries {
    tries: 3,
    wait: Duration::from_millis(200),
};
/// Maximum number of nodes that are probed because they answered the broadcast. A single sender can
/// forge thousands of nodes, and each takes seconds.
const MAX_HEARD: usize = 256;

/// A peer with its addresses.
#[derive(Clone, Debug, Default)]
struct Target {
    name: String,
    unknown: Option<String>,
    meant: Option<String>,
    mac: Option<NodeAddr>,
    udp: Option<NodeAddr>,
}

/// Probes the peers over the daemon's interfaces.
pub(super) fn read(
    client: &Client,
    daemon: &Daemon,
    flags: &Flags,
    interrupt: &Interrupt,
) -> Result<Network, Failure> {
    let mut wires = wires(client, daemon.state(), flags);
    let mut network = Network {
        all: flags.all,
        serves_udp: client.interfaces().iter().any(|i| i.addr.is_udp()),
        ..Network::default()
    };
    let own: Vec<NodeAddr> = wires.iter().map(Wire::addr).collect();
    find(&mut wires, &ASK, interrupt, |found| {
        let nodes = if own.contains(&found.addr) {
            &mut network.own
        } else {
            &mut network.heard
        };
        nodes.push(Node {
            interface: found.interface,
            addr: found.addr,
            info: NodeInfo {
                name: printable(&found.info.name),
                ..found.info
            },
        });
        Ok(())
    })?;
    let (targets, left_out) = targets(flags, &network, &Names::load());
    network.left_out = left_out;
    let bar = progress(
        targets.len() as u64,
        "asking {pos} of {len} nodes {wide_bar}",
    );
    let count = targets.len();
    for target in targets {
        let peer = peer(&mut wires, &network, target, interrupt);
        if interrupt.is_set() {
            break; // the facts about this peer are incomplete
        }
        network.peers.push(peer?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    network.interrupted = count - network.peers.len();
    Ok(network)
}

/// Probes the named peers over UDP, which needs no daemon.
pub(super) fn without_daemon(flags: &Flags, interrupt: &Interrupt) -> Network {
    let mut network = Network::default();
    let (targets, _) = targets(flags, &network, &Names::load());
    let count = targets.len();
    for target in targets {
        let routes = target.udp.map(|addr| udp(addr, interrupt));
        if interrupt.is_set() {
            break;
        }
        network.peers.push(Peer {
            name: target.name,
            unknown: target.unknown,
            meant: target.meant,
            mac: target.mac,
            routes: routes.into_iter().collect(),
            esp: None,
        });
    }
    network.interrupted = count - network.peers.len();
    network
}

/// Opens a datagram socket on each Ethernet interface that is up.
fn wires(client: &Client, state: Option<&State>, flags: &Flags) -> Vec<Datagrams> {
    let interfaces = state.map_or_else(|| client.interfaces(), |state| state.interfaces.clone());
    let named = |name| flags.interface.is_empty() || flags.interface.contains(name);
    interfaces
        .iter()
        .filter(|i| i.up && !i.addr.is_udp() && named(&i.name))
        .filter_map(|i| Datagrams::on(client, &i.name).ok())
        .collect()
}

/// Returns the peers that the command line names, then at most [`MAX_HEARD`] that answered the
/// broadcast, those with known addresses first; and the number of those left out.
fn targets(flags: &Flags, network: &Network, names: &Names) -> (Vec<Target>, usize) {
    let mut targets: Vec<Target> = flags
        .peer
        .iter()
        .map(|text| named(text, names, network.serves_udp))
        .collect();
    if !flags.all {
        return (targets, 0);
    }
    let most = targets.len() + MAX_HEARD;
    let mut left_out = 0;
    let mut known: BTreeSet<u64> = network
        .own
        .iter()
        .map(|node| node.info.incarnation)
        .collect();
    let mut nodes: Vec<&Node> = network.heard.iter().collect();
    nodes.sort_by_key(|node| (names.of(node.addr).is_none(), node.addr.to_string()));
    for node in nodes {
        let is_new = known.insert(node.info.incarnation);
        if !is_new || targets.iter().any(|target| target.mac == Some(node.addr)) {
            continue;
        }
        if targets.len() == most {
            left_out += 1;
            continue;
        }
        let known_as = names.of(node.addr);
        let announced = Some(node.info.name.as_str()).filter(|name| !name.is_empty());
        let name = known_as.or(announced).map(str::to_owned);
        targets.push(Target {
            name: name.unwrap_or_else(|| node.addr.to_string()),
            unknown: None,
            meant: None,
            mac: Some(node.addr),
            udp: known_as
                .filter(|_| network.serves_udp)
                .and_then(|name| resolve_udp(name).ok()),
        });
    }
    (targets, left_out)
}

/// Looks up a peer that the command line names.
fn named(text: &str, names: &Names, serves_udp: bool) -> Target {
    let name = text.to_owned();
    match resolve(text, None) {
        Ok(addr) if addr.is_group() => Target {
            name,
            unknown: Some("it is a group address, not the address of a node".into()),
            ..Target::default()
        },
        Ok(addr) if addr.is_udp() => Target {
            name,
            udp: Some(addr),
            ..Target::default()
        },
        Ok(addr) => {
            let of_ip = if text.parse::<NodeAddr>().is_ok() {
                names.of(addr)
            } else {
                Some(text)
            };
            Target {
                udp: of_ip
                    .filter(|_| serves_udp)
                    .and_then(|name| resolve_udp(name).ok()),
                name,
                unknown: None,
                meant: None,
                mac: Some(addr),
            }
        }
        Err(error) => Target {
            name,
            unknown: Some(error.to_string()),
            meant: closest(text, names.all()).map(str::to_owned),
            ..Target::default()
        },
    }
}

/// Tries all paths to a peer.
fn peer(
    wires: &mut [Datagrams],
    network: &Network,
    target: Target,
    interrupt: &Interrupt,
) -> Result<Peer, Failure> {
    let mut peer = Peer {
        name: target.name,
        unknown: target.unknown,
        meant: target.meant,
        mac: target.mac,
        ..Peer::default()
    };
    if let Some(mac) = target.mac {
        for wire in wires.iter_mut() {
            let addr = address_on(network, mac, wire.interface());
            peer.routes.push(route(wire, addr, interrupt)?);
        }
        peer.esp = esp(wires, &peer);
    }
    if let Some(addr) = target.udp {
        peer.routes.push(udp(addr, interrupt));
    }
    Ok(peer)
}

/// Returns the address that the peer has on the segment of this interface: a node has one address
/// for each of its interfaces.
fn address_on(network: &Network, mac: NodeAddr, interface: &str) -> NodeAddr {
    let on = |node: &&Node| node.interface == interface;
    if network.heard.iter().filter(on).any(|node| node.addr == mac) {
        return mac;
    }
    let peer = network.heard.iter().find(|node| node.addr == mac);
    let mut there = network.heard.iter().filter(on);
    let other =
        peer.and_then(|peer| there.find(|node| node.info.incarnation == peer.info.incarnation));
    other.map_or(mac, |node| node.addr)
}

fn udp(addr: NodeAddr, interrupt: &Interrupt) -> Route {
    let tried = Datagrams::towards(addr, None);
    let tried = tried.and_then(|mut wire| route(&mut wire, addr, interrupt));
    tried.unwrap_or_else(|failure| Route {
        interface: "udp".into(),
        failure: Some(failure.to_string()),
        ..Route::untried(addr)
    })
}

/// Measures a path.
fn route(wire: &mut impl Wire, addr: NodeAddr, interrupt: &Interrupt) -> Result<Route, Failure> {
    let mut route = Route {
        interface: wire.interface().to_owned(),
        own_payload: wire.max_body() + 1,
        ..Route::untried(addr)
    };
    let mut times = Vec::new();
    for number in 0..ECHOES {
        if interrupt.is_set() {
            return Err(Failure::new("interrupted"));
        }
        route.sent += 1;
        match echo(wire, addr, number as u64) {
            Ok(time) => times.extend(time),
            Err(error) => route.failure = Some(error.to_string()),
        }
        if times.is_empty() && route.sent >= SILENT {
            break;
        }
    }
    route.received = times.len();
    times.sort_unstable();
    route.rtt_us = times.get(times.len() / 2).map(|time| *time as f64 / 1000.0);
    if route.answers() {
        let measured = measure(wire, addr, TRIES, interrupt)?;
        route.payload = measured.payload;
        route.peer_payload = measured.peer_payload.map(usize::from);
    }
    Ok(route)
}

/// Sends an echo request, and returns the time until its answer, in nanoseconds.
fn echo(wire: &mut impl Wire, addr: NodeAddr, number: u64) -> io::Result<Option<u64>> {
    let body = body(number, ECHO_LEN);
    let sent = wire.now();
    wire.echo(addr, (number & 0xffff) as u16, &body)?;
    loop {
        let left = (sent + nanos(ECHO_WAIT)).saturating_sub(wire.now());
        if left == 0 {
            return Ok(None);
        }
        let arrival = wire.receive(Duration::from_nanos(left))?;
        let answer = arrival.filter(|a| a.src == addr && a.answer == Answer::Echo(body.clone()));
        if let Some(answer) = answer {
            return Ok(Some(answer.at.saturating_sub(sent)));
        }
    }
}

/// Tests whether packets of streams pass on the fastest path.
fn esp(wires: &mut [Datagrams], peer: &Peer) -> Option<bool> {
    let path = peer.fastest().or_else(|| peer.raw().next())?;
    let mut wires = wires.iter_mut();
    wires
        .find(|wire| wire.interface() == path.interface)?
        .streams(path.addr, STREAM_WAIT)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use esp_client::MacAddr;

    use super::*;

    #[test]
    fn one_sender_cannot_make_up_work_without_end() {
        let node = |number: u16| {
            let [high, low] = number.to_be_bytes();
            Node {
                interface: "eth0".into(),
                addr: NodeAddr::Mac(MacAddr([2, 0, 0, 0, high, low])),
                info: NodeInfo {
                    version: 1,
                    max_payload: 1489,
                    features: 0,
                    incarnation: number.into(),
                    name: String::new(),
                },
            }
        };
        let known = node(9999);
        let network = Network {
            heard: (0..10_000).map(node).collect(),
            all: true,
            ..Network::default()
        };
        let flags = Flags {
            peer: vec!["02:00:00:00:27:0e".into()],
            all: true,
            ..Flags::default()
        };
        let names = Names::parse("02:00:00:00:27:0f known\n");
        let (targets, left_out) = targets(&flags, &network, &names);
        assert_eq!(targets.len(), 1 + MAX_HEARD);
        assert_eq!(targets.len() + left_out, 10_000);
        assert_eq!(
            (targets[1].mac, &*targets[1].name),
            (Some(known.addr), "known")
        );
    }
}
