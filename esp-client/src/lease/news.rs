//! What the engine in the program tells: connections that came, and slots that ended.

use std::collections::{HashMap, VecDeque};

use esp_engine::{Arrival, EngineEvent, LinkId, ListenerId};
use esp_proto::MacAddr;

/// What the engine's events tell.
#[derive(Default)]
pub(super) struct News {
    pub(super) arrivals: HashMap<ListenerId, VecDeque<Arrival>>,
    /// Slots in use: (program has closed, engine has closed).
    pub(super) slots: HashMap<u16, (bool, bool)>,
    /// Slots the engine closed, to be told to the daemon.
    pub(super) closed: Vec<u16>,
    /// Slots whose connections go over another path now: link, address of the peer. The same.
    pub(super) moved: Vec<(u16, LinkId, MacAddr)>,
}

impl News {
    pub(super) fn take(&mut self, event: &EngineEvent) {
        match *event {
            EngineEvent::Incoming { listener, arrival } => {
                self.arrivals.entry(listener).or_default().push_back(arrival);
            }
            EngineEvent::IncomingGone { listener, handle } => {
                if let Some(waiting) = self.arrivals.get_mut(&listener) {
                    waiting.retain(|arrival| arrival.handle != handle);
                }
            }
            EngineEvent::Closed { slot, .. } => {
                // Given out again only when the daemon has been told, lest it take the next connection for this one.
                self.closed.push(slot);
            }
            EngineEvent::Moved { slot, link, peer, .. } => {
                // The last one counts.
                self.moved.retain(|moved| moved.0 != slot);
                self.moved.push((slot, link, peer));
            }
            EngineEvent::Link { .. } | EngineEvent::Scribbled { .. } => {}
        }
    }

    /// The program has said its last word about a slot, or the daemon has been told of its end. Who comes second frees it.
    pub(super) fn let_go(&mut self, slot: u16, program: bool) {
        if let Some(held) = self.slots.get_mut(&slot) {
            held.0 |= program;
            held.1 |= !program;
            if *held == (true, true) {
                self.slots.remove(&slot);
            }
        }
    }
}
