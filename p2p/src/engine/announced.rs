//! Announced messages at either end: what is known of one, and what peers and transports say of it.

use btl::Rank;

use super::choice::Route;
use super::incoming::From;
use super::rails::Plan;
use super::{Engine, Outcome, State, Work};
use crate::matching::unexpected::RegionKey;

/// How the bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The sender waits for the receiver, or the receiver has not begun.
    Open,
    /// The receiver gets, or the sender puts.
    OneSided,
    Fragments,
    /// An ordinary message whose body the transport takes from the program's memory.
    Held,
}

/// A long message under way, at one of its ends.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) request: u64,
    /// The other end's number for it.
    pub(crate) remote: u64,
    pub(super) peer: Rank,
    /// For one-sided operations, with the key to use.
    pub(super) transport: u8,
    pub(super) key: RegionKey,
    /// Bytes the receiver wants; bytes begun; bytes moved.
    pub(crate) wanted: usize,
    pub(crate) issued: usize,
    pub(super) moved: usize,
    pub(super) way: Way,
    /// A receive whose way is measured.
    pub(super) route: Option<Route>,
    /// A send over several lanes: what each carries of it.
    pub(super) plan: Option<Plan>,
    /// One-sided operations that the transport will complete.
    pub(crate) open: u32,
    /// One failed.
    pub(super) broken: bool,
    /// The receiver learns of the end by the last `put` itself.
    pub(super) told: bool,
    /// Peer failed; ends when no operation is open.
    pub(crate) doomed: bool,
    /// The own memory as the peer may use it.
    pub(crate) region: Option<(u8, u64)>,
    /// The own memory as the transport knows it before anybody may use it (see `ahead.rs`).
    pub(crate) ahead: Option<(u8, u64)>,
}

/// A `get` or `put` that its transport will complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(super) transfer: u64,
    pub(super) length: usize,
}

impl Transfer {
    pub(super) fn new(request: u64, peer: Rank, transport: u8) -> Transfer {
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
            route: None,
            plan: None,
            open: 0,
            broken: false,
            told: false,
            doomed: false,
            region: None,
            ahead: None,
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
        let Some(request) = self.requests.get_mut(receive) else {
            return;
        };
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
        let fits = send.is_send()
            && send.peer == from.rank
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
        send.state = State::Moving;
        (transfer.remote, transfer.wanted) = (target, wanted);
        match key {
            Some(key) => {
                (transfer.key, transfer.transport, transfer.way) =
                    (key, from.transport, Way::OneSided);
                self.work.push_back(Work::Step(number));
            }
            None => self.stream(from.rank, number),
        }
        Ok(())
    }

    pub(super) fn stream(&mut self, rank: Rank, number: u64) {
        let now = self.nanos();
        let cap = self.config.fragment.unwrap_or(usize::MAX);
        let Some(transfer) = self.transfers.get_mut(number) else {
            return;
        };
        (transfer.way, transfer.issued, transfer.moved) = (Way::Fragments, 0, 0);
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            let piece = peer
                .lanes
                .iter()
                .map(|lane| lane.fragment(cap))
                .min()
                .unwrap_or(1);
            let wanted = transfer.wanted;
            transfer.plan = peer
                .rails
                .as_mut()
                .map(|rails| rails.begin(now, wanted, piece));
            peer.streams.push_back(number);
            self.activate(rank);
        }
    }

    pub(crate) fn fragment(
        &mut self,
        from: From,
        target: u64,
        (offset, tell): (u64, bool),
        body: &[u8],
    ) -> Result<(), String> {
        let unknown = || format!("sends a fragment to {target:#x}, which expects none of it");
        let request = *self.requests.get(target).ok_or_else(unknown)?;
        let fits =
            !request.is_send() && request.peer == from.rank && request.state == State::Moving;
        let transfer = self
            .transfers
            .get_mut(request.transfer)
            .filter(|_| fits)
            .ok_or_else(unknown)?;
        let end = usize::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(body.len()));
        let left = transfer.wanted.saturating_sub(transfer.moved);
        // What we fetch ourselves is nobody's to send, not even between two pieces.
        if transfer.way != Way::Fragments || transfer.doomed || transfer.open != 0 {
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
            let (number, remote) = (request.transfer, transfer.remote);
            self.note_route(number);
            self.stats.by_fragments += 1;
            self.end(target, Outcome::Done);
            if tell {
                self.confirm(from.rank, Some(remote));
            }
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
                let region = transfer
                    .is_some_and(|transfer| transfer.region.is_some() && transfer.moved == 0);
                !request.is_send() && request.state == State::Moving && region
            } else {
                // Over several lanes a send is over when all of its fragments have come.
                let sent = self
                    .transfers
                    .get(request.transfer)
                    .is_some_and(|transfer| {
                        transfer.plan.is_some()
                            && transfer.issued == transfer.wanted
                            && transfer.wanted != 0
                    });
                request.is_send()
                    && (request.state == State::Waiting || request.state == State::Moving && sent)
            };
        if !fits {
            return Err(unknown());
        }
        self.stats.by_put += u64::from(written);
        self.note_plan(request.transfer);
        self.end(key, Outcome::Done);
        Ok(())
    }

    /// A transport has completed a `get` or `put`.
    pub(crate) fn operation_over(&mut self, token: u64, good: bool) {
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
            transfer.broken = true;
        }
        self.work.push_back(Work::Step(operation.transfer));
    }

    /// A receive is complete: its way has shown how fast it is.
    pub(super) fn note_route(&mut self, number: u64) {
        let Some(transfer) = self.transfers.get_mut(number) else {
            return;
        };
        let Some(route) = transfer.route.take() else {
            return;
        };
        let (rank, length) = (transfer.peer, transfer.wanted);
        let now = self.nanos();
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.choice.over(now, length, route);
        }
    }

    /// A send is complete: its lanes have shown how fast they are.
    fn note_plan(&mut self, number: u64) {
        let Some(transfer) = self.transfers.get_mut(number) else {
            return;
        };
        let Some(plan) = transfer.plan.take() else {
            return;
        };
        let (rank, length) = (transfer.peer, transfer.wanted);
        let now = self.nanos();
        if let Some(rails) = self
            .peers
            .get_mut(rank as usize)
            .and_then(|peer| peer.rails.as_mut())
        {
            rails.over(now, length, &plan);
        }
    }

    /// Nanoseconds since the layer was made.
    pub(super) fn nanos(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
