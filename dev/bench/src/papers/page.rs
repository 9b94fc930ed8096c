//! The page `papers.md`: for each paper a paragraph, a table of its experiments, and charts.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::charts::{chart, charts};
use super::experiment::{Pair, Paper, Row, Take};
use super::results::{Results, p99_ratio, ratio};
use super::{PAPERS, RUNS};
use crate::results::{Figure, Unit};
use crate::table::{Ratio, wrapped};
use cli::out::{Context, Failure};

/// File of the page.
pub const PAGE: &str = "papers.md";
/// Folder of its charts, in the same folder.
pub const CHARTS: &str = "papers";
/// Gains that differ by a smaller factor agree.
const AGREES: f64 = 1.1;

const HEAD: &str = "\
# The papers' experiments, repeated

Five papers describe what this project builds on. For each experiment this page has the paper's
figure, what was run in its place, our figure and that of the transport it is compared with, and the
ratio in both.

<!-- written by `esplab papers --report` from papers.json; do not edit -->

";

const READING: &str = "
## How to read the tables

- **Links are virtual**: network namespaces of one machine, veth pairs and a bridge, MTU 1500. No
  figure is of a network card, of InfiniBand hardware or of two machines. Compare ratios, and these
  with care: a link without a card favours the side that leaves most to the kernel.
- **Paper**: its figure as its text states it. Where a paper only draws a curve there is no number.
- **Ours** and **reference**, the transport it is compared with: the median of the rounds; of times,
  p99 in parentheses: the 99th percentile of all samples, or of MPI programs the median of the
  rounds' 99th percentiles.
- **Ratio**: ours divided by the reference, of the values of one round; the median of the rounds
  and, in parentheses, the smallest and the largest. Of times less than 1 is better, of rates more
  than 1. It need not equal the quotient of the two medians. The paper's ratio has the same
  direction.
- **Difference**: a gain within 10 % of the paper's agrees with it. Where the paper has no number
  and some rounds are better and some worse, there is no difference. Otherwise the likely reason,
  which was not measured by itself.
- More processes than cores take turns, and then the scheduler is part of the figure. So it is
  where other programs run: ranks over TCP poll without giving up their core as long as there are
  as many cores as ranks, and lose a time slice to each of them.

## How to repeat them

```sh
apt install openmpi-bin libopenmpi-dev gcc hpcc abinit abinit-data
cargo build --release
cargo xtask install-ompi && cargo xtask install-libfabric
tests/vm/setup && cargo build --release -p ib-btl -p job --examples   # for the guest
sudo target/release/esplab papers --report      # about 7 minutes: this page, papers.json, charts
sudo target/release/esplab papers --quick       # a minute, on the terminal
```

`esplab papers --help` lists the runs and their time. Every figure is in
[papers.json](papers.json), with the value of each round. What could not be run has a row that says
why, and what to install.
";

/// Returns the text of the page.
pub fn markdown(results: &Results) -> String {
    let mut text = HEAD.to_owned();
    let links: Vec<_> = PAPERS
        .iter()
        .map(|paper| format!("[{}](#{})", paper.name, paper.name.to_lowercase()))
        .collect();
    text += &format!("{}\n", links.join(" · "));
    text += READING;
    text += "\n## The machine and the runs\n\n| the machine | |\n| --- | --- |\n";
    for (label, value) in &results.machine {
        let _ = writeln!(text, "| {label} | {value} |");
    }
    text += "\nLoad is that of the minute before a run: processes that ran or were ready.\n\n";
    text += "| run | measures | day | rounds | load | |\n| --- | --- | --- | ---: | ---: | --- |\n";
    for run in &RUNS {
        let _ = writeln!(text, "{}", run_row(run.name, run.title, results));
    }
    for paper in PAPERS {
        text += &section(paper, results);
    }
    text
}

fn run_row(name: &str, title: &str, results: &Results) -> String {
    let Some(run) = results.run(name) else {
        return format!("| {name} | {title} | - | - | - | not run |");
    };
    let quick = if run.quick { "quick" } else { "" };
    let note = run.note.as_deref().unwrap_or(quick);
    format!(
        "| {name} | {title} | {} | {} | {:.1} | {note} |",
        run.date, run.rounds, run.load
    )
}

fn section(paper: &Paper, results: &Results) -> String {
    let mut text = format!("\n## {}\n\n", paper.name);
    text += &wrapped(&format!("*{}*. {}.", paper.title, paper.by), 100);
    let _ = write!(text, "\n{}\n", wrapped(paper.text, 100));
    text += "| experiment | paper | its ratio | here | ours | reference | ratio | p99 ratio | \
             difference |\n";
    text += "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | --- |\n";
    for row in paper.rows {
        let cells = cells(row, results);
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    for curves in paper.charts {
        if let Some(chart) = chart(curves, results) {
            let (title, name) = (&chart.title, &chart.name);
            let _ = write!(text, "\n![{title}]({CHARTS}/{name}.svg)\n");
        }
    }
    text
}

/// Texts of a row that depend on the figures.
#[derive(Default)]
struct Shown {
    ours: String,
    reference: String,
    ratio: Option<Ratio>,
    p99: Option<f64>,
    /// Gain here: above 1 is better.
    gain: Option<f64>,
    /// Text in place of the difference.
    text: Option<String>,
}

fn cells(row: &Row, results: &Results) -> Vec<String> {
    let shown = match row.take {
        Take::Not(why) => Shown {
            text: Some(why.into()),
            ..Shown::default()
        },
        take => show(take, results),
    };
    let dash = |text: String| if text.is_empty() { "-".into() } else { text };
    let unit_is_time = unit(row, results).is_none_or(Unit::is_time);
    let theirs = row.ratio.map(|r| if unit_is_time { 1.0 / r } else { r });
    let difference = shown.text.clone().unwrap_or_else(|| {
        let Some(gain) = shown.gain else {
            return String::new();
        };
        let (gain, theirs) = (gain, theirs.unwrap_or(1.0));
        if row.ratio.is_some() && gain / theirs < AGREES && theirs / gain < AGREES {
            "Agrees within 10 %.".into()
        } else if row.ratio.is_none() && shown.ratio.is_some_and(|r| r.low <= 1.0 && r.high >= 1.0)
        {
            "None beyond the range of the rounds.".into()
        } else if gain < theirs {
            row.less.into()
        } else {
            row.more.into()
        }
    });
    vec![
        row.experiment.into(),
        format!("{} ({})", row.claim, row.place),
        dash(row.ratio.map(|r| format!("{r:.2}")).unwrap_or_default()),
        row.here.into(),
        dash(shown.ours),
        dash(shown.reference),
        dash(shown.ratio.map(|r| r.to_string()).unwrap_or_default()),
        dash(shown.p99.map(|r| format!("{r:.2}")).unwrap_or_default()),
        dash(difference),
    ]
}

/// Returns the unit of a row's figures.
fn unit(row: &Row, results: &Results) -> Option<Unit> {
    let pair = row.take.pair()?;
    let run = results.run(pair.run)?;
    let figure = run.figures.iter().find(|figure| figure.what == pair.what);
    figure.map(|figure| figure.unit)
}

/// Returns what to show, or why there is nothing.
fn show(take: Take, results: &Results) -> Shown {
    let reason = |name: &str| {
        let run = results.run(name);
        let note = run.and_then(|run| run.note.clone());
        let text = match note {
            Some(note) if note.starts_with("not run") => note,
            Some(note) => format!("not run: {note}"),
            None if name == "guest" => "not run: the guest of tests/vm was not there".into(),
            None => format!("not run: `esplab papers --report` measures it (run {name})"),
        };
        Shown {
            text: Some(text),
            ..Shown::default()
        }
    };
    let found = match take {
        Take::Pair(pair) => both(results, &pair, pair.size).map(|(a, b)| compared(a, b, None)),
        Take::Best(pair) => best(results, &pair),
        Take::Threshold(pair, theirs) => threshold(results, &pair, theirs),
        Take::Alone(pair) => alone(results, &pair),
        Take::Not(_) => None,
    };
    found.unwrap_or_else(|| reason(take.run().unwrap_or_default()))
}

/// Returns the figures of both contenders.
fn both<'a>(
    results: &'a Results,
    pair: &Pair,
    size: Option<u64>,
) -> Option<(&'a Figure, &'a Figure)> {
    let run = results.run(pair.run)?;
    let of = |contender| run.figure(pair.what, size, contender);
    Some((of(pair.ours)?, of(pair.reference)?))
}

fn compared(ours: &Figure, other: &Figure, size: Option<u64>) -> Shown {
    let ratio = ratio(ours, other);
    let at = size.map(|size| format!("{}: ", bytes(size)));
    Shown {
        ours: format!("{}{}", at.unwrap_or_default(), value(ours)),
        reference: value(other),
        ratio,
        p99: p99_ratio(ours, other),
        gain: ratio.map(|ratio| gain(ratio.median, ours.unit)),
        text: None,
    }
}

/// Returns how many times better ours is.
fn gain(ratio: f64, unit: Unit) -> f64 {
    if unit.is_time() { 1.0 / ratio } else { ratio }
}

fn best(results: &Results, pair: &Pair) -> Option<Shown> {
    let sizes = results.run(pair.run)?.sizes(pair.what);
    let all = sizes.into_iter().filter_map(|size| {
        let (ours, other) = both(results, pair, Some(size))?;
        Some(compared(ours, other, Some(size)))
    });
    all.filter(|shown| shown.gain.is_some())
        .max_by(|a, b| a.gain.unwrap_or(0.0).total_cmp(&b.gain.unwrap_or(0.0)))
}

/// Returns the smallest size at and above which ours is better; `theirs` is that of the paper.
fn threshold(results: &Results, pair: &Pair, theirs: u64) -> Option<Shown> {
    let sizes = results.run(pair.run)?.sizes(pair.what);
    let gains: Vec<(u64, f64)> = sizes
        .into_iter()
        .filter_map(|size| {
            let (ours, other) = both(results, pair, Some(size))?;
            Some((size, gain(ratio(ours, other)?.median, ours.unit)))
        })
        .collect();
    let (first, last) = (gains.first()?.0, gains.last()?.0);
    let better = gains.iter().rev().take_while(|(_, gain)| *gain > 1.0);
    let (text, size) = match better.last() {
        Some((size, _)) if *size == first => (format!("{} or less", bytes(*size)), *size),
        Some((size, _)) => (bytes(*size), *size),
        None => (format!("above {}", bytes(last)), last.saturating_mul(2)),
    };
    Some(Shown {
        ours: text,
        gain: Some(theirs as f64 / size as f64),
        ..Shown::default()
    })
}

fn alone(results: &Results, pair: &Pair) -> Option<Shown> {
    let figure = results
        .run(pair.run)?
        .figure(pair.what, pair.size, pair.ours)?;
    Some(Shown {
        ours: value(figure),
        ..Shown::default()
    })
}

/// Formats a figure: its median, and the 99th percentile of a time.
fn value(figure: &Figure) -> String {
    // Rates within a node are usually given in bytes.
    let (scale, unit) = match figure.unit {
        Unit::GbitS => (8.0, "GB/s"),
        Unit::Micros if figure.p50 >= 10_000.0 => (1000.0, "ms"),
        unit => (1.0, unit.name()),
    };
    let name = &figure.contender;
    let p99 = figure
        .p99
        .map(|p99| format!(" (p99 {})", digits(p99 / scale)));
    let p50 = digits(figure.p50 / scale);
    format!("{name} {p50} {unit}{}", p99.unwrap_or_default())
}

/// Formats a number with three digits.
fn digits(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 0.1 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

fn bytes(size: u64) -> String {
    match size {
        s if s >= 1 << 20 && s % (1 << 20) == 0 => format!("{} MiB", s >> 20),
        s if s >= 1024 && s % 1024 == 0 => format!("{} KiB", s >> 10),
        s => format!("{s} B"),
    }
}

/// Writes `papers.md`, `papers.json` and the charts in `papers/` into the folder. Charts that the
/// page no longer shows are removed. Returns the path of the page.
///
/// # Errors
/// A chart cannot be drawn, or a file cannot be written or removed.
pub fn write(folder: &Path, results: &Results) -> Result<PathBuf, Failure> {
    let place = folder.join(CHARTS);
    fs::create_dir_all(&place).doing(place.display())?;
    results.write(folder)?;
    // The page is made from the file as it is read, so that it can be made again.
    let results = Results::read(folder)?;
    let charts = charts(&results)?;
    for entry in fs::read_dir(&place).doing(place.display())?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".svg") && !charts.iter().any(|(known, _)| *known == name) {
            fs::remove_file(entry.path()).doing(entry.path().display())?;
        }
    }
    for (name, text) in &charts {
        let path = place.join(name);
        fs::write(&path, text).doing(path.display())?;
    }
    let path = folder.join(PAGE);
    fs::write(&path, markdown(&results)).doing(path.display())?;
    Ok(path)
}

/// Returns the figures of the papers as text for a terminal.
pub fn text(papers: &[&'static Paper], results: &Results) -> String {
    let mut text = String::new();
    for paper in papers {
        let _ = writeln!(text, "\n{}: {}", paper.name, paper.title);
        for row in paper.rows {
            let cells = cells(row, results);
            let [
                experiment,
                claim,
                theirs,
                here,
                ours,
                reference,
                ratio,
                p99,
                why,
            ] = cells.as_slice()
            else {
                continue;
            };
            let _ = writeln!(text, "\n  {experiment}\n    paper: {claim}; ratio {theirs}");
            let _ = writeln!(text, "    here:  {here}");
            if ours != "-" {
                let _ = writeln!(text, "           {ours} compared with {reference}");
                let _ = writeln!(text, "           ratio {ratio}, of p99 {p99}");
            }
            let _ = writeln!(text, "    {why}");
        }
    }
    text
}

#[cfg(test)]
mod tests;
