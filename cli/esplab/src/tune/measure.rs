//! Messages by one copy beside two, between each kind of pair of CPUs that this machine has:
//! through the whole point-to-point layer, because its requests and the other side's work are part
//! of the cost.

use std::thread;

use btl::Btl;
use p2p::{Config, P2p, Setup, TransportAddress};
use shm_btl::topology::{Relation, Topology, allowed};
use shm_btl::{ShmBtl, ShmConfig, Thresholds};

use bench::intra::ours;
use bench::intra::work::{WINDOW, Work};
use bench::samples::median;

/// Result for one relation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) relation: Relation,
    /// The two CPUs measured.
    pub(super) cpus: (u32, u32),
    /// Size in bytes from which on one copy is faster at every size measured; `None` if it never
    /// is.
    pub(super) threshold: Option<usize>,
    /// Why the system refuses one copy.
    pub(super) refused: Option<String>,
}

/// Measures each relation among the CPUs that the calling thread may run on, with two threads
/// pinned to two CPUs; the kernel copies between threads of one process as it does between
/// processes. Takes two seconds for each relation; `quick`: half a second.
///
/// # Errors
/// In words: only one CPU, no shared memory, a thread that could not be pinned.
pub(super) fn measure(quick: bool) -> Result<Vec<Measured>, String> {
    let pairs = Topology::default().pairs(&allowed(None));
    if pairs.is_empty() {
        return Err("this process may run on one CPU only: nothing to measure between".into());
    }
    let one = |(relation, cpus)| measure_pair(quick, relation, cpus);
    pairs.into_iter().map(one).collect()
}

fn measure_pair(quick: bool, relation: Relation, cpus: (u32, u32)) -> Result<Measured, String> {
    // Two copies at every length, and one copy at every length.
    let ([two, other_two], _) = layers(&format!("two {cpus:?}"), usize::MAX)?;
    let ([one, other_one], refused) = layers(&format!("one {cpus:?}"), 1)?;
    let gains = match refused {
        Some(_) => Vec::new(),
        None => thread::scope(|scope| {
            // Both ends do the same work in the same order. One that fails drops its layers, which
            // fails the other.
            let first = scope.spawn(|| measure_end(quick, cpus.0, [two, one]));
            let second = scope.spawn(|| measure_end(quick, cpus.1, [other_two, other_one]));
            let ended = |_| "a measuring thread ended".to_owned();
            let (first, second) = (first.join().map_err(ended)?, second.join().map_err(ended)?);
            let gains = first?;
            second.map(|_| gains)
        })?,
    };
    Ok(Measured {
        relation,
        cpus,
        threshold: threshold(&gains),
        refused,
    })
}

/// Returns the size from which on one copy is faster. `gains`: sizes, ascending, and how many times
/// as fast one copy is.
fn threshold(gains: &[(usize, f64)]) -> Option<usize> {
    let faster = gains.iter().rev().take_while(|(_, gain)| *gain > 1.0);
    faster.last().map(|(size, _)| *size)
}

/// Measures at one end: windows of messages with one buffer, and with a buffer for each message,
/// alternating between two copies and one. Only the gains of rank 0 are valid.
fn measure_end(quick: bool, cpu: u32, layers: [P2p; 2]) -> Result<Vec<(usize, f64)>, String> {
    let failed = |error: p2p::Error| error.to_string();
    lab::pin(&[cpu as usize]).map_err(|error| error.to_string())?;
    let (rounds, bytes) = if quick { (1, 4 << 20) } else { (5, 32 << 20) };
    let comms = layers.each_ref().map(P2p::world);
    let mut gains = Vec::new();
    for size in (11..=20).map(|bits| 1usize << bits) {
        let count = (bytes / (size * WINDOW)).clamp(2, 200);
        let mut gain = 1.0;
        for buffers in [1, WINDOW] {
            let work = Work::windows(size, count, buffers, false);
            let mut samples = [const { Vec::new() }; 2];
            for _ in 0..rounds {
                for (comm, samples) in comms.iter().zip(&mut samples) {
                    let times = ours::run(comm, &work).map_err(failed)?;
                    samples.extend(times.into_iter().flat_map(|(_, times)| times));
                }
            }
            let [two, one] = samples
                .map(|nanos| median(&nanos.iter().map(|nanos| *nanos as f64).collect::<Vec<_>>()));
            gain *= (two / one).sqrt();
        }
        gains.push((size, gain));
    }
    layers
        .into_iter()
        .try_for_each(P2p::finalize)
        .map_err(failed)?;
    Ok(gains)
}

/// Starts a layer for each end, over shared memory alone, with one copy from `from` bytes on. Also
/// returns why one copy is refused, if it is.
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
    let cards = transports.each_ref().map(|shm| TransportAddress {
        transport: shm.name().into(),
        address: shm.address(),
    });
    let start = |(rank, shm): (u32, ShmBtl)| {
        let config = Config {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_where_one_copy_stays_faster() {
        let found =
            |gains: &[f64]| threshold(&(1..).zip(gains.iter().copied()).collect::<Vec<_>>());
        assert_eq!(found(&[0.8, 1.0, 1.2]), Some(3));
        assert_eq!(found(&[1.5, 0.5, 1.5]), Some(3));
        assert_eq!(found(&[1.5, 1.1]), Some(1));
        assert_eq!(found(&[1.5, 0.9]), None);
        assert_eq!(found(&[]), None);
    }
}
