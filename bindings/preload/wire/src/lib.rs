//! Interface between `libesp_preload.so` and the broker of `esprun`: the environment variable,
//! names of local sockets, the address of the family `AF_ENET`, and requests.
//!
//! The library keeps no state. It recognizes its sockets by their names in the abstract namespace
//! of Unix sockets, which the kernel keeps across `dup`, `fork` and `exec`, and asks the broker for
//! the rest. Names begin with [`Broker::prefix`]:
//!
//! | name | socket |
//! |---|---|
//! | `…control` | the broker's, for requests |
//! | `…streams` | the broker's, for the connections of programs |
//! | `…s.PID.ID` | a stream or listener of a program |
//! | `…d.PID.ID` | a datagram socket of a program |
//! | `…d.PID.ID.tx.TAG` | the broker's, for datagrams with an address before them |
//! | `…d.PID.ID.c.TAG.ADDR` | the broker's, for a datagram socket that is connected to ADDR |
//! | `…d.PID.ID.f.TAG.ADDR` | the broker's, for datagrams from ADDR |
//! | `…p.TAG.ADDR` | the broker's end of an accepted stream from ADDR |
//!
//! ADDR is an [`Enet`] in hexadecimal digits. TAG prevents other users of the node, who may bind
//! any name, from guessing the name before the broker has bound it: see [`Broker::tag`].
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod enet;

use std::fs;
use std::hash::Hasher;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

pub use enet::{AF_ENET, ENET_LEN, Enet, SOL_EP};

/// Environment variable by which programs find the broker; see [`Broker`].
pub const VARIABLE: &str = "ESPRUN";
/// Maximum length of a request or answer, in bytes.
const MAX_MESSAGE: u64 = 4096;
/// Maximum length of a list of sockets, in bytes.
const MAX_LIST: u64 = 8 << 20;
/// Maximum number of listed brokers of a node.
const MAX_BROKERS: usize = 256;
/// Maximum wait for a request, and for an answer that does not depend on another node.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum time for which a program that listens on a TCP port waits until ESP has the port, too.
const LISTEN_PATIENCE: Duration = Duration::from_millis(200);

/// The broker as programs reach it: the value of [`VARIABLE`], `ID:SECRET:UID:MODE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Distinguishes brokers, in the names of sockets, which all users can see.
    pub id: String,
    /// Proves that a request comes from a program that `esprun` started: a number of at most 128
    /// bits, in hexadecimal digits.
    pub secret: String,
    /// User of the broker.
    pub uid: u32,
    /// TCP connections use ESP if both sides support it.
    pub tcp: bool,
}

impl Broker {
    /// Parses the value of [`VARIABLE`].
    pub fn parse(text: &str) -> Option<Broker> {
        let mut parts = text.split(':');
        let is_plain = |part: &&str| {
            (1..=32).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let is_number = |part: &&str| u128::from_str_radix(part, 16).is_ok();
        let broker = Broker {
            id: parts.next().filter(is_plain)?.to_owned(),
            secret: parts.next().filter(is_plain).filter(is_number)?.to_owned(),
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

    /// Returns the prefix of the names of all sockets of this broker.
    pub fn prefix(&self) -> String {
        format!("esp.{}.", self.id)
    }

    /// Returns the name of the socket for requests.
    pub fn control(&self) -> String {
        control_of(&self.id)
    }

    /// Returns the name of the socket for the connections of programs.
    pub fn streams(&self) -> String {
        self.prefix() + "streams"
    }

    /// Returns a keyed hash of this text for the name of a socket, as 16 hexadecimal digits.
    pub fn tag(&self, text: &str) -> String {
        let key = u128::from_str_radix(&self.secret, 16).unwrap_or_default();
        let mut hasher = SipHasher24::new_with_keys((key >> 64) as u64, key as u64);
        hasher.write(text.as_bytes());
        format!("{:016x}", hasher.finish())
    }

    /// Returns the name of the broker's socket for datagrams that the program's socket of this name
    /// sends with an address before them.
    pub fn addressed(&self, socket: &str) -> String {
        let name = format!("{socket}.tx");
        let tag = self.tag(&name);
        format!("{name}.{tag}")
    }

    /// Sends a request to the broker by `stream`, which is connected to it; the answer can be read
    /// from there. `user` is the user of the other end: once the broker has ended, other users may
    /// take its name.
    ///
    /// # Errors
    /// The broker has ended, or another user has its name.
    pub fn send(&self, stream: &UnixStream, user: Option<u32>, request: Request) -> io::Result<()> {
        if user != Some(self.uid) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let sealed = Sealed {
            secret: self.secret.clone(),
            request,
        };
        write_line(stream, &sealed)
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
    /// Requests the number of a new socket; an error if there is no daemon.
    Open,
    /// Sets the local address of a stream or listener, or binds a datagram socket.
    Bind { name: String, addr: Enet },
    /// Listens at the local address, unless the socket does already.
    Listen { name: String, backlog: u16 },
    /// Connects a stream. If `wait`, the answer follows when it is connected; otherwise the broker
    /// drops `filled` bytes from the program's socket, which is connected to the broker.
    Connect {
        name: String,
        peer: Enet,
        wait: bool,
        filled: u64,
    },
    /// A signal has interrupted a program that waits for its connection. An error if the broker has
    /// not begun or has decided already; otherwise the answer to that `Connect` is meaningless, and
    /// the next `Connect` without `wait` continues the attempt.
    Interrupted { name: String },
    /// Requests the state of a stream that the program connects again, and resets `State::is_new`.
    Again { name: String },
    /// Connects a datagram socket, or disconnects it. The answer names the broker's socket to
    /// connect to.
    Direct { name: String, peer: Option<Enet> },
    /// Requests the state of a socket.
    State { name: String },
    /// Requests the statistics of a socket.
    Statistics { name: String },
    /// A program is about to listen on this TCP address, without IPv4 if `only_v6`, with the socket
    /// of this inode.
    TcpListen {
        addr: SocketAddr,
        only_v6: bool,
        inode: u64,
    },
    /// A program is about to connect to this TCP address, with a socket that is bound to `own`.
    TcpConnect {
        peer: SocketAddr,
        own: Option<SocketAddr>,
    },
    /// The program's socket of the stream `ticket` has this address.
    TcpClaim { ticket: u64, local: SocketAddr },
    /// Requests the true addresses of a connection that looks local.
    TcpNames { local: SocketAddr, peer: SocketAddr },
    /// Requests all sockets; the broker's user and root need no secret. See [`list`].
    Sockets,
}

impl Request {
    /// Returns the maximum wait for the answer if it does not depend on another node.
    pub fn patience(&self) -> Duration {
        match self {
            Request::TcpListen { .. } => LISTEN_PATIENCE,
            _ => PATIENCE,
        }
    }
}

/// Answer of the broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Answer {
    Done,
    /// Create a socket with this number, which was never used before.
    Opened {
        id: u64,
    },
    /// Connect to the broker's socket of this name.
    Direct {
        name: String,
    },
    /// An errno, and a text for users.
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
    Sockets(Sockets),
}

/// The sockets of a program and of those that it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    /// The process that `esprun` became.
    pub pid: u32,
    /// The name of this process.
    pub program: String,
    /// The sockets, and the last connections that stayed TCP.
    pub sockets: Vec<SocketStatus>,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketStatus {
    /// Local address; empty if unknown.
    pub local: String,
    /// Address of the peer; empty if unknown or none.
    pub peer: String,
    /// The path of its bytes.
    pub way: DataPath,
    /// Bytes that the program has sent; `None` if not counted.
    pub sent: Option<u64>,
    /// Bytes that the program has received; `None` if not counted.
    pub received: Option<u64>,
}

/// The path of a socket's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataPath {
    /// ESP: the broker copies them.
    Copied,
    /// TCP, for this reason.
    Tcp(String),
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
    /// It was connected while the program did not wait, and the program has not called `connect`
    /// since.
    pub is_new: bool,
    /// Number of the error that ended the connection.
    pub errno: i32,
    /// Maximum length of a datagram, or of the payload of a packet, in bytes.
    pub mtu: u32,
}

/// Writes a message as one line.
///
/// # Errors
/// Errors of the stream.
pub fn write_line(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Returns the IDs of the brokers of this node, or of its network namespace if it has one.
pub fn brokers() -> Vec<String> {
    let bytes = fs::read("/proc/net/unix").unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut ids: Vec<_> = text.lines().filter_map(broker_of).collect();
    ids.sort();
    ids.dedup();
    ids.truncate(MAX_BROKERS);
    ids
}

fn broker_of(line: &str) -> Option<String> {
    let (_, name) = line.rsplit_once(" @esp.")?;
    let id = name.strip_suffix(".control")?;
    (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric())).then(|| id.to_owned())
}

/// Returns the name of the socket for requests of the broker with this ID.
pub fn control_of(id: &str) -> String {
    format!("esp.{id}.control")
}

/// Asks a broker, to which `stream` is connected, for the sockets of its programs, and waits until
/// `deadline`. Any user can create a socket with such a name, so the texts of the answer are
/// untrusted.
///
/// # Errors
/// The other end belongs to another user, or does not answer in time.
pub fn list(stream: &UnixStream, deadline: Instant) -> io::Result<Sockets> {
    let sealed = Sealed {
        secret: String::new(),
        request: Request::Sockets,
    };
    stream.set_write_timeout(Some(left(deadline)?))?;
    write_line(stream, &sealed)?;
    match read_to(DeadlineReader { stream, deadline }, MAX_LIST)? {
        Answer::Sockets(sockets) => Ok(sockets),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Reads a message.
///
/// # Errors
/// Errors of the stream; the line is longer than 4 KiB or is not such a message.
pub fn read_line<T: serde::de::DeserializeOwned>(stream: impl Read) -> io::Result<T> {
    read_to(stream, MAX_MESSAGE)
}

/// A stream with one deadline for all reads.
#[derive(Debug)]
pub struct DeadlineReader<'a> {
    /// The stream, whose read timeout is changed.
    pub stream: &'a UnixStream,
    /// The deadline of all reads.
    pub deadline: Instant,
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        let mut stream = self.stream;
        stream.read(buffer)
    }
}

/// Returns the time until the deadline.
///
/// # Errors
/// The deadline has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

fn read_to<T: serde::de::DeserializeOwned>(stream: impl Read, limit: u64) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(limit)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::RecvTimeoutError;

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
            "a1b2:secret:1000:tcp",
        ] {
            assert_eq!(Broker::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn names_of_the_broker_depend_on_its_secret() {
        let other = Broker {
            secret: "c3d5".into(),
            ..broker()
        };
        let name = broker().addressed("esp.a1b2.d.7.1");
        assert!(name.starts_with("esp.a1b2.d.7.1.tx."));
        assert_eq!(name, broker().addressed("esp.a1b2.d.7.1"));
        assert_ne!(name, other.addressed("esp.a1b2.d.7.1"));
        assert_ne!(broker().tag("x"), broker().tag("y"));
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
    fn a_list_that_never_ends_is_given_up() {
        let (left, right) = UnixStream::pair().unwrap();
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let hostile = std::thread::spawn(move || {
            let pause = Duration::from_millis(20);
            let waits = || is_done.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
            // Writes for much longer than the deadline, so that each read gets a byte.
            (0..500)
                .take_while(|_| waits() && (&right).write_all(b" ").is_ok())
                .count()
        });
        let error = list(&left, Instant::now() + Duration::from_millis(200)).unwrap_err();
        drop(done);
        assert!(matches!(
            error.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
        ));
        assert!(hostile.join().unwrap() < 500, "waited for all bytes");
        let passed = list(&left, Instant::now()).unwrap_err();
        assert_eq!(passed.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn brokers_are_found_by_their_names() {
        let line = |name: &str| format!("0000: 00000002 00000000 00010000 0001 01 4711 {name}");
        let found = |name: &str| broker_of(&line(name));
        assert_eq!(found("@esp.a1b2.control"), Some("a1b2".into()));
        for other in [
            "@esp..control",
            "@esp.a.streams",
            "@esp.a/b.control",
            "/run/esp.a.control",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn other_text_is_no_message() {
        let (left, right) = UnixStream::pair().unwrap();
        (&left).write_all(b"{\"Listen\":3}\n").unwrap();
        assert!(read_line::<Request>(&right).is_err());
    }
}
