//! [`Route`]: the interface towards a peer, and the cache of measured ones.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use esp_proto::NodeAddr;

use crate::sync::lock;

/// Time for which a measured route is used.
const LIFETIME: Duration = Duration::from_secs(30);
/// Maximum number of cached routes.
const MAX_CACHED: usize = 1024;

/// Interface towards a peer, and the reason for its choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Name of the interface.
    pub interface: String,
    /// Reason.
    pub reason: RouteReason,
}

/// Reason for the choice of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteReason {
    /// The caller named it.
    Named,
    /// The daemon has only this one.
    Only,
    /// Only this one is up.
    OnlyUp,
    /// The peer's address is the interface's own.
    Local,
    /// It answered an EDP echo first.
    Fastest {
        /// Its round-trip time.
        round_trip: Duration,
        /// Names and round-trip times of the others; `None` without an answer.
        others: Vec<(String, Option<Duration>)>,
    },
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.interface)?;
        match &self.reason {
            RouteReason::Named => f.write_str("named by the caller"),
            RouteReason::Only => f.write_str("the only interface of the daemon"),
            RouteReason::OnlyUp => f.write_str("the only interface that is up"),
            RouteReason::Local => f.write_str("the peer's address is its own"),
            RouteReason::Fastest { round_trip, others } => {
                write!(f, "answered fastest ({} µs", round_trip.as_micros())?;
                for (name, time) in others {
                    match time {
                        Some(time) => write!(f, ", {name} {} µs", time.as_micros())?,
                        None => write!(f, ", {name} no answer")?,
                    }
                }
                f.write_str(")")
            }
        }
    }
}

/// Cache of measured routes.
#[derive(Default)]
pub(crate) struct Routes(Mutex<HashMap<NodeAddr, (Route, Instant)>>);

impl Routes {
    pub(crate) fn get(&self, peer: NodeAddr) -> Option<Route> {
        let routes = lock(&self.0);
        let (route, since) = routes.get(&peer)?;
        (since.elapsed() < LIFETIME).then(|| route.clone())
    }

    pub(crate) fn put(&self, peer: NodeAddr, route: &Route) {
        let mut routes = lock(&self.0);
        if routes.len() >= MAX_CACHED {
            routes.clear();
        }
        routes.insert(peer, (route.clone(), Instant::now()));
    }

    /// Removes the route to a peer that did not answer on it.
    pub(crate) fn forget(&self, peer: NodeAddr) {
        lock(&self.0).remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_readable() {
        let others = vec![
            ("eth1".to_owned(), Some(Duration::from_micros(90))),
            ("eth2".to_owned(), None),
        ];
        let reason = RouteReason::Fastest {
            round_trip: Duration::from_micros(17),
            others,
        };
        let route = Route {
            interface: "eth0".into(),
            reason,
        };
        assert_eq!(
            route.to_string(),
            "eth0: answered fastest (17 µs, eth1 90 µs, eth2 no answer)"
        );
    }
}
