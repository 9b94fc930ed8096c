//! Tables of rows, as text for a terminal and as Markdown for the page.

use std::fmt;

use serde::Serialize;

use crate::samples::median;

/// A column: its heading, true if its cells are text rather than numbers, and the cell of a row.
pub(crate) type Column<R> = (&'static str, bool, fn(&R) -> Option<String>);

/// Output format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Aligned columns without lines.
    Text,
    /// A table of GitHub-flavoured Markdown.
    Markdown,
}

/// Median, minimum and maximum of a ratio over the rounds of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Median of the rounds' ratios.
    pub median: f64,
    /// Minimum of the rounds' ratios.
    pub low: f64,
    /// Maximum of the rounds' ratios.
    pub high: f64,
}

impl Ratio {
    /// Summarizes the ratios of all rounds; `None` if there are none.
    pub(crate) fn of(ratios: &[f64]) -> Option<Ratio> {
        Some(Ratio {
            median: rounded(median(ratios))?,
            low: rounded(ratios.iter().copied().reduce(f64::min)?)?,
            high: rounded(ratios.iter().copied().reduce(f64::max)?)?,
        })
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2}–{:.2})", self.median, self.low, self.high)
    }
}

/// Rounds to three decimals, which is finer than the measurement; `None` for NaN and infinities.
pub(crate) fn rounded(value: f64) -> Option<f64> {
    value.is_finite().then(|| (value * 1000.0).round() / 1000.0)
}

/// Returns a value of each round, rounded for JSON.
pub(crate) fn of_rounds<M>(rounds: &[M], value: impl Fn(&M) -> Option<f64>) -> Vec<f64> {
    rounds
        .iter()
        .filter_map(value)
        .filter_map(rounded)
        .collect()
}

/// Returns the median of a value over the rounds that have it, rounded for JSON.
pub(crate) fn median_of<M>(rounds: &[M], value: impl Fn(&M) -> Option<f64>) -> Option<f64> {
    rounded(median(&rounds.iter().filter_map(value).collect::<Vec<_>>()))
}

/// Formats the rows. Columns that are empty in every row are omitted.
pub(crate) fn render<R>(rows: &[R], columns: &[Column<R>], style: Style) -> String {
    let filled = columns
        .iter()
        .filter(|(_, _, cell)| rows.iter().any(|row| cell(row).is_some()));
    let filled: Vec<_> = filled.collect();
    let header: Vec<&str> = filled.iter().map(|(heading, _, _)| *heading).collect();
    let cells = |row: &R| -> Vec<String> {
        let cell = |column: &&Column<R>| column.2(row).unwrap_or_else(|| "-".into());
        filled.iter().map(cell).collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    if style == Style::Markdown {
        let mut lines = vec![header.join(" | ")];
        let rule = filled
            .iter()
            .map(|(_, left, _)| if *left { "---" } else { "---:" });
        lines.push(rule.collect::<Vec<_>>().join(" | "));
        lines.extend(rows.iter().map(|row| row.join(" | ")));
        return lines.iter().map(|line| format!("| {line} |\n")).collect();
    }
    let headings: Vec<String> = filled
        .iter()
        .map(|(heading, left, _)| format!("{}{heading}", if *left { "" } else { ">" }))
        .collect();
    cli::table::text(&headings, rows)
}

/// Breaks a paragraph into lines of at most `columns` characters, each ended by a line feed.
pub fn wrapped(text: &str, columns: usize) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines += &line;
            lines.push('\n');
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_not_longer_than_asked() {
        let text = wrapped(&"word ".repeat(40), 20);
        assert!(
            text.lines()
                .all(|line| line.len() <= 20 && !line.ends_with(' '))
        );
        assert_eq!(text.split_whitespace().count(), 40);
    }
}
