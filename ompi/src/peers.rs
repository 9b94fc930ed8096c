//! Peers: what they have published, whether they can be reached, and what is said about it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use btl::{Btl, PeerError, Rank};
use btl_eth::EthBtl;

use crate::blob::Blob;
use crate::core::Core;
use crate::ffi;
use crate::setup::Setup;
use crate::turn::Refused;

/// How long somebody who brings a peer waits for the transport. Longer only when the thread that has it waits for a lock of the caller's.
const PATIENCE: Duration = Duration::from_millis(50);

/// What is known of the job and its peers.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) setup: Setup,
    hosts: HashMap<Rank, String>,
    /// Nodes of which it was said that they cannot be reached.
    complained: HashSet<String>,
    /// Peers of which it was said how they are reached.
    explained: HashSet<Rank>,
    /// Peers that connected and cannot be reached.
    refused: HashSet<Rank>,
    /// Peers to be added as soon as somebody has the transport.
    joining: HashMap<Rank, Vec<u8>>,
}

impl Book {
    pub(crate) fn new(setup: Setup) -> Book {
        Book { setup, ..Book::default() }
    }
}

impl Core {
    /// Brings a peer, with what it has published. False: it cannot be reached, and why was said.
    pub(crate) fn add(&self, peer: Rank, bytes: &[u8]) -> bool {
        let Some(card) = self.card(peer, bytes) else { return false };
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.with(|transport| self.join(transport, peer, &card)) {
                Ok(added) => return added,
                Err(Refused::None) => return false,
                Err(Refused::Taken) if Instant::now() < deadline => std::thread::yield_now(),
                Err(Refused::Taken) => break,
            }
        }
        // Whoever has the transport may be waiting for a lock of the caller's. It will be asked then; that it can be reached is likely.
        if let Some(book) = self.book().as_mut() {
            book.joining.insert(peer, card);
        }
        self.joining.store(true, Ordering::SeqCst);
        true
    }

    fn card(&self, peer: Rank, bytes: &[u8]) -> Option<Vec<u8>> {
        match Blob::decode(bytes) {
            Ok(Blob { host, card }) => {
                if let Some(book) = self.book().as_mut() {
                    book.hosts.insert(peer, host);
                }
                card.map_err(|words| self.complain(peer, &words)).ok()
            }
            Err(words) => {
                self.complain(peer, &words);
                None
            }
        }
    }

    fn join(&self, transport: &mut EthBtl, peer: Rank, card: &[u8]) -> bool {
        match transport.add_peer(peer, card) {
            Ok(path) if path.max_send < transport.max_send() => {
                let words = format!(
                    "it takes messages of {} bytes, this side sends {}; set btl_esp_eager_limit, btl_esp_max_send_size and btl_esp_rings alike on all nodes",
                    path.max_send,
                    transport.max_send()
                );
                self.complain(peer, &words);
                false
            }
            Ok(path) => {
                self.explain(peer, &path.reason);
                true
            }
            Err(unreachable) => {
                let words = unreachable.reason;
                let prefix = format!("rank {peer} over Ethernet: ");
                self.complain(peer, words.strip_prefix(&prefix).unwrap_or(&words));
                false
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

    fn explain(&self, peer: Rank, reason: &str) {
        let to = self.name(peer);
        let mut book = self.book();
        let Some(book) = book.as_mut().filter(|book| book.setup.verbose) else { return };
        if !book.explained.insert(peer) {
            return;
        }
        let setup = &book.setup;
        let reason = reason.strip_suffix("; bandwidth by configuration").unwrap_or(reason);
        ffi::say(&format!("esp: rank {} on node {} to {to}: {reason}", setup.rank, setup.host));
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
        ffi::say(&format!("esp: rank {rank} on node {host} does not reach {to} by ESP: {reason}"));
        ffi::help(c"unreachable");
    }

    pub(crate) fn is_joining(&self, peer: Rank) -> bool {
        self.joining.load(Ordering::SeqCst)
            && self.book().as_ref().is_some_and(|book| book.joining.contains_key(&peer))
    }

    pub(crate) fn let_join(&self, transport: &mut EthBtl) {
        let joining = self.book().as_mut().map(|book| std::mem::take(&mut book.joining)).unwrap_or_default();
        self.joining.store(false, Ordering::SeqCst);
        for (peer, card) in joining {
            if !self.join(transport, peer, &card) {
                let words = "it was to be reached by ESP and cannot be".to_owned();
                self.turn.lend(transport, || self.lose(peer, &PeerError::Lost(words)));
            }
        }
    }

    /// A peer has connected before this process had any reason to know it.
    pub(crate) fn meet(&self, transport: &mut EthBtl, peer: Rank) {
        if self.book().as_ref().is_none_or(|book| book.refused.contains(&peer)) {
            return;
        }
        let card = ffi::blob(peer).and_then(|bytes| self.card(peer, &bytes));
        let added = card.is_some_and(|card| self.join(transport, peer, &card));
        if !added && let Some(book) = self.book().as_mut() {
            book.refused.insert(peer);
        }
    }
}
