//! Streams: a connection of the endpoint joined to the rings of a program.

#[cfg(all(test, not(loom)))]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use esp_proto::{ConnId, ConnInfo, Datagram, Endpoint, Instant, Port, ResetReason, Sink, State};

use super::datagrams::Datagrams;
use super::link::Link;
use super::posted::Posted;
use super::stats::LinkStats;
use super::{LINGER, ORPHAN_TIMEOUT};
use crate::command::{ListenerId, Slot};
use crate::shm::{Corruption, Region, RxProducer, TxConsumer};

/// Minimum length of a segment after which more are expected: about the payload that every link
/// carries (W-53).
const BULK_SEGMENT: usize = 1400;

/// Owner of a stream or datagram socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    /// Index in the table of programs.
    pub(super) client: usize,
    pub(super) slot: Slot,
}

/// A connection, before and after a program owns it.
pub(super) enum Stream {
    /// Accepted by the endpoint, and waiting for a program.
    Waiting {
        id: ConnId,
        listener: Option<ListenerId>,
    },
    /// Joined to rings.
    Joined(Joined),
}

/// A connection with its rings.
pub(super) struct Joined {
    pub(super) id: ConnId,
    pub(super) owner: Owner,
    pub(super) region: Arc<Region>,
    pub(super) tx: TxConsumer,
    pub(super) rx: RxProducer,
    /// The last segment was full, so that more bytes will probably follow.
    pub(super) bulk: bool,
    /// The reader's wake-up is delayed.
    pub(super) wake_delayed: bool,
    /// The end of writing was passed to the endpoint.
    pub(super) finished: bool,
    /// Epoch of the image in the region.
    epoch: u32,
    /// The program has closed it: received bytes are discarded.
    pub(super) discard: bool,
    /// The program died without closing it: it is reset with `ProgramDied` after [`LINGER`].
    died: bool,
    /// Time at which it is reset, once its program has closed it or died.
    lingers_until: Option<Instant>,
    /// Bytes that the peer had acknowledged when this time was set.
    lingers_from: u64,
    /// Corruption found in the rings. The connection is being reset.
    pub(super) corruption: Option<&'static str>,
}

impl Stream {
    pub(super) fn id(&self) -> ConnId {
        match self {
            Stream::Waiting { id, .. } => *id,
            Stream::Joined(joined) => joined.id,
        }
    }
}

impl Joined {
    pub(super) fn new(id: ConnId, owner: Owner, region: Arc<Region>) -> Joined {
        let tx = TxConsumer::new(Arc::clone(&region));
        let rx = RxProducer::new(Arc::clone(&region));
        Joined::with(id, owner, region, (tx, rx))
    }

    pub(super) fn with(
        id: ConnId,
        owner: Owner,
        region: Arc<Region>,
        (tx, rx): (TxConsumer, RxProducer),
    ) -> Joined {
        Joined {
            id,
            owner,
            tx,
            rx,
            region,
            epoch: 0,
            bulk: false,
            wake_delayed: false,
            finished: false,
            discard: false,
            died: false,
            lingers_until: None,
            lingers_from: 0,
            corruption: None,
        }
    }

    /// Stores the connection's image in the region, from which the next engine resumes it (W-132).
    pub(super) fn keep_image(&mut self, endpoint: &Endpoint) {
        if let Some(image) = endpoint.image(self.id) {
            self.region.keep_image(&image, endpoint.addr());
            self.epoch = image.epoch;
        }
    }

    /// Stores the image again if the connection has moved or was resumed.
    #[inline]
    pub(super) fn follow_epoch(&mut self, epoch: u32, endpoint: &Endpoint) {
        if self.epoch != epoch {
            self.keep_image(endpoint);
        }
    }

    /// Returns true if the peer has acknowledged all bytes and, if the program has finished
    /// writing, the end of the stream (W-54).
    fn is_delivered(&self, info: &ConnInfo) -> bool {
        match info.state {
            State::FinWait2 | State::TimeWait | State::Closed => true,
            _ => info.send_queue == 0 && !self.finished,
        }
    }

    /// Sets the time at which it is reset unless the peer acknowledges more than `acked` bytes.
    fn linger(&mut self, until: Instant, acked: u64) -> Deadline {
        self.lingers_until = Some(until);
        self.lingers_from = acked;
        Reverse((until, self.owner))
    }

    /// Returns the region whose waiters are woken, and their program.
    pub(super) fn waiters(&self) -> (&Region, Owner) {
        (&self.region, self.owner)
    }
}

/// Receives the payload of frames from the endpoint.
pub(super) struct LinkSink<'a, 'b> {
    pub(super) streams: &'a mut Vec<Option<Stream>>,
    pub(super) datagrams: &'a mut HashMap<Port, Datagrams>,
    pub(super) touched: &'a mut Vec<Port>,
    pub(super) stats: &'a mut LinkStats,
    pub(super) now: Instant,
    /// Takes the bytes of one stream before its ring does.
    pub(super) posted: Option<&'a mut Posted<'b>>,
}

impl Sink for LinkSink<'_, '_> {
    #[inline]
    fn deliver(&mut self, conn: ConnId, offset: u64, bytes: &[u8]) {
        if let Some(joined) = joined_mut(self.streams, conn) {
            if joined.discard || joined.corruption.is_some() {
                return;
            }
            joined.bulk = bytes.len() >= BULK_SEGMENT;
            let taken = self
                .posted
                .as_mut()
                .map_or(0, |posted| posted.take(conn, offset, bytes));
            let put = joined
                .rx
                .skip(offset, taken)
                .and_then(|offset| joined.rx.put(offset, &bytes[taken..]));
            if let Err(corruption) = put {
                joined.corruption = Some(corruption.what);
            }
        }
    }

    fn datagram(&mut self, datagram: Datagram<'_>) {
        if let Some(socket) = self.datagrams.get_mut(&datagram.dst_port) {
            let quiet = !socket.touched();
            if !socket.deliver(&datagram, self.now) {
                self.stats.datagram_overflow += 1;
            }
            if quiet && socket.touched() {
                self.touched.push(datagram.dst_port);
            }
        }
    }
}

/// Returns the stream of a connection, if it is joined to rings.
#[inline]
pub(super) fn joined_mut(streams: &mut [Option<Stream>], conn: ConnId) -> Option<&mut Joined> {
    match streams.get_mut(conn.slot as usize)? {
        Some(Stream::Joined(joined)) if joined.id == conn => Some(joined),
        _ => None,
    }
}

impl Link {
    /// Stores a stream at its connection's index.
    pub(super) fn insert_stream(&mut self, stream: Stream) {
        let slot = stream.id().slot as usize;
        if self.streams.len() <= slot {
            self.streams.resize_with(slot + 1, || None);
        }
        self.streams[slot] = Some(stream);
    }

    /// Removes the stream of a connection.
    pub(super) fn take_stream(&mut self, conn: ConnId) -> Option<Stream> {
        let entry = self.streams.get_mut(conn.slot as usize)?;
        entry.take_if(|stream| stream.id() == conn)
    }

    /// Handles the doorbell of a stream: bytes were written or consumed, or writing was finished.
    #[inline]
    pub(super) fn serve_stream(&mut self, now: Instant, conn: ConnId) {
        let Some(joined) = joined_mut(&mut self.streams, conn) else {
            return;
        };
        if let Err(corruption) = read_indices(joined, &mut self.endpoint, now) {
            joined.corruption = Some(corruption.what);
            self.endpoint.abort(now, conn, ResetReason::Aborted);
        }
    }

    /// Closes a stream: written bytes are still delivered, received bytes discarded. Returns the
    /// time at which a peer that never finishes is reset.
    pub(super) fn close_stream(&mut self, now: Instant, conn: ConnId) -> Option<Deadline> {
        self.serve_stream(now, conn);
        let joined = joined_mut(&mut self.streams, conn)?;
        joined.discard = true;
        let info = self.endpoint.info(conn);
        let delivered = info.map_or(0, |info| info.bytes_received);
        self.endpoint.consumed(now, conn, delivered);
        if !joined.finished {
            joined.finished = true;
            self.endpoint.shutdown(now, conn);
        }
        let acked = self.endpoint.info(conn).map_or(0, |info| info.bytes_acked);
        Some(joined.linger(now + ORPHAN_TIMEOUT, acked))
    }

    /// Handles the death of a stream's program. Returns the time until which its written bytes, and
    /// the end if it has finished writing, are still delivered.
    pub(super) fn orphan_stream(&mut self, now: Instant, conn: ConnId) -> Option<Deadline> {
        self.serve_stream(now, conn);
        let joined = joined_mut(&mut self.streams, conn)?;
        if std::mem::replace(&mut joined.discard, true) {
            return None; // closed by the program before; that deadline runs
        }
        joined.died = true;
        let info = self.endpoint.info(conn)?;
        self.endpoint.consumed(now, conn, info.bytes_received);
        if joined.is_delivered(&info) || info.state == State::SynSent {
            self.endpoint.abort(now, conn, ResetReason::ProgramDied);
            return None;
        }
        Some(joined.linger(now + LINGER, info.bytes_acked))
    }

    /// Returns true while a peer has not acknowledged the end of a stream that its program has
    /// closed or finished writing. The data comes before the end.
    pub(super) fn has_unacknowledged_ends(&self) -> bool {
        self.streams.iter().flatten().any(|stream| match stream {
            Stream::Joined(joined) if joined.finished => {
                let info = self.endpoint.info(joined.id);
                info.is_some_and(|info| !joined.is_delivered(&info))
            }
            _ => false,
        })
    }

    /// Resets every stream, because its program ends.
    pub(super) fn reset_streams(&mut self, now: Instant) {
        for stream in self.streams.iter().flatten() {
            let reason = match stream {
                Stream::Waiting { .. } => ResetReason::Refused,
                Stream::Joined(joined) if joined.discard => ResetReason::Aborted,
                Stream::Joined(_) => ResetReason::ProgramDied,
            };
            self.endpoint.abort(now, stream.id(), reason);
        }
    }

    /// Resets a stream whose program closed it or died, at its deadline. Returns the next deadline
    /// if the program closed it and the peer has acknowledged more bytes since the last deadline,
    /// but not all.
    pub(super) fn reset_lingering(&mut self, now: Instant, conn: ConnId) -> Option<Deadline> {
        let joined = joined_mut(&mut self.streams, conn)?;
        // The slot may hold another stream by now.
        joined.lingers_until.filter(|until| *until <= now)?;
        let info = self.endpoint.info(conn)?;
        if !joined.died && info.send_queue > 0 && info.bytes_acked > joined.lingers_from {
            return Some(joined.linger(now + ORPHAN_TIMEOUT, info.bytes_acked));
        }
        let reason = if joined.died {
            ResetReason::ProgramDied
        } else {
            ResetReason::Aborted
        };
        self.endpoint.abort(now, conn, reason);
        None
    }

    /// Resets a stream of a dead program when all it has written is acknowledged, and discards
    /// received bytes of a closed stream.
    pub(super) fn after_progress(&mut self, now: Instant, conn: ConnId, delivered: u64) {
        let Some(joined) = joined_mut(&mut self.streams, conn) else {
            return;
        };
        if joined.discard {
            self.endpoint.consumed(now, conn, delivered);
        }
        let info = self.endpoint.info(conn);
        if joined.died && info.is_some_and(|info| joined.is_delivered(&info)) {
            self.endpoint.abort(now, conn, ResetReason::ProgramDied);
        }
    }
}

/// Reads the indices that the program wrote and passes them to the endpoint.
#[inline]
fn read_indices(
    joined: &mut Joined,
    endpoint: &mut Endpoint,
    now: Instant,
) -> Result<(), Corruption> {
    if joined.discard || joined.corruption.is_some() {
        return Ok(());
    }
    let view = joined.tx.poll_written()?;
    endpoint.written(now, joined.id, view.total);
    if view.finished && !joined.finished {
        joined.finished = true;
        endpoint.shutdown(now, joined.id);
    }
    let consumed = joined.rx.poll_consumed()?;
    endpoint.consumed(now, joined.id, consumed);
    Ok(())
}

/// Time at which a stream without a program is reset.
type Deadline = Reverse<(Instant, Owner)>;

/// Deadlines of streams without a program. By owner, because connections move.
#[derive(Default)]
pub(super) struct Deadlines {
    heap: BinaryHeap<Deadline>,
}

impl Deadlines {
    pub(super) fn add(&mut self, deadline: Option<Deadline>) {
        self.heap.extend(deadline);
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    pub(super) fn due(&mut self, now: Instant) -> Option<Owner> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, owner))| owner)
    }
}
