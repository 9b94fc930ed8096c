//! Datagram sockets: records in a program's rings joined to a bound EDP port.

use std::sync::Arc;

use esp_proto::{Datagram, EdpKind, Instant, Port};

use super::clients::Clients;
use super::link::Link;
use super::streams::Owner;
use super::{CLOSING_VISITS, RECORDS_PER_DOORBELL};
use crate::shm::record::DgramHeader;
use crate::shm::{Corruption, Region, RxProducer, TxConsumer};

/// A bound EDP port.
pub(super) struct Datagrams {
    pub(super) owner: Owner,
    tx: TxConsumer,
    rx: RxProducer,
    pub(super) region: Arc<Region>,
    /// Records were put since the last publish.
    fresh: bool,
    /// The socket is in the link's list `unfinished`.
    unfinished: bool,
    /// The program has closed it or ended: visits left to transmit the rest.
    closing: Option<usize>,
    pub(super) corruption: Option<&'static str>,
}

impl Datagrams {
    pub(super) fn new(owner: Owner, region: Arc<Region>) -> Datagrams {
        Datagrams {
            owner,
            tx: TxConsumer::new(Arc::clone(&region)),
            rx: RxProducer::new(Arc::clone(&region)),
            region,
            fresh: false,
            unfinished: false,
            closing: None,
            corruption: None,
        }
    }

    /// Returns the socket of a region that an earlier engine left.
    pub(super) fn resume(owner: Owner, region: Arc<Region>) -> Result<Datagrams, Corruption> {
        let (tx, _) = TxConsumer::resume(Arc::clone(&region))?;
        let rx = RxProducer::resume(Arc::clone(&region))?;
        Ok(Datagrams {
            owner,
            tx,
            rx,
            region,
            fresh: false,
            unfinished: false,
            closing: None,
            corruption: None,
        })
    }

    /// Returns the region whose waiters are woken, and their program.
    pub(super) fn waiters(&self) -> (&Region, Owner) {
        (&self.region, self.owner)
    }

    /// Puts a received datagram into the ring. Returns false if the ring is full.
    pub(super) fn deliver(&mut self, datagram: &Datagram<'_>, now: Instant) -> bool {
        let header = DgramHeader {
            kind: datagram.kind,
            addr: datagram.src,
            port: datagram.src_port,
            sequence: datagram.sequence,
            timestamp_ns: now.as_nanos(),
        };
        match self.rx.put_record(&header, datagram.bytes) {
            Ok(taken) => {
                self.fresh |= taken;
                taken
            }
            Err(corruption) => {
                self.corruption = Some(corruption.what);
                false
            }
        }
    }

    /// Returns true if there is something to publish or report.
    pub(super) fn touched(&self) -> bool {
        self.fresh || self.corruption.is_some()
    }

    /// Returns true if a program that waits for room must be notified.
    pub(super) fn room_notice_due(&mut self) -> bool {
        self.tx.room_notice_due()
    }

    /// Returns true if it is being closed and has nothing more to transmit.
    pub(super) fn is_finished(&self) -> bool {
        self.closing.is_some() && !self.unfinished
    }

    /// Publishes delivered records. Returns true if there were any.
    pub(super) fn publish(&mut self) -> bool {
        std::mem::take(&mut self.fresh) && self.rx.publish()
    }
}

impl Link {
    /// Transmits records of a datagram socket whose doorbell rang, as many as the remaining visits
    /// of its user allow.
    pub(super) fn serve_datagrams(&mut self, now: Instant, port: Port, clients: &mut Clients) {
        // `publish_datagrams` checks whether the writer waits for the room made here.
        self.touched.push(port);
        let Some(socket) = self.datagrams.get_mut(&port) else {
            return;
        };
        match &mut socket.closing {
            Some(0) => return, // enough
            Some(visits) => *visits -= 1,
            None => {}
        }
        let client = socket.owner.client;
        let most = RECORDS_PER_DOORBELL.min(clients.visits_left(client));
        let (taken, more) = self.take_records(now, port, most);
        clients.charge_visits(client, taken);
        // The doorbell rings again only for new records, so the rest is taken in the next
        // iteration.
        if more
            && let Some(socket) = self.datagrams.get_mut(&port)
            && !std::mem::replace(&mut socket.unfinished, true)
        {
            self.unfinished.push(clients.user(client), port);
        }
    }

    /// Transmits at most `most` records of a socket. Returns their number, and true if there may be
    /// more.
    fn take_records(&mut self, now: Instant, port: Port, most: usize) -> (usize, bool) {
        for done in 0..most {
            // A sender of more than a batch waits for the wire; the ring holds the rest.
            if self.is_full() {
                return (done, true);
            }
            let Some(socket) = self.datagrams.get_mut(&port) else {
                return (done, false);
            };
            if socket.corruption.is_some() {
                return (done, false);
            }
            // Copied, so that the ring is free at once: datagrams are not retransmitted.
            let mut bytes = self.spare_buffers.pop().unwrap_or_default();
            let (tx, endpoint) = (&mut self.tx, &mut self.endpoint);
            let taken = socket.tx.take_record(&mut bytes, |header, len| {
                let (kind, to) = (header.kind, (header.addr, header.port));
                let head = tx.head().filter(|_| is_sendable(kind))?;
                let made = endpoint.edp_header(head, port, to, kind, header.sequence, len)?;
                Some((kind, made))
            });
            match taken {
                Ok(Some(Some((kind, made)))) => {
                    self.enqueue_owned(now, kind.prefix_len(), made.dst, bytes, made.tail_len);
                    continue;
                }
                Ok(Some(None)) => self.stats.datagram_refused += 1,
                Ok(None) => {
                    self.recycle(bytes);
                    return (done, false);
                }
                Err(corruption) => {
                    socket.corruption = Some(corruption.what);
                    self.recycle(bytes);
                    return (done, false);
                }
            }
            self.recycle(bytes);
        }
        (most, true)
    }

    /// Serves the sockets that had more records than one visit takes, those of each user in turn,
    /// until the users have no visits left. Returns true if there were any.
    pub(super) fn continue_datagrams(&mut self, now: Instant, clients: &mut Clients) -> bool {
        // The kernel refused a full batch: it is offered again later.
        if self.unfinished.is_empty() || self.is_batch_full() {
            return false;
        }
        let mut without_visits = 0;
        while without_visits < self.unfinished.owners() && !self.is_full() {
            let client = (self.unfinished.front())
                .and_then(|port| self.datagrams.get(port))
                .map(|socket| socket.owner.client);
            if client.is_some_and(|client| clients.visits_left(client) == 0) {
                without_visits += 1;
                self.unfinished.pass();
                continue;
            }
            without_visits = 0;
            let Some((port, turn_ended)) = self.unfinished.pop() else {
                break;
            };
            if !turn_ended {
                self.unfinished.pass();
            }
            if let Some(socket) = self.datagrams.get_mut(&port) {
                socket.unfinished = false;
                self.serve_datagrams(now, port, clients);
            }
        }
        true
    }

    /// Begins to close a datagram socket. The records in its ring are transmitted first, in at most
    /// [`CLOSING_VISITS`] visits.
    pub(super) fn finish_datagrams(&mut self, now: Instant, port: Port, clients: &mut Clients) {
        if let Some(socket) = self.datagrams.get_mut(&port) {
            socket.closing.get_or_insert(CLOSING_VISITS);
            self.serve_datagrams(now, port, clients);
        }
    }
}

/// Returns true if a program may send this kind: data and requests, never a reply in the node's
/// name.
fn is_sendable(kind: EdpKind) -> bool {
    matches!(
        kind,
        EdpKind::Data | EdpKind::EchoRequest | EdpKind::InfoRequest
    )
}
