//! Counters of the loop and of its links. Their names are stable: metrics and `espstat --counters`
//! show them.

macro_rules! counters {
    ($(#[$doc:meta])* $type:ident, $prefix:literal: $($name:ident: $help:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub(super) struct $type {
            $(pub(super) $name: u64,)*
        }

        impl $type {
            /// Returns (name, help, value) of each counter.
            pub(super) fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((concat!($prefix, stringify!($name)), $help, self.$name),)*]
            }
        }
    };
}

counters! {
    /// Counters of the loop.
    EngineStats, "engine_":
    polls: "poll iterations",
    sleeps: "times the loop blocked",
    wakes_by_frame: "times a frame ended the sleep",
    wakes_by_program: "times a program or command ended the sleep",
    wakes_by_timer: "times a deadline ended the sleep",
    program_wakes: "sleeping programs woken",
    corruptions: "impossible values found in a program's shared memory",
    commands: "commands executed",
}

counters! {
    /// Counters of a link: dropped frames by reason, and system calls.
    LinkStats, "link_":
    rx_foreign: "frames for other stations or sent by this one",
    rx_unparsable: "frames without a whole Ethernet header",
    rx_truncated: "frames longer than the MTU",
    rx_vlan: "frames tagged for a VLAN",
    rx_other_engine: "frames for ports of another engine of the daemon",
    rx_source: "UDP packets from networks that are not served",
    rx_errors: "receive calls that failed",
    tx_errors: "send calls that failed",
    tx_blocked: "send calls of which the kernel took only a part",
    tx_unreachable: "UDP packets refused because the destination is unreachable or forbidden",
    tx_given_up: "frames the device refused for too long",
    rx_batches: "receive batches",
    tx_batches: "send batches",
    datagram_overflow: "datagrams dropped because the program's ring was full",
    looped_dropped: "frames to this node's own address dropped because too many waited for another engine",
    datagram_refused: "datagrams of programs that could not be sent",
}
