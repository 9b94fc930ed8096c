//! `[limits]`: limits of each user, of certain users, and of all users together.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Memory, Uid, tables};

/// Declares the limits of a user: key, resource, what is counted, type and default.
macro_rules! limits {
    ($(
        $(#[$doc:meta])*
        $key:ident, $resource:ident, $noun:literal, $type:ty = $default:expr;
    )*) => {
        tables! {
            /// `[limits]`: limits of each user, for all of the user's programs together.
            Limits {
                $($(#[$doc])* $key: $type = $default,)*
                /// `[limits.uid.N]`: other limits for one user.
                uid: BTreeMap<Uid, LimitOverride> = BTreeMap::new(),
                /// `[limits.node]`: limits of all users together.
                node: NodeLimits = NodeLimits::default(),
            }

            /// `[limits.node]`
            NodeLimits {
                /// Programs; each uses three descriptors of the daemon.
                programs: u32 = 4096,
                /// Streams and datagram sockets; each uses three of the 65530 mappings that Linux
                /// allows a process.
                sockets: u32 = 16384,
                /// All rings together.
                ring_bytes: Memory = Memory::percent(50),
            }
        }

        /// `[limits.uid.N]`; omitted keys are as in `[limits]`.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        #[allow(missing_docs)] // the fields are those of Limits
        pub struct LimitOverride {
            $(pub $key: Option<$type>,)*
        }

        /// A resource with a limit for each user.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Resource {
            $($(#[$doc])* $resource,)*
        }

        impl Resource {
            /// All of them.
            pub const ALL: &[Resource] = &[$(Resource::$resource,)*];

            /// Returns the key in the config file.
            pub fn key(self) -> &'static str {
                match self { $(Resource::$resource => stringify!($key),)* }
            }

            /// Returns the name of the counted things, in plural.
            pub fn noun(self) -> &'static str {
                match self { $(Resource::$resource => $noun,)* }
            }
        }

        impl Limits {
            /// Returns the limit of a user.
            pub fn of(&self, uid: u32, what: Resource) -> u64 {
                let own = self.uid.get(&Uid(uid));
                match what {
                    $(Resource::$resource => {
                        own.and_then(|own| own.$key).unwrap_or(self.$key).into()
                    })*
                }
            }
        }
    };
}

limits! {
    /// Programs connected to the daemon.
    programs, Programs, "connected programs", u32 = 1024;
    /// Streams.
    streams, Streams, "streams", u32 = 8192;
    /// Listeners.
    listeners, Listeners, "listeners", u32 = 1024;
    /// Bound datagram sockets.
    edp_sockets, EdpSockets, "datagram sockets", u32 = 1024;
    /// Leases.
    leases, Leases, "leases", u32 = 256;
    /// Bytes of all rings together, and of data that waits for lost packets.
    ring_bytes, RingBytes, "bytes of rings", Memory = Memory::percent(25);
    /// Requests per second of all programs together; further ones wait.
    requests_per_second, Requests, "requests per second", u32 = 20_000;
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn one_user_may_have_other_limits() {
        let text = "[limits]\nstreams = 10\nring_bytes = \"10%\"\n[limits.uid.7]\nstreams = 20\nring_bytes = 4096\n";
        let limits = Config::parse(text, Path::new("t")).unwrap().limits;
        let of = |uid| {
            [Resource::Streams, Resource::RingBytes, Resource::Programs]
                .map(|what| limits.of(uid, what))
        };
        let tenth = Memory::percent(10).into();
        assert_eq!(of(1), [10, tenth, 1024]);
        assert_eq!(of(7), [20, 4096, 1024]);
    }
}
