//! The handshake: connects to the daemon's socket and introduces the program.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::control::codec::{DecodeError, Decoder, encode, receive, send};
use crate::control::{Envelope, InterfaceInfo, Reply, Request, VERSION};
use crate::error::{EspError, MISSING_DESCRIPTORS};

/// Maximum time for a reply of the daemon that does not depend on a peer.
pub(crate) const DAEMON_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of the program's name, in bytes; the rest is cut off.
const MAX_PROGRAM_NAME: usize = 64;

/// Contents of [`Reply::Hello`].
#[derive(Clone, Debug)]
pub(crate) struct Welcome {
    pub(crate) incarnation: u64,
    pub(crate) engine: u8,
    pub(crate) interfaces: Vec<InterfaceInfo>,
    pub(crate) leases: bool,
}

/// Connects to the daemon's socket.
pub(super) fn connect_socket(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Limits `connect` if the daemon does not accept. Sends never wait in the kernel.
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Send,
        Some(DAEMON_TIMEOUT),
    )?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// Returns the name of this program's file, cut to [`MAX_PROGRAM_NAME`].
fn program_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut name = name.into_owned();
    let mut end = name.len().min(MAX_PROGRAM_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}

/// Introduces the program, which `engine` of the last daemon has served, and returns the daemon's
/// welcome with its four descriptors.
pub(super) fn say_hello(
    path: &Path,
    socket: &OwnedFd,
    decoder: &mut Decoder<Reply>,
    engine: Option<u8>,
) -> Result<(Welcome, [OwnedFd; 4]), EspError> {
    let silent = || EspError::silent(path, "no reply to the first message");
    let bad = |source| EspError::bad_control(path, source);
    let hello = Envelope {
        id: 1,
        body: Request::Hello {
            version: VERSION,
            program: program_name(),
            engine,
        },
    };
    let bytes = encode(&hello)
        .map_err(|_| EspError::BadArgument("the program's name cannot be sent".into()))?;
    match send_all(socket, &bytes) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(silent()),
        // A daemon that closed the socket may have sent the reason before.
        Ok(()) | Err(_) => {}
    }
    let deadline = Instant::now() + DAEMON_TIMEOUT;
    let (envelope, descriptors) = receive_reply(path, socket, decoder, deadline)?;
    let malformed = |what| bad(DecodeError::Malformed { id: None, what });
    welcome(envelope.body, descriptors, malformed)
}

/// Waits for the next reply on a connection that no thread reads yet.
pub(super) fn receive_reply(
    path: &Path,
    socket: &OwnedFd,
    decoder: &mut Decoder<Reply>,
    deadline: Instant,
) -> Result<(Envelope<Reply>, Vec<OwnedFd>), EspError> {
    let bad = |source| EspError::bad_control(path, source);
    loop {
        if let Some(reply) = decoder.next().map_err(bad)? {
            return Ok(reply);
        }
        if !wait_for(socket, PollFlags::IN, deadline)
            .map_err(|error| EspError::gone(path, error.to_string()))?
        {
            return Err(EspError::silent(path, "no reply to the first message"));
        }
        match receive(socket, decoder) {
            Ok(0) => {
                decoder.finish().map_err(bad)?;
                let why = "it closed the control socket before its first reply";
                return Err(EspError::gone(path, why));
            }
            Ok(_) => {}
            Err(error) if is_temporary(&error) => {}
            Err(error) => return Err(EspError::gone(path, error.to_string())),
        }
    }
}

/// Checks the daemon's first reply.
fn welcome(
    reply: Reply,
    descriptors: Vec<OwnedFd>,
    malformed: impl Fn(String) -> EspError,
) -> Result<(Welcome, [OwnedFd; 4]), EspError> {
    match reply {
        Reply::Hello { version, .. } if version != VERSION => Err(malformed(format!(
            "it speaks version {version}, this program {VERSION}"
        ))),
        Reply::Hello {
            incarnation,
            engine,
            interfaces,
            leases,
            ..
        } => {
            let welcome = Welcome {
                incarnation,
                engine,
                interfaces,
                leases,
            };
            let four = descriptors
                .try_into()
                .map_err(|_| malformed(format!("its descriptors {MISSING_DESCRIPTORS}")))?;
            Ok((welcome, four))
        }
        Reply::Error(error) => Err(EspError::denied(error.kind, error.message)),
        _ => Err(malformed("the first reply is not a welcome".into())),
    }
}

/// Returns true for an error after which the call may be repeated.
pub(super) fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Sends all bytes within [`DAEMON_TIMEOUT`]; `TimedOut` if the daemon does not read.
pub(super) fn send_all(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    send_with(socket, bytes, &[])
}

/// Sends all bytes as [`send_all`] does, with these descriptors.
pub(super) fn send_with(
    socket: &OwnedFd,
    mut bytes: &[u8],
    mut descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let deadline = Instant::now() + DAEMON_TIMEOUT;
    while !bytes.is_empty() {
        match send(socket, bytes, descriptors) {
            Ok(sent) => {
                bytes = bytes.get(sent..).unwrap_or_default();
                descriptors = &[];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !wait_for(socket, PollFlags::OUT, deadline)? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns true if the socket is ready now.
pub(super) fn is_ready(socket: &OwnedFd, flags: PollFlags) -> io::Result<bool> {
    let now = rustix::event::Timespec::default();
    let mut fds = [PollFd::new(socket, flags)];
    Ok(rustix::event::poll(&mut fds, Some(&now))? > 0)
}

/// Waits until the socket is ready; false at the deadline.
fn wait_for(socket: &OwnedFd, flags: PollFlags, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let timeout = rustix::event::Timespec::try_from(left).ok();
        match rustix::event::poll(&mut [PollFd::new(socket, flags)], timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}
