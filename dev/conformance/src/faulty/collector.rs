//! The handler of the wrapped transport's events: holds them back, spoils headers, loses peers.

use super::state::{Held, State};
use super::tx::FaultyTx;
use btl::{Envelope, Events, PeerError, Rank, Tx};

/// Handler of the wrapped transport's events.
pub(super) struct Collector<'a> {
    pub(super) state: &'a mut State,
    pub(super) events: &'a mut dyn Events,
}

impl Events for Collector<'_> {
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        self.state.count(peer);
        if self.state.peers.get(&peer).is_some_and(|known| known.cut) {
            return;
        }
        let event = Held::Message(self.state.spoil(header), body.to_vec());
        if self.state.matched {
            // After the return the sender counts the message as seen.
            FaultyTx {
                tx,
                state: self.state,
            }
            .report(self.events, peer, event);
        } else {
            self.state.hold(peer, event);
        }
    }

    fn completed(&mut self, _: &mut dyn Tx, token: u64, result: Result<(), PeerError>) {
        if let Some(peer) = self.state.tokens.remove(&token) {
            self.state.hold(peer, Held::Completed(token, result));
        }
    }

    fn received(
        &mut self,
        _: &mut dyn Tx,
        token: u64,
        peer: Rank,
        envelope: Envelope,
        result: Result<usize, PeerError>,
    ) {
        // Reported for a cut peer, too: the bytes are already in the buffer. If the failure of the
        // peer was reported before, the poster regains the buffer by withdrawing, and only the
        // event is lost.
        if self
            .state
            .peers
            .get(&peer)
            .is_none_or(|known| known.gone.is_none())
        {
            self.state
                .hold(peer, Held::Received(token, envelope, result));
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
