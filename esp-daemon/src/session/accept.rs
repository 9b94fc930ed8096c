//! Listeners of one program: connections that wait for accepts, and accepts that wait for
//! connections.

use std::collections::VecDeque;
use std::sync::Arc;

use esp_client::control::{ErrorKind, Rings};
use esp_engine::{Arrival, Command, ListenerId};

use super::{Session, SessionEnd};
use crate::accounts::Charge;
use crate::node::{Client, SessionEvent};
use crate::ports::{PortLease, Purpose};
use crate::refusal::Refusal;
use crate::slots::SlotUse;

/// A listener. Connections are bounded by its backlog on each link, accepts by the program's
/// `max_pending_accepts`.
pub(super) struct Listening {
    arrivals: VecDeque<Arrival>,
    accepts: VecDeque<Accept>,
    leases: Vec<PortLease>,
    _charge: Charge,
}

struct Accept {
    /// Id of the request to answer.
    id: u64,
    rings: Rings,
}

impl Listening {
    pub(super) fn new(leases: Vec<PortLease>, charge: Charge) -> Listening {
        Listening {
            arrivals: VecDeque::new(),
            accepts: VecDeque::new(),
            leases,
            _charge: charge,
        }
    }

    /// Returns its port, the same on each of its links.
    pub(super) fn port(&self) -> esp_proto::Port {
        self.leases.first().map_or(0, PortLease::port)
    }

    pub(super) fn waiting_accepts(&self) -> impl Iterator<Item = u64> + '_ {
        self.accepts.iter().map(|accept| accept.id)
    }
}

/// Result of passing a connection to a program.
enum Given {
    Done(super::ReplyWithFds),
    /// The connection had ended; the accept keeps waiting.
    ConnectionGone,
    /// The program cannot have it.
    Refused(Refusal),
}

impl Session {
    pub(super) async fn event(&mut self, event: SessionEvent) -> Result<(), SessionEnd> {
        match event {
            SessionEvent::Incoming { listener, arrival } => match self.listeners.get_mut(&listener)
            {
                Some(listening) => {
                    listening.arrivals.push_back(arrival);
                    self.match_up(listener).await;
                }
                // Closed meanwhile; the engine has reset it, or does so now.
                None => self.node.refuse(arrival.handle),
            },
            SessionEvent::IncomingGone { listener, handle } => {
                if let Some(listening) = self.listeners.get_mut(&listener) {
                    listening
                        .arrivals
                        .retain(|arrival| arrival.handle != handle);
                }
            }
            SessionEvent::CutOff(what) => {
                return Err(SessionEnd::CutOff(ErrorKind::BadRequest, what));
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
        self.node.grant(rings, 0)?; // rather now than when a connection has come
        let most = self.node.control.max_pending_accepts as usize;
        if self.pending_accepts >= most {
            let message = format!(
                "too many waiting accepts: a program may have {most} (control.max_pending_accepts)"
            );
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
        self.match_up(listener).await;
        Ok(())
    }

    /// Withdraws an accept, unless a connection was faster.
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
        // The ports are returned (drop) after the command; waiting connections are reset by the
        // engine.
        self.node.tell(Command::CloseListener { listener: id })
    }

    /// Matches waiting connections with waiting accepts.
    async fn match_up(&mut self, listener: ListenerId) {
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
            let given = self.give(&client, arrival, rings).await;
            let answer = match given {
                Given::ConnectionGone => continue,
                Given::Done(answer) => Ok(answer),
                Given::Refused(refusal) => {
                    self.node.refuse(arrival.handle);
                    Err(refusal)
                }
            };
            if let Some(listening) = self.listeners.get_mut(&listener) {
                listening.accepts.pop_front();
                self.pending_accepts -= 1;
            }
            self.answer(id, answer);
        }
    }

    async fn give(&self, client: &Arc<Client>, arrival: Arrival, rings: Rings) -> Given {
        let Arrival {
            handle,
            port,
            peer,
            peer_port,
        } = arrival;
        let Some(link) = self.node.links.get(usize::from(handle.link.0)) else {
            return Given::ConnectionGone;
        };
        // The listener's own right to the port makes this succeed.
        let lease = link.esp.take(port, self.who.uid, Purpose::Accepted);
        // The connection has already agreed on a payload size, for which a smaller ring would not
        // do.
        let least = esp_proto::least_listener_capacity(link.info().mtu);
        let prepared = match self.prepare(client, SlotUse::Stream, (rings, least), lease) {
            Ok(prepared) => prepared,
            Err(refusal) => return Given::Refused(refusal),
        };
        let (slot, sizes) = (prepared.slot, prepared.sizes);
        let region = prepared.region;
        let attached = self
            .node
            .ask(|reply| Command::Attach {
                handle,
                client: client.id,
                slot,
                region,
                reply,
            })
            .await;
        match attached {
            Ok(true) => Given::Done(super::requests::stream_reply(
                link.name(),
                port,
                (peer, peer_port),
                (slot, sizes, prepared.descriptor),
            )),
            Ok(false) => {
                client.slots().withdraw(slot);
                // Almost certainly ended; if not, it must not wait for ever.
                let _ = self.node.tell(Command::Refuse { handle });
                Given::ConnectionGone
            }
            Err(refusal) => {
                client.slots().withdraw(slot);
                Given::Refused(refusal)
            }
        }
    }
}

fn no_listener() -> Refusal {
    Refusal::new(ErrorKind::NotFound, "this program has no such listener")
}
