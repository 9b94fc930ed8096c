//! One local interface (rail) and its transport.

use std::sync::atomic::AtomicBool;

use btl::SharedTransport;
use btl_eth::EthBtl;

use crate::endpoint::{Endpoint, RemoteRail};
use crate::queued::Queued;

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
