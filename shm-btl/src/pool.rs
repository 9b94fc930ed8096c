//! The chunks of a process for messages that are too long for a ring: one pool for all peers, so
//! that memory does not grow with their number (hybrid paper, section 2.2).

use std::collections::VecDeque;

use shmem::Bytes;

/// Number of chunks that are used in rotation: together as large as a second-level cache. A chunk
/// that is reused at once is still in the cache of the core that has read it, and each line must be
/// fetched from there while that core reads the next chunk. Windows of 64 KiB were 1.3 × faster
/// with rotation (docs/performance.md).
const ROTATION: u32 = if cfg!(loom) { 2 } else { 16 };

/// The free chunks.
#[derive(Debug)]
pub(crate) struct Pool {
    chunks: Vec<Bytes>,
    /// Free chunks among the first [`ROTATION`]; the one freed first is used next.
    rotation: VecDeque<u32>,
    /// The other free chunks, used when those are exhausted. The last freed one is used next, so
    /// that the number of chunks that occupy memory does not exceed those in use at a time.
    rest: Vec<u32>,
}

impl Pool {
    pub(crate) fn new(chunks: Vec<Bytes>) -> Self {
        let all = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
        Pool {
            rotation: (0..all.min(ROTATION)).collect(),
            rest: (ROTATION..all).rev().collect(),
            chunks,
        }
    }

    /// Takes a chunk to fill.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(u32, &Bytes)> {
        let chunk = self.rotation.pop_front().or_else(|| self.rest.pop())?;
        Some((chunk, self.chunks.get(chunk as usize)?))
    }

    /// Returns a chunk that was taken.
    #[inline]
    pub(crate) fn put_back(&mut self, chunk: u32) {
        debug_assert!(!self.rotation.contains(&chunk) && !self.rest.contains(&chunk));
        if chunk < ROTATION {
            self.rotation.push_back(chunk);
        } else {
            self.rest.push(chunk);
        }
    }

    /// Returns the number of chunks.
    pub(crate) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Returns the number of free chunks.
    #[cfg(all(test, loom))]
    pub(crate) fn free(&self) -> usize {
        self.rotation.len() + self.rest.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use shmem::{Access, SharedFile};

    fn pool(chunks: usize) -> Pool {
        let file = SharedFile::create("shm-btl-test", 64 * 64).expect("a memory file");
        let map = file.map(0, file.len(), Access::Write).expect("a mapping");
        Pool::new((0..chunks).map(|i| Bytes::new(&map, i * 64, 64)).collect())
    }

    fn take(pool: &mut Pool) -> Option<u32> {
        pool.take().map(|(chunk, _)| chunk)
    }

    #[test]
    fn the_first_chunks_rotate_and_the_others_are_used_when_those_are_out() {
        let mut pool = pool(20);
        for round in 0..40 {
            let chunk = take(&mut pool);
            assert_eq!(chunk, Some(round % 16), "one chunk in use at a time");
            pool.put_back(round % 16);
        }
        let out: Vec<_> = (0..20).map_while(|_| take(&mut pool)).collect();
        assert_eq!(
            out,
            [
                8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19
            ]
        );
        assert_eq!(take(&mut pool), None);
        for chunk in [18, 16, 15, 3] {
            pool.put_back(chunk);
        }
        let out: Vec<_> = (0..4).map_while(|_| take(&mut pool)).collect();
        assert_eq!(out, [15, 3, 16, 18]);
        assert_eq!((take(&mut pool), pool.len()), (None, 20));
    }

    #[test]
    fn a_small_pool_rotates_all_chunks() {
        for chunks in [1, 2, 16, 17] {
            let mut pool = pool(chunks);
            let mut out: Vec<_> = std::iter::from_fn(|| take(&mut pool)).collect();
            out.sort_unstable();
            assert_eq!(
                out,
                (0..u32::try_from(chunks).expect("few")).collect::<Vec<_>>()
            );
        }
    }
}
