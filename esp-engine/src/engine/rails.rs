//! Moves of connections from one link to another, with their rings, their program's slot and a
//! delayed wake-up.

use std::ops::RangeInclusive;
use std::sync::Arc;

use esp_proto::rails::Rails;
use esp_proto::{ConnId, Endpoint, Instant, MacAddr, NodeAddr, Port};

use super::Engine;
use super::clients::Object;
use super::link::Link;
use super::streams::{Owner, Stream};
use crate::command::{ConnHandle, EngineEvent, LinkId};

/// An engine whose connections move now.
struct Mover<'a> {
    engine: &'a mut Engine,
}

impl Engine {
    /// Sets the links to which connections of each endpoint can move: those that receive frames for
    /// all of its ports.
    pub(super) fn update_rails(&mut self) {
        let ports_of = |link: &Link| Some((link.endpoint.addr().mac()?, link.ports.clone()));
        let all: Vec<_> = self
            .links
            .iter()
            .filter(|link| !link.gone)
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
        esp_proto::rails::serve(&mut Mover { engine: self }, now);
        true
    }
}

/// Returns the link of a rail, by its number.
fn link_of(rail: usize) -> LinkId {
    LinkId(u16::try_from(rail).unwrap_or(u16::MAX))
}

impl Rails for Mover<'_> {
    fn count(&self) -> usize {
        self.engine.links.numbers().count()
    }

    fn endpoint(&mut self, rail: usize) -> Option<&mut Endpoint> {
        let link = self.engine.links.get_mut(link_of(rail))?;
        Some(&mut link.endpoint)
    }

    fn usable(&self, rail: usize, local_port: Port) -> bool {
        let link = self.engine.links.get(link_of(rail));
        link.is_some_and(|link| {
            let condition = link.condition();
            condition.up && !condition.gone && link.ports.contains(&local_port)
        })
    }

    fn moved(&mut self, (from, old): (usize, ConnId), (to, new): (usize, ConnId)) {
        let Mover { engine } = self;
        let (from, to) = (link_of(from), link_of(to));
        let Some(link) = engine.links.get_mut(from) else {
            return;
        };
        let Some(mut stream) = link.take_stream(old) else {
            return;
        };
        if let Stream::Joined(joined) = &stream
            && !link.tx.is_empty()
        {
            // Frames in the send batch refer to its rings.
            link.retired_regions.push(Arc::clone(&joined.region));
        }
        let Some(target) = engine.links.get_mut(to) else {
            return;
        };
        target.standby = false;
        match &mut stream {
            Stream::Waiting { id, .. } => *id = new,
            Stream::Joined(joined) => {
                joined.id = new;
                let Owner { client, slot } = joined.owner;
                let handle = ConnHandle {
                    link: to,
                    conn: new,
                };
                engine.clients.replace(client, slot, Object::Stream(handle));
                if let Some(client) = engine.clients.id(client)
                    && let Some(peer) = target.endpoint.peer_of(new)
                {
                    (engine.events)(EngineEvent::Moved {
                        client,
                        slot,
                        from,
                        link: to,
                        peer,
                    });
                }
                if joined.wake_delayed {
                    target.delayed_wakes.push(new);
                }
            }
        }
        target.insert_stream(stream);
    }
}
