//! [`EventLog`]: events of the embedded engine that are not handled yet, and the slots in use.

use std::collections::{HashMap, HashSet, VecDeque};

use esp_engine::shm::SLOTS;
use esp_engine::{Arrival, EngineEvent, LinkId, ListenerId};
use esp_proto::NodeAddr;

/// Which sides have released a slot. It is free when both have.
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
    last_listener: u64,
    pub(super) arrivals: HashMap<ListenerId, VecDeque<Arrival>>,
    pub(super) slots: HashMap<u16, SlotState>,
    /// Slots closed by the engine, whose end is not reported to the daemon.
    pub(super) closed: HashSet<u16>,
    /// Link and peer's address of connections that moved, by slot, not reported to the daemon.
    pub(super) moved: HashMap<u16, (LinkId, NodeAddr)>,
}

impl EventLog {
    /// Adds an event.
    pub(super) fn add(&mut self, event: &EngineEvent) {
        match *event {
            EngineEvent::Incoming { listener, arrival } => {
                let waiting = self.arrivals.entry(listener).or_default();
                waiting.push_back(arrival);
            }
            EngineEvent::IncomingGone { listener, handle } => {
                if let Some(waiting) = self.arrivals.get_mut(&listener) {
                    waiting.retain(|arrival| arrival.handle != handle);
                }
            }
            EngineEvent::Closed { slot, .. } => {
                // In use until reported: the daemon could mistake the next connection for this one.
                self.closed.insert(slot);
            }
            EngineEvent::Moved {
                slot, link, peer, ..
            } => {
                self.moved.insert(slot, (link, peer));
            }
            // An embedded engine has no pcap file, and does not attach links again.
            EngineEvent::Link { .. }
            | EngineEvent::NotAttached { .. }
            | EngineEvent::CaptureEnded { .. }
            | EngineEvent::Corrupted { .. } => {}
        }
    }

    /// Returns the id of a new listener.
    pub(super) fn next_listener(&mut self) -> ListenerId {
        self.last_listener += 1;
        ListenerId(self.last_listener)
    }

    /// Returns the next connection to a listener.
    pub(super) fn arrival(&mut self, listener: ListenerId) -> Option<Arrival> {
        self.arrivals.get_mut(&listener)?.pop_front()
    }

    /// Reserves a free slot.
    pub(super) fn take_slot(&mut self) -> Option<u16> {
        let slots = u16::try_from(SLOTS).unwrap_or(u16::MAX);
        let slot = (0..slots).find(|slot| !self.slots.contains_key(slot))?;
        self.slots.insert(slot, SlotState::default());
        Some(slot)
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
            client: crate::lease::engine::SELF,
            slot,
            reason: None,
        }
    }

    #[test]
    fn closed_slots_have_ended_before_the_report_to_the_daemon() {
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
