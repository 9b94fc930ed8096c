//! A link: one interface with its sockets, its endpoint, and the owners of its connections.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use esp_proto::{ConnId, Endpoint, EndpointConfig, Instant, MacAddr, NodeAddr, Port, TurnQueue};
use netif::{Interface, PacketSocket, SendBatch, UdpSocket};

use super::capture::Capture;
use super::carrier::{Carrier, Sockets};
use super::datagrams::Datagrams;
use super::protect::{Secure, frame_mtu};
use super::stats::LinkStats;
use super::streams::Stream;
use super::{LOOP_QUEUE, TX_BATCH, UDP_TX_BATCH, entropy};
use crate::command::{LinkCondition, LinkId, ListenerId};
use crate::config::{EngineError, LinkConfig};
use crate::engine_set::Member;
use crate::shm::Region;

/// Number of rounds of transmission before a changed address is adopted, enough for the resets of a
/// full table.
const LAST_FRAMES: usize = 64;
/// Maximum number of payloads and regions kept for the frames of a batch before it must be emptied.
const KEPT_PAYLOADS: usize = 2 * UDP_TX_BATCH;
/// Number of frames of a batch that streams leave to datagrams waiting for room.
pub(super) const DATAGRAM_PLACES: usize = TX_BATCH / 4;

/// One interface of the engine.
pub(super) struct Link {
    pub(super) interface: Interface,
    pub(super) endpoint: Endpoint,
    pub(super) streams: Vec<Option<Stream>>,
    pub(super) datagrams: HashMap<Port, Datagrams>,
    /// Streams whose readers are woken at the end of the burst.
    pub(super) delayed_wakes: Vec<ConnId>,
    /// Time of the first of them.
    pub(super) delayed_since: Instant,
    /// The last iteration received frames.
    pub(super) receiving: bool,
    /// Datagram sockets with records to publish, or with corrupt rings.
    pub(super) touched: Vec<Port>,
    /// Datagram sockets with more records than one visit takes, by user.
    pub(super) unfinished: TurnQueue<Port>,
    pub(super) listeners: HashMap<Port, ListenerId>,
    pub(super) stats: LinkStats,
    pub(super) carrier: Carrier,
    pub(super) tx: SendBatch,
    /// Time since which the device has refused the first frame of `tx`.
    pub(super) tx_stuck: Option<Instant>,
    /// Payloads of frames in `tx` that are not in a ring.
    pub(super) owned: Vec<Vec<u8>>,
    /// Used buffers, for later payloads and frames to the link's own address.
    pub(super) spare_buffers: Vec<Vec<u8>>,
    /// Regions of closed streams that frames in `tx` may still refer to.
    pub(super) retired_regions: Vec<Arc<Region>>,
    /// Protection of the packets, if configured.
    pub(super) secure: Option<Secure>,
    /// Place in a set of engines, if there are several, and number of this link.
    pub(super) member: Option<(Member, LinkId)>,
    /// Frames sent to the link's own address, at most [`LOOP_QUEUE`].
    pub(super) looped: VecDeque<Vec<u8>>,
    pub(super) pcap: Option<Capture>,
    /// Ports whose frames are received: all, but over leased sockets only those of the lease.
    pub(super) ports: RangeInclusive<Port>,
    /// No connection runs here yet, so the link is polled at long intervals, and when epoll reports
    /// frames. This is the initial state of spare links of a lease and of UDP links of an embedded
    /// engine.
    pub(super) standby: bool,
    /// Ports leased to other processes, one entry for each lease.
    pub(super) held: Vec<RangeInclusive<Port>>,
    up: bool,
    pub(super) gone: bool,
}

impl Link {
    pub(super) fn open(
        link: LinkConfig,
        (config, incarnation): (EndpointConfig, u64),
        socket: &netif::SocketOptions,
        (member, pcap): (Option<(Member, LinkId)>, Option<Capture>),
    ) -> Result<Link, EngineError> {
        let mut attached = true;
        let (interface, carrier, addr) = match link {
            LinkConfig::Ethernet(interface) => {
                let sockets = sockets(&interface, &config, socket, member.as_ref())?;
                // Until it is up, the link is treated as one whose interface was removed.
                attached = sockets.is_some();
                let sockets = match sockets {
                    Some(sockets) => sockets,
                    None => deaf_sockets(&interface, &config)?,
                };
                let carrier = Carrier::ethernet(sockets, interface.mtu);
                let addr = NodeAddr::Mac(MacAddr(interface.mac.octets()));
                (interface, carrier, addr)
            }
            LinkConfig::Udp {
                interface,
                local,
                sources,
            } => {
                let options = netif::UdpOptions {
                    receive_buffer: socket.receive_buffer,
                    send_buffer: socket.send_buffer,
                };
                let socket = UdpSocket::bind(local, &options)?;
                let addr = NodeAddr::Udp(socket.local_addr());
                (interface, Carrier::udp(socket, sources), addr)
            }
        };
        let mut link = Link::new((interface, addr), (config, incarnation), carrier)?;
        (link.member, link.pcap) = (member, pcap);
        link.gone = !attached;
        Ok(link)
    }

    /// Creates a link over open sockets, whose address is `addr`, for an endpoint of this
    /// configuration and incarnation.
    pub(super) fn new(
        (interface, addr): (Interface, NodeAddr),
        (mut config, incarnation): (EndpointConfig, u64),
        carrier: Carrier,
    ) -> Result<Link, EngineError> {
        let mut seed = [0u8; 32];
        entropy(&mut seed)?;
        let mtu = frame_mtu(addr, interface.mtu, config.overhead != 0);
        // The socket sends ECT(0) (W-111); Ethernet has no such field.
        config.ecn = addr.is_udp();
        let batch = if addr.is_udp() {
            UDP_TX_BATCH
        } else {
            TX_BATCH
        };
        Ok(Link {
            endpoint: Endpoint::new(config, addr, mtu, seed, incarnation),
            streams: Vec::new(),
            datagrams: HashMap::new(),
            delayed_wakes: Vec::new(),
            delayed_since: Instant::ZERO,
            receiving: false,
            touched: Vec::new(),
            unfinished: TurnQueue::default(),
            listeners: HashMap::new(),
            stats: LinkStats::default(),
            carrier,
            tx: SendBatch::new(batch),
            tx_stuck: None,
            owned: Vec::new(),
            spare_buffers: Vec::new(),
            retired_regions: Vec::new(),
            secure: None,
            member: None,
            looped: VecDeque::new(),
            pcap: None,
            ports: 0..=Port::MAX,
            standby: false,
            held: Vec::new(),
            up: interface.up,
            gone: false,
            interface,
        })
    }

    /// Returns the current condition.
    pub(super) fn condition(&self) -> LinkCondition {
        LinkCondition {
            up: self.up,
            mtu: self.endpoint.mtu(),
            gone: self.gone,
            addr: self.endpoint.addr(),
            index: self.interface.index,
        }
    }

    /// Returns true if the link has nothing to transmit: it is in standby, and no program has
    /// written a datagram. (A received frame is answered in the iteration that receives it.)
    #[inline]
    pub(super) fn rests(&self) -> bool {
        self.standby
            && self.touched.is_empty()
            && self.tx.is_empty()
            && self.looped.is_empty()
            && self.unfinished.is_empty()
            && !self.secure.as_ref().is_some_and(Secure::wants_transmit)
    }

    /// Returns true if no frame can be queued until a batch is sent, or until frames to the link's
    /// own address are received.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.is_batch_full() || self.looped.len() >= LOOP_QUEUE
    }

    /// Returns true if no frame can be queued until a batch is sent. Payloads are freed when the
    /// batch is empty, which it would never be if the device took only a part each time while
    /// frames were added.
    #[inline]
    pub(super) fn is_batch_full(&self) -> bool {
        let kept = self.owned.len() + self.retired_regions.len();
        self.tx.is_full() || (kept >= KEPT_PAYLOADS && !self.tx.is_empty())
    }

    /// Returns true if the rest of the batch is for datagrams that wait: where the kernel refuses
    /// frames, streams would fill each place that becomes free.
    #[inline]
    pub(super) fn is_kept_for_datagrams(&self) -> bool {
        !self.unfinished.is_empty() && self.tx.capacity() - self.tx.len() <= DATAGRAM_PLACES
    }

    /// Queues a frame to the link's own address for this engine or the one that owns its port. The
    /// parts of the frame start at the destination address. The caller has checked
    /// [`Link::is_full`].
    pub(super) fn loop_back(&mut self, parts: [&[u8]; 3]) {
        let mut frame = self.spare_buffers.pop().unwrap_or_default();
        frame.clear();
        for part in parts {
            frame.extend_from_slice(part);
        }
        let own = match &self.member {
            None => Some(frame),
            Some((member, link)) => member.pass_on(*link, frame, &mut self.stats.looped_dropped),
        };
        self.looped.extend(own);
    }

    /// Returns the earliest deadline of the endpoint and of protection.
    pub(super) fn poll_timeout(&mut self) -> Option<Instant> {
        let protection = self.secure.as_ref().and_then(Secure::poll_timeout);
        [self.endpoint.poll_timeout(), protection]
            .into_iter()
            .flatten()
            .min()
    }

    /// Runs the timers of the endpoint and of protection. Returns true if one expired.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let due = self.poll_timeout().is_some_and(|deadline| deadline <= now);
        if due {
            self.endpoint.handle_timeout(now);
            if let Some(secure) = &mut self.secure {
                secure.handle_timeout(now);
            }
        }
        due
    }

    /// Reads the state of the interface. Returns true if the link's condition has changed.
    #[cold]
    pub(super) fn poll_state(&mut self, now: Instant) -> bool {
        if self.gone {
            return false;
        }
        let Ok(state) = self.carrier.link_state(self.interface.index) else {
            return false;
        };
        let before = self.condition();
        self.up = state.is_some_and(|state| state.up);
        match state {
            None => {
                self.gone = true;
                // An interface that returns never has its previous index.
                self.endpoint.abandon(now, true);
            }
            Some(state) => {
                if before.up && !self.up {
                    self.endpoint.abandon(now, false);
                }
                self.set_mtu(now, state.mtu);
                self.set_mac(now, MacAddr(state.mac.octets()));
            }
        }
        before != self.condition()
    }

    fn set_mtu(&mut self, now: Instant, mtu: u32) {
        if mtu != self.interface.mtu {
            self.interface.mtu = mtu;
            self.carrier.set_mtu(mtu);
            let mtu = frame_mtu(self.endpoint.addr(), mtu, self.secure.is_some());
            self.endpoint.set_mtu(now, mtu);
        }
    }

    /// Adopts a changed hardware address. Peers know the connections by the old one, so those that
    /// cannot move are reset, from the old address while the interface can send.
    fn set_mac(&mut self, now: Instant, mac: MacAddr) {
        let own = self.endpoint.addr();
        if own.is_udp() || own == NodeAddr::Mac(mac) || mac == MacAddr([0; 6]) {
            return;
        }
        self.endpoint.abandon(now, true);
        for _ in 0..LAST_FRAMES {
            if !self.transmit(now) & !self.receive_loopback(now) {
                break;
            }
        }
        self.interface.mac = mac.0.into();
        self.endpoint.set_addr(mac);
        if let Some(secure) = &mut self.secure {
            secure.set_addr(NodeAddr::Mac(mac));
        }
    }

    /// Attaches the link, with new sockets, to the interface that was created again under the name
    /// of the removed one. Returns false if there is no such interface yet.
    ///
    /// # Errors
    /// The sockets cannot be opened.
    #[cold]
    pub(super) fn attach_again(
        &mut self,
        now: Instant,
        options: &netif::SocketOptions,
    ) -> Result<bool, EngineError> {
        // Links of UDP are named after their interface: `eth0/udp`.
        let name = self.interface.name.split('/').next().unwrap_or_default();
        let Ok(interface) = Interface::by_name(name) else {
            return Ok(false);
        };
        if self.carrier.packet_sockets().is_some() {
            let config = self.endpoint.config();
            let sockets = sockets(&interface, config, options, self.member.as_ref())?;
            let Some(sockets) = sockets else {
                return Ok(false);
            };
            self.carrier.replace_sockets(sockets);
            self.filter_held();
        }
        self.gone = false;
        self.up = interface.up && interface.running;
        self.interface.index = interface.index;
        self.set_mtu(now, interface.mtu);
        self.set_mac(now, MacAddr(interface.mac.octets()));
        Ok(true)
    }
}

/// Opens the sockets of an interface. `None`: several engines share the interface, and it is down.
fn sockets(
    interface: &Interface,
    config: &EndpointConfig,
    options: &netif::SocketOptions,
    member: Option<&(Member, LinkId)>,
) -> Result<Option<Sockets>, EngineError> {
    let Some((Member { set, engine }, _)) = member else {
        return Ok(Some(own_sockets(interface, config, options)?));
    };
    let ethertypes = [config.esp_ethertype, config.edp_ethertype];
    let sockets = set.sockets(*engine, interface, ethertypes, options)?;
    Ok(sockets.map(|[esp, edp]| (esp.into(), edp.into())))
}

/// Opens sockets that receive all frames of an interface.
fn own_sockets(
    interface: &Interface,
    config: &EndpointConfig,
    options: &netif::SocketOptions,
) -> Result<Sockets, EngineError> {
    let esp = PacketSocket::open(interface, config.esp_ethertype, options)?;
    let edp = PacketSocket::open(interface, config.edp_ethertype, options)?;
    Ok((esp.into(), edp.into()))
}

/// Opens sockets that receive nothing.
fn deaf_sockets(interface: &Interface, config: &EndpointConfig) -> Result<Sockets, EngineError> {
    let options = netif::SocketOptions {
        filter: Some(netif::Filter::nothing()),
        receive_buffer: 0,
        send_buffer: 0,
    };
    own_sockets(interface, config, &options)
}
