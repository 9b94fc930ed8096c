//! The doorbell bits of one program, and what each holds.
//!
//! A slot is in use until two have let go of it: the engine ([`esp_engine::EngineEvent::Closed`]) and the program
//! (`Close`). Before both have, giving it to another stream would let the program close the wrong one.

use esp_engine::Slot;
use esp_engine::shm::SLOTS;

use crate::accounts::Charge;
use crate::ports::PortLease;

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A stream.
    Stream,
    /// A datagram socket.
    Edp,
}

/// What a slot holds.
#[derive(Debug)]
pub(crate) struct Holdings {
    /// The socket and its rings; held until the slot is free, because the program may still map the memory.
    #[allow(dead_code)] // held, not read
    pub(crate) charges: Vec<Charge>,
    /// Its port; held until the engine has let go.
    pub(crate) port: Option<PortLease>,
}

#[derive(Debug)]
struct Held {
    kind: Kind,
    holdings: Holdings,
    engine_done: bool,
    program_done: bool,
}

/// The slots of one program.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Grows to the highest slot used, at most [`SLOTS`].
    table: Vec<Option<Held>>,
    free: Vec<Slot>,
    /// The program is gone and closes nothing any more.
    left: bool,
}

impl Slots {
    /// Takes a free slot. The holdings come back when there is none.
    pub(crate) fn reserve(&mut self, kind: Kind, holdings: Holdings) -> Result<Slot, Holdings> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => match Slot::try_from(self.table.len()) {
                Ok(next) if usize::from(next) < SLOTS => {
                    self.table.push(None);
                    next
                }
                _ => return Err(holdings),
            },
        };
        if let Some(place) = self.table.get_mut(usize::from(slot)) {
            *place = Some(Held {
                kind,
                holdings,
                engine_done: false,
                program_done: self.left,
            });
        }
        Ok(slot)
    }

    /// The engine did not take the slot: it is free at once.
    pub(crate) fn withdraw(&mut self, slot: Slot) {
        if self
            .table
            .get_mut(usize::from(slot))
            .and_then(Option::take)
            .is_some()
        {
            self.free.push(slot);
        }
    }

    /// The engine has let go of the slot.
    pub(crate) fn engine_closed(&mut self, slot: Slot) {
        if let Some(held) = self.held(slot) {
            held.engine_done = true;
            held.holdings.port = None;
            self.settle(slot);
        }
    }

    /// The connection runs over another link: its port is taken there. If it cannot be (another user has it), the old
    /// one stays taken.
    pub(crate) fn moved(&mut self, slot: Slot, take: impl FnOnce(&PortLease) -> Option<PortLease>) {
        if let Some(held) = self.held(slot)
            && let Some(port) = held.holdings.port.as_ref().and_then(take)
        {
            held.holdings.port = Some(port);
        }
    }

    /// True when the slot is the program's and of this kind.
    pub(crate) fn is(&self, slot: Slot, kind: Kind) -> bool {
        let held = self.table.get(usize::from(slot)).and_then(Option::as_ref);
        held.is_some_and(|held| held.kind == kind && !held.program_done)
    }

    /// The program has let go of the slot. Tells whether the engine still has it.
    pub(crate) fn program_closed(&mut self, slot: Slot) -> bool {
        let Some(held) = self.held(slot) else {
            return false;
        };
        held.program_done = true;
        let engine_has_it = !held.engine_done;
        self.settle(slot);
        engine_has_it
    }

    /// The program is gone: only the engine is waited for.
    pub(crate) fn leave(&mut self) {
        self.left = true;
        for slot in 0..self.table.len() {
            // The table is never longer than SLOTS.
            self.program_closed(slot as Slot);
        }
    }

    /// True when no slot is in use.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.table.len()
    }

    /// True when the program is gone and the engine has let go of everything.
    pub(crate) fn is_over(&self) -> bool {
        self.left && self.is_empty()
    }

    fn held(&mut self, slot: Slot) -> Option<&mut Held> {
        self.table.get_mut(usize::from(slot))?.as_mut()
    }

    fn settle(&mut self, slot: Slot) {
        if self
            .held(slot)
            .is_some_and(|held| held.engine_done && held.program_done)
        {
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
            port: None,
        }
    }

    #[test]
    fn slot_is_free_when_both_sides_have_let_go() {
        let mut slots = Slots::default();
        let slot = slots.reserve(Kind::Stream, nothing()).unwrap();
        assert!(slots.is(slot, Kind::Stream) && !slots.is(slot, Kind::Edp));
        slots.engine_closed(slot);
        assert_ne!(
            slots.reserve(Kind::Stream, nothing()).unwrap(),
            slot,
            "the program still has it"
        );
        assert!(
            !slots.program_closed(slot),
            "the engine has nothing to close"
        );
        assert!(!slots.is(slot, Kind::Stream));
        assert_eq!(slots.reserve(Kind::Edp, nothing()).unwrap(), slot);
        assert!(slots.program_closed(slot), "the engine has to close it");
        assert!(!slots.is(slot, Kind::Edp));
        slots.engine_closed(slot);
        assert!(!slots.is_empty());
    }

    #[test]
    fn there_are_4096_and_all_come_back() {
        let mut slots = Slots::default();
        let all: Vec<Slot> = (0..SLOTS)
            .map(|_| slots.reserve(Kind::Stream, nothing()).unwrap())
            .collect();
        assert!(slots.reserve(Kind::Stream, nothing()).is_err());
        slots.leave();
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
        assert!(!slots.program_closed(4095));
        assert!(slots.is_empty());
    }
}
