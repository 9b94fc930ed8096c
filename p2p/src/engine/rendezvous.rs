//! Rendezvous: RTS, CTS, FRAGMENT and FIN at either end, and one-sided transfers, which are `get`
//! by the receiver or `put` by the sender.

use std::io::IoSlice;

use btl::{SendError, Started};

use super::incoming::Origin;
use super::outgoing::Attempt;
use super::protocol::{Protocol, Work};
use super::request::{Request, RequestOutcome, State};
use super::transfer::{Method, Transfer};
use super::transports::Engine;
use crate::ids::{Label, PeerId};
use crate::matching::unexpected::RegionKey;
use crate::memory::Memory;
use crate::wire::Header;

impl Engine {
    /// Sends RTS for a long message, with a key if the receiver may get it.
    pub(super) fn send_rts(&mut self, peer: PeerId, key: u64, request: &Request) -> Attempt {
        let Some(primary) = self.protocol.peers[peer].primary() else {
            return Attempt::Blocked;
        };
        let mut number = request.transfer;
        if number == 0 {
            let mut transfer = Transfer::new(key, peer, primary);
            self.register_for_get(&mut transfer, request.memory);
            number = self.protocol.transfers.insert(transfer);
            self.protocol.requests[key].transfer = number;
        }
        let region = self.protocol.transfers[number].key;
        let header = |sequenced| Header::Rts(sequenced, request.length as u64, key);
        let attempt = self.send_envelope(peer, request, 0, header, |btl, header| {
            btl.send(peer.rank(), header, &[IoSlice::new(region.bytes())])
        });
        if attempt == Attempt::Sent {
            self.protocol.requests[key].state = State::Waiting;
        }
        attempt
    }

    /// Registers the memory of a send so that the receiver may get it, if that is worthwhile.
    fn register_for_get(&mut self, transfer: &mut Transfer, memory: Memory) {
        let transport = &mut self.transports[transfer.transport];
        let worthwhile = memory.len() >= self.protocol.peers[transfer.peer].one_sided_from;
        if !worthwhile || !self.protocol.config.tuning.get || !transport.capabilities.get {
            return;
        }
        // SAFETY: valid until the request is complete; the registration is released before the
        // program learns of the completion. A peer that writes with a key for reading is another
        // process of this user, which can write to our memory anyway.
        let region = unsafe { transport.btl.register(memory.at(0), memory.len()) };
        if let Ok(region) = region {
            match hold_region(transfer, &region) {
                Some(key) => transfer.key = key,
                None => transport.btl.deregister(region.handle),
            }
        }
    }

    /// Advances a transfer, if one of this number still exists.
    pub(super) fn step(&mut self, number: u64) {
        let Some(transfer) = self.protocol.transfers.get(number) else {
            return;
        };
        let (key, peer) = (transfer.request, transfer.peer);
        if transfer.doomed {
            let quiet = self.protocol.peers[peer].quiet;
            if !transfer.open && (quiet || transfer.region.is_none()) {
                self.protocol.end(key, RequestOutcome::Failed(peer));
            }
            return;
        }
        match transfer.method {
            Method::Undecided if !self.protocol.requests[key].is_send() => {
                self.choose_method(number);
            }
            Method::OneSided => self.move_bytes(number),
            // A refused transfer ends with its peer, which has failed.
            Method::Held if !transfer.open && !transfer.refused => {
                self.protocol.end(key, RequestOutcome::Done);
            }
            Method::Undecided | Method::Held | Method::Fragments => {}
        }
    }

    /// Selects how a receive gets its bytes: `get` if the RTS has a key, `put` if the length
    /// reaches the threshold, otherwise fragments.
    fn choose_method(&mut self, number: u64) {
        let transfer = &mut self.protocol.transfers[number];
        let capabilities = self.transports[transfer.transport].capabilities;
        let tuning = &self.protocol.config.tuning;
        if !transfer.key.bytes().is_empty() && tuning.get && capabilities.get {
            transfer.method = Method::OneSided;
            return self.move_bytes(number);
        }
        // P2P-9: a put goes over the rail of envelopes, so that FIN follows it.
        let state = &self.protocol.peers[transfer.peer];
        let primary = state.primary() == Some(transfer.transport);
        let long = transfer.wanted >= state.one_sided_from;
        if primary && long && tuning.put && capabilities.put && self.offer_put(number) {
            return;
        }
        self.protocol.request_fragments(number);
    }

    /// Sends CTS with a key for `put`. Returns false if the memory cannot be registered.
    fn offer_put(&mut self, number: u64) -> bool {
        let transfer = &mut self.protocol.transfers[number];
        // The FIN that the sender would send, if its transport can deliver it with the bytes.
        let fin = Header::Fin {
            request: transfer.request,
            written: true,
        };
        let (peer, wanted) = (transfer.peer, transfer.wanted);
        let at = self.protocol.requests[transfer.request].memory.at(0);
        let notice = fin.encode();
        let btl = &mut self.transports[transfer.transport].btl;
        // SAFETY: writable and not used by others until the request is complete; the registration
        // is released before the program learns of the completion.
        let region = unsafe { btl.register_noticed(at, wanted, peer.rank(), notice.bytes()) }
            // SAFETY: as above.
            .or_else(|_| unsafe { btl.register(at, wanted) });
        let key = region.ok().and_then(|region| {
            let key = hold_region(transfer, &region);
            if key.is_none() {
                btl.deregister(region.handle);
            }
            key
        });
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

    /// Executes `get`s as a receiver or `put`s as a sender, one part after the other.
    fn move_bytes(&mut self, number: u64) {
        let part = self.protocol.config.tuning.one_sided_part.max(1);
        loop {
            let transfer = &mut self.protocol.transfers[number];
            if transfer.open {
                return;
            }
            if transfer.refused {
                return self.fall_back(number);
            }
            let memory = self.protocol.requests[transfer.request].memory;
            let (offset, peer) = (transfer.issued, transfer.peer);
            let rest = transfer.wanted - offset;
            if rest == 0 {
                return self.one_sided_done(number);
            }
            let (length, at, rank) = (part.min(rest), memory.at(offset), peer.rank());
            let key = transfer.key.bytes();
            let btl = &mut self.transports[transfer.transport].btl;
            // SAFETY, for all three: `offset + length` is within the memory, valid until the
            // request is complete, which is not before completion of the operation.
            let result = if memory.is_writable() {
                // SAFETY: see above.
                unsafe { btl.get(rank, at, length, key, offset, number) }
            } else {
                let last = if length == rest {
                    // SAFETY: see above.
                    unsafe { btl.put_last(rank, at, length, key, offset, number) }
                } else {
                    Err(SendError::Unsupported)
                };
                transfer.notified = last.is_ok();
                match last {
                    // SAFETY: see above.
                    Err(SendError::Unsupported) => unsafe {
                        btl.put(rank, at, length, key, offset, number)
                    },
                    result => result,
                }
            };
            match result {
                Ok(started) => {
                    transfer.issued += length;
                    transfer.open = started == Started::Pending;
                }
                Err(SendError::Busy) => return self.protocol.again.push(number),
                // The event that ends the peer ends its transfers.
                Err(SendError::Failed { .. }) => return,
                Err(_) => transfer.refused = true,
            }
        }
    }

    /// Moves the message in fragments because one-sided operations are refused.
    fn fall_back(&mut self, number: u64) {
        self.protocol.stats.fallbacks += 1;
        let transfer = &mut self.protocol.transfers[number];
        transfer.refused = false;
        transfer.key = RegionKey::NONE;
        if self.protocol.requests[transfer.request].is_send() {
            self.protocol.start_fragments(number);
        } else {
            self.protocol.request_fragments(number);
        }
    }

    fn one_sided_done(&mut self, number: u64) {
        let transfer = &self.protocol.transfers[number];
        let (peer, key, notified) = (transfer.peer, transfer.request, transfer.notified);
        let sends = self.protocol.requests[key].is_send();
        let header = Header::Fin {
            request: transfer.remote,
            written: sends,
        };
        self.protocol.stats.by_get += u64::from(!sends);
        self.protocol.end(key, RequestOutcome::Done);
        if !notified {
            self.protocol.control(peer, header);
        }
    }
}

impl Protocol {
    /// Starts to receive a message whose RTS arrived.
    pub(super) fn start_receive(
        &mut self,
        receive: u64,
        from: Origin,
        label: Label,
        (length, remote, key): (usize, u64, RegionKey),
    ) {
        let request = &mut self.requests[receive];
        request.peer = Some(from.peer);
        (request.tag, request.data) = (label.tag, label.data);
        request.length = length;
        let wanted = length.min(request.memory.len());
        if wanted == 0 {
            self.end(receive, RequestOutcome::Done);
            self.send_fin(from.peer, Some(remote));
            return;
        }
        request.state = State::Moving;
        request.transfer = self.transfers.insert(Transfer {
            remote,
            key,
            wanted,
            ..Transfer::new(receive, from.peer, from.transport)
        });
        self.work.push_back(Work::Step(request.transfer));
    }

    /// Sends CTS for fragments.
    fn request_fragments(&mut self, number: u64) {
        let transfer = &mut self.transfers[number];
        transfer.method = Method::Fragments;
        let header = Header::Cts {
            request: transfer.remote,
            target: transfer.request,
            length: transfer.wanted as u64,
            put: false,
        };
        let peer = transfer.peer;
        self.control(peer, header);
    }

    /// Handles CTS, with a key if the bytes are to be put.
    pub(super) fn cts(
        &mut self,
        from: Origin,
        request: u64,
        target: u64,
        length: u64,
        key: Option<RegionKey>,
    ) -> Result<(), String> {
        let unknown = || format!("CTS for send {request:#x}, for which no RTS was sent");
        let send = self.requests.get_mut(request).ok_or_else(unknown)?;
        let number = send.transfer;
        let fits = send.is_send()
            && send.peer == Some(from.peer)
            && send.state == State::Waiting
            && number != 0;
        if !fits {
            return Err(unknown());
        }
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        if wanted > send.length {
            return Err(format!(
                "requests {length} bytes of a message of {}",
                send.length
            ));
        }
        // P2P-9
        if key.is_some() && self.peers[from.peer].primary() != Some(from.transport) {
            return Err("requests a put over a rail other than that of envelopes".to_owned());
        }
        send.state = State::Moving;
        let transfer = &mut self.transfers[number];
        (transfer.remote, transfer.wanted) = (target, wanted);
        if let Some(key) = key {
            (transfer.key, transfer.method) = (key, Method::OneSided);
            self.work.push_back(Work::Step(number));
        } else {
            self.start_fragments(number);
        }
        Ok(())
    }

    /// Starts to send fragments.
    fn start_fragments(&mut self, number: u64) {
        let transfer = &mut self.transfers[number];
        let state = &mut self.peers[transfer.peer];
        (transfer.method, transfer.issued) = (Method::Fragments, 0);
        transfer.shares = state.shares(transfer.wanted);
        state.streams.push_back(number);
        let peer = transfer.peer;
        self.activate(peer);
    }

    /// Handles FRAGMENT.
    pub(super) fn fragment(
        &mut self,
        peer: PeerId,
        target: u64,
        offset: u64,
        body: &[u8],
    ) -> Result<(), String> {
        let unknown =
            || format!("sends a fragment to {target:#x}, which does not expect one from it");
        let request = *self.requests.get(target).ok_or_else(unknown)?;
        let fits =
            !request.is_send() && request.peer == Some(peer) && request.state == State::Moving;
        let transfer = self
            .transfers
            .get_mut(request.transfer)
            .filter(|_| fits)
            .ok_or_else(unknown)?;
        // While this process executes `get`s, the peer may not send, not even between two of them.
        if transfer.method != Method::Fragments || transfer.doomed || transfer.open {
            return Err(unknown());
        }
        let left = transfer.wanted - transfer.moved;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.checked_add(body.len());
        if body.len() > left || end.is_none_or(|end| end > transfer.wanted) {
            return Err(format!(
                "sends {} bytes at {offset}, of {} with {left} left",
                body.len(),
                transfer.wanted
            ));
        }
        transfer.moved += body.len();
        request.memory.fill(start, body);
        if body.len() == left {
            self.stats.by_fragments += 1;
            self.end(target, RequestOutcome::Done);
        }
        Ok(())
    }

    /// Handles FIN.
    pub(super) fn fin(&mut self, peer: PeerId, key: u64, written: bool) -> Result<(), String> {
        let request = self.requests.get(key).copied();
        let expected = |request: &Request| {
            if written {
                // Valid only if the peer received a region to write to.
                let transfer = self.transfers.get(request.transfer);
                let region = transfer
                    .is_some_and(|transfer| transfer.region.is_some() && transfer.moved == 0);
                !request.is_send() && request.state == State::Moving && region
            } else {
                request.is_send() && request.state == State::Waiting
            }
        };
        if !request.is_some_and(|request| request.peer == Some(peer) && expected(&request)) {
            return Err(format!(
                "ends request {key:#x}, which does not belong to it"
            ));
        }
        self.stats.by_put += u64::from(written);
        self.end(key, RequestOutcome::Done);
        Ok(())
    }

    /// Handles the completion of a `get`, `put` or held send of a transfer.
    pub(super) fn operation_done(&mut self, number: u64, good: bool) {
        if let Some(transfer) = self.transfers.get_mut(number) {
            transfer.open = false;
            transfer.refused |= !good;
            self.work.push_back(Work::Step(number));
        }
    }
}

/// Keeps a registration on the transfer's transport until its request is complete. `None` if the
/// key is empty or too long.
fn hold_region(transfer: &mut Transfer, region: &btl::Region) -> Option<RegionKey> {
    let key = RegionKey::of(&region.key).filter(|key| !key.bytes().is_empty())?;
    transfer.region = Some((transfer.transport, region.handle));
    Some(key)
}
