//! Implementation of the contract.
#![allow(unsafe_code)] // The contract passes memory by address; it is only passed on here.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use btl::{
    Btl, Capabilities, Events, MAX_HEADER, NoticedPuts, PeerError, PeerInfo, PendingPeers, Rank,
    Region, RegisterError, SendError, Started, Tx, Unreachable,
};

use super::ends::PROBE_EVERY;
use super::one_sided::How;
use super::{BATCH, IbBtl, Notice, State};
use crate::wire::{Key, MAX_NOTICES};

/// Time that `drop_peer` waits for the peer's last messages.
const DROP_WAIT: Duration = Duration::from_millis(100);

impl Tx for IbBtl {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        self.send_message(peer, header, &btl::contiguous(body), None)
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
        // SAFETY: guaranteed by the caller.
        unsafe {
            let local = local.expose_provenance();
            self.start(peer, local, length, (key, offset), token, How::Get)
        }
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
        // SAFETY: guaranteed by the caller.
        unsafe {
            let local = local.expose_provenance();
            self.start(peer, local, length, (key, offset), token, How::Put)
        }
    }
}

impl NoticedPuts for IbBtl {
    unsafe fn put_last(
        &mut self,
        peer: Rank,
        local: *const u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let local = local.expose_provenance();
            self.start(peer, local, length, (key, offset), token, How::Last)
        }
    }

    unsafe fn register_noticed(
        &mut self,
        memory: *mut u8,
        length: usize,
        peer: Rank,
        notice: &[u8],
    ) -> Result<Region, RegisterError> {
        // Numbers wrap around after 2²⁹. Without a notice, or without bytes, there is no number.
        let number = ((self.next_region + 1) % u64::from(MAX_NOTICES)) as u32 + 1;
        let mut header = [0; MAX_HEADER];
        let free = length > 0 && !self.notices.contains_key(&number);
        let Some(place) = header.get_mut(..notice.len()).filter(|_| free) else {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.register_as(memory, length, 0) };
        };
        place.copy_from_slice(notice);
        // SAFETY: guaranteed by the caller.
        let region = unsafe { self.register_as(memory, length, number) }?;
        self.notices.insert(
            number,
            Notice {
                peer,
                header,
                length: notice.len(),
            },
        );
        Ok(region)
    }
}

impl PendingPeers for IbBtl {}

impl IbBtl {
    /// Registers memory with the notice of this number; 0 for none.
    ///
    /// # Safety
    /// As for [`Btl::register`].
    unsafe fn register_as(
        &mut self,
        memory: *mut u8,
        length: usize,
        notice: u32,
    ) -> Result<Region, RegisterError> {
        let Some(nic) = &mut self.nic else {
            return Err(RegisterError::Closed);
        };
        let address = memory.expose_provenance();
        self.next_region += 1;
        let handle = self.next_region;
        let mut rkey = 0;
        if length > 0 {
            // SAFETY: guaranteed by the caller.
            let held = unsafe { self.cache.acquire(&mut **nic, address, length) }?;
            self.regions.insert(handle, (held.id, notice));
            rkey = held.rkey;
        }
        let key = Key {
            nonce: self.nonce,
            address: address as u64,
            length: length as u64,
            rkey,
            notice,
            check: 0,
        };
        Ok(Region {
            handle,
            key: key.sealed().encode(),
        })
    }
}

impl Btl for IbBtl {
    fn name(&self) -> &'static str {
        match self.config.rail {
            0 => "ib",
            1 => "ib1",
            2 => "ib2",
            _ => "ib3",
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            get: self.config.reads,
            put: true,
            held_from: self.config.held_from,
            blocking: true,
            detects_death: true,
            // Needed for probes of silent peers and repeated requests.
            tick: Some(PROBE_EVERY / 2),
        }
    }

    fn address(&self) -> Vec<u8> {
        if self.nic.is_some() {
            self.address.clone()
        } else {
            Vec::new()
        }
    }

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        self.add(peer, address)
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        let Some(nic) = &mut self.nic else { return 0 };
        let slept = std::mem::take(&mut self.armed);
        if slept {
            nic.calm();
        }
        let done = self.take_completions(events);
        for rank in std::mem::take(&mut self.credit_returns) {
            self.return_credits(rank);
        }
        self.check_timers(slept);
        done
    }

    unsafe fn register(&mut self, memory: *mut u8, length: usize) -> Result<Region, RegisterError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.register_as(memory, length, 0) }
    }

    fn deregister(&mut self, handle: u64) {
        if let Some((held, notice)) = self.regions.remove(&handle) {
            self.notices.remove(&notice);
            if let Some(nic) = &mut self.nic {
                self.cache.release(&mut **nic, held);
            }
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.nic.as_ref().map(|nic| nic.descriptor())
    }

    fn arm(&mut self) -> bool {
        let Some(nic) = &mut self.nic else {
            return true;
        };
        self.armed = true;
        nic.calm();
        nic.arm();
        // Events that arrived before the request cause no wake-up.
        let mut batch = std::mem::take(&mut self.batch);
        let broken = nic.poll(BATCH, &mut batch).is_err();
        self.stash.extend(batch.drain(..));
        self.batch = batch;
        self.stash.is_empty() && !self.failing && self.credit_returns.is_empty() && !broken
    }

    /// Waits up to `DROP_WAIT` for the last messages. A stopped queue pair refuses every access,
    /// even with keys of registrations that the cache keeps.
    fn drop_peer(&mut self, rank: Rank) -> bool {
        let connected = match self.peer(rank).map(|peer| &peer.state) {
            _ if self.nic.is_none() => return true,
            None | Some(State::Ended(_)) => return true,
            Some(state) => *state == State::Connected,
        };
        if connected && !self.flush_peer(rank) {
            let now = super::now();
            let known = self.closing.iter().find(|(known, _)| *known == rank);
            let Some((_, since)) = known else {
                self.closing.push((rank, now));
                return false;
            };
            if now.saturating_sub(*since) < DROP_WAIT {
                return false;
            }
        }
        self.closing.retain(|(known, _)| *known != rank);
        self.fail(
            rank,
            PeerError::Lost("this process dropped the peer".into()),
        );
        // Accesses that arrived before the stop have ended when `progress` reports the failure.
        false
    }

    /// Completed writes are in the peer's memory and survive this process.
    fn flush(&mut self) -> bool {
        let mut all = true;
        for rank in 0..self.peers.len() {
            all &= self.flush_peer(rank as Rank);
        }
        all || self.nic.is_none()
    }

    fn close(&mut self) {
        if self.nic.is_some() {
            self.leave();
        }
    }
}

impl Drop for IbBtl {
    fn drop(&mut self) {
        self.close();
    }
}
