//! Text tables without lines, for a terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Formats rows under their headings. A heading that begins with `>` makes a right-aligned column.
/// The text ends with a line feed.
pub fn text(headings: &[impl AsRef<str>], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(headings.iter().map(|h| h.as_ref().trim_start_matches('>')))
        .add_rows(rows);
    for (column, heading) in table.column_iter_mut().zip(headings) {
        column.set_padding((0, 2));
        if heading.as_ref().starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_the_width_of_their_longest_cell() {
        let rows = [["established", "7", "node1"], ["x", "1234567", "y"]];
        let text = text(
            &["State", ">Queue", "Peer"],
            rows.map(|row| row.map(str::to_owned).to_vec()),
        );
        assert_eq!(
            text,
            "State          Queue  Peer\nestablished        7  node1\nx            1234567  y\n"
        );
    }
}
