//! One snapshot as plain text, for pipes and `--once`.

use super::app::App;
use super::columns::{COLUMNS, Column};
use super::groups::{self, Grouping};
use crate::table;

/// Formats the list without a terminal: all columns except the bars.
pub(super) fn text(app: &App) -> String {
    let columns = COLUMNS.into_iter().filter(|column| *column != Column::Rate);
    let columns: Vec<_> = columns.collect();
    let rows = app.rows();
    if rows.is_empty() {
        let is_filtered = !app.filter_text().is_empty();
        let text = if is_filtered {
            "no connection matches the filter"
        } else {
            "no connections"
        };
        return text.to_owned();
    }
    if app.grouping != Grouping::Connection {
        return groups::text(app);
    }
    let headings = columns.iter().map(|column| {
        let mark = if column.is_number() { ">" } else { "" };
        format!("{mark}{}", column.title())
    });
    let headings: Vec<_> = headings.collect();
    let cells = rows
        .iter()
        .map(|row| columns.iter().map(|column| column.cell(row)).collect());
    table::text(&headings, cells).trim_end().to_owned()
}
