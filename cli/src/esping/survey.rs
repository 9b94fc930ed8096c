//! Diagnosis of a target from the other nodes of the segment and the local interface: several nodes
//! with its address, and the probable cause of a total loss.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::time::Duration;

use esp_client::NodeAddr;
use netif::{Interface, InterfaceError};
use serde::Serialize;

use super::discover::{self, Ask};
use super::flags::Target;
use super::wire::Wire;
use crate::out::printable;
use crate::signal::Interrupt;

/// Wait for answers to the broadcast if the target answers, and if it does not.
const WAIT: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(300)];

/// A node that answered the broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    addr: NodeAddr,
    name: String,
    incarnation: u64,
}

/// Returns the nodes that answer a broadcast request. Empty over UDP, which has no broadcast, and
/// if the request cannot be sent.
pub(super) fn neighbours(wire: &mut impl Wire, answers: bool) -> Vec<Neighbour> {
    let mut found = Vec::new();
    if wire.addr().is_udp() {
        return found;
    }
    let wait = if answers { WAIT[0] } else { WAIT[1] };
    let ask = Ask {
        requests: 1,
        interval: wait,
        wait,
        own: false,
    };
    let wires = std::slice::from_mut(wire);
    let asked = discover::find(wires, &ask, &Interrupt::default(), |node| {
        found.push(Neighbour {
            addr: node.addr,
            name: printable(&node.info.name),
            incarnation: node.info.incarnation,
        });
        Ok(())
    });
    // If the request could not be sent, there are no answers, and the cause is searched for
    // elsewhere.
    asked.map_or_else(|_| Vec::new(), |()| found)
}

/// Several daemons that answer from the same address.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "duplicate_address")]
pub(super) struct Doubled {
    target: String,
    mac: String,
    /// Names that they announce.
    names: BTreeSet<String>,
}

impl Doubled {
    /// Returns the daemons with the target's address if there are several.
    pub(super) fn of(target: &Target, neighbours: &[Neighbour]) -> Option<Doubled> {
        let theirs = || neighbours.iter().filter(|other| other.addr == target.addr);
        let daemons: BTreeSet<u64> = theirs().map(|other| other.incarnation).collect();
        (daemons.len() > 1).then(|| Doubled {
            target: target.text.clone(),
            mac: target.addr.to_string(),
            names: theirs().map(|other| other.name.clone()).collect(),
        })
    }
}

impl Display for Doubled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        write!(
            f,
            "warning: several nodes have the address {}: {}; give each another one: ip link set IF \
             address …",
            self.mac,
            names.join(", ")
        )
    }
}

/// Probable cause of a total loss.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Silence {
    /// The local interface was removed.
    InterfaceGone { interface: String },
    /// The local interface is disabled.
    InterfaceDown { interface: String },
    /// The local interface has no carrier.
    NoCarrier { interface: String },
    /// A node that announces the target's name has another address.
    AddressChanged { name: String, now: String },
    /// Other nodes answer.
    OthersAnswer { interface: String, nodes: usize },
    /// No other node answers a broadcast.
    NobodyAnswers { interface: String },
    /// The target is reached over UDP.
    Udp,
}

/// Determines the probable cause if a target does not answer.
pub(super) fn silence(wire: &impl Wire, target: &Target, neighbours: &[Neighbour]) -> Silence {
    if wire.addr().is_udp() {
        return Silence::Udp;
    }
    let interface = wire.interface().to_owned();
    if wire.is_up() == Some(false) {
        return match Interface::by_name(&interface) {
            Err(InterfaceError::NotFound { .. }) => Silence::InterfaceGone { interface },
            Ok(found) if !found.up => Silence::InterfaceDown { interface },
            _ => Silence::NoCarrier { interface },
        };
    }
    let moved = neighbours
        .iter()
        .find(|other| other.name == target.text && other.addr != target.addr);
    if let Some(moved) = moved {
        return Silence::AddressChanged {
            name: moved.name.clone(),
            now: moved.addr.to_string(),
        };
    }
    let nodes: BTreeSet<u64> = neighbours.iter().map(|other| other.incarnation).collect();
    match nodes.len() {
        0 => Silence::NobodyAnswers { interface },
        nodes => Silence::OthersAnswer { interface, nodes },
    }
}

impl Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::InterfaceGone { interface } => write!(
                f,
                "this node's interface {interface} no longer exists; the daemon uses it \
                 again once it is back"
            ),
            Silence::InterfaceDown { interface } => write!(
                f,
                "this node's interface {interface} is disabled: ip link set {interface} up"
            ),
            Silence::NoCarrier { interface } => write!(
                f,
                "this node's interface {interface} has no carrier: check cable and switch port"
            ),
            Silence::AddressChanged { name, now } => write!(
                f,
                "the node that calls itself {name} has the address {now} now: correct /etc/ethers \
                 (esping --discover --ethers prints its lines)"
            ),
            Silence::OthersAnswer {
                interface,
                nodes: 1,
            } => write!(
                f,
                "another node on {interface} answers: is esp-daemon running there, and its switch \
                 port in this VLAN?"
            ),
            Silence::OthersAnswer { interface, nodes } => write!(
                f,
                "{nodes} other nodes on {interface} answer: is esp-daemon running there, and its \
                 switch port in this VLAN?"
            ),
            Silence::NobodyAnswers { interface } => write!(
                f,
                "no other node on {interface} answers either: check this node's cable, its switch \
                 port and VLAN, and filters of EtherTypes 0x88b5 and 0x88b6"
            ),
            Silence::Udp => f.write_str(
                "check its address, whether a program or daemon has UDP port 2805 there, and the \
                 firewalls",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::fake::{self, Fake};
    use super::super::wire::{Answer, Arrival};
    use super::*;
    use esp_client::{MacAddr, NodeInfo};

    fn addr(last: u8) -> NodeAddr {
        MacAddr([2, 0, 0, 0, 0, last]).into()
    }

    fn target() -> Target {
        Target {
            text: "peer".into(),
            addr: addr(9),
            interface: None,
        }
    }

    fn info(last: u8, name: &str, incarnation: u64) -> (u64, Arrival) {
        let info = NodeInfo {
            version: 1,
            max_payload: 1489,
            features: 0,
            incarnation,
            name: name.into(),
        };
        let answer = Arrival {
            src: addr(last),
            at: 0,
            answer: Answer::Info(info),
        };
        (20, answer)
    }

    fn asked(answers: Vec<(u64, Arrival)>) -> (Fake, Vec<Neighbour>) {
        let mut wire = Fake::new(100, move |_, _, _| answers.clone());
        let found = neighbours(&mut wire, true);
        (wire, found)
    }

    #[test]
    fn two_daemons_at_one_address_are_found() {
        let (_, found) = asked(vec![info(9, "a", 1), info(9, "b\x1b", 2), info(8, "c", 3)]);
        let doubled = Doubled::of(&target(), &found).map(|doubled| doubled.to_string());
        let text = doubled.unwrap_or_default();
        assert!(text.contains("02:00:00:00:00:09: a, b?;"), "{text}");
        // A daemon that answers twice counts once.
        let (_, found) = asked(vec![info(9, "a", 1), info(9, "a", 1), info(8, "c", 3)]);
        assert_eq!(Doubled::of(&target(), &found), None);
    }

    #[test]
    fn silence_is_explained_by_what_the_others_answer() {
        let echo = || (20, fake::echo(addr(8), b"no information"));
        for (answers, wanted) in [
            (vec![], "no other node on fake0 answers either"),
            (vec![echo()], "no other node"),
            (vec![info(8, "other", 1)], "another node on fake0 answers"),
            (
                vec![info(8, "other", 1), info(7, "third", 2)],
                "2 other nodes on fake0 answer",
            ),
            (
                vec![info(8, "other", 1), info(7, "peer", 2)],
                "has the address 02:00:00:00:00:07 now",
            ),
        ] {
            let (wire, found) = asked(answers);
            let text = silence(&wire, &target(), &found).to_string();
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn an_own_interface_that_is_down_explains_more_than_the_others() {
        let (mut wire, found) = asked(vec![info(7, "peer", 2)]);
        wire.up = Some(false);
        let text = silence(&wire, &target(), &found).to_string();
        assert!(text.contains("fake0 no longer exists"), "{text}");
    }
}
