//! Events of the transport, with faults.

use btl::{Events, PeerError, Rank, Tx};

use super::{Break, MutantTx, State};

/// Spoils the events of the inner transport.
pub(super) struct Spoiler<'a> {
    pub(super) state: &'a mut State,
    pub(super) events: &'a mut dyn Events,
}

impl Spoiler<'_> {
    fn mutant<'b>(state: &'b mut State, tx: &'b mut dyn Tx) -> MutantTx<'b> {
        MutantTx { tx, state }
    }
}

impl Events for Spoiler<'_> {
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        let mut from = peer;
        match self.state.fault {
            Break::ServesFew if peer > 3 => return,
            Break::MixesUpPeers if self.state.peers.len() > 2 => from = (peer + 1) % 3,
            Break::MessageAfterFailure if peer == 2 => {
                let held = self
                    .state
                    .last
                    .insert(peer, (header.to_vec(), body.to_vec()));
                if let Some((header, body)) = held {
                    self.events
                        .message(&mut Self::mutant(self.state, tx), peer, &header, &body);
                }
                return;
            }
            _ => {}
        }
        self.state.inside = true;
        self.events
            .message(&mut Self::mutant(self.state, tx), from, header, body);
        self.state.inside = false;
    }

    fn completed(&mut self, tx: &mut dyn Tx, token: u64, result: Result<(), PeerError>) {
        let mut tx = Self::mutant(self.state, tx);
        match tx.state.fault {
            Break::NeverCompletes => return,
            Break::CompletesTwice if token % 8 == 3 => {
                self.events.completed(&mut tx, token, result.clone());
            }
            Break::ForgetsCompletion if result.is_err() => return,
            Break::FailsBeforeCompletion if result.is_err() => {
                return tx.state.completed.push((token, result));
            }
            _ => {}
        }
        self.events.completed(&mut tx, token, result);
    }

    fn failed(&mut self, tx: &mut dyn Tx, peer: Rank, mut error: PeerError) {
        let mut tx = Self::mutant(self.state, tx);
        match tx.state.fault {
            Break::NeverFails => return,
            Break::LeftIsDied if error == PeerError::Left => error = PeerError::Died,
            Break::DiedIsLeft if error == PeerError::Died => error = PeerError::Left,
            Break::FailsTwice => self.events.failed(&mut tx, peer, error.clone()),
            Break::AllFail => {
                for other in tx.state.peers.clone() {
                    if other != peer && tx.state.reported.insert(other) {
                        self.events.failed(&mut tx, other, error.clone());
                    }
                }
                if !tx.state.reported.insert(peer) {
                    return;
                }
            }
            _ => {}
        }
        self.events.failed(&mut tx, peer, error);
        for (token, result) in std::mem::take(&mut tx.state.completed) {
            self.events.completed(&mut tx, token, result);
        }
        if let Some((header, body)) = tx.state.last.remove(&peer) {
            self.events.message(&mut tx, peer, &header, &body);
        }
    }
}
