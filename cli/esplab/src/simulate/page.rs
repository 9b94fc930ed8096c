//! The page of the simulation: tables and charts of each workload.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use bench::page::{Chart, Plot, merged};
use bench::table::wrapped;
use scale::run::{Plan, Row};
use scale::workload::Workload;

use super::table;
use cli::out::{Context, Failure};

/// File of the page.
const PAGE: &str = "scale.md";
/// Folder of its charts, next to the page.
const CHARTS: &str = "scale";
/// First line of the generated part of the page.
const BEGIN: &str =
    "<!-- begin of the figures, written by `esplab simulate --report`; do not edit -->";

/// A workload on the page.
pub(super) struct Section {
    kind: Workload,
    command: String,
    network: String,
    table: String,
    charts: Vec<Chart>,
}

impl Section {
    pub(super) fn new(plan: &Plan, kind: Workload, rows: &[Row]) -> Section {
        let chart = |name: &str, title: &str, unit, value: fn(&Row) -> f64| Chart {
            name: format!("{}-{name}", kind.name()),
            title: format!("{}: {title}", kind.name()),
            unit,
            plot: bars(rows, value),
        };
        let charts = vec![
            chart("time", "time over the bound of the network", "×", |r| {
                r.ratio
            }),
            chart("p999", "99.9th percentile of message times", "µs", |r| {
                r.p999_us
            }),
        ];
        Section {
            kind,
            command: table::command(plan, kind, rows),
            network: table::network(plan),
            table: table::markdown(rows),
            charts,
        }
    }

    fn markdown(&self) -> String {
        let name = self.kind.name();
        let about = wrapped(&format!("Workload: {}.", self.kind.about()), 100);
        let Section {
            command, network, ..
        } = self;
        let mut text = format!("\n### {name}\n\n{about}\n```sh\n{command}\n```\n\n{network}");
        for chart in &self.charts {
            let _ = write!(text, "\n![{}]({CHARTS}/{}.svg)\n", chart.title, chart.name);
        }
        let _ = write!(text, "\n{}", self.table);
        text
    }
}

/// Draws a group of bars for each case, with a bar for each transport.
fn bars(rows: &[Row], value: fn(&Row) -> f64) -> Plot {
    let mut series: Vec<String> = Vec::new();
    let mut groups: Vec<(String, Vec<f64>)> = Vec::new();
    for row in rows {
        if !series.iter().any(|name| name == row.transport) {
            series.push(row.transport.into());
        }
        match groups.last_mut() {
            Some((case, values)) if *case == row.case => values.push(value(row)),
            _ => groups.push((row.case.clone(), vec![value(row)])),
        }
    }
    Plot::Bars { series, groups }
}

/// Inserts sections into the page, in place of earlier ones of these workloads.
fn page_with(page: &str, intro: &str, sections: &[Section]) -> String {
    let named = |section: &Section| (section.kind.name(), section.markdown());
    let sections: Vec<_> = sections.iter().map(named).collect();
    merged(page, BEGIN, intro, sections)
}

/// Writes the page and its charts into the folder, and returns its path. Parts written by hand, and
/// figures of other workloads, stay as they are.
pub(super) fn write(folder: &Path, intro: &str, sections: &[Section]) -> Result<PathBuf, Failure> {
    let charts = folder.join(CHARTS);
    fs::create_dir_all(&charts).doing(charts.display())?;
    for chart in sections.iter().flat_map(|section| &section.charts) {
        let path = charts.join(&chart.name).with_extension("svg");
        let text = chart.svg().doing(path.display())?;
        fs::write(&path, text).doing(path.display())?;
    }
    let path = folder.join(PAGE);
    let page = fs::read_to_string(&path).unwrap_or_else(|_| "# Scale\n\n".into());
    let page = page_with(&page, intro, sections);
    fs::write(&path, page).doing(path.display())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use bench::page::END;

    use super::*;
    use scale::fabric::Topology;
    use scale::run::Transport;

    fn section(kind: Workload) -> Section {
        let plan = Plan {
            topology: Topology::of(12),
            mtu: 1500,
            seed: 1,
        };
        let rows = super::super::simulate(&plan, kind, &Transport::ALL);
        Section::new(&plan, kind, &rows)
    }

    #[test]
    fn sections_replace_earlier_ones_of_the_same_workload() {
        let old = format!(
            "# Scale\n\nBy hand.\n\n{BEGIN}\n\n## Figures\n\nold\n\n### halo\n\nold\n\n### flap\n\n\
             kept\n\n{END}\n\n## More\n"
        );
        let new = page_with(&old, "memory\n", &[section(Workload::Halo)]);
        assert!(new.starts_with("# Scale\n\nBy hand.\n\n<!--"), "{new}");
        assert!(new.contains("![halo: time over the bound of the network](scale/halo-time.svg)"));
        let end = format!("\n### flap\n\nkept\n\n{END}\n\n## More\n");
        assert!(new.ends_with(&end) && !new.contains("\nold\n"), "{new}");
        assert!(
            new.contains("| esp-udp |") && new.contains("| tcp-dctcp |"),
            "{new}"
        );
    }

    #[test]
    fn charts_have_a_bar_for_each_transport() -> Result<(), Box<dyn std::error::Error>> {
        let section = section(Workload::JobStart);
        assert_eq!(section.charts.len(), 2);
        for chart in &section.charts {
            let svg = chart.svg()?;
            for transport in Transport::ALL {
                assert!(svg.contains(transport.name()), "{svg}");
            }
        }
        Ok(())
    }
}
