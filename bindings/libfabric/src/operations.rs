//! Operations under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use p2p::{Rank, RequestId};

use crate::ffi::FI_RECV;

/// Maximum number of operations under way.
const OPERATIONS: usize = 128 << 10;

/// The kinds of operations.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A send or a receive.
    Plain,
    /// A receive into a part of a multi-receive buffer.
    Multi(Arc<Multi>),
}

/// A multi-receive buffer.
#[derive(Debug)]
pub(crate) struct Multi {
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) used: AtomicUsize,
    pub(crate) pattern: p2p::Pattern,
    pub(crate) context: usize,
    pub(crate) wanted: bool,
    /// The program has cancelled it: the rest is not posted again.
    pub(crate) cancelled: AtomicBool,
}

/// An operation under way.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) context: usize,
    /// Flags of its completion.
    pub(crate) flags: u64,
    /// Its completion is reported.
    pub(crate) wanted: bool,
    pub(crate) kind: Kind,
    pub(crate) buffer: usize,
    pub(crate) room: usize,
    /// The bytes of an injected or gathered send, or those to be scattered.
    pub(crate) owned: Option<Vec<u8>>,
    pub(crate) scatter: Vec<(usize, usize)>,
    pub(crate) request: Option<RequestId>,
    /// Peer of a send or an access.
    pub(crate) target: Option<Rank>,
}

impl Operation {
    pub(crate) fn new(context: usize, flags: u64, wanted: bool) -> Operation {
        Operation {
            context,
            flags,
            wanted,
            kind: Kind::Plain,
            buffer: 0,
            room: 0,
            owned: None,
            scatter: Vec::new(),
            request: None,
            target: None,
        }
    }

    /// Returns a send, or an access to memory of a peer.
    pub(crate) fn to(peer: Rank, context: usize, flags: u64, wanted: bool) -> Operation {
        Operation {
            target: Some(peer),
            ..Operation::new(context, flags, wanted)
        }
    }
}

/// Operations by number. The upper half is a generation.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    places: Vec<(u32, Option<Operation>)>,
    free: Vec<u32>,
}

impl Operations {
    pub(crate) fn insert(&mut self, operation: Operation) -> Option<u64> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.places.len() < OPERATIONS => {
                self.places.push((1, None));
                u32::try_from(self.places.len() - 1).ok()?
            }
            None => return None,
        };
        let place = self.places.get_mut(at as usize)?;
        place.1 = Some(operation);
        Some(u64::from(place.0) << 32 | u64::from(at))
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Operation> {
        let place = self.places.get_mut(number as u32 as usize)?;
        let same = place.0 == (number >> 32) as u32;
        place.1.as_mut().filter(|_| same)
    }

    pub(crate) fn take(&mut self, number: u64) -> Option<Operation> {
        self.get_mut(number)?;
        let at = number as u32;
        let place = self.places.get_mut(at as usize)?;
        place.0 = place.0.wrapping_add(1).max(1);
        self.free.push(at);
        place.1.take()
    }

    /// Returns true if a send or an access to this peer is under way.
    pub(crate) fn has_any_to(&self, peer: Rank) -> bool {
        let mut all = self.places.iter().filter_map(|place| place.1.as_ref());
        all.any(|one| one.target == Some(peer))
    }

    /// Returns the request of a receive with this context into a buffer for one message.
    pub(crate) fn find(&self, context: usize) -> Option<RequestId> {
        let all = self.places.iter().filter_map(|place| place.1.as_ref());
        let mut receives = all.filter(|one| {
            let is_plain = matches!(one.kind, Kind::Plain);
            is_plain && one.flags & FI_RECV != 0 && one.context == context
        });
        receives.find_map(|one| one.request)
    }

    /// Returns the request of the receive into the rest of this buffer.
    pub(crate) fn find_rest(&self, of: &Arc<Multi>) -> Option<RequestId> {
        let mut all = self.places.iter().filter_map(|place| place.1.as_ref());
        all.find_map(|one| match &one.kind {
            Kind::Multi(multi) if Arc::ptr_eq(multi, of) => one.request,
            _ => None,
        })
    }
}
