//! Operations that a rank starts: messages, gets and puts, held sends.

use std::io::IoSlice;

use super::memory::Memory;
use super::world::Packet;
use super::{KEY, LoopbackBtl, MAGIC, Operation};
use btl::{
    HeldSends, MAX_HEADER, NoticedPuts, PendingPeers, Rank, SendError, Started, Tx, contiguous,
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
