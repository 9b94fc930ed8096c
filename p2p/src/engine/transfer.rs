//! Announced messages: got, put, or sent in fragments; and messages put into receives that peers can see.

use btl::{Matched, PostedReceive, Rank, SendError, Started};

use super::incoming::From;
use super::outgoing::Went;
use super::{Core, Engine, Memory, Outcome, Request, State, Work};
use crate::matching::unexpected::RegionKey;
use crate::memory::{ReadMem, WriteMem};
use crate::shared::Wanted;
use crate::wire::{Header, Sequenced};

/// How the bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The sender waits for the receiver, or the receiver has not begun.
    Open,
    /// The receiver gets, or the sender puts.
    OneSided,
    Fragments,
}

/// A long message under way, at one of its ends.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) request: u64,
    /// The other end's number for it.
    pub(crate) remote: u64,
    peer: Rank,
    /// For one-sided operations, with the key to use.
    transport: u8,
    key: RegionKey,
    /// Bytes the receiver wants; bytes begun; bytes moved.
    pub(crate) wanted: usize,
    pub(crate) issued: usize,
    moved: usize,
    way: Way,
    /// One-sided operations that the transport will complete.
    pub(crate) open: u32,
    /// One failed.
    broken: bool,
    /// Peer failed; ends when no operation is open.
    pub(crate) doomed: bool,
    /// The own memory as the peer may use it.
    pub(crate) region: Option<(u8, u64)>,
}

/// A `get` or `put` that its transport will complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    transfer: u64,
    length: usize,
}

impl Transfer {
    fn new(request: u64, peer: Rank, transport: u8) -> Transfer {
        Transfer {
            request,
            remote: 0,
            peer,
            transport,
            key: RegionKey::NONE,
            wanted: 0,
            issued: 0,
            moved: 0,
            way: Way::Open,
            open: 0,
            broken: false,
            doomed: false,
            region: None,
        }
    }
}

impl Engine {
    /// A receive has its message, which was announced.
    pub(crate) fn begin_receive(
        &mut self,
        receive: u64,
        from: From,
        tag: i32,
        length: usize,
        remote: u64,
        key: RegionKey,
    ) {
        let Some(request) = self.requests.get_mut(receive) else { return };
        request.peer = from.rank;
        request.tag = tag;
        request.length = length;
        let wanted = length.min(request.room());
        if wanted == 0 {
            self.end(receive, Outcome::Done);
            self.confirm(from.rank, Some(remote));
            return;
        }
        request.state = State::Moving;
        let mut transfer = Transfer::new(receive, from.rank, from.transport);
        (transfer.remote, transfer.key, transfer.wanted) = (remote, key, wanted);
        let number = self.transfers.insert(transfer);
        request.transfer = number;
        self.work.push_back(Work::Step(number));
    }

    /// The receiver wants an announced message.
    pub(crate) fn accepted(
        &mut self,
        from: From,
        request: u64,
        target: u64,
        length: u64,
        key: Option<RegionKey>,
    ) -> Result<(), String> {
        let unknown = || format!("accepts send {request:#x}, which was not announced to it");
        let send = self.requests.get_mut(request).ok_or_else(unknown)?;
        let fits =
            send.is_send() && send.peer == from.rank && send.state == State::Waiting && send.transfer != 0;
        let number = send.transfer;
        let transfer = self.transfers.get_mut(number).filter(|_| fits).ok_or_else(unknown)?;
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        if wanted > send.length {
            return Err(format!("wants {length} bytes of a message of {}", send.length));
        }
        send.state = State::Moving;
        (transfer.remote, transfer.wanted) = (target, wanted);
        match key {
            Some(key) => {
                (transfer.key, transfer.transport, transfer.way) = (key, from.transport, Way::OneSided);
                self.work.push_back(Work::Step(number));
            }
            None => self.stream(from.rank, number),
        }
        Ok(())
    }

    fn stream(&mut self, rank: Rank, number: u64) {
        let Some(transfer) = self.transfers.get_mut(number) else { return };
        (transfer.way, transfer.issued, transfer.moved) = (Way::Fragments, 0, 0);
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.streams.push_back(number);
            self.activate(rank);
        }
    }

    pub(crate) fn fragment(
        &mut self,
        from: From,
        target: u64,
        offset: u64,
        body: &[u8],
    ) -> Result<(), String> {
        let unknown = || format!("sends a fragment to {target:#x}, which expects none of it");
        let request = *self.requests.get(target).ok_or_else(unknown)?;
        let fits = !request.is_send() && request.peer == from.rank && request.state == State::Moving;
        let transfer = self.transfers.get_mut(request.transfer).filter(|_| fits).ok_or_else(unknown)?;
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(body.len()));
        let left = transfer.wanted - transfer.moved;
        if transfer.way == Way::Open || transfer.doomed || transfer.open != 0 {
            return Err(unknown());
        }
        if body.len() > left || end.is_none_or(|end| end > transfer.wanted) {
            return Err(format!(
                "sends {} bytes at {offset}, of {} with {left} left",
                body.len(),
                transfer.wanted
            ));
        }
        transfer.moved += body.len();
        let over = transfer.moved == transfer.wanted;
        request.fill(offset as usize, body);
        if over {
            self.stats.by_fragments += 1;
            self.end(target, Outcome::Done);
        }
        Ok(())
    }

    /// The other side says that a request is over.
    pub(crate) fn done(&mut self, from: From, key: u64, written: bool) -> Result<(), String> {
        let unknown = || format!("ends request {key:#x}, which is none of its");
        let request = *self.requests.get(key).ok_or_else(unknown)?;
        let fits = request.peer == from.rank
            && if written {
                let transfer = self.transfers.get(request.transfer);
                // Only where the peer was given a region to write to.
                let region =
                    transfer.is_some_and(|transfer| transfer.region.is_some() && transfer.moved == 0);
                !request.is_send() && request.state == State::Moving && region
            } else {
                request.is_send() && request.state == State::Waiting
            };
        if !fits {
            return Err(unknown());
        }
        self.stats.by_put += u64::from(written);
        self.end(key, Outcome::Done);
        Ok(())
    }

    /// A transport has completed a `get` or `put`.
    pub(crate) fn operation_over(&mut self, token: u64, good: bool) {
        let Some(operation) = self.operations.remove(token, 0) else { return };
        let Some(transfer) = self.transfers.get_mut(operation.transfer) else { return };
        transfer.open = transfer.open.saturating_sub(1);
        if good {
            transfer.moved += operation.length;
        } else {
            transfer.broken = true;
        }
        self.work.push_back(Work::Step(operation.transfer));
    }
}

impl Core {
    /// Tries to put a long message into a receive that the peer has shown. `Not`: there is none.
    pub(crate) fn try_matched(&mut self, rank: Rank, key: u64, request: &Request, memory: ReadMem) -> Went {
        let Some(peer) = self.engine.peers.get(rank as usize) else { return Went::Not };
        let Some(transport) = self.transports.get_mut(usize::from(peer.transport)) else { return Went::Not };
        // Its transfer is there when it was tried before, and only the announcement found no room.
        let possible = self.engine.config.matched
            && transport.capabilities.matched
            && memory.len() >= peer.one_sided_from
            && peer.one_sided.is_some()
            && !peer.mixed()
            && request.transfer == 0;
        if !possible {
            return Went::Not;
        }
        let envelope = btl::Envelope { context: request.context, tag: request.tag };
        // SAFETY: the memory is readable until the request is over, and it is not over.
        match unsafe { transport.btl.send_matched(rank, envelope, memory.at(0), memory.len()) } {
            Ok(Matched::Delivered) => {
                self.engine.stats.matched_sent += 1;
                self.engine.end(key, Outcome::Done);
                Went::Out
            }
            Err(SendError::Failed { error, .. }) => {
                self.engine.fail(rank, error, None);
                Went::Failed
            }
            Ok(Matched::NotPosted) | Err(_) => Went::Not,
        }
    }

    /// Shows a receive to the peers it may come from, so that they can fill it. False: it stays private.
    pub(crate) fn show(&mut self, key: u64, memory: WriteMem, wanted: &Wanted) -> bool {
        let number = match wanted.source {
            // Everybody it may come from must see it: the one transport there is.
            None if self.transports.len() == 1 => {
                // Private named receives are older and may want the same message.
                if self.engine.private_named != 0 || memory.len() < self.engine.show_any_from {
                    return false;
                }
                0
            }
            None => return false,
            Some(rank) => {
                let Some(peer) = self.engine.peers.get(rank as usize) else { return false };
                if peer.private != 0 || peer.own || peer.mixed() || memory.len() < peer.one_sided_from {
                    return false;
                }
                peer.transport
            }
        };
        let Some(transport) = self.transports.get_mut(usize::from(number)) else { return false };
        if !transport.capabilities.matched {
            return false;
        }
        let receive = PostedReceive {
            source: wanted.source,
            context: wanted.context,
            tag: wanted.tag,
            buffer: memory.at(0),
            length: memory.len(),
            token: key,
        };
        // SAFETY: the memory is writable and nobody else's until the request is over, which it is not before the event or a
        // successful withdrawal.
        let Some(post) = (unsafe { transport.btl.post(&receive) }) else { return false };
        if let Some(request) = self.engine.requests.get_mut(key) {
            request.post = Some((number, post));
        }
        true
    }

    /// Announces a long message.
    pub(crate) fn announce(&mut self, rank: Rank, key: u64, request: &Request, memory: ReadMem) -> Went {
        let number = if request.transfer == 0 {
            let number = self.new_announcement(rank, key, memory);
            if let Some(request) = self.engine.requests.get_mut(key) {
                request.transfer = number;
            }
            number
        } else {
            request.transfer
        };
        let Some(transfer) = self.engine.transfers.get(number) else { return Went::Not };
        let region = transfer.key;
        let lane = transfer.region.and_then(|_| self.engine.peers.get(rank as usize)?.one_sided);
        let went = self.send_envelope(rank, 0, lane, region.bytes(), |envelope| {
            Header::Announce(envelope, memory.len() as u64, key).with(request.context, request.tag)
        });
        if went == Went::Out {
            self.engine.stats.announced += 1;
            self.set_state(key, State::Waiting);
        }
        went
    }

    /// The sender's end of a transfer, with its memory registered if the receiver may get it.
    fn new_announcement(&mut self, rank: Rank, key: u64, memory: ReadMem) -> u64 {
        let mut transfer = Transfer::new(key, rank, 0);
        let one_sided = self.engine.peers.get(rank as usize).and_then(|peer| {
            let lane = peer.lanes.get(peer.one_sided?)?;
            (self.engine.config.get && memory.len() >= peer.one_sided_from).then_some(lane.transport)
        });
        if let Some(number) = one_sided
            && let Some(transport) = self.transports.get_mut(usize::from(number))
            && transport.capabilities.get
        {
            // SAFETY: valid until the request is over, and the region is given back before anybody hears that it is. A peer that is
            // given a key to get by and writes instead is another process, against which memory it may write is no defence.
            let region = unsafe { transport.btl.register(memory.at(0).cast_mut(), memory.len()) };
            if let Ok(region) = region {
                match RegionKey::of(&region.key) {
                    Some(key) => (transfer.key, transfer.region) = (key, Some((number, region.handle))),
                    None => transport.btl.deregister(region.handle),
                }
            }
        }
        self.engine.transfers.insert(transfer)
    }

    /// Takes a transfer as far as it goes now.
    pub(crate) fn step(&mut self, number: u64) -> usize {
        let Some(transfer) = self.engine.transfers.get(number) else { return 0 };
        let (key, rank) = (transfer.request, transfer.peer);
        if transfer.doomed {
            if transfer.open == 0 {
                self.engine.end(key, Outcome::Failed(rank));
            }
            return 1;
        }
        let sends = self.engine.requests.get(key).is_some_and(Request::is_send);
        match transfer.way {
            Way::Open if !sends => self.choose_way(number),
            Way::OneSided if transfer.broken => {
                if transfer.open == 0 {
                    self.fall_back(number, sends);
                }
            }
            Way::OneSided => self.move_pieces(number, sends),
            Way::Open | Way::Fragments => {}
        }
        1
    }

    /// The receiver decides how to have the bytes.
    fn choose_way(&mut self, number: u64) {
        let Some(transfer) = self.engine.transfers.get_mut(number) else { return };
        let (rank, transport) = (transfer.peer, transfer.transport);
        let capabilities =
            self.transports.get(usize::from(transport)).map(|t| t.capabilities).unwrap_or_default();
        if !transfer.key.bytes().is_empty() && self.engine.config.get && capabilities.get {
            transfer.way = Way::OneSided;
            self.move_pieces(number, false);
            return;
        }
        let worth = self.engine.peers.get(rank as usize).is_some_and(|peer| {
            let lane = peer.one_sided.and_then(|at| peer.lanes.get(at));
            lane.is_some_and(|lane| lane.transport == transport) && transfer.wanted >= peer.one_sided_from
        });
        if worth && self.engine.config.put && capabilities.put {
            self.offer_put(number);
        } else {
            self.accept_fragments(number);
        }
    }

    /// Asks the sender to put the bytes into the receiver's memory.
    fn offer_put(&mut self, number: u64) {
        let Some(transfer) = self.engine.transfers.get_mut(number) else { return };
        let Some(Memory::Write(memory)) =
            self.engine.requests.get(transfer.request).map(|request| request.memory)
        else {
            return;
        };
        let Some(transport) = self.transports.get_mut(usize::from(transfer.transport)) else { return };
        // SAFETY: writable and nobody else's until the request is over, and given back before anybody hears that it is.
        let region = unsafe { transport.btl.register(memory.at(0), transfer.wanted) };
        let offered = region.ok().and_then(|region| Some((RegionKey::of(&region.key)?, region.handle)));
        let Some((key, handle)) = offered.filter(|(key, _)| !key.bytes().is_empty()) else {
            self.engine.stats.fallbacks += 1;
            self.accept_fragments(number);
            return;
        };
        transfer.region = Some((transfer.transport, handle));
        transfer.way = Way::Fragments;
        let (rank, transport) = (transfer.peer, transfer.transport);
        let header = Header::Accept {
            request: transfer.remote,
            target: transfer.request,
            length: transfer.wanted as u64,
            put: true,
        };
        self.engine.control_with(rank, header, key, Some(transport));
    }

    fn accept_fragments(&mut self, number: u64) {
        let Some(transfer) = self.engine.transfers.get_mut(number) else { return };
        (transfer.way, transfer.moved, transfer.issued) = (Way::Fragments, 0, 0);
        let header = Header::Accept {
            request: transfer.remote,
            target: transfer.request,
            length: transfer.wanted as u64,
            put: false,
        };
        let rank = transfer.peer;
        self.engine.control(rank, header);
    }

    /// One-sided operations are refused: everything once more in fragments.
    fn fall_back(&mut self, number: u64, sends: bool) {
        let Some(transfer) = self.engine.transfers.get_mut(number) else { return };
        transfer.broken = false;
        self.engine.stats.fallbacks += 1;
        if sends {
            let rank = transfer.peer;
            self.engine.stream(rank, number);
        } else {
            self.accept_fragments(number);
        }
    }

    /// Issues gets (of the receiver) or puts (of the sender).
    fn move_pieces(&mut self, number: u64, sends: bool) {
        let piece = self.engine.config.one_sided_piece.max(1);
        let depth = self.engine.config.one_sided_depth.max(1);
        loop {
            let Some(transfer) = self.engine.transfers.get_mut(number) else { return };
            if transfer.broken {
                if transfer.open == 0 {
                    self.fall_back(number, sends);
                }
                return;
            }
            if transfer.moved == transfer.wanted {
                self.one_sided_over(number, sends);
                return;
            }
            if transfer.open >= depth || transfer.issued == transfer.wanted {
                return;
            }
            let Some(request) = self.engine.requests.get(transfer.request) else { return };
            let Some(transport) = self.transports.get_mut(usize::from(transfer.transport)) else { return };
            let (offset, rank) = (transfer.issued, transfer.peer);
            let length = piece.min(transfer.wanted - offset);
            let key = transfer.key;
            let token = self.engine.operations.insert(Operation { transfer: number, length });
            let result = match request.memory {
                // SAFETY: `offset + length` is within the memory, valid until the request is over: not before completion.
                Memory::Write(memory) => unsafe {
                    transport.btl.get(rank, memory.at(offset), length, key.bytes(), offset, token)
                },
                // SAFETY: likewise.
                Memory::Read(memory) => unsafe {
                    transport.btl.put(rank, memory.at(offset), length, key.bytes(), offset, token)
                },
            };
            if !matches!(result, Ok(Started::Pending)) {
                self.engine.operations.remove(token, 0);
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
                        self.engine.again.push(number);
                    }
                    return;
                }
                Err(SendError::Failed { error, .. }) => {
                    self.engine.fail(rank, error, None);
                    return;
                }
                Err(_) => transfer.broken = true,
            }
        }
    }

    fn one_sided_over(&mut self, number: u64, sends: bool) {
        let Some(transfer) = self.engine.transfers.get(number) else { return };
        let (rank, key) = (transfer.peer, transfer.request);
        let header = Header::Done { request: transfer.remote, written: sends };
        let transport = sends.then_some(transfer.transport);
        self.engine.stats.by_get += u64::from(!sends);
        self.engine.end(key, Outcome::Done);
        self.engine.control_with(rank, header, RegionKey::NONE, transport);
    }
}

impl Header {
    /// With the envelope filled in.
    pub(crate) fn with(self, context: u32, tag: i32) -> Header {
        match self {
            Header::Eager(envelope, sync) => Header::Eager(Sequenced { context, tag, ..envelope }, sync),
            Header::Announce(envelope, length, request) => {
                Header::Announce(Sequenced { context, tag, ..envelope }, length, request)
            }
            other => other,
        }
    }
}
