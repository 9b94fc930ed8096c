//! Doorbell and event bits: one page with the slots that have changed, in both directions.
//!
//! This order of steps ensures that no ring is lost:
//!
//! ```text
//! ringer (program)                          engine
//!   publish index (Release)                   take summary: swap 0
//!   set bit by RMW; was it set? done          take each word it names: swap 0        SYNC POINT bell
//!   set summary bit by RMW                    read the index of each slot found
//!   fence SeqCst                              …
//!   asleep? write the eventfd                 asleep = 1
//!                                             fence SeqCst                           SYNC POINT asleep
//!                                             summary != 0? awake again, else block
//! ```
//!
//! The bit is set by a read-modify-write even if it is set already, because that needs no fence: an
//! RMW sees the word's newest value. Either the engine has not taken the bit yet, and its swap,
//! which comes later in the word's order, acquires our index too; or it has, and our RMW sets the
//! bit again. The thread that turned the bit on sets the summary (after the bit, so a taken summary
//! bit never hides a later bit) and checks whether the engine sleeps; others are done after one
//! instruction. The two fences order "summary set, asleep read" against "asleep set, summary read",
//! so one of the two sees the other.

use std::sync::Arc;

#[cfg(not(loom))]
use super::RegionError;
use super::engine_page::EngineView;
#[cfg(not(loom))]
use super::layout::CLIENT_MAGIC;
use super::layout::{BitmapWords, ClientWords, SLOTS, WORDS};
use shmem::Shared;
use shmem::sync::{Ordering, fence};

#[cfg(not(loom))]
use {
    super::RingSizes,
    shmem::{Access, SharedFile, page_size},
    std::io,
    std::os::fd::{BorrowedFd, OwnedFd},
};

/// The page of one program: doorbell bits to the engine, event bits to the program.
#[derive(Debug)]
pub struct ClientPage {
    pub(super) words: Shared<ClientWords>,
}

impl ClientPage {
    /// Creates the page, on the engine's side. The descriptor is for the program; it is
    /// close-on-exec.
    #[cfg(not(loom))]
    pub fn create() -> io::Result<(Arc<ClientPage>, OwnedFd)> {
        let file = SharedFile::create("esp-client", page_size())?;
        let words = Shared::<ClientWords>::new(&file.map(0, page_size(), Access::Write)?, 0);
        words.about.0.introduce(CLIENT_MAGIC, RingSizes::NONE);
        Ok((Arc::new(ClientPage { words }), file.into_fd()))
    }

    /// Maps the page, on the program's side. `fd` came over the control socket, and may be closed
    /// afterwards.
    #[cfg(not(loom))]
    pub fn open(fd: BorrowedFd<'_>) -> Result<Arc<ClientPage>, RegionError> {
        let file = SharedFile::open(fd, page_size())?;
        let words = Shared::<ClientWords>::new(&file.map(0, page_size(), Access::Write)?, 0);
        words.about.0.check(CLIENT_MAGIC, RingSizes::NONE)?;
        Ok(Arc::new(ClientPage { words }))
    }

    /// Returns both sides' page for a model.
    #[cfg(loom)]
    pub(crate) fn model() -> Arc<ClientPage> {
        Arc::new(ClientPage {
            words: Arc::default(),
        })
    }
}

/// A set of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotSet([u64; WORDS]);

impl SlotSet {
    /// No slot.
    pub const EMPTY: SlotSet = SlotSet([0; WORDS]);
    /// Every slot.
    pub const ALL: SlotSet = SlotSet([!0; WORDS]);

    /// Adds or removes a slot, taken modulo [`SLOTS`].
    pub fn set(&mut self, slot: u16, member: bool) {
        let word = &mut self.0[usize::from(slot) % SLOTS / 64];
        *word = *word & !(1 << (slot % 64)) | u64::from(member) << (slot % 64);
    }

    /// Returns true if there is no slot.
    pub fn is_empty(&self) -> bool {
        *self == SlotSet::EMPTY
    }
}

impl BitmapWords {
    /// Sets a bit. Returns `None` if it was set already, so that another thread does the rest;
    /// otherwise whether the summary was empty. The slot is taken modulo [`SLOTS`].
    #[inline]
    fn set(&self, slot: u16) -> Option<bool> {
        let index = usize::from(slot) % SLOTS / 64;
        // SYNC POINT bell: the side that takes the bit sees what was published before.
        let before = self.words.0[index].fetch_or(1 << (slot % 64), Ordering::Release);
        if before >> (slot % 64) & 1 == 1 {
            return None;
        }
        // SYNC POINT bell: the side that takes the summary bit finds the bit in its word.
        Some(self.summary.0.fetch_or(1 << index, Ordering::Release) == 0)
    }

    #[inline]
    fn any(&self) -> bool {
        self.summary.0.load(Ordering::Relaxed) != 0
    }

    /// Takes all bits. Calls `found` at most once for each slot of `of`, whatever the other side
    /// does concurrently.
    #[inline]
    fn take(&self, of: &SlotSet, found: impl FnMut(u16)) {
        if self.any() {
            self.take_some(0, of, found);
        }
    }

    /// Takes the bits, and leaves the summary as `left`. Reports the slots of `of` only.
    fn take_some(&self, left: u64, of: &SlotSet, mut found: impl FnMut(u16)) {
        // SYNC POINT bell
        let mut summary = self.summary.0.swap(left, Ordering::Acquire);
        if WORDS < 64 {
            summary &= (1 << (WORDS % 64)) - 1;
        }
        while summary != 0 {
            let index = summary.trailing_zeros();
            summary &= summary - 1;
            // SYNC POINT bell
            let mut word =
                self.words.0[index as usize].swap(0, Ordering::Acquire) & of.0[index as usize];
            while word != 0 {
                #[allow(clippy::cast_possible_truncation)] // below 4096
                found((index * 64 + word.trailing_zeros()) as u16);
                word &= word - 1;
            }
        }
    }
}

/// The program's end of its doorbell. Cheap to clone; may be used from any thread.
#[derive(Clone, Debug)]
pub struct Doorbell {
    page: Arc<ClientPage>,
    engine: Arc<EngineView>,
}

impl Doorbell {
    /// Returns the end of this program, towards this engine.
    pub fn new(page: Arc<ClientPage>, engine: Arc<EngineView>) -> Self {
        Doorbell { page, engine }
    }

    /// Reports that `slot` (below [`SLOTS`]) has changed; call it after publishing. Returns true if
    /// the engine sleeps: write its eventfd now. Costs one locked instruction if the engine has not
    /// taken the slot's previous ring yet.
    #[inline]
    #[must_use = "the engine may sleep: write its eventfd on true"]
    pub fn ring(&self, slot: u16) -> bool {
        if self.page.words.doorbell.set(slot).is_none() {
            return false;
        }
        // SYNC POINT asleep
        fence(Ordering::SeqCst);
        self.engine.asleep()
    }

    /// Returns true if the engine has not taken all rings yet. A ring before a fence is never
    /// missed after it.
    #[inline]
    pub fn pending(&self) -> bool {
        self.page.words.doorbell.any()
    }
}

/// The engine's end.
impl ClientPage {
    /// Calls `found` for each slot of `owned` that rang since the last call: at most once each. The
    /// program chooses the bits: a slot may not have changed, and bits of other slots are dropped.
    #[inline]
    pub fn drain_doorbell(&self, owned: &SlotSet, found: impl FnMut(u16)) {
        self.words.doorbell.take(owned, found);
    }

    /// Returns true if a slot rang. Relaxed: after
    /// [`EnginePage::going_to_sleep`](super::EnginePage::going_to_sleep) it misses no ring whose
    /// ringer does not write the eventfd.
    #[inline]
    pub fn any_doorbell(&self) -> bool {
        self.words.doorbell.any()
    }

    /// Reports to the program that `slot` has changed. Returns true if the program's notify
    /// descriptor must be written now; false if it was written already for an event that the
    /// program has not taken.
    #[inline]
    #[must_use = "write the notify eventfd on true"]
    pub fn raise(&self, slot: u16) -> bool {
        self.words.events.set(slot) == Some(true)
    }
}

/// The program's end of the events.
#[derive(Debug)]
pub struct Events {
    page: Arc<ClientPage>,
}

impl Events {
    /// Returns the one receiver of this page.
    pub fn new(page: Arc<ClientPage>) -> Self {
        Events { page }
    }

    /// Calls `found` once for each slot that has changed. Read the eventfd **before** this call:
    /// the engine writes it only if no event is pending.
    #[inline]
    pub fn drain(&mut self, found: impl FnMut(u16)) {
        self.page.words.events.take(&SlotSet::ALL, found);
    }

    /// Stops the engine from writing the eventfd, because the program polls ([`Events::poll`]). The
    /// summary is then never empty: the bit of the last word stays set.
    pub fn awake(&mut self) {
        self.page
            .words
            .events
            .summary
            .0
            .fetch_or(AWAKE, Ordering::Release);
    }

    /// Takes events as [`Events::drain`] does, while awake. One or two loads if there is none.
    #[inline]
    pub fn poll(&mut self, found: impl FnMut(u16)) {
        if self.has_bits() {
            self.page
                .words
                .events
                .take_some(AWAKE, &SlotSet::ALL, found);
        }
    }

    #[inline]
    fn has_bits(&self) -> bool {
        let events = &self.page.words.events;
        events.summary.0.load(Ordering::Relaxed) & !AWAKE != 0
            || events.words.0[WORDS - 1].load(Ordering::Relaxed) != 0
    }

    /// Prepares to block on the eventfd. Returns false if there is an event; the program is then
    /// still awake. On true the next event writes the eventfd; call [`Events::awake`] after
    /// sleeping.
    #[must_use = "do not block on false"]
    pub fn try_sleep(&mut self) -> bool {
        let events = &self.page.words.events;
        // SYNC POINT bell: an event raised before this in the summary's order has set its bit where
        // the next step checks; one raised later finds the summary empty, and the eventfd is
        // written.
        let summary = events.summary.0.swap(0, Ordering::AcqRel);
        if summary & !AWAKE == 0 && events.words.0[WORDS - 1].load(Ordering::Acquire) == 0 {
            return true;
        }
        events
            .summary
            .0
            .fetch_or(summary | AWAKE, Ordering::Release);
        false
    }
}

/// Bit of the summary for the last word, which is also set while the program is awake and polls.
const AWAKE: u64 = 1 << (WORDS - 1);
