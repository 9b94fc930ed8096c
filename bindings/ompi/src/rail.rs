//! One rail: a local interface with one of its carriers, and its transport.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use btl::SharedTransport;
use btl_eth::EthBtl;

use crate::endpoint::{Endpoint, RemoteRail};
use crate::queued::Queued;

/// A local interface with one carrier, and its transport.
pub(crate) struct Rail {
    pub(crate) number: usize,
    /// Number of the interface's module.
    pub(crate) module: AtomicUsize,
    /// Maximum length of a message of Open MPI that one frame carries, in bytes.
    pub(crate) frame_room: AtomicUsize,
    pub(crate) transport: SharedTransport<EthBtl, Queued>,
    /// Set if `PeerDirectory::deferred` has peers for this rail.
    pub(crate) has_deferred: AtomicBool,
}

impl Rail {
    pub(crate) const fn new(number: usize) -> Rail {
        Rail {
            number,
            module: AtomicUsize::new(0),
            frame_room: AtomicUsize::new(0),
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
