//! The only place that names atomics, fences, futexes and the bytes behind the rings; everything else of `shm` takes
//! them from here. Under `cfg(loom)` they are the model checker's, so that the real algorithms run in the models.

#[cfg(loom)]
pub(crate) use model::*;
#[cfg(not(loom))]
pub(crate) use real::*;

pub(crate) use core::sync::atomic::Ordering;

/// Threads of one program that may wait for the same thing of one region. A wake reaches at most so many: the engine's
/// work for one wake stays bounded whatever a program does.
pub const MAX_WAITERS: u32 = 64;

#[cfg(not(loom))]
mod real {
    use std::time::Duration;

    pub(crate) use core::hint::spin_loop;
    pub(crate) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};
    pub(crate) use std::thread::yield_now;

    use core::ptr::NonNull;
    use core::sync::atomic::Ordering;
    use rustix::thread::futex;

    /// A word that sleepers watch. Lives in shared memory; the futex is a shared one.
    #[repr(transparent)]
    #[derive(Debug)]
    pub(crate) struct FutexWord(AtomicU32);

    impl FutexWord {
        /// What [`FutexWord::wait`] must find to sleep.
        #[inline]
        pub(crate) fn load(&self) -> u32 {
            // SYNC POINT wake-count
            self.0.load(Ordering::Acquire)
        }

        /// Sleeps while the word equals `expected`, at most for `timeout`. May return at any time for no reason.
        pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) {
            // One too long for the kernel is as good as none.
            let timeout = timeout.and_then(|t| futex::Timespec::try_from(t).ok());
            // Every outcome (woken, changed before, timed out, signal) sends the caller to its own check.
            let _ = futex::wait(&self.0, futex::Flags::empty(), expected, timeout.as_ref());
        }

        /// Changes the word, then wakes who sleeps on it. One system call.
        pub(crate) fn bump_and_wake(&self) {
            // SYNC POINT wake-count
            self.0.fetch_add(1, Ordering::Release);
            let _ = futex::wake(&self.0, futex::Flags::empty(), super::MAX_WAITERS);
        }
    }

    /// The bytes of one ring: `capacity` of them, mapped twice back to back.
    #[derive(Debug)]
    pub(crate) struct RingBytes {
        base: NonNull<u8>,
        capacity: usize,
    }

    impl RingBytes {
        /// # Safety
        /// - `base` points to `2 * capacity` readable and writable bytes that stay mapped as long as the value lives.
        /// - `capacity` is a power of two, and byte `capacity + i` is the same memory as byte `i`.
        pub(crate) unsafe fn new(base: NonNull<u8>, capacity: usize) -> Self {
            RingBytes { base, capacity }
        }

        /// Bytes the ring holds.
        #[inline]
        pub(crate) fn capacity(&self) -> usize {
            self.capacity
        }

        /// Where byte `index` of the stream lies. The `capacity` bytes from there on are mapped.
        #[inline]
        pub(crate) fn at(&self, index: u64) -> NonNull<u8> {
            #[allow(clippy::cast_possible_truncation)] // masked to the capacity, at most 2^26
            let offset = index as usize & (self.capacity - 1);
            // SAFETY: offset < capacity, half of what `new` was promised.
            unsafe { self.base.add(offset) }
        }

        /// Copies `bytes` in from stream index `index` on.
        ///
        /// # Safety
        /// - `bytes.len() <= capacity`.
        /// - The protocol gives the range to the caller alone: no other thread that keeps to it touches the range now.
        #[inline]
        pub(crate) unsafe fn store(&self, index: u64, bytes: &[u8]) {
            debug_assert!(bytes.len() <= self.capacity);
            // SAFETY: `at` is followed by `capacity` mapped bytes, the caller promises length and exclusiveness; a
            // slice of the caller cannot overlap shared memory that nobody has a `&mut` to.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    bytes.as_ptr(),
                    self.at(index).as_ptr(),
                    bytes.len(),
                );
            }
        }

        /// Copies bytes out from stream index `index` on.
        ///
        /// # Safety
        /// - `bytes.len() <= capacity`.
        /// - No thread that keeps to the protocol writes the range now.
        #[inline]
        pub(crate) unsafe fn load(&self, index: u64, bytes: &mut [u8]) {
            debug_assert!(bytes.len() <= self.capacity);
            // SAFETY: as in `store`.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    self.at(index).as_ptr(),
                    bytes.as_mut_ptr(),
                    bytes.len(),
                );
            }
        }
    }
}

#[cfg(loom)]
mod model {
    use std::time::Duration;

    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};
    pub(crate) use loom::thread::yield_now;

    use core::sync::atomic::Ordering;
    use loom::cell::UnsafeCell;
    use loom::sync::{Condvar, Mutex};

    /// The futex as a model: the kernel's bucket lock is the mutex, its queue the condition variable.
    #[derive(Debug)]
    pub(crate) struct FutexWord {
        word: AtomicU32,
        bucket: Mutex<()>,
        queue: Condvar,
    }

    impl FutexWord {
        pub(crate) fn new(value: u32) -> Self {
            FutexWord {
                word: AtomicU32::new(value),
                bucket: Mutex::new(()),
                queue: Condvar::new(),
            }
        }

        pub(crate) fn load(&self) -> u32 {
            self.word.load(Ordering::Acquire)
        }

        pub(crate) fn wait(&self, expected: u32, _timeout: Option<Duration>) {
            let bucket = self.bucket.lock().expect("no panic while locked");
            // The kernel's comparison reads the newest value, which only an RMW does for sure in the model.
            if self.word.fetch_add(0, Ordering::Relaxed) == expected {
                drop(self.queue.wait(bucket));
            }
        }

        pub(crate) fn bump_and_wake(&self) {
            self.word.fetch_add(1, Ordering::Release);
            let _bucket = self.bucket.lock().expect("no panic while locked");
            self.queue.notify_all();
        }
    }

    /// The bytes of one ring, each watched for data races.
    #[derive(Debug)]
    pub(crate) struct RingBytes {
        cells: Vec<UnsafeCell<u8>>,
    }

    // SAFETY: the model checker reports any access to the cells that the protocol does not order.
    unsafe impl Sync for RingBytes {}

    impl RingBytes {
        pub(crate) fn new(capacity: usize) -> Self {
            RingBytes {
                cells: (0..capacity).map(|_| UnsafeCell::new(0)).collect(),
            }
        }

        pub(crate) fn capacity(&self) -> usize {
            self.cells.len()
        }

        fn cell(&self, index: u64) -> &UnsafeCell<u8> {
            &self.cells[index as usize & (self.cells.len() - 1)]
        }

        /// # Safety
        /// As for the real one; a broken promise is found.
        pub(crate) unsafe fn store(&self, index: u64, bytes: &[u8]) {
            for (i, byte) in (index..).zip(bytes) {
                // SAFETY: the model checker watches the access.
                self.cell(i).with_mut(|p| unsafe { *p = *byte });
            }
        }

        /// # Safety
        /// As for the real one; a broken promise is found.
        pub(crate) unsafe fn load(&self, index: u64, bytes: &mut [u8]) {
            for (i, byte) in (index..).zip(bytes) {
                // SAFETY: the model checker watches the access.
                *byte = self.cell(i).with(|p| unsafe { *p });
            }
        }
    }
}
