//! Turns segmentation offload of an interface on and off, like `ethtool -K IF tso … gso …`.
//!
//! It uses generic netlink, because the older ioctl takes a pointer in a structure and needs unsafe
//! code. A limit of one segment per packet (`ip link set … gso_max_segs 1`) is not a replacement:
//! it makes TCP send in a stop-and-go that no real device causes.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// Kernel features that make up segmentation offload of TCP and UDP. The last one is that of TCP in
/// software; without its own, UDP is cut into datagrams before the interface sends them.
const FEATURES: [&str; 6] = [
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
    "tx-generic-segmentation",
];

/// Message type of errors and acknowledgements.
const NLMSG_ERROR: u16 = 2;
/// Family number, request and attributes of the controller, which resolves family names.
const CONTROLLER: u16 = 0x10;
const CTRL_GETFAMILY: u8 = 3;
const CTRL_FAMILY_ID: u16 = 1;
const CTRL_FAMILY_NAME: u16 = 2;
/// Requests and attributes of the family `ethtool`.
const FEATURES_SET: u8 = 12;
const FEATURES_HEADER: u16 = 1;
const FEATURES_WANTED: u16 = 3;
const HEADER_DEV_NAME: u16 = 2;
const HEADER_FLAGS: u16 = 3;
const OMIT_REPLY: u32 = 2;
const BITSET_BITS: u16 = 3;
const BITS_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;
/// Flag of an attribute that consists of attributes.
const NESTED: u16 = 0x8000;
/// Lengths of the two headers.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

/// Turns segmentation offload of an interface of the calling process's network namespace on or off.
pub fn set_segmentation_offload(interface: &str, on: bool) -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(GENERIC),
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(5)))?;
    let family = ask(
        &socket,
        &message(
            CONTROLLER,
            1,
            CTRL_GETFAMILY,
            &attribute(CTRL_FAMILY_NAME, b"ethtool\0"),
        ),
    )?
    .and_then(|reply| find(reply.get(HEADER + GENERIC_HEADER..)?, CTRL_FAMILY_ID))
    .ok_or_else(|| {
        io::Error::other("the kernel has no ethtool netlink family: version 5.6 or later is needed")
    })?;
    ask(
        &socket,
        &message(family, 2, FEATURES_SET, &features(interface, on)),
    )
    .map(drop)
}

/// Returns the attributes of the request: the interface and the wanted state of each feature.
fn features(interface: &str, on: bool) -> Vec<u8> {
    let name = [interface.as_bytes(), b"\0"].concat();
    let header = [
        attribute(HEADER_DEV_NAME, &name),
        attribute(HEADER_FLAGS, &OMIT_REPLY.to_ne_bytes()),
    ]
    .concat();
    let bits: Vec<u8> = FEATURES
        .iter()
        .flat_map(|feature| {
            let mut bit = attribute(BIT_NAME, &[feature.as_bytes(), b"\0"].concat());
            if on {
                bit.extend(attribute(BIT_VALUE, &[]));
            }
            attribute(BITS_BIT | NESTED, &bit)
        })
        .collect();
    let wanted = attribute(BITSET_BITS | NESTED, &bits);
    [
        attribute(FEATURES_HEADER | NESTED, &header),
        attribute(FEATURES_WANTED | NESTED, &wanted),
    ]
    .concat()
}

/// Encodes an attribute of at most 64 KiB, padded.
fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(4 + data.len()).unwrap_or(u16::MAX);
    let mut bytes = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), data].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Encodes a request that asks for an acknowledgement.
fn message(family: u16, sequence: u32, command: u8, attributes: &[u8]) -> Vec<u8> {
    const REQUEST_ACK: u16 = 1 | 4;
    let len = u32::try_from(HEADER + GENERIC_HEADER + attributes.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::new();
    bytes.extend(len.to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend(REQUEST_ACK.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend([command, 1, 0, 0]);
    bytes.extend(attributes);
    bytes
}

/// Sends a request and reads until its acknowledgement; returns the reply before it, if any.
fn ask(socket: &OwnedFd, request: &[u8]) -> io::Result<Option<Vec<u8>>> {
    sendto(
        socket,
        request,
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )?;
    let mut reply = None;
    // The kernel answers with a reply and an acknowledgement, maybe in one datagram.
    for _ in 0..4 {
        let mut buffer = vec![0u8; 16 << 10];
        let (len, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = buffer.get(..len).unwrap_or_default();
        while let Some((kind, one, next)) = first_message(rest) {
            if kind == NLMSG_ERROR {
                let code = one
                    .get(HEADER..HEADER + 4)
                    .and_then(|b| b.try_into().ok())
                    .map_or(0, i32::from_ne_bytes);
                return if code == 0 {
                    Ok(reply)
                } else {
                    Err(io::Error::from_raw_os_error(-code))
                };
            }
            reply = Some(one.to_vec());
            rest = next;
        }
    }
    Err(io::Error::other(
        "the kernel did not acknowledge a netlink request",
    ))
}

/// Splits off the first message: returns its type, its bytes and the rest.
fn first_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let one = bytes.get(..len).filter(|_| len >= HEADER)?;
    Some((
        kind,
        one,
        bytes.get(len.next_multiple_of(4)..).unwrap_or_default(),
    ))
}

/// Finds the 16-bit attribute of this kind.
fn find(mut attributes: &[u8], wanted: u16) -> Option<u16> {
    loop {
        let len = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        if kind == wanted {
            return Some(u16::from_ne_bytes(attributes.get(4..6)?.try_into().ok()?));
        }
        if len < 4 {
            return None;
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_found() {
        let bytes = [attribute(2, b"abc"), attribute(1, &7u16.to_ne_bytes())].concat();
        assert_eq!(bytes.len(), 16);
        assert_eq!(find(&bytes, 1), Some(7));
        assert_eq!(find(&bytes, 3), None);
        assert_eq!(find(&[0, 0, 9, 9], 1), None, "a length of 0 does not loop");
        assert_eq!(find(&bytes[..3], 1), None);
    }

    #[test]
    fn messages_are_split() {
        let one = message(5, 1, 2, &[]);
        let two = [one.clone(), one.clone()].concat();
        let (kind, first, rest) = first_message(&two).expect("two whole messages");
        assert_eq!((kind, first, rest), (5, &one[..], &one[..]));
        assert!(first_message(&two[..10]).is_none());
        assert!(
            first_message(&[0; 16]).is_none(),
            "a length of 0 is invalid"
        );
    }
}
