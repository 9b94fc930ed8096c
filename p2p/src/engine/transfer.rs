//! Announced messages: got, put, or sent in fragments; and messages put into receives that peers can see.

use btl::{PostedDelivery, PostedReceive, Rank, RegisterError, SendError, Started};

use super::announced::{Operation, Transfer, Way};
use super::choice::{self, Route};
use super::outgoing::Went;
use super::pressure::cost;
use super::{Core, Memory, Outcome, Request, State};
use crate::matching::unexpected::RegionKey;
use crate::memory::{ReadMem, WriteMem};
use crate::shared::Wanted;
use crate::wire::{self, ASK, Header, Sequenced};

impl Core {
    /// Tries to put a long message into a receive that the peer has shown. `Not`: there is none.
    pub(crate) fn try_matched(
        &mut self,
        rank: Rank,
        key: u64,
        request: &Request,
        memory: ReadMem,
    ) -> Went {
        let Some(peer) = self.engine.peers.get(rank as usize) else {
            return Went::Not;
        };
        let Some(transport) = self.transports.get_mut(usize::from(peer.transport)) else {
            return Went::Not;
        };
        // Its transfer is there when it was tried before, and only the announcement found no room.
        let possible = self.engine.config.matched
            && transport.capabilities.posted_receives
            && memory.len() >= peer.one_sided_from
            && peer.one_sided.is_some()
            && !peer.mixed()
            && request.transfer == 0;
        if !possible {
            return Went::Not;
        }
        let envelope = btl::Envelope {
            context: request.context,
            tag: request.tag,
        };
        // SAFETY: the memory is readable until the request is over, and it is not over.
        match unsafe {
            transport
                .btl
                .send_to_posted(rank, envelope, memory.at(0), memory.len())
        } {
            Ok(PostedDelivery::Delivered) => {
                self.engine.stats.matched_sent += 1;
                self.engine.end(key, Outcome::Done);
                Went::Out
            }
            Err(SendError::Failed { error, .. }) => {
                self.engine.fail(rank, error, None);
                Went::Failed
            }
            Ok(PostedDelivery::NotPosted) | Err(_) => Went::Not,
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
                let Some(peer) = self.engine.peers.get(rank as usize) else {
                    return false;
                };
                if peer.private != 0
                    || peer.own
                    || peer.mixed()
                    || memory.len() < peer.one_sided_from
                {
                    return false;
                }
                peer.transport
            }
        };
        let Some(transport) = self.transports.get_mut(usize::from(number)) else {
            return false;
        };
        if !transport.capabilities.posted_receives {
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
        let Some(post) = (unsafe { transport.btl.post(&receive) }) else {
            return false;
        };
        if let Some(request) = self.engine.requests.get_mut(key) {
            request.post = Some((number, post));
        }
        true
    }

    /// Announces a long message.
    pub(crate) fn announce(
        &mut self,
        rank: Rank,
        key: u64,
        request: &Request,
        memory: ReadMem,
    ) -> Went {
        let number = if request.transfer == 0 {
            let number = self.new_announcement(rank, key, memory);
            if let Some(request) = self.engine.requests.get_mut(key) {
                request.transfer = number;
            }
            number
        } else {
            request.transfer
        };
        let Some(transfer) = self.engine.transfers.get(number) else {
            return Went::Not;
        };
        // Only the transport that has the region understands its key, and it may be lost by now.
        let lane = transfer.region.and_then(|(region, _)| {
            let peer = self.engine.peers.get(rank as usize)?;
            peer.lanes
                .iter()
                .position(|lane| lane.alive && lane.transport == region)
        });
        let region = if lane.is_some() {
            transfer.key
        } else {
            RegionKey::NONE
        };
        let went = self.send_envelope(rank, 0, lane, region.bytes(), |envelope| {
            Header::Announce(envelope, memory.len() as u64, key).with(request.context, request.tag)
        });
        if went == Went::Out {
            self.engine.stats.announced += 1;
            self.set_state(key, State::Waiting);
            self.register_ahead(rank, number, memory);
        }
        went
    }

    /// Sends an ordinary message whose body stays where it is. `None`: not this way.
    pub(crate) fn send_held(
        &mut self,
        rank: Rank,
        key: u64,
        request: &Request,
        memory: ReadMem,
    ) -> Option<Went> {
        let peer = self.engine.peers.get_mut(rank as usize)?;
        let price = cost(memory.len());
        if memory.len() < peer.held_from || request.sync || peer.mixed() {
            return None;
        }
        if !peer.account.can_pay(price) {
            return Some(Went::Not);
        }
        let flags = if peer.account.asks(price) { ASK } else { 0 };
        let header = wire::eager(flags, peer.next_out, request.context, request.tag);
        let number = peer.transport;
        let transport = self.transports.get_mut(usize::from(number))?;
        let transfer = Transfer {
            way: Way::Held,
            open: 1,
            ..Transfer::new(key, rank, number)
        };
        let transfer = self.engine.transfers.insert(transfer);
        let token = self.engine.operations.insert(Operation {
            transfer,
            length: memory.len(),
        });
        // SAFETY: valid and unchanged until the request is over: not before completion.
        let result = unsafe {
            transport
                .btl
                .send_held(rank, &header, memory.at(0), memory.len(), token)
        };
        if result != Ok(Started::Pending) {
            self.engine.operations.remove(token, 0);
            self.engine.transfers.remove(transfer, 0);
        }
        match result {
            Ok(started) => {
                let peer = self.engine.peers.get_mut(rank as usize)?;
                peer.account.pay(price);
                peer.next_out = peer.next_out.wrapping_add(1);
                self.engine.stats.eager_sent += 1;
                if started == Started::Done {
                    self.engine.end(key, Outcome::Done);
                } else if let Some(request) = self.engine.requests.get_mut(key) {
                    (request.transfer, request.state) = (transfer, State::Moving);
                    self.engine.stats.held_sent += 1;
                }
                Some(Went::Out)
            }
            Err(SendError::Unsupported) => None,
            Err(error) => Some(self.refused(rank, error)),
        }
    }

    /// The sender's end of a transfer, with its memory registered if the receiver may get it.
    fn new_announcement(&mut self, rank: Rank, key: u64, memory: ReadMem) -> u64 {
        let mut transfer = Transfer::new(key, rank, 0);
        let one_sided = self.engine.peers.get(rank as usize).and_then(|peer| {
            let lane = peer.lanes.get(peer.one_sided?)?;
            let config = &self.engine.config;
            // Where the receiver measures, it gets the choice.
            let from = peer.one_sided_from.min(if config.adapt {
                choice::FROM
            } else {
                usize::MAX
            });
            (config.get && memory.len() >= from).then_some(lane.transport)
        });
        if let Some(number) = one_sided
            && let Some(transport) = self.transports.get_mut(usize::from(number))
            && transport.capabilities.get
        {
            // SAFETY: valid until the request is over, and the region is given back before anybody hears that it is. A peer that is
            // given a key to get by and writes instead is another process, against which memory it may write is no defence.
            let region = unsafe {
                transport
                    .btl
                    .register(memory.at(0).cast_mut(), memory.len())
            };
            if let Ok(region) = region {
                match RegionKey::of(&region.key) {
                    Some(key) => {
                        (transfer.key, transfer.region) = (key, Some((number, region.handle)))
                    }
                    None => transport.btl.deregister(region.handle),
                }
            }
        }
        self.engine.transfers.insert(transfer)
    }

    /// Takes a transfer as far as it goes now.
    pub(crate) fn step(&mut self, number: u64) -> usize {
        let Some(transfer) = self.engine.transfers.get(number) else {
            return 0;
        };
        let (key, rank) = (transfer.request, transfer.peer);
        if transfer.doomed {
            let quiet = self
                .engine
                .peers
                .get(rank as usize)
                .is_none_or(|peer| peer.quiet);
            if transfer.open == 0 && (quiet || transfer.region.is_none()) {
                self.engine.end(key, Outcome::Failed(rank));
            }
            return 1;
        }
        let sends = self.engine.requests.get(key).is_some_and(Request::is_send);
        match transfer.way {
            Way::Open if !sends => {
                self.choose_way(number);
                self.engine.forget_ahead(number);
            }
            Way::OneSided if transfer.broken => {
                if transfer.open == 0 {
                    self.fall_back(number, sends);
                }
            }
            Way::OneSided => self.move_pieces(number, sends),
            // Broken: its peer has failed, which ends it.
            Way::Held if transfer.open == 0 && !transfer.broken => {
                self.engine.end(key, Outcome::Done)
            }
            Way::Held | Way::Open | Way::Fragments => {}
        }
        1
    }

    /// The receiver decides how to have the bytes.
    fn choose_way(&mut self, number: u64) {
        let Some(transfer) = self.engine.transfers.get_mut(number) else {
            return;
        };
        let (rank, transport) = (transfer.peer, transfer.transport);
        let capabilities = self
            .transports
            .get(usize::from(transport))
            .map(|t| t.capabilities)
            .unwrap_or_default();
        if !transfer.key.bytes().is_empty() && self.engine.config.get && capabilities.get {
            if self.route(number) == Route::Get {
                if let Some(transfer) = self.engine.transfers.get_mut(number) {
                    transfer.way = Way::OneSided;
                }
                self.move_pieces(number, false);
            } else {
                self.accept_fragments(number);
            }
            return;
        }
        let worth = self.engine.peers.get(rank as usize).is_some_and(|peer| {
            let lane = peer.one_sided.and_then(|at| peer.lanes.get(at));
            lane.is_some_and(|lane| lane.transport == transport)
                && transfer.wanted >= peer.one_sided_from
        });
        if worth && self.engine.config.put && capabilities.put {
            self.offer_put(number);
        } else {
            self.accept_fragments(number);
        }
    }

    /// By `get` or in fragments, where both are possible.
    fn route(&mut self, number: u64) -> Route {
        let now = self.engine.nanos();
        let Some(transfer) = self.engine.transfers.get_mut(number) else {
            return Route::Get;
        };
        let Some(peer) = self.engine.peers.get_mut(transfer.peer as usize) else {
            return Route::Get;
        };
        if !self.engine.config.adapt || transfer.wanted < choice::FROM || peer.mixed() {
            return Route::Get;
        }
        let first = if transfer.wanted >= peer.one_sided_from {
            Route::Get
        } else {
            Route::Fragments
        };
        let route = peer.choice.begin(now, transfer.wanted, first);
        transfer.route = Some(route);
        route
    }

    /// Asks the sender to put the bytes into the receiver's memory.
    fn offer_put(&mut self, number: u64) {
        let Some(transfer) = self.engine.transfers.get_mut(number) else {
            return;
        };
        let Some(Memory::Write(memory)) = self
            .engine
            .requests
            .get(transfer.request)
            .map(|request| request.memory)
        else {
            return;
        };
        let Some(transport) = self.transports.get_mut(usize::from(transfer.transport)) else {
            return;
        };
        // What the sender would say behind the bytes, if its transport can say it with them.
        let done = Header::Done {
            request: transfer.request,
            written: true,
        };
        let notice = done.encode();
        // SAFETY: writable and nobody else's until the request is over, and given back before anybody hears that it is.
        let region = unsafe {
            transport.btl.register_noticed(
                memory.at(0),
                transfer.wanted,
                transfer.peer,
                notice.bytes(),
            )
        };
        let region = match region {
            Err(RegisterError::Unsupported) => {
                // SAFETY: as above.
                unsafe { transport.btl.register(memory.at(0), transfer.wanted) }
            }
            region => region,
        };
        let offered = region
            .ok()
            .and_then(|region| Some((RegionKey::of(&region.key)?, region.handle)));
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
        let Some(transfer) = self.engine.transfers.get_mut(number) else {
            return;
        };
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
        let Some(transfer) = self.engine.transfers.get_mut(number) else {
            return;
        };
        transfer.broken = false;
        if let Some(route) = transfer.route.take()
            && let Some(peer) = self.engine.peers.get_mut(transfer.peer as usize)
        {
            peer.choice.give_up(transfer.wanted, route);
        }
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
            let Some(transfer) = self.engine.transfers.get_mut(number) else {
                return;
            };
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
            let Some(request) = self.engine.requests.get(transfer.request) else {
                return;
            };
            let Some(transport) = self.transports.get_mut(usize::from(transfer.transport)) else {
                return;
            };
            let (offset, rank) = (transfer.issued, transfer.peer);
            let length = piece.min(transfer.wanted - offset);
            let key = transfer.key;
            // With several lanes all messages are counted, so none may come with the bytes.
            let alone = self
                .engine
                .peers
                .get(rank as usize)
                .is_some_and(|peer| !peer.mixed());
            let token = self.engine.operations.insert(Operation {
                transfer: number,
                length,
            });
            let result = match request.memory {
                // SAFETY: `offset + length` is within the memory, valid until the request is over: not before completion.
                Memory::Write(memory) => unsafe {
                    transport
                        .btl
                        .get(rank, memory.at(offset), length, key.bytes(), offset, token)
                },
                // SAFETY: likewise.
                Memory::Read(memory) => unsafe {
                    let btl = &mut transport.btl;
                    let last = alone && offset + length == transfer.wanted;
                    let result = if last {
                        btl.put_last(rank, memory.at(offset), length, key.bytes(), offset, token)
                    } else {
                        Err(SendError::Unsupported)
                    };
                    transfer.told = last && result.is_ok();
                    match result {
                        Err(SendError::Unsupported) => {
                            btl.put(rank, memory.at(offset), length, key.bytes(), offset, token)
                        }
                        result => result,
                    }
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
                Err(SendError::Failed { error, .. }) if alone => {
                    self.engine.fail(rank, error, None);
                    return;
                }
                // Of several transports another one goes on.
                Err(_) => transfer.broken = true,
            }
        }
    }

    fn one_sided_over(&mut self, number: u64, sends: bool) {
        let Some(transfer) = self.engine.transfers.get(number) else {
            return;
        };
        let (rank, key, told) = (transfer.peer, transfer.request, transfer.told);
        let header = Header::Done {
            request: transfer.remote,
            written: sends,
        };
        let transport = sends.then_some(transfer.transport);
        self.engine.stats.by_get += u64::from(!sends);
        self.engine.note_route(number);
        self.engine.end(key, Outcome::Done);
        if !told {
            self.engine
                .control_with(rank, header, RegionKey::NONE, transport);
        }
    }
}

impl Header {
    /// With the envelope filled in.
    pub(crate) fn with(self, context: u32, tag: i32) -> Header {
        match self {
            Header::Eager(envelope, sync) => Header::Eager(
                Sequenced {
                    context,
                    tag,
                    ..envelope
                },
                sync,
            ),
            Header::Announce(envelope, length, request) => Header::Announce(
                Sequenced {
                    context,
                    tag,
                    ..envelope
                },
                length,
                request,
            ),
            other => other,
        }
    }
}
