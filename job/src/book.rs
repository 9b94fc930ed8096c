//! Entries of a job's processes. Those of this node are read at the start; in a large job, the
//! others are read when they are used.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use boot::{BootError, Bootstrap};
use p2p::{AddressBook, PathReport, Rank, TransportAddress};

use crate::modex::ModexEntry;
use crate::report;

/// Key of the bootstrap: entry of a process.
pub(crate) const ADDRESSES: &str = "addresses";

/// Names of nodes, by rank.
pub(crate) type Names = BTreeMap<Rank, String>;

/// Names of the nodes that were looked up.
pub(crate) type Nodes = Arc<Mutex<Names>>;

/// Reads the entry of a process.
pub(crate) fn read_entry(
    boot: &mut Bootstrap,
    peer: Rank,
) -> Result<Result<ModexEntry, String>, BootError> {
    let value = boot.get(peer, ADDRESSES)?;
    let value = value.ok_or_else(|| "it published no addresses".to_owned());
    Ok(value.and_then(|bytes| ModexEntry::decode(&bytes)))
}

/// Addresses of the peers.
pub(crate) struct Book {
    pub(crate) boot: Arc<Mutex<Bootstrap>>,
    pub(crate) own: Rank,
    /// Addresses of the peers that the start reaches.
    pub(crate) near: BTreeMap<Rank, Result<Vec<TransportAddress>, String>>,
    pub(crate) nodes: Nodes,
    /// Transports that could not be created, and why.
    pub(crate) without: Vec<(&'static str, String)>,
    /// Print the paths to peers.
    pub(crate) verbose: bool,
}

impl AddressBook for Book {
    fn is_near(&self, peer: Rank) -> bool {
        self.near.contains_key(&peer)
    }

    fn addresses(&mut self, peer: Rank) -> Result<Vec<TransportAddress>, String> {
        if let Some(known) = self.near.get_mut(&peer) {
            return std::mem::replace(known, Ok(Vec::new()));
        }
        let mut boot = self.boot.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entry = read_entry(&mut boot, peer).map_err(|error| error.to_string())??;
        // The shared-memory transport does not see processes that were not added, and this peer is
        // not near.
        entry.addresses.retain(|address| address.transport != "shm");
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.insert(peer, entry.node);
        Ok(entry.addresses)
    }

    fn explain(&self, reasons: String) -> String {
        reasons + &report::missing(&self.without)
    }

    fn reached(&mut self, paths: &[PathReport]) {
        if !self.verbose {
            return;
        }
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |path| report::path(self.own, &nodes, path) + "\n";
        report::say(&paths.iter().map(line).collect::<String>());
    }
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Book")
            .field("near", &self.near.len())
            .finish_non_exhaustive()
    }
}
