//! Which pair of interfaces leads to a node: found out by EDP echo, never guessed (CSR-06-06, section 3: "a special EDP ping to
//! determine node reachability").
//!
//! Each own interface asks each address of the peer's card. A pair is usable when a short echo comes back; among the usable ones
//! those count first where an echo of full size comes back too, then the shorter round trip. All of it takes at most
//! 0.7 s, where nobody answers; a node is asked once, whatever the number of its ranks.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use esp_client::control::InterfaceInfo;
use esp_client::{Client, EdpKind, EdpSocket, EspError, MacAddr, monotonic_nanos};

use crate::card::{Card, CardInterface};

/// How long each round waits for the first answer. Later ones are for nodes that are slow to wake, and for lost frames.
const ROUNDS: [Duration; 4] = [
    Duration::from_millis(40),
    Duration::from_millis(60),
    Duration::from_millis(100),
    Duration::from_millis(150),
];
/// How long a round waits for the slower ones behind the first.
const GRACE: Duration = Duration::from_millis(10);
/// Between looks; round trips are measured by the engine's time stamps.
const LOOK: Duration = Duration::from_micros(50);
/// Bytes of a short echo.
const SHORT: usize = 16;
/// Behind the EtherType, besides the echo's body: header and control byte.
const AROUND: usize = 11 + 1;

/// How a node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Own interface.
    pub(crate) interface: String,
    /// The node's address there.
    pub(crate) peer: MacAddr,
    /// Of a short echo.
    pub(crate) round_trip: Duration,
    /// For people.
    pub(crate) reason: String,
}

/// The own interfaces, and what is known of other nodes.
#[derive(Debug)]
pub(crate) struct Prober {
    sockets: Vec<EdpSocket>,
    sequence: u16,
    known: HashMap<(u64, Vec<MacAddr>), Result<Route, String>>,
}

/// A pair of interfaces under test.
struct Pair<'a> {
    socket: &'a EdpSocket,
    peer: &'a CardInterface,
    /// Number of the echo under way, and when it was sent.
    asked: (u16, u64),
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

    /// The way to the node of this card.
    pub(crate) fn route(&mut self, card: &Card, own_incarnation: u64) -> Result<Route, String> {
        let macs = card
            .interfaces
            .iter()
            .map(|interface| interface.mac)
            .collect();
        let node = (card.incarnation, macs);
        if let Some(known) = self.known.get(&node) {
            return known.clone();
        }
        let found = self.measure(card, own_incarnation);
        self.known.insert(node, found.clone());
        found
    }

    fn measure(&mut self, card: &Card, own_incarnation: u64) -> Result<Route, String> {
        let same_node = card.incarnation == own_incarnation;
        let own: Vec<MacAddr> = self.sockets.iter().map(EdpSocket::mac).collect();
        let mut pairs = Vec::new();
        for socket in &self.sockets {
            for peer in &card.interfaces {
                // An address of this node belongs to one interface, and to a peer on this node only.
                if own.contains(&peer.mac) && (!same_node || peer.mac != socket.mac()) {
                    continue;
                }
                pairs.push(Pair {
                    socket,
                    peer,
                    asked: (0, 0),
                    answered: false,
                    short: None,
                    long: None,
                });
            }
        }
        if pairs.is_empty() {
            return Err("its addresses are those of this node, but it is not on this node".into());
        }
        let mut sequence = self.sequence;
        ask_all(&mut pairs, &mut sequence, false);
        ask_all(&mut pairs, &mut sequence, true);
        self.sequence = sequence;
        judge(&pairs, same_node)
    }
}

/// Rounds of echoes, until each pair has answered or none of the others did for a while.
fn ask_all(pairs: &mut [Pair<'_>], sequence: &mut u16, long: bool) {
    for pair in pairs.iter_mut() {
        // Who does not answer a short one is not asked for a long one.
        pair.answered = long && pair.short.is_none();
    }
    let mut buffer = vec![0; 1 << 16];
    for patience in ROUNDS {
        if pairs.iter().all(|pair| pair.answered) {
            return;
        }
        for pair in pairs.iter_mut().filter(|pair| !pair.answered) {
            *sequence = sequence.wrapping_add(1);
            pair.asked = (*sequence, monotonic_nanos());
            let length = if long { pair.full() } else { SHORT };
            // What cannot be sent is not answered, which is what this is to find out.
            let _ = pair
                .socket
                .send_echo(pair.peer.mac, *sequence, &buffer[..length]);
        }
        let mut deadline = Instant::now() + patience;
        while Instant::now() < deadline && pairs.iter().any(|pair| !pair.answered) {
            if hear(pairs, &mut buffer, long) {
                deadline = deadline.min(Instant::now() + GRACE);
            } else {
                std::thread::sleep(LOOK);
            }
        }
        buffer.fill(0);
        // One pair is enough to go by; the silent ones had their time in this round and get one more each.
        if pairs
            .iter()
            .any(|pair| pair.answered && pair.short.is_some())
            && patience != ROUNDS[0]
        {
            return;
        }
    }
}

/// Takes the answers that have come; whether one did that was waited for.
fn hear(pairs: &mut [Pair<'_>], buffer: &mut [u8], long: bool) -> bool {
    let mut any = false;
    for at in 0..pairs.len() {
        let socket = pairs[at].socket;
        // Several pairs share a socket: what comes in belongs to the pair that asked. Strangers may write to it, too.
        for _ in 0..64 {
            let Ok((_, info)) = socket.try_recv_from(buffer) else {
                break;
            };
            let asker = pairs.iter_mut().find(|pair| {
                std::ptr::eq(pair.socket, socket)
                    && (info.kind, info.src, info.sequence)
                        == (EdpKind::EchoReply, pair.peer.mac, pair.asked.0)
                    && !pair.answered
            });
            let Some(pair) = asker else { continue };
            let expected = if long { pair.full() } else { SHORT };
            if info.len != expected {
                continue;
            }
            let time = info.received_nanos.saturating_sub(pair.asked.1).max(1);
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
    /// Body of an echo that fills a frame both can take.
    fn full(&self) -> usize {
        let theirs = usize::try_from(self.peer.mtu)
            .unwrap_or(0)
            .saturating_sub(AROUND);
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
            self.peer.mac
        )
    }
}

/// The best pair, with the story of all.
fn judge(pairs: &[Pair<'_>], same_node: bool) -> Result<Route, String> {
    let micros = |nanos: u64| format!("{}.{} µs", nanos / 1000, nanos % 1000 / 100);
    let rank = |pair: &Pair<'_>| (pair.long.is_none(), pair.short.unwrap_or(u64::MAX));
    let best = pairs
        .iter()
        .filter(|pair| pair.short.is_some())
        .min_by_key(|pair| rank(pair));
    let mut story = String::new();
    for pair in pairs {
        if best.is_some_and(|best| std::ptr::eq(best, pair)) {
            continue;
        }
        let _ = match (pair.short, pair.long) {
            (None, _) => write!(story, "; {}: no answer to an EDP echo", pair.name()),
            (Some(time), None) => {
                write!(
                    story,
                    "; {}: {}, but {} bytes do not pass",
                    pair.name(),
                    micros(time),
                    pair.full()
                )
            }
            (Some(time), Some(_)) => write!(story, "; {}: {}", pair.name(), micros(time)),
        };
    }
    let Some((best, time)) = best.and_then(|best| Some((best, best.short?))) else {
        let asked = story.trim_start_matches("; ");
        return Err(format!(
            "{asked}: no such node on this segment, its link is down, or no esp-daemon runs there (esping can tell)"
        ));
    };
    let place = if same_node {
        " (this node, through its daemon)"
    } else {
        ""
    };
    let long = match best.long {
        Some(long) => format!("{} bytes in {}", best.full(), micros(long)),
        None => format!(
            "{} bytes do not pass: a smaller MTU on the way",
            best.full()
        ),
    };
    let reason = format!(
        "{}{place}: EDP echo in {}, {long}{story}",
        best.name(),
        micros(time)
    );
    let round_trip = Duration::from_nanos(time);
    Ok(Route {
        interface: best.socket.interface().to_owned(),
        peer: best.peer.mac,
        round_trip,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_in_vain_is_bounded() {
        // Short echoes and long ones; the contract allows a second.
        assert!(ROUNDS.iter().sum::<Duration>() * 2 <= Duration::from_millis(700));
    }
}
