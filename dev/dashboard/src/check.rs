//! Evaluates the queries of panels and alerts, and collects what is wrong with them.

use std::collections::BTreeSet;

use crate::file::{Dashboard, Panel, Query, escaped, legend, substituted};
use crate::prometheus::{Api, SCRAPE, Series};

/// Seconds between two values of a line.
pub(crate) const STEP: u32 = SCRAPE;

/// Queries whose values may all be zero in this lab: panel, query, and why.
const RARE: [(&str, &str, &str); 5] = [
    (
        "Frames dropped by the kernel",
        "A",
        "needs a daemon that is too slow for its link",
    ),
    (
        "Connections opened and lost",
        "C",
        "needs a peer that is silent for longer than the load",
    ),
    ("Leases", "B", "the user of the lab may have leases"),
    ("Refused requests", "B", "the user of the lab is root"),
    (
        "Timeouts and losses",
        "A",
        "losses are repaired before that",
    ),
];

/// A panel with its values.
pub(crate) struct Evaluated {
    pub panel: Panel,
    /// Number of its queries that were evaluated.
    pub queries: usize,
    pub lines: Vec<Line>,
}

/// A line of a panel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub name: String,
    /// Seconds since the start of the load, and values.
    pub points: Vec<(f64, f64)>,
}

/// Names of variables with the values of their labels.
pub(crate) type Values = Vec<(String, Vec<String>)>;

/// Returns the values that Grafana would offer.
pub(crate) fn variables(api: &impl Api, dashboard: &Dashboard, faults: &mut Vec<String>) -> Values {
    let mut all = Values::new();
    for variable in &dashboard.variables {
        let name = &variable.name;
        let values = api.label_values(&variable.metric, &variable.label);
        let values = values.unwrap_or_else(|error| {
            faults.push(format!("variable `{name}`: {error}"));
            Vec::new()
        });
        if values.is_empty() {
            faults.push(format!("variable `{name}` has no values"));
        }
        all.push((name.clone(), values));
    }
    all
}

/// Evaluates the queries of all panels, with all nodes chosen, and with the first one.
pub(crate) fn panels(
    api: &impl Api,
    dashboard: &Dashboard,
    values: &Values,
    range: (f64, f64),
    faults: &mut Vec<String>,
) -> Vec<Evaluated> {
    let built_in = [
        ("__interval", format!("{STEP}s")),
        // As Grafana documents it.
        (
            "__rate_interval",
            format!("{}s", (STEP + SCRAPE).max(4 * SCRAPE)),
        ),
        ("__range", format!("{:.0}s", range.1 - range.0)),
    ];
    let built_in = built_in.map(|(name, value)| (name.to_owned(), value));
    let (mut all, mut first) = (built_in.to_vec(), built_in.to_vec());
    let mut chosen = Vec::new();
    for (variable, (name, values)) in dashboard.variables.iter().zip(values) {
        all.push((name.clone(), variable.all.clone()));
        // One without values is a fault already.
        if let Some(value) = values.first() {
            first.push((name.clone(), escaped(value)));
            chosen.push((variable.label.as_str(), value.as_str()));
        }
    }
    let mut evaluated = Vec::new();
    for panel in &dashboard.panels {
        let mut lines: Vec<Line> = Vec::new();
        for query in &panel.queries {
            let (title, name) = (&panel.title, &query.name);
            let mut wrong = |what: String| faults.push(format!("panel `{title}`, {name}: {what}"));
            let first = if first.len() == all.len() {
                &first
            } else {
                &all
            };
            let both = query_of(api, query, &all, range)
                .and_then(|series| Ok((series, query_of(api, query, first, range)?)));
            match both {
                Ok((mut series, few)) => {
                    let points = series.iter_mut().flat_map(|one| &mut one.points);
                    points.for_each(|(time, _)| *time -= range.0);
                    judge(panel, query, &series, &mut lines, &mut wrong);
                    for chosen in &chosen {
                        restricted(&series, &few, chosen, &mut wrong);
                    }
                }
                Err(error) => wrong(error),
            }
        }
        evaluated.push(Evaluated {
            panel: panel.clone(),
            queries: panel.queries.len(),
            lines,
        });
    }
    for (title, name, _) in RARE {
        let panel = dashboard.panels.iter().find(|p| p.title == title);
        if panel.is_none_or(|panel| panel.queries.iter().all(|q| q.name != name)) {
            faults.push(format!("exception for no query: panel `{title}`, {name}"));
        }
    }
    evaluated
}

fn query_of(
    api: &impl Api,
    query: &Query,
    values: &[(String, String)],
    range: (f64, f64),
) -> Result<Vec<Series>, String> {
    api.range(&substituted(&query.expr, values)?, range, STEP)
}

/// Checks the series of a query, and adds them to the lines of its panel.
fn judge(
    panel: &Panel,
    query: &Query,
    series: &[Series],
    lines: &mut Vec<Line>,
    wrong: &mut impl FnMut(String),
) {
    let rare = RARE
        .iter()
        .any(|(title, name, _)| panel.title == *title && query.name == *name);
    let values = || series.iter().flat_map(|s| &s.points).map(|(_, v)| *v);
    if !values().any(f64::is_finite) {
        wrong("no values".into());
    } else if !rare && !values().any(|v| v.is_finite() && v != 0.0) {
        wrong("only zeros, under this load".into());
    }
    let mut lacking = BTreeSet::new();
    for one in series {
        let label = |name: &str| one.labels.get(name).map(String::as_str);
        let (name, missing) = legend(&query.legend, label);
        if let Some(label) = missing.filter(|label| lacking.insert(*label)) {
            wrong(format!("series have no label `{label}` for the legend"));
        }
        if lines.iter().any(|line| line.name == name) {
            wrong(format!("two lines are named `{name}`"));
        }
        let points = one.points.clone();
        lines.push(Line { name, points });
    }
}

/// Checks that with one value of a label chosen there are values, and, of series that have the
/// label, those with that value and no others.
fn restricted(
    all: &[Series],
    few: &[Series],
    (label, chosen): &(&str, &str),
    wrong: &mut impl FnMut(String),
) {
    let values = |of: &[Series]| -> BTreeSet<String> {
        let values = of.iter().filter_map(|s| s.labels.get(*label));
        values.cloned().collect()
    };
    let (mut expected, found) = (values(all), values(few));
    let has_label = !expected.is_empty();
    expected.retain(|value| value == chosen);
    if found != expected {
        wrong(format!(
            "with {label} {chosen} chosen, there are series of {found:?}, not of {expected:?}"
        ));
    } else if !has_label && few.is_empty() && !all.is_empty() {
        wrong(format!("with {label} {chosen} chosen, no values"));
    }
}

/// Evaluates the alerts; returns their number.
pub(crate) fn alerts(api: &impl Api, faults: &mut Vec<String>) -> usize {
    let alerts = api.alerts().unwrap_or_else(|error| {
        faults.push(format!("alerts: {error}"));
        Vec::new()
    });
    if alerts.is_empty() {
        faults.push("there are no alerts".into());
    }
    for (name, expr, error) in &alerts {
        if let Some(error) = error {
            faults.push(format!("alert {name}: {error}"));
        }
        let values = match api.now(&compared(expr)) {
            Ok(values) => values,
            Err(error) => {
                faults.push(format!("alert {name}: {error}"));
                continue;
            }
        };
        let mut points = values.iter().flat_map(|s| &s.points);
        if !points.any(|(_, value)| value.is_finite()) {
            faults.push(format!("alert {name}: no values to compare: {expr}"));
        }
    }
    alerts.len()
}

/// Returns an expression whose comparisons yield 0 and 1, instead of nothing where they do not
/// hold: whether an alert has anything to compare does not depend on whether it fires.
fn compared(expr: &str) -> String {
    let (mut out, mut inside, mut quoted) = (String::new(), false, false);
    let mut chars = expr.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        match c {
            '"' => quoted = !quoted,
            '{' if !quoted => inside = true,
            '}' if !quoted => inside = false,
            '<' | '>' | '=' | '!' if !quoted && !inside => {
                out.extend(chars.next_if_eq(&'='));
                out.push_str(" bool");
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests;
