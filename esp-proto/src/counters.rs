//! Counters: a stable vocabulary for `espstat`, the metrics endpoint and tests.

use crate::wire::WireError;

macro_rules! counters {
    ($($name:ident: $help:literal,)*) => {
        /// Counts since the endpoint was made. Names are stable; each dropped frame is counted under exactly one
        /// `rx_drop_*` name (W-10).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl Counters {
            /// Name, help text and value of every counter, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + use<> {
                [$((stringify!($name), $help, self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    rx_frames: "Frames handed in.",
    rx_bytes: "Bytes of these frames from the EtherType on.",
    rx_data: "Data frames taken in order or kept.",
    rx_data_bytes: "Payload bytes of these.",
    rx_out_of_order: "Data frames kept because an earlier one was missing.",
    rx_acks: "Bare acknowledgements received.",
    rx_probes: "Probes received.",
    rx_resets: "Resets taken.",
    rx_moves: "Moves taken (a connection changes its interfaces).",
    rx_datagrams: "EDP datagrams given to a bound port.",
    rx_edp_requests: "EDP requests answered by the node.",
    rx_drop_runt: "Dropped: the frame ends inside the header.",
    rx_drop_length: "Dropped: the data length reaches beyond the frame.",
    rx_drop_reserved_flag: "Dropped: a reserved flag is set.",
    rx_drop_flag_combination: "Dropped: flags that do not go together.",
    rx_drop_fin_length: "Dropped: a FIN with data.",
    rx_drop_port_zero: "Dropped: port 0 on ESP.",
    rx_drop_extension: "Dropped: malformed extension block.",
    rx_drop_setup: "Dropped: malformed set-up block.",
    rx_drop_reset_block: "Dropped: malformed reset block.",
    rx_drop_move_block: "Dropped: malformed move block.",
    rx_drop_move_unknown: "Dropped: a move of a connection that is not here (a question is answered so).",
    rx_drop_move_address: "Dropped: a move from an address the peer did not name.",
    rx_drop_move_stale: "Dropped: a move older than one known, or one that nobody asked for.",
    rx_drop_move_position: "Dropped: a move with positions that cannot be.",
    rx_drop_move_state: "Dropped: a move of a connection that cannot move now.",
    rx_drop_moved: "Dropped: a frame of a connection that has moved to another interface.",
    rx_drop_moving: "Dropped: a frame of a connection whose move the peer has not confirmed.",
    rx_drop_control: "Dropped: unknown or malformed EDP control datagram.",
    rx_drop_ethertype: "Dropped: an EtherType that is not ours.",
    rx_drop_echo: "Dropped: our own source address from the wire.",
    rx_drop_source_group: "Dropped: a group address as source.",
    rx_drop_destination: "Dropped: not addressed to us.",
    rx_drop_broadcast: "Dropped: a broadcast of a kind not taken from broadcast.",
    rx_drop_no_connection: "Dropped: no such connection (answered with RST if it had ACK).",
    rx_drop_refused: "Dropped: a SYN that was refused with RST.",
    rx_drop_version: "Dropped: a set-up block of another version.",
    rx_drop_key: "Dropped: a set-up block with another job key.",
    rx_drop_backlog: "Dropped: a SYN or its completion because the listener's queue is full.",
    rx_drop_limit: "Dropped: a SYN because the limit of connections is reached.",
    rx_drop_stale_setup: "Dropped: a SYN or SYN+ACK of another incarnation.",
    rx_drop_duplicate_setup: "Dropped: a repeated SYN or SYN+ACK (answered again).",
    rx_drop_unexpected: "Dropped: a frame that has no meaning in the connection's state.",
    rx_drop_ack_forged: "Dropped: an ack sequence never sent.",
    rx_drop_sack_forged: "Dropped: a selective acknowledgement of what was never sent.",
    rx_drop_duplicate: "Dropped: data that had arrived before.",
    rx_drop_beyond_credit: "Dropped: data at or beyond the credit edge.",
    rx_drop_too_long: "Dropped: data longer than the agreed payload.",
    rx_drop_violation: "Dropped: data behind a FIN, or a second FIN (answered with RST).",
    rx_drop_reset_forged: "Dropped: a RST with a wrong nonce or sequence.",
    rx_drop_held: "Dropped: a frame to a port that a program holds by a lease; its own socket has it, too.",
    rx_drop_edp_port: "Dropped: a datagram to a port nobody has bound.",
    rx_drop_edp_reply_long: "Dropped: a request whose answer would exceed the MTU.",
    rx_drop_edp_reply_limit: "Dropped: a request above the limit of answers.",
    rx_old_acks: "Frames whose acknowledgement was older than one seen before.",
    rx_credit_ignored: "Credit fields ignored because they moved back or too far.",
    rx_challenges: "Frames answered with a challenge.",
    tx_frames: "Frames built.",
    tx_data: "Data frames built, repetitions excluded.",
    tx_data_bytes: "Payload bytes of these.",
    tx_retransmits: "Data frames and FINs built again.",
    tx_acks: "Bare acknowledgements built.",
    tx_probes: "Probes built.",
    tx_syns: "SYN and SYN+ACK built, repetitions included.",
    tx_resets: "Resets built.",
    tx_moves: "Move frames built.",
    tx_edp: "EDP frames built.",
    tx_reset_limited: "Resets not sent because of the rate limit.",
    tx_challenge_limited: "Challenges not sent because of the rate limit.",
    retransmit_timeouts: "Expiries of a retransmission time-out.",
    spurious_timeouts: "Impatient ones, several in a row counted once: what was sent before had arrived.",
    tail_probes: "Tail-loss probes.",
    losses_detected: "Packets found lost by acknowledgements.",
    connections_opened: "Connections established.",
    connections_timed_out: "Connections ended by the silence of the peer.",
    connections_reset: "Connections ended by a reset of the peer.",
    connections_moved: "Connections that went on over other interfaces.",
    half_open_evicted: "Half-open connections that gave way to newer ones.",
    half_open_expired: "Half-open connections whose peer did not complete.",
    time_wait_reclaimed: "TIME-WAITs ended early by a new connection.",
}

impl Counters {
    /// Counts a frame that could not be understood.
    pub(crate) fn wire(&mut self, error: WireError) {
        let counter = match error {
            WireError::Runt => &mut self.rx_drop_runt,
            WireError::Length => &mut self.rx_drop_length,
            WireError::ReservedFlag => &mut self.rx_drop_reserved_flag,
            WireError::FlagCombination => &mut self.rx_drop_flag_combination,
            WireError::FinLength => &mut self.rx_drop_fin_length,
            WireError::PortZero => &mut self.rx_drop_port_zero,
            WireError::Extension => &mut self.rx_drop_extension,
            WireError::SetUp => &mut self.rx_drop_setup,
            WireError::ResetBlock => &mut self.rx_drop_reset_block,
            WireError::MoveBlock => &mut self.rx_drop_move_block,
            WireError::Control => &mut self.rx_drop_control,
        };
        *counter += 1;
    }

    /// All frames that were dropped, whatever the reason.
    pub fn rx_dropped(&self) -> u64 {
        self.iter()
            .filter(|(name, _, _)| name.starts_with("rx_drop_"))
            .map(|(_, _, n)| n)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_plain() {
        let all: alloc::vec::Vec<_> = Counters::default().iter().collect();
        let names: BTreeSet<_> = all.iter().map(|c| c.0).collect();
        assert_eq!(names.len(), all.len());
        assert!(
            all.iter()
                .all(|c| c.0.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        );
        assert!(all.iter().all(|c| c.1.ends_with('.')));
    }

    #[test]
    fn drops_add_up() {
        let mut counters = Counters {
            rx_frames: 5,
            ..Counters::default()
        };
        counters.wire(WireError::Runt);
        counters.wire(WireError::Control);
        assert_eq!(counters.rx_dropped(), 2);
    }
}
