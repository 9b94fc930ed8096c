//! The performance page: what the machine is, and of each benchmark its limits, charts and table.

mod chart;
mod machine;
mod sections;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

pub use chart::{Chart, Plot};

use crate::about::About;
use crate::cores::Cores;
use cli::out::{Doing, Failure};

/// File of the page.
const PAGE: &str = "performance.md";
/// Folder of its charts beside it.
const CHARTS: &str = "charts";
/// First line of the generated part of the page.
const BEGIN: &str =
    "<!-- begin of the figures, written by `esplab bench --report`; do not edit -->";
/// Last line of the generated part of the page.
const END: &str = "<!-- end of the figures -->";

/// One benchmark on the page.
#[derive(Clone, Debug)]
pub struct Section {
    about: &'static About,
    /// Rounds and table, or the error that ended the benchmark.
    content: Result<(usize, String), String>,
    charts: Vec<Chart>,
}

impl Section {
    /// Returns the section of a benchmark that failed.
    pub fn failed(about: &'static About, error: &Failure) -> Section {
        Section {
            about,
            content: Err(error.to_string()),
            charts: Vec::new(),
        }
    }

    fn markdown(&self) -> String {
        let About {
            name,
            title,
            limits,
        } = self.about;
        let mut text = format!("\n### {name}\n\nMeasured: {title}.");
        let table = match &self.content {
            Ok((rounds, table)) => {
                let _ = write!(text, " {rounds} rounds.");
                table.clone()
            }
            Err(error) => format!("Not measured: {error}.\n"),
        };
        let _ = write!(text, "\n\n{}\n", wrapped(limits));
        for chart in &self.charts {
            let _ = write!(text, "\n![{}]({CHARTS}/{}.svg)\n", chart.title, chart.name);
        }
        let _ = write!(text, "\n{table}");
        text
    }
}

/// Breaks a paragraph into lines of at most 100 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let is_full = |line: &String| line.chars().count() + 1 + word.chars().count() > 100;
        if lines.last().is_some_and(is_full) {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

/// Returns the generated part of the page, from `BEGIN` to `END`.
fn figures(sections: &[Section], command: &str, cores: &Cores) -> String {
    let mut text = format!("{BEGIN}\n\n## The machine\n\n| | |\n| --- | --- |\n");
    for (label, value) in machine::facts(cores) {
        let _ = writeln!(text, "| {label} | {value} |");
    }
    let _ = writeln!(text, "| command | `{command}` |\n\n## Figures");
    sections
        .iter()
        .for_each(|section| text.push_str(&section.markdown()));
    let _ = write!(text, "\n{END}\n");
    text
}

/// Puts the figures into the page, in place of earlier ones. A page without the two marks is
/// replaced.
fn merged(page: &str, figures: &str) -> String {
    match (page.split_once(BEGIN), page.split_once(END)) {
        (Some((before, _)), Some((_, after))) => {
            format!(
                "{before}{figures}{}",
                after.strip_prefix('\n').unwrap_or(after)
            )
        }
        _ => format!("# Performance\n\n{figures}"),
    }
}

/// Writes `performance.md` and the charts in `charts/` into the folder. The hand-written parts
/// of an existing page stay as they are. Returns the path of the page.
///
/// # Errors
/// A chart cannot be drawn, or a file cannot be written.
pub fn write(folder: &Path, sections: &[Section], command: &str) -> Result<PathBuf, Failure> {
    let charts = folder.join(CHARTS);
    fs::create_dir_all(&charts).doing(charts.display())?;
    for entry in fs::read_dir(&charts).doing(charts.display())?.flatten() {
        if entry.path().extension().is_some_and(|end| end == "svg") {
            fs::remove_file(entry.path()).doing(entry.path().display())?;
        }
    }
    for chart in sections.iter().flat_map(|section| &section.charts) {
        let path = charts.join(&chart.name).with_extension("svg");
        let text = chart.svg().doing(path.display())?;
        fs::write(&path, text).doing(path.display())?;
    }
    let path = folder.join(PAGE);
    let page = fs::read_to_string(&path).unwrap_or_default();
    let page = merged(&page, &figures(sections, command, &Cores::here()));
    fs::write(&path, page).doing(path.display())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    static ABOUT: About = About {
        name: "walk",
        title: "how fast it walks",
        limits: "Its legs. The ground.",
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
        }
    }

    #[test]
    fn figures_replace_earlier_ones_and_nothing_else() {
        let page = format!("# Performance\n\nBy hand.\n\n{BEGIN}\nold\n{END}\n\n## More\n");
        let new = merged(&page, &format!("{BEGIN}\nnew\n{END}\n"));
        assert_eq!(
            new,
            format!("# Performance\n\nBy hand.\n\n{BEGIN}\nnew\n{END}\n\n## More\n")
        );
        assert!(merged("", "figures").starts_with("# Performance\n"));
    }

    #[test]
    fn a_page_has_table_chart_limits_and_command() -> Result<(), Box<dyn std::error::Error>> {
        let scratch = crate::scratch::Scratch::new()?;
        let failed = Section::failed(&ABOUT, &Failure::new("no legs"));
        fs::create_dir_all(scratch.path().join(CHARTS))?;
        fs::write(scratch.path().join(CHARTS).join("old.svg"), "old")?;
        let path = write(
            scratch.path(),
            &[section(), failed],
            "esplab bench --report",
        )?;
        let page = fs::read_to_string(path)?;
        for part in [
            "### walk",
            "3 rounds",
            "Its legs. The ground.",
            "![walk, MTU 1500](charts/walk-1500.svg)",
            "| tcp |",
            "| command | `esplab bench --report` |",
            "Not measured: no legs.",
            "kernel",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        let chart = fs::read_to_string(scratch.path().join("charts/walk-1500.svg"))?;
        assert!(chart.starts_with("<svg"), "{chart}");
        assert!(!scratch.path().join("charts/old.svg").exists());
        Ok(())
    }

    #[test]
    fn paragraphs_are_wrapped() {
        let text = wrapped(&"word ".repeat(50));
        assert!(
            text.lines().count() == 3 && text.lines().all(|line| line.len() <= 100),
            "{text}"
        );
    }
}
