//! Reception of frames: from sockets, from the receive ring of a leased one, and those a link sent
//! to itself.

use esp_proto::secure::Opened;
use esp_proto::{Endpoint, Instant, MacAddr, NodeAddr, RxFrame};
use netif::{Datagram, FrameKind, RawFrame};

use super::capture::Capture;
use super::carrier::Carrier;
use super::link::Link;
use super::posted::Posted;
use super::protect::Secure;
use super::streams::LinkSink;
use crate::engine_set::Member;

/// The parts of a link that handle a received frame: all but sockets and batches, which own the
/// frame.
struct Intake<'a, 'b> {
    now: Instant,
    endpoint: &'a mut Endpoint,
    sink: LinkSink<'a, 'b>,
    pcap: Option<&'a Capture>,
    secure: Option<&'a mut Secure>,
    /// Place in a set of engines, if there are several.
    member: Option<&'a Member>,
}

impl Intake<'_, '_> {
    fn take(&mut self, frame: RawFrame<'_>) {
        if let Some(pcap) = self.pcap {
            pcap.write(frame.bytes);
        }
        if !matches!(frame.kind, FrameKind::Host | FrameKind::Broadcast) {
            self.sink.stats.rx_foreign += 1;
            return;
        }
        if frame.truncated {
            self.sink.stats.rx_truncated += 1;
            return;
        }
        let Some(parsed) = netif::parse_ethernet(frame.bytes) else {
            self.sink.stats.rx_unparsable += 1;
            return;
        };
        // W-09: a priority tag counts as none; any other VLAN has an interface of its own.
        if parsed.vlan.is_some() {
            self.sink.stats.rx_vlan += 1;
            return;
        }
        let frame = RxFrame {
            src: NodeAddr::Mac(MacAddr(parsed.src.octets())),
            dst: NodeAddr::Mac(MacAddr(parsed.dst.octets())),
            body: parsed.body,
            looped: false,
            ce: false,
        };
        self.handle(frame);
    }

    /// Takes a packet of the UDP carrier. The kernel has checked its destination: the socket is
    /// bound to the endpoint's address.
    fn take_datagram(&mut self, datagram: &Datagram<'_>) {
        let frame = RxFrame {
            src: NodeAddr::Udp(datagram.src),
            dst: self.endpoint.addr(),
            body: datagram.bytes,
            looped: false,
            ce: datagram.ce,
        };
        self.handle(frame);
    }

    /// Passes a frame from the wire to the endpoint, without its protection.
    fn handle(&mut self, frame: RxFrame<'_>) {
        let mut frame = frame;
        if self.member.is_some_and(|member| !member.owns(frame.body)) {
            self.sink.stats.rx_other_engine += 1;
            return;
        }
        if let Some(secure) = &mut self.secure {
            match secure.open(self.now, frame.src, frame.dst, frame.body) {
                Opened::Packet(body) => frame.body = body,
                Opened::Broadcast(body) => {
                    (frame.dst, frame.body) = (NodeAddr::BROADCAST, body);
                }
                Opened::Nothing => return,
            }
        }
        self.endpoint.handle_frame(self.now, frame, &mut self.sink);
    }
}

/// A link's parts by their role in reception: the sources of frames, and their handler.
struct Parts<'a, 'b> {
    carrier: &'a mut Carrier,
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
            pcap: self.pcap.as_ref(),
            secure: self.secure.as_mut(),
            member: self.member.as_ref().map(|(member, _)| member),
        };
        Parts {
            carrier: &mut self.carrier,
            intake,
        }
    }

    /// Takes one batch of stream frames, and of datagram frames if `side`. Bytes of one stream go
    /// to `posted` first. Returns true if any frame was received.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        side: bool,
        posted: Option<&mut Posted<'_>>,
    ) -> bool {
        if self.gone || (!side && self.carrier.skips_receive(now)) {
            return false;
        }
        let mut parts = self.parts(now, posted);
        let any = parts.receive(true) | (side && parts.receive(false));
        self.carrier.record(now, any);
        any
    }

    /// Passes the frames that were sent to the link's own address to the endpoint. Returns true if
    /// there were any.
    pub(super) fn receive_loopback(&mut self, now: Instant) -> bool {
        let mut any = false;
        // Handling a frame queues none.
        while let Some(frame) = self.looped.pop_front() {
            any = true;
            self.receive_looped(now, frame);
        }
        any
    }

    /// Passes a frame that this engine or another one sent to the link's own address to the
    /// endpoint.
    pub(super) fn receive_looped(&mut self, now: Instant, frame: Vec<u8>) {
        let own = self.endpoint.addr();
        let looped = RxFrame {
            src: own,
            dst: own,
            body: frame.get(12..).unwrap_or_default(),
            looped: true,
            ce: false,
        };
        let Intake { endpoint, sink, .. } = &mut self.parts(now, None).intake;
        endpoint.handle_frame(now, looped, sink);
        self.recycle(frame);
    }

    /// Clears and counts the sockets' pending errors.
    #[cold]
    pub(super) fn take_errors(&mut self, now: Instant) {
        self.stats.rx_errors += self.carrier.take_errors();
        self.parts(now, None).take_closed_ports();
    }
}

impl Parts<'_, '_> {
    /// Takes one batch of frames. Returns true if there were any.
    fn receive(&mut self, stream: bool) -> bool {
        let Parts { carrier, intake } = self;
        let received = match carrier {
            Carrier::Ethernet { esp, edp, rx } => {
                let source = if stream { esp } else { edp };
                source.receive(rx, |frame| intake.take(frame))
            }
            // One socket has both protocols.
            Carrier::Udp { .. } if !stream => Ok(0),
            Carrier::Udp {
                socket,
                rx,
                sources,
                ..
            } => socket.recv_batch(rx).inspect(|_| {
                for datagram in rx.datagrams() {
                    let from = datagram.src.ip();
                    if sources.is_empty() || sources.iter().any(|all| all.contains(from)) {
                        intake.take_datagram(&datagram);
                    } else {
                        intake.sink.stats.rx_source += 1;
                    }
                }
            }),
        };
        match received {
            Ok(0) => false,
            Ok(_) => {
                intake.sink.stats.rx_batches += 1;
                true
            }
            Err(_) => {
                // The socket reports an ICMP error or, once, that its link went down; the link
                // event follows.
                intake.sink.stats.rx_errors += 1;
                self.take_closed_ports();
                false
            }
        }
    }

    /// Passes the ICMP reports of closed UDP ports to the endpoint.
    #[cold]
    fn take_closed_ports(&mut self) {
        let Intake { endpoint, now, .. } = &mut self.intake;
        if let Carrier::Udp { socket, .. } = &*self.carrier {
            socket.closed_ports(|to| endpoint.port_closed(*now, NodeAddr::Udp(to)));
        }
    }
}
