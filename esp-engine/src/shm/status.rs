//! A stream's state word, and the wake-ups of the program by the engine.

use std::sync::Arc;
use std::time::Instant;

use esp_proto::{CloseReason, ResetReason};

use super::region::Region;
use shmem::sync::{Ordering, fence};
use shmem::{FutexSleeper, Spin};

/// What a program waits for, or is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// Bytes, or the end of them.
    Readable,
    /// Room to write.
    Writable,
    /// Another [`StreamState`].
    State,
    /// Waking: all of the others, after a change of state. Waiting: as [`Wake::State`].
    All,
}

/// The things that are waited for one by one; their position is the number of their bits and their wake count.
const SINGLE: [Wake; 3] = [Wake::Readable, Wake::Writable, Wake::State];

impl Wake {
    /// Position in [`SINGLE`].
    #[inline]
    const fn number(self) -> usize {
        match self {
            Wake::Readable => 0,
            Wake::Writable => 1,
            Wake::State | Wake::All => 2,
        }
    }

    /// Bits of `waiting`: a thread sleeps on the futex.
    #[inline]
    const fn thread_bits(self) -> u32 {
        match self {
            Wake::All => 0b111,
            single => 1 << single.number(),
        }
    }

    /// Bits of `waiting`: the program waits on its notify eventfd.
    #[inline]
    const fn fd_bits(self) -> u32 {
        self.thread_bits() << 8
    }
}

/// How a stream stands, as the engine tells the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamState {
    /// Not established yet.
    Connecting,
    /// Established. The ends of the two directions are told by the FIN marks of the rings.
    Open,
    /// Over, and why.
    Closed(CloseReason),
}

// The state word, from its lowest byte on: kind, reset reason or way of ending, detail.
const CONNECTING: u8 = 0;
const OPEN: u8 = 1;
const ENDED: u8 = 2;
const RESET: u8 = 3;
const ABORTED: u8 = 4;
/// Second byte of an `ENDED` word.
const FINISHED: u8 = 0;
const TIMED_OUT: u8 = 1;
const CONNECT_TIMED_OUT: u8 = 2;
/// Second byte of `RESET` and `ABORTED` words: the reason byte of the wire (section 8 of the specification), or this
/// when the reason is one without a name, which the third byte gives.
const UNNAMED: u8 = 0xff;

impl StreamState {
    fn to_word(self) -> u64 {
        let (kind, code, detail) = match self {
            StreamState::Connecting => (CONNECTING, 0, 0),
            StreamState::Open => (OPEN, 0, 0),
            StreamState::Closed(CloseReason::Finished) => (ENDED, FINISHED, 0),
            StreamState::Closed(CloseReason::TimedOut) => (ENDED, TIMED_OUT, 0),
            StreamState::Closed(CloseReason::ConnectTimedOut) => (ENDED, CONNECT_TIMED_OUT, 0),
            StreamState::Closed(CloseReason::Reset(reason)) => {
                let (code, detail) = reset_code(reason);
                (RESET, code, detail)
            }
            StreamState::Closed(CloseReason::Aborted(reason)) => {
                let (code, detail) = reset_code(reason);
                (ABORTED, code, detail)
            }
        };
        u64::from_le_bytes([kind, code, detail, 0, 0, 0, 0, 0])
    }

    /// What no engine writes counts as aborted for an unnamed reason.
    fn from_word(word: u64) -> StreamState {
        let [kind, code, detail, ..] = word.to_le_bytes();
        match (kind, code) {
            (CONNECTING, _) => StreamState::Connecting,
            (OPEN, _) => StreamState::Open,
            (ENDED, FINISHED) => StreamState::Closed(CloseReason::Finished),
            (ENDED, TIMED_OUT) => StreamState::Closed(CloseReason::TimedOut),
            (ENDED, CONNECT_TIMED_OUT) => StreamState::Closed(CloseReason::ConnectTimedOut),
            (RESET, _) => StreamState::Closed(CloseReason::Reset(reset_reason(code, detail))),
            (_, _) => StreamState::Closed(CloseReason::Aborted(reset_reason(code, detail))),
        }
    }
}

fn reset_code(reason: ResetReason) -> (u8, u8) {
    match reason {
        ResetReason::Refused => (1, 0),
        ResetReason::Version(theirs) => (2, theirs),
        ResetReason::BadKey => (3, 0),
        ResetReason::Aborted => (4, 0),
        ResetReason::ProgramDied => (5, 0),
        ResetReason::Resources => (6, 0),
        ResetReason::Protocol => (7, 0),
        ResetReason::TimedOut => (8, 0),
        ResetReason::Unknown => (9, 0),
        ResetReason::Shutdown => (10, 0),
        ResetReason::Other(byte) => (UNNAMED, byte),
    }
}

fn reset_reason(code: u8, detail: u8) -> ResetReason {
    match code {
        1 => ResetReason::Refused,
        2 => ResetReason::Version(detail),
        3 => ResetReason::BadKey,
        4 => ResetReason::Aborted,
        5 => ResetReason::ProgramDied,
        6 => ResetReason::Resources,
        7 => ResetReason::Protocol,
        8 => ResetReason::TimedOut,
        9 => ResetReason::Unknown,
        10 => ResetReason::Shutdown,
        UNNAMED => ResetReason::Other(detail),
        code => ResetReason::Other(code),
    }
}

/// The program's view of a region's status, and its ways to wait. Any number, from any thread; at most
/// [`MAX_WAITERS`](super::MAX_WAITERS) threads may wait for one thing of one region at a time.
#[derive(Clone, Debug)]
pub struct Status {
    region: Arc<Region>,
}

impl Status {
    /// A view of this region.
    pub fn new(region: Arc<Region>) -> Self {
        Status { region }
    }

    /// How the stream stands.
    #[inline]
    pub fn state(&self) -> StreamState {
        // SYNC POINT state
        StreamState::from_word(self.region.words().engine.0.state.load(Ordering::Acquire))
    }

    /// Waits for one thing: until `there` says true (true), or until `deadline` has passed (false).
    ///
    /// `there` is asked at once, after each pause of `spin`, and after each wake. It must look at the region (ring ends
    /// or [`Status::state`]); what changes elsewhere wakes nobody but by [`Status::poke`]. A change of state wakes
    /// waiters of all three kinds.
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

    /// [`Status::wait`] for [`Wake::Readable`].
    pub fn wait_readable(
        &self,
        spin: Spin,
        there: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        self.wait(Wake::Readable, spin, there, deadline)
    }

    /// [`Status::wait`] for [`Wake::Writable`].
    pub fn wait_writable(
        &self,
        spin: Spin,
        there: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        self.wait(Wake::Writable, spin, there, deadline)
    }

    /// [`Status::wait`] for [`Wake::State`].
    pub fn wait_state(
        &self,
        spin: Spin,
        there: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        self.wait(Wake::State, spin, there, deadline)
    }

    /// Asks to be told once, by event bit and notify eventfd, instead of sleeping here. **Check your condition after
    /// this call** and before you wait on the descriptor: what was published before it is not told.
    pub fn arm_fd(&self, what: Wake) {
        self.region
            .words()
            .waiting
            .0
            .fetch_or(what.fd_bits(), Ordering::Relaxed);
        // SYNC POINT sleep: the engine's fence in `wake` is before this one (then the caller's check sees what it
        // published) or behind it (then the engine sees the bit).
        fence(Ordering::SeqCst);
    }

    /// Wakes this program's own waiters, so that they ask `there` again (the daemon is gone, say, which the engine
    /// cannot tell any more).
    pub fn poke(&self) {
        for word in &self.region.words().engine.0.wakes {
            word.bump_and_wake();
        }
    }
}

/// What [`EngineStatus::wake`] did, and what is left to do.
#[must_use = "the program may wait on its notify eventfd"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// Threads slept, and were woken by a system call.
    pub futex: bool,
    /// The program waits on its notify eventfd: raise its slot's event bit
    /// ([`EngineEvents::raise`](super::EngineEvents::raise)) and write the eventfd if that says so.
    pub notify: bool,
}

/// The engine's end of a region's status.
#[derive(Debug)]
pub struct EngineStatus {
    region: Arc<Region>,
}

impl EngineStatus {
    /// For this region.
    pub fn new(region: Arc<Region>) -> Self {
        EngineStatus { region }
    }

    /// Tells the program how the stream stands. Then [`EngineStatus::wake`] it: [`Wake::All`] when it is over.
    pub fn set_state(&self, state: StreamState) {
        // SYNC POINT state
        self.region
            .words()
            .engine
            .0
            .state
            .store(state.to_word(), Ordering::Release);
    }

    /// To be called after publishing: wakes the threads that sleep for it, and says when the program asked for its
    /// notify eventfd. One fence and one load when nobody waits.
    #[inline]
    pub fn wake(&self, what: Wake) -> Woken {
        // SYNC POINT sleep: what was published is seen by a sleeper whose bit we do not see.
        fence(Ordering::SeqCst);
        let asked = what.thread_bits() | what.fd_bits();
        if self.region.words().waiting.0.load(Ordering::Relaxed) & asked == 0 {
            return Woken::default();
        }
        self.wake_slow(what)
    }

    #[cold]
    fn wake_slow(&self, what: Wake) -> Woken {
        let words = self.region.words();
        let asked = words
            .waiting
            .0
            .fetch_and(!(what.thread_bits() | what.fd_bits()), Ordering::AcqRel);
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
