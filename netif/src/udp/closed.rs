//! Reports of closed ports, by ICMP.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;

use socket2::{MsgHdrMut, SockAddr};

use super::UdpSocket;

/// Maximum number of reports taken in one call, so that they do not delay packets.
const MAX_REPORTS: usize = 32;
/// Room for the report (`sock_extended_err` and an address) and other control messages.
const CONTROL: usize = 256;
/// Length of the header of a control message (`struct cmsghdr`), to which messages are aligned.
const HEADER: usize = 16;

/// Origin, type and code of "port unreachable" in ICMP (RFC 792) and ICMPv6 (RFC 4443).
const PORT_UNREACHABLE: [[u8; 3]; 2] = [
    [libc::SO_EE_ORIGIN_ICMP, 3, 3],
    [libc::SO_EE_ORIGIN_ICMP6, 1, 4],
];

impl UdpSocket {
    /// Takes up to 32 pending ICMP errors, and calls `report` with the destination of each datagram
    /// that was answered by 'port unreachable'. While errors are pending, the socket polls as
    /// having an error, and one receive call returns one of them.
    pub fn closed_ports(&self, mut report: impl FnMut(SocketAddr)) {
        for _ in 0..MAX_REPORTS {
            let mut to = SockAddr::from(self.local);
            let mut control = [MaybeUninit::new(0); CONTROL];
            let mut message = MsgHdrMut::new()
                .with_addr(&mut to)
                .with_control(&mut control);
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            match self.socket.recvmsg(&mut message, flags) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            }
            let len = message.control_len();
            // SAFETY: `new` has initialized each byte, and the kernel writes initialized ones.
            let control = control.map(|byte| unsafe { byte.assume_init() });
            let errors = control.get(..len).unwrap_or_default();
            if let Some(to) = to.as_socket().filter(|_| is_port_unreachable(errors)) {
                report(to);
            }
        }
    }
}

/// Returns whether control messages contain a report that a port is closed.
fn is_port_unreachable(mut control: &[u8]) -> bool {
    let number = |bytes: &[u8]| bytes.try_into().ok().map(i32::from_ne_bytes);
    while let Some((header, rest)) = control.split_at_checked(HEADER) {
        let (len, kind) = header.split_at(8);
        let Some(len) = len.try_into().ok().map(usize::from_ne_bytes) else {
            return false;
        };
        let (level, kind) = kind.split_at(4);
        let is_error = matches!(
            (number(level), number(kind)),
            (Some(libc::IPPROTO_IP), Some(libc::IP_RECVERR))
                | (Some(libc::IPPROTO_IPV6), Some(libc::IPV6_RECVERR))
        );
        // Error number (4), origin, type, code.
        let origin = rest.get(4..7).filter(|_| is_error && len >= HEADER + 7);
        if origin.is_some_and(|origin| PORT_UNREACHABLE.iter().any(|known| known == origin)) {
            return true;
        }
        let next = len.saturating_sub(HEADER).next_multiple_of(8);
        match rest.get(next..) {
            Some(more) if len >= HEADER => control = more,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a control message with an error of this origin, type and code.
    fn message((level, kind): (i32, i32), [origin, icmp, code]: [u8; 3]) -> Vec<u8> {
        let mut bytes = (HEADER + 32).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(libc::ECONNREFUSED.to_ne_bytes());
        bytes.extend([origin, icmp, code, 0]);
        bytes.resize(HEADER + 32, 0);
        bytes
    }

    const IPV4: (i32, i32) = (libc::IPPROTO_IP, libc::IP_RECVERR);
    const IPV6: (i32, i32) = (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);

    #[test]
    fn only_closed_ports_are_reports() {
        assert!(is_port_unreachable(&message(IPV4, [2, 3, 3])));
        assert!(is_port_unreachable(&message(IPV6, [3, 1, 4])));
        // An unreachable host, a path too narrow, an error of this node, another option.
        for other in [[2, 3, 1], [2, 3, 4], [1, 3, 3], [3, 3, 3], [3, 1, 0]] {
            assert!(!is_port_unreachable(&message(IPV4, other)), "{other:?}");
        }
        assert!(!is_port_unreachable(&message((0, libc::IP_TTL), [2, 3, 3])));
        let both = [message((0, libc::IP_TTL), [0; 3]), message(IPV4, [2, 3, 3])].concat();
        assert!(is_port_unreachable(&both));
    }

    #[test]
    fn damaged_messages_are_no_reports() {
        let whole = message(IPV4, [2, 3, 3]);
        for end in 0..HEADER + 7 {
            assert!(!is_port_unreachable(&whole[..end]), "{end}");
        }
        for len in [0, 1, 15, 16, 22, usize::MAX - 7, usize::MAX] {
            let mut message = whole.clone();
            message[..8].copy_from_slice(&len.to_ne_bytes());
            let claims_enough = len >= HEADER + 7;
            assert_eq!(is_port_unreachable(&message), claims_enough, "{len}");
        }
    }
}
