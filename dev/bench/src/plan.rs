//! Which benches there are, their labs and their cases.

use crate::worker::{Path, Wait, Work};
use lab::WireOptions;

/// A bench: cases that are measured in turn.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Name for `--only` and the rows.
    pub name: &'static str,
    /// What is measured, for people.
    pub title: &'static str,
    /// The labs it needs, all alive at the same time.
    pub labs: Vec<LabPlan>,
    /// What is measured in each round, in this order.
    pub cases: Vec<Case>,
    /// Rounds.
    pub rounds: usize,
}

/// A lab of two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabPlan {
    /// Bytes.
    pub mtu: u32,
    /// Frames lost, per million.
    pub loss_ppm: u32,
    /// Connections that are open all the time and not used.
    pub held: usize,
    /// Leased ports of each node that are open all the time and not used.
    pub leases: usize,
}

impl LabPlan {
    /// Its wire.
    pub fn wire(&self) -> WireOptions {
        WireOptions {
            nodes: 2,
            mtu: self.mtu,
            rate: None,
            loss_ppm: self.loss_ppm,
            offload: true,
        }
    }
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
    /// True when both measure the same thing over other paths or wires. Bulk does not care how the
    /// ends wait: the bare loop is measured both ways, and the better one counts.
    fn comparable(&self, other: &Case) -> bool {
        self.work == other.work
            && (self.wait == other.wait || matches!(self.work, Work::Stream { .. }))
    }
}

impl Bench {
    /// The cases in the same lab that differ by the path alone.
    pub fn beside(&self, case: &Case, path: Path) -> Vec<usize> {
        let same =
            |other: &Case| other.path == path && other.lab == case.lab && case.comparable(other);
        let others = self
            .cases
            .iter()
            .enumerate()
            .filter(|(_, other)| case.path != path && same(other));
        others.map(|(index, _)| index).collect()
    }

    /// The case that differs by the loss alone.
    pub fn without_loss(&self, case: &Case) -> Vec<usize> {
        self.in_lab(case, |lab| LabPlan {
            loss_ppm: 0,
            ..*lab
        })
    }

    /// The case that differs by the idle connections alone.
    pub fn without_held(&self, case: &Case) -> Vec<usize> {
        self.in_lab(case, |lab| LabPlan { held: 0, ..*lab })
    }

    /// The case that differs by the other leases alone.
    pub fn without_leases(&self, case: &Case) -> Vec<usize> {
        self.in_lab(case, |lab| LabPlan { leases: 0, ..*lab })
    }

    /// The same case in the lab that is this one with a change; none when it is this one.
    fn in_lab(&self, case: &Case, change: impl Fn(&LabPlan) -> LabPlan) -> Vec<usize> {
        let lab = self.labs.get(case.lab).copied().unwrap_or_default();
        let wanted = change(&lab);
        let same = |other: &Case| {
            self.labs.get(other.lab) == Some(&wanted)
                && other.path == case.path
                && case.comparable(other)
        };
        let others = self
            .cases
            .iter()
            .enumerate()
            .filter(|(_, other)| wanted != lab && same(other));
        others.map(|(index, _)| index).collect()
    }
}

/// All paths.
pub const PATHS: [Path; 6] = [
    Path::Tcp,
    Path::TcpNoOffload,
    Path::Raw,
    Path::Lease,
    Path::Daemon,
    Path::P2p,
];

/// Names and titles of all benches, in the order they run.
pub const NAMES: [(&str, &str); 7] = [
    ("pingpong", "half round trip"),
    (
        "send",
        "time of a send call, 1 byte, bursts of 32 with 20 µs between",
    ),
    (
        "send-idle",
        "time of a send call, 1 byte, one each millisecond (everybody sleeps before)",
    ),
    ("stream", "stream one way"),
    ("loss", "stream one way, 1 % of the frames lost"),
    ("idle", "one busy connection beside none and 999 idle ones"),
    (
        "leases",
        "one busy connection beside no other leased port and 63 of each node",
    ),
];

/// All benches, or those named. `quick`: shorter, noisier.
pub fn plan(quick: bool, only: &[String]) -> Result<Vec<Bench>, String> {
    if let Some(unknown) = only
        .iter()
        .find(|name| !NAMES.iter().any(|(known, _)| known == name))
    {
        let known = NAMES.map(|(name, _)| name).join(", ");
        return Err(format!("no bench `{unknown}` (there are: {known})"));
    }
    let wanted = NAMES
        .iter()
        .filter(|(name, _)| only.is_empty() || only.iter().any(|o| o == name));
    Ok(wanted
        .map(|&(name, title)| bench(name, title, quick))
        .collect())
}

fn bench(name: &'static str, title: &'static str, quick: bool) -> Bench {
    let lab = LabPlan {
        mtu: 1500,
        loss_ppm: 0,
        held: 0,
        leases: 0,
    };
    let labs = match name {
        "stream" => vec![lab, LabPlan { mtu: 9000, ..lab }],
        "loss" => vec![
            lab,
            LabPlan {
                loss_ppm: 10_000,
                ..lab
            },
        ],
        "idle" => vec![lab, LabPlan { held: 999, ..lab }],
        "leases" => vec![lab, LabPlan { leases: 63, ..lab }],
        _ => vec![lab],
    };
    let mut cases = Vec::new();
    for (wait, work) in works(name, quick) {
        for lab in 0..labs.len() {
            for path in PATHS.into_iter().filter(|path| fits(name, *path)) {
                cases.push(Case {
                    lab,
                    path,
                    wait,
                    work,
                });
                if path == Path::Raw && matches!(work, Work::Stream { .. }) {
                    cases.push(Case {
                        lab,
                        path,
                        wait: Wait::Poll,
                        work,
                    });
                }
            }
        }
    }
    let rounds = if quick { 3 } else { 9 };
    Bench {
        name,
        title,
        labs,
        cases,
        rounds,
    }
}

/// Bulk transfers are compared with TCP as it is and as it is without offload (a lost super-packet
/// would be many lost frames at once, so under loss only the latter); small messages do not know
/// offload. The raw loop has neither send calls nor a cure for loss.
fn fits(bench: &str, path: Path) -> bool {
    match bench {
        "stream" => true,
        "pingpong" => path != Path::TcpNoOffload,
        "loss" => matches!(path, Path::TcpNoOffload | Path::Lease | Path::Daemon),
        "idle" => path == Path::Daemon,
        "leases" => matches!(path, Path::Lease | Path::Daemon),
        _ => matches!(path, Path::Tcp | Path::Lease | Path::Daemon),
    }
}

/// Way of waiting and work of a bench's cases.
fn works(name: &str, quick: bool) -> Vec<(Wait, Work)> {
    let less = |full: u64, short: u64| if quick { short } else { full };
    let stream = Work::Stream {
        millis: less(1000, 300),
    };
    match name {
        "pingpong" => [Wait::Block, Wait::Poll]
            .into_iter()
            .flat_map(|wait| {
                [1, 1024].map(|size| {
                    (
                        wait,
                        Work::PingPong {
                            size,
                            count: less(10_000, 2_000),
                        },
                    )
                })
            })
            .collect(),
        "send" => {
            vec![(
                Wait::Block,
                Work::Send {
                    size: 1,
                    count: less(5_000, 1_000),
                    burst: 32,
                    pause_us: 20,
                },
            )]
        }
        "send-idle" => {
            vec![(
                Wait::Block,
                Work::Send {
                    size: 1,
                    count: less(500, 100),
                    burst: 1,
                    pause_us: 1000,
                },
            )]
        }
        "idle" => {
            vec![
                (
                    Wait::Block,
                    Work::PingPong {
                        size: 1,
                        count: less(5_000, 1_000),
                    },
                ),
                (Wait::Block, stream),
            ]
        }
        "leases" => {
            let ping = Work::PingPong {
                size: 1,
                count: less(10_000, 2_000),
            };
            vec![
                (Wait::Block, ping),
                (Wait::Poll, ping),
                (Wait::Block, stream),
            ]
        }
        _ => vec![(Wait::Block, stream)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_its_comparison() -> Result<(), String> {
        for bench in plan(false, &[])? {
            for path in [Path::Daemon, Path::Lease] {
                let has = bench.cases.iter().any(|c| c.path == path);
                assert_eq!(
                    has,
                    path == Path::Daemon || bench.name != "idle",
                    "{}",
                    bench.name
                );
            }
            for case in bench
                .cases
                .iter()
                .filter(|c| matches!(c.path, Path::Daemon | Path::Lease))
            {
                let lab = bench.labs[case.lab];
                let tcp =
                    [Path::Tcp, Path::TcpNoOffload].map(|path| bench.beside(case, path).len());
                let alone = ["idle", "leases"].contains(&bench.name);
                assert_eq!(tcp.contains(&1), !alone, "{}: {case:?}", bench.name);
                let raw = match bench.name {
                    "pingpong" => 1,
                    "stream" => 2,
                    _ => 0,
                };
                assert_eq!(
                    bench.beside(case, Path::Raw).len(),
                    raw,
                    "{}: {case:?}",
                    bench.name
                );
                assert_eq!(
                    bench.without_loss(case).len(),
                    usize::from(lab.loss_ppm > 0),
                    "{}: {case:?}",
                    bench.name
                );
                assert_eq!(
                    bench.without_held(case).len(),
                    usize::from(lab.held > 0),
                    "{}: {case:?}",
                    bench.name
                );
                assert_eq!(
                    bench.without_leases(case).len(),
                    usize::from(lab.leases > 0),
                    "{}: {case:?}",
                    bench.name
                );
            }
        }
        Ok(())
    }

    #[test]
    fn only_what_was_asked_for() -> Result<(), String> {
        let benches = plan(true, &["loss".into(), "send".into()])?;
        assert_eq!(
            benches.iter().map(|b| b.name).collect::<Vec<_>>(),
            ["send", "loss"]
        );
        let error = plan(true, &["speed".into()]).expect_err("there is no such bench");
        assert!(
            error.contains("`speed`") && error.contains("pingpong"),
            "{error}"
        );
        Ok(())
    }
}
