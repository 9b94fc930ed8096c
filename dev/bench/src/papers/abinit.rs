//! Abinit over ESP and over TCP in turn.

use std::fs;

use super::Context;
use super::mpi::{Collected, Job, Site, Value, missing};
use super::results::Outcome;
use crate::intra::contender::find;
use crate::results::Unit;
use cli::out::{Context as _, Failure};

/// Input: zincblende SiN with two atoms.
const INPUT: &str = include_str!("../../../../tests/mpi/programs/sin.abi");
/// Folder of Debian's pseudopotentials.
const POTENTIALS: &str = "/usr/share/abinit/psp";
/// Packages that have all of it.
const PACKAGES: &str = "abinit abinit-data";

/// Lines of the input that are others here: a finer basis and more k points, for Abinit prints
/// tenths of seconds.
const FINER: [(&str, &str); 2] = [
    ("ecut 16\n", "ecut 40\n"),
    ("ngkpt 4 4 4\n", "ngkpt 8 8 8\n"),
];

/// BTLs in turn, by the name of the contender.
const BTLS: [(&str, &str); 2] = [("esp", "esp,self"), ("tcp", "tcp,self")];

/// Measures the wall time that Abinit reports.
pub(super) fn measure(context: &Context<'_>) -> Result<Outcome, Failure> {
    let program = find("abinit", "abinit").map_err(|_| missing("abinit", PACKAGES))?;
    let needed = ["14si.pspnc", "7n.pspnc"];
    let there = |name: &&str| std::path::Path::new(POTENTIALS).join(name).is_file();
    if let Some(name) = needed.iter().find(|name| !there(name)) {
        return Err(missing(&format!("{name} in {POTENTIALS}"), PACKAGES));
    }
    let site = Site::new(2)?;
    let folder = site.folder();
    let count = context.counter(context.rounds * BTLS.len());
    let mut all = Collected::default();
    for _ in 0..context.rounds {
        for (contender, btl) in BTLS {
            let output = folder.join("sin.abo");
            // An existing output would make it choose another name.
            let _ = fs::remove_file(&output);
            let input = folder.join("sin.abi");
            fs::write(&input, finer()).doing(input.display())?;
            site.run(&Job {
                ranks: 2,
                nodes: 2,
                btl,
                seconds: 120,
                options: ["-x", "OMP_NUM_THREADS=1", "-x"]
                    .into_iter()
                    .map(Into::into)
                    .chain([format!("ABI_PSPDIR={POTENTIALS}").into()])
                    .collect(),
                command: vec![program.clone().into(), "sin.abi".into()],
            })?;
            let text = fs::read_to_string(&output).doing(output.display())?;
            let seconds = wall_time(&text);
            let seconds = seconds.ok_or_else(|| {
                Failure::new("Abinit's output has no wall time: the calculation did not end")
            })?;
            let value = Value {
                what: "SiN".into(),
                size: None,
                unit: Unit::Seconds,
                value: seconds,
                p99: None,
            };
            all.add(context.run.name, contender, vec![value]);
            count();
        }
    }
    Ok(Outcome {
        figures: all.figures(),
        note: None,
    })
}

/// Returns the input.
fn finer() -> String {
    let change = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    FINER.iter().fold(INPUT.to_owned(), change)
}

/// Returns the wall time of rank 0 in seconds.
fn wall_time(output: &str) -> Option<f64> {
    let lines = output.lines();
    let line = lines
        .filter(|line| line.contains("individual time"))
        .find_map(|line| line.split_once("wall="))?;
    let seconds = line.1.split_whitespace().next()?.parse::<f64>().ok()?;
    (seconds > 0.0 && seconds < 1e6).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_is_finer() {
        let text = finer();
        for (from, to) in FINER {
            assert!(text.contains(to) && !text.contains(from), "{text}");
        }
    }

    #[test]
    fn the_wall_time_is_found() {
        let text = "- Proc.   0 individual time (sec): cpu=          3.1  wall=          4.5\n";
        assert_eq!(wall_time(text), Some(4.5));
        for bad in ["", "wall= 3", "individual time wall= x", "individual time"] {
            assert_eq!(wall_time(bad), None, "{bad}");
        }
    }
}
