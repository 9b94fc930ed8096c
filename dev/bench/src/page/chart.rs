//! Charts of the performance page, drawn as SVG.

use std::error::Error;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width and height in pixels.
const SIZE: (u32, u32) = (760, 400);
/// Opacity of a band.
const BAND: f64 = 0.1;

/// A chart and the file it is written to.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Name of the file, without its extension.
    pub name: String,
    /// Heading, which names MTU and kind of waiting.
    pub title: String,
    /// Quantity and unit of the vertical axis.
    pub unit: &'static str,
    /// Content.
    pub plot: Plot,
}

/// Content of a chart.
#[derive(Clone, Debug, PartialEq)]
pub enum Plot {
    /// Values over sizes in bytes, one line per series.
    Lines {
        /// True for a logarithmic vertical axis.
        log: bool,
        /// Legend and points of each line. A single point is drawn as a horizontal line.
        series: Vec<(String, Vec<Point>)>,
    },
    /// Groups of bars, one bar per series.
    Bars {
        /// Legends of the series.
        series: Vec<String>,
        /// Label of each group and its values, in the order of the series.
        groups: Vec<(String, Vec<f64>)>,
    },
}

impl Plot {
    /// Returns the names of the series, to be changed.
    pub(super) fn names(&mut self) -> Vec<&mut String> {
        match self {
            Plot::Lines { series, .. } => series.iter_mut().map(|(name, _)| name).collect(),
            Plot::Bars { series, .. } => series.iter_mut().collect(),
        }
    }
}

/// Point of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Bytes.
    pub size: f64,
    /// Value of the line.
    pub value: f64,
    /// Lower and upper edge of the band around the line.
    pub band: Option<(f64, f64)>,
}

/// Selects the colour of a series by its name, so that it is the same in all charts.
fn colour(name: &str, place: usize) -> RGBColor {
    const OTHERS: [RGBColor; 4] = [
        RGBColor(0x8c, 0x56, 0x4b),
        RGBColor(0xe3, 0x77, 0xc2),
        RGBColor(0xbc, 0xbd, 0x22),
        RGBColor(0x17, 0xbe, 0xcf),
    ];
    let known = [
        ("esp-udp-noecn", RGBColor(0x9e, 0xca, 0xe1)),
        ("esp-udp", RGBColor(0x1f, 0x77, 0xb4)),
        ("esp-raw", RGBColor(0x2c, 0xa0, 0x2c)),
        ("tcp-reno", RGBColor(0xd6, 0x27, 0x28)),
        ("tcp-cubic", RGBColor(0xff, 0x7f, 0x0e)),
        ("tcp-dctcp", RGBColor(0x94, 0x67, 0xbd)),
        ("TCP without offload", RGBColor(0xff, 0xbb, 0x78)),
        ("TCP", RGBColor(0xff, 0x7f, 0x0e)),
        ("ESP, lease", RGBColor(0x1f, 0x77, 0xb4)),
        ("ESP, daemon", RGBColor(0x2c, 0xa0, 0x2c)),
        // Over UDP: a lighter shade of the colour over raw Ethernet.
        ("ESP in UDP, daemon", RGBColor(0x8f, 0xd1, 0x75)),
        ("ESP in UDP", RGBColor(0x6b, 0xb8, 0xee)),
        ("p2p over UDP", RGBColor(0xd0, 0xa3, 0xe6)),
        ("p2p", RGBColor(0x94, 0x67, 0xbd)),
        ("bare UDP loop", RGBColor(0xb5, 0xb5, 0xb5)),
        ("bare", RGBColor(0x7f, 0x7f, 0x7f)),
        ("limit", RGBColor(0x7f, 0x7f, 0x7f)),
        ("openmpi", RGBColor(0xff, 0x7f, 0x0e)),
        ("mpich", RGBColor(0xd6, 0x27, 0x28)),
    ];
    // Variants of one contender ("p2p two-copy") have the other colours.
    let is_variant = name.ends_with("copy") || name.ends_with("copy, skew off");
    known
        .into_iter()
        .find(|(start, _)| !is_variant && name.starts_with(start))
        .or_else(|| OTHERS.get(place % OTHERS.len()).map(|c| ("", *c)))
        .map_or(BLACK, |(_, colour)| colour)
}

/// Writes a size as 64 or 4 Ki, from its logarithm to base 2.
fn size_label(exponent: &f64) -> String {
    let bytes = exponent.exp2().round();
    [(1_048_576.0, "MiB"), (1024.0, "KiB")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit)
        .map_or_else(
            || format!("{bytes} B"),
            |(unit, name)| format!("{:.0} {name}", bytes / unit),
        )
}

/// Formats a value of the vertical axis without trailing zeros after the point.
fn number_label(value: &f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Chart {
    /// Returns the text of the SVG file, with the legend.
    ///
    /// # Errors
    /// The chart cannot be drawn.
    pub fn svg(&self) -> Result<String, Box<dyn Error>> {
        self.draw(true)
    }

    /// Returns the text of the SVG file without the legend, which is in [`Chart::legend`].
    ///
    /// # Errors
    /// The chart cannot be drawn.
    pub(super) fn svg_alone(&self) -> Result<String, Box<dyn Error>> {
        self.draw(false)
    }

    /// Returns names and colours of the series; a colour as `#1f77b4`.
    pub(super) fn legend(&self) -> impl Iterator<Item = (&str, String)> {
        let names: Vec<&str> = match &self.plot {
            Plot::Lines { series, .. } => series.iter().map(|(name, _)| name.as_str()).collect(),
            Plot::Bars { series, .. } => series.iter().map(String::as_str).collect(),
        };
        let coloured = |(place, name)| {
            let RGBColor(red, green, blue) = colour(name, place);
            (name, format!("#{red:02x}{green:02x}{blue:02x}"))
        };
        names.into_iter().enumerate().map(coloured)
    }

    fn draw(&self, legend: bool) -> Result<String, Box<dyn Error>> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            area.fill(&WHITE).map_err(owned)?;
            match &self.plot {
                Plot::Lines { log, series } => {
                    let points = series.iter().flat_map(|(_, points)| points);
                    let values = points.flat_map(|p| {
                        let band = p.band.map(|(low, high)| [low, high]);
                        band.into_iter().flatten().chain([p.value])
                    });
                    let above_zero = values.filter(|value| !log || *value > 0.0);
                    let (low, high) = bounds(above_zero);
                    if *log {
                        self.lines(&area, (low / 1.5..high * 1.5).log_scale(), series, legend)?;
                    } else {
                        self.lines(&area, 0.0..high * 1.1, series, legend)?;
                    }
                }
                Plot::Bars { series, groups } => self.bars(&area, series, groups, legend)?,
            }
            area.present().map_err(owned)?;
        }
        text.push('\n');
        Ok(text)
    }

    fn lines<Y>(
        &self,
        area: &Area<'_>,
        y: impl plotters::coord::ranged1d::AsRangedCoord<CoordDescType = Y, Value = f64>,
        series: &[(String, Vec<Point>)],
        legend: bool,
    ) -> Result<(), Box<dyn Error>>
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let sizes = series.iter().flat_map(|(_, points)| points).map(|p| p.size);
        let (first, last) = bounds(sizes.filter(|size| *size > 0.0));
        let (first, last) = (first.log2(), last.log2().max(first.log2() + 1.0));
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .margin_right(28)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(first..last, y)
            .map_err(owned)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(11)
            .x_label_formatter(&size_label)
            .y_label_formatter(&number_label)
            .y_desc(self.unit)
            .draw()
            .map_err(owned)?;
        let placed: Vec<_> = series
            .iter()
            .map(|(_, points)| placed(points, first, last))
            .collect();
        let named = || series.iter().map(|(name, _)| name).zip(&placed).enumerate();
        // All bands are drawn first, so that none dims the line of another series.
        for (place, (name, points)) in named() {
            let band = |edge| Polygon::new(edge, colour(name, place).mix(BAND));
            chart
                .draw_series(edge(points).into_iter().map(band))
                .map_err(owned)?;
        }
        for (place, (name, points)) in named() {
            let style = colour(name, place).stroke_width(2);
            let points: Vec<_> = points.iter().map(|(x, p)| (*x, p.value)).collect();
            let dots = points.iter().map(|p| Circle::new(*p, 3, style.filled()));
            chart.draw_series(dots).map_err(owned)?;
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style))
                .map_err(owned)?
                .label(name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], style));
        }
        if legend {
            draw_legend(&mut chart)?;
        }
        Ok(())
    }

    fn bars(
        &self,
        area: &Area<'_>,
        series: &[String],
        groups: &[(String, Vec<f64>)],
        legend: bool,
    ) -> Result<(), Box<dyn Error>> {
        let (_, high) = bounds(groups.iter().flat_map(|(_, values)| values).copied());
        // Room above the bars for their values, and for the legend.
        let room = if legend {
            0.09 * series.len() as f64
        } else {
            0.0
        };
        let top = high * (1.2 + room);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..groups.len() as f64, 0.0..top)
            .map_err(owned)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(0)
            .y_label_formatter(&number_label)
            .y_desc(self.unit)
            .draw()
            .map_err(owned)?;
        let width = 0.8 / series.len().max(1) as f64;
        let left = |group: usize, place: usize| group as f64 + 0.1 + place as f64 * width;
        let font = |vertical| {
            let centred = Pos::new(HPos::Center, vertical);
            ("sans-serif", 12).into_text_style(area).pos(centred)
        };
        for (place, name) in series.iter().enumerate() {
            let style = colour(name, place).filled();
            let values = groups.iter().enumerate();
            let values: Vec<(f64, f64)> = values
                .filter_map(|(group, (_, values))| Some((left(group, place), *values.get(place)?)))
                .collect();
            let bars = values
                .iter()
                .map(|(x, y)| Rectangle::new([(*x, 0.0), (x + width * 0.92, *y)], style));
            chart
                .draw_series(bars)
                .map_err(owned)?
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 12, y + 4)], style));
            let numbers = values.iter().map(|(x, y)| {
                let number = if *y < 10.0 {
                    format!("{y:.2}")
                } else {
                    format!("{y:.0}")
                };
                Text::new(
                    number,
                    (x + width * 0.46, y + top * 0.01),
                    font(VPos::Bottom),
                )
            });
            chart.draw_series(numbers).map_err(owned)?;
        }
        // Below the axis, not on it.
        let labels = groups.iter().enumerate().map(|(group, (label, _))| {
            let place = EmptyElement::at((group as f64 + 0.5, 0.0));
            place + Text::new(label.clone(), (0, 8), font(VPos::Top))
        });
        chart.draw_series(labels).map_err(owned)?;
        if legend {
            draw_legend(&mut chart)?;
        }
        Ok(())
    }
}

/// Returns the points with their place on the axis. A single one becomes both ends of a line;
/// others without a size have no place.
fn placed(points: &[Point], first: f64, last: f64) -> Vec<(f64, Point)> {
    match points {
        [only] => vec![(first, *only), (last, *only)],
        all => {
            let sized = all.iter().filter(|p| p.size > 0.0);
            sized.map(|p| (p.size.log2(), *p)).collect()
        }
    }
}

/// Returns the outline of the band of these points: its upper edge, and back along the lower one.
/// `None` without a band.
fn edge(points: &[(f64, Point)]) -> Option<Vec<(f64, f64)>> {
    let edges = points.iter().filter_map(|(x, p)| Some((*x, p.band?)));
    let upper = edges.clone().map(|(x, (_, high))| (x, high));
    let lower = edges.rev().map(|(x, (low, _))| (x, low));
    let outline: Vec<_> = upper.chain(lower).collect();
    (outline.len() > 2).then_some(outline)
}

fn draw_legend<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
) -> Result<(), Box<dyn Error>>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(owned)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Returns the smallest and the largest value; 1 and 2 without any.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let merge = |(low, high): (f64, f64), (a, b): (f64, f64)| (low.min(a), high.max(b));
    values
        .filter(|value| value.is_finite())
        .map(|value| (value, value))
        .reduce(merge)
        .unwrap_or((1.0, 2.0))
}

/// Errors of plotters borrow the backend.
#[expect(clippy::needless_pass_by_value)] // for `map_err(owned)`
fn owned(error: impl ToString) -> Box<dyn Error> {
    error.to_string().into()
}

#[cfg(test)]
mod tests;
