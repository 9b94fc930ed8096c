//! Limits of a user and of all users together: the resolved form of `[limits]`.

use std::collections::HashMap;

use crate::config::{LimitOptions, LimitOverride};

/// The limits of one user. Counts, except `ring_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are those of config::LimitOptions
pub struct UserLimits {
    pub programs: u64,
    pub streams: u64,
    pub listeners: u64,
    pub edp_sockets: u64,
    pub ring_bytes: u64,
    pub requests_per_second: u32,
}

/// The limits of all users together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are those of config::NodeLimitOptions
pub struct NodeLimits {
    pub programs: u64,
    pub sockets: u64,
    pub ring_bytes: u64,
}

/// All limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    default: UserLimits,
    by_uid: HashMap<u32, UserLimits>,
    /// All users together.
    pub node: NodeLimits,
}

impl Limits {
    /// Resolves the options on a machine with `memory` bytes.
    pub fn new(options: &LimitOptions, memory: u64) -> Limits {
        let default = UserLimits {
            programs: options.programs.into(),
            streams: options.streams.into(),
            listeners: options.listeners.into(),
            edp_sockets: options.edp_sockets.into(),
            ring_bytes: options.ring_bytes.bytes(memory),
            requests_per_second: options.requests_per_second,
        };
        let by_uid = options
            .uid
            .iter()
            .map(|(uid, user)| (uid.0, default.with(user, memory)))
            .collect();
        let node = NodeLimits {
            programs: options.node.programs.into(),
            sockets: options.node.sockets.into(),
            ring_bytes: options.node.ring_bytes.bytes(memory),
        };
        Limits {
            default,
            by_uid,
            node,
        }
    }

    /// Returns the limits of one user.
    pub fn of(&self, uid: u32) -> UserLimits {
        self.by_uid.get(&uid).copied().unwrap_or(self.default)
    }
}

impl UserLimits {
    fn with(self, other: &LimitOverride, memory: u64) -> UserLimits {
        UserLimits {
            programs: other.programs.map_or(self.programs, u64::from),
            streams: other.streams.map_or(self.streams, u64::from),
            listeners: other.listeners.map_or(self.listeners, u64::from),
            edp_sockets: other.edp_sockets.map_or(self.edp_sockets, u64::from),
            ring_bytes: other
                .ring_bytes
                .map_or(self.ring_bytes, |bytes| bytes.bytes(memory)),
            requests_per_second: other
                .requests_per_second
                .unwrap_or(self.requests_per_second),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn one_user_may_have_other_limits() {
        let text = "[limits]\nstreams = 10\nring_bytes = \"10%\"\n[limits.uid.7]\nstreams = 20\nring_bytes = 4096\n";
        let limits = Limits::new(&Config::parse(text, Path::new("t")).unwrap().limits, 1000);
        assert_eq!((limits.of(1).streams, limits.of(1).ring_bytes), (10, 100));
        assert_eq!((limits.of(7).streams, limits.of(7).ring_bytes), (20, 4096));
        assert_eq!(limits.of(7).programs, limits.of(1).programs);
    }
}
