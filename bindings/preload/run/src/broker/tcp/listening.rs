//! The streams that programs of other nodes connect to a program's listener.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use esp_client::{Client, EspListener, EspStream};
use nix::errno::Errno;
use socket2::{Domain, Socket, Type};

use super::super::table::lock;
use super::super::{Node, system};
use super::conn::Conn;
use super::copier::Copier;
use super::{KEY, Listening, POLL_INTERVAL, Place, ip};

/// Time after a request at which the program is expected to listen.
const SOON: Duration = Duration::from_secs(1);

/// Serves a program's listener by ESP, too; after an error, only TCP serves it. Returns when the
/// UDP port is bound, so that a peer that finds the TCP port open finds ESP, too.
pub(crate) fn listen(node: &Arc<Node>, place: Place, inode: u64) -> io::Result<()> {
    let (addr, _) = place;
    let is_wanted = node.tcp.is_on && node.tcp.rules.allow_port(addr.port());
    if !is_wanted || addr.ip().is_loopback() {
        return Ok(());
    }
    if !is_first(node, place, inode) {
        // The thread of an earlier listener serves this one.
        return Ok(());
    }
    let mut port = Port::open(node, place).ok();
    let serving = Arc::clone(node);
    let began = node.busy("tcp-listener", move |_| {
        // The port is held by a broker that has not yet noticed the end of its program, or by
        // another program, or there is no network yet.
        while port.is_none() {
            check(&serving, place);
            if forget(&serving, place) {
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
            port = Port::open(&serving, place).ok();
        }
        if let Some(port) = port {
            port.serve();
        }
    });
    began.inspect_err(|_| drop(lock(&node.tcp.listeners).remove(&place)))
}

/// Records a program's listener. Returns false if its place already has a thread, which may still
/// serve the connections of an earlier listener.
fn is_first(node: &Node, place: Place, inode: u64) -> bool {
    let mut listeners = lock(&node.tcp.listeners);
    let is_first = !listeners.contains_key(&place);
    let listening = listeners.entry(place).or_insert_with(|| Listening {
        inodes: [inode].into(),
        since: Instant::now(),
    });
    listening.inodes.insert(inode);
    listening.since = Instant::now();
    is_first
}

/// Checks whether the program's listener still exists, and not only another program's at its port.
fn check(node: &Node, place: Place) {
    let now = system::tcp_listeners(place.0.port());
    if let Some(listening) = lock(&node.tcp.listeners).get_mut(&place) {
        listening.update(now);
    }
}

/// Returns true if a program listens, as of the last check.
fn listens(node: &Node, place: Place) -> bool {
    let listeners = lock(&node.tcp.listeners);
    listeners.get(&place).is_some_and(Listening::is_open)
}

/// Forgets the place and returns true, unless a program listens. The place's thread must then end.
fn forget(node: &Node, place: Place) -> bool {
    let mut listeners = lock(&node.tcp.listeners);
    let is_open = listeners.get(&place).is_some_and(Listening::is_open);
    if !is_open {
        listeners.remove(&place);
    }
    !is_open
}

impl Listening {
    /// Returns true if a program's socket listens.
    pub(super) fn is_open(&self) -> bool {
        !self.inodes.is_empty()
    }

    /// Forgets the sockets that no longer listen, if the listening sockets are known.
    fn update(&mut self, now: io::Result<HashSet<u64>>) {
        if let Ok(now) = now
            && self.since.elapsed() >= SOON
        {
            self.inodes.retain(|inode| now.contains(inode));
        }
    }
}

/// The UDP port of a listener, and its connections.
struct Port {
    node: Arc<Node>,
    place: Place,
    listener: EspListener,
    copier: Copier,
}

impl Port {
    /// Binds the port on the addresses that the program listens on.
    fn open(node: &Arc<Node>, place: Place) -> io::Result<Port> {
        let (addr, only_v6) = place;
        let is_wanted = |own: IpAddr| match addr.ip() {
            IpAddr::V4(any) if any.is_unspecified() => own.is_ipv4(),
            IpAddr::V6(any) if any.is_unspecified() => own.is_ipv6() || !only_v6,
            one => own == one,
        };
        let (client, poller) = Client::polled_udp_at(addr.port(), is_wanted)?;
        let listener = EspListener::builder().key(KEY);
        let listener = listener.bind_at(&client, addr.port())?;
        listener.set_nonblocking(true)?;
        Ok(Port {
            node: Arc::clone(node),
            place,
            listener,
            copier: Copier::new(poller)?,
        })
    }

    /// Accepts and copies until the program no longer listens and its connections have ended. Until
    /// then, a later listener of the program uses the same port.
    fn serve(mut self) {
        let mut checked = Instant::now();
        loop {
            let news = self.copier.turn(POLL_INTERVAL);
            let is_due = checked.elapsed() >= POLL_INTERVAL;
            if is_due {
                checked = Instant::now();
                check(&self.node, self.place);
            }
            if news.arrivals || is_due {
                self.accept();
            }
            if is_due && self.copier.is_empty() && forget(&self.node, self.place) {
                return;
            }
        }
    }

    /// Accepts all streams that wait.
    fn accept(&mut self) {
        // An error: no stream waits, or there is no room for another one now.
        while let Ok((stream, _)) = self.listener.accept() {
            // The end of the stream tells the peer that the program does not listen; it takes TCP.
            let is_allowed = self.node.tcp.rules.allow_host(ip(stream.peer_addr().addr));
            if !is_allowed || !listens(&self.node, self.place) {
                continue;
            }
            let conn = join(&self.node, self.place.0, stream);
            let _ = conn.and_then(|conn| self.copier.add(conn));
        }
    }
}

/// Connects to the program's listener from the address that it listens on. By this address, the
/// program recognizes a connection whose peer it has to ask for.
fn join(node: &Node, addr: SocketAddr, stream: EspStream) -> io::Result<Conn> {
    let (local, peer) = (stream.local_addr(), stream.peer_addr());
    let ends = (
        SocketAddr::new(ip(local.addr), addr.port()),
        SocketAddr::new(ip(peer.addr), peer.port),
    );
    let to: IpAddr = match addr.ip() {
        ip if !ip.is_unspecified() => ip,
        // A listener on the unspecified IPv6 address accepts IPv4, too.
        _ if ends.0.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
        _ => Ipv6Addr::LOCALHOST.into(),
    };
    let domain = Domain::for_address(SocketAddr::new(to, 0));
    let socket = Socket::new(domain, Type::STREAM, None)?;
    // Until the stream ends gracefully, the end of this socket is a reset. If a connection ends
    // before it is accepted, its name is gone, and the reset lets the program distinguish it from a
    // connection of its own node.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.bind(&SocketAddr::new(to, 0).into())?;
    let own = socket.local_addr()?.as_socket();
    let name = node
        .tcp
        .names
        .insert(own.ok_or(Errno::EADDRNOTAVAIL)?, ends);
    socket.set_nonblocking(true)?;
    match socket.connect(&SocketAddr::new(to, addr.port()).into()) {
        Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => return Err(error),
        _ => {}
    }
    Conn::joining(stream, TcpStream::from(socket), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_kept_while_the_listeners_are_not_known() {
        let since = Instant::now().checked_sub(SOON).expect("up that long");
        let inodes = [4711].into();
        let mut listening = Listening { inodes, since };
        listening.update(Err(Errno::EMFILE.into()));
        listening.update(Ok([4711, 4712].into()));
        assert!(listening.is_open());
        listening.update(Ok([4712].into()));
        assert!(!listening.is_open());
    }
}
