//! How fast messages of one length come one way: bytes over the time in which only such messages were under way.
//!
//! Several ways can be compared by this without a clock for each message: what is mixed is not measured.

/// Lengths are told apart by their logarithm, from that of this one on.
pub(crate) const FROM: usize = 48 << 10;
/// So many classes of lengths.
pub(crate) const CLASSES: usize = 8;
/// A way that is under way without pause is measured so often, in bytes.
const LONG: u64 = 16 << 20;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) class: usize,
    pub(crate) way: usize,
    pub(crate) bytes: u64,
    pub(crate) nanos: u64,
}

/// Messages under way by one of `WAYS` ways.
#[derive(Clone, Debug)]
pub(crate) struct Meter<const WAYS: usize> {
    /// By class and way, and all of them.
    open: [[u32; WAYS]; CLASSES],
    all: u32,
    /// Since when only messages of this class come, only this way, and their bytes.
    pure: Option<(usize, usize, u64, u64)>,
}

/// The class of a length.
pub(crate) fn class_of(length: usize) -> usize {
    (length.max(1).ilog2() as usize)
        .saturating_sub(FROM.ilog2() as usize)
        .min(CLASSES - 1)
}

impl<const WAYS: usize> Meter<WAYS> {
    pub(crate) fn new() -> Meter<WAYS> {
        Meter {
            open: [[0; WAYS]; CLASSES],
            all: 0,
            pure: None,
        }
    }

    /// Messages under way.
    pub(crate) fn open(&self) -> u32 {
        self.all
    }

    /// A message begins now (nanoseconds of any clock).
    pub(crate) fn begin(&mut self, now: u64, class: usize, way: usize) {
        if self.all == 0 {
            self.pure = Some((class, way, now, 0));
        } else if self
            .pure
            .is_some_and(|(pure, by, ..)| (pure, by) != (class, way))
        {
            self.pure = None;
        }
        if let Some(open) = self.open.get_mut(class).and_then(|open| open.get_mut(way)) {
            *open += 1;
            self.all += 1;
        }
    }

    /// A message is complete.
    pub(crate) fn over(&mut self, now: u64, length: usize, way: usize) -> Option<Sample> {
        let class = class_of(length);
        self.close(class, way);
        let Some((pure, by, since, bytes)) = &mut self.pure else {
            // The way was changed while messages were under way: from the end of the last old one on only the new way counts.
            let changed = |left: &(usize, usize)| left.0 == class && left.1 != way;
            self.pure = self
                .only()
                .filter(changed)
                .map(|(class, way)| (class, way, now, 0));
            return None;
        };
        *bytes += length as u64;
        let idle = self.all == 0;
        if !idle && *bytes < LONG {
            return None;
        }
        let sample = Sample {
            class: *pure,
            way: *by,
            bytes: *bytes,
            nanos: now.saturating_sub(*since),
        };
        (*since, *bytes) = (now, 0);
        if idle {
            self.pure = None;
        }
        Some(sample)
    }

    /// A message does not come this way after all.
    pub(crate) fn give_up(&mut self, length: usize, way: usize) {
        self.close(class_of(length), way);
        self.pure = None;
    }

    fn close(&mut self, class: usize, way: usize) {
        let Some(open) = self.open.get_mut(class).and_then(|open| open.get_mut(way)) else {
            return;
        };
        *open = open.saturating_sub(1);
        self.all = self.all.saturating_sub(1);
    }

    /// Class and way of all messages under way, if they have one.
    fn only(&self) -> Option<(usize, usize)> {
        let ways = |(class, open): (usize, &[u32; WAYS])| {
            let open = *open;
            (0..WAYS).map(move |way| (class, way, open.get(way).copied().unwrap_or(0)))
        };
        let (class, way, open) = self
            .open
            .iter()
            .enumerate()
            .flat_map(ways)
            .find(|(.., open)| *open != 0)?;
        (open == self.all).then_some((class, way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_when_a_way_ends_is_measured_as_what_it_is() {
        let mut meter = Meter::<2>::new();
        let (short, long) = (64 << 10, 4 << 20);
        meter.begin(0, class_of(short), 0);
        meter.begin(0, class_of(long), 1);
        assert_eq!(meter.over(10, short, 0), None);
        assert_eq!(
            meter.pure, None,
            "the long one, which went another way all the time, says nothing of short ones"
        );
        assert_eq!(meter.over(20, long, 1), None);
        assert_eq!(meter.open(), 0);
    }

    #[test]
    fn every_length_has_a_class() {
        for (length, class) in [
            (0, 0),
            (FROM, 0),
            (65_535, 0),
            (65_536, 1),
            (1 << 20, 5),
            (4 << 20, 7),
            (usize::MAX, 7),
        ] {
            assert_eq!(class_of(length), class, "{length}");
        }
    }
}
