//! Probes of peers: which addresses answer which transports.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use btl::{Probe, Rank};

use crate::engine::Transports;
use crate::ids::TransportId;
use crate::types::TransportAddress;

/// Maximum time that a start waits for answers of peers. Nodes whose CPUs are overloaded may take
/// hundreds of milliseconds to answer.
const PROBES: Duration = Duration::from_secs(2);
/// Time after which it no longer waits for further transports to a peer that one transport reaches.
/// Over a router, for example, raw Ethernet never answers.
const OTHERS: Duration = Duration::from_millis(350);
/// Maximum time between two polls that counts as waiting for answers: a process that computes in
/// between does not see them.
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// A transport of this process, and the index and value of a peer's address of its kind.
pub(crate) type Pair<'a> = (TransportId, u8, &'a TransportAddress);

/// Returns the pairs of transports and addresses in the order in which they are tried. `lower`:
/// this process has the lower rank.
pub(crate) fn pairs<'a>(
    transports: &Transports,
    addresses: &'a [TransportAddress],
    lower: bool,
) -> Vec<Pair<'a>> {
    let mut pairs = Vec::new();
    for id in transports.ids() {
        let name = transports.name(id);
        let same = |(_, address): &(u8, &TransportAddress)| address.transport == name;
        let places = (0u8..).zip(addresses).filter(same);
        pairs.extend(places.map(|(place, address)| (id, place, address)));
    }
    pairs.sort_by_key(|(id, place, _)| {
        let (id, place) = (id.place(), usize::from(*place));
        if lower { (id, place) } else { (place, id) }
    });
    pairs
}

/// Probes of peers over all transports at once: first each peer's preferred pairs, in which each
/// transport and address occurs once; after [`OTHERS`], the remaining pairs of peers that have not
/// answered.
#[derive(Debug)]
pub(crate) struct Probes {
    /// The peers with their addresses.
    pub(crate) peers: Vec<(Rank, Vec<TransportAddress>)>,
    /// Time that they have taken; a longer pause between polls counts as [`MAX_PAUSE`].
    waited: Duration,
    last_poll: Option<Instant>,
    /// Maximum time that they take.
    pub(crate) limit: Duration,
    /// Pairs without an answer so far, and those that are not tried yet.
    awaited: Vec<Probed>,
    others: Vec<Probed>,
    /// Pairs whose probe is complete.
    done: Vec<Probed>,
    reached: HashSet<Rank>,
    is_again: bool,
}

/// A pair of addresses that is probed.
#[derive(Clone, Copy, Debug)]
struct Probed {
    /// Index in [`Probes::peers`].
    peer: usize,
    transport: TransportId,
    /// Index of the peer's address.
    address: u8,
}

impl Probes {
    /// Creates the probes of these peers. `own` is the rank of this process.
    pub(crate) fn new(
        transports: &Transports,
        peers: Vec<(Rank, Vec<TransportAddress>)>,
        own: Rank,
    ) -> Probes {
        let (mut awaited, mut others) = (Vec::<Probed>::new(), Vec::new());
        for (index, (peer, addresses)) in peers.iter().enumerate() {
            let first = awaited.len();
            for (transport, address, _) in pairs(transports, addresses, own < *peer) {
                let is_taken =
                    |other: &Probed| other.transport == transport || other.address == address;
                let list = match awaited.iter().skip(first).any(is_taken) {
                    true => &mut others,
                    false => &mut awaited,
                };
                list.push(Probed {
                    peer: index,
                    transport,
                    address,
                });
            }
        }
        Probes {
            peers,
            waited: Duration::ZERO,
            last_poll: None,
            limit: PROBES,
            awaited,
            others,
            done: Vec::new(),
            reached: HashSet::new(),
            is_again: false,
        }
    }

    /// Advances the probes without waiting. Returns true if all have answered, or if it is time to
    /// stop waiting.
    pub(crate) fn poll(&mut self, transports: &mut Transports) -> bool {
        let Probes {
            peers,
            done,
            reached,
            ..
        } = self;
        self.awaited.retain(|probed| {
            let (peer, addresses) = &peers[probed.peer];
            let address = &addresses[usize::from(probed.address)].address;
            if address.len() > btl::MAX_ADDRESS {
                return false;
            }
            let found = transports[probed.transport].btl.probe(*peer, address);
            if found == Probe::Reached {
                reached.insert(*peer);
            }
            if found != Probe::Awaited {
                done.push(*probed);
            }
            found == Probe::Awaited
        });
        let now = Instant::now();
        if let Some(last) = self.last_poll.replace(now) {
            self.waited += now.saturating_duration_since(last).min(MAX_PAUSE);
        }
        let waited = self.waited;
        if waited >= OTHERS {
            let rank = |probed: &Probed| peers[probed.peer].0;
            self.awaited
                .retain(|probed| !reached.contains(&rank(probed)));
            let silent: HashSet<Rank> = self.awaited.iter().map(rank).collect();
            let others = std::mem::take(&mut self.others).into_iter();
            self.awaited
                .extend(others.filter(|probed| silent.contains(&rank(probed))));
        }
        self.awaited.is_empty() || waited >= self.limit
    }

    /// Starts again, once, if a transport had reached a peer and no longer does.
    pub(crate) fn again(self, transports: &Transports, own: Rank) -> Option<Probes> {
        let is_first = !self.is_again && !self.reached.is_empty();
        is_first.then(|| Probes {
            is_again: true,
            waited: self.waited,
            limit: self.limit,
            ..Probes::new(transports, self.peers, own)
        })
    }

    /// Returns true if a pair of the first peer need not be waited for: its probe is complete, or
    /// no probe has reached the peer.
    pub(crate) fn is_settled(&self, transport: TransportId, address: u8) -> bool {
        let is_it = |probed: &Probed| (probed.transport, probed.address) == (transport, address);
        self.reached.is_empty() || self.done.iter().any(is_it)
    }
}
