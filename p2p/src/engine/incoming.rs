//! Events of transports.

use crate::ids::{Label, PeerId, TransportId};
use btl::{Events, PeerError, Rank, Tx};

use super::account::cost;
use super::protocol::{Protocol, Work};
use super::request::RequestOutcome;
use crate::matching::unexpected::{Arrival, RegionKey};
use crate::wire::{self, ASK, Header, Sequenced};

/// The events of one transport.
pub(super) struct Handler<'a> {
    pub(super) protocol: &'a mut Protocol,
    pub(super) transport: TransportId,
}

/// Origin of a message.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) transport: TransportId,
    pub(super) peer: PeerId,
}

impl Handler<'_> {
    /// Checks a rank reported by a transport. A rank that is not in the job is a bug of the
    /// transport, which never received it.
    #[inline]
    fn peer(&self, rank: Rank) -> Option<PeerId> {
        let peer = self.protocol.peers.id(rank);
        debug_assert!(peer.is_some(), "event of rank {rank}, which does not exist");
        peer
    }
}

impl Events for Handler<'_> {
    #[inline]
    fn message(&mut self, _: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        let Some(peer) = self.peer(peer) else {
            return;
        };
        let origin = Origin {
            transport: self.transport,
            peer,
        };
        let protocol = &mut *self.protocol;
        let state = &mut protocol.peers[peer];
        state.count_received(self.transport, body.len());
        // Common case: an eager message, in order, without a request for credit.
        if let Ok(&[wire::EAGER, 0, s0, s1, c0, c1, c2, c3, t0, t1, t2, t3]) =
            <&[u8; wire::EAGER_LENGTH]>::try_from(header)
        {
            let tag = u32::from_le_bytes([t0, t1, t2, t3]);
            let context = u32::from_le_bytes([c0, c1, c2, c3]);
            if state.next_in == u16::from_le_bytes([s0, s1])
                && tag <= wire::NARROW
                && state.alive
                && protocol.contexts.is_member(context, peer)
                && state.account.hear(cost(body.len()), false)
            {
                state.next_in = state.next_in.wrapping_add(1);
                let tag = u64::from(tag);
                if !protocol.direct_takes(context, peer, tag, body) {
                    let label = Label {
                        context,
                        tag,
                        data: None,
                    };
                    protocol.eager(peer, label, body, None);
                }
                return;
            }
        }
        protocol.post_direct();
        if let Err(reason) = protocol.any_message(origin, header, body) {
            protocol.violation(peer, reason);
        }
    }

    fn completed(&mut self, _: &mut dyn Tx, token: u64, result: Result<(), PeerError>) {
        self.protocol.operation_done(token, result.is_ok());
    }

    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        let Some(peer) = self.peer(peer) else {
            return;
        };
        let rails = &mut self.protocol.peers[peer].rails;
        // A transport that is not used for the peer is ignored.
        let Some(rail) = rails
            .iter_mut()
            .find(|rail| rail.transport == self.transport)
        else {
            return;
        };
        // A peer that leaves does so on every rail, after its last message there.
        rail.left |= error == PeerError::Left;
        rail.gone |= matches!(error, PeerError::Left | PeerError::Gone);
        let some_left = rails.iter().any(|rail| rail.left);
        let error = match error {
            PeerError::Left | PeerError::Gone if !rails.iter().all(|rail| rail.gone) => return,
            PeerError::Gone | PeerError::Died | PeerError::Lost(_) if some_left => PeerError::Left,
            error => error,
        };
        self.protocol.fail(peer, error, None);
    }
}

impl Protocol {
    /// Handles any message. An error closes the peer.
    fn any_message(&mut self, from: Origin, header: &[u8], body: &[u8]) -> Result<(), String> {
        let header = Header::decode(header).map_err(|malformed| malformed.to_string())?;
        if !self.peers[from.peer].alive {
            return Ok(());
        }
        let empty = body.is_empty();
        match header {
            Header::Eager(sequenced, _) | Header::Rts(sequenced, ..) => {
                self.envelope(from, sequenced, header, body)
            }
            Header::Cts {
                request,
                target,
                length,
                put,
            } if put != empty => {
                let key = key_of(body)?;
                self.cts(from, request, target, length, put.then_some(key))
            }
            Header::Fragment { target, offset } if !empty => {
                self.fragment(from.peer, target, offset, body)
            }
            Header::Fin { request, written } if empty => self.fin(from.peer, request, written),
            Header::Credit { amount, rts_only } if empty => {
                self.credit(from.peer, amount, rts_only)
            }
            Header::Skew { late } if empty => {
                self.peer_skew(from.peer, late);
                Ok(())
            }
            Header::Bye => {
                self.bye(from.peer, body);
                Ok(())
            }
            Header::Access(access) => self.serve(from.peer, &access, body),
            Header::Result {
                request,
                offset,
                status,
            } => self.access_result(from.peer, request, (offset, status), body),
            _ => Err(format!(
                "a body of {} bytes does not fit {header:?}",
                body.len()
            )),
        }
    }

    fn bye(&mut self, peer: PeerId, reason: &[u8]) {
        let reason = reason.get(..wire::MAX_REASON).unwrap_or(reason);
        let reason: String = String::from_utf8_lossy(reason)
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let error = PeerError::Lost(format!("it closed the connection: {reason}"));
        self.fail(peer, error, None);
    }

    /// Handles an envelope: checks sequence, context and credit.
    fn envelope(
        &mut self,
        from: Origin,
        sequenced: Sequenced,
        header: Header,
        body: &[u8],
    ) -> Result<(), String> {
        let label = Label {
            context: sequenced.context,
            tag: sequenced.tag,
            data: sequenced.data,
        };
        let context = label.context;
        if sequenced.is_extended() && self.open.is_none() {
            return Err("a header of endpoints in a job of ranks".to_owned());
        }
        let state = &mut self.peers[from.peer];
        // P2P-2
        if sequenced.sequence != state.next_in {
            return Err(format!(
                "sequence number {} instead of {}",
                sequenced.sequence, state.next_in
            ));
        }
        if !self.contexts.was_used(context) {
            return Err(format!("context {context}, which does not exist"));
        }
        let is_freed = self.contexts.is_freed(context);
        // Receives that were pending when their communicator was freed still take messages.
        let gone = is_freed && self.posted.find(context, from.peer, label.tag).is_none();
        if !is_freed && !self.contexts.is_member(context, from.peer) {
            return Err(format!("context {context}, which it is not a member of"));
        }
        let eager = matches!(header, Header::Eager(..));
        let asks = sequenced.flags & ASK != 0;
        // The body of an RTS is a key, which the fixed cost covers.
        if !state
            .account
            .hear(cost(if eager { body.len() } else { 0 }), asks)
        {
            return Err("sends without credit".to_owned());
        }
        state.next_in = state.next_in.wrapping_add(1);
        match header {
            Header::Eager(_, sync) if gone => {
                self.send_fin(from.peer, sync);
            }
            Header::Eager(_, sync) => self.eager(from.peer, label, body, sync),
            Header::Rts(_, length, remote) => {
                let key = key_of(body)?;
                if gone {
                    self.send_fin(from.peer, Some(remote));
                } else {
                    let length =
                        usize::try_from(length).map_err(|_| format!("a length of {length}"))?;
                    self.rts(from, label, (length, remote, key));
                }
            }
            _ => {}
        }
        if asks {
            self.settle(from.peer);
        }
        Ok(())
    }

    /// Handles EAGER.
    #[inline]
    fn eager(&mut self, peer: PeerId, label: Label, body: &[u8], sync: Option<u64>) {
        if let Some(key) = self.match_posted(peer, label) {
            self.deliver(key, peer, label, body);
            if sync.is_some() {
                self.send_fin(peer, sync);
            }
        } else {
            let body = self.unexpected.copy(body);
            self.keep(peer, label, Arrival::Eager { body, sync });
        }
    }

    /// Handles RTS.
    fn rts(&mut self, from: Origin, label: Label, (length, remote, key): (usize, u64, RegionKey)) {
        match self.match_posted(from.peer, label) {
            Some(receive) => self.start_receive(receive, from, label, (length, remote, key)),
            None => {
                let arrival = Arrival::Rts {
                    length,
                    remote,
                    key,
                    transport: from.transport,
                };
                self.keep(from.peer, label, arrival);
            }
        }
    }

    /// Keeps a message that no receive matches.
    pub(super) fn keep(&mut self, peer: PeerId, label: Label, arrival: Arrival) {
        let body = match &arrival {
            Arrival::Eager { body, .. } => body.len(),
            _ => 0,
        };
        let price = cost(body);
        self.unexpected.add(peer, label, arrival, price);
        self.charge(peer, price);
        self.stats.unexpected += 1;
        self.check_skew();
        if self.skew.late {
            self.send_skew(peer);
        }
    }

    /// Removes the oldest posted receive that matches a message of a peer, and returns it.
    #[inline]
    pub(super) fn match_posted(&mut self, peer: PeerId, label: Label) -> Option<u64> {
        let place = self.posted.find(label.context, peer, label.tag)?;
        let key = self.requests.key_at(place)?;
        let selector = self.requests[key].selector();
        self.posted.remove(place, &selector);
        Some(key)
    }

    /// Copies an eager message into a receive, which ends.
    #[inline]
    pub(super) fn deliver(&mut self, key: u64, peer: PeerId, label: Label, body: &[u8]) {
        let request = &mut self.requests[key];
        request.memory.fill(0, body);
        request.peer = Some(peer);
        (request.tag, request.data) = (label.tag, label.data);
        request.length = body.len();
        self.end(key, RequestOutcome::Done);
    }

    /// Sends FIN for a synchronous or rendezvous message: the receiver has it.
    pub(super) fn send_fin(&mut self, peer: PeerId, request: Option<u64>) {
        if let Some(request) = request {
            let header = Header::Fin {
                request,
                written: false,
            };
            self.control(peer, header);
        }
    }

    /// Fails a peer that violated the protocol, and sends it the reason.
    #[cold]
    pub(super) fn violation(&mut self, peer: PeerId, reason: String) {
        self.fail(peer, PeerError::Violation(reason.clone()), Some(reason));
    }

    /// Marks a peer as failed. Its requests end before this poll returns. `reason` is sent to it.
    #[cold]
    pub(super) fn fail(&mut self, peer: PeerId, error: PeerError, reason: Option<String>) {
        let state = &self.peers[peer];
        if !state.alive || state.own {
            return;
        }
        self.post_direct();
        let state = &mut self.peers[peer];
        state.alive = false;
        state.failed = Some(error);
        state.refresh();
        self.stats.failed_peers += 1;
        self.work.push_back(Work::Failed(peer, reason));
    }
}

/// Reads the key of a region from a body.
fn key_of(body: &[u8]) -> Result<RegionKey, String> {
    RegionKey::of(body).ok_or_else(|| format!("a key of {} bytes", body.len()))
}
