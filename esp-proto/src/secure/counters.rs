//! Counters of the protection of packets.

macro_rules! counters {
    ($($name:ident: $help:literal, $of_checksum:ident: $checksum_help:literal;)*) => {
        /// Counts since the layer was created. Each packet that is dropped is counted under exactly
        /// one `auth_drop_*` name (W-10).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct SecureCounters {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl SecureCounters {
            /// Returns name, help text and value of every counter, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + use<> {
                self.named(false)
            }

            /// Returns the counters as [`iter`](Self::iter) does, or with the names and help texts
            /// of a layer of checksums.
            pub(super) fn named(
                &self,
                checksum: bool,
            ) -> impl Iterator<Item = (&'static str, &'static str, u64)> + use<> {
                [$(match checksum {
                    false => (stringify!($name), $help, self.$name),
                    true => (stringify!($of_checksum), $checksum_help, self.$name),
                },)*].into_iter()
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

// Each counter as it is named with keys, and with checksums alone, which authenticate nothing.
counters! {
    auth_sealed: "Packets sent with protection.",
    checksum_sent: "Packets sent with a checksum.";
    auth_opened: "Packets received with a valid tag.",
    checksum_received: "Packets received with a right checksum.";
    auth_sessions: "Sessions set up with peers.",
    checksum_sessions: "Sessions of checksums set up with peers.";
    auth_setups_sent: "Set-up packets sent, repetitions included.",
    checksum_setups_sent: "Set-up packets of sessions of checksums sent, repetitions included.";
    auth_drop_plain: "Dropped: packet without protection, which is required.",
    checksum_drop_plain: "Dropped: packet without a checksum, which is required.";
    auth_drop_malformed: "Dropped: protected packet of an impossible form or destination.",
    checksum_drop_malformed: "Dropped: packet with a checksum, of an impossible form or destination.";
    auth_drop_session: "Dropped: packet of an unknown session (the peer or this node restarted, or it is a replay).",
    checksum_drop_session: "Dropped: packet of an unknown session (the peer or this node restarted, or it is damaged).";
    auth_drop_replay: "Dropped: counter of a packet used before, or too old.",
    checksum_drop_repeated: "Dropped: counter of a packet used before, or too old.";
    auth_drop_forged: "Dropped: wrong tag (forged, damaged, or of other addresses).",
    checksum_drop_damaged: "Dropped: wrong checksum (damaged on the way, or of other addresses).";
    auth_drop_key: "Dropped: set-up or broadcast packet with an unknown key.",
    checksum_drop_key: "Dropped: set-up or broadcast packet of a node with a key instead of checksums, or damaged.";
    auth_drop_setup_forged: "Dropped: set-up packet with a wrong tag.",
    checksum_drop_setup_damaged: "Dropped: damaged set-up packet.";
    auth_drop_setup_stale: "Dropped: set-up packet of an earlier attempt (replayed or late).",
    checksum_drop_setup_stale: "Dropped: set-up packet of an earlier attempt (repeated or late).";
    auth_drop_setup_rate: "Dropped: set-up packet above the rate limit of answers.",
    checksum_drop_setup_rate: "Dropped: set-up packet above the rate limit of answers.";
    auth_group_waits: "Broadcasts of nodes without a session, which is set up first.",
    checksum_group_waits: "Broadcasts of nodes without a session, which is set up first.";
    auth_unsent: "Packets not sent, because no session was set up in time.",
    checksum_unsent: "Packets not sent, because no session of checksums was set up in time.";
}
