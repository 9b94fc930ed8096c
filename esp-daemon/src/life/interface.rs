//! Exclusive claim on an interface and packet type.
//!
//! The claim is a Unix socket in the abstract namespace. It belongs to the network namespace, as
//! the interface does, and vanishes with the process. Any local user can take such a name first and
//! so keep a daemon from starting (not from running); the error names the process, so that the
//! administrator can end it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::error::StartError;

/// Connections that may ask for the holder's name before it accepts any.
const BACKLOG: i32 = 64;

/// The exclusive right to serve an interface; released on drop.
#[derive(Debug)]
pub struct InterfaceClaim {
    socket: OwnedFd,
}

impl InterfaceClaim {
    /// Claims the interface for one packet type.
    ///
    /// # Errors
    /// [`StartError::InterfaceTaken`] names the process that has it.
    pub fn take(name: &str, index: u32, ethertype: u16) -> Result<InterfaceClaim, StartError> {
        let failed = |error: Errno| StartError::system("claim the interface")(error.into());
        let claim_name = format!("esp-daemon.{index}.{ethertype:04x}");
        let address = SocketAddrUnix::new_abstract_name(claim_name.as_bytes()).map_err(failed)?;
        // A holder that ends between the two calls frees the name: retry.
        for _ in 0..3 {
            let socket = unix_socket().map_err(failed)?;
            match bind(&socket, &address) {
                Ok(()) => {
                    listen(&socket, BACKLOG).map_err(failed)?;
                    return Ok(InterfaceClaim { socket });
                }
                Err(Errno::ADDRINUSE) => {}
                Err(error) => return Err(failed(error)),
            }
            let holder = match connect(&socket, &address) {
                Ok(()) => holder(socket),
                Err(Errno::CONNREFUSED) => continue,
                Err(_) => "another process".to_owned(),
            };
            return Err(StartError::InterfaceTaken {
                interface: name.to_owned(),
                ethertype,
                holder,
            });
        }
        Err(StartError::InterfaceTaken {
            interface: name.to_owned(),
            ethertype,
            holder: "another process".into(),
        })
    }

    /// Answers connections that ask for the holder's name (by closing them), until dropped.
    pub async fn answer(self) {
        let Ok(listener) = tokio::net::UnixListener::from_std(self.socket.into()) else {
            return;
        };
        loop {
            if listener.accept().await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

pub(super) fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Describes the process at the other end of a connected socket. Must be called inside the runtime.
pub(super) fn holder(socket: OwnedFd) -> String {
    // Not rustix' SO_PEERCRED: its type cannot represent pid 0, an invisible process.
    let known = tokio::runtime::Handle::try_current()
        .ok()
        .and_then(|_| tokio::net::UnixStream::from_std(socket.into()).ok())
        .and_then(|stream| stream.peer_cred().ok());
    match known.map(|peer| (peer.pid(), peer.uid())) {
        Some((Some(pid), uid)) if pid > 0 => format!("process {pid} of user {uid}"),
        Some((_, uid)) => format!("a process of user {uid} in another container"),
        None => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index that neither an interface nor another run of these tests has.
    fn index(test: u32) -> u32 {
        0x4000_0000 | std::process::id() << 4 | test
    }

    #[tokio::test]
    async fn second_claim_names_the_holder() {
        let held = InterfaceClaim::take("x0", index(0), 0x88b5).unwrap();
        let _other_type = InterfaceClaim::take("x0", index(0), 0x88b6).unwrap();
        for _ in 0..2 {
            let error = InterfaceClaim::take("x0", index(0), 0x88b5)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(&format!("process {} ", std::process::id())),
                "{error}"
            );
            assert!(error.starts_with("another esp-daemon ("), "{error}");
        }
        drop(held);
        InterfaceClaim::take("x0", index(0), 0x88b5).unwrap();
    }

    #[tokio::test]
    async fn the_holder_is_named_at_every_request() {
        let claim = InterfaceClaim::take("x1", index(1), 0x88b5).unwrap();
        let answering = tokio::spawn(claim.answer());
        for _ in 0..3 * BACKLOG {
            let error = InterfaceClaim::take("x1", index(1), 0x88b5)
                .unwrap_err()
                .to_string();
            assert!(error.contains("process"), "{error}");
            tokio::task::yield_now().await;
        }
        answering.abort();
    }
}
