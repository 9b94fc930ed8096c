//! Datagram sockets of `AF_ENET`.

use std::mem::size_of;

use libc::{c_int, c_void, cmsghdr, iovec, msghdr, sockaddr, socklen_t, ucred};
use preload_wire::{Answer, Enet, Request};

use crate::kernel::{self, Errno};
use crate::memory::{Addr, close_foreign, write_enet};
use crate::own::{Own, ask, broker};

/// Datagrams of up to this length fit into every Ethernet frame; for longer ones, the broker is
/// asked for the MTU.
pub(crate) const ALWAYS_FITS: usize = 1400;

/// Maximum length of the control messages that a program gets with a datagram, in bytes.
const MAX_CONTROL: usize = 64 << 10;

/// Binds a free port, unless the socket has one.
fn bind_any(own: &Own) -> Result<(), Errno> {
    let is_bound = || own.state().map(|state| state.local.port != 0);
    if is_bound()? {
        return Ok(());
    }
    let name = own.name.clone();
    let addr = Enet::default();
    match ask(Request::Bind { name, addr }) {
        // Another thread or process has just bound it.
        Err(libc::EINVAL) if is_bound()? => Ok(()),
        done => done.map(drop),
    }
}

/// Connects the socket to a port of a node; disconnects it if the family is 0.
pub(crate) fn connect(fd: c_int, own: &Own, addr: &Addr) -> Result<(), Errno> {
    bind_any(own)?;
    let peer = match addr.family() {
        libc::AF_UNSPEC => None,
        _ => Some(addr.enet().ok_or(libc::EAFNOSUPPORT)?),
    };
    if Addr::peer(fd).is_some() {
        // The broker's next socket cannot send to a socket that is connected to another one.
        let none = Addr::unspecified();
        let (none, len) = none.raw();
        kernel::connect(fd, none, len);
    }
    let name = own.name.clone();
    let to = match ask(Request::Direct { name, peer })? {
        Answer::Direct { name } => Addr::of_name(&name),
        _ => return Ok(()),
    };
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
    // SAFETY: the program passes valid parts.
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
    let broker = broker().ok_or(libc::EAFNOSUPPORT)?;
    let name = Addr::of_name(&broker.addressed(&own.name));
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
    let mut part = iovec {
        iov_base: buffer.0,
        iov_len: buffer.1,
    };
    let mut message = crate::memory::message(&mut part);
    let (received, from) = receive_own(fd, &mut message, flags)?;
    write_enet(from, to, room)?;
    Ok(received)
}

/// Receives a message and writes the sender's address.
pub(crate) fn receive_message(
    fd: c_int,
    message: &mut msghdr,
    flags: c_int,
) -> Result<isize, Errno> {
    let (to, mut room) = (message.msg_name, message.msg_namelen);
    let received = receive_own(fd, message, flags);
    message.msg_name = to;
    let (received, from) = received?;
    write_enet(from, to.cast(), &raw mut room)?;
    message.msg_namelen = room;
    Ok(received)
}

/// Receives the next datagram from the broker, and returns its length and the sender that the
/// broker names. All users of the node can send to the name of the program's socket, so datagrams
/// from others are dropped.
fn receive_own(fd: c_int, message: &mut msghdr, flags: c_int) -> Result<(isize, Enet), Errno> {
    let theirs = match message.msg_control.is_null() {
        true => (message.msg_control, 0),
        false => (message.msg_control, message.msg_controllen.min(MAX_CONTROL)),
    };
    let uid = broker().ok_or(libc::EAFNOSUPPORT)?.uid;
    loop {
        // SAFETY: the call computes a length.
        let own = unsafe { libc::CMSG_SPACE(size_of::<ucred>() as u32) } as usize;
        let mut control = vec![0_u64; own.saturating_add(theirs.1).div_ceil(size_of::<u64>())];
        let mut received = -1;
        let source = Addr::get(|addr, len| {
            // SAFETY: the caller passes the length of the memory at `addr`.
            message.msg_namelen = unsafe { *len };
            message.msg_name = addr.cast();
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = control.len() * size_of::<u64>();
            received = kernel::recvmsg(fd, message, flags);
            // SAFETY: as above.
            unsafe { *len = message.msg_namelen };
            c_int::from(received >= 0) - 1
        });
        if let Err(errno) = result(received) {
            (message.msg_control, message.msg_controllen) = theirs;
            return Err(errno);
        }
        if user(message) == Some(uid) {
            give_control(message, theirs);
            return Ok((received, sender(source.as_ref())));
        }
        drop_datagram(fd, message, flags);
    }
}

/// Returns the control messages of a received message.
fn controls(message: &msghdr) -> impl Iterator<Item = *const cmsghdr> {
    // SAFETY: the kernel has written the control messages and their length.
    let first = unsafe { libc::CMSG_FIRSTHDR(message) };
    let next = move |at: &*const cmsghdr| {
        // SAFETY: as above.
        let next: *const cmsghdr = unsafe { libc::CMSG_NXTHDR(message, *at) };
        Some(next).filter(|next| !next.is_null())
    };
    let first = Some(first.cast_const()).filter(|first| !first.is_null());
    std::iter::successors(first, next)
}

/// Returns the level, the type and the data of a control message.
fn control(at: &*const cmsghdr) -> ((c_int, c_int), &[u8]) {
    // SAFETY: the kernel has written the header, whose length includes the data.
    unsafe {
        let len = (**at).cmsg_len - libc::CMSG_LEN(0) as usize;
        let data = std::slice::from_raw_parts(libc::CMSG_DATA(*at), len);
        (((**at).cmsg_level, (**at).cmsg_type), data)
    }
}

/// Returns the ID of the user that sent a message.
fn user(message: &msghdr) -> Option<u32> {
    controls(message).find_map(|at| {
        let (kind, data) = control(&at);
        let is_user = kind == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS);
        let uid = data.get(std::mem::offset_of!(ucred, uid)..)?.get(..4)?;
        let uid = uid.try_into().ok().filter(|_| is_user)?;
        Some(u32::from_ne_bytes(uid))
    })
}

/// Drops a message: closes descriptors that came with it, and removes it from the socket if it was
/// only peeked at.
fn drop_datagram(fd: c_int, message: &msghdr, flags: c_int) {
    let mut passed = Vec::new();
    for at in controls(message) {
        let (kind, data) = control(&at);
        if kind == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let numbers = data.chunks_exact(size_of::<c_int>());
            passed.extend(
                numbers.filter_map(|bytes| Some(c_int::from_ne_bytes(bytes.try_into().ok()?))),
            );
        }
    }
    if !passed.is_empty() {
        close_foreign(fd, passed);
    }
    if flags & libc::MSG_PEEK != 0 {
        let (addr, len) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut byte = 0_u8;
        let buffer = ((&raw mut byte).cast(), 1);
        kernel::recvfrom(fd, buffer, libc::MSG_DONTWAIT, addr, len);
    }
}

/// Copies the control messages to the program's memory, except the sender's credentials, as room
/// permits.
fn give_control(message: &mut msghdr, (to, room): (*mut c_void, usize)) {
    let (mut used, mut is_cut) = (0, false);
    for at in controls(message) {
        let (kind, data) = control(&at);
        if kind == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) {
            continue;
        }
        // SAFETY: the calls compute lengths.
        let (len, space) = unsafe {
            let len = data.len() as u32;
            (libc::CMSG_LEN(len) as usize, libc::CMSG_SPACE(len) as usize)
        };
        is_cut |= used + len > room;
        if is_cut {
            break;
        }
        // SAFETY: `at` is valid for reads of `len` bytes, and the program passes memory of `room`
        // bytes at `to`.
        unsafe {
            let to = to.cast::<u8>().add(used);
            std::ptr::copy_nonoverlapping(at.cast::<u8>(), to, len);
        }
        used = room.min(used + space);
    }
    if is_cut {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
    (message.msg_control, message.msg_controllen) = (to, used);
}

/// Returns the sender, which the name of the broker's socket contains.
fn sender(source: Option<&Addr>) -> Enet {
    let name = source.and_then(Addr::name);
    name.and_then(Enet::of_name).unwrap_or_default()
}

/// Returns the parts of a message.
///
/// # Safety
/// `message.msg_iov` must be null or valid for reads of `msg_iovlen` parts.
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
