//! Publication of an iteration's changes: ring indices, states and wake-ups to the programs, events
//! to the engine's owner.

use std::sync::Arc;

use esp_proto::{CloseReason, Duration, Event, Instant, ResetReason};

use super::clients::Clients;
use super::stats::EngineStats;
use super::streams::{Owner, Stream, joined_mut};
use super::{Engine, EventSink};
use crate::command::{Arrival, ConnHandle, EngineEvent, LinkId};
use crate::shm::{Region, StreamState, Wake};

/// Maximum delay of a reader's wake-up while its link keeps receiving frames, even if all are for
/// other connections.
const WAKE_DELAY: Duration = Duration::from_micros(200);

/// Wakes the threads that wait for a stream or datagram socket.
pub(super) fn wake(
    (region, owner): (&Region, Owner),
    what: Wake,
    clients: &Clients,
    stats: &mut EngineStats,
) {
    let woken = region.wake(what);
    if woken.futex {
        stats.program_wakes += 1;
    }
    if woken.notify {
        clients.notify(owner.client, owner.slot);
    }
}

impl Engine {
    /// Wakes the readers that wait for the end of a burst: those of each link that received no
    /// frame in this iteration or whose oldest delayed wake-up is [`WAKE_DELAY`] old, or of all
    /// links if `all`.
    pub(super) fn wake_readers(&mut self, now: Instant, all: bool) {
        let Engine {
            links,
            clients,
            stats,
            ..
        } = self;
        for link in links.iter_mut() {
            if link.receiving && !all && now.since(link.delayed_since) < WAKE_DELAY {
                continue;
            }
            for conn in link.delayed_wakes.drain(..) {
                if let Some(joined) = joined_mut(&mut link.streams, conn)
                    && std::mem::take(&mut joined.wake_delayed)
                {
                    wake(joined.waiters(), Wake::Readable, clients, stats);
                }
            }
        }
    }

    /// Publishes received datagrams, and closes sockets whose rings are corrupt, or whose last
    /// records were transmitted.
    pub(super) fn publish_datagrams(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        if link.touched.is_empty() {
            return;
        }
        let mut touched = std::mem::take(&mut link.touched);
        for port in touched.drain(..) {
            let Some(link) = self.links.get_mut(id) else {
                break;
            };
            let Some(socket) = link.datagrams.get_mut(&port) else {
                continue;
            };
            if let Some(what) = socket.corruption {
                self.cut_off_datagrams(id, port, what);
                continue;
            }
            if socket.is_finished() {
                let Owner { client, slot } = socket.owner;
                self.close_datagrams(client, slot, id, port);
                continue;
            }
            if socket.publish() {
                wake(
                    socket.waiters(),
                    Wake::Readable,
                    &self.clients,
                    &mut self.stats,
                );
            }
            if socket.room_notice_due() {
                wake(
                    socket.waiters(),
                    Wake::Writable,
                    &self.clients,
                    &mut self.stats,
                );
            }
        }
        if let Some(link) = self.links.get_mut(id) {
            link.touched = touched;
        }
    }

    /// Publishes the progress and events of one link.
    pub(super) fn publish(&mut self, id: LinkId, now: Instant) {
        self.publish_progress(id, now);
        self.publish_events(id, now);
    }

    /// Publishes what arrived in the streams of a link, and what was acknowledged.
    fn publish_progress(&mut self, id: LinkId, now: Instant) {
        let Engine {
            links,
            clients,
            stats,
            ..
        } = self;
        let Some(link) = links.get_mut(id) else {
            return;
        };
        while let Some(progress) = link.endpoint.poll_progress() {
            let Some(joined) = joined_mut(&mut link.streams, progress.conn) else {
                continue;
            };
            if joined.corruption.is_some() {
                // Reported once, at the end of the stream.
                link.endpoint
                    .abort(now, progress.conn, ResetReason::Aborted);
                continue;
            }
            // Before the frames of this epoch, and before the acknowledgement of what follows.
            joined.follow_epoch(progress.epoch, &link.endpoint);
            if joined.rx.publish() {
                // A reader is not woken for each batch of a burst: a wake-up costs more than a
                // batch. A reader that is awake sees the bytes at once.
                let unread = joined.rx.capacity() - joined.rx.room();
                if joined.bulk && unread < joined.rx.capacity() / 4 {
                    if !joined.wake_delayed {
                        joined.wake_delayed = true;
                        if link.delayed_wakes.is_empty() {
                            link.delayed_since = now;
                        }
                        link.delayed_wakes.push(progress.conn);
                    }
                } else {
                    joined.wake_delayed = false;
                    wake(joined.waiters(), Wake::Readable, clients, stats);
                }
            }
            if joined.tx.release(progress.acked) {
                wake(joined.waiters(), Wake::Writable, clients, stats);
            }
            if let Ok(consumed) = joined.rx.poll_consumed() {
                // The doorbell rings only for each quarter of the ring; this load gives credit
                // sooner. Corruption is found again, and handled, with the doorbell or a full ring.
                link.endpoint.consumed(now, progress.conn, consumed);
            }
            link.after_progress(now, progress.conn, progress.delivered);
        }
    }

    /// Publishes beginnings and ends of the streams of a link.
    fn publish_events(&mut self, id: LinkId, now: Instant) {
        let Engine {
            links,
            clients,
            events,
            stats,
            listeners,
            ..
        } = self;
        let Some(link) = links.get_mut(id) else {
            return;
        };
        while let Some(event) = link.endpoint.poll_event() {
            match event {
                Event::Connected(conn) => {
                    if let Some(joined) = joined_mut(&mut link.streams, conn) {
                        joined.keep_image(&link.endpoint);
                        joined.region.set_state(StreamState::Open);
                        wake(joined.waiters(), Wake::All, clients, stats);
                    }
                }
                Event::Incoming {
                    conn,
                    port,
                    peer,
                    peer_port,
                } => {
                    let handle = ConnHandle { link: id, conn };
                    let listener = link
                        .listeners
                        .get(&port)
                        .copied()
                        .filter(|l| listeners.contains_key(l));
                    link.insert_stream(Stream::Waiting { id: conn, listener });
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
                        wake(joined.waiters(), Wake::Readable, clients, stats);
                    }
                }
                Event::Closed { conn, reason } => {
                    let stream = link.take_stream(conn);
                    let handle = ConnHandle { link: id, conn };
                    let region =
                        stream.and_then(|s| finish(s, handle, reason, clients, stats, events));
                    // Frames in the send batch may refer to its rings.
                    if let Some(region) = region
                        && !link.tx.is_empty()
                    {
                        link.retired_regions.push(region);
                    }
                }
            }
        }
    }
}

/// Ends a stream: publishes its state, reports it, frees its slot. Returns its region, if any.
fn finish(
    stream: Stream,
    handle: ConnHandle,
    reason: CloseReason,
    clients: &mut Clients,
    stats: &mut EngineStats,
    events: &mut EventSink,
) -> Option<Arc<Region>> {
    match stream {
        Stream::Waiting { listener, .. } => {
            if let Some(listener) = listener {
                events(EngineEvent::IncomingGone { listener, handle });
            }
            None
        }
        Stream::Joined(mut joined) => {
            if let Some(what) = joined.corruption {
                report_corruption(joined.owner, what, clients, stats, events);
            }
            joined.rx.publish();
            joined.region.set_state(StreamState::Closed(reason));
            wake(joined.waiters(), Wake::All, clients, stats);
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

/// Counts and reports a program that corrupted its rings.
pub(super) fn report_corruption(
    owner: Owner,
    what: &'static str,
    clients: &Clients,
    stats: &mut EngineStats,
    events: &mut EventSink,
) {
    stats.corruptions += 1;
    if let Some(client) = clients.id(owner.client) {
        events(EngineEvent::Corrupted {
            client,
            slot: owner.slot,
            what,
        });
    }
}
