//! Charts of the page.

use super::PAPERS;
use super::experiment::Curves;
use super::results::{Measured, Results};
use crate::page::{Chart, Plot, Point};
use crate::results::{Figure, Unit};
use cli::out::{Context, Failure};

/// Draws a chart; `None` if its figures are missing.
pub(super) fn chart(curves: &Curves, results: &Results) -> Option<Chart> {
    let run = results.run(curves.run)?;
    let (unit, plot) = match curves.what {
        [(_, what)] => lines(curves, run, what)?,
        groups => bars(curves, run, groups)?,
    };
    Some(Chart {
        name: curves.name.into(),
        title: curves.title.into(),
        unit,
        plot,
    })
}

fn lines(curves: &Curves, run: &Measured, what: &str) -> Option<(&'static str, Plot)> {
    let mut unit = None;
    let mut series = Vec::new();
    for contender in curves.contenders {
        let figures = run.sizes(what).into_iter().filter_map(|size| {
            let figure = run.figure(what, Some(size), contender)?;
            Some((size, figure))
        });
        let points: Vec<_> = figures
            .filter(|(size, _)| *size > 0)
            .map(|(size, figure)| {
                unit = Some(figure.unit);
                point(size, figure)
            })
            .collect();
        if !points.is_empty() {
            series.push(((*contender).to_owned(), points));
        }
    }
    // One size is no curve.
    let is_curve = series.iter().any(|(_, points)| points.len() > 1);
    let unit = unit.filter(|_| is_curve)?;
    Some((axis(unit), Plot::Lines { log: true, series }))
}

/// Returns the text of a vertical axis.
fn axis(unit: Unit) -> &'static str {
    match unit {
        Unit::GbitS => "GB/s, band: all rounds",
        Unit::Micros => "µs: p50, band to p99",
        unit => unit.name(),
    }
}

fn point(size: u64, figure: &Figure) -> Point {
    let scale = if figure.unit == Unit::GbitS { 8.0 } else { 1.0 };
    let value = figure.p50 / scale;
    let of_rounds = figure.range().map(|(a, b)| (a / scale, b / scale));
    let band = match (figure.unit, figure.p99) {
        (Unit::Micros, p99) => p99.filter(|p99| *p99 > value).map(|p99| (value, p99)),
        _ => of_rounds,
    };
    Point {
        size: size as f64,
        value,
        band,
    }
}

fn bars(
    curves: &Curves,
    run: &Measured,
    groups: &[(&'static str, &'static str)],
) -> Option<(&'static str, Plot)> {
    let of = |what: &str, contender: &str| {
        let found = run
            .figures
            .iter()
            .find(|f| f.what == what && f.contender == contender);
        found.map(|figure| (figure.unit, figure.p50))
    };
    let known = groups
        .iter()
        .find_map(|(_, what)| curves.contenders.iter().find_map(|name| of(what, name)));
    let (unit, _) = known?;
    let group = |(label, what): &(&str, &str)| {
        let values = curves.contenders.iter();
        let values = values.map(|name| of(what, name).map_or(f64::NAN, |(_, value)| value));
        ((*label).to_owned(), values.collect())
    };
    let plot = Plot::Bars {
        series: curves.contenders.iter().map(|c| (*c).to_owned()).collect(),
        groups: groups.iter().map(group).collect(),
    };
    Some((unit.name(), plot))
}

/// Returns the charts of the page, by the name of the file and its text.
///
/// # Errors
/// A chart cannot be drawn.
pub(super) fn charts(results: &Results) -> Result<Vec<(String, String)>, Failure> {
    let all = PAPERS.iter().flat_map(|paper| paper.charts);
    let mut drawn = Vec::new();
    for chart in all.filter_map(|curves| chart(curves, results)) {
        let name = format!("{}.svg", chart.name);
        let text = chart.svg().doing(&name)?;
        drawn.push((name, text));
    }
    Ok(drawn)
}
