//! The picture of the dashboard: its panels in its grid, drawn as SVG.

use std::error::Error;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::check::Evaluated;
use crate::file::{Grid, Kind};
use crate::plot::{self, BORDER, FAINT, INK, PAGE, PANEL};

/// Columns of the grid.
const COLUMNS: u32 = 24;
/// Width of a column and height of a row in pixels.
const CELL: (u32, u32) = (46, 25);
/// Pixels between panels.
const GAP: u32 = 8;
/// Height of the heading in pixels.
const HEADING: u32 = 40;

/// Area of the picture or of a panel.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Returns the text of the SVG file, with lines over this many seconds.
///
/// # Errors
/// A panel cannot be drawn, such as one outside the grid.
pub(crate) fn draw(
    title: &str,
    panels: &[Evaluated],
    seconds: f64,
) -> Result<String, Box<dyn Error>> {
    let rows = panels.iter().map(|p| p.panel.grid.y + p.panel.grid.h);
    let size = (
        COLUMNS * CELL.0 + GAP,
        HEADING + rows.max().unwrap_or(0) * CELL.1 + GAP,
    );
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&PAGE).map_err(owned)?;
        let heading = ("sans-serif", 18).into_text_style(&area);
        let heading = heading.color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        let middle = i32::try_from(HEADING / 2)?;
        area.draw_text(title, &heading, (14, middle))
            .map_err(owned)?;
        for panel in panels {
            draw_panel(&area, panel, seconds)?;
        }
        area.present().map_err(owned)?;
    }
    text.push('\n');
    Ok(text)
}

fn draw_panel(area: &Area<'_>, evaluated: &Evaluated, seconds: f64) -> Result<(), Box<dyn Error>> {
    let panel = &evaluated.panel;
    let Grid { x, y, w, h } = panel.grid;
    if x + w > COLUMNS || w == 0 || h < 2 {
        return Err(format!("panel `{}` is outside the grid", panel.title).into());
    }
    let place = (GAP + x * CELL.0, HEADING + y * CELL.1);
    let size = (w * CELL.0 - GAP, h * CELL.1 - GAP);
    let area = area.clone().shrink(place, size);
    let corner = (i32::try_from(size.0)? - 1, i32::try_from(size.1)? - 1);
    let all = [(0, 0), corner];
    for style in [PANEL.filled(), BORDER.into()] {
        area.draw(&Rectangle::new(all, style)).map_err(owned)?;
    }
    let title = ("sans-serif", 14).into_text_style(&area).color(&INK);
    area.draw_text(&panel.title, &title, (10, 7))
        .map_err(owned)?;
    match panel.kind {
        Kind::Stat => plot::stat(&area, evaluated, size, seconds),
        Kind::Lines if evaluated.lines.is_empty() => {
            let style = ("sans-serif", 13).into_text_style(&area).color(&FAINT);
            let style = style.pos(Pos::new(HPos::Center, VPos::Center));
            let middle = (corner.0 / 2, corner.1 / 2);
            area.draw_text("No data", &style, middle).map_err(owned)
        }
        Kind::Lines => plot::lines(&area, evaluated, size, seconds),
    }
}

/// Errors of plotters borrow the backend.
#[expect(clippy::needless_pass_by_value)] // for `map_err(owned)`
pub(crate) fn owned(error: impl ToString) -> Box<dyn Error> {
    error.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Line;
    use crate::file::Panel;

    fn panel(title: &str, kind: Kind, grid: [u32; 4], lines: &[(&str, &[f64])]) -> Evaluated {
        let [x, y, w, h] = grid;
        let line = |(name, values): &(&str, &[f64])| Line {
            name: (*name).into(),
            points: (0..).map(f64::from).zip(values.iter().copied()).collect(),
        };
        Evaluated {
            panel: Panel {
                kind,
                title: title.into(),
                unit: "Bps".into(),
                grid: Grid { x, y, w, h },
                queries: Vec::new(),
            },
            queries: 0,
            lines: lines.iter().map(line).collect(),
        }
    }

    #[test]
    fn panels_have_titles_legends_and_units() -> Result<(), Box<dyn Error>> {
        let panels = [
            panel(
                "Now & then",
                Kind::Stat,
                [0, 0, 12, 4],
                &[("", &[1.0, 2500.0])],
            ),
            panel(
                "Sent",
                Kind::Lines,
                [0, 4, 12, 8],
                &[("node0", &[1e6, f64::NAN, 4e6])],
            ),
            panel("Lost", Kind::Lines, [12, 4, 12, 8], &[]),
        ];
        let text = draw("ESP nodes", &panels, 2.0)?;
        for part in [
            "ESP nodes",
            "Now &amp; then",
            "2.5 kB/s",
            "Sent",
            "node0",
            "MB/s",
            "No data",
            "0:02",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        Ok(())
    }

    #[test]
    fn odd_panels_are_drawn_or_refused() -> Result<(), Box<dyn Error>> {
        let odd: [&[f64]; 4] = [&[], &[f64::NAN], &[f64::INFINITY, 1e300], &[-1.0, 0.0]];
        for kind in [Kind::Stat, Kind::Lines] {
            for values in odd {
                draw("", &[panel("", kind, [0, 0, 6, 4], &[("", values)])], 0.0)?;
            }
        }
        for grid in [[23, 0, 2, 4], [0, 0, 0, 4], [0, 0, 1, 1]] {
            let panels = [panel("p", Kind::Stat, grid, &[])];
            assert!(draw("", &panels, 1.0).is_err(), "{grid:?}");
        }
        Ok(())
    }
}
