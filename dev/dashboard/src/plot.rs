//! The content of panels: a value, or lines over time.

use std::error::Error;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::check::{Evaluated, Line, STEP};
use crate::picture::{Area, owned};
use crate::unit::shown;

/// Colours of the page, of panels and their borders, of text, and of labels.
pub(crate) const PAGE: RGBColor = RGBColor(0x14, 0x16, 0x1a);
pub(crate) const PANEL: RGBColor = RGBColor(0x1b, 0x1e, 0x23);
pub(crate) const BORDER: RGBColor = RGBColor(0x2c, 0x30, 0x37);
pub(crate) const INK: RGBColor = RGBColor(0xd0, 0xd2, 0xd8);
pub(crate) const FAINT: RGBColor = RGBColor(0x8d, 0x92, 0x9c);
/// Colours of lines.
const COLOURS: [RGBColor; 12] = [
    RGBColor(0x73, 0xb0, 0x74),
    RGBColor(0xd6, 0xb6, 0x56),
    RGBColor(0x6f, 0xa3, 0xd4),
    RGBColor(0xd4, 0x8a, 0x52),
    RGBColor(0xc9, 0x68, 0x68),
    RGBColor(0xa2, 0x86, 0xc9),
    RGBColor(0x5d, 0xb3, 0xb0),
    RGBColor(0x9d, 0xa3, 0xad),
    RGBColor(0x4f, 0x8a, 0x5b),
    RGBColor(0xe3, 0xd3, 0x9a),
    RGBColor(0xc7, 0x7d, 0xb0),
    RGBColor(0xa8, 0x7b, 0x5a),
];
/// Height of the panel's title in pixels.
const TITLE: u32 = 28;
/// Height of a line of the legend in pixels.
const LEGEND: u32 = 16;
/// Width of a character of the legend in pixels, on average.
const CHARACTER: f64 = 6.0;
/// Maximum drawn value; larger ones have no place in the picture.
const MAX: f64 = 1e15;

/// Draws the last value, above its course.
pub(crate) fn stat(
    area: &Area<'_>,
    evaluated: &Evaluated,
    size: (u32, u32),
    seconds: f64,
) -> Result<(), Box<dyn Error>> {
    let colour = COLOURS[0];
    let points = evaluated.lines.iter().flat_map(|line| &line.points);
    let points: Vec<_> = points.copied().filter(is_drawn).collect();
    let course = area
        .clone()
        .shrink((1, size.1 / 2), (size.0 - 2, size.1 / 2 - 1));
    let mut chart = ChartBuilder::on(&course)
        .build_cartesian_2d(0.0..seconds.max(1.0), 0.0..top(points.iter().map(|p| p.1)))
        .map_err(owned)?;
    if let [first, .., last] = points.as_slice() {
        let ends = [(last.0, 0.0), (first.0, 0.0)];
        let below: Vec<_> = points.iter().copied().chain(ends).collect();
        let below = Polygon::new(below, colour.mix(0.12));
        chart.draw_series([below]).map_err(owned)?;
    }
    let line = LineSeries::new(points.iter().copied(), colour.mix(0.5));
    chart.draw_series(line).map_err(owned)?;
    let value = points
        .last()
        .map(|(_, value)| shown(*value, &evaluated.panel.unit));
    let style = ("sans-serif", 30).into_text_style(area).color(&colour);
    let style = style.pos(Pos::new(HPos::Center, VPos::Center));
    let middle = (i32::try_from(size.0 / 2)?, i32::try_from(size.1 / 2 + 6)?);
    let value = value.as_deref().unwrap_or("No data");
    area.draw_text(value, &style, middle).map_err(owned)
}

/// Draws the lines with their axes and legend.
pub(crate) fn lines(
    area: &Area<'_>,
    evaluated: &Evaluated,
    size: (u32, u32),
    seconds: f64,
) -> Result<(), Box<dyn Error>> {
    let places = legend_places(&evaluated.lines, size.0);
    let rows = places.last().map_or(1, |(_, row)| row + 1);
    let legend = rows * LEGEND + 6;
    let body = area.clone().shrink(
        (6, TITLE),
        (size.0 - 16, size.1.saturating_sub(TITLE + legend)),
    );
    let values = evaluated.lines.iter().flat_map(|line| &line.points);
    let values = values.filter(|p| is_drawn(p)).map(|p| p.1);
    let label = ("sans-serif", 11).into_font().color(&FAINT);
    let mut chart = ChartBuilder::on(&body)
        .margin_top(6)
        .x_label_area_size(20)
        .y_label_area_size(62)
        .build_cartesian_2d(0.0..seconds.max(1.0), 0.0..top(values))
        .map_err(owned)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BORDER)
        .axis_style(BORDER)
        .x_labels(8)
        .y_labels(5)
        .label_style(label)
        .x_label_formatter(&|time| {
            let seconds = time.round();
            format!("{:.0}:{:02.0}", (seconds / 60.0).floor(), seconds % 60.0)
        })
        .y_label_formatter(&|value| shown(*value, &evaluated.panel.unit))
        .draw()
        .map_err(owned)?;
    let top = i32::try_from(size.1 - legend)?;
    for (place, line) in evaluated.lines.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        for part in parts(&line.points) {
            chart
                .draw_series(LineSeries::new(part, colour.stroke_width(2)))
                .map_err(owned)?;
        }
        let Some((x, row)) = places.get(place) else {
            continue;
        };
        let (x, y) = (i32::try_from(*x)?, top + i32::try_from(row * LEGEND + 8)?);
        let dash = PathElement::new([(x, y), (x + 12, y)], colour.stroke_width(3));
        area.draw(&dash).map_err(owned)?;
        let style = ("sans-serif", 11).into_text_style(area).color(&INK);
        let style = style.pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(&line.name, &style, (x + 18, y))
            .map_err(owned)?;
    }
    Ok(())
}

/// Returns the place in pixels and the row of each line's name.
fn legend_places(lines: &[Line], width: u32) -> Vec<(u32, u32)> {
    let (mut x, mut row) = (14, 0);
    let mut places = Vec::new();
    for line in lines {
        // Names of series are short.
        let own = (line.name.chars().count() as f64 * CHARACTER) as u32 + 36;
        if x + own > width && x > 14 {
            (x, row) = (14, row + 1);
        }
        places.push((x, row));
        x += own;
    }
    places
}

/// Returns the parts of a line between gaps: values that are missing or not numbers.
fn parts(points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
    let mut parts: Vec<Vec<(f64, f64)>> = Vec::new();
    for point in points.iter().filter(|p| is_drawn(p)) {
        let last = parts.last().and_then(|part| part.last());
        let follows = last.is_some_and(|last| point.0 - last.0 < 1.5 * f64::from(STEP));
        match parts.last_mut() {
            Some(part) if follows => part.push(*point),
            _ => parts.push(vec![*point]),
        }
    }
    parts
}

fn is_drawn((_, value): &(f64, f64)) -> bool {
    value.abs() < MAX
}

/// Returns the end of an axis from zero for these values.
fn top(values: impl Iterator<Item = f64>) -> f64 {
    let highest = values.fold(0.0, f64::max);
    if highest > 0.0 { highest * 1.1 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_gaps() {
        let points = [1.0, 2.0, f64::NAN, 3.0, 4.0];
        let times = (0..).step_by(STEP as usize).map(f64::from);
        let mut points: Vec<_> = times.zip(points).collect();
        points.push((100.0, 5.0));
        let lengths: Vec<_> = parts(&points).iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 2, 1]);
    }

    #[test]
    fn names_that_do_not_fit_are_in_the_next_row() {
        let line = |name: &str| Line {
            name: name.into(),
            points: Vec::new(),
        };
        let lines = [line("node0 eth0"), line("node1 eth0"), line("node2 eth0")];
        let places = legend_places(&lines, 220);
        assert_eq!(places, [(14, 0), (110, 0), (14, 1)]);
        assert_eq!(legend_places(&lines, 1), [(14, 0), (14, 1), (14, 2)]);
    }
}
