//! Which benches there are, their labs and their cases.

use super::worker::{Path, Wait, Work};
use crate::lab::WireOptions;

/// A bench: cases that are measured in turn.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Name for `--only` and the rows.
    pub name: &'static str,
    /// What is measured, for people.
    pub title: &'static str,
    /// The labs it needs, all alive at the same time.
    pub labs: Vec<WireOptions>,
    /// What is measured in each round, in this order.
    pub cases: Vec<Case>,
    /// Rounds.
    pub rounds: usize,
}

/// One measurement of a round.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Index of the lab.
    pub lab: usize,
    /// Over what.
    pub path: Path,
    /// How the workers wait.
    pub wait: Wait,
    /// What they do.
    pub work: Work,
}

impl Case {
    /// True when both measure the same thing over other paths or wires.
    fn comparable(&self, other: &Case) -> bool {
        self.wait == other.wait && self.work == other.work
    }
}

impl Bench {
    /// The case in the same lab that differs by the path alone.
    pub fn beside(&self, case: &Case, path: Path) -> Option<usize> {
        self.cases.iter().position(|other| {
            other.path == path && other.lab == case.lab && case.path != path && case.comparable(other)
        })
    }

    /// The case that differs by the loss alone.
    pub fn without_loss(&self, case: &Case) -> Option<usize> {
        let wire = |case: &Case| self.labs.get(case.lab);
        if wire(case)?.loss_ppm == 0 {
            return None;
        }
        self.cases.iter().position(|other| {
            wire(other).is_some_and(|w| w.loss_ppm == 0) && other.path == case.path && case.comparable(other)
        })
    }
}

/// Names and titles of all benches, in the order they run.
pub const NAMES: [(&str, &str); 5] = [
    ("pingpong", "half round trip"),
    ("send", "time of a send call, 1 byte, bursts of 32 with 20 µs between"),
    ("send-idle", "time of a send call, 1 byte, one each millisecond (everybody sleeps before)"),
    ("stream", "stream one way"),
    ("loss", "stream one way, 1 % of the frames lost"),
];

/// All benches, or those named. `quick`: shorter, noisier.
pub fn plan(quick: bool, only: &[String], paths: &[Path]) -> Result<Vec<Bench>, String> {
    if let Some(unknown) = only.iter().find(|name| !NAMES.iter().any(|(known, _)| known == name)) {
        let known = NAMES.map(|(name, _)| name).join(", ");
        return Err(format!("no bench `{unknown}` (there are: {known})"));
    }
    let wanted = NAMES.iter().filter(|(name, _)| only.is_empty() || only.iter().any(|o| o == name));
    Ok(wanted.map(|&(name, title)| bench(name, title, quick, paths)).collect())
}

fn bench(name: &'static str, title: &'static str, quick: bool, paths: &[Path]) -> Bench {
    let labs = match name {
        "stream" => vec![wire(1500, 0), wire(9000, 0)],
        "loss" => vec![wire(1500, 0), wire(1500, 10_000)],
        _ => vec![wire(1500, 0)],
    };
    let mut cases = Vec::new();
    for (lab, wait, work) in works(name, quick, labs.len()) {
        for &path in paths.iter().filter(|path| fits(name, **path)) {
            cases.push(Case { lab, path, wait, work });
        }
    }
    let rounds = if quick { 3 } else { 9 };
    Bench { name, title, labs, cases, rounds }
}

/// Bulk transfers are compared with TCP as it is and as it is without offload (a lost super-packet would be many lost
/// frames at once, so under loss only the latter); small messages do not know offload.
fn fits(bench: &str, path: Path) -> bool {
    match (bench, path) {
        ("stream", _) => true,
        ("loss", Path::Tcp) => false,
        ("loss", _) => true,
        (_, path) => path != Path::TcpNoOffload,
    }
}

/// Lab, way of waiting and work of a bench's cases.
fn works(name: &str, quick: bool, labs: usize) -> Vec<(usize, Wait, Work)> {
    let less = |full: u64, short: u64| if quick { short } else { full };
    match name {
        "pingpong" => [Wait::Block, Wait::Poll]
            .into_iter()
            .flat_map(|wait| {
                [1, 1024].map(|size| (0, wait, Work::PingPong { size, count: less(10_000, 2_000) }))
            })
            .collect(),
        "send" => {
            vec![(0, Wait::Block, Work::Send { size: 1, count: less(5_000, 1_000), burst: 32, pause_us: 20 })]
        }
        "send-idle" => {
            vec![(0, Wait::Block, Work::Send { size: 1, count: less(500, 100), burst: 1, pause_us: 1000 })]
        }
        _ => (0..labs).map(|lab| (lab, Wait::Block, Work::Stream { millis: less(1000, 300) })).collect(),
    }
}

fn wire(mtu: u32, loss_ppm: u32) -> WireOptions {
    WireOptions { nodes: 2, mtu, rate: None, loss_ppm, offload: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Path; 3] = [Path::Tcp, Path::TcpNoOffload, Path::Daemon];

    #[test]
    fn every_case_has_its_comparison() -> Result<(), String> {
        for bench in plan(false, &[], &ALL)? {
            for case in bench.cases.iter().filter(|c| c.path == Path::Daemon) {
                let beside = bench.beside(case, Path::Tcp).or(bench.beside(case, Path::TcpNoOffload));
                assert!(beside.is_some(), "{}: {case:?}", bench.name);
                let lossy = bench.labs[case.lab].loss_ppm > 0;
                assert_eq!(bench.without_loss(case).is_some(), lossy, "{}: {case:?}", bench.name);
            }
        }
        Ok(())
    }

    #[test]
    fn only_what_was_asked_for() -> Result<(), String> {
        let benches = plan(true, &["loss".into(), "send".into()], &ALL)?;
        assert_eq!(benches.iter().map(|b| b.name).collect::<Vec<_>>(), ["send", "loss"]);
        let error = plan(true, &["speed".into()], &ALL).expect_err("there is no such bench");
        assert!(error.contains("`speed`") && error.contains("pingpong"), "{error}");
        Ok(())
    }
}
