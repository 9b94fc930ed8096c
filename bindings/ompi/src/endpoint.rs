//! Peers as reached through one rail, and through one module.
//!
//! Open MPI has one module per local interface and stripes messages over those that reach a peer.
//! An interface has a rail for each carrier, raw Ethernet and UDP; short and long messages of a
//! module may use different ones. A local rail may be connected to any rail of a peer that has the
//! same carrier, so the transport of a rail has one rank for each *rail* of each process: a
//! [`RemoteRail`].

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use btl::{PeerInfo, Rank};

/// Maximum number of interfaces of a process, each with a module; further ones are not used. Equals
/// `ESP_SENDING` in `shim/shim.h`.
pub(crate) const MAX_INTERFACES: usize = 4;
/// Maximum number of rails of a process: two carriers for each interface.
pub(crate) const MAX_RAILS: usize = 2 * MAX_INTERFACES;
#[allow(clippy::cast_possible_truncation)] // a small number
const RANKS_PER_PROCESS: Rank = MAX_RAILS as Rank;

/// A rail of a process, as a rank of a rail's transport.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RemoteRail(pub(crate) Rank);

impl RemoteRail {
    /// Returns `None` if `rail` or `process` exceeds the maximum.
    pub(crate) fn new(process: Rank, rail: usize) -> Option<RemoteRail> {
        let rail = Rank::try_from(rail)
            .ok()
            .filter(|rail| *rail < RANKS_PER_PROCESS)?;
        let first = process.checked_mul(RANKS_PER_PROCESS)?;
        first.checked_add(rail).map(RemoteRail)
    }

    /// Returns the rank of the process within the MPI job.
    pub(crate) fn process(self) -> Rank {
        self.0 / RANKS_PER_PROCESS
    }

    /// Returns the index among the process's rails.
    pub(crate) fn number(self) -> usize {
        (self.0 % RANKS_PER_PROCESS) as usize
    }
}

/// Returns the number of ranks that the transport of a rail needs for a job of `size` processes.
pub(crate) fn transport_size(size: u32) -> Option<u32> {
    size.checked_mul(RANKS_PER_PROCESS)
}

/// A peer as reached through one rail: the local rail and the peer's (`struct esp_endpoint`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    pub(crate) rail: u32,
    pub(crate) remote: RemoteRail,
}

/// A peer as reached through one module (`struct mca_btl_base_endpoint_t`). A message is short if
/// it fits into one frame of the rail: each further frame costs another pass through the kernel
/// with raw Ethernet, but little with UDP.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModuleEndpoint {
    /// Endpoint of short messages.
    pub(crate) short: Endpoint,
    /// Endpoint of long messages.
    pub(crate) long: Endpoint,
}

/// Chooses the rails of a module to a peer as the point-to-point layer does: of those with the
/// highest exclusivity, the one with the lowest latency for short messages and the one with the
/// highest bandwidth for long ones. Returns `None` if no rail reaches the peer.
pub(crate) fn choose(reached: &[(Endpoint, PeerInfo)]) -> Option<ModuleEndpoint> {
    let best = reached.iter().map(|(_, info)| info.exclusivity).max()?;
    let usable = reached.iter().filter(|(_, info)| info.exclusivity == best);
    let (short, _) = usable.clone().min_by_key(|(_, info)| info.latency_ns)?;
    // Of equal rails, `max_by_key` returns the last one, but the first is preferred.
    let (long, _) = usable.rev().max_by_key(|(_, info)| info.bandwidth)?;
    Some(ModuleEndpoint {
        short: *short,
        long: *long,
    })
}

/// Endpoints for replies to peers, created when a message first needs one. Open MPI may keep them,
/// so they live as long as the process; there is at most one for each rail of each peer.
#[derive(Debug, Default)]
pub(crate) struct Sources(Mutex<HashMap<Endpoint, &'static ModuleEndpoint>>);

/// The reply endpoints of this process.
pub(crate) static SOURCES: LazyLock<Sources> = LazyLock::new(Sources::default);

impl Sources {
    /// Returns the endpoint for replies to a peer through the rail that its message took.
    pub(crate) fn reply_to(&self, source: Endpoint) -> &'static ModuleEndpoint {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || ModuleEndpoint {
            short: source,
            long: source,
        };
        all.entry(source)
            .or_insert_with(|| Box::leak(Box::new(new())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_of_all_processes_are_numbered_without_gaps() {
        let mut next = 0;
        for process in 0..3 {
            for rail in 0..MAX_RAILS {
                let remote = RemoteRail::new(process, rail).unwrap();
                assert_eq!(
                    (remote.0, remote.process(), remote.number()),
                    (next, process, rail)
                );
                next += 1;
            }
        }
        assert_eq!(transport_size(3), Some(next));
        assert_eq!(RemoteRail::new(0, MAX_RAILS), None);
        assert_eq!(RemoteRail::new(u32::MAX, 0), None);
        assert_eq!(transport_size(u32::MAX), None);
    }

    #[test]
    fn each_source_has_one_endpoint_for_replies() {
        let sources = Sources::default();
        let endpoint = |rail, remote| Endpoint {
            rail,
            remote: RemoteRail(remote),
        };
        let first = sources.reply_to(endpoint(1, 9));
        assert_eq!((first.short, first.long), (endpoint(1, 9), endpoint(1, 9)));
        assert_eq!(sources.reply_to(endpoint(0, 9)).short, endpoint(0, 9));
        assert!(std::ptr::eq(first, sources.reply_to(endpoint(1, 9))));
    }

    #[test]
    fn short_messages_take_the_least_latency_and_long_ones_the_highest_bandwidth() {
        let rail = |rail, exclusivity, latency_ns, bandwidth| {
            let endpoint = Endpoint {
                rail,
                remote: RemoteRail(7),
            };
            let info = PeerInfo {
                exclusivity,
                latency_ns,
                bandwidth,
                ..PeerInfo::default()
            };
            (endpoint, info)
        };
        let chosen = |rails: &[_]| choose(rails).map(|all| (all.short.rail, all.long.rail));
        let (lease, udp) = (rail(0, 100, 5000, 500), rail(1, 100, 7000, 2000));
        assert_eq!(chosen(&[lease.clone(), udp.clone()]), Some((0, 1)));
        assert_eq!(chosen(&[lease]), Some((0, 0)));
        let daemon = rail(0, 90, 30_000, 500);
        assert_eq!(chosen(&[daemon.clone(), udp]), Some((1, 1)));
        assert_eq!(chosen(&[daemon]), Some((0, 0)));
        assert_eq!(chosen(&[rail(3, 1, 1, 1), rail(2, 1, 1, 1)]), Some((3, 3)));
        assert_eq!(chosen(&[]), None);
    }
}
