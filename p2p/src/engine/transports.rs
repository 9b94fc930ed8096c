//! The transports with the protocol state above them.

use std::ops::{Index, IndexMut};

use btl::{Btl, Capabilities};

use super::protocol::Protocol;
use crate::ids::TransportId;

/// A transport and what it can do.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) btl: Box<dyn Btl>,
    pub(crate) capabilities: Capabilities,
}

/// All transports of this process: at most 255.
#[derive(Debug)]
pub(crate) struct Transports(Vec<Transport>);

impl Transports {
    pub(crate) fn new(transports: Vec<Box<dyn Btl>>) -> Transports {
        let with_capabilities = |btl: Box<dyn Btl>| Transport {
            capabilities: btl.capabilities(),
            btl,
        };
        Transports(transports.into_iter().map(with_capabilities).collect())
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Iterates over all ids.
    pub(crate) fn ids(&self) -> impl Iterator<Item = TransportId> + use<> {
        TransportId::all(self.0.len())
    }

    /// Iterates over all transports with their ids.
    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (TransportId, &mut Transport)> {
        TransportId::all(self.0.len()).zip(&mut self.0)
    }

    /// Returns the name of a transport.
    pub(crate) fn name(&self, id: TransportId) -> &'static str {
        self[id].btl.name()
    }

    pub(crate) fn into_btls(self) -> Vec<Box<dyn Btl>> {
        self.0.into_iter().map(|transport| transport.btl).collect()
    }
}

impl Index<TransportId> for Transports {
    type Output = Transport;

    #[inline]
    fn index(&self, id: TransportId) -> &Transport {
        &self.0[id.place()]
    }
}

impl IndexMut<TransportId> for Transports {
    #[inline]
    fn index_mut(&mut self, id: TransportId) -> &mut Transport {
        &mut self.0[id.place()]
    }
}

/// The protocol state with the transports.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) protocol: Protocol,
    pub(crate) transports: Transports,
    pub(super) polls: u32,
}

impl Engine {
    pub(crate) fn new(mut protocol: Protocol, transports: Transports) -> Engine {
        for peer in protocol.peers.ids() {
            let peer = &mut protocol.peers[peer];
            if let Some(primary) = peer.primary() {
                let held_from = transports[primary].capabilities.held_from;
                peer.held_from = held_from.unwrap_or(usize::MAX);
                peer.refresh();
            }
        }
        Engine {
            protocol,
            transports,
            polls: 0,
        }
    }
}
