//! Counters of the protection of packets.

macro_rules! counters {
    ($($name:ident: $help:literal,)*) => {
        /// Counts since the layer was created. Each packet that is dropped is counted under exactly
        /// one `auth_drop_*` name (W-10).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct SecureCounters {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl SecureCounters {
            /// Returns name, help text and value of every counter, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + use<> {
                [$((stringify!($name), $help, self.$name),)*].into_iter()
            }

            /// Returns the number of dropped packets over all reasons.
            pub fn dropped(&self) -> u64 {
                self.iter()
                    .filter(|(name, _, _)| name.starts_with("auth_drop_"))
                    .map(|(_, _, n)| n)
                    .sum()
            }
        }
    };
}

counters! {
    auth_sealed: "Packets sent with protection.",
    auth_opened: "Packets received with a valid tag.",
    auth_sessions: "Sessions set up with peers.",
    auth_setups_sent: "Set-up packets sent, repetitions included.",
    auth_drop_plain: "Dropped: packet without protection, which is required.",
    auth_drop_malformed: "Dropped: protected packet of an impossible form or destination.",
    auth_drop_session: "Dropped: packet of an unknown session (the peer or this node restarted, or it is a replay).",
    auth_drop_replay: "Dropped: counter of a packet used before, or too old.",
    auth_drop_forged: "Dropped: wrong tag (forged, damaged, or of other addresses).",
    auth_drop_key: "Dropped: set-up or broadcast packet with an unknown key.",
    auth_drop_setup_forged: "Dropped: set-up packet with a wrong tag.",
    auth_drop_setup_stale: "Dropped: set-up packet of an earlier attempt (replayed or late).",
    auth_drop_setup_rate: "Dropped: set-up packet above the rate limit of answers.",
    auth_group_waits: "Broadcasts of nodes without a session, which is set up first.",
    auth_unsent: "Packets not sent, because no session was set up in time.",
}
