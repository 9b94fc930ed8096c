//! One-sided transfers: `get` by the receiver, or `put` by the sender.

use btl::{SendError, Started};

use super::protocol::Protocol;
use super::request::{Memory, Outcome};
use super::transfer::{Method, Operation, Transfer};
use super::transports::Engine;
use crate::matching::unexpected::RegionKey;
use crate::memory::ReadMem;
use crate::wire::Header;

impl Engine {
    /// Registers the memory of a send so that the receiver may get it, if that is worthwhile.
    pub(super) fn register_for_get(&mut self, transfer: &mut Transfer, memory: ReadMem) {
        let transport = &mut self.transports[transfer.transport];
        let worthwhile = memory.len() >= self.protocol.peers[transfer.peer].one_sided_from;
        if !worthwhile || !self.protocol.config.tuning.get || !transport.capabilities.get {
            return;
        }
        let at = memory.at(0).cast_mut();
        // SAFETY: valid until the request is over; the registration is taken back before the
        // program learns of the end. A peer that writes with a key for reading is another process
        // of the same user, against which memory that it may write is no defence.
        let Ok(region) = (unsafe { transport.btl.register(at, memory.len()) }) else {
            return;
        };
        match Protocol::hold_region(transfer, transfer.transport, &region) {
            Some(key) => transfer.key = key,
            None => transport.btl.deregister(region.handle),
        }
    }

    /// Sends CTS with a key to put to. Returns false if the memory cannot be registered.
    pub(super) fn offer_put(&mut self, number: u64) -> bool {
        let Some(transfer) = self.protocol.transfers.get_mut(number) else {
            return false;
        };
        let request = self.protocol.requests.get(transfer.request);
        let Some(Memory::Write(memory)) = request.map(|request| request.memory) else {
            return false;
        };
        // The FIN that the sender would send, if its transport can deliver it with the bytes.
        let fin = Header::Fin {
            request: transfer.request,
            written: true,
        };
        let (id, peer, wanted) = (transfer.transport, transfer.peer, transfer.wanted);
        let transport = &mut self.transports[id];
        let (at, notice) = (memory.at(0), fin.encode());
        let btl = &mut transport.btl;
        // SAFETY: writable and not used by others until the request is over; the registration is
        // taken back before the program learns of the end.
        let region = unsafe { btl.register_noticed(at, wanted, peer.rank(), notice.bytes()) }
            // SAFETY: the same.
            .or_else(|_| unsafe { btl.register(at, wanted) });
        let key = match region {
            Ok(region) => {
                let key = Protocol::hold_region(transfer, id, &region);
                if key.is_none() {
                    btl.deregister(region.handle);
                }
                key
            }
            Err(_) => None,
        };
        let Some(key) = key else {
            self.protocol.stats.fallbacks += 1;
            return false;
        };
        transfer.method = Method::Fragments;
        let header = Header::Cts {
            request: transfer.remote,
            target: transfer.request,
            length: wanted as u64,
            put: true,
        };
        self.protocol.control_with(peer, header, key);
        true
    }

    /// Issues gets of a receiver or puts of a sender.
    pub(super) fn move_bytes(&mut self, number: u64, sends: bool) {
        let part = self.protocol.config.tuning.one_sided_part.max(1);
        let depth = self.protocol.config.tuning.one_sided_depth.max(1);
        loop {
            let Some(transfer) = self.protocol.transfers.get_mut(number) else {
                return;
            };
            if transfer.refused {
                if transfer.open == 0 {
                    self.fall_back(number, sends);
                }
                return;
            }
            if transfer.moved == transfer.wanted {
                return self.one_sided_over(number, sends);
            }
            if transfer.open >= depth || transfer.issued == transfer.wanted {
                return;
            }
            let Some(request) = self.protocol.requests.get(transfer.request) else {
                debug_assert!(false, "a transfer outlived its request");
                return;
            };
            let (offset, peer) = (transfer.issued, transfer.peer);
            let length = part.min(transfer.wanted - offset);
            let last = offset + length == transfer.wanted;
            let key = transfer.key.bytes();
            let token = self.protocol.operations.insert(Operation {
                transfer: number,
                length,
            });
            let btl = &mut self.transports[transfer.transport].btl;
            let rank = peer.rank();
            let mut notified = false;
            let result = match request.memory {
                // SAFETY: `offset + length` is within the memory, valid until the request is over:
                // not before completion.
                Memory::Write(memory) => unsafe {
                    btl.get(rank, memory.at(offset), length, key, offset, token)
                },
                Memory::Read(memory) => {
                    let at = memory.at(offset);
                    let unsupported = Err(SendError::Unsupported);
                    let result = match last {
                        // SAFETY: as for `get`.
                        true => unsafe { btl.put_last(rank, at, length, key, offset, token) },
                        false => unsupported,
                    };
                    notified = result.is_ok();
                    match result {
                        // SAFETY: as for `get`.
                        Err(SendError::Unsupported) => unsafe {
                            btl.put(rank, at, length, key, offset, token)
                        },
                        result => result,
                    }
                }
            };
            transfer.notified = notified;
            if !matches!(result, Ok(Started::Pending)) {
                self.protocol.operations.remove(token, 0);
            }
            match result {
                Ok(Started::Done) => {
                    transfer.issued += length;
                    transfer.moved += length;
                }
                Ok(Started::Pending) => {
                    transfer.issued += length;
                    transfer.open += 1;
                }
                Err(SendError::Busy) => {
                    if transfer.open == 0 {
                        self.protocol.again.push(number);
                    }
                    return;
                }
                Err(SendError::Failed { error, .. }) => {
                    return self.protocol.fail(peer, error, None);
                }
                Err(_) => transfer.refused = true,
            }
        }
    }

    /// Moves the message in fragments because one-sided operations are refused.
    fn fall_back(&mut self, number: u64, sends: bool) {
        self.protocol.stats.fallbacks += 1;
        if let Some(transfer) = self.protocol.transfers.get_mut(number) {
            transfer.refused = false;
            transfer.key = RegionKey::NONE;
        }
        if sends {
            self.protocol.start_fragments(number);
        } else {
            self.protocol.request_fragments(number);
        }
    }

    fn one_sided_over(&mut self, number: u64, sends: bool) {
        let Some(transfer) = self.protocol.transfers.get(number) else {
            return;
        };
        let (peer, key, notified) = (transfer.peer, transfer.request, transfer.notified);
        let header = Header::Fin {
            request: transfer.remote,
            written: sends,
        };
        self.protocol.stats.by_get += u64::from(!sends);
        self.protocol.end(key, Outcome::Done);
        if !notified {
            self.protocol.control(peer, header);
        }
    }
}
