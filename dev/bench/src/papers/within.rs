//! Measures within a node, by the rig of `esplab bench`.

use super::Context;
use super::results::Outcome;
use crate::about::About;
use crate::intra::contender::{Contender, Ours};
use crate::intra::plan::{self, Bench, Measure};
use crate::intra::report;
use crate::intra::run::Rig;
use crate::intra::work::{Call, Work};
use crate::results;
use cli::out::Failure;

/// Keys of class A of IS.
const KEYS: usize = 1 << 23;

/// Contenders of the runs that are not in `esplab bench`.
const ALL: [Contender; 5] = [
    Contender::P2p(Ours::Set),
    Contender::P2p(Ours::OneCopy),
    Contender::P2p(Ours::TwoCopy),
    Contender::OpenMpi { two_copy: false },
    Contender::OpenMpi { two_copy: true },
];

static ABOUT: About = About {
    name: "papers",
    title: "",
    limits: "",
    millis: [0, 0],
};

/// Measures the run of this name. Contenders that are not installed are named in the note.
pub(super) fn measure(context: &Context<'_>, name: &str) -> Result<Outcome, Failure> {
    let bench = Bench {
        about: &ABOUT,
        measures: measures(name, context.quick)?,
        rounds: context.rounds,
    };
    let mut rig = Rig::default();
    let count = context.counter(Rig::steps(&bench));
    let measured = rig.run(&bench, count);
    let rows = report::rows(&bench, &measured);
    let mut note = None;
    for row in rows.iter().filter(|row| row.rounds == 0) {
        note = note.or_else(|| Some(format!("{}: {}", row.path, row.note.as_deref()?)));
    }
    let machine = crate::page::summary();
    let mut figures = results::within_node(&rows, &machine);
    for figure in &mut figures {
        figure.bench = context.run.name.into();
    }
    Ok(Outcome { figures, note })
}

/// Returns the measures of a run.
fn measures(name: &str, quick: bool) -> Result<Vec<Measure>, Failure> {
    let of_bench = |is_wanted: fn(&Measure) -> bool| {
        let mut all = plan::bench("papers", quick)
            .map(|bench| bench.measures)
            .unwrap_or_default();
        all.retain(is_wanted);
        for measure in &mut all {
            // It may have been left out, and the page compares contenders only.
            measure.base = None;
            measure.who.retain(|who| *who != Contender::Mpich);
        }
        all
    };
    Ok(match name {
        "copies" => of_bench(|m| m.what.starts_with("copies") || m.what == "cost: system call"),
        "topology" => of_bench(|m| m.what == "multi-pair" && m.pairs <= 2),
        "reuse" => of_bench(|m| m.what == "buffer reuse"),
        "skew" => of_bench(|m| m.what == "skew"),
        "collectives" => collectives(quick),
        "keys" => vec![keys(quick)],
        _ => return Err(Failure::new(format!("no run is named `{name}`"))),
    })
}

fn plain(what: &'static str, work: Work, pairs: usize) -> Measure {
    Measure {
        what,
        work,
        limit: None,
        pairs,
        buffers: None,
        base: None,
        who: ALL.to_vec(),
    }
}

/// Returns collective operations of two and four ranks.
fn collectives(quick: bool) -> Vec<Measure> {
    let sizes: &[usize] = if quick {
        &[65_536]
    } else {
        &[1 << 10, 8 << 10, 65_536, 256 << 10, 1 << 20]
    };
    let all = [
        ("alltoall, 2 ranks", Call::Alltoall, 1),
        ("allgather, 2 ranks", Call::Allgather, 1),
        ("allreduce, 2 ranks", Call::Allreduce, 1),
        ("alltoall, 4 ranks", Call::Alltoall, 2),
    ];
    let mut measures = Vec::new();
    for (what, call, pairs) in all {
        for &size in sizes {
            let most = if quick { 100 } else { 400 };
            let count = (most * 8192 / size.max(8192)).max(10);
            let work = Work::Collective { call, size, count };
            measures.push(plain(what, work, pairs));
        }
    }
    measures
}

fn keys(quick: bool) -> Measure {
    let work = Work::Keys {
        keys: KEYS,
        count: if quick { 3 } else { 10 },
    };
    plain("sort of 2^23 keys", work, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::{PAPERS, RUNS};

    #[test]
    fn runs_within_a_node_have_measures() {
        for name in ["copies", "topology", "reuse", "skew", "collectives", "keys"] {
            assert!(RUNS.iter().any(|run| run.name == name), "{name}");
            for quick in [false, true] {
                let measures = measures(name, quick).expect("a known run");
                assert!(!measures.is_empty(), "{name}");
            }
        }
        assert!(measures("speed", false).is_err());
    }

    #[test]
    fn rows_name_contenders_of_their_runs() {
        for row in PAPERS.iter().flat_map(|paper| paper.rows) {
            let Some(pair) = row.take.pair() else {
                continue;
            };
            let Ok(measures) = measures(pair.run, true) else {
                continue;
            };
            let two = [pair.ours, pair.reference];
            for contender in two.into_iter().filter(|name| !name.is_empty()) {
                let known = measures
                    .iter()
                    .any(|m| m.who.iter().any(|who| contender.starts_with(who.name())));
                assert!(known, "{}: {contender}", row.experiment);
            }
        }
    }
}
