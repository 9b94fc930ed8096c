//! Connections summed up by user or by job.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Cell, Row as TableRow, Table};

use super::app::{App, Order};
use super::columns::{self, Column, Row, TREND};
use super::draw;
use super::rates::Sample;
use crate::out::printable;
use crate::units::show_count;

/// Unit of a line of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Grouping {
    /// A connection
    #[default]
    Connection,
    /// All connections of a user
    User,
    /// All connections of a job, by the variables of its launcher, or else of all programs with one
    /// name
    Job,
}

impl Grouping {
    /// Returns the next grouping; after the last one, the first.
    pub(super) fn next(self) -> Grouping {
        match self {
            Grouping::Connection => Grouping::User,
            Grouping::User => Grouping::Job,
            Grouping::Job => Grouping::Connection,
        }
    }

    /// Returns the columns by which the list can be sorted.
    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Grouping::Connection => &columns::COLUMNS,
            Grouping::User | Grouping::Job => &SORTED,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Grouping::Connection => "Connection",
            Grouping::User => "User",
            Grouping::Job => "Job",
        }
    }

    /// Returns the name of the group that a connection belongs to.
    fn name(self, app: &App, row: &Row<'_>) -> String {
        let user = || Column::User.cell(row);
        let owner = &row.connection.owner;
        let name = match self {
            Grouping::Connection => Column::Peer.cell(row),
            Grouping::User => user(),
            Grouping::Job => match (app.job(row.connection), &owner.program, owner.uid) {
                (Some(job), ..) => job.to_owned(),
                (None, Some(program), _) => program.clone(),
                (None, None, Some(_)) => format!("user {}", user()),
                (None, None, None) => "-".to_owned(),
            },
        };
        printable(&name)
    }
}

/// Columns by which groups can be sorted: that of the names, and those that are shown.
const SORTED: [Column; 8] = [
    Column::Peer,
    Column::Tx,
    Column::Rx,
    Column::Rate,
    Column::Retrans,
    Column::Rtt,
    Column::SendQ,
    Column::RecvQ,
];
/// Columns of groups, the most important ones first; those that do not fit are omitted.
const SHOWN: &[Column] = SORTED.split_at(1).1;
/// Number of characters for the name, and for the number of connections.
const WIDTHS: (u16, u16) = (16, 6);

/// Connections of a user or a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Group {
    pub(super) name: String,
    connections: usize,
    /// Sums of the latest samples, and the maximum of the round trips.
    sample: Sample,
    /// Bits per second in both directions, the newest first.
    trend: Vec<f64>,
    send_queue: Option<u64>,
    recv_queue: Option<u64>,
    users: BTreeSet<u32>,
    processes: BTreeSet<u32>,
}

impl Group {
    fn add(&mut self, row: &Row<'_>) {
        let c = row.connection;
        self.connections += 1;
        self.users.extend(c.owner.uid);
        self.processes.extend(c.owner.pid);
        self.send_queue = sum(self.send_queue, c.send_queue);
        self.recv_queue = sum(self.recv_queue, c.recv_queue);
        self.sample.rtt = match (self.sample.rtt, c.srtt_us) {
            (Some(longest), Some(rtt)) => Some(longest.max(rtt)),
            (longest, rtt) => longest.or(rtt),
        };
        let latest = row.sample();
        self.sample.tx = sum(self.sample.tx, latest.tx);
        self.sample.rx = sum(self.sample.rx, latest.rx);
        self.sample.retransmits = sum(self.sample.retransmits, latest.retransmits);
        let samples = row.history.into_iter().flat_map(|h| h.newest_first());
        for (place, rate) in samples.take(TREND).filter_map(Sample::both).enumerate() {
            match self.trend.get_mut(place) {
                Some(total) => *total += rate,
                None => self.trend.push(rate),
            }
        }
    }

    /// Returns the value of a column; `None` if it is unknown or not a number.
    fn value(&self, column: Column) -> Option<f64> {
        match column {
            Column::Tx => self.sample.tx,
            Column::Rx => self.sample.rx,
            Column::Rate => self.sample.both(),
            Column::Retrans => self.sample.retransmits,
            Column::Rtt => self.sample.rtt,
            Column::SendQ => self.send_queue.map(|n| n as f64),
            Column::RecvQ => self.recv_queue.map(|n| n as f64),
            _ => None,
        }
    }

    fn cell(&self, column: Column) -> String {
        match column {
            Column::Rate => columns::bars(&self.trend),
            Column::Rtt => columns::show_micros(self.sample.rtt),
            _ => {
                let value = self.value(column);
                value.map_or_else(|| "-".to_owned(), show_count)
            }
        }
    }

    /// Returns the filter for the connections of the group; `None` if their owner is unknown.
    pub(super) fn filter(&self, grouping: Grouping) -> Option<String> {
        let (word, numbers) = match grouping {
            Grouping::Job if !self.processes.is_empty() => ("pid", &self.processes),
            _ => ("user", &self.users),
        };
        let conditions: Vec<_> = numbers.iter().map(|n| format!("{word} {n}")).collect();
        (!conditions.is_empty()).then(|| conditions.join(" or "))
    }

    /// Returns the cells of a line of text, in the order of the headings.
    fn cells(&self, shown: &[Column]) -> Vec<String> {
        let mut cells = vec![self.name.clone(), self.connections.to_string()];
        cells.extend(shown.iter().map(|column| self.cell(*column)));
        cells
    }
}

/// Adds numbers, some of which may be unknown.
fn sum<T: std::ops::Add<Output = T>>(total: Option<T>, more: Option<T>) -> Option<T> {
    match (total, more) {
        (Some(total), Some(more)) => Some(total + more),
        (total, more) => total.or(more),
    }
}

/// Returns the groups of the connections that the filter accepts, in order.
pub(super) fn groups(app: &App) -> Vec<Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for row in app.rows() {
        let name = app.grouping.name(app, &row);
        groups.entry(name).or_default().add(&row);
    }
    let named = groups
        .into_iter()
        .map(|(name, group)| Group { name, ..group });
    let mut groups: Vec<_> = named.collect();
    let Order { by, reversed } = app.order;
    groups.sort_by(|left, right| {
        let order = compare(by, left, right);
        if reversed { order.reverse() } else { order }
    });
    groups
}

/// Orders groups: the greatest number first, or else names from A to Z.
fn compare(by: Column, left: &Group, right: &Group) -> Ordering {
    if !SHOWN.contains(&by) {
        return left.name.cmp(&right.name);
    }
    let [left, right] = [left, right].map(|group| group.value(by).unwrap_or(f64::NEG_INFINITY));
    right.total_cmp(&left)
}

/// Formats the list without a terminal: all columns except the bars.
pub(super) fn text(app: &App) -> String {
    let shown: Vec<_> = SHOWN
        .iter()
        .copied()
        .filter(|c| *c != Column::Rate)
        .collect();
    let mut headings = vec![app.grouping.title().to_owned(), ">Conns".to_owned()];
    headings.extend(shown.iter().map(|column| format!(">{}", column.title())));
    let groups = groups(app);
    let rows = groups.iter().map(|group| group.cells(&shown));
    crate::table::text(&headings, rows).trim_end().to_owned()
}

/// Draws the groups, starting with the one at `offset`.
pub(super) fn draw(app: &App, groups: &[Group], offset: usize, frame: &mut Frame<'_>, area: Rect) {
    let shown = fitting(area.width);
    let lines = groups.iter().enumerate().skip(offset);
    let lines = lines.take(usize::from(area.height));
    let lines = lines.map(|(index, group)| {
        let cells = group.cells(&shown).into_iter().enumerate();
        let cells = cells.map(|(place, text)| cell(text, place, &shown, group));
        let mut style = Style::new();
        if index == app.position() {
            style = style.add_modifier(Modifier::REVERSED);
        }
        if app.gone().is_some() {
            style = style.add_modifier(Modifier::DIM);
        }
        TableRow::new(cells).style(style)
    });
    let name = if SHOWN.contains(&app.order.by) {
        app.grouping.title().to_owned()
    } else {
        format!("{}{}", app.grouping.title(), draw::mark(app.order))
    };
    let mut header = vec![
        Cell::from(name),
        Cell::from(Text::from("Conns").right_aligned()),
    ];
    header.extend(shown.iter().map(|column| draw::heading(*column, app.order)));
    let mut widths = vec![Constraint::Min(WIDTHS.0), Constraint::Length(WIDTHS.1)];
    widths.extend(
        shown
            .iter()
            .map(|column| Constraint::Length(column.width())),
    );
    let table = Table::new(lines, widths)
        .column_spacing(1)
        .header(TableRow::new(header).style(Modifier::BOLD));
    frame.render_widget(table, area);
}

/// Returns a cell: names and bars are aligned to the left, and retransmissions are highlighted.
fn cell(text: String, place: usize, shown: &[Column], group: &Group) -> Cell<'static> {
    let column = place.checked_sub(2).and_then(|place| shown.get(place));
    let is_left = place == 0 || column.is_some_and(|column| !column.is_number());
    let text = Text::from(text);
    let cell = Cell::from(if is_left { text } else { text.right_aligned() });
    let lost = group.sample.retransmits.unwrap_or(0.0);
    if column == Some(&Column::Retrans) && lost >= 0.5 {
        cell.style(Style::new().fg(Color::Yellow))
    } else {
        cell
    }
}

/// Returns the columns that fit into this width, in addition to the names.
fn fitting(width: u16) -> Vec<Column> {
    let mut left = width.saturating_sub(WIDTHS.0 + 1 + WIDTHS.1);
    let mut shown = Vec::new();
    for &column in SHOWN {
        match left.checked_sub(column.width() + 1) {
            Some(rest) => left = rest,
            None => break,
        }
        shown.push(column);
    }
    shown
}
