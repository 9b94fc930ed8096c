//! Datagram sockets of `AF_ENET`.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use esp_client::{Client, EdpKind, EdpSocket, MacAddr, NodeAddr};
use nix::errno::Errno;
use preload_wire::{ENET_LEN, Enet, abstract_addr};

use super::streams::interface;
use super::table::{Entry, lock};
use super::{Node, system};

/// Longest wait for a datagram between two looks whether the program has closed its socket.
const LOOK: Duration = Duration::from_millis(200);
/// Longest datagram of a program, with the address before it.
const MAX_DATAGRAM: usize = 65536;
/// Number of sockets that datagrams from different senders are delivered by.
const SENDERS: usize = 64;

/// Binds a socket.
pub(super) fn bind(node: &Arc<Node>, name: String, addr: Enet) -> io::Result<()> {
    let entry = node.table.entry(&name)?;
    if entry.state().local.port != 0 {
        return Err(Errno::EINVAL.into());
    }
    let client = Client::shared()?;
    let mut builder = EdpSocket::builder();
    if let Some(interface) = interface(&client, addr)? {
        builder = builder.interface(interface);
    }
    let socket = Arc::new(builder.bind_at(&client, addr.port)?);
    let mac = match socket.addr() {
        NodeAddr::Mac(mac) => mac.0,
        NodeAddr::Udp(_) => [0; 6],
    };
    let local = Enet {
        port: socket.port(),
        interface: system::interface_index(socket.interface()),
        mac,
    };
    let from_program = UnixDatagram::bind_addr(&abstract_addr(&format!("{name}.tx"))?)?;
    from_program.set_read_timeout(Some(LOOK))?;
    entry.set(|state| {
        state.local = local;
        state.mtu = u32::try_from(socket.max_payload()).unwrap_or(u32::MAX);
    });
    *lock(&entry.datagrams.socket) = Some(Arc::clone(&socket));
    let (one, other) = (Arc::clone(&entry), Arc::clone(&socket));
    node.busy("edp-send", move |_| {
        send_addressed(&one, &other, &from_program);
    });
    node.busy("edp-receive", move |_| receive(&name, &entry, &socket));
    Ok(())
}

/// Connects a socket to a port of a node, or ends that.
pub(super) fn direct(node: &Arc<Node>, name: &str, peer: Option<Enet>) -> io::Result<()> {
    let entry = node.table.entry(name)?;
    let socket = lock(&entry.datagrams.socket).clone();
    let socket = socket.ok_or(Errno::ENOTCONN)?;
    *lock(&entry.datagrams.only) = peer;
    entry.set(|state| state.peer = peer);
    let Some(peer) = peer else { return Ok(()) };
    let own = format!("{name}.c.{}", peer.digits());
    let from_program = match UnixDatagram::bind_addr(&abstract_addr(&own)?) {
        Ok(bound) => bound,
        // Connected to the same address before, and served until the socket is closed.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(()),
        Err(error) => return Err(error),
    };
    from_program.connect_addr(&abstract_addr(name)?)?;
    from_program.set_read_timeout(Some(LOOK))?;
    let to_program = from_program.try_clone()?;
    lock(&entry.datagrams.direct).replace((peer, to_program));
    node.busy("edp-direct", move |_| {
        send_direct(&entry, &socket, &from_program, peer);
    });
    Ok(())
}

/// Sends what the program sends with an address.
fn send_addressed(entry: &Entry, socket: &EdpSocket, from_program: &UnixDatagram) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    while !entry.is_gone() {
        let Ok(count) = from_program.recv(&mut buffer) else {
            continue;
        };
        let bytes = buffer.get(..count).unwrap_or_default();
        if let (Some(to), Some(payload)) = (Enet::parse(bytes), bytes.get(ENET_LEN..)) {
            send(entry, socket, payload, to);
        }
    }
}

/// Sends what the program sends without an address.
fn send_direct(entry: &Entry, socket: &EdpSocket, from_program: &UnixDatagram, to: Enet) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    while !entry.is_gone() {
        if let Ok(count) = from_program.recv(&mut buffer) {
            send(entry, socket, buffer.get(..count).unwrap_or_default(), to);
        }
    }
}

fn send(entry: &Entry, socket: &EdpSocket, payload: &[u8], to: Enet) {
    let sent = socket.send_to(payload, MacAddr(to.mac), to.port);
    count(match sent {
        Ok(_) => &entry.datagrams.sent,
        Err(_) => &entry.datagrams.send_errors,
    });
}

/// Delivers datagrams to the program, each from a socket whose name is the sender's address.
fn receive(name: &str, entry: &Entry, socket: &EdpSocket) {
    let mut buffer = vec![0; socket.max_payload()];
    let mut senders: VecDeque<(Enet, UnixDatagram)> = VecDeque::new();
    while !entry.is_gone() {
        let (length, info) = match socket.recv_from_timeout(&mut buffer, LOOK) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => continue,
            Err(_) => return,
        };
        let NodeAddr::Mac(mac) = info.src else {
            continue;
        };
        let from = Enet {
            port: info.src_port,
            interface: entry.state().local.interface,
            mac: mac.0,
        };
        if info.kind != EdpKind::Data {
            continue;
        }
        let bytes = buffer.get(..length).unwrap_or_default();
        let delivered = deliver(name, entry, &mut senders, from, bytes);
        count(match delivered {
            Ok(()) => &entry.datagrams.received,
            Err(_) => &entry.datagrams.dropped,
        });
    }
}

fn deliver(
    name: &str,
    entry: &Entry,
    senders: &mut VecDeque<(Enet, UnixDatagram)>,
    from: Enet,
    bytes: &[u8],
) -> io::Result<()> {
    if let Some(only) = *lock(&entry.datagrams.only) {
        if (only.mac, only.port) != (from.mac, from.port) {
            return Err(Errno::ECONNREFUSED.into());
        }
        let direct = lock(&entry.datagrams.direct);
        let socket = direct.as_ref().filter(|(peer, _)| *peer == only);
        let socket = socket.map(|(_, socket)| socket.try_clone());
        drop(direct);
        let socket = socket.ok_or(Errno::ENOTCONN)??;
        return socket.send(bytes).map(drop);
    }
    let known = senders.iter().position(|(addr, _)| *addr == from);
    let index = match known {
        Some(index) => index,
        None => {
            let own = format!("{name}.f.{}", from.digits());
            let bound = UnixDatagram::bind_addr(&abstract_addr(&own)?)?;
            if senders.len() >= SENDERS {
                senders.pop_front();
            }
            senders.push_back((from, bound));
            senders.len() - 1
        }
    };
    let (_, socket) = senders.get(index).ok_or(Errno::ENOTCONN)?;
    // Waits for room: meanwhile datagrams wait in the ring of the socket of EDP.
    socket.send_to_addr(bytes, &abstract_addr(name)?).map(drop)
}

fn count(counter: &AtomicU32) {
    counter.fetch_add(1, Ordering::Relaxed);
}
