//! Sleeping on a file descriptor until another process writes to it. The writer makes a system call
//! only if the process sleeps, and executes no fence for each message.
//!
//! ```text
//! writer                                sleeper
//!   publish                               epoch = odd                       SYNC POINT asleep
//!   light fence                           global fence
//!   epoch odd? write the descriptor       check everything once more; nothing? block
//! ```
//!
//! Each side writes one word and then reads the other's; a full fence in both makes sure that one
//! of them sees the other. But a fence after each message costs as much as the message: it waits
//! until the line just written has been taken from the receiver's cache. So the sleeper pays for
//! both, with `membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED)`: it interrupts every CPU that runs a
//! process which registered for that ([`register_global_fence`]). The private variant of the call
//! does not reach other processes. The writer executes a real fence if it could not register
//! itself, or if the sleeper has no such call ([`Fence::Full`]).
//!
//! The word counts sleeps, so that a writer writes the descriptor once for each.

use crate::sync::{AtomicU64, Ordering, fence, light_fence};

#[cfg(not(loom))]
use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

/// The sleeper's end. The word belongs to this process, and is zero at the start.
#[derive(Debug, Default)]
pub struct SleepEpoch {
    epoch: u64,
}

impl SleepEpoch {
    /// Returns true between [`SleepEpoch::sleep`] and [`SleepEpoch::wake`].
    pub fn is_asleep(&self) -> bool {
        self.epoch & 1 == 1
    }

    /// Step 1 of going to sleep. Step 2: [`global_fence`]. Step 3: check everything once more, and
    /// call [`SleepEpoch::wake`] if there is something. Step 4: block.
    pub fn sleep(&mut self, word: &AtomicU64) {
        self.epoch |= 1;
        // SYNC POINT asleep
        word.store(self.epoch, Ordering::Relaxed);
    }

    /// Tells the writers that no wake-up is needed.
    pub fn wake(&mut self, word: &AtomicU64) {
        self.epoch = (self.epoch | 1).wrapping_add(1);
        // Relaxed: a writer that still reads the old value writes the descriptor without need.
        word.store(self.epoch, Ordering::Relaxed);
    }
}

/// The writer's end for one peer.
#[derive(Debug)]
pub struct PeerSleep {
    fence: Fence,
    woken: u64,
}

impl PeerSleep {
    /// Returns the end for a peer that has not slept yet.
    pub fn new(fence: Fence) -> Self {
        PeerSleep { fence, woken: 0 }
    }

    /// Returns true if the peer sleeps and must be woken, once for each of its sleeps. Call it
    /// after publishing; `word` is the peer's.
    #[inline]
    #[must_use = "wake the peer on true"]
    pub fn needs_wake(&mut self, word: &AtomicU64) -> bool {
        self.fence.execute();
        // SYNC POINT asleep
        let epoch = word.load(Ordering::Relaxed);
        if epoch & 1 == 0 || epoch == self.woken {
            return false;
        }
        self.woken = epoch;
        true
    }
}

/// The writer's fence, before it reads a word that the sleeper wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The sleeper's fence serves both.
    Light,
    /// A fence of its own.
    Full,
}

impl Fence {
    /// Executes the fence: orders earlier publications before later reads.
    #[inline]
    pub fn execute(self) {
        match self {
            Fence::Light => light_fence(),
            Fence::Full => fence(Ordering::SeqCst),
        }
    }
}

/// Registers this process, so that global fences of other processes reach it. Returns false if the
/// kernel has no such call (before Linux 4.16); its peers then need [`Fence::Full`].
#[cfg(not(loom))]
pub fn register_global_fence() -> bool {
    let needed = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
    membarrier_query().contains(needed)
        && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
}

/// Executes a fence on every CPU that runs a registered process; on this one alone if the kernel
/// has no such call.
#[cfg(not(loom))]
pub fn global_fence() {
    if membarrier(MembarrierCommand::GlobalExpedited).is_err() {
        fence(Ordering::SeqCst);
    }
}
