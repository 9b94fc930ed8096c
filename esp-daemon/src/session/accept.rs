//! Listeners of one program: connections that wait for accepts, and accepts that wait for
//! connections.

use std::collections::VecDeque;
use std::sync::Arc;

use esp_client::control::{ErrorKind, Rings};
use esp_engine::{Arrival, Command, ListenerId};

use super::{ReplyWithFds, Session, SessionEnd};
use crate::accounts::Charge;
use crate::node::{Client, SessionEvent};
use crate::ports::{PortClaim, Purpose};
use crate::refusal::Refusal;
use crate::slots::SlotUse;

/// Maximum number of waiting accepts of a program.
const MAX_PENDING_ACCEPTS: usize = 256;

/// A listener. Connections are bounded by its backlog on each link, accepts by
/// [`MAX_PENDING_ACCEPTS`].
pub(super) struct Listening {
    arrivals: VecDeque<Arrival>,
    accepts: VecDeque<Accept>,
    claims: Vec<PortClaim>,
    _charge: Charge,
}

struct Accept {
    /// Id of the request to answer.
    id: u64,
    rings: Rings,
}

impl Listening {
    pub(super) fn new(claims: Vec<PortClaim>, charge: Charge) -> Listening {
        Listening {
            arrivals: VecDeque::new(),
            accepts: VecDeque::new(),
            claims,
            _charge: charge,
        }
    }

    /// Returns the port, which is equal on all of its links.
    pub(super) fn port(&self) -> esp_proto::Port {
        self.claims.first().map_or(0, PortClaim::port)
    }

    pub(super) fn waiting_accepts(&self) -> impl Iterator<Item = u64> + '_ {
        self.accepts.iter().map(|accept| accept.id)
    }
}

impl Session {
    pub(super) async fn event(&mut self, event: SessionEvent) -> Result<(), SessionEnd> {
        match event {
            SessionEvent::Incoming { listener, arrival } => match self.listeners.get_mut(&listener)
            {
                Some(listening) => {
                    listening.arrivals.push_back(arrival);
                    self.match_arrivals(listener).await;
                }
                // The listener has been closed; the engine has reset the connection, or will.
                None => self.refuse(arrival),
            },
            SessionEvent::IncomingGone { listener, handle } => {
                if let Some(listening) = self.listeners.get_mut(&listener) {
                    listening
                        .arrivals
                        .retain(|arrival| arrival.handle != handle);
                }
            }
            SessionEvent::Violation(what) => {
                return Err(SessionEnd::violation(what));
            }
        }
        Ok(())
    }

    /// Queues an accept, and serves it at once if a connection waits.
    pub(super) async fn accept(
        &mut self,
        id: u64,
        listener: u64,
        rings: Rings,
    ) -> Result<(), Refusal> {
        self.node.grant(rings, 0)?; // invalid sizes are refused now, not with the connection
        if self.pending_accepts >= MAX_PENDING_ACCEPTS {
            let message =
                format!("too many waiting accepts: a program may have {MAX_PENDING_ACCEPTS}");
            return Err(Refusal::new(ErrorKind::Limit, message));
        }
        if self
            .listeners
            .values()
            .any(|listening| listening.waiting_accepts().any(|waiting| waiting == id))
        {
            return Err(Refusal::new(ErrorKind::BadRequest, "duplicate accept id"));
        }
        let listener = ListenerId(listener);
        let listening = self.listeners.get_mut(&listener).ok_or_else(no_listener)?;
        listening.accepts.push_back(Accept { id, rings });
        self.pending_accepts += 1;
        self.match_arrivals(listener).await;
        Ok(())
    }

    /// Withdraws an accept, unless it was answered before.
    pub(super) fn cancel_accept(&mut self, id: u64) {
        let mut found = false;
        for listening in self.listeners.values_mut() {
            let before = listening.accepts.len();
            listening.accepts.retain(|accept| accept.id != id);
            found |= listening.accepts.len() != before;
        }
        if found {
            self.pending_accepts -= 1;
            self.answer(
                id,
                Err(Refusal::new(
                    ErrorKind::Cancelled,
                    "the accept was withdrawn",
                )),
            );
        }
    }

    pub(super) fn close_listener(&mut self, listener: u64) -> Result<(), Refusal> {
        let id = ListenerId(listener);
        let listening = self.listeners.remove(&id).ok_or_else(no_listener)?;
        self.node.remove_listener(id);
        self.pending_accepts -= listening.accepts.len();
        for accept in &listening.accepts {
            self.answer(
                accept.id,
                Err(Refusal::new(
                    ErrorKind::Cancelled,
                    "the listener was closed",
                )),
            );
        }
        // The ports are freed (drop) after the command. The engine resets waiting connections.
        let command = Command::CloseListener { listener: id };
        match &self.client {
            Some(client) => self.node.engines.send(client.engine(), command),
            None => Ok(()),
        }
    }

    /// Refuses a connection to one of the program's listeners.
    fn refuse(&self, arrival: Arrival) {
        if let Some(client) = &self.client {
            self.node.refuse(client.engine(), arrival.handle);
        }
    }

    /// Matches waiting connections with waiting accepts.
    async fn match_arrivals(&mut self, listener: ListenerId) {
        let Some(client) = self.client.clone() else {
            return;
        };
        loop {
            let Some(listening) = self.listeners.get_mut(&listener) else {
                return;
            };
            let Some(accept) = listening.accepts.front() else {
                return;
            };
            let (id, rings) = (accept.id, accept.rings);
            let Some(arrival) = listening.arrivals.pop_front() else {
                return;
            };
            let attached = self.attach(&client, arrival, rings).await;
            if attached.is_err() {
                self.node.refuse(client.engine(), arrival.handle);
            }
            let Some(answer) = attached.transpose() else {
                continue;
            };
            if let Some(listening) = self.listeners.get_mut(&listener) {
                listening.accepts.pop_front();
                self.pending_accepts -= 1;
            }
            self.answer(id, answer);
        }
    }

    /// Attaches a connection to the program. `None`: the connection has ended, so the accept
    /// continues to wait.
    async fn attach(
        &self,
        client: &Arc<Client>,
        arrival: Arrival,
        rings: Rings,
    ) -> Result<Option<ReplyWithFds>, Refusal> {
        let Arrival {
            handle,
            port,
            peer,
            peer_port,
        } = arrival;
        let Some(link) = self.node.links.get(usize::from(handle.link.0)) else {
            return Ok(None);
        };
        // Succeeds, because the listener holds the port.
        let claim = link.esp.take(port, client.claimant(), Purpose::Accepted);
        // The connection has agreed on a payload size, which needs a ring of this size.
        let least = esp_proto::min_listener_capacity(link.info().mtu);
        let prepared = self.prepare(client, SlotUse::Stream, (rings, least), claim)?;
        let command = |reply| Command::Attach {
            handle,
            client: client.id,
            slot: prepared.slot,
            region: Arc::clone(&prepared.region),
            reply,
        };
        let attached = self.node.engines.request(client.engine(), command).await;
        if let Ok(true) = attached {
            return Ok(Some(prepared.stream_reply(link, port, (peer, peer_port))));
        }
        client.slots().withdraw(prepared.slot);
        attached?;
        // The connection has probably ended; otherwise it must not wait forever.
        let command = Command::Refuse { handle };
        let _ = self.node.engines.send(client.engine(), command);
        Ok(None)
    }
}

fn no_listener() -> Refusal {
    Refusal::new(ErrorKind::NotFound, "this program has no such listener")
}
