//! Closes descriptors that another user may have passed.
//!
//! Closing the last descriptor of a file can block for as long as its owner wants: a TCP socket
//! waits for its linger time, a file of FUSE for its file system, and a Unix socket closes the
//! descriptors that wait unread in its queue. A thread that serves other users must therefore close
//! nothing that one of them has passed, nor read from a Unix socket without room for descriptors,
//! because the kernel then closes them in the reader.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

/// Option of Unix sockets (Linux 6.16): whether the peer may pass descriptors.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Idle time after which a thread ends.
const IDLE: Duration = Duration::from_secs(1);

/// Refuses descriptors on a Unix socket, and on those that a listener will accept: the peer's
/// `sendmsg` fails with EPERM. Returns false if the kernel cannot (before Linux 6.16).
pub fn refuse_descriptors(socket: impl AsFd) -> bool {
    let off: libc::c_int = 0;
    // SAFETY: the kernel reads the integer, whose length is passed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size_of_val(&off) as libc::socklen_t,
        )
    };
    result == 0
}

/// Returns true for a file of shared memory (`memfd_create`), whose close does not block.
pub fn is_memory(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok()
}

/// Closes descriptors in threads, one for each user, so that a close that blocks delays only other
/// closes for that user. A clone uses the same threads. A thread ends when it is idle.
#[derive(Clone, Debug, Default)]
pub struct Closer(Arc<Mutex<HashMap<u32, Sender<OwnedFd>>>>);

impl Closer {
    /// Closes a descriptor that this user passed. Does not block.
    pub fn close(&self, user: u32, fd: OwnedFd) {
        if is_memory(&fd) {
            return;
        }
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match threads.get(&user) {
            Some(sender) => sender.clone(),
            None => {
                let (sender, fds) = channel();
                let closer = self.clone();
                let thread = std::thread::Builder::new().name("close".into());
                if thread.spawn(move || closer.run(user, &fds)).is_err() {
                    leak(fd);
                    return;
                }
                threads.insert(user, sender.clone());
                sender
            }
        };
        if let Err(unsent) = sender.send(fd) {
            leak(unsent.0);
        }
    }

    /// Closes a Unix socket, into which this user may have sent descriptors. Does not block.
    pub fn close_socket(&self, user: u32, socket: OwnedFd) {
        // Nothing arrives from now on.
        let _ = shutdown(&socket, Shutdown::Read);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        // A descriptor comes with at least one byte.
        match recv(&socket, &mut [0_u8; 1][..], flags) {
            Ok((1.., _)) => self.close(user, socket),
            _ => drop(socket),
        }
    }

    /// Closes what arrives, until nothing has arrived for [`IDLE`].
    fn run(&self, user: u32, fds: &Receiver<OwnedFd>) {
        loop {
            match fds.recv_timeout(IDLE) {
                Ok(fd) => drop(fd),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                    // Descriptors are sent under the lock.
                    match fds.try_recv() {
                        Ok(fd) => {
                            drop(threads);
                            drop(fd);
                        }
                        Err(_) => {
                            threads.remove(&user);
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// Leaves a descriptor open for the rest of the process, because closing it here could block.
fn leak(fd: OwnedFd) {
    let _ = fd.into_raw_fd();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, IoSlice, Read, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};

    /// Returns a socket whose close blocks until the second one, its peer, is closed.
    fn blocking() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 65536]).is_ok() {}
        socket.set_nonblocking(false).unwrap();
        let linger = Some(Duration::from_secs(3600));
        sockopt::set_socket_linger(&socket, linger).unwrap();
        (socket.into(), peer)
    }

    fn pass(to: &UnixStream, fd: &OwnedFd) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(to, &[IoSlice::new(b"x")], &mut control, SendFlags::empty())
    }

    /// Waits until the other end of a socket is closed: with bytes unread, that is a reset.
    fn assert_closed(mut end: UnixStream) {
        end.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let result = end.read(&mut [0]).map_err(|error| error.kind());
        assert!(
            matches!(result, Ok(0) | Err(ErrorKind::ConnectionReset)),
            "{result:?}"
        );
    }

    #[test]
    fn a_close_that_blocks_delays_no_other_user() {
        let closer = Closer::default();
        let (passed, peer) = blocking();
        closer.close(1, passed);
        let (other, end) = UnixStream::pair().unwrap();
        closer.close(2, other.into());
        assert_closed(end);
        let (behind, end) = UnixStream::pair().unwrap();
        closer.close(1, behind.into());
        drop(peer);
        assert_closed(end);
    }

    #[test]
    fn a_socket_with_unread_descriptors_is_closed_elsewhere() {
        let closer = Closer::default();
        let (socket, program) = UnixStream::pair().unwrap();
        let (passed, peer) = blocking();
        pass(&program, &passed).unwrap();
        drop(passed);
        closer.close_socket(1, socket.into());
        assert_eq!(closer.0.lock().unwrap().len(), 1);
        drop(peer);
        assert_closed(program);
    }

    #[test]
    fn an_empty_socket_is_closed_at_once() {
        let closer = Closer::default();
        let (socket, program) = UnixStream::pair().unwrap();
        closer.close_socket(1, socket.into());
        assert!(closer.0.lock().unwrap().is_empty());
        assert_closed(program);
    }

    #[test]
    fn a_thread_ends_when_idle_and_starts_again() {
        let closer = Closer::default();
        for _ in 0..2 {
            let (one, end) = UnixStream::pair().unwrap();
            closer.close(1, one.into());
            assert_closed(end);
            while !closer.0.lock().unwrap().is_empty() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    #[test]
    fn descriptors_are_refused_where_the_kernel_can() {
        let (socket, program) = UnixStream::pair().unwrap();
        let (one, _end) = UnixStream::pair().unwrap();
        let one = OwnedFd::from(one);
        assert!(pass(&program, &one).is_ok());
        let refuses = refuse_descriptors(&socket);
        assert_eq!(pass(&program, &one).is_err(), refuses);
    }

    #[test]
    fn only_memory_is_memory() {
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        assert!(is_memory(rustix::fs::memfd_create("x", flags).unwrap()));
        assert!(!is_memory(UnixStream::pair().unwrap().0));
        assert!(!is_memory(std::fs::File::open("/dev/null").unwrap()));
    }
}
