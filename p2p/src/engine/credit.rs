//! Bounded memory for unexpected messages: senders pay, receivers grant credit.
//!
//! Every envelope costs its sender [`cost`](super::account::cost). A sender starts with two windows
//! of credit. The envelope that completes a window requests credit, and the receiver returns what
//! was spent since the last request. So a sender is never more than two windows ahead.
//!
//! A receiver whose memory fills up asks for RTS only: bodies stay with the sender until a receive
//! matches. Beyond that it delays its answer until there is room. Both apply only to peers that
//! hold more than their share. With limit L: RTS only from L/8 on, delayed answers from L/4 on,
//! shares of all peers L/8, windows at most L/4: never more than L in total.

use super::protocol::Protocol;
use crate::ids::PeerId;
use crate::wire::Header;

impl Protocol {
    /// Accounts for an unexpected message of this peer.
    pub(crate) fn charge(&mut self, peer: PeerId, cost: usize) {
        self.stats.unexpected_bytes += cost;
        self.stats.unexpected_peak = self.stats.unexpected_peak.max(self.stats.unexpected_bytes);
        let account = &mut self.peers[peer].account;
        account.held += cost;
        account.waiting += 1;
    }

    /// Reverses [`charge`](Protocol::charge) when the message was received or discarded.
    pub(crate) fn release(&mut self, peer: PeerId, cost: usize) {
        self.stats.unexpected_bytes = self.stats.unexpected_bytes.saturating_sub(cost);
        let account = &mut self.peers[peer].account;
        account.held = account.held.saturating_sub(cost);
        account.waiting = account.waiting.saturating_sub(1);
        if account.is_held_back() {
            self.settle(peer);
        }
        // Another peer may wait for the room. Checked only while one is held back: it visits all.
        if self.held_back != 0 && self.stats.unexpected_bytes < self.limit / 8 {
            self.settle_all();
        }
    }

    #[cold]
    fn settle_all(&mut self) {
        for peer in self.peers.ids() {
            self.settle(peer);
        }
    }

    /// Answers a peer's request for credit, or lifts RTS-only mode, as the memory allows.
    #[cold]
    pub(crate) fn settle(&mut self, peer: PeerId) {
        let (total, limit) = (self.stats.unexpected_bytes, self.limit);
        let share = limit / 16 / (self.peers.size() as usize).saturating_sub(1).max(1);
        let state = &mut self.peers[peer];
        if !state.alive || state.own {
            return;
        }
        let account = &mut state.account;
        let was_back = account.is_held_back();
        let press = if account.pressed {
            total > limit / 16 && account.held > share / 2
        } else {
            total > limit / 8 && account.held > share
        };
        let hold = total > limit / 4 && account.held > share * 2;
        let newly = press && !account.pressed;
        let mut answer = None;
        if account.owed != 0 && !hold {
            answer = Some(Header::Credit {
                amount: std::mem::take(&mut account.owed),
                rts_only: press,
            });
            account.pressed = press;
        } else if account.pressed && !press {
            answer = Some(Header::Credit {
                amount: 0,
                rts_only: false,
            });
            account.pressed = false;
        }
        match (was_back, account.is_held_back()) {
            (false, true) => self.held_back += 1,
            (true, false) => self.held_back = self.held_back.saturating_sub(1),
            _ => {}
        }
        self.stats.pressed += u64::from(newly);
        if let Some(header) = answer {
            self.control(peer, header);
        }
    }

    /// Handles CREDIT.
    pub(crate) fn credit(
        &mut self,
        peer: PeerId,
        amount: u32,
        rts_only: bool,
    ) -> Result<(), String> {
        let state = &mut self.peers[peer];
        if !state.account.receive(amount) {
            return Err(format!(
                "gives back {amount} bytes of credit, more than was spent"
            ));
        }
        self.stats.pressed_by_peers += u64::from(rts_only && !state.rts_only);
        state.rts_only = rts_only;
        state.refresh();
        if !state.queue.is_empty() {
            self.activate(peer);
        }
        Ok(())
    }
}
