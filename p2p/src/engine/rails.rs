//! Which of several lanes to a peer carry the fragments of a message, and how much of it each.
//!
//! Two ways to a peer are not twice as fast because there are two: they may share a cable, a switch, a CPU. So nothing is believed and everything
//! measured, by the sender, for each peer and class of lengths: first every lane alone, then the two fastest together, then, if that was a
//! gain, the three fastest, and so on. More lanes are used where they delivered clearly more than fewer did. Now and then another way is looked at
//! again, the more seldom the more often that was in vain. Within a message each lane gets its share by what it delivered alone, so that
//! all of them end at the same time. Time comes from the caller.

use std::fmt::Write as _;

use super::meter::{CLASSES, FROM, Meter, class_of};

/// Most lanes for one peer.
pub(crate) const MOST: usize = 4;
/// Each alone, and the fastest two, three, four together.
const WAYS: usize = 2 * MOST - 1;
/// Bytes of a measurement, at least.
const SAMPLE: u64 = 4 << 20;
/// A way that was not used is measured until it does not become so much faster any more, this often at most: windows have to open first.
const RISE: f64 = 1.15;
const TRIES: u32 = 6;
/// More lanes are taken when they deliver so much more than fewer, and kept while it is still so much.
const GAIN: f64 = 1.15;
const STILL: f64 = 1.05;
/// Measurements between looks at another way, and at most.
const EVERY: u32 = 64;
const EVERY_MOST: u32 = 4096;

/// What one message's fragments go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    way: usize,
    /// Bytes that each lane is still to take.
    pub(crate) share: [usize; MOST],
}

#[derive(Clone, Copy, Debug)]
struct Class {
    current: usize,
    /// What `current` is compared with; `None`: not all is measured.
    winner: Option<usize>,
    /// What comes first by another way finds connections to be made and windows to be opened.
    warm: bool,
    /// Bytes per nanosecond; 0: not known.
    rates: [f64; WAYS],
    bytes: u64,
    nanos: u64,
    /// Of a way that was not used: the best measurement so far, and their number.
    best: f64,
    tries: u32,
    measured: u32,
    every: u32,
    /// Looked at last.
    look: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rails {
    /// Lanes that may be used: the first so many of the peer's.
    lanes: usize,
    alive: [bool; MOST],
    /// What their transports say of them, MB/s.
    said: [u32; MOST],
    /// Measure; else all are always used, by what their transports say.
    adapt: bool,
    classes: [Option<Class>; CLASSES],
    meter: Meter<WAYS>,
}

impl Rails {
    /// `said`: bandwidths of the lanes, the preferred one first; at most [`MOST`].
    pub(crate) fn new(said: &[u32], adapt: bool) -> Rails {
        let mut rails = Rails {
            lanes: said.len().min(MOST),
            alive: [false; MOST],
            said: [1; MOST],
            adapt,
            classes: [None; CLASSES],
            meter: Meter::new(),
        };
        for ((alive, place), said) in rails.alive.iter_mut().zip(&mut rails.said).zip(said) {
            (*alive, *place) = (true, (*said).max(1));
        }
        rails
    }

    /// A lane is gone: what was known of its company is not known any more.
    pub(crate) fn lost(&mut self, lane: usize) {
        if let Some(alive) = self.alive.get_mut(lane) {
            *alive = false;
        }
        self.classes = [None; CLASSES];
    }

    /// A message whose fragments begin to go out now; `piece`: bytes of a fragment.
    pub(crate) fn begin(&mut self, now: u64, length: usize, piece: usize) -> Plan {
        let at = class_of(length);
        let first = self.alive.iter().position(|alive| *alive).unwrap_or(0);
        let way = if self.adapt {
            self.classes.get_mut(at).map_or(first, |class| {
                class.get_or_insert(Class::new(first)).current
            })
        } else {
            self.together(self.alive.iter().filter(|alive| **alive).count())
        };
        self.meter.begin(now, at, way);
        Plan {
            way,
            share: self.shares(at, way, length, piece.max(1)),
        }
    }

    /// All of a message has arrived.
    pub(crate) fn over(&mut self, now: u64, length: usize, plan: &Plan) {
        let Some(sample) = self.meter.over(now, length, plan.way) else {
            return;
        };
        let Some(Some(mut class)) = self.classes.get(sample.class).copied() else {
            return;
        };
        if class.take(sample.way, sample.bytes, sample.nanos) {
            self.decide(&mut class);
        }
        if let Some(place) = self.classes.get_mut(sample.class) {
            *place = Some(class);
        }
    }

    /// Are the shortest messages that are measured better off with several lanes? Then so are streams of shorter ones.
    pub(crate) fn helps_short(&self) -> bool {
        let settled = |class: &Class| class.winner.is_some_and(|way| way >= self.lanes);
        !self.adapt
            || self
                .classes
                .first()
                .is_some_and(|class| class.as_ref().is_some_and(settled))
    }

    /// The number of the way "the fastest so many together".
    fn together(&self, count: usize) -> usize {
        if count < 2 {
            self.alive.iter().position(|alive| *alive).unwrap_or(0)
        } else {
            self.lanes + count - 2
        }
    }

    fn rate(&self, class: Option<&Class>, lane: usize) -> f64 {
        let measured = class
            .and_then(|class| class.rates.get(lane))
            .copied()
            .unwrap_or(0.0);
        if measured > 0.0 {
            measured
        } else {
            f64::from(self.said.get(lane).copied().unwrap_or(1)) / 1000.0
        }
    }

    /// Lanes that are there, the fastest first.
    fn fastest(&self, class: Option<&Class>) -> Vec<usize> {
        let mut lanes: Vec<usize> = (0..self.lanes)
            .filter(|lane| self.alive.get(*lane) == Some(&true))
            .collect();
        lanes.sort_by(|a, b| self.rate(class, *b).total_cmp(&self.rate(class, *a)));
        lanes
    }

    fn shares(&self, at: usize, way: usize, length: usize, piece: usize) -> [usize; MOST] {
        let mut share = [0; MOST];
        if way < self.lanes {
            if let Some(share) = share.get_mut(way) {
                *share = length;
            }
            return share;
        }
        let class = self.classes.get(at).and_then(Option::as_ref);
        let mut lanes = self.fastest(class);
        lanes.truncate(way + 2 - self.lanes);
        let mut rates: f64 = lanes.iter().map(|lane| self.rate(class, *lane)).sum();
        let mut left = length;
        for lane in lanes {
            let rate = self.rate(class, lane);
            // Of what is left, in whole fragments; so the last one gets the rest.
            let part = ((left as f64 * rate / rates / piece as f64 - 0.01)
                .ceil()
                .max(0.0) as usize)
                .saturating_mul(piece)
                .min(left);
            if let Some(share) = share.get_mut(lane) {
                *share = part;
            }
            (left, rates) = (left - part, (rates - rate).max(f64::MIN_POSITIVE));
        }
        share
    }

    /// Whether a way can be used, and is worth a measurement: more than two together only after fewer were a gain.
    fn is_candidate(&self, class: &Class, way: usize) -> bool {
        if way < self.lanes {
            return self.alive.get(way) == Some(&true);
        }
        let count = way + 2 - self.lanes;
        let alive = self.alive.iter().filter(|alive| **alive).count();
        let fewer = if count == 2 {
            0.0
        } else {
            class.rates.get(way - 1).copied().unwrap_or(0.0)
        };
        count <= alive && (count == 2 || fewer >= self.best_alone(class).1 * GAIN)
    }

    fn best_alone(&self, class: &Class) -> (usize, f64) {
        let known = |lane: &usize| self.alive.get(*lane) == Some(&true);
        let rate = |lane: usize| (lane, class.rates.get(lane).copied().unwrap_or(0.0));
        let best = (0..self.lanes)
            .filter(known)
            .map(rate)
            .reduce(|a, b| if b.1 > a.1 { b } else { a });
        best.unwrap_or((0, 0.0))
    }

    fn winner(&self, class: &Class) -> usize {
        let (mut way, mut best) = self.best_alone(class);
        for more in self.lanes..2 * self.lanes - 1 {
            let rate = class.rates.get(more).copied().unwrap_or(0.0);
            let enough = if class.winner == Some(more) {
                STILL
            } else {
                GAIN
            };
            if self.is_candidate(class, more) && rate >= best * enough {
                (way, best) = (more, rate);
            }
        }
        way
    }

    /// After a measurement.
    fn decide(&self, class: &mut Class) {
        let ways = 2 * self.lanes - 1;
        let unknown =
            |way: &usize| self.is_candidate(class, *way) && class.rates.get(*way) == Some(&0.0);
        if let Some(way) = (0..ways).find(unknown) {
            return class.turn_to(way);
        }
        let best = self.winner(class);
        if class.winner != Some(best) {
            (class.winner, class.every) = (Some(best), EVERY);
            class.turn_to(best);
        } else if class.current != best {
            class.every = (class.every * 2).min(EVERY_MOST);
            class.turn_to(best);
        } else if class.measured >= class.every {
            let others = (1..ways).map(|step| (class.look + step) % ways);
            let other = others
                .into_iter()
                .find(|way| *way != best && self.is_candidate(class, *way));
            if let Some(way) = other {
                class.look = way;
                class.turn_to(way);
            }
        }
    }

    /// For people: what was measured and decided for each class of lengths.
    pub(crate) fn words(&self) -> Vec<String> {
        if !self.adapt {
            return vec!["all together, without a measurement (`adapt` is off)".into()];
        }
        let known = |(at, class): (usize, &Option<Class>)| Some((at, (*class)?));
        self.classes
            .iter()
            .enumerate()
            .filter_map(known)
            .map(|(at, class)| self.say(at, &class))
            .collect()
    }

    fn say(&self, at: usize, class: &Class) -> String {
        let name = |way: usize| {
            if way < self.lanes {
                format!("way {way} alone")
            } else {
                format!("the fastest {} together", way + 2 - self.lanes)
            }
        };
        let from = if at == 0 {
            FROM
        } else {
            1 << (FROM.ilog2() as usize + at)
        };
        let mut text = format!("messages from {} KiB:", from >> 10);
        for (way, rate) in class
            .rates
            .iter()
            .enumerate()
            .filter(|(_, rate)| **rate > 0.0)
        {
            let _ = write!(text, " {} {:.0} MB/s,", name(way), rate * 1000.0);
        }
        match class.winner {
            Some(way) => {
                let _ = write!(text, " so {}", name(way));
            }
            None => text.push_str(" not measured to the end"),
        }
        text
    }
}

impl Class {
    fn new(first: usize) -> Class {
        Class {
            current: first,
            winner: None,
            warm: false,
            rates: [0.0; WAYS],
            bytes: 0,
            nanos: 0,
            best: 0.0,
            tries: 0,
            measured: 0,
            every: EVERY,
            look: 0,
        }
    }

    /// Whether a measurement is complete.
    fn take(&mut self, way: usize, bytes: u64, nanos: u64) -> bool {
        if way != self.current || !std::mem::replace(&mut self.warm, true) {
            return false;
        }
        self.bytes += bytes;
        self.nanos += nanos.max(1);
        if self.bytes < SAMPLE {
            return false;
        }
        let rate = self.bytes as f64 / self.nanos as f64;
        (self.bytes, self.nanos) = (0, 0);
        let settled = self.winner == Some(way);
        if !settled {
            let rises = self.best == 0.0 || rate > self.best * RISE;
            (self.best, self.tries) = (self.best.max(rate), self.tries + 1);
            if rises && self.tries < TRIES {
                return false;
            }
        }
        if let Some(known) = self.rates.get_mut(way) {
            *known = if settled {
                (*known + rate) / 2.0
            } else {
                self.best
            };
        }
        self.measured += 1;
        true
    }

    fn turn_to(&mut self, way: usize) {
        (
            self.current,
            self.warm,
            self.bytes,
            self.nanos,
            self.measured,
        ) = (way, false, 0, 0, 0);
        (self.best, self.tries) = (0.0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages one after the other over lanes of these speeds (bytes per nanosecond) behind a bottleneck; bytes by lane of the last half.
    fn run(
        speeds: &[f64],
        bottleneck: f64,
        length: usize,
        change: impl Fn(u32) -> f64,
    ) -> [u64; MOST] {
        let mut rails = Rails::new(&vec![1000; speeds.len()], true);
        let mut now = 0;
        let mut carried = [0; MOST];
        let count = 4000;
        for number in 0..count {
            let plan = rails.begin(now, length, 64 << 10);
            let alone =
                |(lane, share): (usize, &usize)| *share as f64 / speeds.get(lane).unwrap_or(&1.0);
            let time = plan.share.iter().enumerate().map(alone).fold(0.0, f64::max);
            now += time.max(length as f64 / (bottleneck * change(number))) as u64;
            assert_eq!(plan.share.iter().sum::<usize>(), length);
            rails.over(now, length, &plan);
            now += 100;
            if number >= count / 2 {
                carried
                    .iter_mut()
                    .zip(plan.share)
                    .for_each(|(sum, share)| *sum += share as u64);
            }
        }
        carried
    }

    fn parts(carried: [u64; MOST]) -> [f64; MOST] {
        let all: u64 = carried.iter().sum();
        carried.map(|bytes| bytes as f64 / all as f64)
    }

    #[test]
    fn two_that_add_up_are_used_together_by_their_speeds() {
        let even = parts(run(&[1.0, 1.0], 100.0, 4 << 20, |_| 1.0));
        assert!((0.45..=0.55).contains(&even[0]), "{even:?}");
        let uneven = parts(run(&[0.25, 1.0], 100.0, 4 << 20, |_| 1.0));
        assert!((0.15..=0.25).contains(&uneven[0]), "{uneven:?}");
        let four = parts(run(&[1.0; 4], 100.0, 4 << 20, |_| 1.0));
        assert!(
            four.iter().all(|part| (0.2..=0.3).contains(part)),
            "{four:?}"
        );
    }

    #[test]
    fn two_that_share_a_bottleneck_are_not() {
        let parts = parts(run(&[1.0, 1.0], 1.05, 1 << 20, |_| 1.0));
        assert!(parts[0].max(parts[1]) > 0.95, "{parts:?}");
    }

    #[test]
    fn the_fastest_alone_is_found_whatever_was_preferred() {
        let parts = parts(run(&[0.05, 1.0], 1.0, 256 << 10, |_| 1.0));
        assert!(parts[1] > 0.95, "{parts:?}");
    }

    #[test]
    fn a_gain_that_goes_is_given_up() {
        let parts = parts(run(&[1.0, 1.0], 2.0, 4 << 20, |number| {
            if number < 500 { 1.0 } else { 0.5 }
        }));
        assert!(parts[0].max(parts[1]) > 0.9, "{parts:?}");
    }

    #[test]
    fn a_way_whose_window_opens_slowly_is_not_underrated() {
        // Each lane alone delivers a fifth at first; both share a bottleneck.
        let mut rails = Rails::new(&[1000, 1000], true);
        let (mut now, mut warmth) = (0, [0.2_f64; 2]);
        let length = 4 << 20;
        for _ in 0..200 {
            let plan = rails.begin(now, length, 64 << 10);
            let used = plan.share.map(|share| share > 0);
            let speed: f64 = warmth
                .iter()
                .zip(used)
                .filter(|(_, used)| *used)
                .map(|(warmth, _)| warmth)
                .sum();
            now += (length as f64 / speed.min(1.0)) as u64;
            for (warmth, used) in warmth.iter_mut().zip(used) {
                *warmth = if used {
                    (*warmth * 1.3).min(1.0)
                } else {
                    *warmth
                };
            }
            rails.over(now, length, &plan);
        }
        assert!(rails.words()[0].ends_with("alone"), "{:?}", rails.words());
    }

    #[test]
    fn one_that_is_lost_carries_nothing() {
        let mut rails = Rails::new(&[1000, 1000, 1000], true);
        rails.lost(0);
        let mut now = 0;
        for _ in 0..200 {
            let plan = rails.begin(now, 4 << 20, 64 << 10);
            assert_eq!(
                (plan.share[0], plan.share.iter().sum::<usize>()),
                (0, 4 << 20)
            );
            now += plan.share.into_iter().max().unwrap_or(0) as u64;
            rails.over(now, 4 << 20, &plan);
        }
        assert!(
            rails.words()[0].contains("so the fastest 2 together"),
            "{:?}",
            rails.words()
        );
        rails.lost(2);
        let plan = rails.begin(now, 4 << 20, 64 << 10);
        assert_eq!(plan.share, [0, 4 << 20, 0, 0]);
    }

    #[test]
    fn without_measuring_all_are_used_as_their_transports_say() {
        let mut rails = Rails::new(&[1000, 3000], false);
        let plan = rails.begin(0, 1 << 20, 1 << 10);
        assert_eq!(plan.share, [256 << 10, 768 << 10, 0, 0]);
        rails.over(1, 1 << 20, &plan);
        assert!(rails.helps_short());
        // Nothing is cut finer than a fragment.
        assert_eq!(rails.begin(2, 100, 64).share, [0, 100, 0, 0]);
    }
}
