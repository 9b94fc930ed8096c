//! Measures from which size on one copy is better than two, for each relation that this machine's CPUs have.

mod mover;

use std::thread;
use std::time::{Duration, Instant};

use btl::Btl;

use crate::config::{Copies, ShmConfig};
use crate::thresholds::Thresholds;
use crate::topology::{Relation, Topology, allowed};
use crate::transport::ShmBtl;
use mover::Mover;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Message sizes in bytes, ascending.
    pub sizes: Vec<usize>,
    /// Rounds, each of both ways by turns; the best of each way counts.
    pub rounds: u32,
    /// Time for one way in one round.
    pub slice: Duration,
    /// Where to read which CPUs share what.
    pub topology: Topology,
}

impl Default for Plan {
    /// 1 KiB to 1 MiB, about two seconds for each relation.
    fn default() -> Self {
        Plan {
            sizes: (10..=20).map(|bits| 1 << bits).collect(),
            rounds: 9,
            slice: Duration::from_millis(10),
            topology: Topology::default(),
        }
    }
}

/// One size, both ways: nanoseconds from the start of the transfer to the receiver's word that it has all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Bytes.
    pub size: usize,
    /// Through shared memory.
    pub two_copies: f64,
    /// By cross-memory attach; `None`: refused here.
    pub one_copy: Option<f64>,
}

/// One pair of CPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What they share.
    pub relation: Relation,
    /// Which two.
    pub cpus: (u32, u32),
    /// All sizes.
    pub points: Vec<Point>,
    /// From this size on one copy was better at every size measured; `None`: it never was.
    pub switch_over: Option<usize>,
}

/// What the thresholds become with these results; relations that the machine does not have keep theirs.
#[must_use]
pub fn thresholds(measured: &[Measured], before: Thresholds) -> Thresholds {
    let mut now = before;
    for one in measured {
        let from = one.switch_over.unwrap_or(usize::MAX);
        match one.relation {
            Relation::SharedCache => now.shared_cache = from,
            Relation::SameSocket => now.same_socket = from,
            Relation::OtherSocket => now.other_socket = from,
            Relation::Unknown => {}
        }
    }
    now
}

/// Measures each relation among the CPUs that the calling thread may run on, with two threads pinned to two CPUs. The kernel
/// copies between threads of one process as it does between processes.
///
/// # Errors
/// In words: only one CPU, no shared memory, a thread that could not be pinned.
pub fn measure(plan: &Plan) -> Result<Vec<Measured>, String> {
    let pairs = plan.topology.pairs(&allowed(None));
    if pairs.is_empty() {
        return Err("this process may run on one CPU only: there are no two to measure between".into());
    }
    pairs.into_iter().map(|(relation, cpus)| measure_pair(plan, relation, cpus)).collect()
}

fn measure_pair(plan: &Plan, relation: Relation, cpus: (u32, u32)) -> Result<Measured, String> {
    let longest = plan.sizes.iter().copied().max().unwrap_or(0);
    let mut ranks = [0, 1].map(|rank| {
        let mut config = ShmConfig::new(rank, 2, format!("tune-{}-{cpus:?}", std::process::id()));
        config.copies = Copies::OneIfAllowed;
        ShmBtl::new(config).map_err(|error| error.to_string())
    });
    let [one, other] = &mut ranks;
    let (one, other) = (one.as_mut().map_err(|e| e.clone())?, other.as_mut().map_err(|e| e.clone())?);
    let (cards, unreachable) = ([one.address(), other.address()], |error: btl::Unreachable| error.reason);
    let path = one.add_peer(1, &cards[1]).map_err(unreachable)?;
    other.add_peer(0, &cards[0]).map_err(unreachable)?;
    let points = thread::scope(|scope| {
        let server = scope.spawn(|| {
            pin(cpus.1)?;
            Mover::new(longest).serve(other)
        });
        let client = scope.spawn(|| {
            let result = pin(cpus.0).and_then(|()| points(plan, one, path.one_sided, path.max_send, longest));
            // Also after a failure, for the other thread waits.
            let stopped = Mover::new(0).stop(one, 1);
            result.and_then(|points| stopped.map(|()| points))
        });
        let points = client.join().map_err(|_| "the measuring thread ended".to_owned())?;
        let served = server.join().map_err(|_| "the answering thread ended".to_owned())?;
        points.and_then(|points| served.map(|()| points))
    })?;
    let switch_over = switch_over(&points);
    Ok(Measured { relation, cpus, points, switch_over })
}

fn points(
    plan: &Plan,
    btl: &mut ShmBtl,
    one_sided: bool,
    piece: usize,
    longest: usize,
) -> Result<Vec<Point>, String> {
    let mut data = vec![2u8; longest];
    let mut mover = Mover::new(0);
    let key = if one_sided { Some(Mover::offer(btl, &mut data)?) } else { None };
    let mut points = Vec::new();
    for &size in &plan.sizes {
        let (mut two, mut one) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..plan.rounds.max(1) {
            two = two.min(timed(plan.slice, || mover.two_copies(btl, 1, &data[..size], piece))?);
            if let Some(key) = &key {
                one = one.min(timed(plan.slice, || mover.one_copy(btl, 1, key, (0, size)))?);
            }
        }
        points.push(Point { size, two_copies: two, one_copy: key.is_some().then_some(one) });
    }
    Ok(points)
}

/// Nanoseconds of one call: the best average over a hundredth of a slice of time (one call at least), for the machine may do other
/// things, too.
fn timed(slice: Duration, mut call: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed() < slice {
        let instant = Instant::now();
        let mut calls = 0u32;
        while calls == 0 || instant.elapsed() < slice / 100 {
            call()?;
            calls += 1;
        }
        best = best.min(instant.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    Ok(best)
}

/// The size from which on one copy is never worse again.
fn switch_over(points: &[Point]) -> Option<usize> {
    let better = |point: &Point| point.one_copy.is_some_and(|one| one < point.two_copies);
    points.iter().rev().take_while(|point| better(point)).last().map(|point| point.size)
}

fn pin(cpu: u32) -> Result<(), String> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu as usize >= rustix::thread::CpuSet::MAX_CPU {
        return Err(format!("CPU {cpu} is beyond what can be pinned to"));
    }
    set.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| format!("pinning to CPU {cpu}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(size: usize, two_copies: f64, one_copy: f64) -> Point {
        Point { size, two_copies, one_copy: Some(one_copy) }
    }

    #[test]
    fn the_switch_is_where_one_copy_stays_better() {
        assert_eq!(switch_over(&[point(1, 1.0, 2.0), point(2, 2.0, 2.0), point(4, 4.0, 3.0)]), Some(4));
        assert_eq!(switch_over(&[point(1, 2.0, 1.0), point(2, 1.0, 2.0), point(4, 4.0, 3.0)]), Some(4));
        assert_eq!(switch_over(&[point(1, 2.0, 1.0), point(2, 3.0, 2.0)]), Some(1));
        assert_eq!(switch_over(&[point(1, 2.0, 1.0), point(2, 1.0, 2.0)]), None);
        assert_eq!(switch_over(&[Point { size: 1, two_copies: 1.0, one_copy: None }]), None);
    }

    #[test]
    fn only_what_was_measured_changes() {
        let one = |relation, switch_over| Measured { relation, cpus: (0, 1), points: vec![], switch_over };
        let before = Thresholds::default();
        let now =
            thresholds(&[one(Relation::SharedCache, Some(77)), one(Relation::OtherSocket, None)], before);
        let expected = Thresholds { shared_cache: 77, other_socket: usize::MAX, ..before };
        assert_eq!(now, expected);
    }

    #[test]
    fn a_measurement_has_all_its_numbers() {
        let plan = Plan {
            sizes: vec![1, 1000, 200_000],
            rounds: 1,
            slice: Duration::from_millis(1),
            ..Plan::default()
        };
        match measure(&plan) {
            Ok(measured) => {
                assert!(!measured.is_empty());
                for one in measured {
                    assert_eq!(one.points.iter().map(|p| p.size).collect::<Vec<_>>(), plan.sizes);
                    assert!(one.points.iter().all(|p| p.two_copies > 0.0 && p.two_copies.is_finite()));
                }
            }
            Err(why) => assert!(allowed(None).len() < 2, "{why}"),
        }
    }
}
