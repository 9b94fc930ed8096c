//! [`ShmBtl`] as a [`Btl`], and its extension for posted receives.

use std::io::IoSlice;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use btl::{
    Btl, Capabilities, Envelope, Events, HeldSends, NoticedPuts, PeerInfo, PendingPeers, PostId,
    PostedDelivery, PostedReceive, PostedReceives, Rank, Region, RegisterError, SendError, Started,
    Tx, Unreachable, Withdrawn,
};

use super::ShmBtl;
use super::one_sided::key;
use super::peer::PeerState;
use crate::layout::END_OPEN;
use crate::posted::Wanted;
use shmem::sync::{Ordering, fence};

/// Maximum time that [`Btl::close`] waits for peers that are copying into this process's memory.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

impl Tx for ShmBtl {
    #[inline]
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        self.send_message(peer, header, &btl::contiguous(body))
    }

    unsafe fn get(
        &mut self,
        peer: Rank,
        local: *mut u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        // SAFETY: the same promise.
        unsafe { self.get_now(peer, local, length, (key, offset), token) }
    }

    unsafe fn put(
        &mut self,
        peer: Rank,
        local: *const u8,
        length: usize,
        key: &[u8],
        offset: usize,
        _token: u64,
    ) -> Result<Started, SendError> {
        // SAFETY: the same promise.
        unsafe { self.put_now(peer, local, length, key, offset) }
    }
}

impl PostedReceives for ShmBtl {
    unsafe fn send_to_posted(
        &mut self,
        peer: Rank,
        envelope: Envelope,
        local: *const u8,
        length: usize,
    ) -> Result<PostedDelivery, SendError> {
        // SAFETY: the same promise.
        unsafe { self.send_into_posted(peer, envelope, local, length) }
    }

    fn withdraw(&mut self, post: PostId) -> Withdrawn {
        let Some(own) = &mut self.own else {
            return Withdrawn::Yes;
        };
        let peers = &self.peers;
        match own
            .posted
            .withdraw(post.0, |rank, id| Self::confirms(peers, rank, id))
        {
            Some(true) | None => Withdrawn::Yes,
            Some(false) => Withdrawn::Taken,
        }
    }

    unsafe fn post(&mut self, receive: &PostedReceive) -> Option<PostId> {
        if !self.one_copy {
            return None;
        }
        let own = self.own.as_mut()?;
        let pair = match receive.source {
            None => None,
            Some(rank) => match self.peers.get(rank as usize)? {
                PeerState::Connected(peer) if peer.ending.is_none() => Some(peer.producer.mine()),
                _ => return None,
            },
        };
        let wanted = Wanted {
            source: receive.source,
            context: receive.context,
            tag: receive.tag,
            address: receive.buffer.expose_provenance() as u64,
            length: receive.length,
            token: receive.token,
        };
        own.posted.post(&wanted, pair).map(PostId)
    }
}

impl HeldSends for ShmBtl {}

impl NoticedPuts for ShmBtl {}

impl PendingPeers for ShmBtl {}

impl Btl for ShmBtl {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            get: self.one_copy,
            put: self.one_copy,
            posted_receives: self.one_copy,
            held_from: None,
            blocking: true,
            detects_death: true,
            // Deaths are in the wait set; this is for a peer that takes our wake-ups out of the
            // pipe.
            tick: Some(if self.awaits_stop() {
                super::LIVENESS_INTERVAL
            } else {
                Duration::from_millis(500)
            }),
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
        // Nothing to pin: the kernel looks the pages up with each copy.
        let (address, length) = (memory.expose_provenance() as u64, length as u64);
        Ok(Region {
            handle: self.regions.add(address, length),
            key: key(self.nonce[0], address, length),
        })
    }

    fn deregister(&mut self, handle: u64) {
        self.regions.remove(handle);
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
    /// that outlives the process.
    fn flush(&mut self) -> bool {
        self.peers.iter_mut().all(|entry| {
            let PeerState::Connected(peer) = entry else {
                return true;
            };
            // A peer that writes nonsense is not waited for.
            peer.ending.is_some()
                || peer.producer.refresh().is_err()
                || peer.producer.is_idle()
                || peer.producer.theirs().writing.0.end.load(Ordering::Acquire) == END_OPEN
        })
    }

    fn close(&mut self) {
        let Some(mut own) = self.own.take() else {
            return;
        };
        // Posted memory is the caller's again, so no peer may write it any more. A peer that is
        // copying is waited for: the copy is the kernel's and short. One that does not end it,
        // stopped or corrupt, is waited for until a time limit.
        own.common.about.0.left.store(1, Ordering::Release);
        let claimed = own.posted.clear();
        // SYNC POINT revoke: a peer that writes has published that before it checks whether this
        // process has left.
        fence(Ordering::SeqCst);
        let begin = Instant::now();
        let mut stopped = Self::stop_coop(&mut self.peers, true);
        while (!stopped
            || claimed
                .iter()
                .any(|id| Self::confirms(&self.peers, None, *id)))
            && begin.elapsed() < CLOSE_TIMEOUT
        {
            std::thread::yield_now();
            stopped = Self::stop_coop(&mut self.peers, false);
        }
        self.inbound.clear();
        self.closing.clear();
        for mut entry in mem::take(&mut self.peers) {
            if let PeerState::Connected(peer) = &mut entry {
                peer.ring();
            }
        }
        self.live = 0;
        self.coop = 0;
        self.helping = 0;
    }
}
