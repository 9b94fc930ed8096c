//! Choice of the pair of interfaces to a node, by EDP echo (CSR-06-06, section 3: "a special EDP
//! ping to determine node reachability").
//!
//! Each own interface probes each interface of the peer's address. A pair is usable if a short echo
//! is answered. Pairs that also answer an echo of full size are preferred, then those with the
//! shorter round trip. Probing takes at most 0.7 s, and is done once for each node, and again after
//! some time if it failed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use esp_client::control::InterfaceInfo;
use esp_client::{Client, EdpKind, EdpSocket, EspError, KeyId, NodeAddr, monotonic_nanos};

use crate::address::{AddressInterface, EthAddress};
use crate::keys;

/// Time that each round waits for the first answer. Later rounds are for nodes that are slow to
/// wake and for lost frames.
const ROUNDS: [Duration; 4] = [
    Duration::from_millis(40),
    Duration::from_millis(60),
    Duration::from_millis(100),
    Duration::from_millis(150),
];
/// Time that a round waits for further answers after the first.
const GRACE: Duration = Duration::from_millis(10);
/// Time for which a node without an answer is not probed again: enough for all ranks of a node.
const FAILURE_KNOWN: Duration = Duration::from_secs(2);
/// Interval of polls. Round trips are measured by the engine's time stamps.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Length of a short echo in bytes.
const SHORT: usize = 16;
/// Bytes after the EtherType that are not the echo's body: header and control byte.
const OVERHEAD: usize = 11 + 1;

/// Pair of interfaces to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePath {
    /// Name of the own interface.
    pub(crate) interface: String,
    /// Address of the node's interface.
    pub(crate) peer: NodeAddr,
    /// Round trip of a short echo.
    pub(crate) round_trip: Duration,
    /// Description for the user.
    pub(crate) reason: String,
}

/// A datagram socket on each own interface, and the results of earlier probes.
#[derive(Debug)]
pub(crate) struct Prober {
    sockets: Vec<EdpSocket>,
    sequence: u16,
    known: HashMap<(u64, Vec<NodeAddr>), Known>,
    /// Another reason of silence, by the keys of this process; empty over raw Ethernet.
    keys: &'static str,
}

/// Result of a probe, and the time of its end.
#[derive(Debug)]
struct Known {
    found: Result<NodePath, String>,
    at: Instant,
}

/// A pair of interfaces under test.
struct Pair<'a> {
    socket: &'a EdpSocket,
    peer: &'a AddressInterface,
    /// Sequence number of the echo in flight, and when it was sent.
    sent: (u16, u64),
    /// Round trips of [`SHORT_ECHO`] and [`LONG_ECHO`], in nanoseconds.
    echoes: [Option<u64>; 2],
}

const SHORT_ECHO: usize = 0;
const LONG_ECHO: usize = 1;

impl Prober {
    /// Binds a datagram port on each interface. `keys`: those of packets over UDP.
    pub(crate) fn new(
        client: &Client,
        interfaces: &[InterfaceInfo],
        keys: Option<&[KeyId]>,
    ) -> Result<Prober, EspError> {
        let bind = |info: &InterfaceInfo| {
            EdpSocket::builder()
                .interface(&info.name)
                .bind_at(client, 0)
        };
        let sockets = interfaces.iter().map(bind).collect::<Result<_, _>>()?;
        Ok(Prober {
            sockets,
            sequence: 0,
            known: HashMap::new(),
            keys: keys.map_or("", keys::advice),
        })
    }

    /// Returns the best pair of interfaces to the node of an address.
    pub(crate) fn path_to(
        &mut self,
        address: &EthAddress,
        own_incarnation: u64,
    ) -> Result<NodePath, String> {
        let interfaces = address.interfaces.iter();
        let addresses = interfaces.map(|interface| interface.addr).collect();
        let node = (address.incarnation, addresses);
        if let Some(known) = self.known.get(&node)
            && (known.found.is_ok() || known.at.elapsed() < FAILURE_KNOWN)
        {
            return known.found.clone();
        }
        let found = self.measure(address, own_incarnation);
        let known = Known {
            found: found.clone(),
            at: Instant::now(),
        };
        self.known.insert(node, known);
        found
    }

    fn measure(&mut self, address: &EthAddress, own_incarnation: u64) -> Result<NodePath, String> {
        let same_node = address.incarnation == own_incarnation;
        let own: Vec<NodeAddr> = self.sockets.iter().map(EdpSocket::addr).collect();
        let mut pairs = Vec::new();
        for socket in &self.sockets {
            for peer in &address.interfaces {
                if !peer.addr.is_kind_of(&socket.addr()) {
                    continue;
                }
                // An address of this node belongs to one interface, and to peers on this node.
                if own.contains(&peer.addr) && (!same_node || peer.addr != socket.addr()) {
                    continue;
                }
                pairs.push(Pair {
                    socket,
                    peer,
                    sent: (0, 0),
                    echoes: [None; 2],
                });
            }
        }
        if pairs.is_empty() {
            return Err(
                "no address of this node is of the kind of its addresses, or its addresses are those \
                 of this node, but it is on another node"
                    .into(),
            );
        }
        probe_all(&mut pairs, &mut self.sequence, SHORT_ECHO);
        probe_all(&mut pairs, &mut self.sequence, LONG_ECHO);
        let is_checked = address.keys.is_some();
        let keys = if is_checked { "" } else { self.keys };
        choose(&pairs, same_node, keys)
    }
}

/// Sends rounds of echoes until all pairs have answered, or one has and the others had two rounds.
fn probe_all(pairs: &mut [Pair<'_>], sequence: &mut u16, echo: usize) {
    let mut buffer = vec![0; 1 << 16];
    for timeout in ROUNDS {
        for pair in pairs.iter_mut().filter(|pair| pair.awaits(echo)) {
            *sequence = sequence.wrapping_add(1);
            pair.sent = (*sequence, monotonic_nanos());
            let body = &buffer[..pair.length(echo)];
            // An echo that cannot be sent has no answer.
            let _ = pair.socket.send_echo(pair.peer.addr, *sequence, body);
        }
        let mut deadline = Instant::now() + timeout;
        while Instant::now() < deadline && pairs.iter().any(|pair| pair.awaits(echo)) {
            if receive(pairs, &mut buffer, echo) {
                deadline = deadline.min(Instant::now() + GRACE);
            } else {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        buffer.fill(0);
        // One pair is sufficient; the others had two rounds.
        let is_enough =
            timeout != ROUNDS[0] && pairs.iter().any(|pair| pair.echoes[echo].is_some());
        if is_enough || !pairs.iter().any(|pair| pair.awaits(echo)) {
            return;
        }
    }
}

/// Receives answers. Returns whether one of them belongs to a pair.
fn receive(pairs: &mut [Pair<'_>], buffer: &mut [u8], echo: usize) -> bool {
    let mut any = false;
    for at in 0..pairs.len() {
        let socket = pairs[at].socket;
        // Several pairs share a socket, and other nodes may write to it.
        for _ in 0..64 {
            let Ok((_, info)) = socket.try_recv_from(buffer) else {
                break;
            };
            let pair = pairs.iter_mut().find(|pair| {
                std::ptr::eq(pair.socket, socket)
                    && (info.kind, info.src, info.sequence)
                        == (EdpKind::EchoReply, pair.peer.addr, pair.sent.0)
                    && pair.awaits(echo)
            });
            if let Some(pair) = pair
                && info.len == pair.length(echo)
            {
                let time = info.received_nanos.saturating_sub(pair.sent.1);
                pair.echoes[echo] = Some(time.max(1));
                any = true;
            }
        }
    }
    any
}

impl Pair<'_> {
    /// Returns whether an answer is missing. Only pairs that answered a short echo are probed with
    /// a long one.
    fn awaits(&self, echo: usize) -> bool {
        self.echoes[echo].is_none() && (echo == SHORT_ECHO || self.echoes[SHORT_ECHO].is_some())
    }

    /// Returns the length of an echo's body. A long one fills a frame of the smaller MTU.
    fn length(&self, echo: usize) -> usize {
        if echo == SHORT_ECHO {
            return SHORT;
        }
        let theirs = usize::try_from(self.peer.mtu).unwrap_or(0);
        let theirs = theirs.saturating_sub(OVERHEAD);
        self.socket
            .max_payload()
            .saturating_sub(1)
            .min(theirs)
            .clamp(SHORT + 1, 1 << 15)
    }

    fn name(&self) -> String {
        let (own, peer) = (self.socket.interface(), self.peer);
        format!("{own} to {} {}", peer.name, peer.addr)
    }
}

/// Returns the best pair, with a description of all. `keys`: another reason of silence.
fn choose(pairs: &[Pair<'_>], same_node: bool, keys: &str) -> Result<NodePath, String> {
    let micros = |nanos: u64| format!("{}.{} µs", nanos / 1000, nanos % 1000 / 100);
    let usable = pairs
        .iter()
        .filter_map(|pair| Some((pair, pair.echoes[SHORT_ECHO]?)));
    let best = usable.min_by_key(|(pair, time)| (pair.echoes[LONG_ECHO].is_none(), *time));
    let mut others = String::new();
    for pair in pairs {
        if best.is_some_and(|(best, _)| std::ptr::eq(best, pair)) {
            continue;
        }
        let (name, length) = (pair.name(), pair.length(LONG_ECHO));
        others += &match pair.echoes {
            [None, _] => format!("; {name}: no answer to an EDP echo"),
            [Some(time), None] => {
                let time = micros(time);
                format!("; {name}: {time}, but {length} bytes do not pass")
            }
            [Some(time), Some(_)] => format!("; {name}: {}", micros(time)),
        };
    }
    let Some((best, time)) = best else {
        let tried = others.trim_start_matches("; ");
        let keys = if keys.is_empty() {
            ""
        } else {
            &format!(", {keys}")
        };
        return Err(format!(
            "{tried}: no such node, its link is down, a firewall drops the packets, or nothing \
             answers there (try esping){keys}"
        ));
    };
    let place = match same_node {
        true => " (this node, through its daemon)",
        false => "",
    };
    let length = best.length(LONG_ECHO);
    let long = match best.echoes[LONG_ECHO] {
        Some(long) => format!("{length} bytes in {}", micros(long)),
        None => format!("{length} bytes do not pass: a smaller MTU on the path"),
    };
    let (name, short) = (best.name(), micros(time));
    Ok(NodePath {
        interface: best.socket.interface().to_owned(),
        peer: best.peer.addr,
        round_trip: Duration::from_nanos(time),
        reason: format!("{name}{place}: EDP echo in {short}, {long}{others}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_without_answers_is_bounded() {
        // Short and long echoes; the contract permits one second.
        assert!(ROUNDS.iter().sum::<Duration>() * 2 <= Duration::from_millis(700));
    }
}
