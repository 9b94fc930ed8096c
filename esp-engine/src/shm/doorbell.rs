//! One page between a program and the engine: which slots have news, both ways.
//!
//! Ringing, and why nothing is lost:
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
//! The bit is set by a read-modify-write even when it is set already, because that needs no fence: an RMW sees the
//! word's newest value, so either the engine has not taken the bit yet, and its swap, coming later in the word's order,
//! acquires our index too; or it has, and our RMW sets the bit anew. Whoever turned the bit on is the one that sets the
//! summary (behind the bit, so a taken summary bit never hides a later bit) and looks whether the engine sleeps;
//! others are done after one instruction. The two fences order "summary set, asleep read" against "asleep set, summary
//! read", so one of the two sees the other.

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
    words: Shared<ClientWords>,
}

impl ClientPage {
    /// The engine's side: makes the page. The descriptor is for the program; it is close-on-exec.
    #[cfg(not(loom))]
    pub fn create() -> io::Result<(Arc<ClientPage>, OwnedFd)> {
        let file = SharedFile::create("esp-client", page_size())?;
        let words = Shared::<ClientWords>::new(&file.map(0, page_size(), Access::Write)?, 0);
        words.about.0.introduce(CLIENT_MAGIC, RingSizes::NONE);
        Ok((Arc::new(ClientPage { words }), file.into_fd()))
    }

    /// The program's side: maps what came over the control socket. The descriptor may be closed afterwards.
    #[cfg(not(loom))]
    pub fn open(fd: BorrowedFd<'_>) -> Result<Arc<ClientPage>, RegionError> {
        let file = SharedFile::open(fd, page_size())?;
        let words = Shared::<ClientWords>::new(&file.map(0, page_size(), Access::Write)?, 0);
        words.about.0.check(CLIENT_MAGIC, RingSizes::NONE)?;
        Ok(Arc::new(ClientPage { words }))
    }

    /// Both sides' page for a model.
    #[cfg(loom)]
    pub(crate) fn model() -> Arc<ClientPage> {
        Arc::new(ClientPage {
            words: Arc::new(ClientWords::new()),
        })
    }

    #[inline]
    pub(crate) fn words(&self) -> &ClientWords {
        &self.words
    }
}

impl BitmapWords {
    /// Turns a bit on. `None`: it was on already, whoever did that does the rest. `Some(first)`: we did, and `first`
    /// says whether the summary was empty. The slot is taken modulo [`SLOTS`].
    #[inline]
    fn set(&self, slot: u16) -> Option<bool> {
        let index = usize::from(slot) % SLOTS / 64;
        // SYNC POINT bell: what was published before is seen by the one who takes the bit.
        let before = self.words.0[index].fetch_or(1 << (slot % 64), Ordering::Release);
        if before >> (slot % 64) & 1 == 1 {
            return None;
        }
        // SYNC POINT bell: who takes the summary bit finds the bit in its word.
        Some(self.summary.0.fetch_or(1 << index, Ordering::Release) == 0)
    }

    #[inline]
    fn any(&self) -> bool {
        self.summary.0.load(Ordering::Relaxed) != 0
    }

    /// Takes all bits that are on: at most one call for each slot, whatever the other side does meanwhile.
    #[inline]
    fn take(&self, found: impl FnMut(u16)) {
        if self.any() {
            self.take_some(0, found);
        }
    }

    /// `left`: what the summary is left as.
    fn take_some(&self, left: u64, mut found: impl FnMut(u16)) {
        // SYNC POINT bell
        let mut summary = self.summary.0.swap(left, Ordering::Acquire);
        if WORDS < 64 {
            summary &= (1 << (WORDS % 64)) - 1;
        }
        while summary != 0 {
            let index = summary.trailing_zeros();
            summary &= summary - 1;
            // SYNC POINT bell
            let mut word = self.words.0[index as usize].swap(0, Ordering::Acquire);
            while word != 0 {
                #[allow(clippy::cast_possible_truncation)] // below 4096
                found((index * 64 + word.trailing_zeros()) as u16);
                word &= word - 1;
            }
        }
    }
}

/// The program's way to say that a slot has news. Cheap to clone; may be used from any thread.
#[derive(Clone, Debug)]
pub struct Doorbell {
    page: Arc<ClientPage>,
    engine: Arc<EngineView>,
}

impl Doorbell {
    /// Of this program, towards this engine.
    pub fn new(page: Arc<ClientPage>, engine: Arc<EngineView>) -> Self {
        Doorbell { page, engine }
    }

    /// Call after publishing something of `slot` (below [`SLOTS`]). True: the engine sleeps, write its
    /// eventfd now. Costs one locked instruction when the engine has not come to the slot's last news yet.
    #[inline]
    #[must_use = "the engine may sleep: write its eventfd on true"]
    pub fn ring(&self, slot: u16) -> bool {
        if self.page.words().doorbell.set(slot).is_none() {
            return false;
        }
        // SYNC POINT asleep
        fence(Ordering::SeqCst);
        self.engine.asleep()
    }
}

impl Doorbell {
    /// Is there a ring the engine has not taken yet? Behind a fence it misses none that was before the fence.
    #[inline]
    pub fn pending(&self) -> bool {
        self.page.words().doorbell.any()
    }
}

/// The engine's end of a program's doorbell.
#[derive(Debug)]
pub struct DoorbellBank {
    page: Arc<ClientPage>,
}

impl DoorbellBank {
    /// The one bank of this page.
    pub fn new(page: Arc<ClientPage>) -> Self {
        DoorbellBank { page }
    }

    /// Calls `found` for each slot that rang since the last drain: at most once each, so at most
    /// [`SLOTS`] times. The program chooses the bits: a slot may be none of its own, or have no news.
    #[inline]
    pub fn drain(&mut self, found: impl FnMut(u16)) {
        self.page.words().doorbell.take(found);
    }

    /// Did any slot ring? Relaxed: after [`EnginePage::going_to_sleep`](super::EnginePage::going_to_sleep) it misses
    /// none whose ringer does not write the eventfd.
    #[inline]
    pub fn any(&self) -> bool {
        self.page.words().doorbell.any()
    }
}

/// The engine's way to tell a program that waits on its notify eventfd.
#[derive(Debug)]
pub struct EngineEvents {
    page: Arc<ClientPage>,
}

impl EngineEvents {
    /// The one sender of this page.
    pub fn new(page: Arc<ClientPage>) -> Self {
        EngineEvents { page }
    }

    /// Says that `slot` has news. True: write the program's notify eventfd now. False: it was written already for news
    /// that the program has not taken yet.
    #[inline]
    #[must_use = "write the notify eventfd on true"]
    pub fn raise(&self, slot: u16) -> bool {
        self.page.words().events.set(slot) == Some(true)
    }
}

/// The program's end of the events.
#[derive(Debug)]
pub struct Events {
    page: Arc<ClientPage>,
}

impl Events {
    /// The one receiver of this page.
    pub fn new(page: Arc<ClientPage>) -> Self {
        Events { page }
    }

    /// Calls `found` for each slot with news, once each. Read the eventfd **before** this call: the engine writes it
    /// only when it finds nothing waiting here.
    #[inline]
    pub fn drain(&mut self, found: impl FnMut(u16)) {
        self.page.words().events.take(found);
    }

    /// From now on the program looks by itself ([`Events::poll`]): the engine does not write the eventfd, because the
    /// summary is never empty (the bit of the last word stays on, whether the word has news or not).
    pub fn awake(&mut self) {
        self.page
            .words()
            .events
            .summary
            .0
            .fetch_or(AWAKE, Ordering::Release);
    }

    /// [`Events::drain`] while awake. One or two loads when there is no news.
    #[inline]
    pub fn poll(&mut self, found: impl FnMut(u16)) {
        if self.has_bits() {
            self.page.words().events.take_some(AWAKE, found);
        }
    }

    #[inline]
    fn has_bits(&self) -> bool {
        let events = &self.page.words().events;
        events.summary.0.load(Ordering::Relaxed) & !AWAKE != 0
            || events.words.0[WORDS - 1].load(Ordering::Relaxed) != 0
    }

    /// Before the program blocks on the eventfd. False: there is news, and the program is still awake. True: the next news writes
    /// the eventfd; call [`Events::awake`] after sleeping.
    #[must_use = "do not block on false"]
    pub fn try_sleep(&mut self) -> bool {
        let events = &self.page.words().events;
        // SYNC POINT bell: who raises before this in the summary's order has turned its bit on where we look next; who
        // raises behind it finds the summary empty and writes the eventfd.
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

/// Bit of the summary that says, besides "the last word has news": the program is awake and looks by itself.
const AWAKE: u64 = 1 << (WORDS - 1);
