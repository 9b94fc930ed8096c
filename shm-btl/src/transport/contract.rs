//! [`ShmBtl`] as a [`Btl`].

use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use btl::{Btl, Capabilities, Events, PeerInfo, Rank, Region, RegisterError, Unreachable};

use super::ShmBtl;
use super::one_sided::key;
use super::peer::PeerState;
use crate::layout::END_OPEN;
use shmem::sync::{Ordering, fence};

/// Maximum time that [`Btl::close`] waits for peers that are copying into this process's memory.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

impl Btl for ShmBtl {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            get: self.one_copy,
            put: false,
            held_from: None,
            blocking: true,
            detects_death: true,
            // Deaths are in the wait set; the tick is for a peer that removes wake-ups from this
            // process's pipe, and for one that stops writing to this process's memory.
            tick: Some(2 * super::LIVENESS_INTERVAL),
        }
    }

    fn address(&self) -> Vec<u8> {
        if self.own.is_some() {
            self.address.clone()
        } else {
            Vec::new()
        }
    }

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        self.add(peer, address)
    }

    #[inline]
    fn progress(&mut self, events: &mut dyn Events) -> usize {
        self.deliver(events)
    }

    unsafe fn register(&mut self, memory: *mut u8, length: usize) -> Result<Region, RegisterError> {
        if self.own.is_none() {
            return Err(RegisterError::Closed);
        }
        if !self.one_copy {
            return Err(RegisterError::Unsupported);
        }
        // Nothing to pin: the kernel looks up the pages with each copy.
        let (address, length) = (memory.expose_provenance() as u64, length as u64);
        self.last_region += 1;
        self.regions.insert(self.last_region, (address, length));
        Ok(Region {
            handle: self.last_region,
            key: key(self.nonce[0], address, length),
        })
    }

    fn deregister(&mut self, handle: u64) {
        self.regions.remove(&handle);
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.own.as_ref().map(|own| own.epoll.as_fd())
    }

    fn arm(&mut self) -> bool {
        self.arm_wait()
    }

    fn drop_peer(&mut self, peer: Rank) -> bool {
        self.close_peer(peer)
    }

    /// Sent messages are in this process's memory, which peers have mapped once they have added it;
    /// that memory outlives the process.
    fn flush(&mut self) -> bool {
        self.peers.iter_mut().all(|entry| {
            let PeerState::Added(peer) = entry else {
                return true;
            };
            // A peer that violates the protocol is not waited for.
            peer.ending.is_some()
                || peer.producer.refresh().is_err()
                || peer.producer.is_idle()
                || peer.producer.theirs().end.0.load(Ordering::Acquire) == END_OPEN
        })
    }

    fn close(&mut self) {
        let Some(own) = self.own.take() else {
            return;
        };
        // Lent memory belongs to the caller again, so no peer may write it any more. Wait for a
        // peer that helps with a `get`: the copy is done by the kernel, and short. A stopped or
        // corrupt peer that does not end it is waited for until a time limit.
        own.common.about.0.left.store(1, Ordering::Release);
        // SYNC POINT revoke: comes before the caller uses its memory for something else. A peer
        // that copies from it checks afterwards whether this process has left.
        fence(Ordering::SeqCst);
        let begin = Instant::now();
        let mut stopped = self.stop_coop(true);
        while !stopped && begin.elapsed() < CLOSE_TIMEOUT {
            std::thread::yield_now();
            stopped = self.stop_coop(false);
        }
        self.inbound.clear();
        self.closing.clear();
        for mut entry in mem::take(&mut self.peers) {
            if let PeerState::Added(peer) = &mut entry {
                peer.ring();
            }
        }
        self.live = 0;
        self.open = None;
        self.gets.clear();
        self.helping.clear();
    }
}
