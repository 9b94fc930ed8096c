//! System calls. They bypass the C library, whose functions this library replaces.

use libc::{
    c_int, c_long, c_short, c_uint, c_void, iovec, mmsghdr, msghdr, pollfd, sockaddr, socklen_t,
    timespec,
};

/// Number of an error, as in `errno`.
pub(crate) type Errno = c_int;

/// Returns the number of the last error.
pub(crate) fn errno() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// Sets `errno`.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the C library returns the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Sets `errno` and returns -1.
pub(crate) fn fail(errno: Errno) -> c_int {
    set_errno(errno);
    -1
}

/// Makes a system call, which sets `errno`.
macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the kernel checks every argument, and the memory that they refer to is the
        // program's, as it would be without this library.
        unsafe { libc::syscall(libc::$number $(, $argument)*) }
    };
}

fn int(result: c_long) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    int(call!(SYS_socket, domain, kind, protocol))
}

pub(crate) fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    int(call!(SYS_bind, fd, addr, len))
}

pub(crate) fn listen(fd: c_int, backlog: c_int) -> c_int {
    int(call!(SYS_listen, fd, backlog))
}

pub(crate) fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    int(call!(SYS_connect, fd, addr, len))
}

pub(crate) fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    int(call!(SYS_accept4, fd, addr, len, flags))
}

pub(crate) fn shutdown(fd: c_int, how: c_int) -> c_int {
    int(call!(SYS_shutdown, fd, how))
}

pub(crate) fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    int(call!(SYS_getsockname, fd, addr, len))
}

pub(crate) fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    int(call!(SYS_getpeername, fd, addr, len))
}

pub(crate) fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    int(call!(SYS_getsockopt, fd, level, name, value, len))
}

pub(crate) fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    int(call!(SYS_setsockopt, fd, level, name, value, len))
}

pub(crate) fn close(fd: c_int) -> c_int {
    int(call!(SYS_close, fd))
}

pub(crate) fn read(fd: c_int, buffer: *mut c_void, len: usize) -> isize {
    call!(SYS_read, fd, buffer, len) as isize
}

pub(crate) fn readv(fd: c_int, parts: *const iovec, count: c_int) -> isize {
    call!(SYS_readv, fd, parts, count) as isize
}

pub(crate) fn sendto(
    fd: c_int,
    (buffer, len): (*const c_void, usize),
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> isize {
    call!(SYS_sendto, fd, buffer, len, flags, addr, addr_len) as isize
}

pub(crate) fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    call!(SYS_sendmsg, fd, message, flags) as isize
}

pub(crate) fn recvfrom(
    fd: c_int,
    (buffer, len): (*mut c_void, usize),
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> isize {
    call!(SYS_recvfrom, fd, buffer, len, flags, addr, addr_len) as isize
}

/// Waits until the descriptor has one of these events or an error, for at most `limit` if it is not
/// `None`. Returns false at the limit.
///
/// # Errors
/// EINTR: interrupted by a signal.
pub(crate) fn wait_for(
    fd: c_int,
    events: c_short,
    limit: Option<&timespec>,
) -> Result<bool, Errno> {
    let mut ready = pollfd {
        fd,
        events,
        revents: 0,
    };
    poll(std::slice::from_mut(&mut ready), limit).map(|count| count > 0)
}

/// Waits for several descriptors, like [`wait_for`]. Returns the number of ready descriptors.
pub(crate) fn poll(ready: &mut [pollfd], limit: Option<&timespec>) -> Result<c_long, Errno> {
    let limit = limit.map_or(std::ptr::null(), std::ptr::from_ref);
    let mask = std::ptr::null::<c_void>();
    match call!(SYS_ppoll, ready.as_mut_ptr(), ready.len(), limit, mask, 0) {
        -1 => Err(errno()),
        count => Ok(count),
    }
}

/// Returns true if both directions of a stream have been shut down.
pub(crate) fn is_hung_up(fd: c_int) -> bool {
    let now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    wait_for(fd, 0, Some(&now)) == Ok(true)
}

pub(crate) fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    call!(SYS_recvmsg, fd, message, flags) as isize
}

pub(crate) fn sendmmsg(fd: c_int, messages: *mut mmsghdr, number: c_uint, flags: c_int) -> c_int {
    int(call!(SYS_sendmmsg, fd, messages, number, flags))
}

pub(crate) fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    number: c_uint,
    flags: c_int,
    limit: *mut timespec,
) -> c_int {
    int(call!(SYS_recvmmsg, fd, messages, number, flags, limit))
}
