//! Transition table of the connection states (section 11 of the specification).
//!
//! `docs/state-machine.md` shows this table with a picture; a test fails when the two differ.

use crate::api::State;

/// Input of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// The peer's SYN crossed ours (W-28).
    PeerSyn,
    /// Our SYN is acknowledged and the peer's is known.
    SynAcked,
    /// Our FIN was sent for the first time (W-54).
    FinSent,
    /// Our FIN is acknowledged.
    FinAcked,
    /// The peer's FIN was received in order.
    PeerFin,
    /// TIME-WAIT has expired, or a new connection of these ports replaces this one (W-55).
    WaitOver,
    /// A reset in either direction, or a timeout.
    End,
}

/// All transitions. Any other combination leaves the state unchanged.
const TABLE: &[(State, Input, State)] = &[
    (State::SynSent, Input::PeerSyn, State::SynReceived),
    (State::SynSent, Input::SynAcked, State::Established),
    (State::SynSent, Input::End, State::Closed),
    (State::SynReceived, Input::SynAcked, State::Established),
    (State::SynReceived, Input::End, State::Closed),
    (State::Established, Input::FinSent, State::FinWait1),
    (State::Established, Input::PeerFin, State::CloseWait),
    (State::Established, Input::End, State::Closed),
    (State::FinWait1, Input::FinAcked, State::FinWait2),
    (State::FinWait1, Input::PeerFin, State::Closing),
    (State::FinWait1, Input::End, State::Closed),
    (State::FinWait2, Input::PeerFin, State::TimeWait),
    (State::FinWait2, Input::End, State::Closed),
    (State::CloseWait, Input::FinSent, State::LastAck),
    (State::CloseWait, Input::End, State::Closed),
    (State::Closing, Input::FinAcked, State::TimeWait),
    (State::Closing, Input::End, State::Closed),
    (State::LastAck, Input::FinAcked, State::Closed),
    (State::LastAck, Input::End, State::Closed),
    (State::TimeWait, Input::WaitOver, State::Closed),
    (State::TimeWait, Input::End, State::Closed),
];

/// Returns the next state; the current one when the input has no meaning in it.
pub(crate) fn next(state: State, input: Input) -> State {
    TABLE
        .iter()
        .find(|row| row.0 == state && row.1 == input)
        .map_or(state, |row| row.2)
}

impl State {
    /// Returns true when both SYNs are known and acknowledged and the connection has not ended.
    pub fn is_synchronized(self) -> bool {
        !matches!(
            self,
            State::SynSent | State::SynReceived | State::TimeWait | State::Closed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write;
    use std::string::String;

    const STATES: [State; 10] = [
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
        State::TimeWait,
        State::Closed,
    ];
    const INPUTS: [(Input, &str); 7] = [
        (Input::PeerSyn, "SYN received"),
        (Input::SynAcked, "our SYN acknowledged"),
        (Input::FinSent, "FIN sent"),
        (Input::FinAcked, "our FIN acknowledged"),
        (Input::PeerFin, "FIN received"),
        (Input::WaitOver, "wait over, or reclaimed"),
        (Input::End, "reset or timeout"),
    ];

    fn matrix() -> String {
        let mut out = String::from("| state |");
        for (_, title) in INPUTS {
            write!(out, " {title} |").unwrap();
        }
        out.push_str("\n|---|---|---|---|---|---|---|---|\n");
        for state in STATES {
            write!(out, "| {state:?} |").unwrap();
            for (input, _) in INPUTS {
                match next(state, input) {
                    same if same == state => out.push_str(" – |"),
                    other => write!(out, " {other:?} |").unwrap(),
                }
            }
            out.push('\n');
        }
        out
    }

    #[test]
    fn the_specification_has_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/state-machine.md");
        let page = std::fs::read_to_string(path).expect("docs/state-machine.md");
        let (begin, end) = ("<!-- table: begin -->\n", "<!-- table: end -->");
        let start = page.find(begin).expect("begin mark") + begin.len();
        let stop = page.find(end).expect("end mark");
        let table = matrix();
        if std::env::var_os("ESP_BLESS").is_some() {
            std::fs::write(
                path,
                std::format!("{}{table}{}", &page[..start], &page[stop..]),
            )
            .unwrap();
            return;
        }
        assert_eq!(
            &page[start..stop],
            table,
            "run this test with ESP_BLESS=1 to write the table"
        );
    }

    #[test]
    fn no_transition_is_listed_twice_and_closed_is_final() {
        for (i, row) in TABLE.iter().enumerate() {
            assert!(
                TABLE[..i]
                    .iter()
                    .all(|other| (other.0, other.1) != (row.0, row.1)),
                "{row:?}"
            );
            assert_ne!(row.0, State::Closed);
        }
        for state in STATES {
            assert_eq!(next(state, Input::End), State::Closed);
        }
    }
}
