//! The help screen: keys and columns.

use clap::ValueEnum;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Text};

use super::columns::{COLUMNS, Column};

/// Keys and their functions.
const KEYS: [&str; 7] = [
    "↑ ↓ PgUp PgDn Home End   select a connection",
    "Enter   its details and history, Esc or Backspace back",
    "← →     sort by the column to the left or right, r in reverse",
    "/       filter, such as: dport = 5000 or rtt > 1ms (all: --help); Esc clears it",
    "Tab     connections summed up by user, by job; Enter shows those of one",
    "Space   pause",
    "? q     this help, and to quit, as Ctrl-C",
];

/// Draws the help; on small screens only its beginning.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect) {
    let mut lines: Vec<_> = KEYS.into_iter().map(Line::raw).collect();
    lines.push(Line::raw(""));
    lines.extend(COLUMNS.into_iter().map(explained));
    frame.render_widget(Text::from(lines), area);
}

fn explained(column: Column) -> Line<'static> {
    let value = column.to_possible_value();
    let help = value.and_then(|value| value.get_help().map(ToString::to_string));
    Line::raw(format!("{:<8}{}", column.title(), help.unwrap_or_default()))
}
