//! Messages by one copy beside two, between each kind of pair of CPUs that this machine has: through the whole point-to-point layer, as
//! programs send them, since its announcements and the other side's work are part of what a way costs.

use std::thread;

use btl::Btl;
use p2p::{Card, Comm, Config, P2p, Setup};
use shm_btl::topology::{Relation, Topology, allowed};
use shm_btl::{ShmBtl, ShmConfig, Thresholds};

use bench::intra::ours;
use bench::intra::work::{WINDOW, Work};
use bench::samples::median;

/// Bytes that no cache of a core holds.
const OUT_OF_CACHE: usize = 64 << 20;

/// How to measure.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Message sizes in bytes, ascending.
    pub(super) sizes: Vec<usize>,
    /// Rounds, each of both ways by turns; the medians count.
    pub(super) rounds: usize,
    /// Bytes moved by a pattern in one round, about.
    pub(super) bytes: usize,
    /// Where to read which CPUs share what.
    pub(super) topology: Topology,
}

impl Plan {
    /// About five seconds for each relation, or one.
    pub(super) fn new(quick: bool) -> Plan {
        Plan {
            sizes: (11..=20).map(|bits| 1 << bits).collect(),
            rounds: if quick { 1 } else { 5 },
            bytes: if quick { 4 << 20 } else { 32 << 20 },
            topology: Topology::default(),
        }
    }

    /// What `measure` tells of by its steps.
    pub(super) fn steps(&self) -> usize {
        self.pairs().len() * self.sizes.len()
    }

    fn pairs(&self) -> Vec<(Relation, (u32, u32))> {
        self.topology.pairs(&allowed(None))
    }
}

/// What programs do with messages, each measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// From and to one buffer at each end, by blocking calls.
    Blocking,
    /// Windows of 64, each message from and to its own buffer, the same ones again and again.
    Window,
    /// The same through more memory than caches hold.
    OutOfCache,
}

impl Pattern {
    pub(super) const ALL: [Pattern; 3] = [Pattern::Blocking, Pattern::Window, Pattern::OutOfCache];

    pub(super) fn name(self) -> &'static str {
        match self {
            Pattern::Blocking => "one buffer",
            Pattern::Window => "window of 64",
            Pattern::OutOfCache => "out of cache",
        }
    }

    fn work(self, size: usize, bytes: usize) -> Work {
        let slots = match self {
            Pattern::Blocking => 1,
            Pattern::Window => WINDOW,
            Pattern::OutOfCache => (OUT_OF_CACHE / size).max(WINDOW),
        };
        let count = (bytes / (size * WINDOW)).clamp(2, 200);
        Work::windows(size, count, slots, false)
    }
}

/// Nanoseconds for one message by two copies and by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) two: f64,
    pub(super) one: f64,
}

/// One size, each pattern in the order of [`Pattern::ALL`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) size: usize,
    pub(super) times: [Times; Pattern::ALL.len()],
}

impl Point {
    /// How many times as fast one copy is as two, over all patterns (geometric mean).
    pub(super) fn gain(&self) -> f64 {
        let logarithms = self.times.iter().map(|times| (times.two / times.one).ln());
        (logarithms.sum::<f64>() / self.times.len() as f64).exp()
    }
}

/// One pair of CPUs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) relation: Relation,
    pub(super) cpus: (u32, u32),
    /// All sizes; or why there is no copying once.
    pub(super) points: Result<Vec<Point>, String>,
}

impl Measured {
    /// The size from which on one copy is never the worse way again; `None`: none is.
    pub(super) fn switch_over(&self) -> Option<usize> {
        let points = self.points.as_ref().ok()?;
        points
            .iter()
            .rev()
            .take_while(|point| point.gain() > 1.0)
            .last()
            .map(|point| point.size)
    }
}

/// Measures each relation among the CPUs that the calling thread may run on, with two threads pinned to two CPUs; the kernel copies between threads
/// of one process as it does between processes. `step` is called after each size.
///
/// # Errors
/// In words: only one CPU, no shared memory, a thread that could not be pinned.
pub(super) fn measure(plan: &Plan, step: impl Fn() + Sync) -> Result<Vec<Measured>, String> {
    let pairs = plan.pairs();
    if pairs.is_empty() {
        return Err(
            "this process may run on one CPU only: there are no two to measure between".into(),
        );
    }
    pairs
        .into_iter()
        .map(|(relation, cpus)| {
            Ok(Measured {
                relation,
                cpus,
                points: measure_pair(plan, cpus, &step)?,
            })
        })
        .collect()
}

fn measure_pair(
    plan: &Plan,
    cpus: (u32, u32),
    step: &(impl Fn() + Sync),
) -> Result<Result<Vec<Point>, String>, String> {
    // By two copies whatever the length, and by one.
    let ([two, other_two], _) = layers(&format!("two {cpus:?}"), usize::MAX)?;
    let ([one, other_one], refused) = layers(&format!("one {cpus:?}"), 1)?;
    if let Some(why) = refused {
        plan.sizes.iter().for_each(|_| step());
        return Ok(Err(why));
    }
    thread::scope(|scope| {
        // Both do the same works in the same order. One that fails leaves its layers, and the other learns of that.
        let first = scope.spawn(|| measure_end(plan, cpus.0, [two, one], step));
        let second = scope.spawn(|| measure_end(plan, cpus.1, [other_two, other_one], || ()));
        let ended = |_| "a measuring thread ended".to_owned();
        let (first, second) = (first.join().map_err(ended)?, second.join().map_err(ended)?);
        // What rank 1 says of a failure of rank 0 is less.
        let points = first?;
        second.map(|_| Ok(points))
    })
}

/// One end's part of all works.
fn measure_end(
    plan: &Plan,
    cpu: u32,
    layers: [P2p; 2],
    step: impl Fn(),
) -> Result<Vec<Point>, String> {
    lab::pin(&[cpu as usize]).map_err(|error| error.to_string())?;
    let told = |error: p2p::Error| error.to_string();
    let comms = layers.each_ref().map(P2p::world);
    let mut points = Vec::with_capacity(plan.sizes.len());
    for &size in &plan.sizes {
        points.push(Point {
            size,
            times: measure_size(plan, &comms, size).map_err(told)?,
        });
        step();
    }
    layers
        .into_iter()
        .try_for_each(P2p::finalize)
        .map_err(told)?;
    Ok(points)
}

/// A layer for each end, over shared memory alone, with one copy from so many bytes on; and why one copy is refused.
fn layers(name: &str, from: usize) -> Result<([P2p; 2], Option<String>), String> {
    let shm = |rank| {
        let mut config = ShmConfig::new(rank, 2, format!("tune-{}-{name}", std::process::id()));
        config.thresholds = Thresholds {
            shared_cache: from,
            same_socket: from,
            other_socket: from,
        };
        ShmBtl::new(config).map_err(|error| error.to_string())
    };
    let transports = [shm(0)?, shm(1)?];
    let cards = transports.each_ref().map(|shm| Card {
        transport: shm.name().into(),
        address: shm.address(),
    });
    let start = |(rank, shm): (u32, ShmBtl)| {
        let config = Config {
            adapt: false,
            skew: false,
            one_sided_from: Some(from),
            local_ranks: 2,
            cpus: Some(2),
            ..Config::default()
        };
        let setup = Setup {
            rank,
            size: 2,
            transports: vec![Box::new(shm)],
            config,
        };
        let theirs = |peer: u32| {
            cards
                .get(peer as usize)
                .cloned()
                .map(|card| vec![card])
                .ok_or_else(String::new)
        };
        P2p::start(setup, theirs).map_err(|failed| failed.error.to_string())
    };
    let [first, second] = transports;
    let layers = [start((0, first))?, start((1, second))?];
    let path = layers
        .iter()
        .flat_map(P2p::paths)
        .filter_map(|report| report.path)
        .find(|path| !path.one_sided);
    Ok((layers, path.map(|path| path.reason)))
}

/// One size by all patterns, both ways, each sample by turns. Only rank 0 hears times; those of rank 1 mean nothing.
fn measure_size(
    plan: &Plan,
    comms: &[Comm; 2],
    size: usize,
) -> Result<[Times; Pattern::ALL.len()], p2p::Error> {
    let mut all = [Times { two: 0.0, one: 0.0 }; Pattern::ALL.len()];
    for (pattern, times) in Pattern::ALL.into_iter().zip(&mut all) {
        let work = pattern.work(size, plan.bytes);
        let mut samples = [const { Vec::new() }; 2];
        for _ in 0..plan.rounds.max(1) {
            for (comm, samples) in comms.iter().zip(&mut samples) {
                let said = ours::run(comm, &work)?;
                samples.extend(
                    said.into_iter()
                        .flat_map(|(_, times)| times)
                        .map(|nanos| nanos as f64),
                );
            }
        }
        let [two, one] = samples.map(|samples| median(&samples) / WINDOW as f64);
        *times = Times { two, one };
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(size: usize, gains: [f64; 3]) -> Point {
        Point {
            size,
            times: gains.map(|gain| Times {
                two: gain,
                one: 1.0,
            }),
        }
    }

    fn measured(points: Vec<Point>) -> Measured {
        Measured {
            relation: Relation::SharedCache,
            cpus: (0, 1),
            points: Ok(points),
        }
    }

    #[test]
    fn the_switch_is_where_one_copy_stays_better() {
        let (better, worse, even) = ([2.0, 1.5, 1.1], [1.5, 0.5, 0.5], [2.0, 0.5, 1.0]);
        let switch = |gains: &[[f64; 3]]| {
            measured(
                (1..)
                    .zip(gains)
                    .map(|(size, gains)| point(size, *gains))
                    .collect(),
            )
            .switch_over()
        };
        assert_eq!(switch(&[worse, even, better]), Some(3));
        assert_eq!(switch(&[better, worse, better]), Some(3));
        assert_eq!(switch(&[better, better]), Some(1));
        assert_eq!(switch(&[better, worse]), None);
        let refused = Measured {
            points: Err("no".into()),
            ..measured(Vec::new())
        };
        assert_eq!(refused.switch_over(), None);
    }

    #[test]
    fn a_measurement_has_all_its_numbers() {
        let plan = Plan {
            sizes: vec![1, 1000, 100_000],
            rounds: 1,
            bytes: 64 << 10,
            topology: Topology::default(),
        };
        let steps = std::sync::atomic::AtomicUsize::new(0);
        match measure(&plan, || {
            steps.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }) {
            Ok(measured) => {
                assert!(!measured.is_empty());
                assert_eq!(steps.into_inner(), plan.steps());
                for one in measured {
                    let Ok(points) = one.points else { continue };
                    assert_eq!(
                        points.iter().map(|point| point.size).collect::<Vec<_>>(),
                        plan.sizes
                    );
                    let times = points
                        .iter()
                        .flat_map(|point| point.times)
                        .flat_map(|times| [times.one, times.two]);
                    assert!(times.into_iter().all(|time| time > 0.0 && time.is_finite()));
                }
            }
            Err(why) => assert!(allowed(None).len() < 2, "{why}"),
        }
    }
}
