//! The functions that programs call instead of the C library's.

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use preload_wire::{AF_ENET, Enet};

use crate::kernel::{self, Errno, fail};
use crate::memory::{Addr, is_enet};
use crate::own::{self, Own};
use crate::{datagrams, options, streams, tcp};

/// Returns 0, or -1 with `errno`.
fn done(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => fail(errno),
    }
}

fn descriptor(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(fail)
}

fn count(result: Result<ssize_t, Errno>) -> ssize_t {
    result.unwrap_or_else(|errno| fail(errno) as ssize_t)
}

/// Returns the number of bytes read, or at the end of a stream, the error that ended it.
fn ended(fd: c_int, len: usize, count: ssize_t) -> ssize_t {
    if count != 0 || len == 0 {
        return count;
    }
    let before = kernel::errno();
    let ended = streams::at_end(fd);
    if ended == 0 {
        kernel::set_errno(before);
    }
    ended
}

/// Aborts the program, as the C library does, if the buffer of a checked call is too short.
fn check(len: size_t, room: size_t) {
    if len > room {
        std::process::abort();
    }
}

/// `socket(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain != c_int::from(AF_ENET) || own::broker().is_none() {
        return kernel::socket(domain, kind, protocol);
    }
    descriptor(own::open(kind, protocol))
}

/// `bind(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if is_enet(addr, len)
        && let Some(own) = Own::of(fd)
    {
        return done(Addr::read(addr, len).and_then(|addr| streams::bind(&own, &addr)));
    }
    kernel::bind(fd, addr, len)
}

/// `listen(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if let Some(own) = Own::of(fd) {
        return done(streams::listen(fd, &own, backlog));
    }
    tcp::listen(fd, backlog)
}

/// `accept(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    accept4(fd, addr, len, 0)
}

/// `accept4(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if Own::of(fd).is_some_and(|own| own.is_stream) {
        return descriptor(streams::accept(fd, addr, len, flags));
    }
    if addr.is_null() || len.is_null() {
        return kernel::accept4(fd, addr, len, flags);
    }
    let mut accepted = -1;
    let peer = Addr::get(|peer, room| {
        accepted = kernel::accept4(fd, peer, room, flags);
        accepted
    });
    let Some(peer) = peer else {
        return accepted;
    };
    match tcp::accepted_peer(accepted, peer) {
        Ok(peer) => {
            let _ = peer.write(addr, len);
            accepted
        }
        Err(errno) => {
            kernel::close(accepted);
            fail(errno)
        }
    }
}

/// `connect(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let Ok(given) = Addr::read(addr, len) else {
        return kernel::connect(fd, addr, len);
    };
    if given.family() == c_int::from(AF_ENET) || given.family() == libc::AF_UNSPEC {
        match Own::of(fd) {
            Some(own) if own.is_stream => return done(streams::connect(fd, &own, &given)),
            Some(own) => return done(datagrams::connect(fd, &own, &given)),
            None => {}
        }
    }
    match tcp::plan(fd, &given) {
        tcp::ConnectPlan::Tcp => kernel::connect(fd, addr, len),
        tcp::ConnectPlan::Esp(detour) => {
            let (to, len) = detour.raw();
            kernel::connect(fd, to, len)
        }
        tcp::ConnectPlan::Interrupted => tcp::connect_interrupted(fd, &given),
        tcp::ConnectPlan::Failed(errno) => fail(errno),
    }
}

/// `getsockname(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if let Some(own) = Own::of(fd) {
        return done(options::local(&own, addr, len));
    }
    // If there is no memory for the address, the kernel returns the error.
    if addr.is_null() || len.is_null() {
        return kernel::getsockname(fd, addr, len);
    }
    match tcp::true_local(fd) {
        Ok(Some(local)) => done(local.write(addr, len)),
        Ok(None) => kernel::getsockname(fd, addr, len),
        Err(errno) => fail(errno),
    }
}

/// `getpeername(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if let Some(own) = Own::of(fd) {
        return done(options::peer(fd, &own, addr, len));
    }
    // If there is no memory for the address, the kernel returns the error.
    if addr.is_null() || len.is_null() {
        return kernel::getpeername(fd, addr, len);
    }
    match tcp::true_peer(fd) {
        Ok(Some(peer)) => done(peer.write(addr, len)),
        Ok(None) => kernel::getpeername(fd, addr, len),
        Err(errno) => fail(errno),
    }
}

/// `getsockopt(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let is_ours = level == preload_wire::SOL_EP
        || (level == libc::SOL_SOCKET && matches!(name, libc::SO_ERROR | libc::SO_DOMAIN));
    if is_ours
        && let Some(own) = Own::of(fd)
        && let Some(got) = options::get(&own, (level, name), value, len)
    {
        return done(got);
    }
    kernel::getsockopt(fd, level, name, value, len)
}

/// `read(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    ended(fd, len, kernel::read(fd, buffer, len))
}

/// `readv(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn readv(fd: c_int, parts: *const iovec, number: c_int) -> ssize_t {
    ended(fd, 1, kernel::readv(fd, parts, number))
}

/// `recv(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let (addr, addr_len) = (std::ptr::null_mut(), std::ptr::null_mut());
    ended(
        fd,
        len,
        kernel::recvfrom(fd, (buffer, len), flags, addr, addr_len),
    )
}

/// `read(2)` of programs that are compiled with buffer checks (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
pub extern "C" fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    check(len, room);
    read(fd, buffer, len)
}

/// `recv(2)` of such programs.
#[unsafe(no_mangle)]
pub extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(len, room);
    recv(fd, buffer, len, flags)
}

/// `recvfrom(2)` of such programs.
#[unsafe(no_mangle)]
pub extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    check(len, room);
    recvfrom(fd, buffer, len, flags, addr, addr_len)
}

/// `recvfrom(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    if addr.is_null() {
        return recv(fd, buffer, len, flags);
    }
    match Own::of(fd) {
        Some(own) if !own.is_stream => count(datagrams::receive(
            fd,
            (buffer, len),
            flags,
            (addr, addr_len),
        )),
        _ => {
            let got = kernel::recvfrom(fd, (buffer, len), flags, addr, addr_len);
            ended(fd, len, got)
        }
    }
}

/// `recvmsg(2)`.
///
/// # Safety
/// `message` must be null or valid for reads and writes, with valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as the caller promises.
    if let Some(message) = unsafe { message.as_mut() }
        && !message.msg_name.is_null()
        && Own::of(fd).is_some_and(|own| !own.is_stream)
    {
        return count(datagrams::receive_message(fd, message, flags));
    }
    let got = kernel::recvmsg(fd, message, flags);
    // SAFETY: as above.
    if let Some(message) = unsafe { message.as_mut() }
        && message.msg_control.is_null()
        && message.msg_flags & libc::MSG_CTRUNC != 0
        && got >= 0
        && Own::of(fd).is_some_and(|own| !own.is_stream)
    {
        // The control message that did not fit holds the sender's credentials, which the program
        // did not request.
        message.msg_flags &= !libc::MSG_CTRUNC;
    }
    ended(fd, 1, got)
}

/// `send(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    sendto(fd, buffer, len, flags, std::ptr::null(), 0)
}

/// `sendto(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    if flags & libc::MSG_OOB != 0 && is_over_esp(fd) {
        return fail(libc::EOPNOTSUPP) as ssize_t;
    }
    let to = target(addr, addr_len);
    let own = if to.is_some() || len > datagrams::ALWAYS_FITS {
        Own::of(fd)
    } else {
        None
    };
    match own {
        Some(own) if own.is_stream && to.is_some() => fail(libc::EISCONN) as ssize_t,
        Some(own) if !own.is_stream => {
            let mut part = iovec {
                iov_base: buffer.cast_mut(),
                iov_len: len,
            };
            let message = crate::memory::message(&mut part);
            count(datagrams::send(fd, &own, &message, to, flags))
        }
        _ => kernel::sendto(fd, (buffer, len), flags, addr, addr_len),
    }
}

/// `sendmsg(2)`.
///
/// # Safety
/// `message` must be null or valid for reads and writes, with valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if flags & libc::MSG_OOB != 0 && is_over_esp(fd) {
        return fail(libc::EOPNOTSUPP) as ssize_t;
    }
    // SAFETY: as the caller promises.
    if let Some(message) = unsafe { message.as_ref() }
        && let Some(to) = target(message.msg_name.cast(), message.msg_namelen)
        && let Some(own) = Own::of(fd)
    {
        if own.is_stream {
            return fail(libc::EISCONN) as ssize_t;
        }
        return count(datagrams::send(fd, &own, message, Some(to), flags));
    }
    kernel::sendmsg(fd, message, flags)
}

/// Returns true for a socket whose bytes are carried by ESP. The broker would not read out-of-band
/// data, which ESP does not have.
pub(crate) fn is_over_esp(fd: c_int) -> bool {
    Own::of(fd).is_some() || tcp::is_over_esp(fd)
}

/// Returns the address that a program passes, if it is of `AF_ENET`.
fn target(addr: *const sockaddr, len: socklen_t) -> Option<Enet> {
    if addr.is_null() || !is_enet(addr, len) {
        return None;
    }
    Addr::read(addr, len).ok()?.enet()
}
