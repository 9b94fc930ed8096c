//! The events of a rank, and the invariants that every transport must keep at all times.

use std::collections::{BTreeMap, VecDeque};

use super::run::Event;
use super::stream::Streams;
use btl::{Events, MAX_HEADER, PeerError, Rank, Tx};

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// Rank of the sender.
    pub peer: Rank,
    /// Header of the message.
    pub header: Vec<u8>,
    /// Body of the message.
    pub body: Vec<u8>,
}

/// Events of a rank, and the first violation of the contract.
#[derive(Debug, Default)]
pub struct Log {
    /// Messages not yet consumed by the case, oldest first. Stream messages are checked and counted
    /// instead.
    pub messages: VecDeque<Got>,
    /// Completions not yet consumed by the case.
    pub completed: Vec<(u64, Result<(), PeerError>)>,
    /// Failures, in order.
    pub failed: Vec<(Rank, PeerError)>,
    /// Number of events.
    pub events: usize,
    pub(super) size: u32,
    pub(super) streams: Streams,
    /// Pending operations and their peers.
    pub(super) pending: BTreeMap<u64, Rank>,
    pub(super) max_send: usize,
    pub(super) broken: Option<String>,
}

impl Log {
    pub(super) fn blame(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// Returns the reported failure of a peer.
    #[must_use]
    pub fn failure(&self, peer: Rank) -> Option<&PeerError> {
        self.failed
            .iter()
            .find(|(rank, _)| *rank == peer)
            .map(|(_, error)| error)
    }

    fn from(&mut self, peer: Rank, what: &str) {
        self.events += 1;
        if peer >= self.size {
            self.blame(format!("{what} from rank {peer}, which is not in this job"));
        }
        if self.failure(peer).is_some() {
            self.blame(format!(
                "{what} from rank {peer} after its failure was reported"
            ));
        }
    }

    fn message(&mut self, peer: Rank, header: &[u8], body: &[u8]) {
        self.from(peer, "a message");
        if header.len() > MAX_HEADER || header.len() + body.len() > self.max_send {
            self.blame(format!(
                "a message of {} + {} bytes",
                header.len(),
                body.len()
            ));
        }
        match self.streams.check(peer, header, body) {
            Some(Ok(())) => {}
            Some(Err(wrong)) => self.blame(wrong),
            None => self.messages.push_back(Got {
                peer,
                header: header.to_vec(),
                body: body.to_vec(),
            }),
        }
    }

    fn completed(&mut self, token: u64, result: Result<(), PeerError>) {
        self.events += 1;
        match self.pending.remove(&token) {
            None => self.blame(format!(
                "completion of token {token}, which is not pending: {result:?}"
            )),
            Some(peer) => self.from(peer, "a completion"),
        }
        self.completed.push((token, result));
    }

    fn failed(&mut self, peer: Rank, error: PeerError) {
        self.from(peer, "a failure");
        let left: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, of)| **of == peer)
            .map(|(token, _)| *token)
            .collect();
        if !left.is_empty() {
            self.blame(format!(
                "rank {peer} failed while its tokens {left:?} were pending"
            ));
        }
        self.failed.push((peer, error));
    }
}

/// Event handler that logs each event and passes it to the case.
pub(super) struct Tap<'a> {
    pub(super) log: &'a mut Log,
    pub(super) watch: &'a mut dyn FnMut(&mut dyn Tx, Event<'_>),
}

impl Events for Tap<'_> {
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        self.log.message(peer, header, body);
        (self.watch)(tx, Event::Message(peer, header, body));
    }

    fn completed(&mut self, tx: &mut dyn Tx, token: u64, result: Result<(), PeerError>) {
        self.log.completed(token, result);
        (self.watch)(tx, Event::Completed(token));
    }

    fn failed(&mut self, tx: &mut dyn Tx, peer: Rank, error: PeerError) {
        self.log.failed(peer, error);
        (self.watch)(tx, Event::Failed(peer));
    }
}
