//! `esplab bench`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;

use bench::about::About;
use bench::against::compare;
use bench::page::{self, Section, abouts};
use bench::plan::{self, Bench};
use bench::report;
use bench::results::{self, Figure};
use bench::run::Rig;
use bench::table::Style;
use bench::task::Carrier;
use bench::{engines, incast, intra, programs, rails};
use cli::out::{self, Failure, Verdict};

/// Measure ESP in comparison with TCP, a bare packet-socket loop, Open MPI, MPICH and UCX
///
/// All are measured in alternating rounds of one run, on the same links and cores. Compare the
/// ratios: absolute times differ between machines. A contender that is not installed has a row with
/// a note.
#[derive(Debug, Default, Args)]
#[command(after_long_help = explained())]
pub(super) struct Flags {
    /// Fewer rounds, sizes and samples
    #[arg(long)]
    quick: bool,
    /// Only this benchmark (may be repeated): pingpong, send, send-idle, stream, loss, idle,
    /// leases, protect, incast, rails, programs, engines, shm, papers, sharing,
    /// matching
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Between nodes, measure ESP over this carrier only: `raw` or `udp`. Benchmarks without it are
    /// skipped. Default: both
    #[arg(long, value_name = "CARRIER", default_value = "both")]
    carrier: Carriers,
    /// Within a node, only messages of these sizes in bytes, separated by commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Number of rounds
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// One JSON object per row
    #[arg(long, conflicts_with = "report")]
    json: bool,
    /// Write a report: DIR/performance.md with charts in DIR/charts/, the report as one HTML page
    /// in DIR/index.html, and all figures in DIR/results.json. Of an existing report, only the
    /// measured benchmarks are replaced
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "docs")]
    report: Option<PathBuf>,
    /// Compare with the report in DIR: print the figures that are slower or faster beyond the noise
    /// of the rounds. Exit code 1 if any is slower
    #[arg(long, value_name = "DIR", conflicts_with = "json")]
    against: Option<PathBuf>,
}

/// Carriers to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Carriers {
    Raw,
    Udp,
    #[default]
    Both,
}

impl Carriers {
    fn has(self, path: bench::task::Protocol) -> bool {
        match path.carrier() {
            Some(Carrier::Raw) => self != Carriers::Udp,
            Some(Carrier::Udp) => self != Carriers::Raw,
            None => true,
        }
    }
}

/// Returns the explanation of each benchmark, for `--help`.
fn explained() -> String {
    let names = abouts().map(|about| about.name.len());
    let width = names.max().unwrap_or(0);
    let [full, quick] = [false, true].map(|quick| {
        let flags = Flags {
            quick,
            ..Flags::default()
        };
        flags.selection().map(|all| all.times()).unwrap_or_default()
    });
    let time = |times: &[(&About, Duration)], about: &About| {
        let one = times.iter().filter(|(of, _)| of.name == about.name);
        show_time(one.map(|(_, time)| *time).sum())
    };
    let mut text =
        "Benchmarks, with their usual time on two cores, in full and --quick:".to_owned();
    for about in abouts() {
        let (full, quick) = (time(&full, about), time(&quick, about));
        let (name, title) = (about.name, about.title);
        text += &format!("\n  {name:<width$} {full:>7} {quick:>7}\n      {title}");
    }
    let whole = |times: &[(&About, Duration)]| show_time(times.iter().map(|(_, time)| *time).sum());
    text += &format!(
        "\n  {:<width$} {:>7} {:>7}",
        "all",
        whole(&full),
        whole(&quick)
    );
    text
}

/// Formats `40 s` or `3 min`.
fn show_time(time: Duration) -> String {
    match time.as_secs_f64().ceil() {
        seconds if seconds < 100.0 => format!("{seconds} s"),
        seconds => format!("{:.0} min", seconds / 60.0),
    }
}

/// The selected benchmarks.
struct Selection {
    /// Measure fewer rounds, sizes and samples.
    quick: bool,
    nodes: Vec<Bench>,
    incast: Option<incast::Bench>,
    rails: Option<rails::Bench>,
    programs: Option<programs::Bench>,
    engines: Option<engines::Bench>,
    intra: Vec<intra::plan::Bench>,
}

impl Flags {
    fn selection(&self) -> Result<Selection, String> {
        let is_known = |name: &&String| abouts().any(|about| about.name == *name);
        if let Some(unknown) = self.only.iter().find(|name| !is_known(name)) {
            let known = abouts()
                .map(|about| about.name)
                .collect::<Vec<_>>()
                .join(", ");
            return Err(format!(
                "unknown benchmark `{unknown}`: write one of {known}"
            ));
        }
        let chosen = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        let rounds = |default| self.rounds.map_or(default, usize::from);
        let mut nodes = plan::plan(self.quick, &[])?;
        nodes.retain(|bench| chosen(bench.about.name));
        for bench in &mut nodes {
            bench.rounds = rounds(bench.rounds);
            bench.cases.retain(|case| self.carrier.has(case.path));
        }
        nodes.retain(|bench| !bench.cases.is_empty());
        let mut intra: Vec<_> = intra::plan::BENCHES
            .iter()
            .filter(|about| chosen(about.name))
            .filter_map(|about| intra::plan::bench(about.name, self.quick))
            .collect();
        for bench in &mut intra {
            bench.only_sizes(&self.sizes);
            bench.rounds = rounds(bench.rounds);
        }
        intra.retain(|bench| !bench.measures.is_empty());
        // These benchmarks measure ESP over raw Ethernet only.
        let raw = |name| chosen(name) && self.carrier != Carriers::Udp;
        let mut incast = raw(incast::ABOUT.name).then(|| incast::Bench::new(self.quick));
        let mut rails = raw(rails::ABOUT.name).then(|| rails::Bench::new(self.quick));
        let mut programs = raw(programs::ABOUT.name).then(|| programs::Bench::new(self.quick));
        let mut engines = raw(engines::ABOUT.name).then(|| engines::Bench::new(self.quick));
        incast.iter_mut().for_each(|b| b.rounds = rounds(b.rounds));
        rails.iter_mut().for_each(|b| b.rounds = rounds(b.rounds));
        programs
            .iter_mut()
            .for_each(|b| b.rounds = rounds(b.rounds));
        engines.iter_mut().for_each(|b| b.rounds = rounds(b.rounds));
        let selection = Selection {
            quick: self.quick,
            nodes,
            incast,
            rails,
            programs,
            engines,
            intra,
        };
        if selection.times().is_empty() {
            return Err(
                "nothing to measure: no chosen benchmark has this carrier or size; change \
                 --only, --carrier or --sizes"
                    .into(),
            );
        }
        Ok(selection)
    }
}

impl Selection {
    /// Returns the usual time of each benchmark.
    fn times(&self) -> Vec<(&'static About, Duration)> {
        let nodes = self
            .nodes
            .iter()
            .map(|b| (b.about, b.rounds * b.cases.len()));
        let incast = self.incast.map(|bench| (&incast::ABOUT, bench.steps()));
        let rails = self.rails.map(|bench| (&rails::ABOUT, bench.steps()));
        let programs = self.programs.map(|bench| (&programs::ABOUT, bench.steps()));
        let engines = self.engines.map(|bench| (&engines::ABOUT, bench.steps()));
        let intra = self.intra.iter();
        let intra = intra.map(|bench| (bench.about, intra::run::Rig::steps(bench)));
        let all = nodes
            .chain(incast)
            .chain(rails)
            .chain(programs)
            .chain(engines)
            .chain(intra);
        let time = |(about, steps): (&'static About, usize)| {
            let steps = u32::try_from(steps).unwrap_or(u32::MAX);
            (about, about.step(self.quick).saturating_mul(steps))
        };
        all.map(time).collect()
    }
}

/// Output of the benchmarks, written as each ends.
struct Output<'a> {
    flags: &'a Flags,
    /// Counts milliseconds of the usual time, so that the remaining time is known from the start.
    bar: ProgressBar,
    sections: Vec<Section>,
    figures: Vec<Figure>,
    verdict: Verdict,
}

impl Output<'_> {
    /// Announces a benchmark.
    fn begin(&self, about: &About) {
        self.bar.set_message(about.name);
        if self.flags.report.is_some() && !io::stderr().is_terminal() {
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0).max(1));
            let (name, percent) = (about.name, 100 * done / all);
            out::note(format_args!("esplab bench: {name} ({percent} % done)"));
        }
    }

    /// Advances the progress bar after a measurement.
    fn step(&self, about: &About) {
        self.bar.inc(millis(about.step(self.flags.quick)));
    }

    /// Writes the rows of a benchmark: as JSON, as a section of the page, or as a table. If it
    /// failed, the error is recorded and the run continues if a report is written; otherwise the
    /// program ends.
    fn show<R: serde::Serialize>(
        &mut self,
        about: &'static About,
        rounds: usize,
        rows: Result<Vec<R>, Failure>,
        table: impl FnOnce(&[R], Style) -> String,
        section: impl FnOnce(&[R]) -> Section,
    ) -> Result<(), Failure> {
        let to_page = self.flags.report.is_some();
        let rows = match rows {
            Ok(rows) => {
                let section = section(&rows);
                self.figures.extend_from_slice(section.figures());
                if to_page {
                    self.sections.push(section);
                    return Ok(());
                }
                rows
            }
            Err(failure) if to_page => {
                out::note(format_args!("esplab bench: {}: {failure}", about.name));
                self.sections.push(Section::failed(about, &failure));
                self.verdict = Verdict::Partly;
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        self.bar.suspend(|| {
            if self.flags.json {
                return Ok(rows.iter().try_for_each(out::json)?);
            }
            let (name, title) = (about.name, about.title);
            let table = table(&rows, Style::Text);
            let text = format!("\n{name}: {title}, {rounds} rounds\n{}", table.trim_end());
            Ok(out::line(text)?)
        })
    }

    fn line(&self, text: String) -> Result<(), Failure> {
        if self.flags.json || self.flags.report.is_some() {
            return Ok(());
        }
        Ok(self.bar.suspend(|| out::line(text))?)
    }
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let selection = flags.selection().map_err(Failure::new)?;
    // Read before the new report is written, which may be in the same folder.
    let before = flags.against.as_deref().map(results::read).transpose()?;
    // Detects a report that cannot be continued before the measurement instead of after it.
    let report = flags.report.as_deref();
    report.map(results::existing).transpose()?;
    if cfg!(debug_assertions) && !flags.json {
        out::note("esplab bench: built without optimisation, the figures of ESP are too low");
    }
    let whole = selection.times().iter().map(|(_, time)| *time).sum();
    let mut output = Output {
        flags,
        bar: out::progress(
            millis(whole),
            "{spinner} {msg} [{bar:30}] {percent} % {elapsed}, {eta} left",
        ),
        sections: Vec::new(),
        figures: Vec::new(),
        verdict: Verdict::Done,
    };
    between_nodes(&mut output, &selection.nodes)?;
    if let Some(bench) = selection.incast {
        output.begin(&incast::ABOUT);
        let rows = bench.run(|| output.step(&incast::ABOUT));
        let section = |rows: &[_]| Section::incast(&bench, rows);
        output.show(&incast::ABOUT, bench.rounds, rows, incast::table, section)?;
    }
    if let Some(bench) = selection.rails {
        output.begin(&rails::ABOUT);
        let rows = bench.run(|| output.step(&rails::ABOUT));
        let section = |rows: &[_]| Section::rails(&bench, rows);
        output.show(&rails::ABOUT, bench.rounds, rows, rails::table, section)?;
    }
    if let Some(bench) = selection.programs {
        output.begin(&programs::ABOUT);
        let rows = bench.run(|| output.step(&programs::ABOUT));
        let section = |rows: &[_]| Section::programs(&bench, rows);
        output.show(
            &programs::ABOUT,
            bench.rounds,
            rows,
            programs::table,
            section,
        )?;
    }
    if let Some(bench) = selection.engines {
        output.begin(&engines::ABOUT);
        let rows = bench.run(|| output.step(&engines::ABOUT));
        let section = |rows: &[_]| Section::engines(&bench, rows);
        output.show(&engines::ABOUT, bench.rounds, rows, engines::table, section)?;
    }
    within_node(&mut output, &selection.intra)?;
    output.bar.finish_and_clear();
    if let Some(folder) = &flags.report {
        for page in page::write(folder, &output.sections)? {
            out::line(page.display())?;
        }
    }
    if let Some(before) = before {
        let comparison = compare(&before, &output.figures);
        if !comparison.has_common() {
            return Err(Failure::new(
                "nothing to compare: none of the measured figures is in the earlier report",
            ));
        }
        out::line(&comparison)?;
        if !comparison.slower.is_empty() {
            output.verdict = Verdict::Partly;
        }
    }
    Ok(output.verdict)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn between_nodes(output: &mut Output<'_>, benches: &[Bench]) -> Result<(), Failure> {
    let mut rig = Rig::default();
    if !benches.is_empty() {
        output.line(format!("cores: {}", rig.cores()))?;
    }
    for bench in benches {
        let about = bench.about;
        output.begin(about);
        let results = rig.run(bench, || output.step(about));
        let rows = results.map(|results| report::rows(bench, &results));
        let section = |rows: &[_]| Section::between_nodes(bench, rows);
        output.show(about, bench.rounds, rows, report::table, section)?;
    }
    Ok(())
}

fn within_node(output: &mut Output<'_>, benches: &[intra::plan::Bench]) -> Result<(), Failure> {
    let mut rig = intra::run::Rig::default();
    if !benches.is_empty() {
        let thresholds = intra::join::thresholds()?;
        output.line(format!(
            "cores of a pair of processes: {}; thresholds of p2p: {thresholds}",
            rig.cores()
        ))?;
    }
    for bench in benches {
        let about = bench.about;
        output.begin(about);
        let results = rig.run(bench, || output.step(about));
        let rows = intra::report::rows(bench, &results);
        let section = |rows: &[_]| Section::within_node(bench, rows);
        output.show(about, bench.rounds, Ok(rows), intra::report::table, section)?;
        if results.ours_failed() {
            output.verdict = Verdict::Partly;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        flags: Flags,
    }

    #[test]
    fn the_help_names_all_benchmarks() {
        let help = Only::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let names = abouts()
            .map(|about| about.name)
            .collect::<Vec<_>>()
            .join(", ");
        assert!(help.contains(&names), "{names} in {help}");
    }

    #[test]
    fn the_help_says_what_each_benchmark_is_and_how_long_it_takes() {
        let help = Only::command().render_long_help().to_string();
        for about in abouts() {
            assert!(help.contains(about.title), "{} in {help}", about.title);
            let mut lines = help.lines();
            let line = lines.find(|line| line.split_whitespace().next() == Some(about.name));
            let words = line.map(|line| line.split_whitespace().collect::<Vec<_>>());
            let is_time = |unit: &str| ["s", "min"].contains(&unit);
            assert!(
                matches!(words.as_deref(), Some([_, _, a, _, b]) if is_time(a) && is_time(b)),
                "{line:?}"
            );
        }
        assert!(
            help.lines()
                .last()
                .is_some_and(|line| line.trim().starts_with("all "))
        );
    }

    #[test]
    fn times_have_a_unit_for_their_size() {
        for (seconds, text) in [
            (0.2, "1 s"),
            (99.0, "99 s"),
            (100.0, "2 min"),
            (600.0, "10 min"),
        ] {
            assert_eq!(show_time(Duration::from_secs_f64(seconds)), text);
        }
    }

    #[test]
    fn only_named_benchmarks_are_selected() -> Result<(), String> {
        let selected = |args: &[&str]| {
            let args = ["bench"].iter().chain(args);
            let only = Only::try_parse_from(args).map_err(|e| e.to_string())?;
            let selection = only.flags.selection()?;
            let nodes = selection.nodes.iter().map(|b| b.about.name);
            let names = nodes
                .chain(selection.incast.map(|_| incast::ABOUT.name))
                .chain(selection.rails.map(|_| rails::ABOUT.name))
                .chain(selection.programs.map(|_| programs::ABOUT.name))
                .chain(selection.engines.map(|_| engines::ABOUT.name))
                .chain(selection.intra.iter().map(|b| b.about.name));
            Ok::<_, String>(names.collect::<Vec<_>>())
        };
        let every: Vec<_> = abouts().map(|about| about.name).collect();
        assert_eq!(selected(&[])?, every);
        assert_eq!(selected(&["--only", "matching"])?, ["matching"]);
        assert_eq!(
            selected(&["--only", "shm", "--only", "send"])?,
            ["send", "shm"]
        );
        let udp = selected(&["--carrier", "udp"])?;
        for (name, has) in [
            ("stream", true),
            ("shm", true),
            ("incast", false),
            ("rails", false),
        ] {
            assert_eq!(udp.contains(&name), has, "{name}");
        }
        let nothing = selected(&["--only", "incast", "--carrier", "udp"]);
        assert!(nothing.is_err_and(|e| e.contains("nothing to measure")));
        let unknown = selected(&["--only", "shm", "--only", "speed"]);
        assert!(unknown.is_err_and(|e| e.contains("speed")));
        Ok(())
    }

    #[test]
    fn a_report_goes_to_docs_by_default() -> Result<(), clap::Error> {
        let report = |args: &[&str]| {
            let only = Only::try_parse_from(["bench"].iter().chain(args))?;
            Ok::<_, clap::Error>(only.flags.report)
        };
        assert_eq!(report(&[])?, None);
        assert_eq!(report(&["--report"])?, Some("docs".into()));
        assert_eq!(report(&["--report", "/tmp/x"])?, Some("/tmp/x".into()));
        assert!(report(&["--report", "--json"]).is_err());
        assert!(report(&["--against", "/tmp/x", "--json"]).is_err());
        assert!(report(&["--against"]).is_err());
        Ok(())
    }
}
