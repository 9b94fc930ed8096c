//! Rendezvous: RTS, CTS, FRAGMENT and FIN at either end.

use super::incoming::Origin;
use super::outgoing::Attempt;
use super::protocol::{Protocol, Work};
use super::request::{Outcome, Request, State};
use super::transfer::{Method, Transfer};
use super::transports::Engine;
use crate::ids::{PeerId, TransportId};
use crate::matching::unexpected::RegionKey;
use crate::memory::ReadMem;
use crate::wire::Header;

impl Engine {
    /// Sends RTS for a long message, with a key if the receiver may get it.
    pub(super) fn send_rts(
        &mut self,
        peer: PeerId,
        key: u64,
        request: &Request,
        memory: ReadMem,
    ) -> Attempt {
        let Some(primary) = self.protocol.peers[peer].primary() else {
            return Attempt::Blocked;
        };
        let mut number = request.transfer;
        if number == 0 {
            let mut transfer = Transfer::new(key, peer, primary);
            self.register_for_get(&mut transfer, memory);
            number = self.protocol.transfers.insert(transfer);
            if let Some(request) = self.protocol.requests.get_mut(key) {
                request.transfer = number;
            }
        }
        let transfer = self.protocol.transfers.get(number);
        let region = transfer.map_or(RegionKey::NONE, |transfer| transfer.key);
        let length = memory.len() as u64;
        let attempt = self.send_envelope(peer, request, 0, region.bytes(), |sequenced| {
            Header::Rts(sequenced, length, key)
        });
        if attempt == Attempt::Sent {
            self.protocol.stats.rts_sent += 1;
            self.protocol.set_state(key, State::Waiting);
        }
        attempt
    }

    /// Advances a transfer.
    pub(super) fn step(&mut self, number: u64) {
        let Some(transfer) = self.protocol.transfers.get(number) else {
            return;
        };
        let (key, peer) = (transfer.request, transfer.peer);
        if transfer.doomed {
            let quiet = self.protocol.peers[peer].quiet;
            if transfer.open == 0 && (quiet || transfer.region.is_none()) {
                self.protocol.end(key, Outcome::Failed(peer));
            }
            return;
        }
        let sends = self
            .protocol
            .requests
            .get(key)
            .is_some_and(Request::is_send);
        match transfer.method {
            Method::Undecided if !sends => self.choose_method(number),
            Method::OneSided => self.move_bytes(number, sends),
            // A refused one ends with its peer, which has failed.
            Method::Held if transfer.open == 0 && !transfer.refused => {
                self.protocol.end(key, Outcome::Done);
            }
            Method::Undecided | Method::Held | Method::Fragments => {}
        }
    }

    /// Chooses how a receive gets its bytes: `get` if the RTS has a key, `put` from the threshold
    /// on, fragments otherwise.
    fn choose_method(&mut self, number: u64) {
        let Some(transfer) = self.protocol.transfers.get_mut(number) else {
            return;
        };
        let capabilities = self.transports[transfer.transport].capabilities;
        let tuning = &self.protocol.config.tuning;
        if !transfer.key.bytes().is_empty() && tuning.get && capabilities.get {
            transfer.method = Method::OneSided;
            return self.move_bytes(number, false);
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
}

impl Protocol {
    /// Starts to receive a message whose RTS arrived.
    pub(super) fn start_receive(
        &mut self,
        receive: u64,
        from: Origin,
        tag: i32,
        (length, remote, key): (usize, u64, RegionKey),
    ) {
        let Some(request) = self.requests.get_mut(receive) else {
            debug_assert!(false, "receive {receive:#x} matched and does not exist");
            return;
        };
        request.peer = Some(from.peer);
        request.tag = tag;
        request.length = length;
        let wanted = length.min(request.room());
        if wanted == 0 {
            self.end(receive, Outcome::Done);
            self.send_fin(from.peer, Some(remote));
            return;
        }
        request.state = State::Moving;
        let mut transfer = Transfer::new(receive, from.peer, from.transport);
        (transfer.remote, transfer.key, transfer.wanted) = (remote, key, wanted);
        request.transfer = self.transfers.insert(transfer);
        self.work.push_back(Work::Step(request.transfer));
    }

    /// Sends CTS for fragments.
    pub(super) fn request_fragments(&mut self, number: u64) {
        let Some(transfer) = self.transfers.get_mut(number) else {
            return;
        };
        (transfer.method, transfer.moved, transfer.issued) = (Method::Fragments, 0, 0);
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
        let unknown = || format!("CTS for send {request:#x} without an RTS");
        let send = self.requests.get_mut(request).ok_or_else(unknown)?;
        let fits = send.is_send()
            && send.peer == Some(from.peer)
            && send.state == State::Waiting
            && send.transfer != 0;
        let number = send.transfer;
        let transfer = self
            .transfers
            .get_mut(number)
            .filter(|_| fits)
            .ok_or_else(unknown)?;
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        if wanted > send.length {
            return Err(format!(
                "wants {length} bytes of a message of {}",
                send.length
            ));
        }
        let Some(key) = key else {
            send.state = State::Moving;
            (transfer.remote, transfer.wanted) = (target, wanted);
            self.start_fragments(number);
            return Ok(());
        };
        // P2P-9
        if self.peers[from.peer].primary() != Some(from.transport) {
            return Err("wants a put over another rail than that of envelopes".to_owned());
        }
        send.state = State::Moving;
        (transfer.remote, transfer.wanted) = (target, wanted);
        (transfer.key, transfer.method) = (key, Method::OneSided);
        self.work.push_back(Work::Step(number));
        Ok(())
    }

    /// Starts to send fragments.
    pub(super) fn start_fragments(&mut self, number: u64) {
        let Some(transfer) = self.transfers.get_mut(number) else {
            return;
        };
        (transfer.method, transfer.issued, transfer.moved) = (Method::Fragments, 0, 0);
        let peer = transfer.peer;
        transfer.shares = self.peers[peer].shares(transfer.wanted);
        self.peers[peer].streams.push_back(number);
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
        let unknown = || format!("sends a fragment to {target:#x}, which expects none of it");
        let request = *self.requests.get(target).ok_or_else(unknown)?;
        let fits =
            !request.is_send() && request.peer == Some(peer) && request.state == State::Moving;
        let transfer = self
            .transfers
            .get_mut(request.transfer)
            .filter(|_| fits)
            .ok_or_else(unknown)?;
        // While this process gets, the peer may not send, not even between two gets.
        if transfer.method != Method::Fragments || transfer.doomed || transfer.open != 0 {
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
        let over = transfer.moved == transfer.wanted;
        request.fill(start, body);
        if over {
            self.stats.by_fragments += 1;
            self.end(target, Outcome::Done);
        }
        Ok(())
    }

    /// Handles FIN.
    pub(super) fn fin(&mut self, peer: PeerId, key: u64, written: bool) -> Result<(), String> {
        let unknown = || format!("ends request {key:#x}, which is none of its");
        let request = *self.requests.get(key).ok_or_else(unknown)?;
        let expected = if written {
            // Only if the peer was given a region to write to.
            let transfer = self.transfers.get(request.transfer);
            let region =
                transfer.is_some_and(|transfer| transfer.region.is_some() && transfer.moved == 0);
            !request.is_send() && request.state == State::Moving && region
        } else {
            request.is_send() && request.state == State::Waiting
        };
        if request.peer != Some(peer) || !expected {
            return Err(unknown());
        }
        self.stats.by_put += u64::from(written);
        self.end(key, Outcome::Done);
        Ok(())
    }

    /// Handles the completion of a `get`, `put` or held send.
    pub(super) fn operation_over(&mut self, token: u64, good: bool) {
        let Some(operation) = self.operations.remove(token, 0) else {
            return;
        };
        let Some(transfer) = self.transfers.get_mut(operation.transfer) else {
            return;
        };
        transfer.open = transfer.open.saturating_sub(1);
        if good {
            transfer.moved += operation.length;
        } else {
            transfer.refused = true;
        }
        self.work.push_back(Work::Step(operation.transfer));
    }

    /// Keeps a registration until its request is over. `None`: the key is empty or too long.
    pub(super) fn hold_region(
        transfer: &mut Transfer,
        transport: TransportId,
        region: &btl::Region,
    ) -> Option<RegionKey> {
        let key = RegionKey::of(&region.key).filter(|key| !key.bytes().is_empty())?;
        transfer.region = Some((transport, region.handle));
        Some(key)
    }
}
