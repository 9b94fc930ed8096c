//! The caretaker's sleep, which turns of the program put off: a thread that wakes every two milliseconds on the core of a program
//! that calls all the time would only interrupt it (and be its 99th percentile).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// The first turn that long after the sleep began puts the alarm off, by [`AWAY`] at least, and then again one that comes
/// [`AGAIN_NANOS`] later: to set a timer costs 13 µs in a virtual machine, so it is done seldom enough not to be every hundredth round trip.
const STEP_NANOS: u64 = 1_000_000;
const AWAY: Duration = Duration::from_millis(10);
const AGAIN_NANOS: u64 = 8_000_000;

/// One timer; the copies are the same.
#[derive(Clone, Debug)]
pub(super) struct Alarm(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    timer: OwnedFd,
    /// From when on (in ns of the engine's clock) the next turn puts it off, and from when on none does: for the caretaker has more to
    /// do than turns.
    next: AtomicU64,
    last: AtomicU64,
    /// How long the caretaker wants to sleep, in ns.
    time: AtomicU64,
    /// It is needed, and has not slept since.
    needed: AtomicBool,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Alarm> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        let (next, last, time) = (
            AtomicU64::new(u64::MAX),
            AtomicU64::new(0),
            AtomicU64::new(0),
        );
        Ok(Alarm(Arc::new(Shared {
            timer,
            next,
            last,
            time,
            needed: AtomicBool::new(false),
        })))
    }

    /// The program has made a turn.
    #[inline]
    pub(super) fn turned(&self, now: u64) {
        if now >= self.0.next.load(Ordering::Relaxed) {
            self.set_again(now);
        }
    }

    /// Readable when it rings, until that is [heard](Alarm::heard) or slept by.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.timer.as_fd()
    }

    /// It rang, and somebody has heard it who does not sleep by it.
    pub(super) fn heard(&self) {
        self.0.needed.swap(false, Ordering::SeqCst);
        let _ = rustix::io::read(&self.0.timer, &mut [0u8; 8]);
    }

    /// No turn puts it off any more, until the next sleep: the caretaker is needed soon.
    #[cfg(feature = "tokio")]
    pub(super) fn keep(&self) {
        self.0.last.store(0, Ordering::Relaxed);
    }

    /// The caretaker is needed: if it sleeps, it wakes after so long, and turns do not put that off; if it was about to, it does not.
    pub(super) fn soon(&self, time: Duration) {
        self.0.needed.store(true, Ordering::SeqCst);
        self.0.next.store(u64::MAX, Ordering::Relaxed);
        self.set(nanos(time));
    }

    #[cold]
    fn set_again(&self, now: u64) {
        if now >= self.0.last.load(Ordering::Relaxed) {
            self.0.next.store(u64::MAX, Ordering::Relaxed);
            return;
        }
        self.0.next.store(now + AGAIN_NANOS, Ordering::Relaxed);
        self.set(self.0.time.load(Ordering::Relaxed).max(nanos(AWAY)));
    }

    /// Sleeps so long, and longer while turns put it off, at most for `most` and [`AWAY`]. `now` is of the engine's clock.
    pub(super) fn sleep(&self, now: u64, time: Duration, most: Duration) {
        self.0.time.store(nanos(time), Ordering::Relaxed);
        self.0
            .last
            .store(now.saturating_add(nanos(most)), Ordering::Relaxed);
        self.set(nanos(time));
        self.0.next.store(now + STEP_NANOS, Ordering::Relaxed);
        self.rest();
    }

    /// Sleeps so long, whatever the program does.
    pub(super) fn nap(&self, time: Duration) {
        self.set(nanos(time));
        self.rest();
    }

    /// Who says that it is needed sets the timer behind that, who goes to sleep before he looks: one of the two finds the other.
    fn rest(&self) {
        if !self.0.needed.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::read(&self.0.timer, &mut [0u8; 8]);
            self.0.needed.swap(false, Ordering::SeqCst);
        }
        self.0.next.store(u64::MAX, Ordering::Relaxed);
    }

    fn set(&self, nanos: u64) {
        // All zero would switch it off.
        let time = Duration::from_nanos(nanos.max(1));
        let it_value = Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let it_interval = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // It can only fail for nonsense in these numbers.
        let _ = timerfd_settime(
            &self.0.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec {
                it_interval,
                it_value,
            },
        );
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_millis(5);

    #[test]
    fn it_rings_when_nobody_puts_it_off() -> io::Result<()> {
        let alarm = Alarm::new()?;
        // Comes back: that is all that can be said without asking for the time.
        alarm.sleep(0, TIME, 4 * TIME);
        alarm.turned(u64::MAX - 1);
        alarm.sleep(0, TIME, 4 * TIME);
        Ok(())
    }

    #[test]
    fn turns_put_it_off_until_its_last_moment() -> io::Result<()> {
        let alarm = Alarm::new()?;
        let (sleeper, rung) = (alarm.clone(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&rung);
        let asleep = std::thread::spawn(move || {
            sleeper.sleep(0, Duration::from_secs(3600), Duration::from_secs(1));
            told.store(true, Ordering::SeqCst);
        });
        while alarm.0.next.load(Ordering::Relaxed) == u64::MAX {
            std::thread::yield_now();
        }
        for now in 1..1000 {
            alarm.turned(now * STEP_NANOS);
            assert!(!rung.load(Ordering::SeqCst));
        }
        let next = alarm.0.next.load(Ordering::Relaxed);
        assert!(
            (999 * STEP_NANOS..1000 * STEP_NANOS + AGAIN_NANOS).contains(&next),
            "{next}"
        );
        alarm.turned(1000 * STEP_NANOS + AGAIN_NANOS);
        assert_eq!(
            alarm.0.next.load(Ordering::Relaxed),
            u64::MAX,
            "this turn is too late to put it off"
        );
        alarm.set(1);
        asleep
            .join()
            .map_err(|_| io::Error::other("the sleeper panicked"))
    }

    #[test]
    fn who_is_needed_sleeps_no_longer_and_not_at_all() -> io::Result<()> {
        const LONG: Duration = Duration::from_secs(3600);
        let alarm = Alarm::new()?;
        let sleeper = alarm.clone();
        let asleep = std::thread::spawn(move || {
            sleeper.nap(LONG);
            sleeper.sleep(0, LONG, LONG);
        });
        // Whether it is about to sleep or does: the first of them may find it awake.
        while !asleep.is_finished() {
            alarm.soon(Duration::from_nanos(1));
            std::thread::sleep(TIME / 5);
        }
        asleep
            .join()
            .map_err(|_| io::Error::other("the sleeper panicked"))?;
        alarm.soon(LONG);
        alarm.nap(LONG);
        alarm.nap(TIME);
        Ok(())
    }
}
