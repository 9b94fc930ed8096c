//! Own MPI programs (`dev/bench/peers/kernels.c`) over ESP and over TCP in turn.

use super::Context;
use super::mpi::{Collected, Job, Site, Value};
use super::results::Outcome;
use crate::results::Unit;
use cli::out::Failure;

const SOURCE: &str = include_str!("../../peers/kernels.c");

/// BTLs in turn, by the name of the contender.
const BTLS: [(&str, &str); 2] = [("esp", "esp,self"), ("tcp", "tcp,self")];

/// Sizes of collective operations.
const PARTS: [u32; 6] = [16, 256, 1024, 4096, 16_384, 65_536];

/// Measures the run of this name.
pub(super) fn measure(context: &Context<'_>, name: &str) -> Result<Outcome, Failure> {
    let site = Site::new(4)?;
    let program = site.compile("kernels", SOURCE)?;
    let count = context.counter(context.rounds * 2 * BTLS.len());
    let mut all = Collected::default();
    for _ in 0..context.rounds {
        for nodes in [2, 4] {
            for (contender, btl) in BTLS {
                let scale = if context.quick { "20" } else { "100" };
                let mut command = vec![program.clone().into(), scale.into()];
                command.extend(
                    words(name, nodes, context.quick)
                        .into_iter()
                        .map(Into::into),
                );
                let said = site.run(&Job {
                    ranks: nodes,
                    nodes,
                    btl,
                    seconds: 120,
                    command,
                    ..Job::default()
                })?;
                all.add(context.run.name, contender, values(&said, nodes));
                count();
            }
        }
    }
    Ok(Outcome {
        figures: all.figures(),
        note: None,
    })
}

/// Returns the kernels of a run.
fn words(name: &str, nodes: usize, quick: bool) -> Vec<String> {
    if name == "lu-sp" {
        return vec!["lu:32".into(), "sp:32".into()];
    }
    let mut words = Vec::new();
    if nodes == 2 {
        let sizes: &[u32] = if quick {
            &[64, 65_536, 262_144, 524_288]
        } else {
            &[
                1, 16, 64, 256, 1024, 4096, 16_384, 65_536, 131_072, 262_144, 524_288, 1_048_576,
            ]
        };
        words.extend(sizes.iter().map(|size| format!("pingpong:{size}")));
    }
    let sizes: &[u32] = if quick || nodes > 2 {
        &[16, 1024]
    } else {
        &PARTS
    };
    for call in ["alltoall", "allgather", "allreduce"] {
        words.extend(sizes.iter().map(|size| format!("{call}:{size}")));
    }
    words.push("barrier".into());
    words
}

/// Parses the lines of the kernels.
fn values(said: &str, nodes: usize) -> Vec<Value> {
    said.lines().filter_map(|line| value(line, nodes)).collect()
}

fn value(line: &str, nodes: usize) -> Option<Value> {
    let words: Vec<_> = line.split_whitespace().collect();
    let number = |text: &str| text.parse::<f64>().ok().filter(|v| (0.0..1e12).contains(v));
    match *words.as_slice() {
        ["FIGURE", name, size, p50, p99] => Some(Value {
            what: match name {
                "pingpong" => "ping-pong".into(),
                call => format!("{call}, {nodes} nodes"),
            },
            size: Some(size.parse().ok()?),
            unit: Unit::Micros,
            value: number(p50)?,
            p99: Some(number(p99)?),
        }),
        ["RATE", name, _, rate] => Some(Value {
            what: format!("{name}, {nodes} nodes"),
            size: None,
            unit: Unit::PerSecond,
            value: number(rate)?,
            p99: None,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_are_parsed() {
        let said = "noise\nFIGURE pingpong 64 4.5 9\nFIGURE barrier 0 8 12\nRATE lu 0 33.25\n\
                    FIGURE pingpong 64 nan 9\nRATE lu 0 -1\n";
        let values = values(said, 4);
        let short: Vec<_> = values
            .iter()
            .map(|v| (v.what.as_str(), v.size, v.value, v.p99))
            .collect();
        assert_eq!(
            short,
            [
                ("ping-pong", Some(64), 4.5, Some(9.0)),
                ("barrier, 4 nodes", Some(0), 8.0, Some(12.0)),
                ("lu, 4 nodes", None, 33.25, None),
            ]
        );
    }

    #[test]
    fn quick_runs_have_the_sizes_of_the_rows() {
        for row in crate::papers::PAPERS.iter().flat_map(|paper| paper.rows) {
            let Some(pair) = row.take.pair() else {
                continue;
            };
            let (Some(size), "mpi") = (pair.size, pair.run) else {
                continue;
            };
            let nodes = if pair.what.ends_with("4 nodes") { 4 } else { 2 };
            let call = pair.what.split(',').next().unwrap_or_default();
            let word = match call {
                "ping-pong" => format!("pingpong:{size}"),
                "barrier" => "barrier".into(),
                call => format!("{call}:{size}"),
            };
            for quick in [false, true] {
                let words = words("mpi", nodes, quick);
                assert!(words.contains(&word), "{word} in {words:?}");
            }
        }
    }
}
