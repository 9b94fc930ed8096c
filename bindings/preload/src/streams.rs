//! Streams and listeners of `AF_ENET`.

use libc::{c_int, sockaddr, socklen_t};
use preload_wire::{Answer, Enet, Request};

use crate::kernel::{self, Errno};
use crate::memory::{Addr, close_foreign, peer_user, write_enet};
use crate::own::{
    Own, Waiting, ask, broker, call, is_accepted, is_listening, is_nonblocking, result_of,
    shortage, unasked,
};

/// Bytes of one write that fills a socket until it is connected.
const FILLING: [u8; 4096] = [0; 4096];
/// Maximum number of bytes that fill a socket.
const MAX_FILLED: u64 = 64 << 20;

/// Sets the local address of a stream, or binds a datagram socket.
pub(crate) fn bind(own: &Own, addr: &Addr) -> Result<(), Errno> {
    let addr = addr.enet().ok_or(libc::EAFNOSUPPORT)?;
    let name = own.name.clone();
    ask(Request::Bind { name, addr }).map(drop)
}

/// Listens.
pub(crate) fn listen(fd: c_int, own: &Own, backlog: c_int) -> Result<(), Errno> {
    if !own.is_stream {
        return Err(libc::EOPNOTSUPP);
    }
    if kernel::listen(fd, backlog) < 0 {
        return Err(kernel::errno());
    }
    let name = own.name.clone();
    let backlog = u16::try_from(backlog.max(1)).unwrap_or(u16::MAX);
    ask(Request::Listen { name, backlog }).map(drop)
}

/// Accepts a connection, and writes the peer's address.
pub(crate) fn accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Result<c_int, Errno> {
    let broker = broker().ok_or(libc::EAFNOSUPPORT)?;
    loop {
        let mut accepted = -1;
        let peer = Addr::get(|addr, len| {
            accepted = kernel::accept4(fd, addr, len, flags);
            accepted
        });
        if accepted < 0 {
            return Err(kernel::errno());
        }
        let name = peer.as_ref().and_then(Addr::name);
        let name = name.filter(|name| is_accepted(broker, name));
        // Other users may connect to the name, too.
        let is_broker = peer_user(accepted) == Some(broker.uid);
        let Some(peer) = name.and_then(Enet::of_name).filter(|_| is_broker) else {
            close_foreign(accepted, vec![accepted]);
            continue;
        };
        if let Err(errno) = write_enet(peer, addr, len) {
            kernel::close(accepted);
            return Err(errno);
        }
        return Ok(accepted);
    }
}

/// Connects a stream.
pub(crate) fn connect(fd: c_int, own: &Own, addr: &Addr) -> Result<(), Errno> {
    let peer = addr.enet().ok_or(libc::EAFNOSUPPORT)?;
    if is_listening(fd) || own.is_accepted {
        return Err(libc::EISCONN);
    }
    if Addr::peer(fd).is_some() {
        return connect_again(fd, own);
    }
    if is_nonblocking(fd) {
        begin(fd, own, peer)?;
        return Err(libc::EINPROGRESS);
    }
    let broker = broker().ok_or(libc::EAFNOSUPPORT)?;
    let name = own.name.clone();
    let request = Request::Connect {
        name: name.clone(),
        peer,
        wait: true,
        filled: 0,
    };
    let waiting = Waiting::new(broker, request).map_err(|error| unasked(&error))?;
    // The broker may not have begun yet, or may have decided already.
    let mut is_interrupted = waiting.wait().is_err();
    while is_interrupted && !waiting.is_answered() {
        let name = name.clone();
        match call(broker, Request::Interrupted { name }) {
            Ok(Answer::Done) => {
                begin(fd, own, peer)?;
                return Err(libc::EINTR);
            }
            Ok(_) => {}
            // The answer will arrive through the descriptor that is already open.
            Err(error) => is_interrupted = shortage(&error).is_some(),
        }
    }
    result_of(waiting.answer())?;
    join(fd)
}

/// Begins to connect a stream, or continues an attempt that was interrupted.
fn begin(fd: c_int, own: &Own, peer: Enet) -> Result<(), Errno> {
    let filled = fill(fd)?;
    let asked = ask(Request::Connect {
        name: own.name.clone(),
        peer,
        wait: false,
        filled,
    });
    if asked.is_err() {
        // Otherwise it would never become writable.
        kernel::shutdown(fd, libc::SHUT_RDWR);
    }
    asked.map(drop)
}

/// Returns the result of an attempt that has begun, for which this waits if the socket blocks.
fn connect_again(fd: c_int, own: &Own) -> Result<(), Errno> {
    let mut state = own.state_again()?;
    if state.connecting && !is_nonblocking(fd) {
        kernel::wait_for(fd, libc::POLLOUT, None)?;
        state = own.state_again()?;
    }
    match state.errno {
        0 if state.connecting => Err(libc::EALREADY),
        // The broker did not receive the request, or has already closed its end.
        0 if kernel::is_hung_up(fd) => Err(libc::ECONNABORTED),
        0 if state.is_new => Ok(()),
        0 => Err(libc::EISCONN),
        errno => Err(errno),
    }
}

/// Connects the program's socket to the broker.
fn join(fd: c_int) -> Result<(), Errno> {
    let broker = broker().ok_or(libc::EAFNOSUPPORT)?;
    let addr = Addr::of_name(&broker.streams());
    let (to, len) = addr.raw();
    while kernel::connect(fd, to, len) < 0 {
        match kernel::errno() {
            // The broker accepts very soon, and the outcome of the call has already been decided.
            libc::EINTR => {}
            errno @ (libc::EAGAIN | libc::EISCONN) => return Err(errno),
            _ => return Err(libc::ENETDOWN),
        }
    }
    Ok(())
}

/// Connects the socket to the broker and fills it, so that the program cannot write, and `poll`
/// does not report it writable, until the broker reads these bytes once the stream is connected.
fn fill(fd: c_int) -> Result<u64, Errno> {
    join(fd)?;
    let mut filled = 0;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    while filled < MAX_FILLED {
        let bytes = (FILLING.as_ptr().cast(), FILLING.len());
        let count = kernel::sendto(fd, bytes, flags, std::ptr::null(), 0);
        match u64::try_from(count) {
            Ok(count) => filled += count,
            Err(_) if kernel::errno() == libc::EAGAIN => return Ok(filled),
            Err(_) => return Err(kernel::errno()),
        }
    }
    Ok(filled)
}

/// Returns the return value of a call that found the end of a stream: 0, or -1 for the error that
/// ended it.
pub(crate) fn at_end(fd: c_int) -> isize {
    let Some(own) = Own::of(fd).filter(|own| own.is_stream) else {
        return 0;
    };
    match own.state() {
        Ok(state) if state.errno != 0 => kernel::fail(state.errno) as isize,
        Ok(_) => 0,
        // The next call of the program asks again.
        Err(full @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => kernel::fail(full) as isize,
        Err(_) => kernel::fail(libc::ECONNRESET) as isize,
    }
}
