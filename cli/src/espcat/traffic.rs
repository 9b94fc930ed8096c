//! Counts the bytes that were copied, and measures the time without any.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::out;

/// Counters of both directions. The two copying threads share them.
pub(super) struct Traffic {
    start: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    /// Time of the last bytes, in ns since `start`.
    last: AtomicU64,
    bar: Option<ProgressBar>,
}

impl Traffic {
    /// Starts to count. If `verbose`, shows progress on a terminal, and the totals at the end.
    pub(super) fn new(verbose: bool) -> Traffic {
        let bar = verbose.then(|| {
            let bar = ProgressBar::new_spinner();
            let template = "{elapsed_precise} {binary_bytes} {binary_bytes_per_sec}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        Traffic {
            start: Instant::now(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            last: AtomicU64::new(0),
            bar,
        }
    }

    /// Counts bytes that were sent.
    pub(super) fn sent(&self, bytes: usize) {
        self.count(&self.sent, bytes);
    }

    /// Counts bytes that were received.
    pub(super) fn received(&self, bytes: usize) {
        self.count(&self.received, bytes);
    }

    fn count(&self, counter: &AtomicU64, bytes: usize) {
        let bytes = bytes as u64;
        counter.fetch_add(bytes, Ordering::Relaxed);
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    /// Returns the time left until the idle time-out `limit` expires; zero if it has expired.
    pub(super) fn patience(&self, limit: Duration) -> Duration {
        let last = Duration::from_nanos(self.last.load(Ordering::Relaxed));
        (last + limit).saturating_sub(self.start.elapsed())
    }

    /// Reports the totals.
    pub(super) fn report(&self) {
        let Some(bar) = &self.bar else { return };
        bar.finish_and_clear();
        let [sent, received] = [&self.sent, &self.received].map(|n| n.load(Ordering::Relaxed));
        out::note(format_args!(
            "sent {sent} bytes ({}), received {received} bytes ({}) in {:.3} s",
            HumanBytes(sent),
            HumanBytes(received),
            self.start.elapsed().as_secs_f64()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_without_bytes_and_begins_again_with_some() {
        let traffic = Traffic::new(false);
        assert!(traffic.patience(Duration::ZERO).is_zero());
        assert!(traffic.patience(Duration::from_secs(1000)) > Duration::from_secs(900));
        traffic.received(1);
        assert_eq!(traffic.received.load(Ordering::Relaxed), 1);
        assert!(traffic.last.load(Ordering::Relaxed) > 0);
    }
}
