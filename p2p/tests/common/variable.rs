//! A transport that only copies to a variable: a few messages in flight in each direction, both
//! ends in one thread. It allocates nothing and costs almost nothing.
#![allow(dead_code, reason = "each user needs a part of it")]

use std::cell::UnsafeCell;
use std::io::IoSlice;
use std::sync::Arc;

use btl::{
    Btl, Capabilities, Events, HeldSends, NoticedPuts, PeerInfo, PendingPeers, Rank, SendError, Tx,
    Unreachable,
};
use p2p::{Config, P2p, Setup, TransportAddress};

/// A message in flight.
#[derive(Debug, Default)]
struct Slot {
    full: bool,
    header: [u8; 16],
    header_length: usize,
    body: [u8; 32],
    length: usize,
}

/// Messages to one end, in order.
#[derive(Debug, Default)]
struct Queue {
    slots: [Slot; 8],
    put: usize,
    taken: usize,
}

/// Both directions; used by one thread only.
#[derive(Debug)]
struct Wire(UnsafeCell<[Queue; 2]>);

// SAFETY: only one thread uses the two ends.
unsafe impl Send for Wire {}
// SAFETY: as above.
unsafe impl Sync for Wire {}

#[derive(Debug)]
pub(crate) struct Bare {
    wire: Arc<Wire>,
    rank: usize,
}

impl Tx for Bare {
    #[inline]
    fn send(&mut self, _: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        let body = btl::contiguous(body);
        // SAFETY: used by one thread, and no reference is kept.
        let queue = unsafe { &mut (*self.wire.0.get())[1 - self.rank] };
        let slot = &mut queue.slots[queue.put % 8];
        if slot.full || header.len() > 16 || body.len() > 32 {
            return Err(SendError::Busy);
        }
        slot.header[..header.len()].copy_from_slice(header);
        slot.body[..body.len()].copy_from_slice(&body);
        (slot.full, slot.header_length, slot.length) = (true, header.len(), body.len());
        queue.put += 1;
        Ok(())
    }
}

impl HeldSends for Bare {}

impl NoticedPuts for Bare {}

impl PendingPeers for Bare {}

impl Btl for Bare {
    fn name(&self) -> &'static str {
        "variable"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn address(&self) -> Vec<u8> {
        vec![1]
    }
    fn add_peer(&mut self, _: Rank, _: &[u8]) -> Result<PeerInfo, Unreachable> {
        Ok(PeerInfo {
            latency_ns: 1,
            bandwidth: 1000,
            exclusivity: 1,
            eager: 64,
            eager_skewed: 64,
            max_send: 4096,
            one_sided: false,
            one_sided_from: usize::MAX,
            reason: "a variable".into(),
        })
    }
    #[inline]
    fn progress(&mut self, events: &mut dyn Events) -> usize {
        // SAFETY: as in `send`; the message is copied out before its delivery.
        let (header, header_length, body, length) = unsafe {
            let queue = &mut (*self.wire.0.get())[self.rank];
            let slot = &mut queue.slots[queue.taken % 8];
            if !slot.full {
                return 0;
            }
            slot.full = false;
            queue.taken += 1;
            (slot.header, slot.header_length, slot.body, slot.length)
        };
        let peer = 1 - self.rank as u32;
        events.message(self, peer, &header[..header_length], &body[..length]);
        1
    }
    fn flush(&mut self) -> bool {
        true
    }
    fn close(&mut self) {}
}

/// Returns both ends.
pub(crate) fn pair() -> Vec<Bare> {
    let wire = Arc::new(Wire(UnsafeCell::new(Default::default())));
    (0..2)
        .map(|rank| Bare {
            wire: Arc::clone(&wire),
            rank,
        })
        .collect()
}

/// Returns a layer over each end.
pub(crate) fn layers() -> Vec<P2p> {
    let layer = |btl: Bare| {
        let rank = btl.rank as u32;
        let setup = Setup {
            rank,
            size: 2,
            transports: vec![Box::new(btl)],
            config: Config::default(),
        };
        let address = TransportAddress {
            transport: "variable".into(),
            address: vec![1],
        };
        P2p::start(setup, |_| Ok(vec![address.clone()])).expect("a variable reaches everything")
    };
    pair().into_iter().map(layer).collect()
}
