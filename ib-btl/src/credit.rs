//! Flow control: a peer's blocks are credits (MPICH2 over VAPI, section III-C).
//!
//! The receiver has a ring of blocks for each peer. A message takes consecutive blocks; one that
//! starts near the end continues in spare blocks after it and counts as if it wrapped around. Both
//! sides count the same way, so no message carries its position. Credits return in the immediate of
//! the next message, or in a message of their own when half of them are unreturned.

/// The sender's view of the ring.
#[derive(Debug)]
pub(crate) struct Credits {
    blocks: usize,
    next: usize,
    free: usize,
}

impl Credits {
    pub(crate) fn new(blocks: usize) -> Credits {
        Credits {
            blocks,
            next: 0,
            free: blocks,
        }
    }

    pub(crate) fn has(&self, count: usize) -> bool {
        count <= self.free
    }

    /// Takes `count` consecutive blocks and returns the first. The caller has called `has`.
    pub(crate) fn take(&mut self, count: usize) -> usize {
        let first = self.next;
        self.next = (first + count) % self.blocks.max(1);
        self.free = self.free.saturating_sub(count);
        first
    }

    /// Returns `count` credits. Returns false if more are returned than were taken, a violation.
    #[must_use]
    pub(crate) fn give(&mut self, count: usize) -> bool {
        let sound = self.free + count <= self.blocks;
        self.free = (self.free + count).min(self.blocks);
        sound
    }
}

/// The receiver's view of the ring.
#[derive(Debug)]
pub(crate) struct ReceiveCredits {
    blocks: usize,
    next: usize,
    owed: usize,
}

impl ReceiveCredits {
    pub(crate) fn new(blocks: usize) -> ReceiveCredits {
        ReceiveCredits {
            blocks,
            next: 0,
            owed: 0,
        }
    }

    /// Returns the block that holds the next message.
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    /// Records that a message of `count` blocks was delivered.
    pub(crate) fn consumed(&mut self, count: usize) {
        self.next = (self.next + count) % self.blocks.max(1);
        self.owed += count;
    }

    /// Returns true if credits should be returned without waiting for a message.
    pub(crate) fn is_due(&self) -> bool {
        self.owed > 0 && self.owed * 2 >= self.blocks
    }

    pub(crate) fn unreturned(&self) -> usize {
        self.owed.min(crate::wire::MAX_FREED)
    }

    pub(crate) fn returned(&mut self, count: usize) {
        self.owed = self.owed.saturating_sub(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In any order of sending, receiving and returning, both sides agree on every position, and no
    /// block is used twice.
    #[test]
    fn both_sides_count_the_same_way() {
        let (blocks, longest) = (16, 4);
        let (mut credits, mut received) = (Credits::new(blocks), ReceiveCredits::new(blocks));
        let mut under_way = std::collections::VecDeque::new();
        let mut used = vec![false; blocks];
        let mut random = 12345u64;
        let mut sent = 0;
        for _ in 0..20_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let count = (random >> 40) as usize % longest + 1;
            match random >> 60 {
                0..8 if credits.has(count) => {
                    let first = credits.take(count);
                    for block in first..first + count {
                        assert!(!std::mem::replace(&mut used[block % blocks], true));
                    }
                    under_way.push_back((first, count));
                    sent += 1;
                }
                8..13 => {
                    if let Some((first, count)) = under_way.pop_front() {
                        assert_eq!(received.next(), first);
                        for block in first..first + count {
                            used[block % blocks] = false;
                        }
                        received.consumed(count);
                    }
                }
                _ if received.is_due() => {
                    let owed = received.unreturned();
                    received.returned(owed);
                    assert!(credits.give(owed));
                }
                _ => {}
            }
        }
        assert!(sent > 1000 && !credits.give(blocks + 1));
    }

    /// The sender does not get stuck, even without any message in return.
    #[test]
    fn half_of_the_blocks_are_always_returned() {
        for blocks in [8, 9, 64] {
            for count in 1..=4 {
                let (mut credits, mut received) =
                    (Credits::new(blocks), ReceiveCredits::new(blocks));
                for _ in 0..1000 {
                    while credits.has(count) {
                        credits.take(count);
                        received.consumed(count);
                    }
                    assert!(received.is_due());
                    let owed = received.unreturned();
                    received.returned(owed);
                    assert!(credits.give(owed));
                }
            }
        }
    }
}
