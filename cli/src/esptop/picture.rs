//! Draws screens as SVG, for the documentation.

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// Width and height of a character in pixels.
const CELL: (usize, usize) = (8, 17);
/// Distance of the text from the edges in pixels.
const MARGIN: usize = 10;
/// Distance of the base line from the top of a line in pixels.
const BASE: usize = 13;
/// Default text and background colours of the terminal.
const INK: &str = "#d8dee9";
const PAPER: &str = "#1e2430";

/// Returns a picture of the screen.
pub(super) fn svg(buffer: &Buffer) -> String {
    let (columns, lines) = (
        usize::from(buffer.area.width),
        usize::from(buffer.area.height),
    );
    let (width, height) = (columns * CELL.0 + 2 * MARGIN, lines * CELL.1 + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{PAPER}\"/>\n"
    );
    for (line, cells) in buffer.content.chunks(columns.max(1)).enumerate() {
        let mut column = 0;
        for run in cells.chunk_by(|a, b| a.style() == b.style()) {
            let (x, y) = (MARGIN + column * CELL.0, MARGIN + line * CELL.1);
            svg += &drawn(run, x, y);
            column += run.len();
        }
    }
    svg + "</svg>\n"
}

/// Draws cells with the same style at this position.
fn drawn(cells: &[Cell], x: usize, y: usize) -> String {
    let text: String = cells.iter().map(Cell::symbol).collect();
    let Some(first) = cells.first() else {
        return text;
    };
    let mut svg = String::new();
    let (mut ink, mut paper) = (colour(first.fg, INK), colour(first.bg, PAPER));
    if first.modifier.contains(Modifier::REVERSED) {
        (ink, paper) = (paper, ink);
    }
    if paper != PAPER {
        let (width, height) = (cells.len() * CELL.0, CELL.1);
        svg += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{paper}\"/>\n"
        );
    }
    let shown = text.trim_end();
    if shown.is_empty() {
        return svg;
    }
    let weight = if first.modifier.contains(Modifier::BOLD) {
        " font-weight=\"bold\""
    } else {
        ""
    };
    let opacity = if first.modifier.contains(Modifier::DIM) {
        " opacity=\"0.6\""
    } else {
        ""
    };
    let (width, base) = (shown.chars().count() * CELL.0, y + BASE);
    let escaped = shown
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    svg + &format!(
        "<text x=\"{x}\" y=\"{base}\" textLength=\"{width}\" lengthAdjust=\"spacingAndGlyphs\" \
         xml:space=\"preserve\" fill=\"{ink}\"{weight}{opacity}>{escaped}</text>\n"
    )
}

/// Returns the SVG colour for a terminal colour; `default` for the terminal's default.
fn colour(colour: Color, default: &'static str) -> &'static str {
    match colour {
        Color::Reset => default,
        Color::Red => "#e06c75",
        Color::Green => "#98c379",
        Color::Yellow => "#e5c07b",
        Color::Cyan => "#56b6c2",
        other => panic!("no colour of pictures for {other:?}"),
    }
}
