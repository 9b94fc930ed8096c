//! Choice of the pair of interfaces to a node, by EDP echo (CSR-06-06, section 3: "a special EDP
//! ping to determine node reachability").
//!
//! Each own interface probes each interface of the peer's address. A pair is usable if a short echo
//! is answered. Pairs that also answer an echo of full size are preferred, then those with the
//! shorter round trip. Probing takes at most 0.7 s, and is done once for each node.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use esp_client::control::InterfaceInfo;
use esp_client::{Client, EdpKind, EdpSocket, EspError, NodeAddr, monotonic_nanos};

use crate::address::{AddressInterface, EthAddress};

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
    known: HashMap<(u64, Vec<NodeAddr>), Result<NodePath, String>>,
}

/// A pair of interfaces under test.
struct Pair<'a> {
    socket: &'a EdpSocket,
    peer: &'a AddressInterface,
    /// Sequence number of the echo in flight, and when it was sent.
    sent: (u16, u64),
    answered: bool,
    short: Option<u64>,
    long: Option<u64>,
}

impl Prober {
    /// Binds a datagram port on each interface.
    pub(crate) fn new(client: &Client, interfaces: &[InterfaceInfo]) -> Result<Prober, EspError> {
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
        })
    }

    /// Returns the best pair of interfaces to the node of an address.
    pub(crate) fn path_to(
        &mut self,
        address: &EthAddress,
        own_incarnation: u64,
    ) -> Result<NodePath, String> {
        let addresses = address
            .interfaces
            .iter()
            .map(|interface| interface.addr)
            .collect();
        let node = (address.incarnation, addresses);
        if let Some(known) = self.known.get(&node) {
            return known.clone();
        }
        let found = self.measure(address, own_incarnation);
        self.known.insert(node, found.clone());
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
                    answered: false,
                    short: None,
                    long: None,
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
        let mut sequence = self.sequence;
        probe_all(&mut pairs, &mut sequence, false);
        probe_all(&mut pairs, &mut sequence, true);
        self.sequence = sequence;
        choose(&pairs, same_node)
    }
}

/// Sends rounds of echoes until all pairs have answered, or one has and the others had two rounds.
fn probe_all(pairs: &mut [Pair<'_>], sequence: &mut u16, long: bool) {
    for pair in pairs.iter_mut() {
        // Only pairs that answered a short echo are probed with a long one.
        pair.answered = long && pair.short.is_none();
    }
    let mut buffer = vec![0; 1 << 16];
    for timeout in ROUNDS {
        if pairs.iter().all(|pair| pair.answered) {
            return;
        }
        for pair in pairs.iter_mut().filter(|pair| !pair.answered) {
            *sequence = sequence.wrapping_add(1);
            pair.sent = (*sequence, monotonic_nanos());
            let length = if long { pair.full_length() } else { SHORT };
            // An echo that cannot be sent has no answer.
            let _ = pair
                .socket
                .send_echo(pair.peer.addr, *sequence, &buffer[..length]);
        }
        let mut deadline = Instant::now() + timeout;
        while Instant::now() < deadline && pairs.iter().any(|pair| !pair.answered) {
            if receive(pairs, &mut buffer, long) {
                deadline = deadline.min(Instant::now() + GRACE);
            } else {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        buffer.fill(0);
        // One pair is sufficient; the others had two rounds.
        if pairs
            .iter()
            .any(|pair| pair.answered && pair.short.is_some())
            && timeout != ROUNDS[0]
        {
            return;
        }
    }
}

/// Receives answers. Returns whether one of them belongs to a pair.
fn receive(pairs: &mut [Pair<'_>], buffer: &mut [u8], long: bool) -> bool {
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
                    && !pair.answered
            });
            let Some(pair) = pair else { continue };
            let expected = if long { pair.full_length() } else { SHORT };
            if info.len != expected {
                continue;
            }
            let time = info.received_nanos.saturating_sub(pair.sent.1).max(1);
            *(if long {
                &mut pair.long
            } else {
                &mut pair.short
            }) = Some(time);
            pair.answered = true;
            any = true;
        }
    }
    any
}

impl Pair<'_> {
    /// Returns the length of an echo's body that fills a frame of the smaller MTU.
    fn full_length(&self) -> usize {
        let theirs = usize::try_from(self.peer.mtu)
            .unwrap_or(0)
            .saturating_sub(OVERHEAD);
        self.socket
            .max_payload()
            .saturating_sub(1)
            .min(theirs)
            .clamp(SHORT + 1, 1 << 15)
    }

    fn name(&self) -> String {
        format!(
            "{} to {} {}",
            self.socket.interface(),
            self.peer.name,
            self.peer.addr
        )
    }
}

/// Returns the best pair, with a description of all.
fn choose(pairs: &[Pair<'_>], same_node: bool) -> Result<NodePath, String> {
    let micros = |nanos: u64| format!("{}.{} µs", nanos / 1000, nanos % 1000 / 100);
    let rank = |pair: &Pair<'_>| (pair.long.is_none(), pair.short.unwrap_or(u64::MAX));
    let best = pairs
        .iter()
        .filter(|pair| pair.short.is_some())
        .min_by_key(|pair| rank(pair));
    let mut others = String::new();
    for pair in pairs {
        if best.is_some_and(|best| std::ptr::eq(best, pair)) {
            continue;
        }
        let _ = match (pair.short, pair.long) {
            (None, _) => write!(others, "; {}: no answer to an EDP echo", pair.name()),
            (Some(time), None) => {
                write!(
                    others,
                    "; {}: {}, but {} bytes do not pass",
                    pair.name(),
                    micros(time),
                    pair.full_length()
                )
            }
            (Some(time), Some(_)) => write!(others, "; {}: {}", pair.name(), micros(time)),
        };
    }
    let Some((best, time)) = best.and_then(|best| Some((best, best.short?))) else {
        let tried = others.trim_start_matches("; ");
        return Err(format!(
            "{tried}: no such node, its link is down, a firewall drops the packets, or nothing answers there (try esping)"
        ));
    };
    let place = if same_node {
        " (this node, through its daemon)"
    } else {
        ""
    };
    let long = match best.long {
        Some(long) => format!("{} bytes in {}", best.full_length(), micros(long)),
        None => format!(
            "{} bytes do not pass: a smaller MTU on the path",
            best.full_length()
        ),
    };
    let reason = format!(
        "{}{place}: EDP echo in {}, {long}{others}",
        best.name(),
        micros(time)
    );
    let round_trip = Duration::from_nanos(time);
    Ok(NodePath {
        interface: best.socket.interface().to_owned(),
        peer: best.peer.addr,
        round_trip,
        reason,
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
