//! Names that nodes announce: `NAME.esp` is the node whose information reply has the name NAME.
//!
//! The request is that of `esping --discover`: a broadcast on each Ethernet interface of the
//! daemon. The node's own interfaces, which a broadcast does not reach, get a request, too. Nothing
//! is cached, so a name is always that of a node that answers now.

use std::time::{Duration, Instant};

use esp_proto::{EdpKind, MacAddr, NodeAddr};

use crate::client::Client;
use crate::edp::{EdpSocket, NodeInfo};
use crate::error::EspError;

/// Suffix of a name that is requested on the segment.
const DOMAIN: &str = ".esp";
/// Maximum number of requests on each interface, until the name is announced.
const ROUNDS: u16 = 3;
/// Wait for the answers to each request, even after the first answer: another node may announce the
/// name, too.
const ROUND: Duration = Duration::from_millis(100);
/// Period of polling the sockets.
const POLL_PERIOD: Duration = Duration::from_micros(200);
/// Maximum number of nodes that an error lists.
const MAX_NODES: usize = 8;
/// Length of the longest information reply in bytes (section 9 of the wire format).
const MAX_REPLY: usize = 80;

/// Returns NAME if the text is `NAME.esp`.
pub(crate) fn announced_name(text: &str) -> Option<&str> {
    let at = text.len().checked_sub(DOMAIN.len())?;
    let (name, domain) = text.split_at_checked(at)?;
    (!name.is_empty() && domain.eq_ignore_ascii_case(DOMAIN)).then_some(name)
}

/// Returns the address of the node that announces this name, on this interface or on all of the
/// daemon's Ethernet interfaces. Takes at most `ROUNDS * ROUND`.
///
/// # Errors
/// [`EspError::UnknownName`] if no node announces it, [`EspError::AmbiguousName`] if several do.
pub(crate) fn find(
    client: &Client,
    name: &str,
    interface: Option<&str>,
) -> Result<NodeAddr, EspError> {
    let sockets = sockets(client, interface)?;
    let mut found = Announcers::new(name);
    for round in 0..ROUNDS {
        for socket in &sockets {
            // A request that cannot be sent counts as unanswered.
            let _ = socket.send_info_request(MacAddr::BROADCAST, round);
            let _ = socket.send_info_request(socket.addr(), round);
        }
        let deadline = Instant::now() + ROUND;
        while Instant::now() < deadline {
            if !sockets.iter().any(|socket| found.receive(socket)) {
                std::thread::sleep(POLL_PERIOD);
            }
        }
        if !found.nodes.is_empty() {
            break;
        }
    }
    let asked = sockets.iter().map(EdpSocket::interface).collect::<Vec<_>>();
    found.only(&asked)
}

/// Binds a datagram socket on the interface, or on each Ethernet interface that is up.
fn sockets(client: &Client, interface: Option<&str>) -> Result<Vec<EdpSocket>, EspError> {
    let bind = |name: &str| EdpSocket::builder().interface(name).bind_at(client, 0);
    if let Some(name) = interface {
        return Ok(vec![bind(name)?]);
    }
    let interfaces = if client.session().is_local() {
        Vec::new()
    } else {
        client.status()?.interfaces
    };
    // UDP has no broadcast.
    let usable = interfaces.iter().filter(|i| i.up && !i.addr.is_udp());
    usable.map(|interface| bind(&interface.name)).collect()
}

/// Nodes that have announced the name.
struct Announcers<'a> {
    name: &'a str,
    /// Incarnation and first address of each node, in the order of their answers.
    nodes: Vec<(u64, NodeAddr)>,
}

impl<'a> Announcers<'a> {
    fn new(name: &'a str) -> Announcers<'a> {
        let nodes = Vec::new();
        Announcers { name, nodes }
    }

    /// Takes a datagram from a socket. Returns false if there is none.
    fn receive(&mut self, socket: &EdpSocket) -> bool {
        let mut body = [0; MAX_REPLY];
        let Ok((len, info)) = socket.try_recv_from(&mut body) else {
            return false;
        };
        if info.kind == EdpKind::InfoReply
            && let Some(reply) = body.get(..len).and_then(NodeInfo::parse)
        {
            self.add(info.src, &reply);
        }
        true
    }

    /// Adds the node of a reply if it has the name. A node answers from each of its interfaces, and
    /// has a new incarnation after its daemon was restarted.
    fn add(&mut self, src: NodeAddr, reply: &NodeInfo) {
        let is_new = self
            .nodes
            .iter()
            .all(|&(incarnation, addr)| incarnation != reply.incarnation && addr != src);
        let has_name = reply.name.eq_ignore_ascii_case(self.name);
        if has_name && is_new && self.nodes.len() < MAX_NODES {
            self.nodes.push((reply.incarnation, src));
        }
    }

    /// Returns the address of the only node.
    fn only(self, asked: &[&str]) -> Result<NodeAddr, EspError> {
        let name = format!("{}{DOMAIN}", self.name);
        match self.nodes.as_slice() {
            [(_, addr)] => Ok(*addr),
            [] if asked.is_empty() => Err(EspError::UnknownName {
                name,
                why: "no Ethernet interface of this node's daemon is up, so no request can be sent"
                    .into(),
            }),
            [] => Err(EspError::UnknownName {
                name,
                why: format!(
                    "no node on {} announces the name {:?}; `esping --discover` shows the names",
                    asked.join(", "),
                    self.name
                ),
            }),
            nodes => Err(EspError::AmbiguousName {
                name,
                nodes: nodes.iter().map(|&(_, addr)| addr).collect(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(last: u8) -> NodeAddr {
        MacAddr([2, 0, 0, 0, 0, last]).into()
    }

    fn reply(name: &str, incarnation: u64) -> NodeInfo {
        NodeInfo {
            version: 1,
            max_payload: 1489,
            features: 0,
            incarnation,
            name: name.into(),
        }
    }

    fn ask(name: &str, answers: &[(u8, &str, u64)]) -> Result<NodeAddr, EspError> {
        let mut found = Announcers::new(name);
        for &(last, name, incarnation) in answers {
            found.add(node(last), &reply(name, incarnation));
        }
        found.only(&["eth0", "eth1"])
    }

    #[test]
    fn names_end_with_the_domain() {
        assert_eq!(announced_name("node1.esp"), Some("node1"));
        assert_eq!(announced_name("Node1.Rack2.ESP"), Some("Node1.Rack2"));
        for other in [
            "node1",
            ".esp",
            "esp",
            "",
            "node1.esp.",
            "nodeesp",
            "é.exp",
            "éesp",
        ] {
            assert_eq!(announced_name(other), None, "{other}");
        }
    }

    #[test]
    fn the_node_with_the_name_is_found() {
        let answers = [(1, "node1", 10), (2, "node2", 20), (3, "node10", 30)];
        assert_eq!(ask("node2", &answers), Ok(node(2)));
        assert_eq!(ask("NODE10", &answers), Ok(node(3)));
    }

    #[test]
    fn two_nodes_of_one_name_are_an_error_with_both_addresses() {
        let error = ask("node1", &[(1, "node1", 10), (2, "Node1", 20)]).unwrap_err();
        let nodes = vec![node(1), node(2)];
        let text = error.to_string();
        assert!(
            text.contains("02:00:00:00:00:01") && text.contains("02:00:00:00:00:02"),
            "{text}"
        );
        let name = "node1.esp".into();
        assert_eq!(error, EspError::AmbiguousName { name, nodes });
    }

    #[test]
    fn interfaces_and_incarnations_of_a_node_are_one_node() {
        let interfaces = [(1, "node1", 10), (2, "node1", 10)];
        assert_eq!(ask("node1", &interfaces), Ok(node(1)));
        let restarted = [(1, "node1", 10), (1, "node1", 11)];
        assert_eq!(ask("node1", &restarted), Ok(node(1)));
    }

    #[test]
    fn an_unknown_name_says_where_it_was_asked_for() {
        let text = ask("node3", &[(1, "node1", 10)]).unwrap_err().to_string();
        assert!(
            text.contains("eth0, eth1") && text.contains("node3.esp"),
            "{text}"
        );
        let nowhere = Announcers::new("node3").only(&[]).unwrap_err().to_string();
        assert!(nowhere.contains("is up"), "{nowhere}");
    }

    #[test]
    fn a_flood_of_announcers_is_bounded() {
        let mut found = Announcers::new("n");
        for n in 0..100 {
            found.add(node(n), &reply("n", n.into()));
        }
        assert_eq!(found.nodes.len(), MAX_NODES);
    }
}
