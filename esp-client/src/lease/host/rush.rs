//! Short writes that follow each other closely leave together.
//!
//! A frame takes the kernel 1 to 4 µs however little is in it, so of many short messages in a row each but the first may wait for the
//! call after it, and all go in one. That is only good if this call comes, and at once. What a program will do is told by what it did:
//! a write is put off
//! - behind another one of its stream, no turn and not more than [`SOON_NANOS`] ago: the first of a row leaves at once;
//! - if the program has come back so soon after each of its last writes, [`LEAST`] of them at least;
//! - not longer than [`SOON_NANOS`] after the first that was put off.
//!
//! What a program that went away left behind is sent by the caretaker, which looks every [`STEP`] while writes are put off.
//!
//! All this has to pay: against what it saved stand the time by which something came late, and the caretaker's looks. What the savings do
//! not cover makes the program come back twice as often before the next write is put off.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use esp_engine::Clock;

use super::Host;

const SOON_NANOS: u64 = 10_000;
/// What a frame less saves its sender at least.
const SAVED_NANOS: u64 = 1_000;
/// Savings that are remembered: a program that changes its ways shall not live on them for long.
const MOST_SAVED_NANOS: u64 = 4_000_000;
/// What it costs that the caretaker begins to look, and wakes until nothing is put off any longer: an alarm is set and [`STEPS`] times heard.
const LOOKS_NANOS: u64 = 30_000;
/// Writes after which a program must have come back before one is put off.
const LEAST: u32 = 16;
/// The most, of a program that went away again and again.
const MOST: u32 = 1 << 20;
/// After so many times as many half as many are enough: it may have been the machine that stood still, and to find that out costs a [`STEP`] for
/// thousands of writes.
const TRUSTED: u32 = 256;
/// How often the caretaker looks, and how many times more when nothing is put off any longer.
pub(in crate::lease) const STEP: Duration = Duration::from_millis(2);
const STEP_NANOS: u64 = 2_000_000;
const STEPS: u32 = 5;
/// It leaves what is younger to the program.
const LEFT_NANOS: u64 = 50_000;

/// What is known of the program's pace. Of all threads together: what two of them miscount at once costs them trust at worst.
#[derive(Debug)]
pub(super) struct Rush {
    /// When the last write was made, if nothing has come since; in ns of the engine's clock, 0: something has.
    written: AtomicU64,
    /// When the first write was put off that has not left; 0: all have.
    since: AtomicU64,
    /// Writes in a row that the program came back after at once.
    row: AtomicU32,
    /// Writes that it came back after at once since it was last trusted more or less.
    good: AtomicU32,
    /// What was saved and not paid for anything.
    saved: AtomicU64,
    /// How many it takes.
    need: AtomicU32,
    /// The caretaker looks.
    watched: AtomicBool,
    /// Something was put off since its last look.
    used: AtomicBool,
    /// Looks since then, and when the last of them was.
    idle: AtomicU32,
    looked: AtomicU64,
}

impl Default for Rush {
    fn default() -> Rush {
        Rush {
            written: AtomicU64::new(0),
            since: AtomicU64::new(0),
            row: AtomicU32::new(0),
            good: AtomicU32::new(0),
            saved: AtomicU64::new(0),
            need: AtomicU32::new(LEAST),
            watched: AtomicBool::new(false),
            used: AtomicBool::new(false),
            idle: AtomicU32::new(0),
            looked: AtomicU64::new(0),
        }
    }
}

impl Rush {
    /// A write has been made, and was sent.
    #[inline]
    pub(super) fn wrote(&self, now: u64) {
        self.written.store(now, Ordering::Relaxed);
    }

    /// Is something put off?
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0
    }

    /// The last turn was made at `now`: nothing that was put off before waits any more, but for the peer.
    #[inline]
    pub(super) fn turned(&self, now: u64) {
        if now > self.written.load(Ordering::Relaxed) {
            self.came_back(now);
            if self.waits() {
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
        if now.saturating_sub(written) <= SOON_NANOS {
            self.row.store(
                self.row.load(Ordering::Relaxed).saturating_add(1),
                Ordering::Relaxed,
            );
            let good = self.good.load(Ordering::Relaxed).saturating_add(1);
            self.good.store(good, Ordering::Relaxed);
            let need = self.need.load(Ordering::Relaxed);
            if need > LEAST && good >= need.saturating_mul(TRUSTED) {
                self.trust(need / 2);
            }
            return;
        }
        self.row.store(0, Ordering::Relaxed);
        let since = self.since.load(Ordering::Relaxed);
        if since != 0 {
            self.pay(now.saturating_sub(since));
        }
    }

    fn trust(&self, need: u32) {
        self.need.store(need, Ordering::Relaxed);
        self.good.store(0, Ordering::Relaxed);
    }

    /// So much did it cost.
    fn pay(&self, nanos: u64) {
        let saved = self.saved.load(Ordering::Relaxed);
        self.saved
            .store(saved.saturating_sub(nanos), Ordering::Relaxed);
        if saved < nanos {
            self.trust(
                self.need
                    .load(Ordering::Relaxed)
                    .saturating_mul(2)
                    .min(MOST),
            );
        }
    }

    /// Can the next write be one that waits? Asked before the time is.
    #[inline]
    fn may_allow(&self) -> bool {
        self.row.load(Ordering::Relaxed).saturating_add(1) >= self.need.load(Ordering::Relaxed)
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

    /// The caretaker shall look, now or soon. True: it has to be told.
    #[inline]
    fn watch(&self) -> bool {
        self.used.store(true, Ordering::SeqCst);
        !self.watched.load(Ordering::SeqCst) && !self.watched.swap(true, Ordering::SeqCst)
    }

    /// A write waits, and somebody [looks](Rush::watch).
    #[inline]
    fn defer(&self, now: u64) {
        self.written.store(now, Ordering::Relaxed);
        if !self.waits() {
            self.since.store(now, Ordering::Relaxed);
            return;
        }
        // It shares the frame of another one.
        let saved = self.saved.load(Ordering::Relaxed) + SAVED_NANOS;
        self.saved
            .store(saved.min(MOST_SAVED_NANOS), Ordering::Relaxed);
    }

    /// The caretaker's look: whether something has waited too long, and whether it is to look again.
    fn look(&self, now: u64) -> (bool, bool) {
        let since = self.since.load(Ordering::Relaxed);
        let left = since != 0 && now.saturating_sub(since) >= LEFT_NANOS;
        // It may come more often, for other reasons.
        if now.saturating_sub(self.looked.load(Ordering::Relaxed)) < STEP_NANOS {
            return (left, true);
        }
        self.looked.store(now, Ordering::Relaxed);
        let idle = if self.used.swap(false, Ordering::Relaxed) {
            0
        } else {
            self.idle.load(Ordering::Relaxed) + 1
        };
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
        } else {
            self.pay(LOOKS_NANOS);
        }
        (left, again)
    }
}

impl Host {
    /// Has the engine see to a slot with the program's next call, if that is likely to come soon; `last`: when the slot's last write was made.
    /// Says when that was. `None`: it cannot wait.
    #[inline]
    pub(in crate::lease) fn put_off(&self, slot: u16, last: u64) -> Option<u64> {
        if !self.rush.may_allow()
            || last < self.last_turn.load(Ordering::Relaxed)
            || self.is_forked()
        {
            return None;
        }
        let now = Clock.now().as_nanos();
        if !self.rush.allows(now, last) {
            return None;
        }
        if self.rush.watch() {
            // To set an alarm takes as long as to send: this one leaves at once, and those behind it wait.
            self.alarm.soon(STEP);
            return None;
        }
        if self.doorbell.ring(slot) {
            // A driver sleeps, and sends it.
            self.interrupt();
        } else {
            self.rush.defer(now);
        }
        Some(now)
    }

    /// Sends what was put off.
    #[inline]
    pub(crate) fn send_put_off(&self) {
        if self.rush.waits() {
            self.poll(false);
        }
    }

    /// The caretaker's part: sends what was put off by a program that went away. True: it is to look again after a [`STEP`].
    pub(in crate::lease) fn see_rush(&self) -> bool {
        if !self.rush.watched.load(Ordering::SeqCst) || self.is_forked() {
            return false;
        }
        let (left, again) = self.rush.look(Clock.now().as_nanos());
        if left {
            self.poll(true);
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What setting the alarm takes.
    const ARMED_NANOS: u64 = 12_000;

    /// A write every µs, `count` of them, and another one if that ends when nothing waits; how many waited. As [`Host`] does it.
    fn write(rush: &Rush, now: &mut u64, count: u32) -> u32 {
        let (mut waited, mut last) = (0, 0); // there was a turn before
        for _ in 0..count {
            waited += write_one(rush, now, &mut last);
        }
        let idle = !rush.waits();
        if waited > 0 && idle {
            waited + write_one(rush, now, &mut last)
        } else {
            waited
        }
    }

    fn write_one(rush: &Rush, now: &mut u64, last: &mut u64) -> u32 {
        *now += 1000;
        let mut waits = rush.may_allow() && rush.allows(*now, *last);
        if waits && rush.watch() {
            *now += ARMED_NANOS;
            waits = false;
        }
        if waits {
            rush.defer(*now);
        } else {
            rush.turned(*now);
            rush.wrote(*now);
        }
        *last = *now;
        waits.into()
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

    /// The same, but the program makes a turn right behind each row, and the caretaker looks meanwhile if it was told to; and who was away for
    /// long takes a while for the first write of the next.
    fn answered_rows(
        rush: &Rush,
        now: &mut u64,
        rows: u32,
        count: u32,
        away: Duration,
    ) -> Vec<u32> {
        let row = |_| {
            if away > Duration::ZERO {
                rush.wrote(*now);
                *now += 2 * SOON_NANOS;
            }
            let waited = write(rush, now, count);
            *now += 1000;
            rush.turned(*now);
            let end = *now + away.as_nanos() as u64;
            while *now + STEP_NANOS < end && rush.watched.load(Ordering::Relaxed) {
                *now += STEP_NANOS;
                rush.look(*now);
            }
            *now = end;
            waited
        };
        (0..rows).map(row).collect()
    }

    #[test]
    fn only_who_comes_back_again_and_again_has_to_wait() {
        let (rush, mut now) = (Rush::default(), 1);
        assert_eq!(write(&rush, &mut now, LEAST), 0, "not known yet");
        let waited = write(&rush, &mut now, 110);
        assert!(
            (95..110).contains(&waited),
            "{waited}: one in twelve takes the others along"
        );
        now += 2 * SOON_NANOS;
        assert!(!rush.allows(now, now - 1), "it went away");
    }

    #[test]
    fn the_caretaker_is_told_once_and_that_one_leaves() {
        let (rush, mut now, mut told) = (Rush::default(), 1, 0);
        write(&rush, &mut now, LEAST);
        let mut last = now;
        for _ in 0..3 {
            let before = now;
            let waits = write_one(&rush, &mut now, &mut last);
            told += u32::from(now - before > 1000);
            assert_eq!(waits == 0, told == 1 && now - before > 1000);
        }
        assert_eq!(told, 1);
    }

    #[test]
    fn a_program_that_always_goes_away_is_not_believed_twice() {
        let (rush, mut now) = (Rush::default(), 1);
        let waited = rows(&rush, &mut now, 50, 2 * LEAST, 100_000);
        assert!(
            waited[0] > 0 && waited[1..].iter().all(|waited| *waited == 0),
            "{waited:?}"
        );
        let (rush, mut now) = (Rush::default(), 1);
        let waited = rows(&rush, &mut now, 50, 16 * LEAST, 5_000_000);
        assert!(waited[5..].iter().all(|waited| *waited == 0), "{waited:?}");
    }

    #[test]
    fn a_moment_after_many_is_nothing() {
        let (rush, mut now) = (Rush::default(), 1);
        let waited = rows(&rush, &mut now, 50, 8 * LEAST, 25_000);
        assert!(
            waited.iter().all(|waited| *waited > LEAST / 2),
            "{waited:?}"
        );
    }

    #[test]
    fn what_it_takes_to_set_the_alarm_is_not_the_programs_absence() {
        let (rush, mut now) = (Rush::default(), 1);
        let waited = answered_rows(&rush, &mut now, 100, 64, Duration::from_millis(20));
        assert!(waited[2..].iter().all(|waited| *waited > 30), "{waited:?}");
        assert_eq!(rush.need.load(Ordering::Relaxed), LEAST);
    }

    #[test]
    fn few_writes_now_and_then_are_not_worth_the_looks() {
        for count in [2, 8] {
            let (rush, mut now) = (Rush::default(), 1);
            let waited = answered_rows(&rush, &mut now, 5000, count, Duration::from_millis(20));
            assert!(waited[4000..].iter().sum::<u32>() < 50, "{waited:?}");
        }
        let (rush, mut now) = (Rush::default(), 1);
        let waited = answered_rows(&rush, &mut now, 5000, 8, Duration::ZERO);
        assert!(
            waited[4000..].iter().all(|waited| *waited > 5),
            "nobody looks in vain there: {waited:?}"
        );
    }

    /// What was put off alone has saved nothing.
    #[test]
    fn a_frame_that_has_to_go_anyhow_pays_for_nothing() {
        let (rush, mut now) = (Rush::default(), 1);
        answered_rows(&rush, &mut now, 3000, 2, Duration::ZERO);
        assert!(write(&rush, &mut now, 2) > 0);
        now += STEP_NANOS;
        rush.turned(now);
        assert_eq!(rush.need.load(Ordering::Relaxed), 2 * LEAST);
    }

    #[test]
    fn trust_comes_back() {
        let (rush, mut now) = (Rush::default(), 1);
        let waited = rows(&rush, &mut now, 5, 64 * LEAST, 5_000_000);
        assert!(waited.iter().all(|waited| *waited > 0), "{waited:?}");
        let need = rush.need.load(Ordering::Relaxed);
        assert_eq!(need, 32 * LEAST);
        // Whatever it does between its rows.
        answered_rows(
            &rush,
            &mut now,
            2 * TRUSTED * need / 1024,
            1024,
            Duration::from_millis(20),
        );
        assert_eq!(rush.need.load(Ordering::Relaxed), LEAST);
    }

    #[test]
    fn the_caretaker_sends_what_was_left_and_looks_until_nothing_is() {
        let (rush, mut now) = (Rush::default(), 1);
        assert!(write(&rush, &mut now, 2 * LEAST) > 0 && rush.waits());
        assert_eq!(rush.look(now + 1000), (false, true), "the program is there");
        now += STEP_NANOS;
        assert_eq!(rush.look(now), (true, true));
        assert_eq!(rush.look(now + 1000), (true, true), "too soon to count");
        rush.turned(now);
        assert!(!rush.waits());
        let mut looks = 0;
        while rush.look(now).1 {
            (looks, now) = (looks + 1, now + STEP_NANOS);
            assert!(looks < 2 * STEPS);
        }
        assert_eq!(looks, STEPS);
        assert!(!rush.watched.load(Ordering::Relaxed));
        assert!(rush.watch(), "it has to be told again");
    }
}
