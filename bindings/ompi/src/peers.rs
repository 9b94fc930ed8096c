//! Reachability of peers, and its report to the user.
//!
//! Each local interface is connected to one interface of a peer: the one of the same name if it
//! answers, else the next that does, counted from the local interface's number, so that several
//! local interfaces are spread over the peer's.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use btl::{Btl, MAX_HEADER, PeerError, PendingPeers, Rank, Unavailable};
use btl_eth::EthBtl;

use crate::endpoint::{Endpoint, RemoteRail};
use crate::ffi;
use crate::modex::{InterfaceAddress, ModexEntry};
use crate::parameters::Parameters;
use crate::rail::Rail;
use crate::runtime::Runtime;

/// Maximum time that adding a peer waits for a transport that another thread uses. That thread may
/// wait for a lock of the caller.
const ADD_TIMEOUT: Duration = Duration::from_millis(50);

/// Knowledge of the job and its peers.
#[derive(Debug, Default)]
pub(crate) struct PeerDirectory {
    parameters: Parameters,
    /// Names of the local interfaces, by rail.
    interfaces: Vec<String>,
    /// Nodes of peers.
    nodes: HashMap<Rank, String>,
    /// Peers' interfaces in use, by rail.
    reached: HashMap<Rank, Vec<Option<RemoteRail>>>,
    /// Endpoints that their transport has added.
    added: HashSet<Endpoint>,
    /// Endpoints whose connections are refused.
    refused: HashSet<Endpoint>,
    /// Addresses to be added when their rail's transport is free.
    deferred: HashMap<Endpoint, Vec<u8>>,
    /// Nodes that were reported as unreachable.
    reported: HashSet<String>,
}

impl PeerDirectory {
    pub(crate) fn new(parameters: Parameters, interfaces: Vec<String>) -> PeerDirectory {
        PeerDirectory {
            parameters,
            interfaces,
            ..PeerDirectory::default()
        }
    }

    fn interface(&self, rail: usize) -> &str {
        self.interfaces.get(rail).map_or("?", String::as_str)
    }

    /// Returns text such as `rank 0 on node host0, interface eth0,`.
    pub(crate) fn describe_rail(&self, rail: usize) -> String {
        format!("{}, interface {},", self.parameters, self.interface(rail))
    }

    /// Returns text such as `rank 3 on node host3`.
    pub(crate) fn describe(&self, peer: Rank) -> String {
        match self.nodes.get(&peer) {
            Some(node) => format!("rank {peer} on node {node}"),
            None => format!("rank {peer}"),
        }
    }
}

/// Returns the order in which a local interface tries those of a peer, as indices into `theirs`.
fn order(own: &str, rail: usize, theirs: &[InterfaceAddress]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..theirs.len()).collect();
    if !order.is_empty() {
        order.rotate_left(rail % theirs.len());
    }
    order.sort_by_key(|index| theirs[*index].0 != own);
    order
}

/// Result of adding one interface of a peer to a rail.
enum Added {
    Yes,
    No(String),
    /// Another call uses the transport and may wait for a lock of the caller.
    TransportTaken,
}

impl Runtime {
    /// Returns the endpoint of a peer on a rail; `None` if the rail does not reach the peer.
    /// `entry`: the peer's modex entry. The first call for a peer tries all its interfaces on all
    /// rails.
    pub(crate) fn add(&self, rail: usize, peer: Rank, entry: &[u8]) -> Option<Endpoint> {
        let known = self.directory().as_ref()?.reached.get(&peer).cloned();
        let reached = known.unwrap_or_else(|| self.reach(peer, entry));
        let remote = reached.get(rail).copied().flatten()?;
        Some(Endpoint { rail, remote })
    }

    /// Returns the endpoint of a peer on the first rail that reaches it.
    pub(crate) fn add_to_any(&self, peer: Rank, entry: &[u8]) -> Option<Endpoint> {
        (0..self.rails().len()).find_map(|rail| self.add(rail, peer, entry))
    }

    fn reach(&self, peer: Rank, entry: &[u8]) -> Vec<Option<RemoteRail>> {
        let Some(interfaces) = self.decode_entry(peer, entry) else {
            return Vec::new();
        };
        let mut reasons = Vec::new();
        let reached: Vec<_> = self
            .rails()
            .iter()
            .map(|rail| {
                let reached = self.reach_by(rail, peer, &interfaces);
                reached.map_err(|reason| reasons.push(reason)).ok()
            })
            .collect();
        if reached.iter().all(Option::is_none) {
            self.report_unreachable(peer, &reasons.join("; "));
        } else if let Some(directory) = self.directory().as_mut() {
            // A peer that is not reached may be tried again.
            directory.reached.insert(peer, reached.clone());
        }
        reached
    }

    /// Adds the first interface of a peer that answers to a rail.
    fn reach_by(
        &self,
        rail: &Rail,
        peer: Rank,
        interfaces: &[InterfaceAddress],
    ) -> Result<RemoteRail, String> {
        let own = match self.directory().as_ref() {
            Some(directory) => directory.interface(rail.number).to_owned(),
            None => String::new(),
        };
        let mut candidates = Vec::new();
        for index in order(&own, rail.number, interfaces) {
            candidates.extend(RemoteRail::new(peer, index).map(|remote| (remote, index)));
        }
        let mut reasons = Vec::new();
        for (remote, index) in &candidates {
            match self.add_interface(rail, *remote, &interfaces[*index].1) {
                Added::Yes => return Ok(*remote),
                Added::No(reason) => reasons.push(reason),
                Added::TransportTaken => return Ok(self.defer(rail, &candidates, interfaces)),
            }
        }
        let reason = reasons.join("; ");
        self.print_if_verbose(|directory| {
            let (local, peer) = (
                directory.describe_rail(rail.number),
                directory.describe(peer),
            );
            format!("esp: {local} not to {peer}: {reason}")
        });
        Err(reason)
    }

    /// Chooses an interface of a peer without probing it: one that was added before, because the
    /// peer connected first, else the first candidate, which is added at the next poll.
    fn defer(
        &self,
        rail: &Rail,
        candidates: &[(RemoteRail, usize)],
        interfaces: &[InterfaceAddress],
    ) -> RemoteRail {
        let mut directory = self.directory();
        let is_added = |remote: RemoteRail| {
            let added = directory.as_ref().map(|directory| &directory.added);
            added.is_some_and(|added| added.contains(&rail.endpoint(remote)))
        };
        let added = candidates.iter().find(|(remote, _)| is_added(*remote));
        if let Some((remote, _)) = added {
            return *remote;
        }
        let (remote, index) = candidates[0];
        if let Some(directory) = directory.as_mut() {
            let address = interfaces[index].1.clone();
            directory.deferred.insert(rail.endpoint(remote), address);
        }
        rail.has_deferred.store(true, Ordering::SeqCst);
        remote
    }

    fn add_interface(&self, rail: &Rail, remote: RemoteRail, address: &[u8]) -> Added {
        let deadline = Instant::now() + ADD_TIMEOUT;
        loop {
            let add = |place: &mut Option<EthBtl>| match place {
                Some(transport) => self.add_to_transport(rail, transport, remote, address),
                None => Err("this process has left the job".to_owned()),
            };
            match rail.transport.enter(add) {
                Ok(Ok(())) => return Added::Yes,
                Ok(Err(reason)) => return Added::No(reason),
                Err(Unavailable::Absent) => return Added::No("there is no transport".to_owned()),
                Err(Unavailable::Taken) => {}
            }
            if rail.transport.is_mine() || Instant::now() >= deadline {
                return Added::TransportTaken;
            }
            std::thread::yield_now();
        }
    }

    fn add_to_transport(
        &self,
        rail: &Rail,
        transport: &mut EthBtl,
        remote: RemoteRail,
        address: &[u8],
    ) -> Result<(), String> {
        let info = transport.add_peer(remote.0, address).map_err(|error| {
            let prefix = format!("rank {} over Ethernet: ", remote.0);
            let reason = error.reason;
            reason
                .strip_prefix(&prefix)
                .map_or(reason.clone(), str::to_owned)
        })?;
        let needed = self.fragment_size() + MAX_HEADER;
        if info.max_send < needed {
            return Err(format!(
                "it accepts messages of {} bytes, this process sends {needed}: set \
                 btl_esp_eager_limit, btl_esp_max_send_size and btl_esp_rings to the same values \
                 on all nodes",
                info.max_send,
            ));
        }
        let endpoint = rail.endpoint(remote);
        let is_new = match self.directory().as_mut() {
            Some(directory) => directory.added.insert(endpoint),
            None => false,
        };
        if is_new {
            self.print_if_verbose(|directory| {
                let peer = directory.describe(remote.process());
                let reason = info.reason.as_str();
                let reason = reason
                    .strip_suffix("; bandwidth by configuration")
                    .unwrap_or(reason);
                format!("esp: {} to {peer}: {reason}", directory.parameters)
            });
        }
        Ok(())
    }

    /// Adds the peers whose addition was deferred. For the owner of the rail's transport.
    pub(crate) fn add_deferred(&self, rail: &Rail, transport: &mut EthBtl) {
        rail.has_deferred.store(false, Ordering::SeqCst);
        let mut deferred = Vec::new();
        if let Some(directory) = self.directory().as_mut() {
            let of_rail = |endpoint: &Endpoint, _: &mut Vec<u8>| endpoint.rail == rail.number;
            deferred.extend(directory.deferred.extract_if(of_rail));
        }
        for (endpoint, address) in deferred {
            let added = self.add_to_transport(rail, transport, endpoint.remote, &address);
            if let Err(reason) = added {
                let error = PeerError::Lost(format!("not reachable by ESP: {reason}"));
                rail.transport
                    .lend(transport, || self.lose(endpoint, &error));
            }
        }
    }

    /// Adds or refuses a peer that has connected before this process added it, or to another
    /// interface than this process chose. For the owner of the rail's transport.
    pub(crate) fn admit_pending(&self, rail: &Rail, transport: &mut EthBtl) {
        let Some(remote) = transport.pending_peer().map(RemoteRail) else {
            return;
        };
        let endpoint = rail.endpoint(remote);
        let refused_before = match self.directory().as_ref() {
            Some(directory) => directory.refused.contains(&endpoint),
            None => true,
        };
        let reason = if refused_before {
            String::new()
        } else {
            match self.admit(rail, transport, remote) {
                Ok(()) => return,
                Err(reason) => reason,
            }
        };
        // A pending connection that is not refused occupies its place.
        transport.refuse(remote.0, "that process is not reachable from this one");
        if !refused_before {
            if let Some(directory) = self.directory().as_mut() {
                directory.refused.insert(endpoint);
            }
            self.report_unreachable(remote.process(), &reason);
        }
    }

    fn admit(&self, rail: &Rail, transport: &mut EthBtl, remote: RemoteRail) -> Result<(), String> {
        let peer = remote.process();
        let entry = ffi::modex_entry(peer);
        let interfaces = entry.and_then(|entry| self.decode_entry(peer, &entry));
        match interfaces
            .as_deref()
            .unwrap_or_default()
            .get(remote.interface())
        {
            Some((_, address)) => self.add_to_transport(rail, transport, remote, address),
            None => Err("its modex entry does not have the interface that it uses".to_owned()),
        }
    }

    /// Decodes a peer's modex entry. `None`, after a report, if the peer has no interface.
    fn decode_entry(&self, peer: Rank, bytes: &[u8]) -> Option<Vec<InterfaceAddress>> {
        let interfaces = ModexEntry::decode(bytes).and_then(|entry| {
            if let Some(directory) = self.directory().as_mut() {
                directory.nodes.insert(peer, entry.node);
            }
            entry.interfaces
        });
        interfaces
            .map_err(|reason| self.report_unreachable(peer, &reason))
            .ok()
    }

    fn print_if_verbose(&self, text: impl FnOnce(&PeerDirectory) -> String) {
        let directory = self.directory();
        let verbose = directory.as_ref().filter(|d| d.parameters.verbose);
        let text = verbose.map(text);
        // Open MPI is called without the lock.
        drop(directory);
        if let Some(text) = text {
            ffi::print(&text);
        }
    }

    /// Reports an unreachable peer to the user, once for each of its nodes.
    fn report_unreachable(&self, peer: Rank, reason: &str) {
        let mut guard = self.directory();
        let Some(directory) = guard.as_mut() else {
            return;
        };
        let node = directory.nodes.get(&peer).cloned().unwrap_or_default();
        let is_first = directory.reported.insert(node);
        let parameters = &directory.parameters;
        if !(parameters.verbose || parameters.report_errors && is_first) {
            return;
        }
        let peer = directory.describe(peer);
        let text = format!("esp: {parameters} does not reach {peer} by ESP: {reason}");
        drop(guard);
        ffi::print(&text);
        ffi::show_help(c"unreachable");
    }
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn the_same_name_is_tried_first_and_several_interfaces_are_spread() {
        let theirs = ["a", "b", "c"].map(|name| (name.to_owned(), Vec::new()));
        assert_eq!(order("a", 0, &theirs), [0, 1, 2]);
        assert_eq!(order("c", 0, &theirs), [2, 0, 1]);
        assert_eq!(order("x", 1, &theirs), [1, 2, 0]);
        assert_eq!(order("a", 1, &theirs), [0, 1, 2]);
        assert_eq!(order("x", 4, &theirs[..2]), [0, 1]);
        assert!(order("x", 1, &[]).is_empty());
    }
}
