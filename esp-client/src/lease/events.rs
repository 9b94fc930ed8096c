//! [`EventLog`]: events of the embedded engine that are not handled yet, and the slots in use.

use std::collections::{HashMap, HashSet, VecDeque};

use esp_engine::{Arrival, EngineEvent, LinkId, ListenerId};
use esp_proto::NodeAddr;

/// State of a slot: which sides have released it. It is free when both have.
#[derive(Default)]
pub(super) struct SlotState {
    /// The program has closed the slot.
    program: bool,
    /// The end of the connection is reported to the daemon.
    reported: bool,
}

/// Unhandled events, and the slots in use.
#[derive(Default)]
pub(super) struct EventLog {
    pub(super) arrivals: HashMap<ListenerId, VecDeque<Arrival>>,
    pub(super) slots: HashMap<u16, SlotState>,
    /// Slots closed by the engine, whose end is not reported to the daemon.
    pub(super) closed: HashSet<u16>,
    /// Slots whose connections moved: link and peer address, not reported to the daemon.
    pub(super) moved: Vec<(u16, LinkId, NodeAddr)>,
}

impl EventLog {
    /// Adds an event.
    pub(super) fn add(&mut self, event: &EngineEvent) {
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
                // In use until the daemon knows, which could mistake the next connection for it.
                self.closed.insert(slot);
            }
            EngineEvent::Moved {
                slot, link, peer, ..
            } => {
                // Only the last move matters.
                self.moved.retain(|moved| moved.0 != slot);
                self.moved.push((slot, link, peer));
            }
            EngineEvent::Link { .. } | EngineEvent::Corrupted { .. } => {}
        }
    }

    /// Releases a slot for the program.
    pub(super) fn release(&mut self, slot: u16) {
        self.release_for(slot, |state| state.program = true);
    }

    /// Records that the end of a closed slot is reported. Repeated calls have no effect.
    pub(super) fn reported(&mut self, slot: u16) {
        if self.closed.remove(&slot) {
            self.release_for(slot, |state| state.reported = true);
        }
    }

    fn release_for(&mut self, slot: u16, side: impl FnOnce(&mut SlotState)) {
        if let Some(state) = self.slots.get_mut(&slot) {
            side(state);
            if state.program && state.reported {
                self.slots.remove(&slot);
            }
        }
    }

    /// Returns true if the engine has closed all slots.
    pub(super) fn all_closed(&self) -> bool {
        self.slots
            .iter()
            .all(|(slot, state)| state.reported || self.closed.contains(slot))
    }
}

#[cfg(test)]
mod tests {
    use esp_engine::EngineEvent;

    use super::EventLog;

    fn closed(slot: u16) -> EngineEvent {
        EngineEvent::Closed {
            client: crate::lease::embedded::SELF,
            slot,
            reason: None,
        }
    }

    #[test]
    fn closed_slots_are_over_before_the_report_to_the_daemon() {
        let mut log = EventLog::default();
        assert!(log.all_closed());
        log.slots
            .extend([1, 2].map(|slot| (slot, Default::default())));
        log.release(1);
        log.add(&closed(1));
        assert!(!log.all_closed(), "the other one is open");
        log.release(2);
        assert!(!log.all_closed(), "it still delivers");
        log.add(&closed(2));
        assert!(log.all_closed());
        log.reported(1);
        assert!(log.all_closed());
    }

    #[test]
    fn a_slot_is_free_after_the_report_and_a_second_report_does_not_free_the_next_user() {
        let mut log = EventLog::default();
        log.slots.insert(1, Default::default());
        log.release(1);
        log.add(&closed(1));
        assert!(log.slots.contains_key(&1), "not reported yet");
        log.reported(1);
        assert!(log.slots.is_empty());
        log.slots.insert(1, Default::default());
        log.release(1);
        log.reported(1);
        assert!(log.slots.contains_key(&1));
    }
}
