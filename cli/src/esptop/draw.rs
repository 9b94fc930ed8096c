//! Screens: the list of connections, and the lines around every view.

use esp_client::control::InterfaceInfo;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, Wrap};

use super::app::{App, Order, View};
use super::columns::{Column, Row};
use super::groups::{self, Grouping};
use super::{details, help};
use crate::units::show_count;

/// Minimum size of a screen with a list, in columns and lines.
const MIN_SCREEN: (u16, u16) = (30, 5);
/// Number of lines at which each interface gets a line of its own.
const ROOMY: u16 = 12;
/// Maximum number of lines of interfaces.
const MAX_INTERFACES: usize = 4;

/// Draws the screen.
pub(super) fn draw(app: &mut App, frame: &mut Frame<'_>) {
    let area = frame.area();
    if area.width < MIN_SCREEN.0 || area.height < MIN_SCREEN.1 {
        let (width, height) = MIN_SCREEN;
        let text = format!("esptop needs {width} × {height} characters; q ends it");
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let interfaces = interfaces(app, area);
    let footer = Paragraph::new(footer(app)).wrap(Wrap { trim: true });
    let footer_lines = 1 + error_lines(app, area.width);
    let lines = 1 + u16::try_from(interfaces.len()).unwrap_or(0);
    let [top, middle, bottom] = Layout::vertical([
        Constraint::Length(lines),
        Constraint::Fill(1),
        Constraint::Length(footer_lines),
    ])
    .areas(area);
    let mut summary = vec![summary(app)];
    summary.extend(interfaces);
    frame.render_widget(Text::from(summary), top);
    match app.view.clone() {
        View::List => list(app, frame, middle),
        View::Details(key) => details::draw(app, &key, frame, middle),
        View::Help => help::draw(frame, middle),
    }
    frame.render_widget(footer, bottom);
}

/// Returns the number of lines for the error of the prompt, at most 3.
fn error_lines(app: &App, width: u16) -> u16 {
    let error = app.prompt.as_ref().and_then(|prompt| prompt.error.as_ref());
    let length = error.map_or(0, |why| why.chars().count());
    // Wrapped words do not fill their lines, so an eighth is added.
    let lines = (length + length / 8).div_ceil(usize::from(width).max(1));
    u16::try_from(lines.min(3)).unwrap_or(3)
}

/// Returns the first line: the daemon, or the reason why there is none.
fn summary(app: &App) -> Line<'static> {
    if let Some(why) = app.gone() {
        let style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
        return Line::styled(format!("trying again: {why}"), style);
    }
    let Some(status) = app.status() else {
        return Line::raw("asking esp-daemon …");
    };
    let paused = if app.paused { "PAUSED  " } else { "" };
    let connections = status.connections.len();
    let shown = app.rows().len();
    let shown = if shown == connections {
        String::new()
    } else {
        format!(" ({shown} shown)")
    };
    Line::styled(
        format!(
            "{paused}esp-daemon {} up {}: {}{shown}, {}, {}",
            status.daemon,
            uptime(status.uptime_s),
            counted(connections, "connection"),
            counted(status.listeners.len(), "listener"),
            counted(status.edp.len(), "datagram port"),
        ),
        Modifier::BOLD,
    )
}

/// Formats a number of things: `1 connection`, `2 connections`.
fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Formats the largest two units of a time.
fn uptime(seconds: f64) -> String {
    // The cast saturates.
    let seconds = seconds as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// Returns the lines of interfaces that fit on the screen.
fn interfaces(app: &App, area: Rect) -> Vec<Line<'static>> {
    let all = app.status().map_or(&[][..], |s| s.interfaces.as_slice());
    if area.height < ROOMY || app.view == View::Help {
        return Vec::new();
    }
    let title = |interface: &InterfaceInfo| {
        let state = if interface.up { "up" } else { "DOWN" };
        format!("{} {state} {}", interface.name, interface.mtu)
    };
    let titles = all.iter().map(|interface| title(interface).chars().count());
    let width = titles.max().unwrap_or(0);
    let line = |interface: &InterfaceInfo| {
        let rates = app.rates().interface(&interface.name);
        let known = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), show_count);
        let style = if interface.up {
            Style::new()
        } else {
            Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
        };
        let text = format!(
            "{:<width$} tx {:>5}b/s {:>5}f/s rx {:>5}b/s {:>5}f/s retr {:>3}/s drop {:>3}/s",
            title(interface),
            known(rates.tx_bits),
            known(rates.tx_frames),
            known(rates.rx_bits),
            known(rates.rx_frames),
            known(rates.retransmits),
            known(rates.drops),
        );
        Line::styled(text, style)
    };
    let mut lines: Vec<_> = all.iter().take(MAX_INTERFACES).map(line).collect();
    if all.len() > MAX_INTERFACES {
        let more = all.len() - MAX_INTERFACES;
        lines.push(Line::raw(format!("and {more} more interfaces")));
    }
    lines
}

/// Returns the last lines: keys, or the prompt of the filter.
fn footer(app: &App) -> Vec<Line<'static>> {
    if let Some(prompt) = &app.prompt {
        let mut lines = vec![Line::styled(
            format!("filter: {}█", prompt.text),
            Modifier::BOLD,
        )];
        let style = Style::new().fg(Color::Red);
        let error = prompt.error.clone();
        lines.extend(error.map(|why| Line::styled(why, style)));
        return lines;
    }
    let text = match app.view {
        View::List if app.filter_text().is_empty() => {
            "? help  / filter  Enter details  Tab group  ←→ sort  Space pause  q quit".to_owned()
        }
        View::List => format!("Esc clears the filter: {}", app.filter_text()),
        View::Details(_) => "Esc back  Space pause  ? help  q quit".to_owned(),
        View::Help => "Esc back  q quit".to_owned(),
    };
    vec![Line::styled(text, Modifier::DIM)]
}

fn list(app: &mut App, frame: &mut Frame<'_>, area: Rect) {
    let page = usize::from(area.height.saturating_sub(1)).max(1);
    let position = app.position();
    app.page = page;
    // The selected row stays on the screen.
    app.offset = app
        .offset
        .clamp((position + 1).saturating_sub(page), position);
    let columns = Column::fitting(area.width);
    let rows = app.rows();
    if rows.is_empty() {
        let text = match (app.status(), app.filter_text()) {
            (None, _) => "",
            (Some(status), _) if status.connections.is_empty() => "no connections",
            _ => "no connection matches the filter",
        };
        frame.render_widget(Line::raw(text), area);
        return;
    }
    if app.grouping != Grouping::Connection {
        let groups = groups::groups(app);
        let offset = app.offset.min(groups.len().saturating_sub(page));
        groups::draw(app, &groups, offset, frame, area);
        return;
    }
    // If there are enough rows, the page has no empty lines after the last row.
    let offset = app.offset.min(rows.len().saturating_sub(page));
    let shown = rows.iter().enumerate().skip(offset).take(page);
    let lines = shown.map(|(index, row)| line(&columns, row, index == position, app.gone()));
    let header = columns.iter().map(|column| heading(*column, app.order));
    let widths = columns.iter().map(|column| match column {
        Column::Peer => Constraint::Min(column.width()),
        column => Constraint::Length(column.width()),
    });
    let table = Table::new(lines, widths)
        .column_spacing(1)
        .header(TableRow::new(header).style(Modifier::BOLD));
    frame.render_widget(table, area);
}

/// Returns the mark of the column that the list is sorted by.
pub(super) fn mark(order: Order) -> &'static str {
    if order.reversed { "▲" } else { "▼" }
}

/// Returns the heading of a column, with a mark if the list is sorted by it.
pub(super) fn heading(column: Column, order: Order) -> Cell<'static> {
    let mark = if column == order.by { mark(order) } else { "" };
    let text = Text::from(format!("{}{mark}", column.title()));
    Cell::from(if column.is_number() {
        text.right_aligned()
    } else {
        text
    })
}

fn line<'a>(
    columns: &[Column],
    row: &Row<'_>,
    is_selected: bool,
    gone: Option<&str>,
) -> TableRow<'a> {
    let cells = columns.iter().map(|column| {
        let text = Text::from(column.cell(row));
        let cell = Cell::from(if column.is_number() {
            text.right_aligned()
        } else {
            text
        });
        let is_bad = *column == Column::Retrans && is_above_zero(*column, row);
        if is_bad {
            cell.style(Style::new().fg(Color::Yellow))
        } else {
            cell
        }
    });
    let mut style = Style::new();
    if is_selected {
        style = style.add_modifier(Modifier::REVERSED);
    }
    if gone.is_some() {
        style = style.add_modifier(Modifier::DIM);
    }
    TableRow::new(cells).style(style)
}

fn is_above_zero(column: Column, row: &Row<'_>) -> bool {
    !["-", "0"].contains(&column.cell(row).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_their_two_largest_units() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (59.9, "59 s"),
            (61.0, "1 min 1 s"),
            (3_720.0, "1 h 2 min"),
            (90_000.0, "1 d 1 h"),
            (-5.0, "0 s"),
        ] {
            assert_eq!(uptime(seconds), text);
        }
    }
}
