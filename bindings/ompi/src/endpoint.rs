//! Peers as seen by one rail.
//!
//! Open MPI has one module per local interface and stripes messages over those that reach a peer.
//! Any local interface may be connected to any interface of a peer, so the transport of a rail has
//! one rank for each *interface* of each process: a [`RemoteRail`].

use btl::Rank;

/// Maximum number of interfaces of a process. Further ones are not used. `ESP_RAILS` in
/// `shim/shim.h`.
pub(crate) const MAX_RAILS: usize = 4;
#[allow(clippy::cast_possible_truncation)] // a small number
const RANKS_PER_PROCESS: Rank = MAX_RAILS as Rank;

/// Interface of a process, as a rank of a rail's transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RemoteRail(pub(crate) Rank);

impl RemoteRail {
    /// Returns `None` if a process cannot have that many interfaces, or a job that many processes.
    pub(crate) fn new(process: Rank, interface: usize) -> Option<RemoteRail> {
        let interface = Rank::try_from(interface)
            .ok()
            .filter(|interface| *interface < RANKS_PER_PROCESS)?;
        let first = process.checked_mul(RANKS_PER_PROCESS)?;
        first.checked_add(interface).map(RemoteRail)
    }

    /// Rank of the process within the MPI job.
    pub(crate) fn process(self) -> Rank {
        self.0 / RANKS_PER_PROCESS
    }

    /// Index among the process's interfaces.
    pub(crate) fn interface(self) -> usize {
        (self.0 % RANKS_PER_PROCESS) as usize
    }
}

/// Returns the number of ranks that the transport of a rail needs for a job of `size` processes.
pub(crate) fn transport_size(size: u32) -> Option<u32> {
    size.checked_mul(RANKS_PER_PROCESS)
}

/// A peer as reached by one module: a local rail and the peer's interface (`struct esp_endpoint`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    pub(crate) rail: usize,
    pub(crate) remote: RemoteRail,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_all_processes_are_numbered_without_gaps() {
        let mut next = 0;
        for process in 0..3 {
            for interface in 0..MAX_RAILS {
                let remote = RemoteRail::new(process, interface).unwrap();
                assert_eq!(
                    (remote.0, remote.process(), remote.interface()),
                    (next, process, interface)
                );
                next += 1;
            }
        }
        assert_eq!(transport_size(3), Some(next));
        assert_eq!(RemoteRail::new(0, MAX_RAILS), None);
        assert_eq!(RemoteRail::new(u32::MAX, 0), None);
        assert_eq!(transport_size(u32::MAX), None);
    }
}
