//! Choice of the pair of interfaces to a node, by EDP echo (CSR-06-06, section 3: "a special EDP
//! ping to determine node reachability").
//!
//! Each local interface probes each interface of the peer's address. A pair is usable if a short
//! echo is answered. Pairs that also answer an echo of full size are preferred, then those with the
//! shorter round trip. A node is probed once, and again after some time if that failed.
//!
//! Probes of several nodes run at once ([`Prober::poll`]), and send short echoes until one is
//! answered or their owner gives up. [`Prober::path_to`] gives up after the first [`ROUNDS`]. These
//! are counted, not timed, so that the next one waits in full even after a pause of this machine.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use btl::Probe;
use esp_client::control::InterfaceInfo;
use esp_client::monotonic_nanos;
use esp_client::{Client, DatagramInfo, EdpKind, EdpSocket, EspError, KeyId, NodeAddr};

use crate::address::{AddressInterface, EthAddress};
use crate::keys;

/// Time that each round waits for the first answer. Later rounds are for nodes that are slow to
/// wake and for lost frames; each further round of short echoes waits twice as long as the one
/// before it, so that many processes do not flood a node that is overloaded.
const ROUNDS: [Duration; 4] = [
    Duration::from_millis(40),
    Duration::from_millis(60),
    Duration::from_millis(100),
    Duration::from_millis(150),
];
/// Maximum time of a further round.
const MAX_ROUND: Duration = Duration::from_secs(2);
/// Number of rounds after which one pair that has answered is sufficient.
const ENOUGH: usize = 2;
/// Time that a round waits for further answers after the first.
const GRACE: Duration = Duration::from_millis(10);
/// Time for which a node without an answer is not probed again: long enough for all its ranks to be
/// added.
const FAILURE_KNOWN: Duration = Duration::from_secs(2);
/// Interval of polls. Round trips are measured by the engine's time stamps.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum number of datagrams taken from a socket in one poll.
const DATAGRAMS_PER_POLL: usize = 256;
/// Length of a short echo in bytes.
const SHORT: usize = 16;
/// Maximum length of an echo in bytes.
const MAX_ECHO: usize = 1 << 15;
/// Bytes after the EtherType that are not the echo's body: header and control byte.
const OVERHEAD: usize = 11 + 1;

/// Body of all echoes.
static BODY: [u8; MAX_ECHO] = [0; MAX_ECHO];

/// Pair of interfaces to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePath {
    /// Name of the local interface.
    pub(crate) interface: String,
    /// Address of the node's interface.
    pub(crate) peer: NodeAddr,
    /// Round trip of a short echo.
    pub(crate) round_trip: Duration,
    /// Description for the user.
    pub(crate) reason: String,
}

/// A datagram socket on each local interface, the probes in progress, and the results of earlier
/// ones.
#[derive(Debug)]
pub(crate) struct Prober {
    sockets: Vec<EdpSocket>,
    sequence: u16,
    nodes: Vec<Node>,
    /// Indices of the nodes, by incarnation and addresses.
    by_address: HashMap<(u64, Vec<NodeAddr>), usize>,
    /// Indices of the nodes to which echoes were sent, by sequence number.
    sent_to: HashMap<u16, usize>,
    /// Time of the last poll of the sockets.
    polled: Option<Instant>,
    buffer: Vec<u8>,
    /// Another possible cause of silence, from the keys of this process; empty over raw Ethernet.
    keys: &'static str,
}

/// State of a node: its probe, or the result.
#[derive(Debug)]
enum Node {
    Probed(Probing),
    /// Result of a probe, and the time of its end.
    Known(Result<NodePath, String>, Instant),
}

/// A probe of a node.
#[derive(Debug)]
struct Probing {
    pairs: Vec<Pair>,
    /// The echoes being sent: [`SHORT_ECHO`] or [`LONG_ECHO`].
    echo: usize,
    /// Number of rounds of these echoes so far, and the end of the last one.
    rounds: usize,
    deadline: Instant,
    same_node: bool,
    /// Another possible cause of silence.
    keys: &'static str,
}

/// A pair of interfaces under test.
#[derive(Debug)]
struct Pair {
    /// Index of the local socket, and the name of its interface.
    socket: usize,
    interface: String,
    peer: AddressInterface,
    /// Length of a long echo's body. It fills a frame of the smaller MTU.
    long: usize,
    /// Sequence numbers of the echoes of the current length, and the times at which they were sent.
    /// An answer to any of them counts: a node that is overloaded may take longer than a round.
    sent: Vec<(u16, u64)>,
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
            nodes: Vec::new(),
            by_address: HashMap::new(),
            sent_to: HashMap::new(),
            polled: None,
            buffer: vec![0; 1 << 16],
            keys: keys.map_or("", keys::advice),
        })
    }

    /// Returns the best pair of interfaces to the node of an address.
    pub(crate) fn path_to(
        &mut self,
        address: &EthAddress,
        own_incarnation: u64,
    ) -> Result<NodePath, String> {
        let at = self.begin(address, own_incarnation);
        loop {
            match self.advance(at) {
                Node::Known(found, _) => return found.clone(),
                Node::Probed(probing) if probing.is_hopeless() => {
                    let found = choose(probing);
                    self.nodes[at] = Node::Known(found.clone(), Instant::now());
                    return found;
                }
                Node::Probed(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// Begins the probe of the node of an address, or advances it. Does not wait.
    pub(crate) fn poll(&mut self, address: &EthAddress, own_incarnation: u64) -> Probe {
        let at = self.begin(address, own_incarnation);
        match self.advance(at) {
            Node::Known(Ok(_), _) => Probe::Reached,
            Node::Known(Err(_), _) => Probe::Settled,
            Node::Probed(_) => Probe::Awaited,
        }
    }

    /// Returns the index of the node of an address, whose probe has begun.
    fn begin(&mut self, address: &EthAddress, own_incarnation: u64) -> usize {
        let interfaces = address.interfaces.iter();
        let addresses = interfaces.map(|interface| interface.addr).collect();
        let key = (address.incarnation, addresses);
        let known = self.by_address.get(&key).copied();
        let at = known.unwrap_or(self.nodes.len());
        let is_failed = |node: &Node| match node {
            Node::Known(Err(_), since) => since.elapsed() >= FAILURE_KNOWN,
            Node::Known(Ok(_), _) | Node::Probed(_) => false,
        };
        if self.nodes.get(at).is_some_and(|node| !is_failed(node)) {
            return at;
        }
        let begun = match self.probe_of(address, own_incarnation) {
            Ok(probing) => Node::Probed(probing),
            Err(why) => Node::Known(Err(why), Instant::now()),
        };
        match self.nodes.get_mut(at) {
            Some(node) => *node = begun,
            None => self.nodes.push(begun),
        }
        self.by_address.insert(key, at);
        at
    }

    fn probe_of(&self, address: &EthAddress, own_incarnation: u64) -> Result<Probing, String> {
        let same_node = address.incarnation == own_incarnation;
        let own: Vec<NodeAddr> = self.sockets.iter().map(EdpSocket::addr).collect();
        let mut pairs = Vec::new();
        for (at, socket) in self.sockets.iter().enumerate() {
            for peer in &address.interfaces {
                if !peer.addr.is_kind_of(&socket.addr()) {
                    continue;
                }
                // An address of this node is valid only for a peer on this node, and from the
                // interface that has it.
                if own.contains(&peer.addr) && (!same_node || peer.addr != socket.addr()) {
                    continue;
                }
                pairs.push(Pair {
                    socket: at,
                    interface: socket.interface().to_owned(),
                    peer: peer.clone(),
                    long: long_echo(socket, peer),
                    sent: Vec::new(),
                    echoes: [None; 2],
                });
            }
        }
        if pairs.is_empty() {
            return Err(
                "this node has no address of the peer's kinds (Ethernet, IPv4, IPv6), or the peer \
                 publishes an address of this node: give each node its own address"
                    .into(),
            );
        }
        let now = Instant::now();
        Ok(Probing {
            pairs,
            echo: SHORT_ECHO,
            rounds: 0,
            deadline: now,
            same_node,
            keys: if address.keys.is_some() {
                ""
            } else {
                self.keys
            },
        })
    }

    /// Receives answers, and sends the echoes of a node that are due. Returns the resulting state.
    fn advance(&mut self, at: usize) -> &Node {
        let now = Instant::now();
        if self.polled.is_none_or(|last| now - last >= POLL_INTERVAL) {
            self.polled = Some(now);
            self.receive(now);
        }
        if let Node::Probed(probing) = &mut self.nodes[at] {
            if !probing.has_round_ended(now) {
                return &self.nodes[at];
            }
            if probing.begin_round(now) {
                self.send(at);
            } else {
                let found = choose(probing);
                self.nodes[at] = Node::Known(found, now);
            }
        }
        &self.nodes[at]
    }

    /// Sends an echo for each pair of a node whose answer is missing.
    fn send(&mut self, at: usize) {
        let Node::Probed(probing) = &mut self.nodes[at] else {
            return;
        };
        let echo = probing.echo;
        for pair in probing.pairs.iter_mut().filter(|pair| pair.awaits(echo)) {
            self.sequence = self.sequence.wrapping_add(1);
            pair.sent.push((self.sequence, monotonic_nanos()));
            self.sent_to.insert(self.sequence, at);
            let body = &BODY[..pair.length(echo)];
            // An echo that cannot be sent has no answer.
            let _ = self.sockets[pair.socket].send_echo(pair.peer.addr, self.sequence, body);
        }
    }

    /// Receives answers to all nodes' echoes.
    fn receive(&mut self, now: Instant) {
        for (socket, from) in self.sockets.iter().enumerate() {
            for _ in 0..DATAGRAMS_PER_POLL {
                let Ok((_, info)) = from.try_recv_from(&mut self.buffer) else {
                    break;
                };
                let node = self.sent_to.get(&info.sequence).copied();
                if let Some(node) = node.and_then(|node| self.nodes.get_mut(node))
                    && let Node::Probed(probing) = node
                {
                    probing.answered(socket, &info, now);
                }
            }
        }
    }
}

/// Returns the time of round `number` of short echoes, counted from 0.
fn round(number: usize) -> Duration {
    let last = ROUNDS.len() - 1;
    let doublings = u32::try_from(number.saturating_sub(last)).unwrap_or(u32::MAX);
    let doubled = ROUNDS[number.min(last)].saturating_mul(1 << doublings.min(8));
    doubled.min(MAX_ROUND)
}

impl Probing {
    /// Records an answer, if it is one to an echo of the current length. Other nodes may send to
    /// the socket.
    fn answered(&mut self, socket: usize, info: &DatagramInfo, now: Instant) {
        let echo = self.echo;
        let sent = |pair: &Pair| {
            let mut sent = pair.sent.iter();
            sent.find_map(|(sequence, at)| (*sequence == info.sequence).then_some(*at))
        };
        let is_it = |pair: &&mut Pair| {
            pair.socket == socket
                && (info.kind, info.src) == (EdpKind::EchoReply, pair.peer.addr)
                && pair.awaits(echo)
                && info.len == pair.length(echo)
        };
        if let Some(pair) = self.pairs.iter_mut().find(is_it)
            && let Some(at) = sent(pair)
        {
            let time = info.received_nanos.saturating_sub(at);
            pair.echoes[echo] = Some(time.max(1));
            self.deadline = self.deadline.min(now + GRACE);
        }
    }

    /// Returns whether the round has ended: all have answered, or its time has passed.
    fn has_round_ended(&self, now: Instant) -> bool {
        now >= self.deadline || !self.pairs.iter().any(|pair| pair.awaits(self.echo))
    }

    /// Begins the next round. Returns false if enough is known without one.
    fn begin_round(&mut self, now: Instant) -> bool {
        if self.has_enough() {
            if self.echo == LONG_ECHO {
                return false;
            }
            (self.echo, self.rounds) = (LONG_ECHO, 0);
            self.pairs.iter_mut().for_each(|pair| pair.sent.clear());
        }
        self.deadline = now + round(self.rounds);
        self.rounds += 1;
        true
    }

    /// Returns whether no more echoes of the current length are needed.
    fn has_enough(&self) -> bool {
        let any = self
            .pairs
            .iter()
            .any(|pair| pair.echoes[self.echo].is_some());
        // Only the short ones are repeated for as long as the owner waits.
        let is_last = self.echo == LONG_ECHO && self.rounds == ROUNDS.len();
        let all = !self.pairs.iter().any(|pair| pair.awaits(self.echo));
        all || is_last || (any && self.rounds >= ENOUGH)
    }

    /// Returns whether no short echo was answered in the first rounds.
    fn is_hopeless(&self) -> bool {
        let is_silent = self
            .pairs
            .iter()
            .all(|pair| pair.echoes[SHORT_ECHO].is_none());
        is_silent && self.rounds > ROUNDS.len()
    }
}

impl Pair {
    /// Returns whether an answer is missing. Only pairs that answered a short echo are probed with
    /// a long one.
    fn awaits(&self, echo: usize) -> bool {
        self.echoes[echo].is_none() && (echo == SHORT_ECHO || self.echoes[SHORT_ECHO].is_some())
    }

    /// Returns the length of an echo's body.
    fn length(&self, echo: usize) -> usize {
        if echo == SHORT_ECHO { SHORT } else { self.long }
    }

    fn name(&self) -> String {
        format!(
            "{} to {} {}",
            self.interface, self.peer.name, self.peer.addr
        )
    }
}

/// Returns the length of a long echo's body.
fn long_echo(socket: &EdpSocket, peer: &AddressInterface) -> usize {
    let theirs = usize::try_from(peer.mtu).unwrap_or(0);
    let theirs = theirs.saturating_sub(OVERHEAD);
    let own = socket.max_payload().saturating_sub(1);
    own.min(theirs).clamp(SHORT + 1, MAX_ECHO)
}

/// Returns the best pair, with a description of all.
fn choose(probing: &Probing) -> Result<NodePath, String> {
    let Probing {
        pairs,
        same_node,
        keys,
        ..
    } = probing;
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
        let (name, length) = (pair.name(), pair.long);
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
    let length = best.long;
    let long = match best.echoes[LONG_ECHO] {
        Some(long) => format!("{length} bytes in {}", micros(long)),
        None => format!("{length} bytes do not pass: a smaller MTU on the path"),
    };
    let (name, short) = (best.name(), micros(time));
    Ok(NodePath {
        interface: best.interface.clone(),
        peer: best.peer.addr,
        round_trip: Duration::from_nanos(time),
        reason: format!("{name}{place}: EDP echo in {short}, {long}{others}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contract permits one second.
    #[test]
    fn a_probe_without_answers_is_bounded() {
        let long = ROUNDS.iter().sum::<Duration>();
        assert!(2 * long <= Duration::from_millis(700));
    }

    #[test]
    fn further_rounds_are_longer() {
        let millis = |number| round(number).as_millis();
        let all: Vec<u128> = (0..10).map(millis).collect();
        assert_eq!(all, [40, 60, 100, 150, 300, 600, 1200, 2000, 2000, 2000]);
        assert_eq!(round(usize::MAX), MAX_ROUND);
    }
}
