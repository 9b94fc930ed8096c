//! Reception of frames: from sockets, from the receive ring of a leased one, and those a link sent
//! to itself.

use std::fs::File;
use std::io::{self, BufWriter};

use esp_proto::{Endpoint, Instant, MacAddr, RxFrame};
use netif::{FrameKind, PacketSocket, PcapWriter, RawFrame, RecvBatch, RecvRing};

use super::RX_BATCH;
use super::link::Link;
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

    /// Clears the pending error of a socket with a ring and returns true if there was one. Such a
    /// socket is not read while its ring is empty, so the error would end each sleep at once.
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
    pcap: Option<&'a mut PcapWriter<BufWriter<File>>>,
}

impl Intake<'_, '_> {
    fn take(&mut self, frame: RawFrame<'_>) {
        if let Some(pcap) = &mut self.pcap {
            let _ = pcap.write_frame(frame.bytes);
        }
        if !matches!(frame.kind, FrameKind::Host | FrameKind::Broadcast) {
            self.sink.stats.rx_not_for_us += 1;
            return;
        }
        if frame.truncated {
            self.sink.stats.rx_truncated += 1;
            return;
        }
        let Ok(parsed) = frame.parse() else {
            self.sink.stats.rx_unparsable += 1;
            return;
        };
        // W-09: a priority tag counts as none; any other VLAN has an interface of its own.
        if parsed.vlan.is_some() {
            self.sink.stats.rx_vlan += 1;
            return;
        }
        let frame = RxFrame {
            src: MacAddr(parsed.src.octets()),
            dst: MacAddr(parsed.dst.octets()),
            body: parsed.body,
            looped: false,
            ce: false,
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
}

impl Link {
    fn parts<'a, 'b>(
        &'a mut self,
        now: Instant,
        posted: Option<&'a mut Posted<'b>>,
    ) -> Parts<'a, 'b> {
        let sink = LinkSink {
            streams: &mut self.streams,
            datagrams: &mut self.datagrams,
            touched: &mut self.touched,
            stats: &mut self.stats,
            now,
            posted,
        };
        let intake = Intake {
            now,
            endpoint: &mut self.endpoint,
            sink,
            pcap: self.pcap.as_mut(),
        };
        Parts {
            esp: &mut self.esp,
            edp: &mut self.edp,
            rx: &mut self.rx,
            intake,
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
        parts.receive(true) | (side && parts.receive(false))
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
            let looped = RxFrame {
                src: mac,
                dst: mac,
                body: frame.get(12..).unwrap_or_default(),
                looped: true,
                ce: false,
            };
            let Intake { endpoint, sink, .. } = &mut self.parts(now, None).intake;
            endpoint.handle_frame(now, looped, sink);
            self.recycle(frame);
        }
        any
    }

    /// Clears and counts the sockets' pending errors.
    #[cold]
    pub(super) fn take_errors(&mut self) {
        for source in [&self.esp, &self.edp] {
            self.stats.rx_errors += u64::from(source.take_error());
        }
    }
}

impl Parts<'_, '_> {
    /// Takes one batch of frames. Returns true if there were any.
    fn receive(&mut self, stream: bool) -> bool {
        let source = if stream { &mut self.esp } else { &mut self.edp };
        match source.receive(self.rx, |frame| self.intake.take(frame)) {
            Ok(0) => false,
            Ok(_) => {
                self.intake.sink.stats.rx_batches += 1;
                true
            }
            Err(_) => {
                // The socket reports once that its link went down; the link event follows.
                self.intake.sink.stats.rx_errors += 1;
                false
            }
        }
    }
}
