//! Sockets between two nodes, by the rig of `esplab bench`.

use super::Context;
use super::results::Outcome;
use crate::plan::{self, Bench};
use crate::report;
use crate::results;
use crate::run::Rig;
use crate::task::{Protocol, Wait};
use cli::out::Failure;

/// Measures the run of this name.
pub(super) fn measure(context: &Context<'_>, name: &str) -> Result<Outcome, Failure> {
    let bench = bench(context, name)?;
    let count = context.counter(bench.rounds * bench.cases.len());
    let measured = Rig::default().run(&bench, count)?;
    let rows = report::rows(&bench, &measured);
    let mut figures = results::between_nodes(&rows, &crate::page::summary());
    for figure in &mut figures {
        figure.bench = context.run.name.into();
    }
    Ok(Outcome {
        figures,
        note: None,
    })
}

/// Returns the cases of `esplab bench` that the papers need: MTU 1500, blocking.
fn bench(context: &Context<'_>, name: &str) -> Result<Bench, Failure> {
    let of = if name == "send" { "send" } else { "pingpong" };
    let all = plan::plan(context.quick, &[of.into()]).map_err(Failure::new)?;
    let bench = all.into_iter().next();
    let mut bench = bench.ok_or_else(|| Failure::new(format!("no benchmark `{of}`")))?;
    bench.labs.truncate(1);
    bench.cases.retain(|case| {
        let path = match case.path {
            Protocol::Tcp | Protocol::Lease | Protocol::Udp => true,
            Protocol::P2p => of == "pingpong",
            _ => false,
        };
        path && case.lab == 0 && case.wait == Wait::Block
    });
    bench.rounds = context.rounds;
    Ok(bench)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::RUNS;

    #[test]
    fn cases_are_of_one_lab_and_block() {
        for (run, paths) in RUNS.iter().take(2).zip([4, 3]) {
            let context = Context {
                run,
                quick: true,
                rounds: 1,
                step: &|_| (),
            };
            let bench = bench(&context, run.name).expect("a benchmark");
            assert_eq!(bench.labs.len(), 1, "{}", run.name);
            let mut found: Vec<_> = bench.cases.iter().map(|case| case.path.name()).collect();
            found.sort_unstable();
            found.dedup();
            assert_eq!(found.len(), paths, "{found:?}");
        }
    }
}
