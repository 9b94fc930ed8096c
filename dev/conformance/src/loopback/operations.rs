//! Operations that a rank starts: messages, gets and puts, posted receives, held sends.

use std::io::IoSlice;

use super::memory::Memory;
use super::world::{Packet, Post};
use super::{KEY, LoopbackBtl, MAGIC, Operation, lock};
use btl::{
    Envelope, HeldSends, MAX_HEADER, NoticedPuts, PendingPeers, PostId, PostedDelivery,
    PostedReceive, PostedReceives, Rank, SendError, Started, Tx, Withdrawn, contiguous,
    gathered_len,
};

impl LoopbackBtl {
    fn one_sided(
        &mut self,
        peer: Rank,
        local: Memory,
        key: &[u8],
        offset: usize,
        token: u64,
        put: bool,
    ) -> Result<Started, SendError> {
        let mut world = self.open_to(peer)?;
        if !(if put {
            self.limits.put
        } else {
            self.limits.get
        }) {
            return Err(SendError::Unsupported);
        }
        let region = self.region(key, peer).ok_or(SendError::BadKey)?;
        let memory = *world
            .node(peer)
            .regions
            .get(&region)
            .ok_or(SendError::BadKey)?;
        if memory.part(offset, local.len()).is_none() {
            return Err(SendError::TooLong {
                length: local.len(),
                limit: memory.len().saturating_sub(offset),
            });
        }
        if !self.limits.pending {
            return match world.copy((self.rank, peer), region, offset, local, put) {
                Ok(()) => Ok(Started::Done),
                Err(error) => Err(SendError::Failed { peer, error }),
            };
        }
        drop(world);
        if self.pending.len() >= self.limits.entries {
            return Err(SendError::Busy);
        }
        self.pending.push_back(Operation {
            peer,
            region,
            offset,
            local,
            put,
            token,
        });
        Ok(Started::Pending)
    }

    /// Returns the region that a key of this job and of `peer` names.
    fn region(&self, key: &[u8], peer: Rank) -> Option<u64> {
        if key.len() != KEY || !key.starts_with(MAGIC) || key[8..16] != self.job.to_le_bytes() {
            return None;
        }
        if key[16..20] != peer.to_le_bytes() {
            return None;
        }
        Some(u64::from_le_bytes(key[20..28].try_into().ok()?))
    }
}

impl Tx for LoopbackBtl {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        let mut world = self.open_to(peer)?;
        if header.len() > MAX_HEADER {
            return Err(SendError::TooLong {
                length: header.len(),
                limit: MAX_HEADER,
            });
        }
        let length = header.len().saturating_add(gathered_len(body));
        if length > self.limits.max_send {
            return Err(SendError::TooLong {
                length,
                limit: self.limits.max_send,
            });
        }
        let lane = world.lane(self.rank, peer);
        if lane.queue.len() >= self.limits.entries {
            lane.starved = true;
            return Err(SendError::Busy);
        }
        lane.queue.push_back(Packet {
            header: header.to_vec(),
            body: contiguous(body).into_owned(),
        });
        lane.sent += 1;
        world.wake(peer);
        Ok(())
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
        // SAFETY: the caller's promise, until completion; a pending operation is dropped with this
        // value.
        let local = unsafe { Memory::new(local, length) };
        self.one_sided(peer, local, key, offset, token, false)
    }

    unsafe fn put(
        &mut self,
        peer: Rank,
        local: *const u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        // SAFETY: the caller's promise, until completion; a put only reads it.
        let local = unsafe { Memory::source(local, length) };
        self.one_sided(peer, local, key, offset, token, true)
    }
}

impl PostedReceives for LoopbackBtl {
    unsafe fn send_to_posted(
        &mut self,
        peer: Rank,
        envelope: Envelope,
        local: *const u8,
        length: usize,
    ) -> Result<PostedDelivery, SendError> {
        let mut world = self.open_to(peer)?;
        if !self.limits.posted_receives {
            return Err(SendError::Unsupported);
        }
        // SAFETY: the caller's promise, during the call.
        let bytes = unsafe { Memory::source(local, length) };
        Ok(if world.give(self.rank, peer, envelope, bytes) {
            PostedDelivery::Delivered
        } else {
            PostedDelivery::NotPosted
        })
    }

    fn withdraw(&mut self, post: PostId) -> Withdrawn {
        let mut world = lock(&self.world);
        let node = world.node(self.rank);
        if node.filled.iter().any(|filled| filled.id == post.0) {
            return Withdrawn::Taken;
        }
        node.posts.retain(|waiting| waiting.id != post.0);
        Withdrawn::Yes
    }

    unsafe fn post(&mut self, receive: &PostedReceive) -> Option<PostId> {
        let mut world = self.open().ok()?;
        if !self.limits.posted_receives || world.node(self.rank).posts.len() >= self.limits.posts {
            return None;
        }
        let id = world.name();
        // SAFETY: the caller's promise, until the event or the withdrawal, which take the lock; so
        // do closing and dropping.
        let buffer = unsafe { Memory::new(receive.buffer, receive.length) };
        world.node(self.rank).posts.push_back(Post {
            id,
            source: receive.source,
            context: receive.context,
            tag: receive.tag,
            buffer,
            token: receive.token,
        });
        Some(PostId(id))
    }
}

impl HeldSends for LoopbackBtl {
    unsafe fn send_held(
        &mut self,
        peer: Rank,
        header: &[u8],
        body: *const u8,
        length: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        drop(self.open_to(peer)?);
        if self.limits.held_from.is_none() {
            return Err(SendError::Unsupported);
        }
        if self.limits.pending && self.pending.len() + self.held.len() >= self.limits.entries {
            return Err(SendError::Busy);
        }
        // SAFETY: the caller's promise, during the call.
        let bytes = unsafe { Memory::source(body, length) };
        self.send(peer, header, &[IoSlice::new(&bytes.bytes())])?;
        if self.limits.pending {
            self.held.push_back((peer, token));
            return Ok(Started::Pending);
        }
        Ok(Started::Done)
    }
}

impl NoticedPuts for LoopbackBtl {}

impl PendingPeers for LoopbackBtl {}
