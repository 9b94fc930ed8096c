//! `esplab bench`.

use clap::Args;

use crate::bench::plan;
use crate::bench::report;
use crate::bench::run::Rig;
use crate::out::{self, Failure, Verdict};

/// Measure ESP beside TCP and a bare packet-socket loop, in alternating rounds of one run
///
/// Each path has the same wire, the same cores and the same rounds; compare ratios, not times of different days.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Shorter and noisier
    #[arg(long)]
    quick: bool,
    /// Only this bench (may be repeated): pingpong, send, send-idle, stream, loss, idle
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// One JSON object per row
    #[arg(long)]
    json: bool,
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let benches = plan::plan(flags.quick, &flags.only).map_err(Failure::new)?;
    let mut rig = Rig::default();
    if !flags.json {
        out::line(format_args!("cores: {}", rig.cores()))?;
    }
    let steps: usize = benches.iter().map(|b| b.rounds * b.cases.len()).sum();
    let bar = out::progress(steps as u64, "{spinner} {msg} [{bar:30}] {pos}/{len} {eta} left");
    for bench in &benches {
        bar.set_message(bench.name);
        let results = rig.run(bench, || bar.inc(1)).inspect_err(|_| bar.finish_and_clear())?;
        let rows = report::rows(bench, &results);
        bar.suspend(|| -> Result<(), Failure> {
            if flags.json {
                return Ok(rows.iter().try_for_each(out::json)?);
            }
            out::line(format_args!(
                "\n{}: {}, {} rounds\n{}",
                bench.name,
                bench.title,
                bench.rounds,
                report::table(&rows).trim_end()
            ))?;
            Ok(())
        })?;
    }
    bar.finish_and_clear();
    Ok(Verdict::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[derive(clap::Parser)]
    struct Only {
        #[command(flatten)]
        flags: Flags,
    }

    #[test]
    fn the_help_names_all_benches() {
        let help = Only::command().render_long_help().to_string();
        let names = plan::NAMES.map(|(name, _)| name).join(", ");
        assert!(help.contains(&names), "{names} in {help}");
    }
}
