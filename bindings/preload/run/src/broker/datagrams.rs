//! Datagram sockets of `AF_ENET`.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use esp_client::{Client, EdpKind, EdpSocket, MacAddr, NodeAddr};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrLike, UnixAddr, UnixCredentials, recvmsg, setsockopt,
    sockopt,
};
use preload_wire::{Answer, ENET_LEN, Enet, abstract_addr};
use rustix::net::{SocketAddrUnix, bind as bind_to};

use super::streams::interface;
use super::table::{Entry, lock};
use super::{Node, system};

/// Interval between checks whether the program has closed its socket.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum length of a program's datagram with the address before it, in bytes.
const MAX_DATAGRAM: usize = 65536;
/// Length of the family at the beginning of an address, in bytes.
const FAMILY: u32 = 2;
/// Maximum number of sockets that deliver datagrams to a program, one for each sender.
const SENDERS: usize = 64;

/// Binds a socket.
pub(super) fn bind(node: &Arc<Node>, name: &str, addr: Enet) -> io::Result<()> {
    let entry = node.table.entry(name)?;
    // Locked until the state contains the port: of two concurrent requests, one fails and finds the
    // port.
    let mut bound = lock(&entry.datagrams.socket);
    if bound.is_some() {
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
    let from_program = FromProgram::bind(&node.broker.addressed(name), name)?;
    entry.set(|state| {
        state.local = local;
        state.mtu = u32::try_from(socket.max_payload()).unwrap_or(u32::MAX);
    });
    *bound = Some(Arc::clone(&socket));
    drop(bound);
    let (one, other, own) = (Arc::clone(&entry), Arc::clone(&socket), name.to_owned());
    let sending = node.busy("edp-send", move |_| {
        send_addressed(&one, &other, &from_program);
    });
    let receiving = sending.and_then(|()| {
        node.busy("edp-receive", move |node| {
            receive(node, &own, &entry, &socket);
        })
    });
    // The first thread ends with the socket if the second one could not be started.
    receiving.inspect_err(|_| node.table.remove(name))
}

/// Connects a socket to a port of a node, or disconnects it.
pub(super) fn direct(node: &Arc<Node>, name: &str, peer: Option<Enet>) -> io::Result<Answer> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let entry = node.table.entry(name)?;
    let socket = lock(&entry.datagrams.socket).clone();
    let socket = socket.ok_or(Errno::ENOTCONN)?;
    let Some(peer) = peer else {
        entry.set(|state| state.peer = None);
        *lock(&entry.datagrams.direct) = None;
        return Ok(Answer::Done);
    };
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let tag = node.broker.tag(&format!("{name}.c.{number}"));
    let own = format!("{name}.c.{tag}.{}", peer.digits());
    let from_program = FromProgram::bind(&own, name)?;
    let direct = Arc::new(Direct { peer, from_program });
    entry.set(|state| state.peer = Some(peer));
    *lock(&entry.datagrams.direct) = Some(Arc::clone(&direct));
    let sending = Arc::clone(&entry);
    let began = node.busy("edp-direct", move |_| {
        send_direct(&sending, &socket, &direct);
    });
    began.inspect_err(|_| {
        entry.set(|state| state.peer = None);
        *lock(&entry.datagrams.direct) = None;
    })?;
    Ok(Answer::Direct { name: own })
}

/// The broker's socket for a connected socket of a program.
pub(super) struct Direct {
    /// The address that it is connected to; only datagrams from there are delivered.
    peer: Enet,
    from_program: FromProgram,
}

/// A socket of the broker that receives the datagrams of one socket of a program.
struct FromProgram {
    socket: UnixDatagram,
    /// Name of the program's socket.
    program: String,
}

impl FromProgram {
    /// Binds a socket to the name `own`, and connects it to the program's socket. Once connected,
    /// it receives no datagrams from others.
    fn bind(own: &str, program: &str) -> io::Result<FromProgram> {
        let socket = UnixDatagram::bind_addr(&abstract_addr(own)?)?;
        socket.connect_addr(&abstract_addr(program)?)?;
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        setsockopt(&socket, sockopt::PassCred, &true)?;
        let program = program.to_owned();
        Ok(FromProgram { socket, program })
    }

    /// Returns the next datagram; `None` after [`POLL_INTERVAL`] or if it is from another sender,
    /// because every user of the node could send to the socket before it was connected. A name
    /// belongs to one socket at a time, but another user can take it after the program has closed
    /// its socket.
    fn receive<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let mut control = cmsg_space!(UnixCredentials);
        let mut parts = [IoSliceMut::new(buffer)];
        let (fd, control) = (self.socket.as_raw_fd(), Some(&mut control[..]));
        let received = recvmsg::<UnixAddr>(fd, &mut parts, control, MsgFlags::empty()).ok()?;
        let mut users = received.cmsgs().ok()?.filter_map(|part| match part {
            ControlMessageOwned::ScmCredentials(sender) => Some(sender.uid()),
            _ => None,
        });
        let is_own = users.next().is_some_and(system::is_user_of_programs);
        // The address of a socket without a name lacks even the family, which `as_abstract` does
        // not expect.
        let sender = received.address.filter(|addr| addr.len() > FAMILY);
        let name = sender.as_ref().and_then(UnixAddr::as_abstract);
        let is_expected = is_own && name == Some(self.program.as_bytes());
        let count = received.bytes;
        buffer.get(..count).filter(|_| is_expected)
    }
}

/// Sends the datagrams that the program sends with an address.
fn send_addressed(entry: &Entry, socket: &EdpSocket, from_program: &FromProgram) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    while !entry.is_gone() {
        let Some(bytes) = from_program.receive(&mut buffer) else {
            continue;
        };
        if let (Some(to), Some(payload)) = (Enet::parse(bytes), bytes.get(ENET_LEN..)) {
            send(entry, socket, payload, to);
        }
    }
}

/// Sends the datagrams that the program sends without an address, until its socket is connected to
/// another one.
fn send_direct(entry: &Entry, socket: &EdpSocket, direct: &Arc<Direct>) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    while !entry.is_gone() {
        if let Some(payload) = direct.from_program.receive(&mut buffer) {
            send(entry, socket, payload, direct.peer);
            continue;
        }
        let current = lock(&entry.datagrams.direct);
        if !current.as_ref().is_some_and(|it| Arc::ptr_eq(it, direct)) {
            return;
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
fn receive(node: &Node, name: &str, entry: &Entry, socket: &EdpSocket) {
    let mut buffer = vec![0; socket.max_payload()];
    let mut senders: VecDeque<(Enet, UnixDatagram)> = VecDeque::new();
    while !entry.is_gone() {
        let (length, info) = match socket.recv_from_timeout(&mut buffer, POLL_INTERVAL) {
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
        let delivered = deliver(node, name, entry, &mut senders, from, bytes);
        count(match delivered {
            Ok(()) => &entry.datagrams.received,
            Err(_) => &entry.datagrams.dropped,
        });
    }
}

fn deliver(
    node: &Node,
    name: &str,
    entry: &Entry,
    senders: &mut VecDeque<(Enet, UnixDatagram)>,
    from: Enet,
    bytes: &[u8],
) -> io::Result<()> {
    let direct = lock(&entry.datagrams.direct).clone();
    if let Some(direct) = direct {
        if (direct.peer.mac, direct.peer.port) != (from.mac, from.port) {
            return Err(Errno::ECONNREFUSED.into());
        }
        return direct.from_program.socket.send(bytes).map(drop);
    }
    let known = senders.iter().position(|(addr, _)| *addr == from);
    let index = match known {
        Some(index) => index,
        None => {
            let own = format!("{name}.f.{}", from.digits());
            let own = format!("{name}.f.{}.{}", node.broker.tag(&own), from.digits());
            let bound = sender(&own)?;
            if senders.len() >= SENDERS {
                senders.pop_front();
            }
            senders.push_back((from, bound));
            senders.len() - 1
        }
    };
    let (_, socket) = senders.get(index).ok_or(Errno::ENOTCONN)?;
    // Waits for room; in the meantime, datagrams wait in the ring of the EDP socket.
    socket.send_to_addr(bytes, &abstract_addr(name)?).map(drop)
}

/// Returns a socket with this name that receives nothing: descriptors that other users send would
/// be closed together with the socket, which can block.
fn sender(name: &str) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.shutdown(Shutdown::Read)?;
    bind_to(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    Ok(socket)
}

fn count(counter: &AtomicU32) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;

    fn bound(name: &str) -> UnixDatagram {
        UnixDatagram::bind_addr(&abstract_addr(name).unwrap()).unwrap()
    }

    #[test]
    fn datagrams_of_others_are_dropped() {
        let name = format!("esp.test{}.d.1.1", std::process::id());
        let own = format!("{name}.tx");
        let to = abstract_addr(&own).unwrap();
        let (program, other) = (bound(&name), bound(&format!("{name}.x")));
        let unnamed = UnixDatagram::unbound().unwrap();
        let socket = bound(&own);
        socket.set_read_timeout(Some(POLL_INTERVAL)).unwrap();
        setsockopt(&socket, sockopt::PassCred, &true).unwrap();
        // In the state before it is connected.
        let from_program = FromProgram {
            socket,
            program: name,
        };
        for (socket, payload) in [(&other, "other"), (&unnamed, "unnamed"), (&program, "own")] {
            socket.send_to_addr(payload.as_bytes(), &to).unwrap();
        }
        let mut buffer = [0; 100];
        assert_eq!(from_program.receive(&mut buffer), None);
        assert_eq!(from_program.receive(&mut buffer), None);
        assert_eq!(from_program.receive(&mut buffer), Some(&b"own"[..]));
        assert_eq!(from_program.receive(&mut buffer), None, "after a time");
    }

    #[test]
    fn others_can_send_nothing_to_the_sockets_of_the_broker() {
        let name = format!("esp.test{}.d.1.2", std::process::id());
        let (program, other) = (bound(&name), bound(&format!("{name}.x")));
        let (tx, from) = (format!("{name}.tx"), format!("{name}.f"));
        let from_program = FromProgram::bind(&tx, &name).unwrap();
        let sender = sender(&from).unwrap();
        let send = |by: &UnixDatagram, to: &str| {
            let sent = by.send_to_addr(b"x", &abstract_addr(to).unwrap());
            sent.map_err(|error| error.raw_os_error())
        };
        assert_eq!(send(&other, &tx), Err(Some(Errno::EPERM as i32)));
        assert_eq!(send(&other, &from), Err(Some(Errno::EPIPE as i32)));
        assert_eq!((send(&program, &tx), send(&sender, &name)), (Ok(1), Ok(1)));
        assert_eq!(from_program.receive(&mut [0; 9]), Some(&b"x"[..]));
        let (_, by) = program.recv_from(&mut [0; 9]).unwrap();
        assert_eq!(by.as_abstract_name(), Some(from.as_bytes()));
    }
}
