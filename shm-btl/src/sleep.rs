//! Sleeping until somebody writes, and how no wake-up is lost.
//!
//! ```text
//! sender                                sleeper
//!   publish a slot (or a count)           sleep = odd                       SYNC POINT doze
//!   light fence                           heavy fence
//!   sleep odd? write its pipe             look at everything once more; nothing? block on the pipe
//! ```
//!
//! Each side writes one word and then reads the other's; full fences in both would make sure that one of them sees the other. But a
//! fence after each message costs as much as the message: it waits until the line just written has been taken from the receiver's
//! cache. So the sleeper pays for both, with `membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED)`: it interrupts every CPU that runs a process which
//! registered for that, as each [`ShmBtl`](crate::ShmBtl) does. (The private kind does not cross processes.) The sender is left with
//! a limit for its compiler. It takes the real fence where it could not register itself, or where the sleeper's card says that
//! it has no such call.
//!
//! The word counts sleeps: a sender writes the pipe once for each.

use crate::layout::Common;
use crate::memory::Shared;
use crate::sync::{Ordering, fence, light_fence};

/// The own word.
#[derive(Debug)]
pub(crate) struct Bed {
    common: Shared<Common>,
    epoch: u64,
}

impl Bed {
    pub(crate) fn new(common: Shared<Common>) -> Self {
        Bed { common, epoch: 0 }
    }

    pub(crate) fn asleep(&self) -> bool {
        self.epoch & 1 == 1
    }

    /// Step 1. Step 2: the heavy fence. Step 3: look at everything once more; if there is something, [`Bed::rise`] and do it. Step
    /// 4: block.
    pub(crate) fn lie_down(&mut self) {
        self.epoch |= 1;
        // SYNC POINT doze
        self.common.sleep.0.store(self.epoch, Ordering::Relaxed);
    }

    /// Awake: nobody need write the pipe.
    pub(crate) fn rise(&mut self) {
        self.epoch = (self.epoch | 1).wrapping_add(1);
        // Relaxed: who still reads the old value writes the pipe for nothing.
        self.common.sleep.0.store(self.epoch, Ordering::Relaxed);
    }
}

/// The sender's fence, in front of each look at what a sleeper may have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// The sleeper's is enough for both.
    Light,
    /// See above.
    Full,
}

impl Fence {
    #[inline]
    pub(crate) fn pass(self) {
        match self {
            Fence::Light => light_fence(),
            Fence::Full => fence(Ordering::SeqCst),
        }
    }
}

/// A peer's word.
#[derive(Debug)]
pub(crate) struct Sleeper {
    common: Shared<Common>,
    fence: Fence,
    rung: u64,
}

impl Sleeper {
    pub(crate) fn new(common: Shared<Common>, fence: Fence) -> Self {
        Sleeper {
            common,
            fence,
            rung: 0,
        }
    }

    /// After what was published.
    #[inline]
    pub(crate) fn fence(&self) {
        self.fence.pass();
    }

    /// Behind [`Sleeper::fence`]: must its pipe be written? Says so once for each of its sleeps.
    #[inline]
    pub(crate) fn sleeps(&mut self) -> bool {
        // SYNC POINT doze
        let epoch = self.common.sleep.0.load(Ordering::Relaxed);
        if epoch & 1 == 0 || epoch == self.rung {
            return false;
        }
        self.rung = epoch;
        true
    }

    /// Its words.
    pub(crate) fn common(&self) -> &Common {
        &self.common
    }
}
