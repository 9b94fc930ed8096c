//! Finds listeners of TCP by the kernel's socket diagnostics (`sock_diag(7)`). Unlike
//! `/proc/net/tcp`, this does not visit all connections of the machine.

use std::collections::HashSet;
use std::io;

use nix::errno::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket};

/// Type of requests and answers.
const BY_FAMILY: u16 = 20;
/// Flags of a request for all sockets: REQUEST, ROOT, MATCH.
const DUMP: u16 = 0x301;
/// Type of an error message.
const ERROR: u16 = 2;
/// Type of the message that ends an answer.
const DONE: u16 = 3;
/// Length of the header of a message.
const HEADER: usize = 16;
/// Length of a request, with the header.
const REQUEST: usize = HEADER + 56;
/// Bit of the listening state.
const LISTEN: u32 = 1 << 10;
const IPPROTO_TCP: u8 = 6;
/// Offset of the inode in an answer, after the header.
const INODE: usize = 68;

/// Returns the inodes of the sockets that listen on a port.
///
/// # Errors
/// Errors of the system, including that the kernel does not support socket diagnostics.
pub(super) fn listeners(port: u16) -> io::Result<HashSet<u64>> {
    let socket = socket(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut inodes = HashSet::new();
    let mut buffer = vec![0; 16384];
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        let family = u8::try_from(family.as_raw()).unwrap_or(0);
        send(&socket, &request(family, port), SendFlags::empty())?;
        loop {
            let (count, _) = recv(&socket, &mut *buffer, RecvFlags::empty())?;
            if !take(buffer.get(..count).unwrap_or_default(), &mut inodes)? {
                break;
            }
        }
    }
    Ok(inodes)
}

/// Returns a request for the listeners of a port.
fn request(family: u8, port: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(REQUEST);
    bytes.extend((REQUEST as u32).to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(DUMP.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, IPPROTO_TCP, 0, 0]);
    bytes.extend(LISTEN.to_ne_bytes());
    bytes.extend(port.to_be_bytes());
    bytes.resize(REQUEST, 0);
    bytes
}

/// Adds the inodes of the messages. Returns false at the end of the answer.
fn take(mut bytes: &[u8], inodes: &mut HashSet<u64>) -> io::Result<bool> {
    while let Some((message, rest)) = split(bytes) {
        match message.get(4..6) {
            Some(kind) if kind == DONE.to_ne_bytes() => return Ok(false),
            Some(kind) if kind == ERROR.to_ne_bytes() => return Err(Errno::EOPNOTSUPP.into()),
            _ => {}
        }
        let inode = message.get(HEADER + INODE..HEADER + INODE + 4);
        if let Some(inode) = inode.and_then(|inode| inode.try_into().ok()) {
            inodes.insert(u32::from_ne_bytes(inode).into());
        }
        bytes = rest;
    }
    Ok(true)
}

/// Splits the first message off.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = bytes.get(..4)?.try_into().ok().map(u32::from_ne_bytes)?;
    let length = usize::try_from(length).ok()?;
    if !(HEADER..=bytes.len()).contains(&length) {
        return None;
    }
    let next = length.next_multiple_of(4).min(bytes.len());
    Some((bytes.get(..length)?, bytes.get(next..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    #[test]
    fn a_listener_is_found_by_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let inode = rustix::fs::fstat(listener.as_fd()).unwrap().st_ino;
        match listeners(port) {
            Ok(found) => assert_eq!(found, HashSet::from([inode])),
            Err(error) => println!("SKIPPED: no diagnostics: {error}"),
        }
    }

    #[test]
    fn wrong_messages_are_no_panic() {
        let mut inodes = HashSet::new();
        for bytes in [
            &[][..],
            &[1],
            &[0; 15],
            &[255; 32],
            &[0; 64],
            &[16, 0, 0, 0],
        ] {
            assert!(take(bytes, &mut inodes).is_ok_and(|more| more), "{bytes:?}");
        }
        let mut error = [0; 20];
        (error[0], error[4]) = (20, 2);
        assert!(take(&error, &mut inodes).is_err());
        assert!(inodes.is_empty());
    }
}
