//! Opens UDP sockets.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use quinn_udp::UdpSocketState;
use socket2::{Domain, Protocol, Socket, Type};

use super::{UdpSocket, holder};
use crate::socket::{WINDOW_BYTES, set, set_buffers};

/// Codepoint ECT(0) in the traffic class of IP (RFC 3168).
const ECT_0: libc::c_int = 2;

/// Options of a [`UdpSocket`].
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Receive buffer to request, in bytes. Default [`WINDOW_BYTES`]; limited by
    /// `net.core.rmem_max` without `CAP_NET_ADMIN`.
    pub receive_buffer: usize,
    /// Send buffer to request, in bytes; limited by `net.core.wmem_max` in the same way.
    pub send_buffer: usize,
}

impl Default for UdpOptions {
    fn default() -> Self {
        UdpOptions {
            receive_buffer: WINDOW_BYTES,
            send_buffer: WINDOW_BYTES,
        }
    }
}

/// Reason why a UDP socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpOpenError {
    /// Another socket has the port.
    #[error(
        "UDP port {} of {} is in use by {holder}: stop that program, or choose another port",
        .local.port(), .local.ip()
    )]
    InUse {
        /// The address.
        local: SocketAddr,
        /// Program, process and user that have it, if known.
        holder: String,
    },
    /// No interface has the address.
    #[error("this node has no address {ip}: check `ip address`", ip = .local.ip())]
    NoAddress {
        /// The address.
        local: SocketAddr,
    },
    /// Any other error of the system.
    #[error("cannot open a UDP socket at {local}: {step}: {source}")]
    System {
        /// The address.
        local: SocketAddr,
        /// The step that failed.
        step: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

impl UdpSocket {
    /// Binds a socket to a local address; port 0 means any free one.
    ///
    /// # Errors
    /// See [`UdpOpenError`].
    pub fn bind(local: SocketAddr, options: &UdpOptions) -> Result<UdpSocket, UdpOpenError> {
        let failed = |step: &'static str| {
            move |source: io::Error| UdpOpenError::System {
                local,
                step,
                source,
            }
        };
        let domain = Domain::for_address(local);
        let socket =
            Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(failed("socket"))?;
        if local.is_ipv6() {
            socket.set_only_v6(true).map_err(failed("IPv6 only"))?;
        }
        set_buffers(&socket, options.receive_buffer, options.send_buffer)
            .map_err(failed("buffers"))?;
        let (level, option) = if local.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_TOS)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        };
        set(&socket, level, option, &ECT_0).map_err(failed("ECN"))?;
        let option = if local.is_ipv4() {
            libc::IP_RECVERR
        } else {
            libc::IPV6_RECVERR
        };
        set(&socket, level, option, &1).map_err(failed("ICMP errors"))?;
        socket
            .bind(&local.into())
            .map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => UdpOpenError::InUse {
                    local,
                    holder: holder::of(local),
                },
                io::ErrorKind::AddrNotAvailable => UdpOpenError::NoAddress { local },
                _ => failed("bind")(source),
            })?;
        let bound = socket.local_addr().map_err(failed("local address"))?;
        // Non-blocking mode, UDP_GRO, don't-fragment, and the traffic class of received datagrams.
        let state = UdpSocketState::new((&socket).into()).map_err(failed("options"))?;
        Ok(UdpSocket {
            state,
            socket,
            local: bound.as_socket().unwrap_or(local),
            segments: AtomicBool::new(true),
        })
    }
}
