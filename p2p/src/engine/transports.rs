//! The transports with the protocol state above them, and one poll of both: progress of the
//! transports, then the work that their callbacks queued.

use std::ops::{Index, IndexMut};

use btl::{Btl, Capabilities};

use super::incoming::Handler;
use super::lazy::Lazy;
use super::peer::Peer;
use super::protocol::{Protocol, Work};
use crate::ids::TransportId;
use crate::types::PathReport;

/// Interval, in polls, at which all transports are polled, whatever the hint.
const ALL_EVERY: u32 = 8;
/// Interval, in polls, at which a late process checks whether it still is.
const SKEW_EVERY: u32 = 64;

/// A transport and its capabilities.
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

    /// Sets the minimum length of messages to a peer that are sent from the program's memory.
    pub(super) fn set_held(&self, peer: &mut Peer) {
        if let Some(primary) = peer.primary() {
            let held_from = self[primary].capabilities.held_from;
            peer.held_from = held_from.unwrap_or(usize::MAX);
            peer.refresh();
        }
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
    pub(crate) polls: u32,
    /// Results of all transports for the peers that were reached.
    pub(crate) paths: Vec<PathReport>,
    /// Peers of a large job are reached when they are used.
    pub(super) lazy: Option<Box<Lazy>>,
}

impl Engine {
    pub(crate) fn new(mut protocol: Protocol, transports: Transports) -> Engine {
        for peer in protocol.peers.ids() {
            transports.set_held(&mut protocol.peers[peer]);
        }
        Engine {
            protocol,
            transports,
            polls: 0,
            paths: Vec::new(),
            lazy: None,
        }
    }

    /// Polls all transports, or with a hint mostly that one. Returns the number of events.
    #[inline]
    pub(crate) fn poll(&mut self, hint: Option<TransportId>) -> usize {
        let mut events = 0;
        self.polls = self.polls.wrapping_add(1);
        let all = self.polls.is_multiple_of(ALL_EVERY);
        for (id, transport) in self.transports.iter_mut() {
            if all || hint.is_none_or(|hint| hint == id) {
                let mut handler = Handler {
                    protocol: &mut self.protocol,
                    transport: id,
                };
                events += transport.btl.progress(&mut handler);
            }
        }
        if self.protocol.open.is_some() {
            events += self.admit_strangers();
        }
        if self.lazy.is_some() {
            events += self.reach_used();
        }
        if self.protocol.skew.late && self.polls.is_multiple_of(SKEW_EVERY) {
            self.protocol.check_skew();
        }
        let protocol = &self.protocol;
        if protocol.must_poll() || !protocol.released.is_empty() || !protocol.kept.is_empty() {
            events += self.do_work();
        }
        events
    }

    /// Does the queued work and sends what peers have queued. Returns the number of steps.
    pub(crate) fn do_work(&mut self) -> usize {
        let mut done = 0;
        for transfer in std::mem::take(&mut self.protocol.again) {
            self.protocol.work.push_back(Work::Step(transfer));
        }
        for peer in std::mem::take(&mut self.protocol.dropping) {
            self.drop_peer(peer);
        }
        // Work queued by this work is done as well, unless it waits for room (`again`).
        while let Some(work) = self.protocol.work.pop_front() {
            done += 1;
            match work {
                Work::Step(transfer) => self.step(transfer),
                Work::Reach(peer) => self.begin_reach(peer),
                Work::Failed(peer, reason) => self.end_requests_of(peer, reason),
            }
        }
        for _ in 0..self.protocol.active.len() {
            if let Some(peer) = self.protocol.active.pop_front() {
                done += self.send_queued(peer);
            }
        }
        for (transport, handle) in std::mem::take(&mut self.protocol.released) {
            self.transports[transport].btl.deregister(handle);
        }
        // After the registrations: nothing uses the buffer of a request that has ended.
        let Protocol { kept, requests, .. } = &mut self.protocol;
        kept.retain(|kept| requests.get(kept.0).is_some());
        done
    }
}
