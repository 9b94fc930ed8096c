//! The view of one connection: its values, and charts of its history.

use std::fmt::Display;

use esp_client::control::ConnectionStatus;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Modifier;
use ratatui::text::{Line, Text};
use ratatui::widgets::{RenderDirection, Sparkline, SparklineBar};

use super::app::App;
use super::columns::Column;
use super::rates::{History, Key, Sample};
use crate::units::show_count;

/// Width of a value with its name, in characters.
const VALUE: usize = 26;
/// Minimum number of lines of a chart, with its heading.
const MIN_CHART: u16 = 2;
/// Maximum number of lines of a chart, with its heading.
const MAX_CHART: u16 = 8;

/// Draws the connection as of the last snapshot that contained it.
pub(super) fn draw(app: &App, key: &Key, frame: &mut Frame<'_>, area: Rect) {
    let Some(history) = app.rates().history(key) else {
        frame.render_widget(Line::raw("the connection has ended"), area);
        return;
    };
    let connection = history.connection();
    let connections = app.status().map_or(&[][..], |s| s.connections.as_slice());
    let is_open = connections.iter().any(|c| Key::of(c) == *key);
    let mut lines = vec![title(app, connection, is_open)];
    lines.extend(values(connection, usize::from(area.width)));
    let charts = charts(history);
    let text = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let [top, rest] = Layout::vertical([Constraint::Length(text), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Text::from(lines), top);
    let fitting = usize::from(rest.height / MIN_CHART).min(charts.len());
    let most = MAX_CHART.saturating_mul(u16::try_from(fitting).unwrap_or(1));
    let rest = Rect {
        height: rest.height.min(most),
        ..rest
    };
    let areas = Layout::vertical(vec![Constraint::Fill(1); fitting]).split(rest);
    for (chart, area) in charts.into_iter().zip(areas.iter()) {
        chart.draw(frame, *area);
    }
}

fn title(app: &App, connection: &ConnectionStatus, is_open: bool) -> Line<'static> {
    let row = app.row(connection);
    let cell = |column: Column| column.cell(&row);
    let ended = if is_open { "" } else { "ENDED  " };
    let text = format!(
        "{ended}{} from {}  {} {}  user {}  {}",
        cell(Column::Peer),
        cell(Column::Local),
        cell(Column::State),
        cell(Column::Path),
        cell(Column::User),
        cell(Column::Program),
    );
    Line::styled(text, Modifier::BOLD)
}

/// Returns the values in as many columns as fit.
fn values(c: &ConnectionStatus, width: usize) -> Vec<Line<'static>> {
    fn known(value: Option<impl Display>) -> String {
        value.map_or_else(|| "-".to_owned(), |value| value.to_string())
    }
    let count = |value: Option<u64>| known(value.map(|n| show_count(n as f64)));
    let micros = |value: Option<f64>| known(value.map(|us| format!("{us:.1} µs")));
    let all = [
        ("RTT", micros(c.srtt_us)),
        ("variation", micros(c.rttvar_us)),
        ("shortest RTT", micros(c.min_rtt_us)),
        ("timeout", micros(c.rto_us)),
        ("window", known(c.cwnd)),
        ("in flight", known(c.in_flight)),
        ("peer's credit", known(c.credit)),
        ("own credit", known(c.rx_credit)),
        ("payload", known(c.payload)),
        ("agreed payload", known(c.payload_agreed)),
        ("send queue", count(c.send_queue)),
        ("receive queue", count(c.recv_queue)),
        ("bytes acked", count(c.bytes_acked)),
        ("bytes received", count(c.bytes_received)),
        ("packets sent", count(c.packets_sent)),
        ("received", count(c.packets_received)),
        ("retransmitted", count(c.retransmits)),
        ("timeouts", count(c.timeouts)),
        ("tail probes", count(c.tail_probes)),
        ("duplicates", count(c.duplicates)),
        ("out of order", count(c.out_of_order)),
        ("moves", count(c.moves)),
    ];
    let columns = (width / VALUE).max(1);
    let cell = |(name, value): &(&str, String)| format!("{name:<14} {value:>10} ");
    let lines = all.chunks(columns);
    lines
        .map(|line| Line::raw(line.iter().map(cell).collect::<String>()))
        .collect()
}

/// A chart of the history, the newest sample at the right.
struct Chart {
    name: &'static str,
    newest_first: Vec<Option<f64>>,
}

fn charts(history: &History) -> Vec<Chart> {
    let chart = |name, value: fn(&Sample) -> Option<f64>| Chart {
        name,
        newest_first: history.newest_first().map(value).collect(),
    };
    vec![
        chart("sent b/s", |sample| sample.tx),
        chart("received b/s", |sample| sample.rx),
        chart("RTT µs", |sample| sample.rtt),
        chart("retransmitted/s", |sample| sample.retransmits),
    ]
}

impl Chart {
    fn draw(self, frame: &mut Frame<'_>, area: Rect) {
        let [top, rest] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
        let shown = self.newest_first.iter().take(usize::from(area.width));
        let most = shown.clone().flatten().copied().fold(None, |most, value| {
            Some(most.map_or(value, |most: f64| most.max(value)))
        });
        let known = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), show_count);
        let latest = known(self.newest_first.first().copied().flatten());
        let heading = format!("{} {latest}, at most {}", self.name, known(most));
        frame.render_widget(Line::raw(heading), top);
        // Scaled to the highest value; the casts saturate.
        let scale = most.filter(|most| *most > 0.0).unwrap_or(1.0);
        let bars = shown.map(|value| {
            let height = value.map(|value| (value / scale * 1000.0).ceil() as u64);
            SparklineBar::from(height)
        });
        let chart = Sparkline::default()
            .data(bars)
            .max(1000)
            .direction(RenderDirection::RightToLeft);
        frame.render_widget(chart, rest);
    }
}
