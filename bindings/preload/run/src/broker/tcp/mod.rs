//! TCP over ESP in UDP.
//!
//! A program that listens on a TCP port is reached by ESP in UDP at the UDP port of the same
//! number. For each stream that the broker accepts, it connects to the program's listener over
//! loopback, so that the kernel reports when the listener is ready, and other programs still see
//! its port. Once connected, it sends one byte, [`ACCEPTED`]. A program that connects is directed
//! to a listener of the broker on loopback once the byte has arrived; without the byte, the
//! connection is plain TCP.
//!
//! `connecting` handles the streams that this node's programs connect, `listening` those of a
//! listener's port: each is an engine in a thread of its own, with its connections (`copier`,
//! `conn`). `names` maps all connections to their true addresses.

mod conn;
mod connecting;
mod copier;
mod listening;
mod names;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use esp_client::{NodeAddr, udp_interfaces};
use nix::errno::Errno;
use preload_wire::{Answer, SocketStatus};

use super::Node;
use super::rules::Rules;
use super::table::lock;

use connecting::{Connected, Connecting};
pub(super) use listening::listen;
use names::{Name, Names};

/// Maximum wait for the peer's node.
const ASK: Duration = Duration::from_millis(300);
/// Interval between checks whether the peer's node has refused.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Time for which an address without ESP is not tried again.
const REMEMBER: Duration = Duration::from_secs(10);
/// Maximum number of remembered addresses.
const MAX_REMEMBERED: usize = 4096;
/// Maximum wait for the program's half of a connection.
const OTHER_HALF: Duration = Duration::from_secs(10);
/// First byte of a stream: the program's listener has accepted the connection.
const ACCEPTED: u8 = 1;
/// Interval between checks whether the program listens.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Key of all streams of TCP, so that other listeners refuse them.
const KEY: &[u8] = b"esprun-tcp";

/// Reason why a connection stays TCP, whatever the peer's node supports.
const BOUND_ELSEWHERE: &str = "its socket is bound to an address without ESP";

/// True local and peer address of a connection.
type Ends = (SocketAddr, SocketAddr);
/// Result of an attempt to connect, or the reason why the connection stays TCP.
type Outcome = Result<Connected, &'static str>;

/// A connected stream whose program has claimed it.
struct Claim {
    ticket: u64,
    name: Name,
    since: Instant,
}

/// A listener of a program: its address, and whether it accepts only IPv6.
pub(super) type Place = (SocketAddr, bool);

/// State of a program's listener.
struct Listening {
    /// Inodes of the programs' sockets.
    inodes: HashSet<u64>,
    /// Time of the last request, right after which the program listens.
    since: Instant,
}

/// State of TCP over ESP.
pub(super) struct Tcp {
    is_on: bool,
    rules: Rules,
    /// Listeners to which the programs connect, for IPv4 and IPv6.
    via: [Option<TcpListener>; 2],
    connecting: Mutex<Option<Connecting>>,
    /// Streams that are connected but not yet claimed.
    tickets: Mutex<HashMap<u64, (Ends, Instant)>>,
    /// Tickets of streams that no program will claim.
    abandoned: Mutex<Vec<u64>>,
    /// Claimed streams by the local address of the program's socket.
    claimed: Mutex<HashMap<SocketAddr, Claim>>,
    names: Names,
    /// Addresses without ESP, with the time of the last attempt.
    without: Mutex<HashMap<SocketAddr, Instant>>,
    /// Listeners of programs, until the threads of their ports end.
    listeners: Mutex<HashMap<Place, Listening>>,
}

impl Tcp {
    pub(super) fn new(is_on: bool, rules: Rules) -> io::Result<Tcp> {
        let bind = |ip: IpAddr| TcpListener::bind((ip, 0));
        let mut via = [None, None];
        if is_on {
            via = [
                Some(bind(Ipv4Addr::LOCALHOST.into())?),
                // If the node has no IPv6, IPv6 connections stay TCP.
                bind(Ipv6Addr::LOCALHOST.into()).ok(),
            ];
        }
        Ok(Tcp {
            is_on,
            rules,
            via,
            connecting: Mutex::default(),
            tickets: Mutex::default(),
            abandoned: Mutex::default(),
            claimed: Mutex::default(),
            names: Names::default(),
            without: Mutex::default(),
            listeners: Mutex::default(),
        })
    }

    /// Returns true while a program listens.
    pub(super) fn is_listening(&self) -> bool {
        lock(&self.listeners).values().any(Listening::is_open)
    }

    /// Returns true while there are connections.
    pub(super) fn is_busy(&self) -> bool {
        !self.names.is_empty()
    }

    /// Drops streams and claims that were not taken in time.
    pub(super) fn sweep(&self) {
        lock(&self.tickets).retain(|_, (_, since)| since.elapsed() < OTHER_HALF);
        lock(&self.claimed).retain(|_, claim| claim.since.elapsed() < OTHER_HALF);
        lock(&self.without).retain(|_, since| since.elapsed() < REMEMBER);
    }

    /// Records the local address of the socket by which a program takes a stream.
    pub(super) fn claim(&self, ticket: u64, local: SocketAddr) -> io::Result<()> {
        let waiting = lock(&self.tickets).remove(&ticket);
        let (ends, since) = waiting.ok_or(Errno::ETIMEDOUT)?;
        let claim = Claim {
            ticket,
            name: self.names.insert(local, ends),
            since,
        };
        lock(&self.claimed).insert(local, claim);
        Ok(())
    }

    /// Requests that a connected stream is dropped soon: the peer's program has accepted it, and
    /// may serve no other one until it ends.
    pub(super) fn abandon(&self, ticket: u64) {
        lock(&self.tickets).remove(&ticket);
        lock(&self.abandoned).push(ticket);
    }

    /// Returns the true addresses of a connection.
    pub(super) fn names(&self, local: SocketAddr, peer: SocketAddr) -> Answer {
        self.names.find(local, peer)
    }

    /// Returns the connections, and the last ones that stayed TCP.
    pub(super) fn status(&self) -> Vec<SocketStatus> {
        self.names.status()
    }

    fn remember_without(&self, peer: SocketAddr) {
        let mut without = lock(&self.without);
        if without.len() < MAX_REMEMBERED {
            without.insert(peer, Instant::now());
        }
    }

    fn via(&self, peer: SocketAddr) -> Option<SocketAddr> {
        let [v4, v6] = &self.via;
        let via = if peer.is_ipv4() { v4 } else { v6 };
        via.as_ref()?.local_addr().ok()
    }
}

/// Connects to the peer's program, if its node supports ESP. `own`: address to which this program's
/// socket is bound.
pub(super) fn connect(node: &Arc<Node>, peer: SocketAddr, own: Option<SocketAddr>) -> Answer {
    match ask(node, peer, own) {
        Ok(via) => via,
        Err(why) => {
            node.tcp.names.stayed(peer, why);
            Answer::Tcp
        }
    }
}

/// Connects to the peer's program, or returns the reason why the connection stays TCP.
fn ask(
    node: &Arc<Node>,
    peer: SocketAddr,
    own: Option<SocketAddr>,
) -> Result<Answer, &'static str> {
    let tcp = &node.tcp;
    let via = tcp.via(peer).ok_or(
        "esprun was started without --tcp, or this node has no loopback address of this IP version",
    )?;
    if !tcp.rules.allow(peer) {
        return Err("excluded by the rules");
    }
    let asked = lock(&tcp.without).get(&peer).copied();
    if asked.is_some_and(|since| since.elapsed() < REMEMBER) {
        return Err("an attempt over ESP failed less than 10 s ago");
    }
    if udp_interfaces().is_empty() {
        return Err("no interface has an address");
    }
    let from = own.map(|own| own.ip()).filter(|ip| !ip.is_unspecified());
    let result = connecting::begin(node, peer, from).map_err(|_| "cannot open a UDP socket")?;
    let Connected { ticket, mut ends } = wait(&result, peer).inspect_err(|why| {
        if *why != BOUND_ELSEWHERE {
            tcp.remember_without(peer);
        }
    })?;
    if let Some(own) = own {
        // The program may have queried its port before.
        ends.0.set_port(own.port());
    }
    lock(&tcp.tickets).insert(ticket, (ends, Instant::now()));
    Ok(Answer::Via { ticket, via })
}

/// Waits for a connection. The wait ends soon if the peer's UDP port is closed, and after twice
/// [`ASK`] without an answer.
fn wait(result: &Receiver<Outcome>, peer: SocketAddr) -> Outcome {
    let deadline = Instant::now() + 2 * ASK;
    let mut probe = None;
    while Instant::now() < deadline {
        match result.recv_timeout(CHECK_INTERVAL) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let probe = match &mut probe {
            Some(probe) => probe,
            // Peers with ESP have answered by now, unless they are busy.
            none => none.insert(send_probe(peer).map_err(|_| "its node is unreachable")?),
        };
        if let Err(error) = probe.recv(&mut [0; 1])
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            return Err("its UDP port is closed");
        }
    }
    Err("no answer over ESP")
}

/// Sends an empty datagram to the peer's port. The kernel reports a closed port to the socket,
/// which is connected to it.
fn send_probe(peer: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let probe = UdpSocket::bind((any, 0))?;
    probe.connect(peer)?;
    probe.set_nonblocking(true)?;
    probe.send(&[])?;
    Ok(probe)
}

/// Returns the IP address of a node.
fn ip(addr: NodeAddr) -> IpAddr {
    match addr {
        NodeAddr::Udp(addr) => addr.ip(),
        NodeAddr::Mac(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Returns a number that no ticket had before.
fn next_ticket() -> u64 {
    static TICKET: AtomicU64 = AtomicU64::new(1);
    TICKET.fetch_add(1, Ordering::Relaxed)
}
