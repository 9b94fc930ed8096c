//! Datagram sockets: records in a program's rings joined to a bound EDP port.

use std::sync::Arc;

use esp_proto::{Datagram, EdpKind, Instant, MacAddr, Port};

use super::link::Link;
use super::streams::Owner;
use super::{CLOSING_VISITS, RECORDS_PER_BELL};
use crate::shm::record::{DgramHeader, DgramKind};
use crate::shm::{EngineStatus, Region, RxProducer, TxConsumer};

/// A bound EDP port.
pub(super) struct Datagrams {
    pub(super) owner: Owner,
    tx: TxConsumer,
    rx: RxProducer,
    pub(super) status: EngineStatus,
    /// Records were put since the last publish.
    fresh: bool,
    /// It stands in the link's list of unfinished ones.
    unfinished: bool,
    pub(super) scribbled: Option<&'static str>,
}

impl Datagrams {
    pub(super) fn new(owner: Owner, region: Arc<Region>) -> Datagrams {
        Datagrams {
            owner,
            tx: TxConsumer::new(Arc::clone(&region)),
            rx: RxProducer::new(Arc::clone(&region)),
            status: EngineStatus::new(region),
            fresh: false,
            unfinished: false,
            scribbled: None,
        }
    }

    /// Puts a received datagram into the ring; false when it is full.
    pub(super) fn deliver(&mut self, datagram: &Datagram<'_>, now: Instant) -> bool {
        let header = DgramHeader {
            kind: to_record(datagram.kind),
            mac: datagram.src.octets(),
            port: datagram.src_port,
            sequence: datagram.sequence,
            timestamp_ns: now.as_nanos(),
        };
        match self.rx.put_record(&header, datagram.bytes) {
            Ok(taken) => {
                self.fresh |= taken;
                taken
            }
            Err(scribble) => {
                self.scribbled = Some(scribble.what());
                false
            }
        }
    }

    /// True when there is something to publish or report.
    pub(super) fn touched(&self) -> bool {
        self.fresh || self.scribbled.is_some()
    }

    /// True when a program that waits for room to send should look again.
    pub(super) fn room_notice_due(&mut self) -> bool {
        self.tx.room_notice_due()
    }

    /// Publishes what was delivered; true when there was something.
    pub(super) fn publish(&mut self) -> bool {
        std::mem::take(&mut self.fresh) && self.rx.publish()
    }
}

impl Link {
    /// The bell of a datagram socket rang: send its records.
    pub(super) fn serve_datagrams(&mut self, port: Port) {
        // Records are taken: publish looks whether the writer waits for room.
        self.touched.push(port);
        for _ in 0..RECORDS_PER_BELL {
            let Some(socket) = self.datagrams.get_mut(&port) else {
                return;
            };
            if socket.scribbled.is_some() {
                return;
            }
            // Whoever sends more than a batch has to wait for the wire; the ring holds the rest.
            if self.tx.is_full() {
                break;
            }
            // Copied, so that the ring is free at once: datagrams are not kept for repetition.
            let mut bytes = self.spare_payloads.pop().unwrap_or_default();
            let header = match socket.tx.take_record_into(&mut bytes) {
                Ok(Some(header)) => header,
                nothing => {
                    if let Err(scribble) = nothing {
                        socket.scribbled = Some(scribble.what());
                    }
                    self.spare_payload(bytes);
                    return;
                }
            };
            let made = match (self.tx.head(), from_record(header.kind)) {
                (Some(head), Some(kind)) => self
                    .endpoint
                    .edp_header(
                        head,
                        port,
                        (MacAddr(header.mac), header.port),
                        kind,
                        header.sequence,
                        bytes.len(),
                    )
                    .map(|transmit| (kind.prefix_len(), transmit)),
                _ => None,
            };
            match made {
                None => {
                    self.stats.datagram_refused += 1;
                    self.spare_payload(bytes);
                }
                Some((prefix, made)) => self.push_owned(prefix, made.dst, bytes, made.tail_len),
            }
        }
        // More may wait: the program rings again only for new records, so look again next turn.
        if let Some(socket) = self.datagrams.get_mut(&port)
            && !std::mem::replace(&mut socket.unfinished, true)
        {
            self.unfinished.push_back(port);
        }
    }

    /// Goes on with the sockets that had more than one visit may take. True if there were any.
    pub(super) fn continue_datagrams(&mut self) -> bool {
        // A full batch is what the kernel did not take: the loop comes back when it is time to
        // offer it again.
        if self.unfinished.is_empty() || self.tx.is_full() {
            return false;
        }
        // Each once: those that still have more come behind the others.
        for _ in 0..self.unfinished.len() {
            let Some(port) = self.unfinished.pop_front() else {
                break;
            };
            if let Some(socket) = self.datagrams.get_mut(&port) {
                socket.unfinished = false;
            }
            self.serve_datagrams(port);
        }
        true
    }

    /// Sends what a socket that is being closed has left in its ring, as far as some batches take
    /// it.
    pub(super) fn finish_datagrams(&mut self, now: Instant, port: Port) {
        for _ in 0..CLOSING_VISITS {
            self.serve_datagrams(port);
            let Some(socket) = self.datagrams.get_mut(&port) else {
                return;
            };
            if !std::mem::take(&mut socket.unfinished) {
                return;
            }
            self.unfinished.retain(|other| *other != port);
            if !self.transmit(now) {
                return;
            }
        }
    }
}

fn to_record(kind: EdpKind) -> DgramKind {
    match kind {
        EdpKind::Data => DgramKind::Data,
        EdpKind::EchoRequest => DgramKind::EchoRequest,
        EdpKind::EchoReply => DgramKind::EchoReply,
        EdpKind::InfoRequest => DgramKind::InfoRequest,
        // The endpoint keeps those to itself.
        EdpKind::InfoReply | EdpKind::PortQuery | EdpKind::PortReply => DgramKind::InfoReply,
    }
}

/// What a program may send: data and requests, never a reply in the node's name.
fn from_record(kind: DgramKind) -> Option<EdpKind> {
    match kind {
        DgramKind::Data => Some(EdpKind::Data),
        DgramKind::EchoRequest => Some(EdpKind::EchoRequest),
        DgramKind::InfoRequest => Some(EdpKind::InfoRequest),
        DgramKind::EchoReply | DgramKind::InfoReply => None,
    }
}
