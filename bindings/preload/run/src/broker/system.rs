//! Queries the kernel about sockets, programs and interfaces.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;

use super::diag;
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use rustix::net::netdevice::{index_to_name_inlined, name_to_index};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::geteuid;

/// Returns the names of all Unix sockets in the abstract namespace. Other users may choose any
/// bytes, including invalid UTF-8.
pub(super) fn names() -> io::Result<HashSet<String>> {
    let bytes = fs::read("/proc/net/unix")?;
    let text = String::from_utf8_lossy(&bytes);
    let name = |line: &str| Some(line.rsplit_once(" @")?.1.to_owned());
    Ok(text.lines().filter_map(name).collect())
}

/// Returns the inodes of the sockets of TCP that listen on a port.
///
/// # Errors
/// Errors of the system, for example if no descriptor is free.
pub(super) fn tcp_listeners(port: u16) -> io::Result<HashSet<u64>> {
    if let Ok(inodes) = diag::listeners(port) {
        return Ok(inodes);
    }
    let mut inodes = HashSet::new();
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match fs::read_to_string(file) {
            Ok(text) => inodes.extend(listening(&text, port)),
            // A system without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(inodes)
}

fn listening(text: &str, port: u16) -> Vec<u64> {
    let inode = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next()?, words.nth(1)?);
        let inode = words.nth(5)?.parse().ok()?;
        let found = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (state == "0A" && found == port).then_some(inode)
    };
    text.lines().filter_map(inode).collect()
}

/// Returns true if any other process was started with this variable in its environment.
pub(super) fn any_program_with(variable: &str) -> bool {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut processes = processes.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.bytes().all(|byte| byte.is_ascii_digit()) && name != own.as_str()
    });
    processes.any(|entry| {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|one| one == variable.as_bytes())
    })
}

/// Returns the name of a process; empty if it has ended.
pub(super) fn name_of(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Returns the user of the other end; `u32::MAX`, which no user has, if it is unknown.
pub(super) fn user_of(socket: &UnixStream) -> u32 {
    // Not by rustix: its type excludes process 0, which stands for a process of another namespace.
    getsockopt(socket, sockopt::PeerCredentials).map_or(u32::MAX, |other| other.uid())
}

/// Returns true for the broker's user and root.
pub(super) fn is_own_or_root(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// Returns true for the broker's user and root, and for all users if the broker's user is root,
/// because root's programs may have changed their user.
pub(super) fn is_user_of_programs(uid: u32) -> bool {
    is_user_of(geteuid().as_raw(), uid)
}

fn is_user_of(broker: u32, uid: u32) -> bool {
    broker == 0 || uid == broker || uid == 0
}

/// Returns the name of an interface.
pub(super) fn interface_name(index: u32) -> io::Result<String> {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    Ok(index_to_name_inlined(any, index)?.as_str().to_owned())
}

/// Returns the index of an interface; 0 if there is none.
pub(super) fn interface_index(name: &str) -> u32 {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    any.and_then(|any| name_to_index(any, name)).unwrap_or(0)
}

/// Returns the errno with which a program's call on a socket fails after this error.
pub(super) fn errno(error: &io::Error) -> i32 {
    if let Some(errno) = error.raw_os_error() {
        return errno;
    }
    let errno = match error.kind() {
        io::ErrorKind::ConnectionRefused => Errno::ECONNREFUSED,
        io::ErrorKind::ConnectionReset => Errno::ECONNRESET,
        io::ErrorKind::ConnectionAborted => Errno::ECONNABORTED,
        io::ErrorKind::TimedOut => Errno::ETIMEDOUT,
        io::ErrorKind::HostUnreachable => Errno::EHOSTUNREACH,
        io::ErrorKind::NetworkUnreachable => Errno::ENETUNREACH,
        io::ErrorKind::AddrInUse => Errno::EADDRINUSE,
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::NotFound => Errno::EADDRNOTAVAIL,
        io::ErrorKind::PermissionDenied => Errno::EACCES,
        io::ErrorKind::InvalidInput => Errno::EINVAL,
        io::ErrorKind::QuotaExceeded => Errno::ENOBUFS,
        io::ErrorKind::BrokenPipe => Errno::EPIPE,
        _ => Errno::ENETDOWN,
    };
    errno as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_those_of_the_port_in_state_0a() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
                    uid  timeout inode\n\
             0: 0100007F:18EB 00000000:0000 0A 0:0 00:0 0 1000 0 4711 1 0 100 0 0 10 0\n\
             1: 0100007F:18EB 0100007F:9999 01 0:0 00:0 0 1000 0 4712 1 0 100 0 0 10 0\n\
             2: 0100007F:0016 00000000:0000 0A 0:0 00:0 0 0 0 4713 1 0 100 0 0 10 0\nrubbish\n";
        assert_eq!(listening(text, 6379), [4711]);
    }

    #[test]
    fn other_users_are_none_of_the_programs() {
        assert!(is_user_of(1000, 1000) && is_user_of(1000, 0) && is_user_of(0, 1000));
        assert!(!is_user_of(1000, 1001) && !is_user_of(1000, 65534));
    }

    #[test]
    fn errors_have_the_numbers_of_sockets() {
        for (kind, number) in [
            (io::ErrorKind::ConnectionRefused, 111),
            (io::ErrorKind::TimedOut, 110),
            (io::ErrorKind::AddrInUse, 98),
            (io::ErrorKind::Other, 100),
        ] {
            assert_eq!(errno(&kind.into()), number);
        }
        assert_eq!(errno(&io::Error::from_raw_os_error(13)), 13);
    }
}
