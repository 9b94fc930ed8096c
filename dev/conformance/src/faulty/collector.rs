//! The handler of the wrapped transport's events: holds them back, spoils headers, loses peers.

use super::state::{Held, State};
use btl::{Events, PeerError, Rank, Tx};

/// Handler of the wrapped transport's events.
pub(super) struct Collector<'a> {
    pub(super) state: &'a mut State,
}

impl Events for Collector<'_> {
    fn message(&mut self, _: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        self.state.count(peer);
        if self.state.peers.get(&peer).is_some_and(|known| known.cut) {
            return;
        }
        let event = Held::Message(self.state.spoil(header), body.to_vec());
        self.state.hold(peer, event);
    }

    fn completed(&mut self, _: &mut dyn Tx, token: u64, result: Result<(), PeerError>) {
        if let Some(peer) = self.state.tokens.remove(&token) {
            self.state.hold(peer, Held::Completed(token, result));
        }
    }

    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        let known = self.state.peers.entry(peer).or_default();
        if !known.cut {
            known.gone = Some(error.clone());
            known.out.clear();
            self.state.hold(peer, Held::Failed(error));
        }
    }
}
