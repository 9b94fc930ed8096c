//! What `libesp_preload.so` and the broker of `esprun` agree on: the environment variable, names of
//! local sockets, the address of the family `AF_ENET`, and requests.
//!
//! The library keeps no state. It recognizes its sockets by their names in the abstract namespace
//! of Unix sockets, which the kernel keeps over `dup`, `fork` and `exec`, and asks the broker for
//! the rest. Names begin with [`Broker::prefix`]:
//!
//! | name | socket |
//! |---|---|
//! | `…control` | the broker's, for requests |
//! | `…streams` | the broker's, for the connections of programs |
//! | `…s.PID.N` | a stream or listener of a program |
//! | `…d.PID.N` | a datagram socket of a program |
//! | `…d.PID.N.tx` | the broker's, for datagrams with an address before them |
//! | `…d.PID.N.c.ADDR` | the broker's, for a datagram socket that is connected to ADDR |
//! | `…d.PID.N.f.ADDR` | the broker's, for datagrams from ADDR |
//! | `…p.N.ADDR` | the broker's end of an accepted stream from ADDR |
//!
//! ADDR is an [`Enet`] in hexadecimal digits.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod enet;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use enet::{AF_ENET, ENET_LEN, Enet, SOL_EP};

/// Environment variable by which programs find the broker; see [`Broker`].
pub const VARIABLE: &str = "ESPRUN";
/// Longest request or answer, in bytes.
const MAX_MESSAGE: u64 = 4096;
/// Maximum wait for a request, and for an answer that does not depend on another node.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum wait for the answer to a request that waits for a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(180);

/// How a program reaches the broker: the value of [`VARIABLE`], `ID:SECRET:UID:MODE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Distinguishes brokers, in the names of sockets, which all users can see.
    pub id: String,
    /// Proves that a request comes from a program that `esprun` started.
    pub secret: String,
    /// User of the broker.
    pub uid: u32,
    /// TCP programs use ESP where both sides can.
    pub tcp: bool,
}

impl Broker {
    /// Parses the value of [`VARIABLE`].
    pub fn parse(text: &str) -> Option<Broker> {
        let mut parts = text.split(':');
        let is_plain = |part: &&str| {
            (1..=32).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let broker = Broker {
            id: parts.next().filter(is_plain)?.to_owned(),
            secret: parts.next().filter(is_plain)?.to_owned(),
            uid: parts.next()?.parse().ok()?,
            tcp: match parts.next()? {
                "tcp" => true,
                "enet" => false,
                _ => return None,
            },
        };
        parts.next().is_none().then_some(broker)
    }

    /// Formats the value of [`VARIABLE`].
    pub fn value(&self) -> String {
        let mode = if self.tcp { "tcp" } else { "enet" };
        format!("{}:{}:{}:{mode}", self.id, self.secret, self.uid)
    }

    /// Returns what the names of all sockets of this broker begin with.
    pub fn prefix(&self) -> String {
        format!("esp.{}.", self.id)
    }

    /// Returns the name of the socket for requests.
    pub fn control(&self) -> String {
        self.prefix() + "control"
    }

    /// Returns the name of the socket for the connections of programs.
    pub fn streams(&self) -> String {
        self.prefix() + "streams"
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// The broker has ended or does not answer.
    pub fn ask(&self, request: Request) -> io::Result<Answer> {
        let patience = match &request {
            Request::Connect { wait: true, .. } => CONNECT_PATIENCE,
            _ => PATIENCE,
        };
        let stream = UnixStream::connect_addr(&abstract_addr(&self.control())?)?;
        stream.set_read_timeout(Some(patience))?;
        let sealed = Sealed {
            secret: self.secret.clone(),
            request,
        };
        write_line(&stream, &sealed)?;
        read_line(&stream)
    }
}

/// Returns the address of a name in the abstract namespace.
///
/// # Errors
/// The name is too long.
pub fn abstract_addr(name: &str) -> io::Result<UnixAddr> {
    UnixAddr::from_abstract_name(name)
}

/// A request, with the broker's secret.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sealed {
    /// See [`Broker::secret`].
    pub secret: String,
    /// The request.
    pub request: Request,
}

/// Request of a program. `name` is that of its socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // fields: see above and the types
pub enum Request {
    /// Is there a daemon? Asked when a socket is made.
    Open,
    /// Sets the local address of a stream or listener, or binds a datagram socket.
    Bind { name: String, addr: Enet },
    /// Listens at the local address.
    Listen { name: String, backlog: u16 },
    /// Connects a stream. `wait`: answer when it is connected; else there are `filled` bytes to
    /// drop in the program's socket, which is connected to the broker.
    Connect {
        name: String,
        peer: Enet,
        wait: bool,
        filled: u64,
    },
    /// Connects a datagram socket, or ends that.
    Direct { name: String, peer: Option<Enet> },
    /// Asks for the state of a socket.
    State { name: String },
    /// Asks for the statistics of a socket.
    Statistics { name: String },
    /// A program listens on this address of TCP.
    TcpListen { addr: SocketAddr },
    /// A program is about to connect to this address of TCP.
    TcpConnect { peer: SocketAddr },
    /// The program's socket of the stream `ticket` has this address.
    TcpClaim { ticket: u64, local: SocketAddr },
    /// Asks for the true addresses of a connection that looks local.
    TcpNames { local: SocketAddr, peer: SocketAddr },
}

/// Answer of the broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Answer {
    Done,
    /// The number of an error of the system, and a text for people.
    Failed {
        errno: i32,
        text: String,
    },
    State(State),
    Statistics(Vec<u32>),
    /// Connect to this address and claim the ticket.
    Via {
        ticket: u64,
        via: SocketAddr,
    },
    /// Use TCP.
    Tcp,
    Names {
        local: SocketAddr,
        peer: SocketAddr,
    },
}

/// State of a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Local address.
    pub local: Enet,
    /// Address of the peer.
    pub peer: Option<Enet>,
    /// A connection is being made.
    pub connecting: bool,
    /// Number of the error that ended the connection.
    pub errno: i32,
    /// Maximum length of a datagram, or of the payload of a packet, in bytes.
    pub mtu: u32,
}

/// Writes a message as one line.
///
/// # Errors
/// Those of the stream.
pub fn write_line(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads a message.
///
/// # Errors
/// Those of the stream; the line is longer than 4 KiB or is no such message.
pub fn read_line<T: serde::de::DeserializeOwned>(stream: &UnixStream) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_MESSAGE)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker() -> Broker {
        Broker {
            id: "a1b2".into(),
            secret: "c3d4".into(),
            uid: 1000,
            tcp: true,
        }
    }

    #[test]
    fn the_variable_round_trips() {
        assert_eq!(broker().value(), "a1b2:c3d4:1000:tcp");
        assert_eq!(Broker::parse("a1b2:c3d4:1000:tcp"), Some(broker()));
        for wrong in [
            "",
            "a1b2",
            "a1b2:c3d4:x:tcp",
            "a1b2:c3d4:1:udp",
            "a:b:1:tcp:",
            "a/b:c:1:tcp",
            ":c:1:tcp",
        ] {
            assert_eq!(Broker::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_message_without_an_end_is_an_error() {
        let (left, right) = UnixStream::pair().unwrap();
        let request = Request::State { name: "x".into() };
        write_line(&left, &request).unwrap();
        assert_eq!(read_line::<Request>(&right).unwrap(), request);
        (&left).write_all(&[b'x'; 5000]).unwrap();
        drop(left);
        let error = read_line::<Request>(&right).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn other_text_is_no_message() {
        let (left, right) = UnixStream::pair().unwrap();
        (&left).write_all(b"{\"Listen\":3}\n").unwrap();
        assert!(read_line::<Request>(&right).is_err());
    }
}
