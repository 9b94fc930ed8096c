//! Columns that fit what is in them.

/// Text in columns; numbers to the right.
#[derive(Debug, Default)]
pub(super) struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these headings; one that begins with `>` is of a column of numbers.
    pub(super) fn new(headings: &[&str]) -> Table {
        let right = headings.iter().map(|h| h.starts_with('>')).collect();
        let row = headings
            .iter()
            .map(|h| h.trim_start_matches('>').to_owned())
            .collect();
        Table {
            right,
            rows: vec![row],
        }
    }

    /// One more row.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// True when there is nothing but headings.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The lines, without a trailing line end.
    pub(super) fn text(&self) -> String {
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|r| r.get(column))
                .map(|c| c.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).zip(&self.right);
            let cells = cells.map(|((cell, &width), &right)| {
                if right {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit() {
        let mut table = Table::new(&["State", ">Queue", "Peer"]);
        assert!(table.is_empty());
        table.row(["established".into(), "7".into(), "node1".into()]);
        table.row(["x".into(), "1234567".into(), "y".into()]);
        assert_eq!(
            table.text(),
            "State          Queue  Peer\nestablished        7  node1\nx            1234567  y"
        );
    }
}
