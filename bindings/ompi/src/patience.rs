//! When a rank that looks in vain offers its processor to others.
//!
//! Two ranks on one core are the trouble: each looks its fill while the other has the message, and since they give way to each other all
//! the time the kernel sees no reason to part them. A yield tells: alone on a core it takes a fraction of a µs, so one that takes
//! longer has let somebody run. While that somebody gives way, too, every vain look is one too many.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A yield that takes longer has let somebody run.
const ALONE: Duration = Duration::from_micros(2);
/// Who kept the core for longer computes, and knows nothing of giving way.
const HOGGED: Duration = Duration::from_micros(200);

/// Of all threads together: a look miscounted by two at once does no harm.
#[derive(Debug)]
pub(crate) struct Patience {
    vain: AtomicU32,
    enough: AtomicU32,
    shared: AtomicBool,
}

impl Patience {
    pub(crate) const fn new() -> Patience {
        Patience {
            vain: AtomicU32::new(0),
            enough: AtomicU32::new(0),
            shared: AtomicBool::new(false),
        }
    }

    /// Looks in vain that are enough on a core of one's own; 0: it is never given away.
    pub(crate) fn set(&self, enough: u32) {
        self.enough.store(enough, Ordering::Relaxed);
    }

    /// Something was found.
    #[inline]
    pub(crate) fn found(&self) {
        self.vain.store(0, Ordering::Relaxed);
    }

    /// Nothing was found: the daemon, or the peer, may wait for this processor.
    pub(crate) fn nothing(&self) {
        let enough = self.enough.load(Ordering::Relaxed);
        if enough == 0 {
            return;
        }
        let vain = self.vain.load(Ordering::Relaxed).wrapping_add(1);
        if vain < enough && !self.shared.load(Ordering::Relaxed) {
            self.vain.store(vain, Ordering::Relaxed);
            return;
        }
        self.vain.store(0, Ordering::Relaxed);
        let begin = Instant::now();
        std::thread::yield_now();
        self.yielded(begin.elapsed());
    }

    fn yielded(&self, took: Duration) {
        self.shared
            .store(took > ALONE && took < HOGGED, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_core_is_given_away_at_every_vain_look() {
        let patience = Patience::new();
        let waits = |patience: &Patience| patience.vain.load(Ordering::Relaxed);
        patience.set(100);
        patience.nothing();
        patience.nothing();
        assert_eq!(waits(&patience), 2, "alone: it goes on looking");
        patience.found();
        assert_eq!(waits(&patience), 0);
        for (micros, shared) in [(1, false), (50, true), (3000, false)] {
            patience.yielded(Duration::from_micros(micros));
            assert_eq!(
                patience.shared.load(Ordering::Relaxed),
                shared,
                "{micros} µs"
            );
        }
        patience.nothing();
        patience.yielded(Duration::from_micros(50));
        patience.nothing();
        assert_eq!(waits(&patience), 0, "shared: one look, and away");
    }

    #[test]
    fn never_means_never() {
        let patience = Patience::new();
        patience.yielded(Duration::from_micros(50));
        patience.nothing();
        assert_eq!(patience.vain.load(Ordering::Relaxed), 0);
    }
}
