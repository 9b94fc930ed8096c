//! One local interface (rail): its transport, its progress and its incoming messages.
//!
//! Open MPI has one module per local interface and stripes messages over those that reach a peer.
//! Any local interface may be connected to any interface of a peer, so the transport of a rail has
//! one rank for each *interface* of each process: a [`RemoteRail`].

use std::sync::atomic::{AtomicBool, Ordering};

use btl::{Btl, Events, MAX_HEADER, PeerError, Rank, SharedTransport, Tx};
use btl_eth::EthBtl;

use crate::ffi;
use crate::header::Header;
use crate::queued::Queued;
use crate::runtime::Runtime;

/// Maximum number of interfaces of a process. Further ones are not used. `ESP_RAILS` in
/// `shim/shim.h`.
pub(crate) const MAX_RAILS: usize = 4;
#[allow(clippy::cast_possible_truncation)] // a small number
const RANKS_PER_PROCESS: Rank = MAX_RAILS as Rank;

const _: () = assert!(MAX_HEADER >= 48, "the longest header of this component");

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

/// A local interface and its transport.
pub(crate) struct Rail {
    pub(crate) number: usize,
    pub(crate) transport: SharedTransport<EthBtl, Queued>,
    /// Set if `PeerDirectory::deferred` has peers for this rail.
    pub(crate) has_deferred: AtomicBool,
}

impl Rail {
    pub(crate) const fn new(number: usize) -> Rail {
        Rail {
            number,
            transport: SharedTransport::new(),
            has_deferred: AtomicBool::new(false),
        }
    }

    pub(crate) fn endpoint(&self, remote: RemoteRail) -> Endpoint {
        Endpoint {
            rail: self.number,
            remote,
        }
    }
}

impl Runtime {
    /// Polls one rail. Returns the number of events; 0 also if another call uses the transport.
    pub(crate) fn poll_rail(&self, rail: &Rail) -> usize {
        let poll = |place: &mut Option<EthBtl>| {
            place
                .as_mut()
                .map_or(0, |transport| self.poll_transport(rail, transport))
        };
        rail.transport.enter(poll).unwrap_or(0)
    }

    pub(crate) fn poll_transport(&self, rail: &Rail, transport: &mut EthBtl) -> usize {
        if rail.has_deferred.load(Ordering::SeqCst) {
            self.add_deferred(rail, transport);
        }
        let events = transport.progress(&mut Inbox {
            runtime: self,
            rail,
        });
        self.admit_pending(rail, transport);
        events + rail.transport.drain(transport)
    }
}

/// Handles the events of a rail's transport.
struct Inbox<'a> {
    runtime: &'a Runtime,
    rail: &'a Rail,
}

impl Inbox<'_> {
    fn handle(&self, endpoint: Endpoint, header: &[u8], body: &[u8]) {
        let runtime = self.runtime;
        let violation = |what: String| runtime.lose(endpoint, &PeerError::Violation(what));
        match Header::decode(header) {
            Some(Header::Active { tag }) => {
                if !runtime.stopping.load(Ordering::Relaxed) {
                    ffi::deliver(self.rail.number, tag, body);
                }
            }
            Some(_) if runtime.replies_overrun() => {
                violation("it requests data faster than it accepts the replies".to_owned());
            }
            Some(request) if runtime.handle_onesided(endpoint, request, body) => {}
            _ => violation(format!(
                "invalid message of this component, header of {} bytes",
                header.len()
            )),
        }
    }
}

impl Events for Inbox<'_> {
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        let endpoint = self.rail.endpoint(RemoteRail(peer));
        self.rail
            .transport
            .lend(tx, || self.handle(endpoint, header, body));
    }

    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {
        // This component never calls the transport's own `get` and `put`.
    }

    fn failed(&mut self, tx: &mut dyn Tx, peer: Rank, error: PeerError) {
        let endpoint = self.rail.endpoint(RemoteRail(peer));
        self.rail
            .transport
            .lend(tx, || self.runtime.lose(endpoint, &error));
    }
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
