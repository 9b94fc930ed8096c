//! The report as one self-contained HTML page: charts as inline SVG, no script.
//!
//! It is made of the figures in `results.json`, so it shows those of earlier runs, too.

use std::fmt::Write;

use super::chart::{Chart, Plot, Point};
use super::machine::Fact;
use super::sections::label;
use crate::about::About;
use crate::results::{Figure, Unit};
use crate::task::Protocol;
use cli::out::{Context, Failure};

/// Maximum number of groups in a chart of bars.
const MAX_GROUPS: usize = 6;
/// Maximum number of charts of a benchmark; the rest is in its table.
const MAX_CHARTS: usize = 24;

/// Colours of both themes. Charts are drawn for white paper: their black and white are replaced.
const STYLE: &str = "\
:root { --paper: #ffffff; --ink: #1c1c1c; --faint: #d9d9d9; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e6e6e6; --faint: #3a3d44; }
}
body { background: var(--paper); color: var(--ink); font: 16px/1.5 sans-serif; margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; }
figure { margin: 1.5rem 0; }
figcaption { display: flex; flex-wrap: wrap; font-size: 0.85rem; gap: 0.2rem 1.2rem;
  padding-left: 4.5rem; }
figcaption i { border-radius: 2px; display: inline-block; height: 0.7em; margin-right: 0.4em;
  width: 0.9em; }
svg { display: block; height: auto; width: 100%; }
svg [fill='#FFFFFF'] { fill: var(--paper); }
svg [fill='#000000'] { fill: var(--ink); }
svg [stroke='#000000'] { stroke: var(--ink); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { border-bottom: 1px solid var(--faint); padding: 0.2rem 0.6rem; text-align: left; }
.number { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
";

/// Returns the page. Benchmarks are in the order of `all`; unknown ones follow.
///
/// # Errors
/// A chart cannot be drawn.
pub(super) fn page(
    facts: &[Fact],
    all: &[&'static About],
    figures: &[Figure],
    date: &str,
) -> Result<String, Failure> {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>ESP: figures</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>ESP: figures</h1>\n<p>Written by <code>esplab bench --report</code> on {}. Lines are \
         medians. The band of a time reaches to its 99th percentile, that of a rate from the \
         slowest to the fastest round.</p>\n",
        escaped(date)
    );
    let rows = facts
        .iter()
        .map(|(label, value)| format!("<tr><th>{label}</th><td>{}</td></tr>\n", escaped(value)));
    let _ = write!(
        text,
        "<h2>The machine of the last run</h2>\n<table>\n{}</table>\n",
        rows.collect::<String>()
    );
    let mut names: Vec<&str> = all.iter().map(|about| about.name).collect();
    for figure in figures {
        if !names.contains(&figure.bench.as_str()) {
            names.push(&figure.bench);
        }
    }
    for name in names {
        let figures: Vec<_> = figures.iter().filter(|f| f.bench == name).collect();
        if figures.is_empty() {
            continue;
        }
        let _ = writeln!(text, "<section>\n<h2>{}</h2>", escaped(name));
        if let Some(about) = all.iter().find(|about| about.name == name) {
            let (title, limits) = (escaped(about.title), escaped(about.limits));
            let _ = writeln!(text, "<p>Measured: {title}.</p>\n<p>{limits}</p>");
        }
        for chart in charts(&figures) {
            text.push_str(&figure(&chart)?);
        }
        text.push_str(&table(&figures));
        text.push_str("</section>\n");
    }
    text.push_str("</body>\n</html>\n");
    Ok(text)
}

/// Returns the charts of a benchmark: lines over size for each quantity that has several sizes, and
/// one chart of bars for the others of each unit, unless they are too many.
fn charts(figures: &[&Figure]) -> Vec<Chart> {
    let mut kinds: Vec<(&str, Unit)> = Vec::new();
    for figure in figures {
        let kind = (figure.what.as_str(), figure.unit);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let mut charts = Vec::new();
    for unit in [Unit::Micros, Unit::Millis, Unit::GbitS] {
        let kinds = kinds.iter().filter(|(_, kind)| *kind == unit);
        let of = |what: &str| -> Vec<&Figure> {
            let all = figures.iter().copied();
            all.filter(|f| f.what == what && f.unit == unit).collect()
        };
        let (lines, bars): (Vec<&str>, Vec<&str>) =
            kinds.map(|(what, _)| *what).partition(|what| {
                let of = of(what);
                let first = of.first().and_then(|f| f.size);
                of.iter().any(|f| f.size.is_some() && f.size != first)
            });
        let room = MAX_CHARTS.saturating_sub(charts.len());
        for what in lines.into_iter().take(room) {
            charts.push(chart(what, unit, lines_of(&of(what))));
        }
        if (1..=MAX_GROUPS).contains(&bars.len()) {
            let groups: Vec<_> = bars.iter().map(|what| (*what, of(what))).collect();
            charts.push(chart("by contender", unit, bars_of(&groups)));
        }
    }
    // Elsewhere a contender of this name is another one, such as p2p over shared memory.
    if figures.iter().any(|f| f.contender == Protocol::Tcp.name()) {
        for name in charts.iter_mut().flat_map(|chart| chart.plot.names()) {
            *name = label(name);
        }
    }
    charts
}

fn chart(title: &str, unit: Unit, plot: Plot) -> Chart {
    Chart {
        name: String::new(),
        title: title.to_owned(),
        unit: unit.name(),
        plot,
    }
}

fn lines_of(figures: &[&Figure]) -> Plot {
    let mut series: Vec<(String, Vec<Point>)> = Vec::new();
    for figure in figures {
        let point = Point {
            size: figure.size.unwrap_or(0) as f64,
            value: figure.p50,
            band: match figure.p99 {
                Some(p99) => Some((figure.p50, p99)),
                None => figure.range(),
            },
        };
        match series
            .iter_mut()
            .find(|(name, _)| *name == figure.contender)
        {
            Some((_, points)) => points.push(point),
            None => series.push((figure.contender.clone(), vec![point])),
        }
    }
    let mut points = series.iter().flat_map(|(_, points)| points);
    let log = points.all(|p| p.value > 0.0 && p.band.is_none_or(|(low, _)| low > 0.0));
    Plot::Lines { log, series }
}

fn bars_of(groups: &[(&str, Vec<&Figure>)]) -> Plot {
    let mut series: Vec<String> = Vec::new();
    for figure in groups.iter().flat_map(|(_, figures)| figures) {
        if !series.contains(&figure.contender) {
            series.push(figure.contender.clone());
        }
    }
    let values = |figures: &[&Figure]| {
        let value = |name: &String| {
            let figure = figures.iter().find(|f| f.contender == *name);
            figure.map_or(f64::NAN, |f| f.p50)
        };
        series.iter().map(value).collect()
    };
    let groups = groups
        .iter()
        .map(|(what, figures)| ((*what).to_owned(), values(figures)))
        .collect();
    Plot::Bars { series, groups }
}

/// Returns a chart with its legend below it, where it covers no line.
fn figure(chart: &Chart) -> Result<String, Failure> {
    let svg = chart.svg_alone();
    let svg = svg.doing(format_args!("drawing {}", chart.title))?;
    let names = chart.legend().map(|(name, colour)| {
        let name = escaped(name);
        format!("<span><i style=\"background: {colour}\"></i>{name}</span>\n")
    });
    let names: String = names.collect();
    let svg = inline(&svg);
    Ok(format!(
        "<figure>\n{svg}<figcaption>\n{names}</figcaption>\n</figure>\n"
    ))
}

/// Removes the reference to the name space, which an SVG needs only in a file of its own.
fn inline(svg: &str) -> String {
    svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1)
}

fn table(figures: &[&Figure]) -> String {
    let mut text = String::from(
        "<details>\n<summary>All values</summary>\n<div class=\"wide\">\n<table>\n<tr><th>what</th>\
         <th>size</th><th>contender</th><th>unit</th><th>p50</th><th>p99</th><th>rounds</th>\
         <th>machine</th></tr>\n",
    );
    for figure in figures {
        let rounds = figure.range().map_or_else(String::new, |(low, high)| {
            format!("{}: {low:.3} to {high:.3}", figure.rounds.len())
        });
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td class=\"number\">{}</td><td>{}</td><td>{}</td>\
             <td class=\"number\">{:.3}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{rounds}</td><td>{}</td></tr>",
            escaped(&figure.what),
            figure.size.map_or_else(String::new, |n| n.to_string()),
            escaped(&figure.contender),
            figure.unit.name(),
            figure.p50,
            figure.p99.map_or_else(String::new, |v| format!("{v:.3}")),
            escaped(&figure.machine),
        );
    }
    text.push_str("</table>\n</div>\n</details>\n");
    text
}

/// Replaces the characters that have a meaning in HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
