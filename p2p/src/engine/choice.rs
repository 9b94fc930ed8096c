//! Which way the bytes of announced messages come: fetched by `get` (one copy), or sent in fragments (two copies).
//!
//! Which one delivers more depends on the machine, the length, who else uses the memory, and on a virtual machine on where the host has
//! put its processors just now, so no threshold is right for long. The receiver, who decides, measures: bytes over the time in which it
//! waited for messages of one length that came one way. What begins as the transport says is compared with the other way at
//! once, and again now and then; the worse the other one was, the more seldom. A scheduler that takes the core away for milliseconds makes a
//! measurement look bad that is not, never good: of the last few the best one counts, and after a change the way before is looked at soon
//! once more. Time comes from the caller.

use std::fmt;

pub(crate) use super::meter::FROM;
use super::meter::{CLASSES, Meter, class_of};

/// A way of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Get,
    Fragments,
}

impl Route {
    fn other(self) -> Route {
        match self {
            Route::Get => Route::Fragments,
            Route::Fragments => Route::Get,
        }
    }
}

/// Bytes of a measurement, at least.
const SAMPLE: u64 = 1 << 20;
/// Measurements between looks at the other way, and at most.
const EVERY: u32 = 64;
const EVERY_MOST: u32 = 2048;
/// The same after a change of the way, until the change is confirmed.
const SOON: u32 = 8;
/// So many measurements of a way are remembered.
const REMEMBERED: usize = 3;

#[derive(Clone, Copy)]
struct Class {
    current: Route,
    /// The current way is only looked at.
    trial: bool,
    /// Bytes per nanosecond of the last measurements, by way; 0: none.
    rates: [[f64; REMEMBERED]; 2],
    /// Of the measurement that goes on.
    bytes: u64,
    nanos: u64,
    measured: u32,
    every: u32,
}

/// What one peer's messages have shown.
pub(crate) struct Choice {
    classes: [Option<Class>; CLASSES],
    meter: Meter<2>,
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Choice")
            .field("open", &self.meter.open())
            .finish_non_exhaustive()
    }
}

impl Class {
    fn new(first: Route) -> Class {
        Class {
            current: first,
            trial: false,
            rates: [[0.0; REMEMBERED]; 2],
            bytes: 0,
            nanos: 0,
            measured: 0,
            every: EVERY,
        }
    }

    fn add(&mut self, route: usize, bytes: u64, nanos: u64) {
        if route != self.current as usize {
            return;
        }
        self.bytes += bytes;
        self.nanos += nanos.max(1);
        if self.bytes < SAMPLE {
            return;
        }
        let rate = self.bytes as f64 / self.nanos as f64;
        (self.bytes, self.nanos) = (0, 0);
        let known = &mut self.rates[route];
        known.rotate_right(1);
        known[0] = rate;
        self.measured += 1;
        self.decide();
    }

    /// The best of the last measurements of a way.
    fn rate(&self, way: Route) -> f64 {
        self.rates[way as usize].into_iter().fold(0.0, f64::max)
    }

    fn decide(&mut self) {
        let (here, there) = (self.rate(self.current), self.rate(self.current.other()));
        if self.trial {
            self.trial = false;
            // The one that was used before stays unless it is clearly worse.
            if here <= there * 1.05 {
                self.current = self.current.other();
                self.every = if here < there * 0.7 {
                    (self.every * 2).clamp(EVERY, EVERY_MOST)
                } else {
                    EVERY
                };
            } else {
                self.every = SOON;
            }
            self.measured = 0;
        } else if there == 0.0 || self.measured >= self.every {
            self.current = self.current.other();
            // What it did long ago does not count.
            self.rates[self.current as usize] = [0.0; REMEMBERED];
            self.trial = true;
        }
    }
}

impl Choice {
    pub(crate) fn new() -> Choice {
        Choice {
            classes: [None; CLASSES],
            meter: Meter::new(),
        }
    }

    /// The way of a message that begins now (nanoseconds of any clock). `first`: what the transport says is better for such messages.
    pub(crate) fn begin(&mut self, now: u64, length: usize, first: Route) -> Route {
        let at = class_of(length);
        let route = self.classes[at]
            .get_or_insert_with(|| Class::new(first))
            .current;
        self.meter.begin(now, at, route as usize);
        route
    }

    /// A message that came this way is complete.
    pub(crate) fn over(&mut self, now: u64, length: usize, route: Route) {
        if let Some(sample) = self.meter.over(now, length, route as usize)
            && let Some(Some(class)) = self.classes.get_mut(sample.class)
        {
            class.add(sample.way, sample.bytes, sample.nanos);
        }
    }

    /// A message does not come this way after all.
    pub(crate) fn give_up(&mut self, length: usize, route: Route) {
        self.meter.give_up(length, route as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages one after the other, each as fast as its way is; how many of the last half came by `get`.
    fn share_of_gets(length: usize, speeds: impl Fn(u32) -> [f64; 2], first: Route) -> f64 {
        let mut choice = Choice::new();
        let (mut now, mut gets) = (0, 0);
        let count = 20_000;
        for number in 0..count {
            let route = choice.begin(now, length, first);
            now += (length as f64 / speeds(number)[route as usize]) as u64;
            choice.over(now, length, route);
            now += 500;
            gets += u32::from(number >= count / 2 && route == Route::Get);
        }
        f64::from(gets) / f64::from(count / 2)
    }

    #[test]
    fn the_faster_way_is_used_and_the_other_seldom() {
        for first in [Route::Get, Route::Fragments] {
            let share = share_of_gets(64 << 10, |_| [10.0, 5.0], first);
            assert!((0.97..1.0).contains(&share), "{share}");
            let share = share_of_gets(4 << 20, |_| [5.0, 9.0], first);
            assert!(share < 0.03, "{share}");
            let share = share_of_gets(4 << 20, |_| [8.8, 9.0], first);
            assert!(
                !(0.03..=0.97).contains(&share),
                "{share}: about the same is no reason to change"
            );
        }
    }

    #[test]
    fn a_machine_that_changes_is_followed() {
        let speeds = |number| {
            if number < 6_000 {
                [5.0, 15.0]
            } else {
                [10.0, 6.0]
            }
        };
        let share = share_of_gets(256 << 10, speeds, Route::Get);
        assert!(share > 0.95, "{share}");
    }

    /// Now and then the scheduler takes the core away for milliseconds, whichever way is in use.
    #[test]
    fn a_disturbed_measurement_does_not_choose_for_long() {
        let (mut worst, mut random) = (1.0f64, 0x9E37_79B9_7F4A_7C15_u64);
        for run in 0..20 {
            let mut choice = Choice::new();
            let (mut now, mut right) = (0, 0);
            for _ in 0..20_000 {
                let route = choice.begin(now, 64 << 10, Route::Get);
                now += if route == Route::Get { 5_000 } else { 7_000 };
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // One of a hundred: one measurement in six.
                now += if random.is_multiple_of(100) {
                    4_000_000
                } else {
                    0
                };
                choice.over(now, 64 << 10, route);
                right += u32::from(route == Route::Get);
            }
            let share = f64::from(right) / 20_000.0;
            println!("run {run}: {share}");
            worst = worst.min(share);
        }
        assert!(worst > 0.9, "{worst}");
    }

    #[test]
    fn windows_are_measured_as_a_whole_and_change_their_way() {
        // 64 messages at a time; together they take what their ways take.
        let mut choice = Choice::new();
        let length = 64 << 10;
        let mut now = 0;
        let mut gets = 0;
        for window in 0..500 {
            let routes: Vec<Route> = (0..64)
                .map(|_| choice.begin(now, length, Route::Fragments))
                .collect();
            for route in routes {
                now += if route == Route::Get { 6_000 } else { 12_000 };
                choice.over(now, length, route);
                gets += u32::from(window >= 250 && route == Route::Get);
            }
        }
        assert!(gets > 250 * 64 * 9 / 10, "{gets}");
    }

    #[test]
    fn a_stream_without_pause_changes_its_way_too() {
        let mut choice = Choice::new();
        let length = 1 << 20;
        let mut open: std::collections::VecDeque<Route> = Default::default();
        let (mut now, mut gets) = (0, 0);
        for number in 0..8_000 {
            open.push_back(choice.begin(now, length, Route::Fragments));
            if open.len() == 8
                && let Some(route) = open.pop_front()
            {
                now += if route == Route::Get {
                    100_000
                } else {
                    200_000
                };
                choice.over(now, length, route);
                gets += u32::from(number >= 4_000 && route == Route::Get);
            }
        }
        assert!(gets > 3_600, "{gets}");
    }

    #[test]
    fn mixed_lengths_and_refusals_are_not_measured() {
        let mut choice = Choice::new();
        for _ in 0..1000 {
            let a = choice.begin(0, 64 << 10, Route::Get);
            let b = choice.begin(0, 4 << 20, Route::Get);
            assert_eq!((a, b), (Route::Get, Route::Get));
            choice.over(10, 64 << 10, a);
            choice.over(20, 4 << 20, b);
            let c = choice.begin(30, 64 << 10, Route::Get);
            choice.give_up(64 << 10, c);
        }
        assert_eq!(choice.meter.open(), 0);
        assert!(
            choice
                .classes
                .iter()
                .flatten()
                .all(|class| class.bytes == 0 && class.measured == 0)
        );
    }
}
