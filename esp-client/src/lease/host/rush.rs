//! Short writes that follow each other closely leave together.
//!
//! A frame takes the kernel 1 to 4 µs however little is in it, so of many short messages in a row each but the first may wait for the
//! call after it, and all go in one. That is only good if this call comes, and at once. What a program will do is told by what it did:
//! a write is put off
//! - behind another one of its stream, no turn and not more than [`SOON_NANOS`] ago: the first of a row leaves at once;
//! - if the program has come back so soon after each of its last writes, [`LEAST`] of them at least;
//! - not longer than [`SOON_NANOS`] after the first that was put off.
//!
//! What a program that went away left behind is sent by the caretaker, which looks every [`STEP`] while writes are put off. If it came later
//! than all that waited before had saved ([`SAVED_NANOS`] each), the program has to come back twice as often before the next time.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use esp_engine::Clock;

use super::Host;

const SOON_NANOS: u64 = 10_000;
/// What a write that waits saves its sender at least.
const SAVED_NANOS: u64 = 1_000;
/// Writes after which a program must have come back before one is put off.
const LEAST: u32 = 64;
/// The most, of a program that went away again and again.
const MOST: u32 = 1 << 20;
/// After so many times as many half as many are enough, if the program did not stay away for longer than [`LONG_NANOS`] meanwhile.
const TRUSTED: u32 = 64;
const LONG_NANOS: u64 = 50_000;
/// How often the caretaker looks, and how many times more when nothing is put off any longer.
const STEP: Duration = Duration::from_millis(2);
const STEPS: u32 = 5;
/// It leaves what is younger to the program.
const LEFT_NANOS: u64 = 50_000;

/// What is known of the program's pace. Of all threads together: what two of them miscount at once does no harm.
#[derive(Debug)]
pub(super) struct Rush {
    /// When the last write was made, if nothing has come since; in ns of the engine's clock, 0: something has.
    written: AtomicU64,
    /// When the first write was put off that has not left; 0: all have.
    since: AtomicU64,
    /// Writes in a row that the program came back after at once.
    row: AtomicU32,
    /// Writes that it came back after since it stayed away for long, or was trusted less.
    good: AtomicU32,
    /// Writes that were put off since some came late.
    waited: AtomicU64,
    /// How many it takes.
    need: AtomicU32,
    /// The caretaker looks.
    watched: AtomicBool,
    /// Something was put off since its last look.
    used: AtomicBool,
    /// Looks since then.
    idle: AtomicU32,
}

impl Default for Rush {
    fn default() -> Rush {
        Rush {
            written: AtomicU64::new(0),
            since: AtomicU64::new(0),
            row: AtomicU32::new(0),
            good: AtomicU32::new(0),
            waited: AtomicU64::new(0),
            need: AtomicU32::new(LEAST),
            watched: AtomicBool::new(false),
            used: AtomicBool::new(false),
            idle: AtomicU32::new(0),
        }
    }
}

impl Rush {
    /// A write has been made, and has left.
    #[inline]
    pub(super) fn wrote(&self, now: u64) {
        self.written.store(now, Ordering::Relaxed);
    }

    /// The last turn was made at `now`: what was put off before has left.
    #[inline]
    pub(super) fn turned(&self, now: u64) {
        if now > self.written.load(Ordering::Relaxed) {
            self.came_back(now);
            if self.since.load(Ordering::Relaxed) != 0 {
                self.since.store(0, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn came_back(&self, now: u64) {
        let written = self.written.load(Ordering::Relaxed);
        if written == 0 {
            return;
        }
        self.written.store(0, Ordering::Relaxed);
        let away = now.saturating_sub(written);
        let (row, need) = (self.row.load(Ordering::Relaxed), self.need.load(Ordering::Relaxed));
        if away <= SOON_NANOS {
            self.row.store(row.saturating_add(1), Ordering::Relaxed);
            let good = self.good.load(Ordering::Relaxed).saturating_add(1);
            self.good.store(good, Ordering::Relaxed);
            if need > LEAST && good >= need.saturating_mul(TRUSTED) {
                self.good.store(0, Ordering::Relaxed);
                self.need.store(need / 2, Ordering::Relaxed);
            }
            return;
        }
        self.row.store(0, Ordering::Relaxed);
        let since = self.since.load(Ordering::Relaxed);
        let saved =
            if since == 0 { 0 } else { self.waited.swap(0, Ordering::Relaxed).saturating_mul(SAVED_NANOS) };
        let paid = since == 0 || saved >= now.saturating_sub(since);
        if !paid {
            self.need.store(need.saturating_mul(2).min(MOST), Ordering::Relaxed);
        }
        if !paid || away > LONG_NANOS {
            self.good.store(0, Ordering::Relaxed);
        }
    }

    /// May a write wait, to a stream whose last one was made at `last`, with no turn since?
    #[inline]
    fn allows(&self, now: u64, last: u64) -> bool {
        self.came_back(now);
        let since = self.since.load(Ordering::Relaxed);
        self.row.load(Ordering::Relaxed) >= self.need.load(Ordering::Relaxed)
            && now.saturating_sub(last) <= SOON_NANOS
            && (since == 0 || now.saturating_sub(since) <= SOON_NANOS)
    }

    /// A write waits. True: the caretaker has to be told.
    #[inline]
    fn put_off(&self, now: u64) -> bool {
        self.written.store(now, Ordering::Relaxed);
        if self.since.load(Ordering::Relaxed) == 0 {
            self.since.store(now, Ordering::Relaxed);
        }
        self.waited.store(self.waited.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        self.used.store(true, Ordering::SeqCst);
        !self.watched.load(Ordering::SeqCst) && !self.watched.swap(true, Ordering::SeqCst)
    }

    /// The caretaker's look: whether something has waited too long, and whether it is to look again.
    fn look(&self, now: u64) -> (bool, bool) {
        let since = self.since.load(Ordering::Relaxed);
        let left = since != 0 && now.saturating_sub(since) >= LEFT_NANOS;
        let idle =
            if self.used.swap(false, Ordering::Relaxed) { 0 } else { self.idle.load(Ordering::Relaxed) + 1 };
        self.idle.store(idle, Ordering::Relaxed);
        if idle < STEPS {
            return (left, true);
        }
        self.idle.store(0, Ordering::Relaxed);
        self.watched.store(false, Ordering::SeqCst);
        // Who put something off meanwhile took it for granted that somebody looks.
        let again = self.used.load(Ordering::SeqCst);
        if again {
            self.watched.store(true, Ordering::SeqCst);
        }
        (left, again)
    }
}

impl Host {
    /// Has the engine see to a slot with the program's next call, if that is likely to come soon; `last`: when the slot's last write was made.
    /// Says when that was. `None`: it cannot wait.
    #[inline]
    pub(in crate::lease) fn put_off(&self, slot: u16, last: u64) -> Option<u64> {
        if last < self.last_turn.load(Ordering::Relaxed) || self.is_forked() {
            return None;
        }
        let now = Clock.now().as_nanos();
        if !self.rush.allows(now, last) {
            return None;
        }
        if self.doorbell.ring(slot) {
            // A driver sleeps, and sends it.
            self.interrupt();
        } else if self.rush.put_off(now) {
            self.alarm.soon(STEP);
        }
        Some(now)
    }

    /// Does the caretaker look?
    pub(in crate::lease) fn is_rushed(&self) -> bool {
        self.rush.watched.load(Ordering::Relaxed)
    }

    /// The caretaker's part: sends what was put off by a program that went away. True: the next step follows, and no sleep before it.
    pub(in crate::lease) fn see_rush(&self) -> bool {
        if !self.is_rushed() || self.is_forked() {
            return false;
        }
        let (left, again) = self.rush.look(Clock.now().as_nanos());
        if left {
            self.poll(true);
        }
        if again {
            std::thread::sleep(STEP);
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write every µs, `count` of them, and another one if that ends when nothing waits; how many waited. As [`Host`] does it.
    fn write(rush: &Rush, now: &mut u64, count: u32) -> u32 {
        let (mut waited, mut last) = (0, *now);
        for _ in 0..count {
            *now += 1000;
            if rush.allows(*now, last) {
                rush.put_off(*now);
                waited += 1;
            } else {
                rush.turned(*now);
                rush.wrote(*now);
            }
            last = *now;
        }
        let idle = rush.since.load(Ordering::Relaxed) == 0;
        if waited > 0 && idle { waited + write_one(rush, now) } else { waited }
    }

    fn write_one(rush: &Rush, now: &mut u64) -> u32 {
        *now += 1000;
        let waits = rush.allows(*now, *now - 1000);
        if waits {
            rush.put_off(*now);
        }
        waits.into()
    }

    #[test]
    fn only_who_comes_back_again_and_again_has_to_wait() {
        let (rush, mut now) = (Rush::default(), 1);
        assert_eq!(write(&rush, &mut now, LEAST), 0, "not known yet");
        let waited = write(&rush, &mut now, 110);
        assert!((95..110).contains(&waited), "{waited}: one in twelve takes the others along");
        now += 2 * SOON_NANOS;
        assert!(!rush.allows(now, now - 1), "it went away");
    }

    /// Rows of `count` writes, after each of which the program is away for so long: how many waited in each.
    fn rows(rush: &Rush, now: &mut u64, rows: u32, count: u32, away: u64) -> Vec<u32> {
        let row = |_| {
            let waited = write(rush, now, count);
            *now += away;
            // The caretaker's turn, or the program's next.
            rush.turned(*now);
            waited
        };
        (0..rows).map(row).collect()
    }

    #[test]
    fn a_program_that_always_goes_away_is_not_believed_twice() {
        let (rush, mut now) = (Rush::default(), 1);
        let waited = rows(&rush, &mut now, 50, 2 * LEAST, 100_000);
        assert!(waited[0] > 0 && waited[1..].iter().all(|waited| *waited == 0), "{waited:?}");
        let (rush, mut now) = (Rush::default(), 1);
        let waited = rows(&rush, &mut now, 50, 16 * LEAST, 5_000_000);
        assert!(waited[5..].iter().all(|waited| *waited == 0), "{waited:?}");
    }

    #[test]
    fn a_moment_after_many_is_nothing() {
        let (rush, mut now) = (Rush::default(), 1);
        let waited = rows(&rush, &mut now, 50, 2 * LEAST, 25_000);
        assert!(waited.iter().all(|waited| *waited > LEAST / 2), "{waited:?}");
    }

    #[test]
    fn trust_comes_back() {
        let (rush, mut now) = (Rush::default(), 1);
        let waited = rows(&rush, &mut now, 5, 64 * LEAST, 5_000_000);
        assert!(waited.iter().all(|waited| *waited > 0), "{waited:?}");
        let need = rush.need.load(Ordering::Relaxed);
        assert_eq!(need, 32 * LEAST);
        write(&rush, &mut now, 2 * TRUSTED * need);
        assert_eq!(rush.need.load(Ordering::Relaxed), LEAST);
    }

    #[test]
    fn the_caretaker_sends_what_was_left_and_looks_until_nothing_is() {
        let (rush, mut now) = (Rush::default(), 1);
        assert!(write(&rush, &mut now, 2 * LEAST) > 0);
        assert_eq!(rush.look(now + 1000), (false, true), "the program is there");
        assert_eq!(rush.look(now + LEFT_NANOS + 1000), (true, true));
        rush.turned(now + LEFT_NANOS + 1000);
        let looks = (0..2 * STEPS).take_while(|_| rush.look(now + 2 * LEFT_NANOS).1).count();
        assert!(looks as u32 + 3 >= STEPS, "{looks}");
        assert!(!rush.watched.load(Ordering::Relaxed));
    }
}
