//! The performance page: the machine, and the limits, charts and table of each benchmark. The same
//! folder has the figures as data, and one HTML page of them.

mod chart;
mod html;
mod machine;
mod merged;
mod sections;

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use chart::{Chart, Plot, Point};
pub(crate) use machine::{date, facts, summary};
pub use merged::{END, merged};

use crate::about::About;
use crate::cores::Cores;
use crate::results::{self, Figure};
use crate::table::wrapped;
use crate::{engines, incast, intra, plan, programs, rails};
use cli::out::{Context, Failure};

/// File of the page.
const PAGE: &str = "performance.md";
/// File of the HTML page, in the same folder.
const HTML: &str = "index.html";
/// Folder of its charts, in the same folder.
const CHARTS: &str = "charts";
/// First line of the generated part of the page.
const BEGIN: &str =
    "<!-- begin of the figures, written by `esplab bench --report`; do not edit -->";

/// One benchmark on the page.
#[derive(Clone, Debug)]
pub struct Section {
    about: &'static About,
    /// Rounds and table, or the error that ended the benchmark.
    content: Result<(usize, String), String>,
    charts: Vec<Chart>,
    figures: Vec<Figure>,
}

/// Returns the descriptions of all benchmarks, in the order they run.
pub fn abouts() -> impl Iterator<Item = &'static About> + Clone {
    plan::BENCHES
        .iter()
        .chain([
            &incast::ABOUT,
            &rails::ABOUT,
            &programs::ABOUT,
            &engines::ABOUT,
        ])
        .chain(&intra::plan::BENCHES)
}

impl Section {
    /// Returns the figures of the benchmark.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// Returns the section of a benchmark that failed.
    pub fn failed(about: &'static About, error: &Failure) -> Section {
        Section {
            about,
            content: Err(error.to_string()),
            charts: Vec::new(),
            figures: Vec::new(),
        }
    }

    fn markdown(&self) -> String {
        let About {
            name,
            title,
            limits,
            ..
        } = self.about;
        let (run, table) = match &self.content {
            Ok((1, table)) => ("1 round".into(), folded(table)),
            Ok((rounds, table)) => (format!("{rounds} rounds"), folded(table)),
            Err(error) => ("not measured".into(), format!("The error was: {error}.\n")),
        };
        let (title, limits) = (format!("Measured: {title}."), wrapped(limits, 100));
        let title = wrapped(&title, 100);
        let mut text = format!("\n### {name}\n\n{title}\n{limits}");
        for chart in &self.charts {
            let _ = write!(text, "\n![{}]({CHARTS}/{}.svg)\n", chart.title, chart.name);
        }
        let run = format!("{}, {run}, on {}.", machine::date(), machine::summary());
        let run = wrapped(&run, 100);
        let _ = write!(text, "\n{run}\n{table}");
        text
    }
}

/// Hides a long table until the reader opens it: the charts show the same figures.
fn folded(table: &str) -> String {
    match table.lines().count().saturating_sub(2) {
        rows @ 25.. => {
            format!("<details><summary>All {rows} rows</summary>\n\n{table}\n</details>\n")
        }
        _ => table.into(),
    }
}

/// Puts the machine and the sections into the page, in place of earlier ones. Sections of
/// benchmarks that were not measured stay.
fn page_with(page: &str, machine: &str, sections: &[Section]) -> String {
    let named = |section: &Section| (section.about.name, section.markdown());
    let sections: Vec<_> = sections.iter().map(named).collect();
    merged(page, BEGIN, machine, sections)
}

/// Returns the file names of the charts that a page shows.
fn linked(page: &str) -> impl Iterator<Item = &str> {
    let links = page.split("](").skip(1);
    let targets = links.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    let names = targets.filter_map(|target| target.strip_prefix(CHARTS)?.strip_prefix('/'));
    names.filter(|name| name.ends_with(".svg") && !name.contains('/'))
}

/// Writes `performance.md`, `index.html`, `results.json` and the charts in `charts/` into the
/// folder. Hand-written parts of an existing page and figures of other benchmarks stay as they are;
/// charts that the page no longer shows are removed, other files stay. Returns the paths of both
/// pages.
///
/// # Errors
/// A chart cannot be drawn, or a file cannot be read, written or removed.
pub fn write(folder: &Path, sections: &[Section]) -> Result<[PathBuf; 2], Failure> {
    let charts = folder.join(CHARTS);
    fs::create_dir_all(&charts).doing(charts.display())?;
    for chart in sections.iter().flat_map(|section| &section.charts) {
        let path = charts.join(&chart.name).with_extension("svg");
        let text = chart.svg().doing(path.display())?;
        fs::write(&path, text).doing(path.display())?;
    }
    let facts = facts(&Cores::here());
    let path = folder.join(PAGE);
    let old = fs::read_to_string(&path).unwrap_or_else(|_| "# Performance\n\n".into());
    let page = page_with(&old, &machine::table(&facts), sections);
    fs::write(&path, &page).doing(path.display())?;
    let shown: Vec<_> = linked(&page).collect();
    for name in linked(&old).filter(|name| !shown.contains(name)) {
        let chart = charts.join(name);
        match fs::remove_file(&chart) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.doing(chart.display())?,
        }
    }
    let measured = sections.iter().filter(|section| section.content.is_ok());
    let benches: Vec<_> = measured.map(|section| section.about.name).collect();
    let figures = sections.iter().flat_map(|section| section.figures.clone());
    let figures = results::update(folder, &benches, figures.collect())?;
    let all: Vec<_> = abouts().collect();
    let html = folder.join(HTML);
    let text = html::page(&facts, &all, &figures, &machine::date())?;
    fs::write(&html, text).doing(html.display())?;
    Ok([path, html])
}

#[cfg(test)]
mod tests {
    use super::*;

    static ABOUT: About = About {
        name: "walk",
        title: "how fast it walks",
        limits: "Its legs. The ground.",
        millis: [1, 1],
    };

    fn section() -> Section {
        Section {
            about: &ABOUT,
            content: Ok((3, "| path |\n| --- |\n| tcp |\n".into())),
            charts: vec![Chart {
                name: "walk-1500".into(),
                title: "walk, MTU 1500".into(),
                unit: "m/s",
                plot: Plot::Bars {
                    series: vec!["tcp".into()],
                    groups: vec![("walk".into(), vec![1.0])],
                },
            }],
            figures: vec![Figure {
                bench: "walk".into(),
                ..results::tests::latency("tcp", &[1.0])
            }],
        }
    }

    #[test]
    fn sections_replace_earlier_ones_of_the_same_benchmark() {
        let old = format!(
            "# Performance\n\nBy hand.\n\n{BEGIN}\n\n## Figures\n\nold machine\n\
             \n### walk\n\nold\n\n### run\n\nkept\n\n{END}\n\n## More\n"
        );
        let new = page_with(&old, "machine\n", &[section()]);
        assert!(
            new.starts_with("# Performance\n\nBy hand.\n\n<!--"),
            "{new}"
        );
        assert!(
            new.ends_with(&format!("\n### run\n\nkept\n\n{END}\n\n## More\n")),
            "{new}"
        );
        assert!(
            new.contains("machine\n\n### walk\n") && !new.contains("old"),
            "{new}"
        );
        let added = page_with("By hand.\n", "machine\n", &[section()]);
        assert!(
            added.starts_with("By hand.\n<!--") && added.contains("### walk"),
            "{added}"
        );
    }

    #[test]
    fn a_page_has_tables_charts_limits_and_the_machine() -> Result<(), Box<dyn std::error::Error>> {
        let scratch = crate::scratch::Scratch::new()?;
        let failed = Section::failed(&ABOUT, &Failure::new("no legs"));
        let charts = scratch.path().join(CHARTS);
        fs::create_dir_all(&charts)?;
        fs::write(charts.join("old.svg"), "old")?;
        fs::write(charts.join("other.svg"), "of another page")?;
        fs::write(scratch.path().join("other.svg"), "beside the page")?;
        let old = "### walk\n\n![a](charts/old.svg) ![b](charts/gone.svg) \
                   ![c](charts/../other.svg) ![d](charts/walk-1500.svg)\n";
        let old = format!("{BEGIN}\n\n{old}\n{END}\n");
        fs::write(scratch.path().join(PAGE), old)?;
        let [path, html] = write(scratch.path(), &[section()])?;
        let page = fs::read_to_string(path)?;
        let html = fs::read_to_string(html)?;
        assert!(
            html.contains("<h2>walk</h2>") && html.contains("</svg>"),
            "{html}"
        );
        assert_eq!(results::read(scratch.path())?, section().figures);
        for part in [
            "### walk",
            "3 rounds, on ",
            "Its legs. The ground.",
            "![walk, MTU 1500](charts/walk-1500.svg)",
            "| tcp |",
            "| kernel |",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        let chart = fs::read_to_string(scratch.path().join("charts/walk-1500.svg"))?;
        assert!(chart.starts_with("<svg"), "{chart}");
        assert!(!charts.join("old.svg").exists());
        assert!(charts.join("other.svg").exists() && scratch.path().join("other.svg").exists());
        assert!(failed.markdown().contains("The error was: no legs."));
        Ok(())
    }

    #[test]
    fn long_tables_are_folded() {
        assert_eq!(folded("| a |\n| --- |\n| 1 |\n"), "| a |\n| --- |\n| 1 |\n");
        assert!(folded(&"| a |\n".repeat(40)).starts_with("<details><summary>All 38 rows<"));
    }
}
