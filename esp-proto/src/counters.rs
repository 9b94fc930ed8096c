//! Counters with stable names for `espstat`, the metrics endpoint and tests.

use crate::wire::WireError;

macro_rules! counters {
    ($($name:ident: $help:literal,)*) => {
        /// Counts since the endpoint was created. Each dropped frame is counted under exactly one
        /// `rx_drop_*` name (W-10).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl Counters {
            /// Returns name, help text and value of every counter, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + use<> {
                [$((stringify!($name), $help, self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    rx_frames: "Frames received.",
    rx_bytes: "Bytes of received frames, starting with the EtherType.",
    rx_data: "Data frames accepted, in order or after a gap.",
    rx_data_bytes: "Payload bytes of accepted data frames.",
    rx_out_of_order: "Data frames stored because an earlier one was missing.",
    rx_acks: "Bare acknowledgements received.",
    rx_probes: "Probes received.",
    rx_resets: "Resets accepted.",
    rx_cookies: "SYNs to be repeated with a cookie, because the listener's queue is full.",
    rx_moves: "MOVE frames accepted (a connection changes its interfaces).",
    rx_datagrams: "EDP datagrams delivered to a bound port.",
    rx_edp_requests: "EDP requests answered by the node.",
    rx_drop_runt: "Dropped: the frame is shorter than a header.",
    rx_drop_length: "Dropped: the data length exceeds the frame.",
    rx_drop_reserved_flag: "Dropped: a reserved flag is set.",
    rx_drop_flag_combination: "Dropped: invalid combination of flags.",
    rx_drop_fin_length: "Dropped: a FIN with data.",
    rx_drop_port_zero: "Dropped: port 0 on ESP.",
    rx_drop_extension: "Dropped: malformed extension block.",
    rx_drop_setup: "Dropped: malformed set-up block.",
    rx_drop_reset_block: "Dropped: malformed reset block.",
    rx_drop_move_block: "Dropped: malformed move block.",
    rx_drop_move_unknown: "Dropped: MOVE for an unknown connection (an ASK is answered).",
    rx_drop_move_address: "Dropped: MOVE from an address that the peer did not announce.",
    rx_drop_move_stale: "Dropped: outdated or unsolicited MOVE.",
    rx_drop_move_position: "Dropped: MOVE with impossible stream positions.",
    rx_drop_move_state: "Dropped: MOVE for a connection that cannot move now.",
    rx_drop_moved: "Dropped: frame of a connection that has moved to another interface.",
    rx_drop_moving: "Dropped: frame of a connection whose move the peer has not confirmed.",
    rx_drop_adopting: "Dropped: frame of an unknown connection shortly after the start, while programs may still resume their connections.",
    rx_drop_control: "Dropped: unknown or malformed EDP control datagram.",
    rx_drop_ethertype: "Dropped: unknown EtherType.",
    rx_drop_echo: "Dropped: this node's address as source on the wire.",
    rx_drop_source_group: "Dropped: group address as source.",
    rx_drop_destination: "Dropped: addressed to another station.",
    rx_drop_broadcast: "Dropped: broadcast of a kind that must be unicast.",
    rx_drop_no_connection: "Dropped: no such connection (answered with RST if ACK is set).",
    rx_drop_refused: "Dropped: SYN refused with RST.",
    rx_drop_version: "Dropped: set-up block of another version.",
    rx_drop_key: "Dropped: set-up block with another job key.",
    rx_drop_backlog: "Dropped: SYN or its completion, because the listener's queue is full.",
    rx_drop_answer_rate: "Dropped: SYN, because its network sends too many.",
    rx_drop_limit: "Dropped: SYN, because the connection limit is reached.",
    rx_drop_stale_setup: "Dropped: SYN or SYN+ACK of another incarnation.",
    rx_drop_duplicate_setup: "Dropped: repeated SYN or SYN+ACK (answered again).",
    rx_drop_unexpected: "Dropped: frame not valid in the connection's state.",
    rx_drop_ack_forged: "Dropped: acknowledgement of data never sent.",
    rx_drop_sequence_forged: "Dropped: sequence far from the expected one.",
    rx_drop_sack_forged: "Dropped: selective acknowledgement of data never sent.",
    rx_drop_duplicate: "Dropped: duplicate data.",
    rx_drop_beyond_credit: "Dropped: data at or beyond the credit edge.",
    rx_drop_too_long: "Dropped: data longer than the agreed payload size.",
    rx_drop_violation: "Dropped: data after a FIN, or a second FIN (answered with RST).",
    rx_drop_reset_forged: "Dropped: RST with a wrong nonce or sequence.",
    rx_drop_held: "Dropped: frame to a leased port; the lease's own socket receives it.",
    rx_drop_edp_port: "Dropped: datagram to an unbound port.",
    rx_drop_edp_broadcast_long: "Dropped: echo request by broadcast with more than 64 bytes.",
    rx_drop_edp_broadcast_rate: "Dropped: echo request by broadcast above the rate of answers.",
    rx_drop_edp_reply_long: "Dropped: request whose reply would exceed the MTU.",
    rx_drop_edp_reply_limit: "Dropped: request above the rate limit of replies.",
    rx_old_acks: "Frames with an acknowledgement older than the latest one.",
    rx_ecn_marks: "Data frames and FINs received with a congestion mark.",
    rx_ecn_reported: "Packets sent that peers reported as received with a congestion mark.",
    rx_ecn_ignored: "Reports of congestion marks ignored because fewer packets were sent.",
    rx_credit_ignored: "Credit fields ignored because the edge moved back or too far.",
    rx_challenges: "Frames answered with a challenge ACK.",
    tx_frames: "Frames built.",
    tx_data: "Data frames built, retransmissions excluded.",
    tx_data_bytes: "Payload bytes of data frames built, retransmissions excluded.",
    tx_retransmits: "Data frames and FINs retransmitted.",
    tx_acks: "Bare acknowledgements built.",
    tx_probes: "Probes built.",
    tx_syns: "SYN and SYN+ACK built, repetitions included.",
    tx_resets: "Resets built.",
    tx_cookies: "SYNs answered with a cookie, because the listener's queue was full.",
    tx_moves: "MOVE frames built.",
    tx_edp: "EDP frames built.",
    tx_reset_limited: "Resets not sent because of the rate limit.",
    tx_challenge_limited: "Challenges not sent because of the rate limit.",
    retransmit_timeouts: "Expirations of the retransmission timeout.",
    spurious_timeouts: "Spurious retransmission timeouts (the original had arrived); a series counts once.",
    tail_probes: "Tail-loss probes.",
    ecn_reductions: "Reductions of a congestion window because of congestion marks.",
    losses_detected: "Packets found lost by acknowledgements.",
    connections_opened: "Connections established.",
    connections_timed_out: "Connections ended by the silence of the peer.",
    connections_reset: "Connections ended by a reset of the peer.",
    connections_moved: "Moves of connections to other interfaces.",
    connections_resumed: "Connections resumed after one side had lost their state.",
    half_open_evicted: "Half-open connections evicted by newer ones.",
    half_open_expired: "Half-open connections whose peer did not complete the set-up.",
    time_wait_reclaimed: "TIME-WAIT states ended early by a new connection.",
}

/// Selects the counter of a dropped frame.
pub(crate) type DropCounter = fn(&mut Counters) -> &mut u64;

impl Counters {
    /// Counts a frame that could not be parsed.
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
            WireError::Version => &mut self.rx_drop_version,
            WireError::ResetBlock => &mut self.rx_drop_reset_block,
            WireError::MoveBlock => &mut self.rx_drop_move_block,
            WireError::Control => &mut self.rx_drop_control,
        };
        *counter += 1;
    }

    /// Returns the number of dropped frames over all reasons.
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
