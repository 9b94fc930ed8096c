//! Moves of connections from one link to another, with their rings, their program's slot, a delayed
//! wake-up and their deadline.

use std::ops::RangeInclusive;
use std::sync::Arc;

use esp_proto::rails::Rails;
use esp_proto::{ConnId, Endpoint, Instant, MacAddr, NodeAddr, Port};

use super::Engine;
use super::clients::{Clients, Object};
use super::link::Link;
use super::links::Links;
use super::publish::WAKE_DELAY;
use super::streams::{Deadlines, Owner, Stream};
use crate::command::{ConnHandle, EngineEvent, LinkId};

/// The parts of the engine that a move changes.
struct Mover<'a> {
    links: &'a mut Links,
    clients: &'a mut Clients,
    deadlines: &'a mut Deadlines,
    events: &'a mut super::EventSink,
    now: Instant,
}

impl Engine {
    /// Sets the links to which connections of each endpoint can move: those that receive frames for
    /// all of its ports.
    pub(super) fn update_rails(&mut self) {
        let ports_of = |link: &Link| Some((link.endpoint.addr().mac()?, link.ports.clone()));
        let all: Vec<_> = self
            .links
            .iter()
            .filter(|link| !link.condition().2)
            .filter_map(ports_of)
            .collect();
        self.has_rails = false;
        for link in self.links.iter_mut() {
            let (own, ports) = (link.endpoint.addr(), link.ports.clone());
            // ESP in UDP does not move (W-125): IP finds other paths.
            if own.is_udp() {
                continue;
            }
            let fits = |(mac, theirs): &&(MacAddr, RangeInclusive<Port>)| {
                own != NodeAddr::Mac(*mac)
                    && theirs.contains(ports.start())
                    && theirs.contains(ports.end())
            };
            let mut others: Vec<MacAddr> = all.iter().filter(fits).map(|(mac, _)| *mac).collect();
            others.dedup();
            self.has_rails |= !others.is_empty();
            link.endpoint.set_rails(&others);
        }
    }

    /// Makes the moves that are due. Returns true if there were any.
    pub(super) fn move_connections(&mut self, now: Instant) -> bool {
        if !self.links.iter().any(|link| link.endpoint.has_moves()) {
            return false;
        }
        let Engine {
            links,
            clients,
            deadlines,
            events,
            ..
        } = self;
        esp_proto::rails::serve(
            &mut Mover {
                links,
                clients,
                deadlines,
                events,
                now,
            },
            now,
        );
        true
    }
}

impl Rails for Mover<'_> {
    fn count(&self) -> usize {
        self.links.len()
    }

    fn endpoint(&mut self, rail: usize) -> Option<&mut Endpoint> {
        self.links.get_mut(rail).map(|link| &mut link.endpoint)
    }

    fn usable(&self, rail: usize, local_port: Port) -> bool {
        self.links.get(rail).is_some_and(|link| {
            let (up, _, gone) = link.condition();
            up && !gone && link.ports.contains(&local_port)
        })
    }

    fn moved(&mut self, from: (usize, ConnId), to: (usize, ConnId)) {
        let Ok(numbers) = u16::try_from(from.0).and_then(|old| Ok((old, u16::try_from(to.0)?)))
        else {
            return;
        };
        let old = ConnHandle {
            link: LinkId(numbers.0),
            conn: from.1,
        };
        let new = ConnHandle {
            link: LinkId(numbers.1),
            conn: to.1,
        };
        let Some(link) = self.links.get_mut(from.0) else {
            return;
        };
        let mut stream = match link.streams.get_mut(from.1.slot as usize) {
            Some(entry) if entry.as_ref().is_some_and(|stream| stream.id() == from.1) => {
                entry.take()
            }
            _ => None,
        };
        if let Some(Stream::Joined(joined)) = &stream
            && !link.tx.is_empty()
        {
            // Frames in the send batch refer to its rings.
            link.retired_regions.push(Arc::clone(&joined.region));
        }
        let Some(target) = self.links.get_mut(to.0) else {
            return;
        };
        target.standby = false;
        match &mut stream {
            Some(Stream::Joined(joined)) => {
                joined.id = to.1;
                let Owner { client, slot } = joined.owner;
                self.clients.replace(client, slot, Object::Stream(new));
                if let Some((client, peer)) =
                    self.clients.id(client).zip(target.endpoint.peer_of(to.1))
                {
                    let (from, link) = (old.link, new.link);
                    (self.events)(EngineEvent::Moved {
                        client,
                        slot,
                        from,
                        link,
                        peer,
                    });
                }
                if joined.wake_delayed {
                    target
                        .delayed_wakes
                        .push_back((self.now + WAKE_DELAY, to.1));
                }
            }
            Some(Stream::Waiting { id, .. }) => *id = to.1,
            None => return,
        }
        if let Some(stream) = stream {
            target.insert_stream(stream);
        }
        self.deadlines.rename(old, new);
    }
}
