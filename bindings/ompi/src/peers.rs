//! Peers: what they have published, by which interfaces they can be reached, and what is said about it.
//!
//! Each own interface takes one of the peer's: the one of the same name if that answers, else the next that does, counted from its own number
//! on, so that several spread over the peer's.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use btl::{Btl, PeerError, PendingPeers, Rank};
use btl_eth::EthBtl;
use btl_eth::card::Card;

use crate::blob::Blob;
use crate::core::Core;
use crate::ffi;
use crate::rail::{Rail, Seat, Way};
use crate::setup::Setup;
use crate::turn::Refused;

/// How long somebody who brings a peer waits for the transport. Longer only when the thread that has it waits for a lock of the caller's.
const PATIENCE: Duration = Duration::from_millis(50);

/// What is known of the job and its peers.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) setup: Setup,
    /// The own interfaces, by rail.
    interfaces: Vec<String>,
    hosts: HashMap<Rank, String>,
    /// How peers are reached, by rail.
    ways: HashMap<Rank, Vec<Option<Seat>>>,
    /// Nodes of which it was said that they cannot be reached.
    complained: HashSet<String>,
    /// Ways of which it was said how they are.
    explained: HashSet<Way>,
    /// Connections of these are not taken.
    refused: HashSet<Way>,
    /// To be added as soon as somebody has the transport.
    joining: HashMap<Way, Vec<u8>>,
}

impl Book {
    pub(crate) fn new(setup: Setup, interfaces: Vec<String>) -> Book {
        Book {
            setup,
            interfaces,
            ..Book::default()
        }
    }

    /// The own interface of a rail.
    fn interface(&self, rail: usize) -> &str {
        self.interfaces.get(rail).map_or("?", String::as_str)
    }

    /// This process, on a rail.
    pub(crate) fn own(&self, rail: usize) -> String {
        let Setup { rank, host, .. } = &self.setup;
        format!(
            "rank {rank} on node {host}, interface {},",
            self.interface(rail)
        )
    }
}

/// Numbers of a peer's interfaces in the order in which an own one asks them.
fn order(own: &str, rail: usize, theirs: &[Option<String>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..theirs.len()).collect();
    if !order.is_empty() {
        order.rotate_left(rail % theirs.len());
    }
    order.sort_by_key(|number| theirs[*number].as_deref() != Some(own));
    order
}

/// What came of asking for a peer.
enum Asked {
    Reached,
    No(String),
    /// Whoever has the transport may be waiting for a lock of the caller's.
    Later,
}

impl Core {
    /// Brings a peer, with what it has published. Which of its seats the rail takes; none: it is not reached so, and why was said.
    pub(crate) fn add(&self, rail: usize, peer: Rank, bytes: &[u8]) -> Option<Way> {
        let known = self.book().as_ref()?.ways.get(&peer).cloned();
        let ways = match known {
            Some(ways) => ways,
            None => self.reach(peer, bytes),
        };
        ways.get(rail)
            .copied()
            .flatten()
            .map(|seat| Way { rail, seat })
    }

    /// The first way to a peer.
    pub(crate) fn any(&self, peer: Rank, bytes: &[u8]) -> Option<Way> {
        (0..self.used().len()).find_map(|rail| self.add(rail, peer, bytes))
    }

    fn reach(&self, peer: Rank, bytes: &[u8]) -> Vec<Option<Seat>> {
        let Some(cards) = self.cards(peer, bytes) else {
            return Vec::new();
        };
        let named = |card: &Vec<u8>| {
            Card::decode(card)
                .ok()?
                .interfaces
                .into_iter()
                .next()
                .map(|first| first.name)
        };
        let theirs: Vec<_> = cards.iter().map(named).collect();
        let (mut ways, mut reasons) = (Vec::new(), Vec::new());
        for rail in self.used() {
            let own = self
                .book()
                .as_ref()
                .map(|book| book.interface(rail.number).to_owned())
                .unwrap_or_default();
            let (mut found, before) = (None, reasons.len());
            for number in order(&own, rail.number, &theirs) {
                let (Some(seat), Some(card)) = (Seat::new(peer, number), cards.get(number)) else {
                    continue;
                };
                match self.bring(rail, seat, card) {
                    Asked::Reached => found = Some(seat),
                    // That it can be reached is likely.
                    Asked::Later => {
                        if let Some(book) = self.book().as_mut() {
                            book.joining.insert(rail.way(seat.0), card.clone());
                        }
                        rail.joining.store(true, Ordering::SeqCst);
                        found = Some(seat);
                    }
                    Asked::No(reason) => reasons.push(reason),
                }
                if found.is_some() {
                    break;
                }
            }
            if found.is_none() {
                self.explain_none(rail.number, peer, &reasons[before..].join("; "));
            }
            ways.push(found);
        }
        if ways.iter().all(Option::is_none) {
            self.complain(peer, &reasons.join("; "));
        } else if let Some(book) = self.book().as_mut() {
            // Who is not reached may be asked for again.
            book.ways.insert(peer, ways.clone());
        }
        ways
    }

    fn bring(&self, rail: &Rail, seat: Seat, card: &[u8]) -> Asked {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.with(rail, |transport| self.join(rail, transport, seat, card)) {
                Ok(Ok(())) => return Asked::Reached,
                Ok(Err(reason)) => return Asked::No(reason),
                Err(Refused::None) => return Asked::No("this process has left the job".into()),
                Err(Refused::Taken) if Instant::now() < deadline => std::thread::yield_now(),
                Err(Refused::Taken) => return Asked::Later,
            }
        }
    }

    fn cards(&self, peer: Rank, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        match Blob::decode(bytes) {
            Ok(Blob { host, cards }) => {
                if let Some(book) = self.book().as_mut() {
                    book.hosts.insert(peer, host);
                }
                cards.map_err(|words| self.complain(peer, &words)).ok()
            }
            Err(words) => {
                self.complain(peer, &words);
                None
            }
        }
    }

    fn join(
        &self,
        rail: &Rail,
        transport: &mut EthBtl,
        seat: Seat,
        card: &[u8],
    ) -> Result<(), String> {
        match transport.add_peer(seat.0, card) {
            Ok(path) if path.max_send < transport.max_send() => Err(format!(
                "it takes messages of {} bytes, this side sends {}; set btl_esp_eager_limit, btl_esp_max_send_size and btl_esp_rings alike on all nodes",
                path.max_send,
                transport.max_send()
            )),
            Ok(path) => {
                self.explain(rail.way(seat.0), &path.reason);
                Ok(())
            }
            Err(unreachable) => {
                let words = unreachable.reason;
                let prefix = format!("rank {} over Ethernet: ", seat.0);
                Err(words.strip_prefix(&prefix).unwrap_or(&words).to_owned())
            }
        }
    }

    /// `rank 3 on node host3`.
    pub(crate) fn name(&self, peer: Rank) -> String {
        let book = self.book();
        match book.as_ref().and_then(|book| book.hosts.get(&peer)) {
            Some(host) => format!("rank {peer} on node {host}"),
            None => format!("rank {peer}"),
        }
    }

    fn explain(&self, way: Way, reason: &str) {
        let to = self.name(way.seat.peer());
        let mut book = self.book();
        let Some(book) = book.as_mut().filter(|book| book.setup.verbose) else {
            return;
        };
        if !book.explained.insert(way) {
            return;
        }
        let setup = &book.setup;
        let reason = reason
            .strip_suffix("; bandwidth by configuration")
            .unwrap_or(reason);
        ffi::say(&format!(
            "esp: rank {} on node {} to {to}: {reason}",
            setup.rank, setup.host
        ));
    }

    /// An interface does not reach a peer; others may.
    fn explain_none(&self, rail: usize, peer: Rank, reason: &str) {
        let to = self.name(peer);
        let own = self
            .book()
            .as_ref()
            .filter(|book| book.setup.verbose)
            .map(|book| book.own(rail));
        if let Some(own) = own {
            ffi::say(&format!("esp: {own} not to {to}: {reason}"));
        }
    }

    /// Once for each node.
    fn complain(&self, peer: Rank, reason: &str) {
        let to = self.name(peer);
        let (rank, host) = {
            let mut book = self.book();
            let Some(book) = book.as_mut() else { return };
            let host = book.hosts.get(&peer).cloned().unwrap_or_default();
            let heard = !book.complained.insert(host) && !book.setup.verbose;
            if heard || !(book.setup.verbose || book.setup.loud) {
                return;
            }
            (book.setup.rank, book.setup.host.clone())
        };
        ffi::say(&format!(
            "esp: rank {rank} on node {host} does not reach {to} by ESP: {reason}"
        ));
        ffi::help(c"unreachable");
    }

    pub(crate) fn is_joining(&self, way: Way) -> bool {
        self.rails
            .get(way.rail)
            .is_some_and(|rail| rail.joining.load(Ordering::SeqCst))
            && self
                .book()
                .as_ref()
                .is_some_and(|book| book.joining.contains_key(&way))
    }

    pub(crate) fn let_join(&self, rail: &Rail, transport: &mut EthBtl) {
        rail.joining.store(false, Ordering::SeqCst);
        let mut joining = Vec::new();
        if let Some(book) = self.book().as_mut() {
            joining.extend(book.joining.extract_if(|way, _| way.rail == rail.number));
        }
        for (way, card) in joining {
            if let Err(reason) = self.join(rail, transport, way.seat, &card) {
                let words = format!("it was to be reached by ESP and cannot be: {reason}");
                rail.turn
                    .lend(transport, || self.lose(way, &PeerError::Lost(words)));
            }
        }
    }

    /// A peer has connected before this process had any reason to know it, or by another way than this process takes.
    pub(crate) fn meet(&self, rail: &Rail, transport: &mut EthBtl, seat: Seat) {
        let way = rail.way(seat.0);
        let refused = self
            .book()
            .as_ref()
            .is_none_or(|book| book.refused.contains(&way));
        let card = ffi::blob(seat.peer())
            .filter(|_| !refused)
            .and_then(|bytes| {
                self.cards(seat.peer(), &bytes)?
                    .into_iter()
                    .nth(seat.interface())
            });
        let reason = match card {
            Some(card) => match self.join(rail, transport, seat, &card) {
                Ok(()) => return,
                Err(reason) => reason,
            },
            None => "what it published has no such interface".to_owned(),
        };
        // It would wait for ever, and others behind it.
        transport.refuse(
            seat.0,
            "that process does not reach this one, as this one told",
        );
        if let Some(book) = self.book().as_mut() {
            book.refused.insert(way);
        }
        if !refused {
            self.complain(seat.peer(), &reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn the_same_name_is_asked_first_and_several_spread() {
        let theirs = ["a", "b", "c"].map(|name| Some(name.to_owned()));
        assert_eq!(order("a", 0, &theirs), [0, 1, 2]);
        assert_eq!(order("c", 0, &theirs), [2, 0, 1]);
        assert_eq!(order("x", 1, &theirs), [1, 2, 0]);
        assert_eq!(order("a", 1, &theirs), [0, 1, 2]);
        assert_eq!(order("x", 4, &[None, Some("b".into())]), [0, 1]);
        assert!(order("x", 1, &[]).is_empty());
    }
}
