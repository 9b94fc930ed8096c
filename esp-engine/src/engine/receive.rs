//! Reception of frames: from sockets, from the receive ring of a leased one, and those a link sent
//! to itself.

use std::fs::File;
use std::io::{self, BufWriter};

use esp_proto::{Endpoint, Instant, MacAddr, RxFrame};
use netif::{FrameKind, PacketSocket, PcapWriter, RawFrame, RecvBatch, RecvRing};

use super::RX_BATCH;
use super::link::{Link, LinkStats};
use super::posted::Posted;
use super::streams::LinkSink;

/// A socket, and its receive ring.
pub(super) struct Source {
    pub(super) socket: PacketSocket,
    /// Ring that receives the frames, if any.
    pub(super) ring: Option<RecvRing>,
}

impl From<PacketSocket> for Source {
    fn from(socket: PacketSocket) -> Source {
        Source { socket, ring: None }
    }
}

impl Source {
    /// Takes one batch of frames. Returns their number.
    fn receive(
        &mut self,
        batch: &mut RecvBatch,
        take: impl FnMut(RawFrame<'_>),
    ) -> io::Result<usize> {
        match &mut self.ring {
            Some(ring) => ring.receive(&self.socket, batch, RX_BATCH, take),
            None => {
                let count = self.socket.recv_batch(batch)?;
                batch.frames().for_each(take);
                Ok(count)
            }
        }
    }

    /// Takes the error of a socket. A socket with a ring is not read while the ring is empty, so
    /// that a pending error would end each sleep at once.
    fn take_error(&self) -> bool {
        self.ring.is_some() && self.socket.take_error().is_some()
    }
}

/// The parts of a link that handle a received frame: all but sockets and batches, which own the
/// frame.
struct Intake<'a, 'b> {
    now: Instant,
    endpoint: &'a mut Endpoint,
    sink: LinkSink<'a, 'b>,
    stats: Counts<'a>,
    pcap: Option<&'a mut PcapWriter<BufWriter<File>>>,
}

/// Counters of dropped frames.
struct Counts<'a> {
    not_for_us: &'a mut u64,
    truncated: &'a mut u64,
    unparsable: &'a mut u64,
    vlan: &'a mut u64,
}

impl Intake<'_, '_> {
    fn take(&mut self, frame: RawFrame<'_>) {
        if let Some(pcap) = &mut self.pcap {
            let _ = pcap.write_frame(frame.bytes);
        }
        if !matches!(frame.kind, FrameKind::Host | FrameKind::Broadcast) {
            *self.stats.not_for_us += 1;
            return;
        }
        if frame.truncated {
            *self.stats.truncated += 1;
            return;
        }
        let Ok(parsed) = frame.parse() else {
            *self.stats.unparsable += 1;
            return;
        };
        // W-09: a priority tag counts as none; any other VLAN has an interface of its own.
        if parsed.vlan.is_some() {
            *self.stats.vlan += 1;
            return;
        }
        let (src, dst) = (MacAddr(parsed.src.octets()), MacAddr(parsed.dst.octets()));
        let frame = RxFrame {
            src,
            dst,
            body: parsed.body,
            looped: false,
        };
        self.endpoint.handle_frame(self.now, frame, &mut self.sink);
    }
}

/// A link's parts by their role in reception: the sources of frames, and their handler.
struct Parts<'a, 'b> {
    esp: &'a mut Source,
    edp: &'a mut Source,
    rx: &'a mut RecvBatch,
    intake: Intake<'a, 'b>,
    errors: &'a mut u64,
    batches: &'a mut u64,
}

impl Link {
    fn parts<'a, 'b>(
        &'a mut self,
        now: Instant,
        posted: Option<&'a mut Posted<'b>>,
    ) -> Parts<'a, 'b> {
        let LinkStats {
            rx_not_for_us: not_for_us,
            rx_truncated: truncated,
            rx_unparsable: unparsable,
            rx_vlan: vlan,
            rx_errors: errors,
            rx_batches: batches,
            datagram_overflow: overflow,
            ..
        } = &mut self.stats;
        let sink = LinkSink {
            streams: &mut self.streams,
            datagrams: &mut self.datagrams,
            touched: &mut self.touched,
            overflow,
            now,
            posted,
        };
        let stats = Counts {
            not_for_us,
            truncated,
            unparsable,
            vlan,
        };
        let intake = Intake {
            now,
            endpoint: &mut self.endpoint,
            sink,
            stats,
            pcap: self.pcap.as_mut(),
        };
        Parts {
            esp: &mut self.esp,
            edp: &mut self.edp,
            rx: &mut self.rx,
            intake,
            errors,
            batches,
        }
    }

    /// Takes one batch of stream frames, and of datagram frames if `side`. Bytes of one stream go
    /// to `posted` first. Returns true if there were any.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        side: bool,
        posted: Option<&mut Posted<'_>>,
    ) -> bool {
        if self.gone {
            return false;
        }
        let mut parts = self.parts(now, posted);
        let any = parts.receive(true);
        if side {
            parts.receive(false) || any
        } else {
            any
        }
    }

    /// Passes frames that were sent to the own address to the endpoint, at most one receive batch.
    /// Returns true if there were any.
    pub(super) fn receive_loopback(&mut self, now: Instant) -> bool {
        let mac = self.endpoint.mac();
        let mut any = false;
        for _ in 0..RX_BATCH {
            let Some(frame) = self.looped.pop_front() else {
                break;
            };
            any = true;
            let body = frame.get(12..).unwrap_or_default();
            let Intake { endpoint, sink, .. } = &mut self.parts(now, None).intake;
            endpoint.handle_frame(
                now,
                RxFrame {
                    src: mac,
                    dst: mac,
                    body,
                    looped: true,
                },
                sink,
            );
            if self.spare.len() < RX_BATCH {
                self.spare.push(frame);
            }
        }
        any
    }

    /// Takes and counts the sockets' errors.
    #[cold]
    pub(super) fn take_errors(&mut self) {
        let waits = [self.esp.take_error(), self.edp.take_error()];
        self.stats.rx_errors += waits.iter().filter(|waits| **waits).count() as u64;
    }
}

impl Parts<'_, '_> {
    /// Takes one batch of frames. Returns true if there were any.
    fn receive(&mut self, stream: bool) -> bool {
        let source = if stream { &mut self.esp } else { &mut self.edp };
        match source.receive(self.rx, |frame| self.intake.take(frame)) {
            Ok(0) => false,
            Ok(_) => {
                *self.batches += 1;
                true
            }
            Err(_) => {
                // The socket reports once that its link went down; the link event follows.
                *self.errors += 1;
                false
            }
        }
    }
}
