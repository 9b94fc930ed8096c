//! Reachability of peers, and its report to the user.
//!
//! Each local rail is connected to one rail of a peer that has the same carrier: that of the
//! interface with the same name if it answers, or else the next one that answers, counted from the
//! local interface's number, so that several local interfaces are spread over the peer's.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use btl::{Btl, MAX_HEADER, PeerError, PeerInfo, PendingPeers, Rank};
use btl_eth::{Carrier, EthBtl};

use crate::endpoint::{self, Endpoint, ModuleEndpoint, RemoteRail};
use crate::ffi;
use crate::modex::{ModexEntry, RailAddress};
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
    /// The local rails, as published.
    locals: Vec<RailAddress>,
    /// Nodes of peers.
    nodes: HashMap<Rank, String>,
    /// Peers' rails in use, by local rail.
    reached: HashMap<Rank, Vec<Option<Reached>>>,
    /// Properties of the endpoints that their transport has added.
    added: HashMap<Endpoint, PeerInfo>,
    /// Endpoints whose connections are refused.
    refused: HashSet<Endpoint>,
    /// Addresses to be added when their rail's transport is free.
    deferred: HashMap<Endpoint, Vec<u8>>,
    /// Nodes that were reported as unreachable.
    reported: HashSet<String>,
}

/// A peer's rail that a local one reaches, and its properties: minimum values if it is not added
/// yet.
type Reached = (RemoteRail, PeerInfo);

impl PeerDirectory {
    pub(crate) fn new(parameters: Parameters, locals: Vec<RailAddress>) -> PeerDirectory {
        PeerDirectory {
            parameters,
            locals,
            ..PeerDirectory::default()
        }
    }

    /// Returns text such as `rank 0 on node host0, interface eth0,`, or `eth0/udp` over UDP.
    pub(crate) fn describe_rail(&self, rail: u32) -> String {
        let local = self.locals.get(rail as usize);
        let interface = local.map_or("?", |local| local.interface.as_str());
        let carrier = match local.map(|local| local.carrier) {
            Some(Carrier::Udp) => "/udp",
            Some(Carrier::Raw) | None => "",
        };
        format!("{}, interface {interface}{carrier},", self.parameters)
    }

    /// Returns text such as `rank 3 on node host3`.
    pub(crate) fn describe(&self, peer: Rank) -> String {
        match self.nodes.get(&peer) {
            Some(node) => format!("rank {peer} on node {node}"),
            None => format!("rank {peer}"),
        }
    }
}

/// Returns the order in which a local rail tries a peer's rails, as indices into `theirs`.
/// `module`: number of the local interface.
fn order(own: &RailAddress, module: usize, theirs: &[RailAddress]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..theirs.len()).collect();
    order.retain(|index| theirs[*index].carrier == own.carrier);
    let first = module.checked_rem(order.len()).unwrap_or(0);
    order.rotate_left(first);
    order.sort_by_key(|index| theirs[*index].interface != own.interface);
    order
}

impl Runtime {
    /// Returns the endpoint of a peer for a module; `None` if none of its rails reaches the peer.
    /// `entry`: the peer's modex entry. The first call for a peer tries all its rails with all
    /// local ones.
    pub(crate) fn add(&self, module: usize, peer: Rank, entry: &[u8]) -> Option<ModuleEndpoint> {
        let known = self.directory().reached.get(&peer).cloned();
        let reached = known.unwrap_or_else(|| self.reach(peer, entry));
        let rails = self.rails().iter().zip(reached);
        let of_module = rails.filter_map(|(rail, reached)| {
            let (remote, info) = reached?;
            let is_mine = rail.module.load(Ordering::Relaxed) == module;
            is_mine.then(|| (rail.endpoint(remote), info))
        });
        endpoint::choose(&of_module.collect::<Vec<_>>())
    }

    fn reach(&self, peer: Rank, entry: &[u8]) -> Vec<Option<Reached>> {
        let Some(theirs) = self.decode_entry(peer, entry) else {
            return Vec::new();
        };
        let mut reasons = Vec::new();
        let mut reach = |rail| {
            let reached = self.reach_by(rail, peer, &theirs);
            reached.map_err(|reason| reasons.push(reason)).ok()
        };
        let reached: Vec<_> = self.rails().iter().map(&mut reach).collect();
        if reached.iter().all(Option::is_none) {
            self.report_unreachable(peer, &reasons.join("; "));
        } else {
            // A peer that is not reached may be tried again.
            self.directory().reached.insert(peer, reached.clone());
        }
        reached
    }

    /// Adds the first rail of a peer that answers a local one.
    fn reach_by(&self, rail: &Rail, peer: Rank, theirs: &[RailAddress]) -> Result<Reached, String> {
        let local = self.directory().locals.get(rail.number as usize).cloned();
        let local = local.ok_or("this process has no such rail")?;
        let mut candidates = Vec::new();
        for index in order(&local, rail.module.load(Ordering::Relaxed), theirs) {
            candidates.extend(RemoteRail::new(peer, index).map(|remote| (remote, index)));
        }
        let mut reasons = Vec::new();
        for &(remote, index) in &candidates {
            match self.add_remote(rail, remote, &theirs[index].address) {
                Some(Ok(info)) => return Ok((remote, info)),
                Some(Err(reason)) => reasons.push(reason),
                None => return Ok(self.defer(rail, &candidates, theirs)),
            }
        }
        if candidates.is_empty() {
            reasons.push(match local.carrier {
                Carrier::Raw => "it has no interface with raw Ethernet".to_owned(),
                Carrier::Udp => "it has no interface with UDP".to_owned(),
            });
        }
        let reason = reasons.join("; ");
        self.print_if_verbose(|directory| {
            let local = directory.describe_rail(rail.number);
            let peer = directory.describe(peer);
            format!("esp: {local} has no path to {peer}: {reason}")
        });
        Err(reason)
    }

    /// Chooses a rail of a peer without probing it: one that was added earlier because the peer
    /// connected first, or else the first candidate, which is added at the next poll.
    fn defer(
        &self,
        rail: &Rail,
        candidates: &[(RemoteRail, usize)],
        theirs: &[RailAddress],
    ) -> Reached {
        let mut directory = self.directory();
        let added = |remote| directory.added.get(&rail.endpoint(remote)).cloned();
        let mut known = candidates
            .iter()
            .filter_map(|&(remote, _)| Some((remote, added(remote)?)));
        if let Some(reached) = known.next() {
            return reached;
        }
        let (remote, index) = candidates[0];
        let address = theirs[index].address.clone();
        directory.deferred.insert(rail.endpoint(remote), address);
        rail.has_deferred.store(true, Ordering::SeqCst);
        (remote, PeerInfo::default())
    }

    /// Adds one rail of a peer to a local one. Returns `None` if another call uses the transport:
    /// it may be waiting for a lock of the caller.
    fn add_remote(
        &self,
        rail: &Rail,
        remote: RemoteRail,
        address: &[u8],
    ) -> Option<Result<PeerInfo, String>> {
        let deadline = Instant::now() + ADD_TIMEOUT;
        loop {
            let add = |place: &mut Option<EthBtl>| match place {
                Some(transport) => self.add_to_transport(rail, transport, remote, address),
                None => Err("this process has left the job".to_owned()),
            };
            if let Some(result) = rail.transport.enter(add) {
                return Some(result);
            }
            if rail.transport.is_mine() || Instant::now() >= deadline {
                return None;
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
    ) -> Result<PeerInfo, String> {
        let info = transport.add_peer(remote.0, address).map_err(|error| {
            let prefix = format!("rank {} over Ethernet: ", remote.0);
            let reason = error.reason.strip_prefix(&prefix);
            reason.unwrap_or(&error.reason).to_owned()
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
        let known = self.directory().added.insert(endpoint, info.clone());
        if known.is_none() {
            self.print_if_verbose(|directory| {
                let (own, reason) = (&directory.parameters, &info.reason);
                let peer = directory.describe(remote.process());
                format!("esp: {own} to {peer}: {reason}")
            });
        }
        Ok(info)
    }

    /// Adds the peers whose addition was deferred. The caller must own the rail's transport.
    pub(crate) fn add_deferred(&self, rail: &Rail, transport: &mut EthBtl) {
        rail.has_deferred.store(false, Ordering::SeqCst);
        let of_rail = |endpoint: &Endpoint, _: &mut Vec<u8>| endpoint.rail == rail.number;
        let deferred: Vec<_> = self.directory().deferred.extract_if(of_rail).collect();
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
    /// interface than this process chose. The caller must own the rail's transport.
    pub(crate) fn admit_pending(&self, rail: &Rail, transport: &mut EthBtl) {
        let Some(remote) = transport.pending_peers().first().copied().map(RemoteRail) else {
            return;
        };
        let endpoint = rail.endpoint(remote);
        let mut refusal = None;
        if !self.directory().refused.contains(&endpoint) {
            match self.admit(rail, transport, remote) {
                Ok(()) => return,
                Err(reason) => refusal = Some(reason),
            }
        }
        // A pending connection that is not refused occupies its place.
        transport.refuse(remote.0, "that process is not reachable from this one");
        if let Some(reason) = refusal {
            self.directory().refused.insert(endpoint);
            self.report_unreachable(remote.process(), &reason);
        }
    }

    fn admit(&self, rail: &Rail, transport: &mut EthBtl, remote: RemoteRail) -> Result<(), String> {
        let peer = remote.process();
        let entry = ffi::modex_entry(peer);
        let theirs = entry.and_then(|entry| self.decode_entry(peer, &entry));
        let theirs = theirs.unwrap_or_default();
        let Some(RailAddress { address, .. }) = theirs.get(remote.number()) else {
            return Err("its modex entry does not contain the rail that it uses".to_owned());
        };
        self.add_to_transport(rail, transport, remote, address)
            .map(drop)
    }

    /// Decodes a peer's modex entry. If the peer has no rail, reports this and returns `None`.
    fn decode_entry(&self, peer: Rank, bytes: &[u8]) -> Option<Vec<RailAddress>> {
        let rails = ModexEntry::decode(bytes).and_then(|entry| {
            self.directory().nodes.insert(peer, entry.node);
            entry.rails
        });
        rails
            .map_err(|reason| self.report_unreachable(peer, &reason))
            .ok()
    }

    fn print_if_verbose(&self, text: impl FnOnce(&PeerDirectory) -> String) {
        let directory = self.directory();
        let text = directory.parameters.verbose.then(|| text(&directory));
        // Open MPI must be called without the lock.
        drop(directory);
        if let Some(text) = text {
            self.print(&text);
        }
    }

    /// Reports an unreachable peer to the user, once for each of its nodes.
    fn report_unreachable(&self, peer: Rank, reason: &str) {
        let mut directory = self.directory();
        let node = directory.nodes.get(&peer).cloned().unwrap_or_default();
        let is_first = directory.reported.insert(node);
        let parameters = &directory.parameters;
        if !(parameters.verbose || parameters.report_errors && is_first) {
            return;
        }
        let peer = directory.describe(peer);
        let text = format!("esp: {parameters} does not reach {peer} by ESP: {reason}");
        drop(directory);
        ffi::print(&text);
        ffi::show_help(c"unreachable");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(interface: &str, carrier: Carrier) -> RailAddress {
        RailAddress {
            interface: interface.into(),
            carrier,
            address: Vec::new(),
        }
    }

    #[test]
    fn the_same_name_is_tried_first_and_several_interfaces_are_spread() {
        let theirs = ["a", "b", "c"].map(|name| rail(name, Carrier::Raw));
        let order = |own: &str, module, theirs| order(&rail(own, Carrier::Raw), module, theirs);
        assert_eq!(order("a", 0, &theirs), [0, 1, 2]);
        assert_eq!(order("c", 0, &theirs), [2, 0, 1]);
        assert_eq!(order("x", 1, &theirs), [1, 2, 0]);
        assert_eq!(order("a", 1, &theirs), [0, 1, 2]);
        assert_eq!(order("x", 4, &theirs[..2]), [0, 1]);
        assert!(order("x", 1, &[]).is_empty());
    }

    #[test]
    fn rails_of_another_carrier_are_not_tried() {
        let (raw, udp) = (Carrier::Raw, Carrier::Udp);
        let theirs = [
            rail("a", raw),
            rail("b", raw),
            rail("a", udp),
            rail("b", udp),
        ];
        assert_eq!(order(&rail("a", udp), 0, &theirs), [2, 3]);
        assert_eq!(order(&rail("c", udp), 1, &theirs), [3, 2]);
        assert_eq!(order(&rail("b", raw), 0, &theirs), [1, 0]);
        assert!(order(&rail("a", udp), 1, &theirs[..2]).is_empty());
    }
}
