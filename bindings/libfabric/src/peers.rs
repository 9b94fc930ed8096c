//! The peers of an endpoint: addresses of the program, and numbers of the layer.

use std::ffi::c_int;
use std::sync::PoisonError;

use p2p::Rank;

use crate::core::{Core, lock};
use crate::ffi::{EINVAL, FI_ADDR_UNSPEC};
use crate::vector::{Name, decode};

/// Number of a peer that the layer does not know.
const UNKNOWN: Rank = Rank::MAX;

/// Maps addresses to the layer's numbers of peers, and the reverse.
#[derive(Debug, Default)]
pub(crate) struct Map {
    peers: Vec<Rank>,
    addresses: Vec<u64>,
}

impl Core {
    /// Declares the peer of an address that was inserted.
    pub(crate) fn learn(&self, address: u64, name: &Name) {
        let Ok(layer) = self.layer() else {
            lock(&self.early).push((address, *name));
            return;
        };
        let peer = decode(name).and_then(|(identity, addresses)| {
            // A name of this endpoint in another form still denotes this endpoint.
            layer.add_peer(identity, addresses).ok()
        });
        let Some(peer) = peer else { return };
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let Ok(place) = usize::try_from(address) else {
            return;
        };
        if map.peers.len() <= place {
            map.peers.resize(place + 1, UNKNOWN);
        }
        map.peers[place] = peer;
        if map.addresses.len() <= peer as usize {
            map.addresses.resize(peer as usize + 1, FI_ADDR_UNSPEC);
        }
        if map.addresses[peer as usize] == FI_ADDR_UNSPEC {
            map.addresses[peer as usize] = address;
        }
    }

    /// Forgets an address that was removed. Another address of its peer, if there is one, becomes
    /// the source of its messages.
    pub(crate) fn forget(&self, address: u64) {
        lock(&self.early).retain(|early| early.0 != address);
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let place = usize::try_from(address).unwrap_or(usize::MAX);
        let Some(known) = map.peers.get_mut(place) else {
            return;
        };
        let peer = std::mem::replace(known, UNKNOWN);
        if map.addresses.get(peer as usize) == Some(&address) {
            let other = map.peers.iter().position(|known| *known == peer);
            map.addresses[peer as usize] = other.map_or(FI_ADDR_UNSPEC, |other| other as u64);
        }
    }

    /// Returns the peer of an address.
    #[inline]
    pub(crate) fn peer(&self, address: u64) -> Result<Rank, c_int> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let place = usize::try_from(address).unwrap_or(usize::MAX);
        let peer = map.peers.get(place).copied();
        peer.filter(|peer| *peer != UNKNOWN).ok_or(-EINVAL)
    }

    pub(crate) fn address(&self, peer: Rank) -> u64 {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let known = map.addresses.get(peer as usize).copied();
        known.unwrap_or(FI_ADDR_UNSPEC)
    }
}
