//! `esp doctor`: reports problems of this node and of the paths to its peers, and how to fix them.
//!
//! `gather` reads `facts` from the daemon, the kernel and the peers. A check is a function of these
//! facts that adds findings; there is a module for each group. `paths` determines how each peer
//! would be reached, and `report` prints.

mod daemon;
mod facts;
mod finding;
mod flags;
mod gather;
mod host;
mod link;
mod mpi;
mod paths;
mod peer;
mod report;
#[cfg(test)]
mod tests;

pub(super) use flags::Flags;

use crate::out::{self, Context, Failure, Verdict};
use crate::signal::Interrupt;
use facts::Facts;
use finding::{Finding, Level};

/// Runs the tool.
pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let interrupt = Interrupt::watch().doing("watching for signals")?;
    let facts = gather::facts(flags, &interrupt)?;
    let findings = check(&facts);
    let choices = paths::choices(&facts);
    let text = if flags.json {
        report::json(&facts, &findings, &choices, flags.quiet).doing("writing JSON")?
    } else {
        let colours = console::colors_enabled();
        report::text(&facts, &findings, &choices, flags.quiet, colours)
    };
    out::line(text)?;
    Ok(verdict(&findings))
}

/// Runs all checks.
fn check(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    daemon::check(facts, &mut findings);
    link::check(facts, &mut findings);
    host::check(facts, &mut findings);
    mpi::check(facts, &mut findings);
    peer::check(facts, &mut findings);
    findings
}

fn verdict(findings: &[Finding]) -> Verdict {
    match findings.iter().map(|finding| finding.level).max() {
        Some(Level::Error) => Verdict::Code(2),
        Some(Level::Warning) => Verdict::Partly,
        _ => Verdict::Done,
    }
}
