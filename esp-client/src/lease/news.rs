//! What the engine in the program tells: connections that came, and slots that ended.

use std::collections::{HashMap, HashSet, VecDeque};

use esp_engine::{Arrival, EngineEvent, LinkId, ListenerId};
use esp_proto::MacAddr;

/// What the engine's events tell.
#[derive(Default)]
pub(super) struct News {
    pub(super) arrivals: HashMap<ListenerId, VecDeque<Arrival>>,
    /// Slots in use: (program has closed, daemon knows that the engine has).
    pub(super) slots: HashMap<u16, (bool, bool)>,
    /// Slots the engine closed, of which the daemon has not been told.
    pub(super) closed: HashSet<u16>,
    /// Slots whose connections go over another path now: link, address of the peer. The same.
    pub(super) moved: Vec<(u16, LinkId, MacAddr)>,
}

impl News {
    pub(super) fn take(&mut self, event: &EngineEvent) {
        match *event {
            EngineEvent::Incoming { listener, arrival } => {
                self.arrivals
                    .entry(listener)
                    .or_default()
                    .push_back(arrival);
            }
            EngineEvent::IncomingGone { listener, handle } => {
                if let Some(waiting) = self.arrivals.get_mut(&listener) {
                    waiting.retain(|arrival| arrival.handle != handle);
                }
            }
            EngineEvent::Closed { slot, .. } => {
                // Given out again only when the daemon has been told, lest it take the next
                // connection for this one.
                self.closed.insert(slot);
            }
            EngineEvent::Moved {
                slot, link, peer, ..
            } => {
                // The last one counts.
                self.moved.retain(|moved| moved.0 != slot);
                self.moved.push((slot, link, peer));
            }
            EngineEvent::Link { .. } | EngineEvent::Scribbled { .. } => {}
        }
    }

    /// The program has said its last word about a slot, or the daemon has been told of its end. Who
    /// comes second frees it.
    pub(super) fn let_go(&mut self, slot: u16, program: bool) {
        if let Some(held) = self.slots.get_mut(&slot) {
            held.0 |= program;
            held.1 |= !program;
            if *held == (true, true) {
                self.slots.remove(&slot);
            }
        }
    }

    /// The daemon knows that the engine has closed the slot. Two may have told it.
    pub(super) fn told(&mut self, slot: u16) {
        if self.closed.remove(&slot) {
            self.let_go(slot, false);
        }
    }

    /// The engine has nothing left to do for any slot.
    pub(super) fn all_over(&self) -> bool {
        self.slots
            .iter()
            .all(|(slot, (_, told))| *told || self.closed.contains(slot))
    }
}

#[cfg(test)]
mod tests {
    use esp_engine::EngineEvent;

    use super::News;

    fn closed(slot: u16) -> EngineEvent {
        EngineEvent::Closed {
            client: crate::lease::embedded::SELF,
            slot,
            reason: None,
        }
    }

    #[test]
    fn what_the_engine_has_closed_is_over_though_the_daemon_was_not_told() {
        let mut news = News::default();
        assert!(news.all_over());
        news.slots
            .extend([(1, (false, false)), (2, (false, false))]);
        news.let_go(1, true);
        news.take(&closed(1));
        assert!(!news.all_over(), "the other one is open");
        news.let_go(2, true);
        assert!(
            !news.all_over(),
            "and delivers still, when the program has closed it"
        );
        news.take(&closed(2));
        assert!(news.all_over());
        news.told(1);
        assert!(news.all_over());
    }

    #[test]
    fn a_slot_is_free_when_the_daemon_was_told_and_telling_twice_does_not_free_the_next() {
        let mut news = News::default();
        news.slots.insert(1, (false, false));
        news.let_go(1, true);
        news.take(&closed(1));
        assert!(
            news.slots.contains_key(&1),
            "the daemon could take the next connection for this one"
        );
        news.told(1);
        assert!(news.slots.is_empty());
        news.slots.insert(1, (true, false));
        news.told(1);
        assert!(news.slots.contains_key(&1));
    }
}
