//! Counters of the control plane. Names are stable: `espstat --counters` and Prometheus show them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// More.
    pub fn add_many(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Lets one pass in a second: for log lines that somebody else can cause at will.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// True when the last true is a second ago.
    pub(crate) fn now(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= Duration::from_secs(1));
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

macro_rules! counters {
    ($($name:ident: $help:literal,)*) => {
        /// What happened on the control socket since the daemon started.
        #[derive(Debug, Default)]
        pub struct ControlStats {
            $(#[doc = $help] pub $name: Count,)*
        }

        impl ControlStats {
            /// (name, help, value) of each.
            pub fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $help, self.$name.get()),)*]
            }
        }
    };
}

counters! {
    leases_granted: "Leases of ports given to programs.",
    leases_adopted: "Leases of a daemon before this one that were taken over.",
    leases_refused: "Leases refused by policy; these programs' connections go through the daemon.",
    control_connections: "programs that connected to the control socket",
    control_requests: "requests taken from programs",
    control_errors: "requests answered with an error",
    control_malformed: "messages that were no request of this version",
    control_oversized: "messages announced longer than allowed",
    control_half_written: "messages not finished in time or cut off in the middle",
    control_unexpected_descriptors: "descriptors sent to the daemon, which takes none",
    control_no_hello: "programs that did not introduce themselves in time, or not first",
    control_slow_readers: "programs cut off because they did not read their replies",
    control_misbehaved: "programs cut off because they kept sending malformed requests",
    control_throttled: "times a program's requests had to wait for the user's request rate",
    control_socket_errors: "system errors on connections of programs",
    accept_errors: "connections of programs that could not be taken for want of descriptors or memory",
    refused_limit: "requests refused because a limit is reached",
    refused_permission: "requests refused for want of permission",
    refused_incoming: "incoming connections refused because their program is at a limit or gone",
    programs_scribbled: "programs cut off because they wrote nonsense into shared memory",
    status_omitted: "connections and ports left out of status replies that would have become too long",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_few() {
        let seldom = Seldom::default();
        let passed = (0..1000).filter(|_| seldom.now()).count();
        assert!((1..100).contains(&passed), "{passed}");
    }

    #[test]
    fn every_counter_is_listed() {
        let stats = ControlStats::default();
        stats.control_requests.add();
        let list = stats.list();
        assert_eq!(list.iter().map(|(_, _, value)| value).sum::<u64>(), 1);
        assert!(list.contains(&("control_requests", "requests taken from programs", 1)));
    }
}
