//! Options of sockets of `AF_ENET`, and their addresses.

use libc::{c_int, c_void, sockaddr, socklen_t};
use preload_wire::{AF_ENET, Answer, Enet, Request, SOL_EP};

use crate::kernel::Errno;
use crate::memory::{Addr, write_enet, write_option};
use crate::own::{Own, ask};

/// Option of the level `SOL_EP`: the MTU, of type `int`.
const EP_MTU: c_int = 1;
/// Option of the level `SOL_EP`: the statistics.
const EP_STATISTICS: c_int = 2;

/// Writes an option that the kernel does not know, or whose value in the kernel is that of another
/// socket. Returns `None` for an option that the kernel must answer.
pub(crate) fn get(
    own: &Own,
    (level, name): (c_int, c_int),
    to: *mut c_void,
    room: *mut socklen_t,
) -> Option<Result<(), Errno>> {
    let value = match (level, name) {
        (SOL_EP, EP_MTU) => own.state().map(|state| state.mtu.to_ne_bytes().to_vec()),
        (SOL_EP, EP_STATISTICS) => statistics(own),
        (SOL_EP, _) => Err(libc::ENOPROTOOPT),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => Ok(c_int::from(AF_ENET).to_ne_bytes().to_vec()),
        (libc::SOL_SOCKET, libc::SO_ERROR) if own.is_stream => {
            own.state().map(|state| state.errno.to_ne_bytes().to_vec())
        }
        _ => return None,
    };
    Some(value.and_then(|value| write_option(&value, to, room)))
}

fn statistics(own: &Own) -> Result<Vec<u8>, Errno> {
    let name = own.name.clone();
    match ask(Request::Statistics { name })? {
        Answer::Statistics(values) => Ok(values.iter().flat_map(|n| n.to_ne_bytes()).collect()),
        _ => Err(libc::EIO),
    }
}

/// Writes the local address.
pub(crate) fn local(own: &Own, to: *mut sockaddr, room: *mut socklen_t) -> Result<(), Errno> {
    write_enet(own.state()?.local, to, room)
}

/// Writes the address of the peer.
pub(crate) fn peer(
    fd: c_int,
    own: &Own,
    to: *mut sockaddr,
    room: *mut socklen_t,
) -> Result<(), Errno> {
    let connected = Addr::peer(fd).ok_or(libc::ENOTCONN)?;
    // The name of the other end of an accepted stream or a connected datagram socket contains it.
    let peer = match connected.name().and_then(Enet::of_name) {
        Some(peer) => peer,
        None => {
            let state = own.state()?;
            let is_open = !state.connecting && state.errno == 0;
            state.peer.filter(|_| is_open).ok_or(libc::ENOTCONN)?
        }
    };
    write_enet(peer, to, room)
}
