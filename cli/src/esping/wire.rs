//! The datagram socket of esping.

use std::io;
use std::time::Duration;

use esp_client::control::InterfaceInfo;
use esp_client::{
    Client, DatagramInfo, EdpKind, EdpSocket, EspAddr, EspError, EspStream, NodeAddr, NodeInfo,
    Path, monotonic_nanos,
};

use netif::Interface;

use crate::out::Failure;

/// Length of a datagram's header after the EtherType, in bytes.
const HEADER: usize = 11;
/// Port to which a test stream is connected. Only programs of the superuser can listen there, and
/// such a program would see a connection that ends at once.
const TRIED_PORT: u16 = 1;
/// Maximum wait for the answer to a test stream. A daemon that has just replaced another one does
/// not refuse connections for 3 s.
pub(crate) const STREAM_WAIT: Duration = Duration::from_secs(4);

/// Content of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Body of an echo reply.
    Echo(Vec<u8>),
    /// Reply to an information request.
    Info(NodeInfo),
}

/// A received answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) src: NodeAddr,
    /// Arrival time in nanoseconds, by the wire's clock.
    pub(crate) at: u64,
    pub(crate) answer: Answer,
}

/// Sends requests and receives answers. Answers are matched by their body, because the peer chooses
/// the sequence number of an answer; that of a request only helps to read a capture.
pub(crate) trait Wire {
    /// Returns the name of the interface.
    fn interface(&self) -> &str;
    /// Returns the address of the interface.
    fn addr(&self) -> NodeAddr;
    /// Returns whether the interface is up now; `None` if that is unknown.
    fn is_up(&self) -> Option<bool>;
    /// Returns the maximum number of bytes in the body of an echo request.
    fn max_body(&self) -> usize;
    /// Returns the number of bytes of the interface's MTU that are not available to a datagram's
    /// payload: its header, and those of UDP and protection on this interface. `None` if the
    /// interface is not visible here.
    fn overhead(&self) -> Option<usize>;
    /// Returns the current time in nanoseconds, by the clock of [`Arrival::at`].
    fn now(&self) -> u64;
    /// Sends an echo request.
    fn echo(&mut self, dst: NodeAddr, sequence: u16, body: &[u8]) -> io::Result<()>;
    /// Sends an information request.
    fn info(&mut self, dst: NodeAddr, sequence: u16) -> io::Result<()>;
    /// Receives a datagram; `None` after `patience`, or if it is not an answer.
    fn receive(&mut self, patience: Duration) -> io::Result<Option<Arrival>>;
    /// Tests whether packets of streams, which have a separate EtherType, are answered within
    /// `wait`. Returns `None` if that cannot be tested.
    fn streams(&mut self, dst: NodeAddr, wait: Duration) -> Option<bool>;
}

/// A datagram socket of the node's daemon, or for UDP, of this program.
pub(crate) struct Datagrams {
    client: Client,
    socket: EdpSocket,
    buffer: Vec<u8>,
}

impl Datagrams {
    /// Binds to this interface, or to the one that reaches the node.
    pub(crate) fn towards(addr: NodeAddr, interface: Option<&str>) -> Result<Datagrams, Failure> {
        let (client, interface) = route(addr, interface)?;
        Datagrams::on(&client, &interface)
    }

    /// Returns true if this socket reaches the node over this interface.
    pub(super) fn reaches(&self, addr: NodeAddr, interface: &str) -> bool {
        self.socket.interface() == interface && self.socket.addr().is_udp() == addr.is_udp()
    }

    /// Binds to this interface, or to each interface that is up.
    pub(crate) fn everywhere(interface: Option<&str>) -> Result<Vec<Datagrams>, Failure> {
        let client = client()?;
        if let Some(name) = interface {
            return Ok(vec![Datagrams::on(&client, name)?]);
        }
        // There is no broadcast over UDP.
        let is_asked = |i: &InterfaceInfo| i.up && !i.addr.is_udp();
        let up: Vec<_> = client.interfaces().into_iter().filter(is_asked).collect();
        if up.is_empty() {
            return Err(Failure::new(
                "none of the daemon's Ethernet interfaces is up",
            ));
        }
        up.into_iter()
            .map(|i| Datagrams::on(&client, &i.name))
            .collect()
    }

    /// Binds to this interface of the client.
    pub(crate) fn on(client: &Client, interface: &str) -> Result<Datagrams, Failure> {
        let socket = EdpSocket::builder()
            .interface(interface)
            .bind_at(client, 0)
            .map_err(Failure::new)?;
        Ok(Datagrams {
            client: client.clone(),
            buffer: vec![0; socket.max_payload()],
            socket,
        })
    }
}

/// Returns the client and the interface that reach a node; a given interface is kept.
pub(super) fn route(addr: NodeAddr, interface: Option<&str>) -> Result<(Client, String), Failure> {
    let client = if addr.is_udp() {
        Client::udp().map_err(Failure::new)?
    } else {
        client()?
    };
    let interface = match interface {
        Some(name) => name.to_owned(),
        None => client.route(addr).map_err(Failure::new)?,
    };
    Ok((client, interface))
}

fn client() -> Result<Client, Failure> {
    Client::shared().map_err(Failure::new)
}

impl Wire for Datagrams {
    fn interface(&self) -> &str {
        self.socket.interface()
    }

    fn addr(&self) -> NodeAddr {
        self.socket.addr()
    }

    fn is_up(&self) -> Option<bool> {
        let status = self.client.status().ok()?;
        let name = self.socket.interface();
        let own = status.interfaces.iter().find(|own| own.name == name)?;
        Some(own.up)
    }

    fn max_body(&self) -> usize {
        // The type precedes the body.
        self.socket.max_payload().saturating_sub(1)
    }

    fn overhead(&self) -> Option<usize> {
        let name = self.socket.interface();
        let whole = interface_mtu(name, self.addr())?;
        let frame = self.client.interface(Some(name))?.mtu;
        let around = usize::try_from(whole.checked_sub(frame)?).ok()?;
        Some(around + HEADER)
    }

    fn now(&self) -> u64 {
        monotonic_nanos()
    }

    fn echo(&mut self, dst: NodeAddr, sequence: u16, body: &[u8]) -> io::Result<()> {
        self.socket.send_echo(dst, sequence, body).map(drop)
    }

    fn info(&mut self, dst: NodeAddr, sequence: u16) -> io::Result<()> {
        self.socket.send_info_request(dst, sequence).map(drop)
    }

    fn receive(&mut self, patience: Duration) -> io::Result<Option<Arrival>> {
        match self.socket.recv_from_timeout(&mut self.buffer, patience) {
            Ok((len, info)) => Ok(arrival(&info, self.buffer.get(..len).unwrap_or_default())),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn streams(&mut self, dst: NodeAddr, wait: Duration) -> Option<bool> {
        // Over UDP, datagrams and streams use the same port.
        if dst.is_udp() {
            return None;
        }
        let attempt = EspStream::builder()
            .interface(self.socket.interface())
            .path(Path::Daemon)
            .timeout(wait)
            .connect_at(&self.client, EspAddr::new(dst, TRIED_PORT));
        attempt.map_or_else(|error| is_answer(&error), |_| Some(true))
    }
}

fn arrival(info: &DatagramInfo, body: &[u8]) -> Option<Arrival> {
    let answer = match info.kind {
        EdpKind::EchoReply => Answer::Echo(body.to_vec()),
        EdpKind::InfoReply => Answer::Info(NodeInfo::parse(body)?),
        _ => return None,
    };
    Some(Arrival {
        src: info.src,
        at: info.received_nanos,
        answer,
    })
}

/// Returns the MTU of the interface with this name and address; `None` if it is in another network
/// namespace.
fn interface_mtu(name: &str, addr: NodeAddr) -> Option<u32> {
    match addr {
        NodeAddr::Mac(mac) => {
            let found = Interface::by_name(name).ok()?;
            (found.mac.octets() == mac.0).then_some(found.mtu)
        }
        NodeAddr::Udp(addr) => {
            let mut all = netif::addresses()
                .into_iter()
                .map(|own| (own.ip, own.interface));
            let found = all.find(|(ip, own)| *ip == addr.ip() && own.name == name);
            found.map(|(_, own)| own.mtu)
        }
    }
}

/// Returns whether the error of a connection attempt is an answer of the peer; `None` if the error
/// is local.
fn is_answer(error: &io::Error) -> Option<bool> {
    match EspError::of(error)? {
        EspError::ConnectTimedOut(_) | EspError::ConnectCallTimedOut(_) => Some(false),
        EspError::Refused(_)
        | EspError::BadKey(_)
        | EspError::PeerVersion { .. }
        | EspError::Aborted(_)
        | EspError::PeerLimit(_)
        | EspError::ResetOther { .. } => Some(true),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod fake {
    use super::*;
    use std::collections::VecDeque;

    use esp_client::MacAddr;

    /// Converts a request (its number, starting at 1, and its body) to answers, each with its delay
    /// in microseconds.
    type Peer = Box<dyn FnMut(NodeAddr, u64, Option<&[u8]>) -> Vec<(u64, Arrival)>>;

    /// A wire whose peer is a closure; only waiting advances its clock.
    pub(in crate::esping) struct Fake {
        pub(in crate::esping) now: u64,
        pub(in crate::esping) max: usize,
        pub(in crate::esping) overhead: Option<usize>,
        /// Number of requests to one node.
        pub(in crate::esping) sent: u64,
        pub(in crate::esping) broadcasts: u64,
        pub(in crate::esping) streams: Option<bool>,
        pub(in crate::esping) up: Option<bool>,
        peer: Peer,
        coming: VecDeque<Arrival>,
    }

    impl Fake {
        pub(in crate::esping) fn new(
            max: usize,
            peer: impl FnMut(NodeAddr, u64, Option<&[u8]>) -> Vec<(u64, Arrival)> + 'static,
        ) -> Fake {
            Fake {
                now: 0,
                max,
                overhead: Some(HEADER),
                sent: 0,
                broadcasts: 0,
                streams: None,
                up: None,
                peer: Box::new(peer),
                coming: VecDeque::new(),
            }
        }

        fn ask(&mut self, dst: NodeAddr, body: Option<&[u8]>) {
            let count = if dst == MacAddr::BROADCAST {
                &mut self.broadcasts
            } else {
                &mut self.sent
            };
            *count += 1;
            for (after, mut answer) in (self.peer)(dst, *count, body) {
                answer.at = self.now + after * 1000;
                self.coming.push_back(answer);
            }
            self.coming.make_contiguous().sort_by_key(|a| a.at);
        }
    }

    /// Returns the echo of a body.
    pub(in crate::esping) fn echo(src: NodeAddr, body: &[u8]) -> Arrival {
        Arrival {
            src,
            at: 0,
            answer: Answer::Echo(body.to_vec()),
        }
    }

    impl Wire for Fake {
        fn interface(&self) -> &str {
            "fake0"
        }

        fn addr(&self) -> NodeAddr {
            MacAddr([2, 0, 0, 0, 0, 0xff]).into()
        }

        fn is_up(&self) -> Option<bool> {
            self.up
        }

        fn max_body(&self) -> usize {
            self.max
        }

        fn overhead(&self) -> Option<usize> {
            self.overhead
        }

        fn now(&self) -> u64 {
            self.now
        }

        fn streams(&mut self, _dst: NodeAddr, _wait: Duration) -> Option<bool> {
            self.streams
        }

        fn echo(&mut self, dst: NodeAddr, _sequence: u16, body: &[u8]) -> io::Result<()> {
            self.ask(dst, Some(body));
            Ok(())
        }

        fn info(&mut self, dst: NodeAddr, _sequence: u16) -> io::Result<()> {
            self.ask(dst, None);
            Ok(())
        }

        fn receive(&mut self, patience: Duration) -> io::Result<Option<Arrival>> {
            let end = self.now + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
            if self.coming.front().is_some_and(|a| a.at <= end) {
                let next = self.coming.pop_front();
                self.now = self.now.max(next.as_ref().map_or(0, |a| a.at));
                return Ok(next);
            }
            self.now = end;
            Ok(None)
        }
    }
}
