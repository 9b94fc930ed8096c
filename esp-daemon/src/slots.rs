//! The slots (doorbell bits) of one program, and the resources of each.
//!
//! A slot is in use until both the engine ([`esp_engine::EngineEvent::Closed`]) and the program
//! (`Close`) have released it. If it were reused earlier, the program could close the wrong stream.

use std::collections::BTreeMap;

use esp_engine::Slot;
use esp_engine::shm::{RingSizes, SLOTS};

use crate::accounts::Charge;
use crate::ports::PortClaim;

/// Use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotUse {
    /// A stream.
    Stream,
    /// A datagram socket.
    Edp,
}

/// Resources of a slot.
#[derive(Debug)]
pub(crate) struct Holdings {
    /// The socket and its rings; held until the slot is free, because the program may still map the
    /// memory.
    #[allow(dead_code)] // held, not read
    pub(crate) charges: Vec<Charge>,
    /// Its rings.
    pub(crate) rings: RingSizes,
    /// Its port; held until the engine has released the slot.
    pub(crate) port: Option<PortClaim>,
}

#[derive(Debug)]
struct SlotEntry {
    kind: SlotUse,
    holdings: Holdings,
    engine_done: bool,
    program_done: bool,
}

/// The slots of one program.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Those in use, at most [`SLOTS`].
    table: BTreeMap<Slot, SlotEntry>,
    /// Free slots below `next`.
    free: Vec<Slot>,
    /// All slots from this one on are free, except those that were reserved by number.
    next: Slot,
    /// The program has disconnected and will not close slots.
    disconnected: bool,
}

impl Slots {
    /// Takes a free slot; `None` if there is none.
    pub(crate) fn reserve(&mut self, kind: SlotUse, holdings: Holdings) -> Option<Slot> {
        let entry = SlotEntry {
            kind,
            holdings,
            engine_done: false,
            program_done: self.disconnected,
        };
        let slot = self.free.pop().or_else(|| self.advance())?;
        self.table.insert(slot, entry);
        Some(slot)
    }

    /// Returns the next slot that was never used.
    fn advance(&mut self) -> Option<Slot> {
        while usize::from(self.next) < SLOTS {
            let slot = self.next;
            self.next += 1;
            if !self.table.contains_key(&slot) {
                return Some(slot);
            }
        }
        None
    }

    /// Takes a given slot; false if it is in use or out of range.
    pub(crate) fn reserve_at(&mut self, slot: Slot, kind: SlotUse, holdings: Holdings) -> bool {
        if usize::from(slot) >= SLOTS || self.table.contains_key(&slot) {
            return false;
        }
        self.free.retain(|free| *free != slot);
        let entry = SlotEntry {
            kind,
            holdings,
            engine_done: false,
            program_done: self.disconnected,
        };
        self.table.insert(slot, entry);
        true
    }

    /// Frees a slot that the engine did not accept.
    pub(crate) fn withdraw(&mut self, slot: Slot) {
        if self.table.remove(&slot).is_some() && slot < self.next {
            self.free.push(slot);
        }
    }

    /// Records that the engine has released the slot.
    pub(crate) fn engine_closed(&mut self, slot: Slot) {
        if let Some(held) = self.held(slot) {
            held.engine_done = true;
            held.holdings.port = None;
            self.settle(slot);
        }
    }

    /// Moves the port of a connection to another link. If it cannot be taken there (another user
    /// has it), the old one stays taken.
    pub(crate) fn moved(&mut self, slot: Slot, take: impl FnOnce(&PortClaim) -> Option<PortClaim>) {
        if let Some(held) = self.held(slot)
            && let Some(port) = held.holdings.port.as_ref().and_then(take)
        {
            held.holdings.port = Some(port);
        }
    }

    /// Returns the rings of a slot in use.
    pub(crate) fn rings(&self, slot: Slot) -> Option<RingSizes> {
        Some(self.table.get(&slot)?.holdings.rings)
    }

    /// Returns true if the program has this slot for this use.
    pub(crate) fn is(&self, slot: Slot, kind: SlotUse) -> bool {
        let held = self.table.get(&slot);
        held.is_some_and(|held| held.kind == kind && !held.program_done)
    }

    /// Records that the program has released the slot. Returns true if the engine still has it.
    pub(crate) fn program_closed(&mut self, slot: Slot) -> bool {
        let Some(held) = self.held(slot) else {
            return false;
        };
        held.program_done = true;
        let engine_has_it = !held.engine_done;
        self.settle(slot);
        engine_has_it
    }

    /// Records that the program has disconnected: slots are free once the engine has released them.
    pub(crate) fn disconnect(&mut self) {
        self.disconnected = true;
        let slots: Vec<Slot> = self.table.keys().copied().collect();
        for slot in slots {
            self.program_closed(slot);
        }
    }

    /// Returns true when no slot is in use.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns true when the program has disconnected and the engine has released everything.
    pub(crate) fn is_finished(&self) -> bool {
        self.disconnected && self.is_empty()
    }

    fn held(&mut self, slot: Slot) -> Option<&mut SlotEntry> {
        self.table.get_mut(&slot)
    }

    fn settle(&mut self, slot: Slot) {
        let done = |held: &mut SlotEntry| held.engine_done && held.program_done;
        if self.held(slot).is_some_and(done) {
            self.withdraw(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Holdings {
        Holdings {
            charges: Vec::new(),
            rings: RingSizes { tx: 4096, rx: 8192 },
            port: None,
        }
    }

    #[test]
    fn slot_is_free_when_both_sides_have_released_it() {
        let mut slots = Slots::default();
        let slot = slots.reserve(SlotUse::Stream, nothing()).unwrap();
        assert!(slots.is(slot, SlotUse::Stream) && !slots.is(slot, SlotUse::Edp));
        assert_eq!(slots.rings(slot), Some(nothing().rings));
        slots.engine_closed(slot);
        assert_ne!(
            slots.reserve(SlotUse::Stream, nothing()).unwrap(),
            slot,
            "the program still has it"
        );
        assert!(
            !slots.program_closed(slot),
            "the engine has nothing to close"
        );
        assert!(!slots.is(slot, SlotUse::Stream));
        assert_eq!(slots.reserve(SlotUse::Edp, nothing()).unwrap(), slot);
        assert!(slots.program_closed(slot), "the engine has to close it");
        assert!(!slots.is(slot, SlotUse::Edp));
        slots.engine_closed(slot);
        assert!(!slots.is_empty());
    }

    #[test]
    fn a_given_slot_can_be_reserved_once() {
        let mut slots = Slots::default();
        assert!(slots.reserve_at(3, SlotUse::Stream, nothing()));
        assert!(!slots.reserve_at(3, SlotUse::Edp, nothing()));
        assert!(!slots.reserve_at(4096, SlotUse::Stream, nothing()));
        assert!(slots.reserve_at(1, SlotUse::Edp, nothing()));
        let others: Vec<Slot> = (0..3)
            .map(|_| slots.reserve(SlotUse::Stream, nothing()).unwrap())
            .collect();
        assert!(others.iter().all(|slot| ![1, 3].contains(slot)));
        slots.withdraw(3);
        assert!(slots.reserve_at(3, SlotUse::Stream, nothing()));
    }

    #[test]
    fn a_slot_reserved_by_number_is_reserved_once_and_reused() {
        let mut slots = Slots::default();
        assert!(slots.reserve_at(2, SlotUse::Edp, nothing()));
        slots.withdraw(2);
        let mut all: Vec<Slot> = (0..SLOTS)
            .map(|_| slots.reserve(SlotUse::Stream, nothing()).unwrap())
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), SLOTS);
        slots.withdraw(4095);
        assert_eq!(slots.reserve(SlotUse::Stream, nothing()), Some(4095));
    }

    #[test]
    fn a_high_slot_takes_no_more_memory_than_a_low_one() {
        let mut slots = Slots::default();
        assert!(slots.reserve_at(4095, SlotUse::Edp, nothing()));
        slots.withdraw(4095);
        assert_eq!((slots.free.capacity(), slots.next), (0, 0));
    }

    #[test]
    fn all_4096_slots_can_be_reserved_and_freed() {
        let mut slots = Slots::default();
        let all: Vec<Slot> = (0..SLOTS)
            .map(|_| slots.reserve(SlotUse::Stream, nothing()).unwrap())
            .collect();
        assert!(slots.reserve(SlotUse::Stream, nothing()).is_none());
        slots.disconnect();
        assert!(!slots.is_empty());
        for slot in all {
            slots.engine_closed(slot);
        }
        assert!(slots.is_empty());
    }

    #[test]
    fn unknown_slots_change_nothing() {
        let mut slots = Slots::default();
        slots.engine_closed(7);
        slots.withdraw(9);
        assert_eq!(slots.rings(9), None);
        assert!(!slots.program_closed(4095));
        assert!(slots.is_empty());
    }
}
