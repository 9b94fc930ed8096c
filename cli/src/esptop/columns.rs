//! Columns of the list: headings, cells, and the order by each.

use std::cmp::Ordering;

use esp_client::control::ConnectionStatus;

use super::rates::{History, Sample};
use crate::out::program;
use crate::units::show_count;

/// Number of samples of [`Column::Rate`].
pub(super) const TREND: usize = 8;
/// Heights of a bar.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A column of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Column {
    /// Name or address of the node, and port
    Peer,
    /// Interface and port
    Local,
    /// State of the connection
    State,
    /// `daemon`, or `lease` if the program itself sends and receives the frames
    Path,
    /// Owner
    User,
    /// Name and process id: your own, or those of all users for root
    Program,
    /// Bits per second that the peer has acknowledged
    Tx,
    /// Bits per second received
    Rx,
    /// Bits per second in both directions, as bars of the last intervals
    Rate,
    /// Packets retransmitted per second
    Retrans,
    /// Smoothed round-trip time in microseconds
    Rtt,
    /// Congestion window in packets
    Cwnd,
    /// Bytes written and not acknowledged
    SendQ,
    /// Bytes received and not read
    RecvQ,
}

/// All columns, in the order in which they are shown.
pub(super) const COLUMNS: [Column; 14] = [
    Column::Peer,
    Column::Local,
    Column::State,
    Column::Path,
    Column::User,
    Column::Program,
    Column::Tx,
    Column::Rx,
    Column::Rate,
    Column::Retrans,
    Column::Rtt,
    Column::Cwnd,
    Column::SendQ,
    Column::RecvQ,
];

/// All columns, the most important ones first; those that do not fit are omitted.
const BY_IMPORTANCE: [Column; 14] = [
    Column::Peer,
    Column::Tx,
    Column::Rx,
    Column::Rtt,
    Column::Rate,
    Column::Retrans,
    Column::User,
    Column::Cwnd,
    Column::SendQ,
    Column::RecvQ,
    Column::Local,
    Column::Program,
    Column::State,
    Column::Path,
];

/// A connection to show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) connection: &'a ConnectionStatus,
    pub(super) history: Option<&'a History>,
    /// Name of the peer, or else its address.
    pub(super) peer: &'a str,
    /// Name of the user, if known.
    pub(super) user: Option<&'a str>,
}

impl Row<'_> {
    /// Returns the latest sample; its values are unknown before the second snapshot.
    pub(super) fn sample(&self) -> Sample {
        let latest = self.history.and_then(History::latest);
        latest.copied().unwrap_or_default()
    }
}

/// Value that a column is sorted by.
enum Value {
    /// Unknown numbers are less than all others.
    Number(Option<f64>),
    Text(String),
}

impl Column {
    /// Returns the heading.
    pub(super) fn title(self) -> &'static str {
        match self {
            Column::Peer => "Peer",
            Column::Local => "Local",
            Column::State => "State",
            Column::Path => "Path",
            Column::User => "User",
            Column::Program => "Program",
            Column::Tx => "Tx b/s",
            Column::Rx => "Rx b/s",
            Column::Rate => "Rate",
            Column::Retrans => "Retr/s",
            Column::Rtt => "RTT µs",
            Column::Cwnd => "Cwnd",
            Column::SendQ => "Send-Q",
            Column::RecvQ => "Recv-Q",
        }
    }

    /// Returns the number of characters, with room for a mark after the heading.
    pub(super) fn width(self) -> u16 {
        match self {
            Column::Peer => 22,
            Column::Local => 13,
            Column::State => 12,
            Column::Program => 18,
            Column::User | Column::Rate => 8,
            Column::Path | Column::Cwnd => 6,
            Column::Tx
            | Column::Rx
            | Column::Retrans
            | Column::Rtt
            | Column::SendQ
            | Column::RecvQ => 7,
        }
    }

    /// Returns true if the cells are aligned to the right.
    pub(super) fn is_number(self) -> bool {
        matches!(
            self,
            Column::Tx
                | Column::Rx
                | Column::Retrans
                | Column::Rtt
                | Column::Cwnd
                | Column::SendQ
                | Column::RecvQ
        )
    }

    /// Returns the cell of a row; `-` if the value is unknown.
    pub(super) fn cell(self, row: &Row<'_>) -> String {
        let c = row.connection;
        match self {
            Column::Peer => format!("{}:{}", row.peer, c.peer_port),
            Column::Local => format!("{}:{}", c.interface, c.local_port),
            Column::State => c.state.clone(),
            Column::Path => c.path.clone(),
            Column::User => match (row.user, c.owner.uid) {
                (Some(name), _) => name.to_owned(),
                (None, Some(uid)) => uid.to_string(),
                (None, None) => "-".to_owned(),
            },
            Column::Program => program(&c.owner),
            Column::Rate => row.history.map(trend).unwrap_or_default(),
            Column::Rtt => show_micros(c.srtt_us),
            _ => match self.value(row) {
                Value::Number(Some(value)) => show_count(value),
                _ => "-".to_owned(),
            },
        }
    }

    fn value(self, row: &Row<'_>) -> Value {
        let c = row.connection;
        let count = |value: Option<u64>| Value::Number(value.map(|n| n as f64));
        match self {
            Column::Tx => Value::Number(row.sample().tx),
            Column::Rx => Value::Number(row.sample().rx),
            Column::Rate => Value::Number(row.sample().both()),
            Column::Retrans => Value::Number(row.sample().retransmits),
            Column::Rtt => Value::Number(c.srtt_us),
            Column::Cwnd => Value::Number(c.cwnd.map(f64::from)),
            Column::SendQ => count(c.send_queue),
            Column::RecvQ => count(c.recv_queue),
            _ => Value::Text(self.cell(row)),
        }
    }

    /// Orders rows by this column: the greatest number first, but texts from A to Z.
    pub(super) fn compare(self, left: &Row<'_>, right: &Row<'_>) -> Ordering {
        match (self.value(left), self.value(right)) {
            (Value::Number(left), Value::Number(right)) => {
                let [left, right] = [left, right].map(|n| n.unwrap_or(f64::NEG_INFINITY));
                right.total_cmp(&left)
            }
            (Value::Text(left), Value::Text(right)) => left.cmp(&right),
            // Both values are from the same column.
            _ => Ordering::Equal,
        }
    }

    /// Returns the columns that fit into this width with a space between them.
    pub(super) fn fitting(width: u16) -> Vec<Column> {
        let mut left = width.saturating_add(1);
        let mut chosen = Vec::new();
        for column in BY_IMPORTANCE {
            match left.checked_sub(column.width() + 1) {
                Some(rest) => left = rest,
                None => break,
            }
            chosen.push(column);
        }
        COLUMNS.into_iter().filter(|c| chosen.contains(c)).collect()
    }
}

/// Formats a time in microseconds with three digits; `-` if it is unknown.
pub(super) fn show_micros(us: Option<f64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us) if us < 999.95 => format!("{us:.1}"),
        Some(us) => show_count(us),
    }
}

/// Draws the last rates of a connection as bars.
fn trend(history: &History) -> String {
    let newest = history.newest_first().take(TREND);
    bars(&newest.filter_map(Sample::both).collect::<Vec<_>>())
}

/// Draws rates as bars, the newest at the right; the highest one has the full height.
pub(super) fn bars(newest_first: &[f64]) -> String {
    let most = newest_first.iter().copied().fold(0.0, f64::max);
    let bar = |rate: &f64| {
        // From 0 to 7: the cast saturates.
        let height = if most > 0.0 {
            (rate / most * 7.0).ceil()
        } else {
            0.0
        };
        BARS.get(height as usize).copied().unwrap_or('█')
    };
    newest_first.iter().rev().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_rank_and_fits_its_heading() {
        for column in COLUMNS {
            assert!(BY_IMPORTANCE.contains(&column), "{column:?}");
            assert!(
                column.title().chars().count() < usize::from(column.width()),
                "{column:?}"
            );
        }
    }

    #[test]
    fn narrow_lists_keep_the_important_columns() {
        assert_eq!(Column::fitting(10), []);
        assert_eq!(Column::fitting(22), [Column::Peer]);
        assert_eq!(Column::fitting(38), [Column::Peer, Column::Tx, Column::Rx]);
        assert_eq!(Column::fitting(u16::MAX), COLUMNS);
    }
}
