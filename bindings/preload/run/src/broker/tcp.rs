//! TCP over ESP in UDP.
//!
//! A program that listens on a port of TCP is reached by ESP in UDP at the UDP port of this number.
//! The broker connects to the program's listener over loopback for each stream that it accepts, so
//! that the listener is ready when the kernel says so, and other programs still see its port. Once
//! that is done it sends one byte, [`ACCEPTED`]. A program that connects is sent to a listener of
//! the broker on loopback once the byte has come; without it the connection is one of TCP.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use esp_client::{Client, EspAddr, EspListener, EspStream, NodeAddr, udp_interfaces};
use nix::errno::Errno;
use preload_wire::Answer;
use socket2::{Domain, Socket, Type};

use super::pump::{Local, pump};
use super::rules::Rules;
use super::table::lock;
use super::{Node, SLEEP, system};

/// Maximum wait for the peer's node.
const ASK: Duration = Duration::from_millis(300);
/// Period of looks whether the peer's node has refused.
const STEP: Duration = Duration::from_millis(2);
/// Time for which an address that has no ESP is not asked again.
const REMEMBER: Duration = Duration::from_secs(10);
/// Most addresses that are remembered.
const MAX_REMEMBERED: usize = 4096;
/// Maximum wait for the program's half of a connection.
const OTHER_HALF: Duration = Duration::from_secs(10);
/// First byte of a stream: the program's listener has accepted the connection.
const ACCEPTED: u8 = 1;
/// Longest wait for a connection, or for the port, between two looks whether the program listens.
const LOOK: Duration = Duration::from_millis(500);
/// Key of all streams of TCP, so that other listeners refuse them.
const KEY: &[u8] = b"esprun-tcp";

/// A connected stream that waits for the program's half, and its addresses.
struct Waiting {
    stream: EspStream,
    names: (SocketAddr, SocketAddr),
    since: Instant,
}

/// State of TCP over ESP.
pub(super) struct Tcp {
    rules: Rules,
    /// Where programs connect to; `None`: TCP is left alone.
    via: Option<TcpListener>,
    tickets: Mutex<HashMap<u64, Waiting>>,
    /// By the local address of the program's socket.
    claimed: Mutex<HashMap<SocketAddr, Waiting>>,
    /// True local and peer address, by the address on loopback that a program sees as its own, or
    /// as its peer's.
    names: Mutex<HashMap<SocketAddr, (SocketAddr, SocketAddr)>>,
    /// Addresses without ESP.
    without: Mutex<HashMap<SocketAddr, Instant>>,
    /// Inodes of the programs' listeners that are served, by address.
    listeners: Mutex<HashMap<SocketAddr, HashSet<u64>>>,
}

impl Tcp {
    pub(super) fn new(is_on: bool, rules: Rules) -> io::Result<Tcp> {
        let via = is_on.then(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        Ok(Tcp {
            rules,
            via: via.transpose()?,
            tickets: Mutex::default(),
            claimed: Mutex::default(),
            names: Mutex::default(),
            without: Mutex::default(),
            listeners: Mutex::default(),
        })
    }

    /// Returns true while a program listens.
    pub(super) fn is_listening(&self) -> bool {
        !lock(&self.listeners).is_empty()
    }

    /// Drops what was not taken in time.
    pub(super) fn sweep(&self) {
        let is_young = |waiting: &Waiting| waiting.since.elapsed() < OTHER_HALF;
        lock(&self.tickets).retain(|_, waiting| is_young(waiting));
        lock(&self.claimed).retain(|local, waiting| {
            let is_young = is_young(waiting);
            if !is_young {
                lock(&self.names).remove(local);
            }
            is_young
        });
        lock(&self.without).retain(|_, since| since.elapsed() < REMEMBER);
    }

    /// Notes the local address of the socket by which a program takes a stream.
    pub(super) fn claim(&self, ticket: u64, local: SocketAddr) -> io::Result<()> {
        let waiting = lock(&self.tickets).remove(&ticket);
        let waiting = waiting.ok_or(Errno::ETIMEDOUT)?;
        lock(&self.names).insert(local, waiting.names);
        lock(&self.claimed).insert(local, waiting);
        Ok(())
    }

    /// Returns the true addresses of a connection.
    pub(super) fn names(&self, local: SocketAddr, peer: SocketAddr) -> Answer {
        let names = lock(&self.names);
        let found = names.get(&local).or_else(|| names.get(&peer));
        found.map_or(Answer::Tcp, |(local, peer)| Answer::Names {
            local: *local,
            peer: *peer,
        })
    }

    fn remember_without(&self, peer: SocketAddr) {
        let mut without = lock(&self.without);
        if without.len() < MAX_REMEMBERED {
            without.insert(peer, Instant::now());
        }
    }
}

/// Connects to the program of the peer's node, if it has ESP.
pub(super) fn connect(node: &Node, peer: SocketAddr) -> Answer {
    let tcp = &node.tcp;
    let Some(via) = tcp.via.as_ref().and_then(|via| via.local_addr().ok()) else {
        return Answer::Tcp;
    };
    let is_without = lock(&tcp.without)
        .get(&peer)
        .is_some_and(|since| since.elapsed() < REMEMBER);
    if is_without || peer.is_ipv6() || !tcp.rules.allow(peer) || udp_interfaces().is_empty() {
        return Answer::Tcp;
    }
    let Some(stream) = ask(peer) else {
        tcp.remember_without(peer);
        return Answer::Tcp;
    };
    static TICKET: AtomicU64 = AtomicU64::new(1);
    let ticket = TICKET.fetch_add(1, Ordering::Relaxed);
    let local = stream.local_addr();
    let local = SocketAddr::new(ip(local.addr), local.port);
    let waiting = Waiting {
        stream,
        names: (local, peer),
        since: Instant::now(),
    };
    lock(&tcp.tickets).insert(ticket, waiting);
    Answer::Via { ticket, via }
}

/// Tries to connect. A closed UDP port of the peer ends it at once, silence after [`ASK`].
fn ask(peer: SocketAddr) -> Option<EspStream> {
    let client = Client::udp().ok()?;
    let is_own = |own: &esp_client::control::InterfaceInfo| ip(own.addr) == peer.ip();
    if client.interfaces().iter().any(is_own) {
        return None;
    }
    let (done, result) = channel();
    let attempt = move || {
        let addr = EspAddr::new(NodeAddr::Udp(peer), peer.port());
        let builder = EspStream::builder().key(KEY).spin(SLEEP).timeout(ASK);
        let stream = builder.connect_at(&client, addr).and_then(accepted);
        let _ = done.send(stream.ok());
    };
    thread::Builder::new()
        .name("ask".into())
        .spawn(attempt)
        .ok()?;
    // The kernel reports a closed port to a socket that is connected to it.
    let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    probe.connect(peer).ok()?;
    probe.set_nonblocking(true).ok()?;
    let _ = probe.send(&[]);
    let deadline = Instant::now() + 2 * ASK;
    while Instant::now() < deadline {
        match result.recv_timeout(STEP) {
            Ok(stream) => return stream,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(error) = probe.recv(&mut [0; 1])
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            return None;
        }
    }
    None
}

/// Waits until the program of the other side has the connection.
fn accepted(stream: EspStream) -> io::Result<EspStream> {
    stream.set_read_timeout(Some(ASK))?;
    let mut byte = [0];
    (&stream).read_exact(&mut byte)?;
    stream.set_read_timeout(None)?;
    if byte == [ACCEPTED] {
        Ok(stream)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Takes the connections of programs.
pub(super) fn accept(node: &Arc<Node>) {
    let Some(via) = &node.tcp.via else { return };
    loop {
        let Ok((socket, program)) = via.accept() else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        // Other programs of this node may connect, too, and are refused.
        if let Some(waiting) = lock(&node.tcp.claimed).remove(&program) {
            node.busy("tcp", move |node| {
                serve(socket, waiting.stream);
                lock(&node.tcp.names).remove(&program);
            });
        }
    }
}

fn serve(socket: TcpStream, stream: EspStream) {
    let _ = socket.set_nodelay(true);
    pump(&Local::Tcp(socket), stream, |_| {});
}

/// Serves a program's listener by ESP, too. Errors leave it to TCP.
pub(super) fn listen(node: &Arc<Node>, addr: SocketAddr) -> io::Result<()> {
    let is_wanted = node.tcp.via.is_some() && node.tcp.rules.allow_port(addr.port());
    if !is_wanted || addr.ip().is_loopback() {
        return Ok(());
    }
    let inodes = system::tcp_listeners(addr.port());
    if lock(&node.tcp.listeners).insert(addr, inodes).is_some() {
        // The thread of an earlier listener serves this one.
        return Ok(());
    }
    let mut listener = bind(addr).ok();
    let listening = Arc::clone(node);
    node.busy("tcp-listener", move |node| {
        // The port is held by a broker that has not yet found its program ended, or by another
        // program; or there is no network yet.
        while listener.is_none() && still_listens(node, addr) {
            thread::sleep(LOOK);
            listener = bind(addr).ok();
        }
        if let Some(listener) = listener {
            accept_streams(&listening, addr, &listener);
        }
    });
    Ok(())
}

/// Returns true if the program's listener exists, not just another program's at its port; forgets
/// it otherwise.
fn still_listens(node: &Node, addr: SocketAddr) -> bool {
    let now = system::tcp_listeners(addr.port());
    let mut listeners = lock(&node.tcp.listeners);
    let inodes = listeners.get(&addr);
    let listens = inodes.is_some_and(|inodes| !inodes.is_disjoint(&now));
    if !listens {
        listeners.remove(&addr);
    }
    listens
}

fn bind(addr: SocketAddr) -> io::Result<EspListener> {
    let client = Client::udp_at(addr.port())?;
    let mut builder = EspListener::builder().key(KEY).spin(SLEEP);
    if !addr.ip().is_unspecified() {
        let is_it = |own: &&esp_client::control::InterfaceInfo| ip(own.addr) == addr.ip();
        let own = client.interfaces().iter().find(is_it);
        builder = builder.interface(&own.ok_or(Errno::EADDRNOTAVAIL)?.name);
    }
    builder.bind_at(&client, addr.port())
}

/// Accepts streams for a program's listener while that exists.
fn accept_streams(node: &Arc<Node>, addr: SocketAddr, listener: &EspListener) {
    let mut looked = Instant::now();
    loop {
        let is_handed_over = match listener.accept_timeout(LOOK) {
            Ok((stream, _)) => hand_over(node, addr, stream).is_ok(),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => true,
            Err(_) => {
                lock(&node.tcp.listeners).remove(&addr);
                return;
            }
        };
        if !is_handed_over || looked.elapsed() >= LOOK {
            if !still_listens(node, addr) {
                return;
            }
            looked = Instant::now();
        }
    }
}

/// Connects to the program's listener from the address that it listens on, which is how the program
/// recognizes a connection whose peer it has to ask for.
fn hand_over(node: &Arc<Node>, addr: SocketAddr, stream: EspStream) -> io::Result<()> {
    let to = match addr.ip() {
        // A listener on any address of IPv6 accepts IPv4, too.
        ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    };
    let peer = stream.peer_addr();
    let names = (
        SocketAddr::new(ip(stream.local_addr().addr), addr.port()),
        SocketAddr::new(ip(peer.addr), peer.port),
    );
    let socket = Socket::new(
        Domain::for_address(SocketAddr::new(to, 0)),
        Type::STREAM,
        None,
    )?;
    socket.bind(&SocketAddr::new(to, 0).into())?;
    let own = socket
        .local_addr()?
        .as_socket()
        .ok_or(Errno::EADDRNOTAVAIL)?;
    lock(&node.tcp.names).insert(own, names);
    let to = SocketAddr::new(to, addr.port());
    socket.connect(&to.into()).inspect_err(|_| {
        lock(&node.tcp.names).remove(&own);
    })?;
    node.busy("tcp", move |node| {
        // An error: `serve` finds it, too.
        let _ = (&stream).write_all(&[ACCEPTED]);
        serve(socket.into(), stream);
        lock(&node.tcp.names).remove(&own);
    });
    Ok(())
}

/// Returns the IP address of a node.
fn ip(addr: NodeAddr) -> IpAddr {
    match addr {
        NodeAddr::Udp(addr) => addr.ip(),
        NodeAddr::Mac(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}
