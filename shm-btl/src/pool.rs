//! The chunks of a process for messages that are too long for a ring: one pool for all peers, so that memory does not grow with
//! their number (hybrid paper, section 2.2).

use crate::memory::Bytes;

/// Which chunks are free. The one freed last is used next: it is the one most likely in the cache.
#[derive(Debug)]
pub(crate) struct Pool {
    chunks: Vec<Bytes>,
    free: Vec<u32>,
}

impl Pool {
    pub(crate) fn new(chunks: Vec<Bytes>) -> Self {
        let free = (0..chunks.len()).rev().filter_map(|i| u32::try_from(i).ok()).collect();
        Pool { chunks, free }
    }

    /// A chunk to fill.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(u32, &Bytes)> {
        let chunk = self.free.pop()?;
        Some((chunk, self.chunks.get(chunk as usize)?))
    }

    /// One that was taken.
    #[inline]
    pub(crate) fn give_back(&mut self, chunk: u32) {
        debug_assert!(!self.free.contains(&chunk));
        self.free.push(chunk);
    }

    /// All of them.
    pub(crate) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Free ones.
    #[cfg(all(test, loom))]
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }
}
