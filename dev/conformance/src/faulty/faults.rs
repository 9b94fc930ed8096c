//! Frequencies of the faults.

use btl::Rank;

/// Frequencies of the faults, in parts of a thousand unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// [`Tx::send`](btl::Tx::send) returns `Busy` although there is room.
    pub busy: u16,
    /// A message is held back at its sender for some calls of `progress`.
    pub late_send: u16,
    /// An event is held back at its receiver for some calls of `progress`.
    pub late_event: u16,
    /// [`Started::Done`](btl::Started::Done) becomes
    /// [`Started::Pending`](btl::Started::Pending), with a late completion.
    pub pending: u16,
    /// `progress` reports at most one event.
    pub one_event: bool,
    /// Flips a bit of an arriving header (hostile).
    pub corrupt: u16,
    /// Truncates an arriving header (hostile).
    pub truncate: u16,
    /// Loses this peer after this many messages from or to it, as seen by this side (hostile).
    pub cut: Option<(Rank, u64)>,
}

impl Faults {
    /// Returns all faults that a conforming transport may show, frequently.
    #[must_use]
    pub fn allowed() -> Faults {
        Faults {
            busy: 200,
            late_send: 200,
            late_event: 300,
            pending: 500,
            one_event: true,
            ..Faults::default()
        }
    }
}
