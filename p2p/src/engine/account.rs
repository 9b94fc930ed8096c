//! Bounded memory for unexpected messages: senders pay, receivers grant credit.
//!
//! Every envelope costs its sender [`cost`]. A sender starts with two windows of credit. The
//! envelope that completes a window requests credit, and the receiver returns the credit spent
//! since the last request. So a sender is never more than two windows ahead.
//!
//! A receiver whose memory fills up asks for RTS only: bodies stay with the sender until a receive
//! matches. Beyond that it delays its answer until there is room. Both apply only to peers that
//! hold more than their share. With limit L: RTS only above L/8, delayed answers above L/4, shares
//! of all peers L/8, windows at most L/4: never more than L in total.

use super::protocol::Protocol;
use crate::ids::PeerId;
use crate::wire::Header;

/// Cost of an envelope in addition to its body, in bytes: the bookkeeping of both sides.
const ENVELOPE: usize = 256;
/// Maximum window, in bytes. Two of them hold 64 messages of 16 KiB.
const MAX_WINDOW: usize = 1 << 20;
/// Minimum window, in bytes.
const MIN_WINDOW: usize = 8 << 10;
/// Sum of the windows of all peers, in bytes, unless the minimum window makes it larger.
const WINDOWS: usize = 16 << 20;

/// Returns the cost of a message with `body` bytes. Receive buffers are at most a quarter longer
/// than the body.
#[inline]
pub(crate) fn cost(body: usize) -> usize {
    ENVELOPE + body + body / 4
}

/// Returns the window in a job of `size` ranks. It depends on nothing else, because both sides must
/// agree.
pub(crate) fn window(size: u32) -> u32 {
    let window = WINDOWS / (size as usize).saturating_sub(1).max(1);
    window.clamp(MIN_WINDOW, MAX_WINDOW) as u32
}

/// Window between endpoints, whose number is unknown.
pub(crate) const OPEN_WINDOW: u32 = 256 << 10;

/// Returns the maximum length of a body that may be sent eagerly: its cost fits into a window.
pub(crate) fn eager_limit(window: u32) -> usize {
    (window as usize - ENVELOPE) / 5 * 4
}

/// Returns the limit for unexpected messages in a job of `size` ranks: the configured one, or eight
/// windows for each peer if that is more.
pub(crate) fn limit(configured: usize, size: u32) -> usize {
    configured.max(windows(window(size), (size as usize).saturating_sub(1)))
}

/// Returns the limit as [`limit`] does, for an endpoint that has this many peers.
pub(crate) fn open_limit(configured: usize, peers: usize) -> usize {
    configured.max(windows(OPEN_WINDOW, peers))
}

fn windows(window: u32, peers: usize) -> usize {
    window as usize * 8 * peers
}

/// Credit in both directions of one peer.
#[derive(Debug, Default)]
pub(crate) struct Account {
    window: u32,
    /// Outgoing: credit that may still be spent.
    credit: u32,
    /// Outgoing: credit spent since the last request for credit.
    spent: u32,
    /// Incoming: credit that the peer has spent since its last request.
    heard: u32,
    /// Incoming: credit that the peer has requested and not received.
    pub(super) owed: u32,
    /// Cost of the peer's unexpected messages.
    pub(crate) held: usize,
    /// Number of the peer's unexpected messages.
    pub(crate) waiting: usize,
    /// The peer was asked to send RTS only.
    pub(super) pressed: bool,
    /// It is counted among the peers that are held back.
    counted: bool,
}

impl Account {
    pub(crate) fn new(window: u32) -> Account {
        Account {
            window,
            credit: window * 2,
            ..Account::default()
        }
    }

    /// Returns true if the credit covers an envelope of this cost.
    #[inline]
    pub(crate) fn can_pay(&self, cost: usize) -> bool {
        cost <= self.credit as usize
    }

    /// Returns true if an envelope of this cost must request credit.
    #[inline]
    pub(crate) fn asks(&self, cost: usize) -> bool {
        self.spent as usize + cost >= self.window as usize
    }

    /// Charges an envelope that was sent. [`can_pay`](Account::can_pay) was true.
    #[inline]
    pub(crate) fn pay(&mut self, cost: usize) {
        debug_assert!(self.can_pay(cost));
        let asks = self.asks(cost);
        let cost = cost as u32;
        self.credit = self.credit.saturating_sub(cost);
        self.spent = if asks { 0 } else { self.spent + cost };
    }

    /// Records an envelope that arrived. Returns false if it was sent without credit.
    #[inline]
    pub(crate) fn hear(&mut self, cost: usize, asks: bool) -> bool {
        let limit = self.window as usize * 2;
        let sum = self.heard as usize + self.owed as usize + cost;
        if sum > limit {
            return false;
        }
        self.heard += cost as u32;
        if asks {
            self.owed += std::mem::take(&mut self.heard);
        }
        true
    }

    /// Ends the account of a failed peer. Returns true if it was counted as held back.
    pub(crate) fn close(&mut self) -> bool {
        (self.pressed, self.owed) = (false, 0);
        std::mem::take(&mut self.counted)
    }

    /// Returns true if the peer waits for an answer or may send only RTS.
    pub(super) fn is_held_back(&self) -> bool {
        self.pressed || self.owed != 0
    }

    /// Adds credit from the peer. Returns false if it is more than was spent.
    pub(super) fn receive(&mut self, amount: u32) -> bool {
        let sum = self.credit.checked_add(amount);
        let Some(credit) = sum.filter(|credit| *credit <= self.window * 2 - self.spent) else {
            return false;
        };
        self.credit = credit;
        true
    }
}

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
        let before = self.stats.unexpected_bytes;
        self.stats.unexpected_bytes = before.saturating_sub(cost);
        let account = &mut self.peers[peer].account;
        account.held = account.held.saturating_sub(cost);
        account.waiting = account.waiting.saturating_sub(1);
        let (back, last) = (account.is_held_back(), account.waiting == 0);
        if back {
            self.settle(peer);
        }
        if last && self.open.is_some() {
            self.forget_stranger(peer);
        }
        // Other peers may wait for room; all are visited when the total falls below a limit of
        // `settle`.
        let now = self.stats.unexpected_bytes;
        let passes = |mark| before > mark && now <= mark;
        if self.held_back != 0 && (passes(self.limit / 4) || passes(self.limit / 16)) {
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
        let sharers = match &self.open {
            Some(open) => open.sharers(),
            None => (self.peers.size() as usize).saturating_sub(1),
        };
        let share = limit / 16 / sharers.max(1);
        let state = &mut self.peers[peer];
        if !state.alive || state.own {
            return;
        }
        let account = &mut state.account;
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
        let back = account.is_held_back();
        match (std::mem::replace(&mut account.counted, back), back) {
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
                "returns {amount} bytes of credit, more than was spent"
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// A sender that follows the protocol is never refused and never stuck.
    #[test]
    fn sender_and_receiver_agree() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let window = [MIN_WINDOW as u32, 100_000, MAX_WINDOW as u32][random.below(3) as usize];
            let (mut sender, mut receiver) = (Account::new(window), Account::new(window));
            let mut sent = 0;
            for _ in 0..3000 {
                let body = if random.below(3) == 0 {
                    random.below(eager_limit(window) as u32 + 1)
                } else {
                    random.below(64)
                };
                let price = cost(body as usize);
                assert!(price <= window as usize);
                if sender.can_pay(price) {
                    let asks = sender.asks(price);
                    sender.pay(price);
                    assert!(receiver.hear(price, asks), "seed {seed}");
                    sent += 1;
                } else {
                    assert_ne!(receiver.owed, 0, "seed {seed}: stuck after {sent}");
                }
                if random.below(4) == 0 && receiver.owed != 0 {
                    let owed = std::mem::take(&mut receiver.owed);
                    assert!(sender.receive(owed), "seed {seed}");
                    assert!(!sender.receive(window * 2 + 1 - sender.credit - sender.spent));
                }
            }
            assert!(sent > 100);
        }
    }

    #[test]
    fn sending_without_credit_is_detected() {
        let mut receiver = Account::new(MAX_WINDOW as u32);
        let mut bytes = 0;
        while receiver.hear(cost(1000), false) {
            bytes += cost(1000);
        }
        assert!(bytes <= MAX_WINDOW * 2);
    }

    #[test]
    fn windows_and_limits_fit() {
        for size in [1, 2, 3, 10, 1000, 100_000] {
            let window = window(size);
            assert!(cost(eager_limit(window)) <= window as usize);
            let limit = limit(0, size);
            assert!(limit / 4 >= window as usize * 2 * (size as usize - 1));
        }
    }
}
