//! Filter expressions for sockets, in the style of ss(8): `state established and dport = 5000`.
//!
//! [`Filter::parse`] parses an expression, which is applied to a [`Socket`].

mod parse;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use esp_client::NodeAddr;
use esp_client::control::{
    ConnectionStatus, EdpStatus, InterfaceInfo, ListenerStatus, Owner, Status,
};

pub use parse::Error;

/// Explanation of the expressions, for `--help`.
pub const HELP: &str = "\
Conditions, joined by `and` (which may be omitted), `or`, `not` and parentheses:
  state STATE         established, syn-sent, syn-received, fin-wait-1, fin-wait-2,
                      close-wait, closing, last-ack, time-wait, listening, bound,
                      connected (all except listening and bound)
  sport, dport PORT   local port, port of the peer
  src, dst NODE       local address, address or name of the peer
  dev IF              interface
  path PATH           daemon or lease
  user NAME|UID, pid PID, program NAME
  rtt TIME, cwnd PACKETS, retrans PACKETS, sendq BYTES, recvq BYTES
= or no operator compares for equality; != < <= > >= are the other comparisons. The shell
interprets < > ( ) ! itself: quote the expression, such as 'dport = 5000 and rtt > 1ms'.";

/// State of a listener.
pub const LISTENING: &str = "listening";
/// State of a datagram port.
pub const BOUND: &str = "bound";

/// A socket as filters see it.
#[derive(Clone, Debug)]
pub struct Socket<'a> {
    /// State of the connection, [`LISTENING`] or [`BOUND`].
    pub state: &'a str,
    /// Interface.
    pub interface: &'a str,
    /// Address of the interface, if the node still has it.
    pub local: Option<NodeAddr>,
    /// Local port.
    pub port: u16,
    /// Address of the peer of a connection.
    pub peer: Option<NodeAddr>,
    /// The socket's owner.
    pub owner: &'a Owner,
    /// The connection; `None` for listeners and datagram ports.
    pub connection: Option<&'a ConnectionStatus>,
}

impl<'a> Socket<'a> {
    /// Creates the view of a connection.
    pub fn connection(status: &'a Status, connection: &'a ConnectionStatus) -> Socket<'a> {
        Socket {
            state: &connection.state,
            interface: &connection.interface,
            local: local(&status.interfaces, &connection.interface),
            port: connection.local_port,
            peer: connection.peer.parse().ok(),
            owner: &connection.owner,
            connection: Some(connection),
        }
    }

    /// Creates the view of a listener.
    pub fn listener(status: &'a Status, listener: &'a ListenerStatus) -> Socket<'a> {
        Socket::unconnected(
            status,
            LISTENING,
            &listener.interface,
            listener.port,
            &listener.owner,
        )
    }

    /// Creates the view of a datagram port.
    pub fn edp(status: &'a Status, edp: &'a EdpStatus) -> Socket<'a> {
        Socket::unconnected(status, BOUND, &edp.interface, edp.port, &edp.owner)
    }

    fn unconnected(
        status: &'a Status,
        state: &'a str,
        interface: &'a str,
        port: u16,
        owner: &'a Owner,
    ) -> Socket<'a> {
        Socket {
            state,
            interface,
            local: local(&status.interfaces, interface),
            port,
            peer: None,
            owner,
            connection: None,
        }
    }
}

fn local(interfaces: &[InterfaceInfo], name: &str) -> Option<NodeAddr> {
    let found = interfaces.iter().find(|interface| interface.name == name);
    found.map(|interface| interface.addr)
}

/// A parsed expression. The default accepts every socket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter(Option<Expr>);

impl Filter {
    /// Parses an expression. An empty one accepts every socket.
    ///
    /// # Errors
    /// The text is not a valid expression, or names an unknown node or user.
    pub fn parse(text: &str) -> Result<Filter, Error> {
        parse::parse(text, &parse::System::new()).map(Filter)
    }

    /// Returns true if it accepts every socket because the expression is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns true if the filter accepts the socket.
    pub fn accepts(&self, socket: &Socket<'_>) -> bool {
        self.0.as_ref().is_none_or(|expr| expr.accepts(socket))
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Expr {
    Any(Vec<Expr>),
    All(Vec<Expr>),
    Not(Box<Expr>),
    /// The state is one of these.
    State(Vec<&'static str>),
    Number(Number, Comparison, f64),
    Node(Side, Host),
    Text(Text, String),
    User(u32),
}

/// A property that is a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    LocalPort,
    PeerPort,
    Pid,
    /// In microseconds.
    Rtt,
    Cwnd,
    Retransmits,
    SendQueue,
    RecvQueue,
}

/// A property that is a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    Interface,
    Path,
    Program,
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Local,
    Peer,
}

/// An address to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    /// An Ethernet address, or an IP address and UDP port.
    Node(NodeAddr),
    /// An IP address with any UDP port.
    Ip(IpAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Expr {
    fn accepts(&self, socket: &Socket<'_>) -> bool {
        match self {
            Expr::Any(parts) => parts.iter().any(|part| part.accepts(socket)),
            Expr::All(parts) => parts.iter().all(|part| part.accepts(socket)),
            Expr::Not(part) => !part.accepts(socket),
            Expr::State(states) => states.contains(&socket.state),
            // An unknown value compares as different from every number.
            Expr::Number(number, comparison, than) => match number.of(socket) {
                Some(value) => comparison.holds(value, *than),
                None => *comparison == Comparison::NotEqual,
            },
            Expr::Node(side, host) => host.is(match side {
                Side::Local => socket.local,
                Side::Peer => socket.peer,
            }),
            Expr::Text(text, wanted) => text.of(socket) == Some(wanted),
            Expr::User(uid) => socket.owner.uid == Some(*uid),
        }
    }
}

impl Number {
    /// Returns the value; `None` if the socket has none or the daemon does not know it.
    fn of(self, socket: &Socket<'_>) -> Option<f64> {
        let connection = socket.connection;
        // The casts are exact for ports, and for counters up to 2^53.
        match self {
            Number::LocalPort => Some(f64::from(socket.port)),
            Number::PeerPort => connection.map(|c| f64::from(c.peer_port)),
            Number::Pid => socket.owner.pid.map(f64::from),
            Number::Rtt => connection?.srtt_us,
            Number::Cwnd => connection?.cwnd.map(f64::from),
            Number::Retransmits => connection?.retransmits.map(|n| n as f64),
            Number::SendQueue => connection?.send_queue.map(|n| n as f64),
            Number::RecvQueue => connection?.recv_queue.map(|n| n as f64),
        }
    }
}

impl Text {
    fn of<'a>(self, socket: &Socket<'a>) -> Option<&'a str> {
        match self {
            Text::Interface => Some(socket.interface),
            Text::Path => socket.connection.map(|c| c.path.as_str()),
            Text::Program => socket.owner.program.as_deref(),
        }
    }
}

impl Host {
    fn is(self, addr: Option<NodeAddr>) -> bool {
        match (self, addr) {
            (Host::Node(wanted), Some(addr)) => wanted == addr,
            (Host::Ip(wanted), Some(NodeAddr::Udp(at))) => wanted == at.ip(),
            _ => false,
        }
    }
}

impl Comparison {
    fn holds(self, value: f64, than: f64) -> bool {
        match self {
            Comparison::Equal => value == than,
            Comparison::NotEqual => value != than,
            Comparison::Less => value < than,
            Comparison::LessOrEqual => value <= than,
            Comparison::Greater => value > than,
            Comparison::GreaterOrEqual => value >= than,
        }
    }
}
