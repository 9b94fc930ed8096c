//! Two users of one node: the latency of one beside what a program of the other does.

mod neighbour;

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::about::About;
use crate::plan::Case;
use crate::report::Measured;
use crate::run::{Rig, Worker};
use crate::samples::median;
use crate::table::{Column, Style, render, rounded};
use crate::task::{HOLDING, Protocol, Wait, Work};
use cli::out::{Doing, Failure};
use lab::{Lab, LabOptions};
pub use neighbour::Neighbour;

/// Name, title and limits.
pub static ABOUT: About = About {
    name: "bystander",
    title: "round trips of one user through the daemon, beside a program of another user",
    limits: "One thread serves the node, and each user has a share of its turns. Where the other \
             program has the core of the daemon or of the measured program, both wait for the \
             scheduler, too, which the row of a program that computes shows alone.",
    millis: [1_900, 900],
};

/// Work of the other user's program; an argument of `esplab worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourTask {
    /// Its activity.
    pub neighbour: Neighbour,
}

/// Runs the other user's program. Calls `say` when it has begun.
///
/// # Errors
/// The daemon refuses what a user may have.
pub fn work(task: &NeighbourTask, say: impl FnOnce(&str) -> io::Result<()>) -> io::Result<()> {
    neighbour::work(task.neighbour, say)
}

/// Arguments of `setpriv` before those of the program of the other user.
const OTHER_USER: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// Returns true if programs of the lab can run as another user.
fn has_other_user(lab: &Lab) -> bool {
    !lab.state().rootless && Path::new("/usr/bin/setpriv").exists()
}

/// Measures round trips of 1 byte between the nodes 0 and 1 while a program of another user runs in
/// node 0.
///
/// # Errors
/// A process fails.
pub fn measure(
    rig: &mut Rig,
    lab: &Lab,
    neighbour: Neighbour,
    count: u64,
) -> Result<Measured, Failure> {
    let wrapper: &[&str] = if has_other_user(lab) {
        &OTHER_USER
    } else {
        &[]
    };
    let mut other = Worker::start_as(lab, 0, wrapper, &NeighbourTask { neighbour })?;
    other.expect(HOLDING)?;
    let case = Case {
        lab: 0,
        path: Protocol::Daemon,
        wait: Wait::Block,
        work: Work::PingPong { size: 1, count },
    };
    let measured = rig.measure(lab, &case)?;
    // It must not have ended before.
    other.check_running()?;
    Ok(measured)
}

/// One line of `esplab bench --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// `bystander`.
    pub bench: &'static str,
    /// Activity of the other program.
    pub neighbour: &'static str,
    /// Number of users: 1 where the lab cannot change the user.
    pub users: usize,
    /// Half a round trip in microseconds; median of the rounds' medians.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// Its 99th percentile; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// Ratio of the 99th percentile to that beside an idle program in the same round; median of the
    /// rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_of_idle: Option<f64>,
    /// Median of half a round trip in each round, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub p50_us_values: Vec<f64>,
    /// 99th percentile in each round, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub p99_us_values: Vec<f64>,
    /// Rounds measured.
    pub rounds: usize,
}

const COLUMNS: [Column<Row>; 5] = [
    ("other program", true, |r| Some(r.neighbour.to_owned())),
    ("users", false, |r| Some(r.users.to_string())),
    ("p50 µs", false, |r| r.p50_us.map(|v| format!("{v:.1}"))),
    ("p99 µs", false, |r| r.p99_us.map(|v| format!("{v:.1}"))),
    ("p99 of idle", false, |r| {
        r.p99_of_idle.map(|v| format!("{v:.2}"))
    }),
];

/// Formats the rows as a table.
pub fn table(rows: &[Row], style: Style) -> String {
    render(rows, &COLUMNS, style)
}

/// Benchmark of two users of a node.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// Number of rounds.
    pub rounds: usize,
    /// Number of round trips.
    pub count: u64,
}

impl Bench {
    /// Creates the benchmark; `quick`: shorter and noisier.
    pub fn new(quick: bool) -> Bench {
        let (rounds, count) = if quick { (3, 1_000) } else { (5, 5_000) };
        Bench { rounds, count }
    }

    /// Returns the number of measurements.
    pub fn steps(&self) -> usize {
        self.rounds * Neighbour::ALL.len()
    }

    /// Runs the benchmark in its own lab. Calls `step` after each measurement.
    ///
    /// # Errors
    /// The lab cannot be created, or a process fails.
    pub fn run(&self, step: impl Fn()) -> Result<Vec<Row>, Failure> {
        let mut rig = Rig::default();
        let lab = rig.lab(&LabOptions::new(2))?;
        let mut outcomes: Vec<Vec<Measured>> = Neighbour::ALL.map(|_| Vec::new()).into();
        for _ in 0..self.rounds {
            for (neighbour, outcomes) in Neighbour::ALL.into_iter().zip(&mut outcomes) {
                let doing = format_args!("bench bystander, neighbour {}", neighbour.name());
                outcomes.push(measure(&mut rig, &lab, neighbour, self.count).doing(doing)?);
                step();
            }
        }
        let users = 1 + usize::from(has_other_user(&lab));
        let idle = outcomes.first().map_or(&[][..], |idle| idle);
        let rows = Neighbour::ALL.into_iter().zip(&outcomes);
        Ok(rows
            .map(|(neighbour, here)| row(neighbour, users, here, idle))
            .collect())
    }
}

fn row(neighbour: Neighbour, users: usize, here: &[Measured], idle: &[Measured]) -> Row {
    let half = |percent: f64| move |m: &Measured| m.times.percentile(percent) / 2e3;
    let all = |percent| here.iter().map(half(percent)).collect::<Vec<_>>();
    let (p50, p99) = (all(50.0), all(99.0));
    let ratios: Vec<_> = (p99.iter())
        .zip(idle.iter().map(half(99.0)))
        .map(|(here, idle)| here / idle)
        .collect();
    let values = |all: &[f64]| all.iter().copied().filter_map(rounded).collect();
    Row {
        bench: ABOUT.name,
        neighbour: neighbour.name(),
        users,
        p50_us: rounded(median(&p50)),
        p99_us: rounded(median(&p99)),
        p99_of_idle: (neighbour != Neighbour::Idle)
            .then(|| rounded(median(&ratios)))
            .flatten(),
        p50_us_values: values(&p50),
        p99_us_values: values(&p99),
        rounds: here.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(nanos: u64) -> Measured {
        let mut measured = Measured::default();
        measured.times.add(nanos);
        measured
    }

    #[test]
    fn rows_compare_rounds_with_the_same_round() {
        let idle = [measured(20_000), measured(40_000), measured(60_000)];
        let here = [measured(40_000), measured(80_000), measured(600_000)];
        let found = row(Neighbour::Bells, 2, &here, &idle);
        let near = |value: Option<f64>, wanted: f64| {
            value.is_some_and(|v| (v / wanted - 1.0).abs() < 0.01)
        };
        assert!(
            near(found.p50_us, 40.0) && near(found.p99_us, 40.0),
            "{found:?}"
        );
        assert!(near(found.p99_of_idle, 2.0), "{found:?}");
        assert_eq!(
            (found.users, found.rounds, found.p99_us_values.len()),
            (2, 3, 3)
        );
        assert_eq!(row(Neighbour::Idle, 2, &idle, &idle).p99_of_idle, None);
    }

    #[test]
    fn names_of_neighbours_are_those_of_the_task() -> Result<(), serde_json::Error> {
        for neighbour in Neighbour::ALL {
            let text = serde_json::to_string(&NeighbourTask { neighbour })?;
            assert_eq!(text, format!("{{\"neighbour\":\"{}\"}}", neighbour.name()));
        }
        Ok(())
    }
}
