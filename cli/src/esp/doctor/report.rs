//! Output of `esp doctor`: groups of lines, or one JSON object per line.

use std::fmt::Write as _;

use console::Style;
use serde::Serialize;

use super::facts::{Facts, Peer, Route};
use super::finding::{Finding, Level};
use super::paths::Choice;
use crate::table;

/// Maximum number of columns of a line.
const COLUMNS: usize = 80;
/// Columns before the text: two spaces, the level, two spaces.
const INDENT: usize = 11;

/// A line of `--json`.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line<'a> {
    Finding(&'a Finding),
    Route {
        peer: &'a str,
        interface: &'a str,
        address: String,
        sent: usize,
        received: usize,
        rtt_us: Option<f64>,
        payload: Option<usize>,
    },
    Path(&'a Choice),
    Summary {
        errors: usize,
        warnings: usize,
        notes: usize,
    },
}

/// Returns the number of findings of this level.
pub(super) fn count(findings: &[Finding], level: Level) -> usize {
    findings.iter().filter(|f| f.level == level).count()
}

/// Formats all results as text, with styles if `colours`.
pub(super) fn text(
    facts: &Facts,
    findings: &[Finding],
    choices: &[Choice],
    quiet: bool,
    colours: bool,
) -> String {
    let mut text = String::new();
    let shown = |f: &&Finding| !quiet || f.level >= Level::Warning;
    let mut heading = String::new();
    for finding in findings.iter().filter(shown) {
        if finding.heading() != heading {
            heading = finding.heading();
            let bold = Style::new().bold().force_styling(colours);
            let _ = writeln!(text, "{}", bold.apply_to(&heading));
        }
        push(&mut text, finding, colours);
    }
    if !quiet {
        text.push_str(&choice_lines(choices));
        text.push_str(&matrix(facts));
    }
    let counts = [
        (count(findings, Level::Error), "error"),
        (count(findings, Level::Warning), "warning"),
        (count(findings, Level::Note), "note"),
    ];
    let counts = counts.map(|(n, what)| format!("{n} {what}{}", if n == 1 { "" } else { "s" }));
    text.push_str(&counts.join(", "));
    text
}

fn style(level: Level) -> Style {
    match level {
        Level::Ok => Style::new().green(),
        Level::Note => Style::new().cyan(),
        Level::Warning => Style::new().yellow(),
        Level::Error => Style::new().red().bold(),
    }
}

/// Adds a finding: its text in lines of at most [`COLUMNS`], and its fix.
fn push(text: &mut String, finding: &Finding, colours: bool) {
    let style = style(finding.level).force_styling(colours);
    let level = style.apply_to(format!("{:<7}", finding.level.word()));
    let mut lines = wrap(&finding.what, COLUMNS - INDENT).into_iter();
    let first = lines.next().unwrap_or_default();
    let _ = writeln!(text, "  {level}  {first}");
    for line in lines {
        let _ = writeln!(text, "{:INDENT$}{line}", "");
    }
    if let Some(fix) = &finding.fix {
        for (number, line) in wrap(fix, COLUMNS - INDENT - 2).iter().enumerate() {
            let mark = if number == 0 { "→ " } else { "  " };
            let _ = writeln!(text, "{:INDENT$}{mark}{line}", "");
        }
    }
}

/// Wraps a text between words. A word that is longer than a line gets a line of its own.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut();
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Formats the choices for each peer.
fn choice_lines(choices: &[Choice]) -> String {
    if choices.is_empty() {
        return String::new();
    }
    let mut text = "paths\n".to_owned();
    let mut peer = "";
    for choice in choices {
        if choice.peer != peer {
            peer = &choice.peer;
            let _ = writeln!(text, "  {peer}");
        }
        let figures = figures(choice.rtt_us, choice.payload);
        let path = format!("{} by {}", choice.interface, choice.path);
        let _ = writeln!(text, "    {:<14}  {path}, {figures}", choice.traffic);
        let _ = writeln!(text, "    {:<14}  ({})", "", choice.why);
    }
    text
}

fn figures(rtt_us: Option<f64>, payload: Option<usize>) -> String {
    let rtt = rtt_us.map_or("?".into(), |rtt| format!("{rtt:.1} µs"));
    let payload = payload.map_or("?".into(), |payload| payload.to_string());
    format!("{rtt}, payload {payload}")
}

/// Formats the paths to several peers as a table of round-trip times and maximum payloads.
fn matrix(facts: &Facts) -> String {
    let Some(network) = facts.network.as_ref().filter(|network| network.all) else {
        return String::new();
    };
    let mut columns: Vec<&str> = Vec::new();
    for route in network.peers.iter().flat_map(|peer| &peer.routes) {
        if !columns.contains(&column(route)) {
            columns.push(column(route));
        }
    }
    if columns.is_empty() {
        return String::new();
    }
    let cell = |peer: &Peer, name: &str| {
        let route = peer.routes.iter().find(|route| column(route) == name);
        route.map_or("-".to_owned(), |route| {
            match (route.rtt_us, route.payload) {
                (Some(rtt), Some(payload)) => format!("{rtt:.1}/{payload}"),
                (Some(rtt), None) => format!("{rtt:.1}/-"),
                _ => "no answer".to_owned(),
            }
        })
    };
    let rows = network.peers.iter().map(|peer| {
        let cells = columns.iter().map(|name| cell(peer, name));
        std::iter::once(format!("  {}", peer.name))
            .chain(cells)
            .collect()
    });
    let headings = std::iter::once("  node".to_owned());
    let headings: Vec<String> = headings
        .chain(columns.iter().map(|name| format!(">{name}")))
        .collect();
    format!(
        "matrix (round trip in µs / largest payload in bytes, from this node)\n{}",
        table::text(&headings, rows)
    )
}

/// Returns the column of the matrix that shows a path.
fn column(route: &Route) -> &str {
    if route.addr.is_udp() {
        "udp"
    } else {
        &route.interface
    }
}

/// Formats all results as JSON lines.
pub(super) fn json(
    facts: &Facts,
    findings: &[Finding],
    choices: &[Choice],
    quiet: bool,
) -> serde_json::Result<String> {
    let shown = |f: &&Finding| !quiet || f.level >= Level::Warning;
    let mut lines: Vec<Line<'_>> = findings.iter().filter(shown).map(Line::Finding).collect();
    if !quiet {
        for peer in facts.network.iter().flat_map(|network| &network.peers) {
            lines.extend(peer.routes.iter().map(|route| Line::Route {
                peer: &peer.name,
                interface: &route.interface,
                address: route.addr.to_string(),
                sent: route.sent,
                received: route.received,
                rtt_us: route.rtt_us,
                payload: route.payload,
            }));
        }
        lines.extend(choices.iter().map(Line::Path));
    }
    lines.push(Line::Summary {
        errors: count(findings, Level::Error),
        warnings: count(findings, Level::Warning),
        notes: count(findings, Level::Note),
    });
    let lines: Vec<String> = lines
        .iter()
        .map(serde_json::to_string)
        .collect::<Result<_, _>>()?;
    Ok(lines.join("\n"))
}
