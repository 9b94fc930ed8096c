//! Datagram sockets of `AF_ENET`.

use libc::{c_int, c_void, iovec, msghdr, sockaddr, socklen_t};
use preload_wire::{Enet, Request};

use crate::kernel::{self, Errno};
use crate::memory::{Addr, write_enet};
use crate::own::{Own, ask};

/// Datagrams up to this length pass every Ethernet; for longer ones the broker is asked.
pub(crate) const ALWAYS_FITS: usize = 1400;

/// Binds a free port, unless the socket has one.
fn bind_any(own: &Own) -> Result<(), Errno> {
    if own.state()?.local.port != 0 {
        return Ok(());
    }
    let name = own.name.clone();
    let addr = Enet::default();
    ask(Request::Bind { name, addr }).map(drop)
}

/// Connects the socket to a port of a node; with family 0, ends that.
pub(crate) fn connect(fd: c_int, own: &Own, addr: &Addr) -> Result<(), Errno> {
    bind_any(own)?;
    let peer = match addr.family() {
        libc::AF_UNSPEC => None,
        _ => Some(addr.enet().ok_or(libc::EAFNOSUPPORT)?),
    };
    if Addr::peer(fd).is_some() {
        // The broker's next socket may not send to one that is connected to another.
        let none = Addr::unspecified();
        let (none, len) = none.raw();
        kernel::connect(fd, none, len);
    }
    let name = own.name.clone();
    ask(Request::Direct { name, peer })?;
    let Some(peer) = peer else { return Ok(()) };
    let to = Addr::of_name(&format!("{}.c.{}", own.name, peer.digits()));
    let (to, len) = to.raw();
    match kernel::connect(fd, to, len) {
        0 => Ok(()),
        _ => Err(kernel::errno()),
    }
}

/// Sends a datagram to an address, or to the peer that the socket is connected to.
pub(crate) fn send(
    fd: c_int,
    own: &Own,
    message: &msghdr,
    to: Option<Enet>,
    flags: c_int,
) -> Result<isize, Errno> {
    // SAFETY: the program says that the parts are there.
    let parts = unsafe { parts(message) };
    let len = parts
        .iter()
        .fold(0_usize, |sum, part| sum.saturating_add(part.iov_len));
    if len > ALWAYS_FITS {
        let mtu = own.state()?.mtu;
        if mtu != 0 && len > usize::try_from(mtu).unwrap_or(usize::MAX) {
            return Err(libc::EMSGSIZE);
        }
    }
    let Some(to) = to else {
        return result(kernel::sendmsg(fd, message, flags));
    };
    let mut header = to.to_bytes();
    let mut parts = parts.to_vec();
    let first = iovec {
        iov_base: header.as_mut_ptr().cast::<c_void>(),
        iov_len: header.len(),
    };
    parts.insert(0, first);
    let name = Addr::of_name(&format!("{}.tx", own.name));
    let (addr, addr_len) = name.raw();
    let mut whole = *message;
    whole.msg_name = addr.cast_mut().cast();
    whole.msg_namelen = addr_len;
    whole.msg_iov = parts.as_mut_ptr();
    whole.msg_iovlen = parts.len();
    let mut sent = kernel::sendmsg(fd, &raw const whole, flags);
    if sent < 0 && kernel::errno() == libc::ECONNREFUSED {
        // The socket has no port yet.
        bind_any(own)?;
        sent = kernel::sendmsg(fd, &raw const whole, flags);
    }
    result(sent).map(|sent| sent - header.len() as isize)
}

/// Receives a datagram and writes the sender's address.
pub(crate) fn receive(
    fd: c_int,
    buffer: (*mut c_void, usize),
    flags: c_int,
    (to, room): (*mut sockaddr, *mut socklen_t),
) -> Result<isize, Errno> {
    let mut received = -1;
    let source = Addr::get(|addr, len| {
        received = kernel::recvfrom(fd, buffer, flags, addr, len);
        c_int::from(received >= 0) - 1
    });
    let received = result(received)?;
    write_enet(sender(source.as_ref()), to, room)?;
    Ok(received)
}

/// Receives a message and writes the sender's address.
pub(crate) fn receive_message(
    fd: c_int,
    message: &mut msghdr,
    flags: c_int,
) -> Result<isize, Errno> {
    let (to, mut room) = (message.msg_name, message.msg_namelen);
    let mut received = -1;
    let source = Addr::get(|addr, len| {
        // SAFETY: the caller passes the length of the memory at `addr`.
        message.msg_namelen = unsafe { *len };
        message.msg_name = addr.cast();
        received = kernel::recvmsg(fd, message, flags);
        // SAFETY: as above.
        unsafe { *len = message.msg_namelen };
        c_int::from(received >= 0) - 1
    });
    message.msg_name = to;
    let received = result(received)?;
    write_enet(sender(source.as_ref()), to.cast(), &raw mut room)?;
    message.msg_namelen = room;
    Ok(received)
}

/// Returns the sender that the name of the broker's socket says.
fn sender(source: Option<&Addr>) -> Enet {
    let name = source.and_then(Addr::name);
    name.and_then(Enet::of_name).unwrap_or_default()
}

/// Returns the parts of a message.
///
/// # Safety
/// The message names that many parts.
unsafe fn parts(message: &msghdr) -> &[iovec] {
    if message.msg_iov.is_null() || message.msg_iovlen == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) }
}

fn result(count: isize) -> Result<isize, Errno> {
    if count < 0 {
        return Err(kernel::errno());
    }
    Ok(count)
}
