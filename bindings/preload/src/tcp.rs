//! Sockets of TCP, under `esprun --tcp`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::c_int;
use preload_wire::{Answer, Broker, Request};

use crate::kernel::{self, Errno};
use crate::memory::{
    Addr, MIN_LIMIT, inode, is_ipv6_only, option, send_limit, set_send_limit, tcp_state,
};
use crate::own::{self, ask, broker, is_nonblocking};

/// Returns the family of a TCP socket, if TCP uses ESP.
fn family(fd: c_int) -> Option<c_int> {
    broker().filter(|broker| broker.tcp)?;
    let family = option(fd, libc::SO_DOMAIN)?;
    let is_tcp = (family == libc::AF_INET || family == libc::AF_INET6)
        && option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && matches!(option(fd, libc::SO_PROTOCOL), Some(0 | libc::IPPROTO_TCP));
    is_tcp.then_some(family)
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Listens. The broker opens its port before the kernel does, so that a peer that finds the TCP
/// port open finds ESP, too.
pub(crate) fn listen(fd: c_int, backlog: c_int) -> c_int {
    let is_served = serve(fd);
    let listening = kernel::listen(fd, backlog);
    if listening == 0 && !is_served {
        // The kernel has chosen a port.
        serve(fd);
    }
    listening
}

/// Requests that the broker listens, too. Returns false if the TCP socket has no port yet.
fn serve(fd: c_int) -> bool {
    let Some(family) = family(fd) else {
        return true;
    };
    let addr = Addr::local(fd).as_ref().and_then(Addr::inet);
    let (Some(addr), Some(inode)) = (addr.filter(|addr| addr.port() != 0), inode(fd)) else {
        return false;
    };
    // Without the broker, only TCP serves the port.
    let _ = ask(Request::TcpListen {
        addr: plain(addr),
        only_v6: family == libc::AF_INET6 && is_ipv6_only(fd),
        inode,
    });
    true
}

/// Plan for the connection of a socket.
pub(crate) enum ConnectPlan {
    /// To the address that the program passes.
    Tcp,
    /// To this address of the broker. The socket is bound.
    Esp(Addr),
    /// A signal has interrupted the wait for the peer's node.
    Interrupted,
    /// Not at all: the peer's node has accepted, but the broker has refused the connection.
    Failed(Errno),
}

/// Asks the broker whether the peer's node has ESP at this address.
pub(crate) fn plan(fd: c_int, addr: &Addr) -> ConnectPlan {
    match detour(fd, addr) {
        Ok(plan) => plan,
        Err(libc::EINTR) => ConnectPlan::Interrupted,
        Err(_) => ConnectPlan::Tcp,
    }
}

/// Returns how to connect to `addr`: through the broker if the peer's node has ESP there. The
/// socket is bound then.
///
/// # Errors
/// EINTR: see [`ConnectPlan::Interrupted`]; after others, the socket uses TCP.
fn detour(fd: c_int, addr: &Addr) -> Result<ConnectPlan, Errno> {
    let Some(candidate) = Candidate::of(fd, addr) else {
        return Ok(ConnectPlan::Tcp);
    };
    let broker = broker().ok_or(libc::EAFNOSUPPORT)?;
    let request = Request::TcpConnect {
        peer: candidate.peer,
        own: Some(candidate.own).filter(|own| own.port() != 0),
    };
    let asked = match is_nonblocking(fd) {
        // A nonblocking call must not return EINTR.
        true => own::call(broker, request),
        false => own::call_interruptibly(broker, request),
    };
    let (ticket, via) = match asked {
        Ok(Answer::Via { ticket, via }) => (ticket, via),
        Ok(_) => return Ok(ConnectPlan::Tcp),
        Err(error) => return Err(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    let Some(local) = candidate.bind(fd, via.ip()) else {
        return Ok(ConnectPlan::Tcp);
    };
    Ok(match ask(Request::TcpClaim { ticket, local }) {
        Ok(_) => ConnectPlan::Esp(Addr::of_inet(via, candidate.family)),
        Err(errno) => ConnectPlan::Failed(errno),
    })
}

/// A socket that may be connected over ESP.
struct Candidate {
    peer: SocketAddr,
    /// Its own address: none, or one to which it may be bound.
    own: SocketAddr,
    family: c_int,
}

impl Candidate {
    /// Returns the socket if it may be connected to this address over ESP; `None` if it must use
    /// TCP.
    fn of(fd: c_int, addr: &Addr) -> Option<Candidate> {
        let peer = plain(addr.inet()?);
        let is_of_link = matches!(peer.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
        let is_local = peer.ip().is_loopback() || peer.ip().is_unspecified() || is_of_link;
        if is_local || peer.ip().is_multicast() {
            return None;
        }
        let family = family(fd)?;
        let own = plain(Addr::local(fd)?.inet()?);
        // Over ESP, the peer sees another port, which matters to a program that has chosen its
        // port. A socket that is connected or listens has a port, too.
        let is_free = match own.port() {
            0 => own.ip().is_unspecified(),
            port => is_closed(fd) && is_ephemeral(port),
        };
        is_free.then_some(Candidate { peer, own, family })
    }

    /// Makes sure that the socket is bound, and returns the address from which it will connect to
    /// the broker on loopback.
    fn bind(&self, fd: c_int, via: IpAddr) -> Option<SocketAddr> {
        let loopback = match via {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        let own = match self.own.port() {
            0 => SocketAddr::new(loopback, 0),
            _ => self.own,
        };
        let bound = Addr::of_inet(own, self.family);
        let (to, len) = bound.raw();
        // EINVAL: it is bound. After a refused connection, it may keep only the port number without
        // being bound to it.
        if kernel::bind(fd, to, len) < 0 && kernel::errno() != libc::EINVAL {
            return None;
        }
        let mut local = plain(Addr::local(fd)?.inet()?);
        if local.ip().is_unspecified() {
            local.set_ip(loopback);
        }
        Some(local)
    }
}

/// Returns true if a TCP socket is neither connected nor being connected, and does not listen.
fn is_closed(fd: c_int) -> bool {
    const CLOSED: u8 = 7;
    tcp_state(fd) == Some(CLOSED)
}

/// Returns true for a port that the kernel may have chosen.
fn is_ephemeral(port: u16) -> bool {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let range = range.unwrap_or_default();
    let mut ends = range.split_whitespace().map(str::parse::<u16>);
    match (ends.next(), ends.next()) {
        (Some(Ok(first)), Some(Ok(last))) => (first..=last).contains(&port),
        _ => false,
    }
}

/// Connects by TCP like a `connect` that a signal interrupts: the attempt continues, but the
/// program no longer waits for it.
pub(crate) fn connect_interrupted(fd: c_int, addr: &Addr) -> c_int {
    let limit = send_limit(fd);
    set_send_limit(fd, MIN_LIMIT);
    let (to, len) = addr.raw();
    let connected = kernel::connect(fd, to, len);
    let errno = kernel::errno();
    if let Some(limit) = limit {
        set_send_limit(fd, limit);
    }
    match (connected, errno) {
        (0, _) => 0,
        (_, libc::EINPROGRESS) => kernel::fail(libc::EINTR),
        (_, errno) => kernel::fail(errno),
    }
}

/// Returns the true address of the peer of an accepted connection. `peer` is the address that
/// `accept` returned: a connection that was reset in the meantime no longer has an address.
///
/// # Errors
/// ECONNABORTED: the connection was reset, or see [`names`] if it is not known whether the
/// connection is within this node. The broker forgets connections when they end, which is by a
/// reset unless the program has closed its side, too.
pub(crate) fn accepted_peer(fd: c_int, peer: Addr) -> Result<Addr, Errno> {
    match names(fd, &peer)? {
        Some(names) => Ok(names.peer),
        None if looks_local(fd, &peer).is_none() || Addr::peer(fd).is_some() => Ok(peer),
        None => Err(libc::ECONNABORTED),
    }
}

/// Returns the true address of the peer of a connection that only looks local.
///
/// # Errors
/// See [`names`].
pub(crate) fn true_peer(fd: c_int) -> Result<Option<Addr>, Errno> {
    Ok(names_of(fd)?.map(|names| names.peer))
}

/// Returns the true local address of a connection that only looks local.
///
/// # Errors
/// See [`names`].
pub(crate) fn true_local(fd: c_int) -> Result<Option<Addr>, Errno> {
    Ok(names_of(fd)?.map(|names| names.local))
}

/// Returns true for a connection that is or may be over ESP.
pub(crate) fn is_over_esp(fd: c_int) -> bool {
    !matches!(names_of(fd), Ok(None))
}

/// The true addresses of a connection, in the family of its socket.
struct Names {
    local: Addr,
    peer: Addr,
}

fn names_of(fd: c_int) -> Result<Option<Names>, Errno> {
    if !broker().is_some_and(|broker| broker.tcp) {
        return Ok(None);
    }
    Addr::peer(fd).map_or(Ok(None), |peer| names(fd, &peer))
}

/// Returns the true addresses, if the broker is the other end, at `peer`.
///
/// # Errors
/// The broker does not answer: ECONNABORTED, or the errno of a shortage. Programs trust peers on
/// their own node, so the connection must not be treated as local.
fn names(fd: c_int, peer: &Addr) -> Result<Option<Names>, Errno> {
    let Some((broker, family, local, peer)) = looks_local(fd, peer) else {
        return Ok(None);
    };
    match own::call(broker, Request::TcpNames { local, peer }) {
        Ok(Answer::Names { local, peer }) => Ok(Some(Names {
            local: Addr::of_inet(local, family),
            peer: Addr::of_inet(peer, family),
        })),
        Ok(Answer::Tcp) => Ok(None),
        // The broker has ended, and its connections with it.
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => Ok(None),
        Err(error) => Err(own::shortage(&error).unwrap_or(libc::ECONNABORTED)),
        Ok(_) => Err(libc::ECONNABORTED),
    }
}

/// Returns the broker, and the family and addresses of a connection that looks local, if TCP uses
/// ESP.
fn looks_local(fd: c_int, peer: &Addr) -> Option<(&'static Broker, c_int, SocketAddr, SocketAddr)> {
    let broker = broker().filter(|broker| broker.tcp)?;
    let local = plain(Addr::local(fd)?.inet()?);
    let peer = plain(peer.inet()?);
    // A socket that the program has bound keeps its address when it connects to the broker.
    let is_local = local.ip() == peer.ip() || peer.ip().is_loopback();
    let family = family(fd).filter(|_| is_local)?;
    Some((broker, family, local, peer))
}
