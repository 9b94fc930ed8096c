//! What a turn changed, out to the programs: ring indices, states, wake-ups; and to the host.

use esp_proto::{CloseReason, Duration, Event, Instant, ResetReason};

use super::datagrams::Datagrams;
use super::streams::{Joined, Owner, Stream, joined_mut};
use super::{Engine, EventSink};
use crate::command::{Arrival, ConnHandle, EngineEvent, LinkId};
use crate::shm::{StreamState, Wake};

use super::clients::Clients;
use super::stats::EngineStats;

/// How long a reader's wake-up may be put off while a long message comes in.
pub(super) const WAKE_DELAY: Duration = Duration::from_micros(100);

/// Wakes whoever waits in the program.
pub(super) fn wake(
    joined: &mut Joined,
    what: Wake,
    clients: &mut Clients,
    stats: &mut EngineStats,
) {
    let woken = joined.status.wake(what);
    if woken.futex {
        stats.program_wakes += 1;
    }
    if woken.notify {
        clients.notify(joined.owner.client, joined.owner.slot);
    }
}

/// The same for a datagram socket.
pub(super) fn wake_datagrams(
    socket: &mut Datagrams,
    what: Wake,
    clients: &mut Clients,
    stats: &mut EngineStats,
) {
    let woken = socket.status.wake(what);
    if woken.futex {
        stats.program_wakes += 1;
    }
    if woken.notify {
        clients.notify(socket.owner.client, socket.owner.slot);
    }
}

impl Engine {
    /// Wakes the readers whose time has come; all of them when the loop is about to block (`now`
    /// being the end of time).
    pub(super) fn wake_readers(&mut self, now: Instant) {
        let Engine {
            links,
            clients,
            stats,
            ..
        } = self;
        for link in links.iter_mut() {
            while let Some(&(_, conn)) = link.put_off.front().filter(|(at, _)| *at <= now) {
                link.put_off.pop_front();
                if let Some(joined) = joined_mut(&mut link.streams, conn)
                    && std::mem::take(&mut joined.wake_put_off)
                {
                    wake(joined, Wake::Readable, clients, stats);
                }
            }
        }
    }

    /// Publishes what datagram sockets received and cuts off those whose rings hold nonsense.
    pub(super) fn publish_datagrams(&mut self, index: usize) {
        let Some(link) = self.links.get_mut(index) else {
            return;
        };
        if link.touched.is_empty() {
            return;
        }
        let mut touched = std::mem::take(&mut link.touched);
        for port in touched.drain(..) {
            let Some(link) = self.links.get_mut(index) else {
                break;
            };
            let Some(socket) = link.datagrams.get_mut(&port) else {
                continue;
            };
            if let Some(what) = socket.scribbled {
                if let Ok(number) = u16::try_from(index) {
                    self.datagram_scribbled(LinkId(number), port, what);
                }
                continue;
            }
            if socket.publish() {
                wake_datagrams(socket, Wake::Readable, &mut self.clients, &mut self.stats);
            }
            if socket.room_notice_due() {
                wake_datagrams(socket, Wake::Writable, &mut self.clients, &mut self.stats);
            }
        }
        if let Some(link) = self.links.get_mut(index) {
            link.touched = touched;
        }
    }

    /// Publishes the progress and events of one link.
    pub(super) fn publish(&mut self, index: usize, now: Instant) {
        let Ok(number) = u16::try_from(index) else {
            return;
        };
        let Engine {
            links,
            clients,
            events,
            stats,
            listeners,
            ..
        } = self;
        let Some(link) = links.get_mut(index) else {
            return;
        };
        while let Some(progress) = link.endpoint.poll_progress() {
            let Some(joined) = joined_mut(&mut link.streams, progress.conn) else {
                continue;
            };
            if joined.scribbled.is_some() {
                // Reported once, with the end of the stream.
                link.endpoint
                    .abort(now, progress.conn, ResetReason::Aborted);
                continue;
            }
            if joined.rx.publish() {
                // Of a long message the reader is not woken for each batch: a wake-up costs more
                // than a batch. Bytes are visible at once to a reader that is awake.
                let unread = joined.rx.capacity() - joined.rx.room();
                if joined.bulk && unread < joined.rx.capacity() / 4 {
                    if !joined.wake_put_off {
                        joined.wake_put_off = true;
                        link.put_off.push_back((now + WAKE_DELAY, progress.conn));
                    }
                } else {
                    joined.wake_put_off = false;
                    wake(joined, Wake::Readable, clients, stats);
                }
            }
            if joined.tx.release(progress.acked) {
                wake(joined, Wake::Writable, clients, stats);
            }
            if let Ok(consumed) = joined.rx.poll_consumed() {
                // Fresh credit for the price of a load; the bell reports only every quarter of the
                // ring. Nonsense is met again, and dealt with, when the bell rings or the ring is
                // full.
                link.endpoint.consumed(now, progress.conn, consumed);
            }
            link.after_progress(now, progress.conn, progress.delivered);
        }
        while let Some(event) = link.endpoint.poll_event() {
            match event {
                Event::Connected(conn) => {
                    if let Some(joined) = joined_mut(&mut link.streams, conn) {
                        joined.status.set_state(StreamState::Open);
                        wake(joined, Wake::All, clients, stats);
                    }
                }
                Event::Incoming {
                    conn,
                    port,
                    peer,
                    peer_port,
                } => {
                    let handle = ConnHandle {
                        link: LinkId(number),
                        conn,
                    };
                    let listener = link
                        .listeners
                        .get(&port)
                        .copied()
                        .filter(|l| listeners.contains_key(l));
                    link.place(Stream::Waiting { id: conn, listener });
                    match listener {
                        Some(listener) => {
                            let arrival = Arrival {
                                handle,
                                port,
                                peer,
                                peer_port,
                            };
                            events(EngineEvent::Incoming { listener, arrival });
                        }
                        None => link.endpoint.abort(now, conn, ResetReason::Refused),
                    }
                }
                Event::PeerFinished(conn) => {
                    if let Some(joined) = joined_mut(&mut link.streams, conn) {
                        joined.rx.finish();
                        wake(joined, Wake::Readable, clients, stats);
                    }
                }
                Event::Closed { conn, reason } => {
                    let stream = match link.streams.get_mut(conn.slot as usize) {
                        Some(entry) if entry.as_ref().is_some_and(|s| s.id() == conn) => {
                            entry.take()
                        }
                        _ => None,
                    };
                    let handle = ConnHandle {
                        link: LinkId(number),
                        conn,
                    };
                    let region =
                        stream.and_then(|s| finish(s, handle, reason, clients, stats, events));
                    // Frames that wait in the send batch may point into its rings.
                    if let Some(region) = region
                        && !link.tx.is_empty()
                    {
                        link.graveyard.push(region);
                    }
                }
            }
        }
    }
}

/// The last words of a stream; returns its region if it had one.
fn finish(
    stream: Stream,
    handle: ConnHandle,
    reason: CloseReason,
    clients: &mut Clients,
    stats: &mut EngineStats,
    events: &mut EventSink,
) -> Option<std::sync::Arc<crate::shm::Region>> {
    match stream {
        Stream::Waiting { listener, .. } => {
            if let Some(listener) = listener {
                events(EngineEvent::IncomingGone { listener, handle });
            }
            None
        }
        Stream::Joined(mut joined) => {
            if let Some(what) = joined.scribbled {
                report_scribble(joined.owner, what, clients, stats, events);
            }
            joined.rx.publish();
            joined.status.set_state(StreamState::Closed(reason));
            wake(&mut joined, Wake::All, clients, stats);
            let Owner { client, slot } = joined.owner;
            if let Some(client) = clients.id(client) {
                events(EngineEvent::Closed {
                    client,
                    slot,
                    reason: Some(reason),
                });
            }
            clients.vacate(client, slot);
            Some(joined.region)
        }
    }
}

fn report_scribble(
    owner: Owner,
    what: &'static str,
    clients: &Clients,
    stats: &mut EngineStats,
    events: &mut EventSink,
) {
    stats.scribbles += 1;
    if let Some(client) = clients.id(owner.client) {
        events(EngineEvent::Scribbled {
            client,
            slot: owner.slot,
            what,
        });
    }
}
