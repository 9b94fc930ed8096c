//! C structures: addresses in the program's memory and in system calls.

use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{
    c_int, iovec, msghdr, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, sockaddr_un,
    socklen_t, timeval,
};
use preload_wire::{AF_ENET, ENET_LEN, Enet};

use crate::kernel::{self, Errno};

/// Option of Unix sockets since Linux 6.16: whether the other end may pass descriptors.
const SO_PASSRIGHTS: c_int = 83;

/// Offset of the path in an address of a Unix socket.
const PATH: usize = offset_of!(sockaddr_un, sun_path);

/// Bytes of an address of any family.
#[derive(Clone, Copy)]
pub(crate) struct Addr {
    storage: sockaddr_storage,
    len: usize,
}

impl Addr {
    fn zeroed() -> Addr {
        Addr {
            // SAFETY: the structure consists of integers, for which zero is valid.
            storage: unsafe { std::mem::zeroed() },
            len: 0,
        }
    }

    fn of_bytes(bytes: &[u8]) -> Addr {
        let mut addr = Addr::zeroed();
        addr.len = bytes.len().min(size_of::<sockaddr_storage>());
        // SAFETY: both are valid for `len` bytes; the structure consists of integers.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                (&raw mut addr.storage).cast::<u8>(),
                addr.len,
            );
        }
        addr
    }

    /// Copies an address of the program.
    ///
    /// # Errors
    /// EINVAL: it is too short or too long.
    pub(crate) fn read(addr: *const sockaddr, len: socklen_t) -> Result<Addr, Errno> {
        let len = usize::try_from(len).unwrap_or(0);
        if addr.is_null() {
            return Err(libc::EFAULT);
        }
        if !(2..=size_of::<sockaddr_storage>()).contains(&len) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program passes `len` bytes.
        Ok(Addr::of_bytes(unsafe {
            std::slice::from_raw_parts(addr.cast::<u8>(), len)
        }))
    }

    /// Returns the address that a system call writes.
    pub(crate) fn get(call: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int) -> Option<Addr> {
        let mut addr = Addr::zeroed();
        let mut len = size_of::<sockaddr_storage>() as socklen_t;
        if call((&raw mut addr.storage).cast(), &raw mut len) < 0 {
            return None;
        }
        addr.len = usize::try_from(len)
            .ok()?
            .min(size_of::<sockaddr_storage>());
        Some(addr)
    }

    /// Returns the local address of a socket.
    pub(crate) fn local(fd: c_int) -> Option<Addr> {
        Addr::get(|addr, len| kernel::getsockname(fd, addr, len))
    }

    /// Returns the address of the peer of a socket.
    pub(crate) fn peer(fd: c_int) -> Option<Addr> {
        Addr::get(|addr, len| kernel::getpeername(fd, addr, len))
    }

    /// Returns the address of the unspecified family, which disconnects a datagram socket.
    pub(crate) fn unspecified() -> Addr {
        Addr::of_bytes(&(libc::AF_UNSPEC as u16).to_ne_bytes())
    }

    /// Returns the address of an abstract name.
    pub(crate) fn of_name(name: &str) -> Addr {
        let mut bytes = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
        bytes.push(0);
        bytes.extend(name.bytes());
        bytes.truncate(size_of::<sockaddr_un>());
        Addr::of_bytes(&bytes)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` is at most the size of the structure, which consists of integers.
        unsafe { std::slice::from_raw_parts((&raw const self.storage).cast::<u8>(), self.len) }
    }

    /// Returns the pointer and the length for a system call.
    pub(crate) fn raw(&self) -> (*const sockaddr, socklen_t) {
        ((&raw const self.storage).cast(), self.len as socklen_t)
    }

    /// Returns the abstract name, if this is the address of a Unix socket with one.
    pub(crate) fn name(&self) -> Option<&str> {
        if c_int::from(self.storage.ss_family) != libc::AF_UNIX {
            return None;
        }
        let name = self.bytes().get(PATH..)?.strip_prefix(&[0])?;
        std::str::from_utf8(name).ok()
    }

    /// Returns the address of `AF_ENET`.
    pub(crate) fn enet(&self) -> Option<Enet> {
        Enet::parse(self.bytes())
    }

    /// Returns the family.
    pub(crate) fn family(&self) -> c_int {
        c_int::from(self.storage.ss_family)
    }

    /// Returns the IP address and port.
    pub(crate) fn inet(&self) -> Option<SocketAddr> {
        match self.family() {
            libc::AF_INET if self.len >= size_of::<sockaddr_in>() => {
                // SAFETY: the family and the length show that this is such a structure.
                let addr = unsafe { *(&raw const self.storage).cast::<sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
                Some(SocketAddr::new(ip.into(), u16::from_be(addr.sin_port)))
            }
            libc::AF_INET6 if self.len >= size_of::<sockaddr_in6>() => {
                // SAFETY: as above.
                let addr = unsafe { *(&raw const self.storage).cast::<sockaddr_in6>() };
                let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
                let port = u16::from_be(addr.sin6_port);
                Some(SocketAddrV6::new(ip, port, 0, addr.sin6_scope_id).into())
            }
            _ => None,
        }
    }

    /// Returns an IP address for a socket of this family: an IPv4 address is mapped to IPv6 if the
    /// family is IPv6.
    pub(crate) fn of_inet(addr: SocketAddr, family: c_int) -> Addr {
        let mut bytes = (family as u16).to_ne_bytes().to_vec();
        bytes.extend(addr.port().to_be_bytes());
        match (family, addr.ip()) {
            (libc::AF_INET, IpAddr::V4(ip)) => {
                bytes.extend(ip.octets());
                bytes.resize(size_of::<sockaddr_in>(), 0);
            }
            (_, ip) => {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                bytes.extend([0; 4]);
                bytes.extend(ip.octets());
                bytes.resize(size_of::<sockaddr_in6>(), 0);
            }
        }
        Addr::of_bytes(&bytes)
    }

    /// Writes the address to the program's memory, as the kernel does: truncated to the room, with
    /// the full length.
    ///
    /// # Errors
    /// EINVAL: the room is negative.
    pub(crate) fn write(&self, to: *mut sockaddr, room: *mut socklen_t) -> Result<(), Errno> {
        write(self.bytes(), to, room)
    }
}

/// Writes an address of `AF_ENET`; see [`Addr::write`].
pub(crate) fn write_enet(addr: Enet, to: *mut sockaddr, room: *mut socklen_t) -> Result<(), Errno> {
    write(&addr.to_bytes(), to, room)
}

fn write(bytes: &[u8], to: *mut sockaddr, room: *mut socklen_t) -> Result<(), Errno> {
    if to.is_null() || room.is_null() {
        return Ok(());
    }
    // SAFETY: the program passes a length, and memory of that length.
    unsafe {
        let count = usize::try_from((*room).cast_signed()).map_err(|_| libc::EINVAL)?;
        let count = count.min(bytes.len());
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast::<u8>(), count);
        *room = bytes.len() as socklen_t;
    }
    Ok(())
}

/// Writes the value of a socket option to the program's memory, truncated to the room.
///
/// # Errors
/// EFAULT: there is no memory; EINVAL: the room is negative.
pub(crate) fn write_option(
    value: &[u8],
    to: *mut libc::c_void,
    room: *mut socklen_t,
) -> Result<(), Errno> {
    if to.is_null() || room.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: as for `write`.
    unsafe {
        let count = usize::try_from((*room).cast_signed()).map_err(|_| libc::EINVAL)?;
        let count = count.min(value.len());
        std::ptr::copy_nonoverlapping(value.as_ptr(), to.cast::<u8>(), count);
        *room = count as socklen_t;
    }
    Ok(())
}

/// Returns the value of a numeric socket option; `None` if the descriptor is not a socket.
pub(crate) fn option(fd: c_int, name: c_int) -> Option<c_int> {
    option_of(fd, libc::SOL_SOCKET, name)
}

/// Returns true for an IPv6 socket that does not accept IPv4.
pub(crate) fn is_ipv6_only(fd: c_int) -> bool {
    option_of(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1)
}

fn option_of(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    let to = (&raw mut value).cast();
    (kernel::getsockopt(fd, level, name, to, &raw mut len) == 0).then_some(value)
}

/// Returns the state of a TCP socket: the first byte of the kernel's `TCP_INFO`.
pub(crate) fn tcp_state(fd: c_int) -> Option<u8> {
    let mut state = 0_u8;
    let mut len = 1;
    let to = (&raw mut state).cast();
    (kernel::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut len) == 0)
        .then_some(state)
}

/// Minimum limit of the time that calls wait; zero would mean no limit.
pub(crate) const MIN_LIMIT: timeval = timeval {
    tv_sec: 0,
    tv_usec: 1,
};

/// Returns the limit of the time for which `send` and `connect` wait.
pub(crate) fn send_limit(fd: c_int) -> Option<timeval> {
    let mut limit = MIN_LIMIT;
    let mut len = size_of::<timeval>() as socklen_t;
    let to = (&raw mut limit).cast();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_SNDTIMEO);
    (kernel::getsockopt(fd, level, name, to, &raw mut len) == 0).then_some(limit)
}

/// Sets the limit of the time for which `send` and `connect` wait.
pub(crate) fn set_send_limit(fd: c_int, limit: timeval) {
    let (value, len) = ((&raw const limit).cast(), size_of::<timeval>() as socklen_t);
    // Fails only if the descriptor is not a socket.
    kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, value, len);
}

/// Returns the inode of a descriptor.
pub(crate) fn inode(fd: c_int) -> Option<u64> {
    // SAFETY: the structure consists of integers, and the call writes such a structure.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some(stat.st_ino)
}

/// Returns the user that created the other end of a connection of Unix sockets.
pub(crate) fn peer_user(fd: c_int) -> Option<u32> {
    // SAFETY: the structure consists of integers.
    let mut value: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::ucred>() as socklen_t;
    let to = (&raw mut value).cast();
    let name = libc::SO_PEERCRED;
    (kernel::getsockopt(fd, libc::SOL_SOCKET, name, to, &raw mut len) == 0).then_some(value.uid)
}

/// Enables SO_PASSCRED: the kernel attaches the sender's credentials to each datagram.
pub(crate) fn ask_for_senders(fd: c_int) -> Result<(), Errno> {
    let on: c_int = 1;
    let (value, len) = ((&raw const on).cast(), size_of::<c_int>() as socklen_t);
    match kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, value, len) {
        0 => Ok(()),
        _ => Err(kernel::errno()),
    }
}

/// Refuses descriptors on a Unix socket and on the sockets that it accepts: no socket of `AF_ENET`
/// needs any, and closing one can block for as long as its sender wants. Has no effect before Linux
/// 6.16.
pub(crate) fn refuse_descriptors(fd: c_int) {
    let off: c_int = 0;
    let (value, len) = ((&raw const off).cast(), size_of::<c_int>() as socklen_t);
    kernel::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, value, len);
}

/// Closes descriptors that another user has passed through `socket`, or a connection through which
/// that user may have passed some. Uses another thread, because closing can block, unless the
/// kernel refuses descriptors on `socket`.
pub(crate) fn close_foreign(socket: c_int, fds: Vec<c_int>) {
    let close = || {
        for fd in fds {
            kernel::close(fd);
        }
    };
    match option(socket, SO_PASSRIGHTS) {
        Some(0) => close(),
        // If the thread cannot be started, they stay open.
        _ => drop(std::thread::Builder::new().spawn(close)),
    }
}

/// Returns a message of one part, without an address.
pub(crate) fn message(part: &mut iovec) -> msghdr {
    // SAFETY: the structure consists of integers and pointers that may be null.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

/// Returns true for an address of `AF_ENET`.
pub(crate) fn is_enet(addr: *const sockaddr, len: socklen_t) -> bool {
    usize::try_from(len).is_ok_and(|len| len >= ENET_LEN)
        && Addr::read(addr, len).is_ok_and(|addr| addr.family() == c_int::from(AF_ENET))
}
