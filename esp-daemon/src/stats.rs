//! Counters of the control plane. Names are stable: `espstat --counters` and Prometheus show them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Monotonic counter.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds one.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds `n`.
    pub fn add_many(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Limits log lines that other processes can trigger to one per second.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter(Mutex<Option<Instant>>);

impl LogLimiter {
    /// Returns true if a line may be logged: at most once per second.
    pub(crate) fn allow(&self) -> bool {
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
        /// Counters of the control socket since the daemon started.
        #[derive(Debug, Default)]
        pub struct ControlStats {
            $(#[doc = $help] pub $name: Count,)*
        }

        impl ControlStats {
            /// Returns (name, help, value) of each counter.
            pub fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $help, self.$name.get()),)*]
            }
        }
    };
}

counters! {
    leases_granted: "leases granted to programs",
    leases_adopted: "leases of an earlier daemon that were adopted",
    streams_adopted: "streams of an earlier daemon that were adopted",
    leases_refused: "leases refused by policy; these programs use the daemon",
    control_connections: "programs that connected to the control socket",
    control_requests: "requests received from programs",
    control_errors: "requests answered with an error",
    control_malformed: "messages that are not a request of this version",
    control_oversized: "messages above the maximum length",
    control_half_written: "messages not completed in time, or truncated by the end of the connection",
    control_unexpected_descriptors: "messages with descriptors other than the memory of a socket of an earlier daemon",
    control_no_hello: "programs that did not send Hello in time, or not first",
    control_slow_readers: "programs disconnected because they did not read their replies",
    control_misbehaved: "programs disconnected because of repeated malformed requests",
    control_throttled: "delays of a program's requests by the user's request rate",
    control_socket_errors: "system errors on connections of programs",
    metrics_unauthorized: "requests for metrics without the token",
    accept_errors: "connections not accepted for lack of descriptors or memory",
    refused_limit: "requests refused because a limit is reached",
    refused_permission: "requests refused for lack of permission",
    refused_incoming: "incoming connections refused because their program is at a limit or disconnected",
    programs_corrupted_memory: "programs disconnected because they corrupted shared memory",
    status_omitted: "connections and ports omitted from status replies above the maximum length",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_rate_limited() {
        let limiter = LogLimiter::default();
        let passed = (0..1000).filter(|_| limiter.allow()).count();
        assert!((1..100).contains(&passed), "{passed}");
    }

    #[test]
    fn every_counter_is_listed() {
        let stats = ControlStats::default();
        stats.control_requests.add();
        let list = stats.list();
        assert_eq!(list.iter().map(|(_, _, value)| value).sum::<u64>(), 1);
        assert!(list.contains(&("control_requests", "requests received from programs", 1)));
    }
}
