//! The state of a stream, and wake-ups of the program.

use std::sync::Arc;
use std::time::Instant;

use esp_proto::{CloseReason, ResetReason};

use super::region::Region;
use shmem::sync::{Ordering, fence};
use shmem::{FutexSleeper, Spin};

/// Condition that a program waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// Bytes to read, or the end of them.
    Readable,
    /// Room to write.
    Writable,
    /// A change of [`StreamState`].
    State,
    /// All three, after a change of state. As an argument of waiting: [`Wake::State`].
    All,
}

/// The single conditions in the order of their bits and wake counts.
const SINGLE: [Wake; 3] = [Wake::Readable, Wake::Writable, Wake::State];

impl Wake {
    /// Returns the position in [`SINGLE`].
    #[inline]
    const fn number(self) -> usize {
        match self {
            Wake::Readable => 0,
            Wake::Writable => 1,
            Wake::State | Wake::All => 2,
        }
    }

    /// Returns the bits of `waiting` that are set while a thread sleeps on the futex.
    #[inline]
    const fn thread_bits(self) -> u32 {
        match self {
            Wake::All => 0b111,
            single => 1 << single.number(),
        }
    }

    /// Returns the bits of `waiting` that are set while the program waits on its notify eventfd.
    #[inline]
    const fn fd_bits(self) -> u32 {
        self.thread_bits() << 8
    }
}

/// State of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamState {
    /// Not established yet.
    Connecting,
    /// Established. The FIN marks of the rings end the two directions.
    Open,
    /// Closed, with the reason.
    Closed(CloseReason),
}

// Bytes of the state word, lowest first: kind, reason, detail. The latter two of `RESET` and
// `ABORTED` are those of the wire (section 8 of the specification).
const CONNECTING: u8 = 0;
const OPEN: u8 = 1;
const ENDED: u8 = 2;
const RESET: u8 = 3;
const ABORTED: u8 = 4;
/// Second byte of an `ENDED` word.
const FINISHED: u8 = 0;
const TIMED_OUT: u8 = 1;
const CONNECT_TIMED_OUT: u8 = 2;

impl StreamState {
    fn to_word(self) -> u64 {
        let (kind, code, detail) = match self {
            StreamState::Connecting => (CONNECTING, 0, 0),
            StreamState::Open => (OPEN, 0, 0),
            StreamState::Closed(CloseReason::Finished) => (ENDED, FINISHED, 0),
            StreamState::Closed(CloseReason::TimedOut) => (ENDED, TIMED_OUT, 0),
            StreamState::Closed(CloseReason::ConnectTimedOut) => (ENDED, CONNECT_TIMED_OUT, 0),
            StreamState::Closed(CloseReason::Reset(reason)) => {
                let (code, detail) = reason.code();
                (RESET, code, detail)
            }
            StreamState::Closed(CloseReason::Aborted(reason)) => {
                let (code, detail) = reason.code();
                (ABORTED, code, detail)
            }
        };
        u64::from_le_bytes([kind, code, detail, 0, 0, 0, 0, 0])
    }

    /// Decodes the word. A word that no engine writes counts as aborted for an unnamed reason.
    fn from_word(word: u64) -> StreamState {
        let [kind, code, detail, ..] = word.to_le_bytes();
        match (kind, code) {
            (CONNECTING, _) => StreamState::Connecting,
            (OPEN, _) => StreamState::Open,
            (ENDED, FINISHED) => StreamState::Closed(CloseReason::Finished),
            (ENDED, TIMED_OUT) => StreamState::Closed(CloseReason::TimedOut),
            (ENDED, CONNECT_TIMED_OUT) => StreamState::Closed(CloseReason::ConnectTimedOut),
            (RESET, _) => {
                StreamState::Closed(CloseReason::Reset(ResetReason::from_code(code, detail)))
            }
            (_, _) => {
                StreamState::Closed(CloseReason::Aborted(ResetReason::from_code(code, detail)))
            }
        }
    }
}

/// The program's view of a region's status, and its waits. Any number may exist, on any thread.
#[derive(Clone, Debug)]
pub struct Status {
    region: Arc<Region>,
}

impl Status {
    /// Returns a view of this region.
    pub fn new(region: Arc<Region>) -> Self {
        Status { region }
    }

    /// Returns the state of the stream.
    #[inline]
    pub fn state(&self) -> StreamState {
        // SYNC POINT state
        StreamState::from_word(self.region.words().engine.0.state.load(Ordering::Acquire))
    }

    /// Waits for `what` until `there` returns true (returns true), or until `deadline` has passed
    /// (returns false).
    ///
    /// `there` is called at once, after each pause of `spin`, and after each wake-up. It must check
    /// the region (ring ends or [`Status::state`]); a change elsewhere wakes only by
    /// [`Status::poke`]. A change of state wakes waiters of all three kinds.
    pub fn wait(
        &self,
        what: Wake,
        spin: Spin,
        there: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        let words = self.region.words();
        let sleeper = FutexSleeper {
            waiting: &words.waiting.0,
            bit: 1 << what.number(),
            wakes: &words.engine.0.wakes[what.number()],
        };
        sleeper.wait(spin, there, deadline)
    }

    /// Requests one notification by event bit and notify eventfd, in place of a sleep here. **Check
    /// the condition after this call** and before waiting on the descriptor: changes published
    /// before the call are not notified.
    pub fn arm_fd(&self, what: Wake) {
        let waiting = &self.region.words().waiting.0;
        waiting.fetch_or(what.fd_bits(), Ordering::Relaxed);
        // SYNC POINT sleep: the engine's fence in `wake` is before this one (then the caller's
        // check sees what it published) or after it (then the engine sees the bit).
        fence(Ordering::SeqCst);
    }

    /// Makes this program's waiters call `there` again, after a change that the engine does not
    /// report, such as the loss of the daemon.
    pub fn poke(&self) {
        for word in &self.region.words().engine.0.wakes {
            word.bump_and_wake();
        }
    }
}

/// Result of [`Region::wake`].
#[must_use = "the program may wait on its notify eventfd"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// Threads slept, and were woken by a system call.
    pub futex: bool,
    /// The program waits on its notify eventfd: raise its slot's event bit
    /// ([`ClientPage::raise`](super::ClientPage::raise)) and write the eventfd if that returns
    /// true.
    pub notify: bool,
}

/// The engine's end.
impl Region {
    /// Sets the state of the stream. Then [`Region::wake`] the program: [`Wake::All`] when it is
    /// closed.
    pub fn set_state(&self, state: StreamState) {
        let word = &self.words().engine.0.state;
        // SYNC POINT state
        word.store(state.to_word(), Ordering::Release);
    }

    /// Wakes the threads that wait for `what`, and returns whether the program requested a
    /// notification. Call it after publishing. Costs one fence and one load if no thread waits.
    #[inline]
    pub fn wake(&self, what: Wake) -> Woken {
        // SYNC POINT sleep: what was published is seen by a sleeper whose bit we do not see.
        fence(Ordering::SeqCst);
        let asked = what.thread_bits() | what.fd_bits();
        if self.words().waiting.0.load(Ordering::Relaxed) & asked == 0 {
            return Woken::default();
        }
        self.wake_slow(what)
    }

    #[cold]
    fn wake_slow(&self, what: Wake) -> Woken {
        let words = self.words();
        let bits = what.thread_bits() | what.fd_bits();
        let asked = words.waiting.0.fetch_and(!bits, Ordering::AcqRel);
        let threads = asked & what.thread_bits();
        for single in SINGLE {
            if threads & single.thread_bits() != 0 {
                words.engine.0.wakes[single.number()].bump_and_wake();
            }
        }
        Woken {
            futex: threads != 0,
            notify: asked & what.fd_bits() != 0,
        }
    }
}
