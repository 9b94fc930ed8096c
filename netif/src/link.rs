//! Notices that network interfaces have changed (rtnetlink).
//!
//! The kernel's messages are not parsed: whatever they say, the reader queries the current state
//! ([`PacketSocket::link_state`](crate::PacketSocket::link_state)), so that lost messages do no
//! harm.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::net::{bind, recv, socket_with};

/// Maximum number of messages read in one call, so that a burst of changes does not delay the
/// caller.
const MESSAGES_PER_CALL: usize = 32;

/// Notices changes of the interfaces of one network namespace: that of the thread that opened it.
/// Never blocks.
#[derive(Debug)]
pub struct LinkMonitor {
    socket: OwnedFd,
    /// Not queried yet: the state may have changed before the monitor was opened.
    is_new: bool,
}

impl LinkMonitor {
    /// Opens a monitor. Needs no privilege.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open() -> io::Result<LinkMonitor> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        let group = libc::RTMGRP_LINK as u32;
        bind(&socket, &SocketAddrNetlink::new(0, group))?;
        Ok(LinkMonitor {
            socket,
            is_new: true,
        })
    }

    /// Returns true if interfaces may have changed since the last call, or at the first call; poll
    /// for readability after false.
    pub fn changed(&mut self) -> bool {
        let mut any = std::mem::take(&mut self.is_new);
        for _ in 0..MESSAGES_PER_CALL {
            // The rest of a message is discarded.
            match recv(&self.socket, &mut [0; 4], RecvFlags::DONTWAIT) {
                // `NOBUFS`: the kernel had to drop messages.
                Ok(_) | Err(Errno::NOBUFS) => any = true,
                Err(_) => break,
            }
        }
        any
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
