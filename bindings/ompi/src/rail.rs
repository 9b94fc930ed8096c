//! A rail: a local interface with one of its carriers, its transport, its progress, and its
//! incoming messages.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use btl::{Btl, Events, MAX_HEADER, PeerError, Rank, SharedTransport, Tx};
use btl_eth::EthBtl;

use crate::endpoint::{Endpoint, RemoteRail};
use crate::ffi;
use crate::header::Header;
use crate::queued::Queued;
use crate::runtime::Runtime;

const _: () = assert!(MAX_HEADER >= 48, "the longest header of this component");

/// A local interface with one carrier, and its transport.
pub(crate) struct Rail {
    pub(crate) number: u32,
    /// Number of the interface's module.
    pub(crate) module: AtomicUsize,
    /// Maximum length of a message of Open MPI that one frame carries, in bytes.
    pub(crate) frame_room: AtomicUsize,
    pub(crate) transport: SharedTransport<EthBtl, Queued>,
    /// Set if `PeerDirectory::deferred` has peers for this rail.
    pub(crate) has_deferred: AtomicBool,
}

impl Rail {
    pub(crate) fn new(number: u32) -> Rail {
        Rail {
            number,
            module: AtomicUsize::new(0),
            frame_room: AtomicUsize::new(0),
            transport: SharedTransport::new(),
            has_deferred: AtomicBool::new(false),
        }
    }

    pub(crate) fn endpoint(&self, remote: RemoteRail) -> Endpoint {
        let rail = self.number;
        Endpoint { rail, remote }
    }
}

impl Runtime {
    /// Polls one rail. Returns the number of events, or 0 if another call uses the transport.
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
        // Admission calls Open MPI, which is not allowed after the stop. A peer that connects later
        // finds that this process is leaving.
        if !self.stopping.load(Ordering::SeqCst) {
            self.admit_pending(rail, transport);
        }
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
                    let module = self.rail.module.load(Ordering::Relaxed);
                    ffi::deliver(module, endpoint, tag, body);
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
