//! One page for all programs of a node, with the flag that the engine sleeps.

use std::sync::Arc;

#[cfg(not(loom))]
use super::RegionError;
#[cfg(not(loom))]
use super::layout::ENGINE_MAGIC;
use super::layout::EngineWords;
use shmem::Shared;
use shmem::sync::{Ordering, fence};

#[cfg(not(loom))]
use {
    super::RingSizes,
    shmem::{Access, SharedFile, page_size},
    std::io,
    std::os::fd::{BorrowedFd, OwnedFd},
};

/// The engine's end. No other process can write the page: the kernel refuses later writable
/// mappings of the file.
#[derive(Debug)]
pub struct EnginePage {
    words: Shared<EngineWords>,
}

impl EnginePage {
    /// Creates the page. Duplicates of the descriptor are for the programs; it is close-on-exec.
    #[cfg(not(loom))]
    pub fn create() -> io::Result<(EnginePage, OwnedFd)> {
        let (file, map) = SharedFile::create_private("esp-engine", page_size())?;
        let words = Shared::<EngineWords>::new(&map, 0);
        words.about.0.introduce(ENGINE_MAGIC, RingSizes::NONE);
        Ok((EnginePage { words }, file.into_fd()))
    }

    /// Returns both ends for a model.
    #[cfg(loom)]
    pub(crate) fn model() -> (EnginePage, Arc<EngineView>) {
        let words = Arc::<EngineWords>::default();
        (
            EnginePage {
                words: words.clone(),
            },
            Arc::new(EngineView { words }),
        )
    }

    /// Performs step 1 of going to sleep. Step 2: check every doorbell
    /// ([`ClientPage::any_doorbell`](super::ClientPage::any_doorbell)) and everything else that programs write
    /// without the eventfd; if there is something, call [`EnginePage::awake`] and continue. Step 3:
    /// block on the eventfds and the rest. Step 4: [`EnginePage::awake`].
    #[inline]
    pub fn going_to_sleep(&self) {
        self.words.asleep.0.store(1, Ordering::Relaxed);
        // SYNC POINT asleep: a ringer that reads "awake" has set its summary bit where step 2 sees
        // it.
        fence(Ordering::SeqCst);
    }

    /// Ends sleeping: the engine polls the doorbells.
    #[inline]
    pub fn awake(&self) {
        // Relaxed: a ringer that still reads "asleep" writes the eventfd unnecessarily.
        self.words.asleep.0.store(0, Ordering::Relaxed);
    }
}

/// A program's view of the engine's page.
#[derive(Debug)]
pub struct EngineView {
    words: Shared<EngineWords>,
}

impl EngineView {
    /// Maps the page, read-only. `fd` came over the control socket, and may be closed afterwards.
    #[cfg(not(loom))]
    pub fn open(fd: BorrowedFd<'_>) -> Result<Arc<EngineView>, RegionError> {
        let map = SharedFile::open(fd, page_size())?.map(0, page_size(), Access::Read)?;
        // SAFETY: a view only loads.
        let words = unsafe { Shared::<EngineWords>::read_only(&map, 0) };
        words.about.0.check(ENGINE_MAGIC, RingSizes::NONE)?;
        Ok(Arc::new(EngineView { words }))
    }

    /// Returns true if the engine sleeps or is about to. Meaningful only after the fence of
    /// [`Doorbell::ring`](super::Doorbell::ring).
    #[inline]
    pub fn asleep(&self) -> bool {
        self.words.asleep.0.load(Ordering::Relaxed) != 0
    }
}
