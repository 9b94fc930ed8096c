//! Bounded memory for unexpected messages: senders pay, receivers give credit.
//!
//! Every envelope costs its sender [`cost`]. A sender starts with two windows of credit. Having spent one, it asks (a flag on the envelope that spends it),
//! and the receiver gives back what was spent since the last question. So a question is answered once in hundreds of messages, and a sender that
//! computes is never more than two windows ahead.
//!
//! A receiver whose memory fills up answers *announce*: bodies stay with the sender until a receive wants them. Even fuller it does not answer at
//! all until there is room; the senders wait. Only peers that hold more than their share are treated so. A peer that sends
//! without credit breaks the protocol. All of it together, with limit L: an eighth before anybody is told to announce, a quarter before answers stop,
//! each peer's share (an eighth of L among them) and windows (at most a quarter of L): never more than L.

use btl::Rank;

use super::Engine;
use crate::wire::Header;

/// What an envelope costs beside its body: the bookkeeping of both sides.
const ENVELOPE: usize = 256;
/// Largest window, in bytes. Two of them hold 64 messages of 16 KiB, so that a sender of as many does not wait for a receiver that computes.
const WINDOW_MAX: usize = 1 << 20;
/// Smallest.
const WINDOW_MIN: usize = 8 << 10;
/// Shared by the windows of all peers.
const WINDOWS: usize = 16 << 20;

/// What a message with such a body costs: buffers are at most a quarter longer.
#[inline]
pub(crate) fn cost(body: usize) -> usize {
    ENVELOPE + body + body / 4
}

/// The window in a job of so many ranks. Both sides must agree, so it depends on nothing else.
pub(crate) fn window(size: u32) -> u32 {
    let window = WINDOWS / (size as usize).saturating_sub(1).max(1);
    u32::try_from(window.clamp(WINDOW_MIN, WINDOW_MAX)).unwrap_or(u32::MAX)
}

/// Longest body that may be sent at once: its cost fits into a window.
pub(crate) fn eager_limit(window: u32) -> usize {
    (window as usize - ENVELOPE) / 5 * 4
}

/// The limit that holds for a job of this size: the configured one, or eight windows for each peer.
pub(crate) fn limit(configured: usize, size: u32) -> usize {
    configured.max(window(size) as usize * 8 * (size as usize).saturating_sub(1))
}

/// Both directions of one peer.
#[derive(Debug)]
pub(crate) struct Account {
    window: u32,
    /// To it: what may still be spent, what was spent since the last question.
    credit: u32,
    spent: u32,
    /// From it: what was spent since its last question, what it asked back.
    heard: u32,
    owed: u32,
    /// What its unexpected messages cost.
    pub(crate) held: usize,
    /// Number of them.
    pub(crate) waiting: usize,
    /// It was told to announce.
    pressed: bool,
}

impl Account {
    pub(crate) fn new(window: u32) -> Account {
        Account {
            window,
            credit: window * 2,
            spent: 0,
            heard: 0,
            owed: 0,
            held: 0,
            waiting: 0,
            pressed: false,
        }
    }

    #[inline]
    pub(crate) fn can_pay(&self, cost: usize) -> bool {
        cost <= self.credit as usize
    }

    /// Whether an envelope of this cost has to carry the question.
    #[inline]
    pub(crate) fn asks(&self, cost: usize) -> bool {
        self.spent as usize + cost >= self.window as usize
    }

    /// After an envelope of this cost went out.
    #[inline]
    pub(crate) fn pay(&mut self, cost: usize) {
        // `can_pay` said so, and credit fits.
        let asks = self.asks(cost);
        let cost = cost as u32;
        self.credit = self.credit.saturating_sub(cost);
        self.spent = if asks { 0 } else { self.spent + cost };
    }

    /// An envelope came. False: it was sent without credit.
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

    /// The peer is gone. True: it was held back.
    pub(crate) fn close(&mut self) -> bool {
        let back = self.pressed || self.owed != 0;
        (self.pressed, self.owed) = (false, 0);
        back
    }

    /// Can so much be under way?
    pub(crate) fn is_possible(&self, cost: usize) -> bool {
        cost <= self.window as usize * 2
    }

    /// The peer gives credit. False: more than was spent.
    fn receive(&mut self, amount: u32) -> bool {
        let back = self.credit.checked_add(amount);
        let Some(credit) = back.filter(|credit| *credit <= self.window * 2 - self.spent) else {
            return false;
        };
        self.credit = credit;
        true
    }
}

impl Engine {
    /// An unexpected message of this peer is kept.
    pub(crate) fn charge(&mut self, rank: Rank, cost: usize) {
        self.stats.unexpected_bytes += cost;
        self.stats.unexpected_peak = self.stats.unexpected_peak.max(self.stats.unexpected_bytes);
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.account.held += cost;
            peer.account.waiting += 1;
        }
    }

    /// It is gone.
    pub(crate) fn release(&mut self, rank: Rank, cost: usize) {
        self.stats.unexpected_bytes = self.stats.unexpected_bytes.saturating_sub(cost);
        let Some(peer) = self.peers.get_mut(rank as usize) else {
            return;
        };
        let account = &mut peer.account;
        account.held = account.held.saturating_sub(cost);
        account.waiting = account.waiting.saturating_sub(1);
        if account.pressed || account.owed != 0 {
            self.settle(rank);
        }
        // Room made by one may be what another waits for; looked at seldom, for it means to look at all.
        if self.held_back != 0 && self.stats.unexpected_bytes < self.limit / 8 {
            self.settle_all();
        }
    }

    #[cold]
    fn settle_all(&mut self) {
        for rank in 0..self.size {
            self.settle(rank);
        }
    }

    /// Answers a peer's question, or takes back what it was told, as the memory allows.
    #[cold]
    pub(crate) fn settle(&mut self, rank: Rank) {
        let (total, limit) = (self.stats.unexpected_bytes, self.limit);
        let share = limit / 16 / (self.size as usize).saturating_sub(1).max(1);
        let Some(peer) = self.peers.get_mut(rank as usize) else {
            return;
        };
        if !peer.alive || peer.own {
            return;
        }
        let account = &mut peer.account;
        let was_back = account.pressed || account.owed != 0;
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
                announce: press,
            });
            account.pressed = press;
        } else if account.pressed && !press {
            answer = Some(Header::Credit {
                amount: 0,
                announce: false,
            });
            account.pressed = false;
        }
        let is_back = account.pressed || account.owed != 0;
        match (was_back, is_back) {
            (false, true) => self.held_back += 1,
            (true, false) => self.held_back = self.held_back.saturating_sub(1),
            _ => {}
        }
        self.stats.pressed += u64::from(newly);
        if let Some(header) = answer {
            self.control(rank, header);
        }
    }

    /// The peer gives credit, and says how it wants messages.
    pub(crate) fn credit(&mut self, rank: Rank, amount: u32, announce: bool) -> Result<(), String> {
        let Some(peer) = self.peers.get_mut(rank as usize) else {
            return Ok(());
        };
        if !peer.account.receive(amount) {
            return Err(format!(
                "gives back {amount} bytes of credit, more than was spent"
            ));
        }
        if peer.keeps_too_much() {
            return Err("confirms nothing of what it is sent".to_owned());
        }
        self.stats.pressed_by_peers += u64::from(announce && !peer.announce_only);
        peer.announce_only = announce;
        peer.refresh();
        if !peer.queue.is_empty() {
            self.activate(rank);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Whatever is sent, a sender that keeps to the rules is never refused, never stuck, and never more than two windows ahead.
    #[test]
    fn sender_and_receiver_agree() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let window = [WINDOW_MIN as u32, 100_000, WINDOW_MAX as u32][random.below(3) as usize];
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
    fn who_sends_without_credit_is_noticed() {
        let mut receiver = Account::new(WINDOW_MAX as u32);
        let mut bytes = 0;
        while receiver.hear(cost(1000), false) {
            bytes += cost(1000);
        }
        assert!(bytes <= WINDOW_MAX * 2);
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
