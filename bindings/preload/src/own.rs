//! Sockets of `AF_ENET`: recognizes them by their names, and queries the broker about them.

use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use libc::{SOCK_DGRAM, SOCK_STREAM, c_int};
use preload_wire::{Answer, Broker, DeadlineReader, PATIENCE, Request, State, VARIABLE, read_line};

use crate::kernel::{self, Errno};
use crate::memory::{Addr, ask_for_senders, option, peer_user, refuse_descriptors};
use crate::signals;

/// Interval between checks whether the broker has room for a request or has answered.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A socket of `AF_ENET`.
pub(crate) struct Own {
    /// Name by which the broker knows it: that of the socket, or for an accepted stream, that of
    /// the broker's end.
    pub(crate) name: String,
    pub(crate) is_stream: bool,
    /// It is an accepted stream.
    pub(crate) is_accepted: bool,
}

/// Returns the broker that `esprun` started; `None` if there is none.
pub(crate) fn broker() -> Option<&'static Broker> {
    static BROKER: OnceLock<Option<Broker>> = OnceLock::new();
    let parse = || Broker::parse(&std::env::var(VARIABLE).ok()?);
    BROKER.get_or_init(parse).as_ref()
}

/// Sends a request to the broker.
///
/// # Errors
/// The errno that the broker answers with; ENETDOWN if the broker has ended.
pub(crate) fn ask(request: Request) -> Result<Answer, Errno> {
    let broker = broker().ok_or(libc::EAFNOSUPPORT)?;
    result_of(call(broker, request))
}

/// Returns an answer, or the errno that it contains.
///
/// # Errors
/// See [`ask`].
pub(crate) fn result_of(answer: io::Result<Answer>) -> Result<Answer, Errno> {
    match answer {
        Ok(Answer::Failed { errno, text }) => {
            explain(&text);
            Err(errno)
        }
        Ok(answer) => Ok(answer),
        Err(error) => Err(unasked(&error)),
    }
}

/// Returns the errno of a call whose request did not reach the broker or got no answer.
pub(crate) fn unasked(error: &io::Error) -> Errno {
    shortage(error).unwrap_or(libc::ENETDOWN)
}

/// Sends a request to a broker.
///
/// # Errors
/// ECONNREFUSED: the broker has ended or is in another network namespace; others: it did not
/// answer.
pub(crate) fn call(broker: &Broker, request: Request) -> io::Result<Answer> {
    let deadline = Instant::now() + request.patience();
    let stream = &send(broker, request, deadline, sleep)?;
    read_line(DeadlineReader { stream, deadline })
}

/// Sends a request to a broker. Unlike [`call`], waits for the answer as a blocking system call
/// does: a signal interrupts the wait if its handler does not restart calls.
///
/// # Errors
/// EINTR: interrupted; others: see [`call`].
pub(crate) fn call_interruptibly(broker: &Broker, request: Request) -> io::Result<Answer> {
    let wait = |fd, until| signals::wait(fd, until).map_err(io::Error::from_raw_os_error);
    let deadline = Instant::now() + request.patience();
    let pause = || wait(-1, Instant::now() + POLL_INTERVAL).map(drop);
    let stream = &send(broker, request, deadline, pause)?;
    match wait(stream.as_raw_fd(), deadline)? {
        true => read_line(DeadlineReader { stream, deadline }),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Sends a request to a broker. While the broker's queue is full, calls `pause` and tries again,
/// until `deadline`.
///
/// # Errors
/// Errors of `pause`; for others, see [`call`].
fn send(
    broker: &Broker,
    request: Request,
    deadline: Instant,
    pause: impl Fn() -> io::Result<()>,
) -> io::Result<UnixStream> {
    // A blocking `connect` has no time limit.
    let kind = SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let fd = kernel::socket(libc::AF_UNIX, kind, 0);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let stream = unsafe { UnixStream::from_raw_fd(fd) };
    let addr = Addr::of_name(&broker.control());
    let (to, len) = addr.raw();
    while kernel::connect(fd, to, len) < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock || Instant::now() >= deadline {
            return Err(error);
        }
        pause()?;
    }
    stream.set_nonblocking(false)?;
    broker.send(&stream, peer_user(fd), request)?;
    Ok(stream)
}

fn sleep() -> io::Result<()> {
    thread::sleep(POLL_INTERVAL);
    Ok(())
}

/// A request that the broker has not answered yet.
pub(crate) struct Waiting(UnixStream);

impl Waiting {
    /// Sends a request to a broker.
    ///
    /// # Errors
    /// See [`call`].
    pub(crate) fn new(broker: &Broker, request: Request) -> io::Result<Waiting> {
        send(broker, request, Instant::now() + PATIENCE, sleep).map(Waiting)
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// EINTR: interrupted by a signal whose handler does not restart calls.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut byte = 0_u8;
        let buffer = ((&raw mut byte).cast(), 1);
        let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_PEEK);
        let no_address = std::ptr::null_mut();
        // Waits without reading, because `read_line` would continue to wait after a signal.
        match kernel::recvfrom(fd, buffer, flags, no_address, std::ptr::null_mut()) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Returns true if there is an answer or the broker has ended. Waits for this for a short time.
    pub(crate) fn is_answered(&self) -> bool {
        let moment = libc::timespec {
            tv_sec: 0,
            tv_nsec: POLL_INTERVAL.subsec_nanos().into(),
        };
        kernel::wait_for(self.0.as_raw_fd(), libc::POLLIN, Some(&moment)) == Ok(true)
    }

    /// Reads the answer, for which this waits without a limit.
    ///
    /// # Errors
    /// The broker has ended.
    pub(crate) fn answer(self) -> io::Result<Answer> {
        read_line(&self.0)
    }
}

/// Returns the errno if the error means that the program or the system is out of descriptors or
/// memory.
pub(crate) fn shortage(error: &io::Error) -> Option<Errno> {
    let errno = error.raw_os_error()?;
    matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM).then_some(errno)
}

/// Prints why a call failed, if the user has requested this (`esprun --verbose`).
fn explain(text: &str) {
    if std::env::var_os("ESPRUN_VERBOSE").is_some() {
        let _ = writeln!(std::io::stderr(), "esprun: {text}");
    }
}

/// Creates a socket of `AF_ENET`.
pub(crate) fn open(kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
    let bare = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let letter = match (bare, protocol) {
        (SOCK_STREAM, 0) => 's',
        (SOCK_DGRAM, 0 | 1) => 'd',
        (SOCK_STREAM | SOCK_DGRAM, _) => return Err(libc::EPROTONOSUPPORT),
        _ => return Err(libc::ESOCKTNOSUPPORT),
    };
    let prefix = broker().ok_or(libc::EAFNOSUPPORT)?.prefix();
    let opened = ask(Request::Open).map_err(|errno| match errno {
        full @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM) => full,
        _ => libc::EAFNOSUPPORT,
    })?;
    let Answer::Opened { id } = opened else {
        return Err(libc::EIO);
    };
    let fd = kernel::socket(libc::AF_UNIX, kind, 0);
    if fd < 0 {
        return Err(kernel::errno());
    }
    let name = format!("{prefix}{letter}.{}.{id:016x}", std::process::id());
    let addr = Addr::of_name(&name);
    let (to, len) = addr.raw();
    refuse_descriptors(fd);
    let asked = match letter {
        'd' => ask_for_senders(fd),
        _ => Ok(()),
    };
    if asked.is_ok() && kernel::bind(fd, to, len) == 0 {
        return Ok(fd);
    }
    let errno = asked.err().unwrap_or_else(kernel::errno);
    kernel::close(fd);
    Err(errno)
}

impl Own {
    /// Returns the socket of this descriptor, if it is of `AF_ENET`.
    pub(crate) fn of(fd: c_int) -> Option<Own> {
        let broker = broker()?;
        let addr = Addr::local(fd)?;
        let name = addr.name()?;
        let kind = name.strip_prefix(&broker.prefix())?.split('.').next()?;
        let is_stream = match kind {
            "s" => true,
            "d" => false,
            _ => return None,
        };
        let peer = Addr::peer(fd).filter(|_| is_stream);
        let accepted = peer.as_ref().and_then(Addr::name);
        let accepted = accepted.filter(|peer| is_accepted(broker, peer));
        Some(Own {
            name: accepted.unwrap_or(name).to_owned(),
            is_stream,
            is_accepted: accepted.is_some(),
        })
    }

    /// Asks the broker for the state.
    pub(crate) fn state(&self) -> Result<State, Errno> {
        let name = self.name.clone();
        state_by(Request::State { name })
    }

    /// Asks the broker for the state of a stream that the program connects again.
    pub(crate) fn state_again(&self) -> Result<State, Errno> {
        let name = self.name.clone();
        state_by(Request::Again { name })
    }
}

fn state_by(request: Request) -> Result<State, Errno> {
    match ask(request)? {
        Answer::State(state) => Ok(state),
        _ => Err(libc::EIO),
    }
}

/// Returns true for the name of the broker's end of an accepted stream.
pub(crate) fn is_accepted(broker: &Broker, name: &str) -> bool {
    let rest = name.strip_prefix(&broker.prefix());
    rest.is_some_and(|rest| rest.starts_with("p."))
}

/// Returns true if calls on the descriptor do not block.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: the call accesses no memory.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::c_long::from(libc::O_NONBLOCK) != 0
}

/// Returns true if the descriptor listens.
pub(crate) fn is_listening(fd: c_int) -> bool {
    option(fd, libc::SO_ACCEPTCONN) == Some(1)
}
