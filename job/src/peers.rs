//! Exchange of the processes' entries: addresses of transports, nodes and CPUs.

use std::collections::BTreeMap;

use boot::{BootError, Bootstrap};
use p2p::{Rank, TransportAddress};

use crate::book::{ADDRESSES, Names, read_entry};
use crate::cpus;
use crate::modex::ModexEntry;
use crate::places::{self, Place};

/// Entries and places of the job's processes, as exchanged at the start.
pub(crate) struct Peers {
    own: ModexEntry,
    /// Entries by rank, in a large job of the processes of this node only. An error is the reason
    /// why there is none.
    entries: BTreeMap<Rank, Result<ModexEntry, String>>,
    /// Places by rank.
    places: Vec<Option<Place>>,
}

impl Peers {
    /// Publishes the entry of this process, and reads those of the others. If `is_lazy`, reads the
    /// entries of this node's processes and the places of all.
    pub(crate) fn exchange(
        boot: &mut Bootstrap,
        own: ModexEntry,
        is_lazy: bool,
    ) -> Result<Peers, BootError> {
        boot.put(ADDRESSES, &own.encode())?;
        if is_lazy {
            places::publish(boot, Place::of(&own))?;
        }
        boot.fence()?;
        let (rank, all) = (boot.rank(), 0..boot.size());
        let mut entries = BTreeMap::new();
        let places = if is_lazy {
            let places = places::collect(boot)?;
            for peer in all.filter(|peer| places::is_near(&places, rank, *peer)) {
                entries.insert(peer, read_entry(boot, peer)?);
            }
            places
        } else {
            for peer in all {
                entries.insert(peer, read_entry(boot, peer)?);
            }
            let place = |entry: &Result<ModexEntry, _>| entry.as_ref().ok().map(Place::of);
            entries.values().map(place).collect()
        };
        Ok(Peers {
            own,
            entries,
            places,
        })
    }

    /// Sets what p2p has to know of CPUs and nodes. The other nodes are assumed to have this node's
    /// policy.
    pub(crate) fn configure(&self, config: &mut p2p::Config, by_daemon: bool) {
        config.local_ranks = cpus::busy(Place::of(&self.own), &self.places, by_daemon);
        if config.cpus.is_none() {
            let available = std::thread::available_parallelism();
            let available = available.map_or(usize::MAX, std::num::NonZero::get);
            config.cpus = cpus::together(&self.own, self.entries.values().flatten(), available);
        }
        if config.nodes.is_empty() {
            config.nodes = places::number_nodes(&self.places);
        }
    }

    /// Returns the names of the known nodes.
    pub(crate) fn names(&self) -> Names {
        let entries = self.entries.iter();
        let names = entries.filter_map(|(peer, entry)| Some((*peer, entry.as_ref().ok()?)));
        names
            .map(|(peer, entry)| (peer, entry.node.clone()))
            .collect()
    }

    /// Returns the addresses of the known processes.
    pub(crate) fn into_addresses(self) -> BTreeMap<Rank, Result<Vec<TransportAddress>, String>> {
        let entries = self.entries.into_iter();
        entries
            .map(|(peer, entry)| (peer, entry.map(|entry| entry.addresses)))
            .collect()
    }
}
