//! Serves the requests of programs.

use std::collections::HashMap;
use std::io::{self, IoSliceMut, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use constant_time_eq::constant_time_eq;
use esp_client::Client;
use preload_wire::{
    Answer, DeadlineReader, PATIENCE, Request, Sealed, Sockets, read_line, write_line,
};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};

use super::{MAX_SOCKETS, Node, datagrams, listeners, streams, system, tcp};

/// Maximum number of users in [`Strangers`].
const MAX_STRANGERS: usize = 64;
/// Maximum number of connections of each of these users.
const MAX_UNREAD: usize = 64;

/// Users other than the broker's and root with connections that have not yet shown the secret. Each
/// of these connections holds a reference to the user's value, which counts them.
#[derive(Default)]
struct Strangers(HashMap<u32, Arc<()>>);

impl Strangers {
    /// Counts a connection of this user until the returned value is dropped; `None` if there are
    /// too many.
    fn admit(&mut self, user: u32) -> Option<Arc<()>> {
        if system::is_own_or_root(user) {
            return Some(Arc::default());
        }
        self.0.retain(|_, unread| Arc::strong_count(unread) > 1);
        if !self.0.contains_key(&user) && self.0.len() >= MAX_STRANGERS {
            return None;
        }
        let unread = self.0.entry(user).or_default();
        (Arc::strong_count(unread) <= MAX_UNREAD).then(|| Arc::clone(unread))
    }
}

/// Answers requests: at once if that cannot block, or else each in a thread of its own.
pub(super) fn serve(node: &Arc<Node>, control: &UnixListener) {
    let mut strangers = Strangers::default();
    for stream in control.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: others may be closed in the meantime.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let user = system::user_of(&stream);
        // Other users may connect, too.
        let is_served = system::is_user_of_programs(user)
            && node.busy.load(Ordering::SeqCst) <= 2 * MAX_SOCKETS;
        match strangers.admit(user).filter(|_| is_served) {
            Some(unread) => take(node, stream, user, unread),
            None => node.closer.close_socket(user, stream.into()),
        }
    }
}

/// Answers a request. Holds `unread` until the request has shown the secret.
fn take(node: &Arc<Node>, stream: UnixStream, user: u32, unread: Arc<()>) {
    let mut request = None;
    match waiting(&stream) {
        Ok(None) => {}
        Ok(Some(sealed)) if is_allowed(node, user, &sealed) => request = Some(sealed.request),
        _ => return node.closer.close_socket(user, stream.into()),
    }
    let is_quick = request.as_ref().is_some_and(is_quick);
    if let Some(request) = request.take_if(|_| is_quick) {
        // The answer fits into the empty buffer of the socket.
        let _ = answer(node, &stream, request);
        return node.closer.close_socket(user, stream.into());
    }
    let (serving, has_request) = (Arc::clone(node), request.is_some());
    let owned = (stream, request, unread);
    let served = node.busy_with("request", owned, move |_, (stream, request, unread)| {
        answer_late(&serving, stream, user, request, unread);
    });
    if let Err((error, (stream, ..))) = served {
        if has_request {
            let _ = write_line(&stream, &failed(&error));
        }
        node.closer.close_socket(user, stream.into());
    }
}

/// Reads the request if it has arrived. Most have, because programs write it right after they
/// connect. Takes no descriptors.
///
/// # Errors
/// Descriptors came with the bytes, or the first line is not a request.
fn waiting(mut stream: &UnixStream) -> io::Result<Option<Sealed>> {
    let mut bytes = [0; 1024];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let peeked = match recvmsg(
        stream,
        &mut parts,
        &mut RecvAncillaryBuffer::default(),
        flags,
    ) {
        Err(Errno::AGAIN) => return Ok(None),
        peeked => peeked?,
    };
    if peeked.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut arrived = bytes.iter().take(peeked.bytes);
    let Some(end) = arrived.position(|&byte| byte == b'\n') else {
        return Ok(None);
    };
    // Reads no more than the peeked bytes, because descriptors may have followed them.
    let line = bytes.get_mut(..=end).unwrap_or_default();
    stream.read_exact(line)?;
    read_line(&*line).map(Some)
}

/// Returns true if the answer is short and needs no other process.
fn is_quick(request: &Request) -> bool {
    matches!(
        request,
        Request::State { .. }
            | Request::Interrupted { .. }
            | Request::Again { .. }
            | Request::TcpClaim { .. }
            | Request::TcpNames { .. }
    )
}

/// Answers a request, which is read first if it is `None`.
fn answer_late(
    node: &Arc<Node>,
    stream: UnixStream,
    user: u32,
    request: Option<Request>,
    unread: Arc<()>,
) {
    let Some(request) = request.or_else(|| read(node, &stream, user)) else {
        // Closing the stream can block for as long as the user wants, so it is counted until then.
        drop(stream);
        drop(unread);
        return;
    };
    drop(unread);
    let limit = Some(PATIENCE);
    let limited = stream.set_read_timeout(limit);
    let limited = limited.and_then(|()| stream.set_write_timeout(limit));
    let _ = limited.and_then(|()| answer(node, &stream, request));
}

/// Reads a request; `None` if it does not arrive in time or may not be answered.
fn read(node: &Node, stream: &UnixStream, user: u32) -> Option<Request> {
    let deadline = Instant::now() + PATIENCE;
    let sealed: Sealed = read_line(DeadlineReader { stream, deadline }).ok()?;
    is_allowed(node, user, &sealed).then_some(sealed.request)
}

/// Returns true if the request of this user may be answered.
fn is_allowed(node: &Node, user: u32, sealed: &Sealed) -> bool {
    match sealed.request {
        Request::Sockets => system::is_own_or_root(user),
        _ => constant_time_eq(sealed.secret.as_bytes(), node.broker.secret.as_bytes()),
    }
}

fn failed(error: &io::Error) -> Answer {
    Answer::Failed {
        errno: system::errno(error),
        text: error.to_string(),
    }
}

fn answer(node: &Arc<Node>, stream: &UnixStream, request: Request) -> io::Result<()> {
    let answer = handle(node, request).unwrap_or_else(|error| failed(&error));
    let written = write_line(stream, &answer);
    if let Answer::Via { ticket, .. } = answer
        && !(written.is_ok() && is_taken(stream))
    {
        node.tcp.abandon(ticket);
    }
    written
}

/// Waits until the program closes its end. Returns false if the answer was not read: a signal has
/// interrupted the program's `connect`, or the program has ended.
fn is_taken(mut stream: &UnixStream) -> bool {
    matches!(stream.read(&mut [0]), Ok(0))
}

fn handle(node: &Arc<Node>, request: Request) -> io::Result<Answer> {
    let table = &node.table;
    match request {
        Request::Open => {
            Client::shared()?;
            table.check_room()?;
            // Random instead of a counter: otherwise other users could take the names that follow
            // from it.
            let id = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
            return Ok(Answer::Opened { id });
        }
        Request::Bind { name, addr } if streams::is_stream(&node.broker, &name) => {
            streams::bind(node, &name, addr)?;
        }
        Request::Bind { name, addr } => datagrams::bind(node, &name, addr)?,
        Request::Listen { name, backlog } => listeners::listen(node, &name, backlog)?,
        Request::Connect {
            name,
            peer,
            wait: true,
            ..
        } => streams::connect(node, &name, peer)?,
        Request::Connect {
            name, peer, filled, ..
        } => streams::begin(node, &name, peer, filled)?,
        Request::Interrupted { name } => streams::interrupt(&name)?,
        Request::Again { name } => return Ok(Answer::State(table.take_state(&name))),
        Request::Direct { name, peer } => return datagrams::direct(node, &name, peer),
        Request::State { name } => return Ok(Answer::State(table.state(&name))),
        Request::Statistics { name } => return Ok(Answer::Statistics(table.statistics(&name)?)),
        Request::TcpListen {
            addr,
            only_v6,
            inode,
        } => tcp::listen(node, (addr, only_v6), inode)?,
        Request::TcpConnect { peer, own } => return Ok(tcp::connect(node, peer, own)),
        Request::TcpClaim { ticket, local } => node.tcp.claim(ticket, local)?,
        Request::Sockets => return Ok(Answer::Sockets(sockets(node))),
        Request::TcpNames { local, peer } => return Ok(node.tcp.names(local, peer)),
    }
    Ok(Answer::Done)
}

/// Returns all sockets of the programs.
fn sockets(node: &Node) -> Sockets {
    let mut sockets = node.table.status();
    sockets.extend(node.tcp.status());
    Sockets {
        pid: node.program,
        program: system::name_of(node.program),
        sockets,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IoSlice, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    const LINE: &[u8] = b"{\"secret\":\"x\",\"request\":\"Open\"}\n";

    fn pass(to: &UnixStream, bytes: &[u8]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [to.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn a_request_is_read_once_it_has_arrived_and_nothing_after_it() {
        let (program, stream) = UnixStream::pair().unwrap();
        let (begin, end) = LINE.split_at(10);
        assert!(waiting(&stream).unwrap().is_none());
        (&program).write_all(begin).unwrap();
        assert!(waiting(&stream).unwrap().is_none());
        (&program).write_all(end).unwrap();
        (&program).write_all(b"more").unwrap();
        let sealed = waiting(&stream).unwrap().unwrap();
        assert_eq!((&*sealed.secret, sealed.request), ("x", Request::Open));
        let mut rest = [0; 10];
        assert_eq!((&stream).read(&mut rest).unwrap(), 4);
    }

    #[test]
    fn descriptors_are_not_taken() {
        for before in [&b""[..], LINE] {
            let (program, stream) = UnixStream::pair().unwrap();
            (&program).write_all(before).unwrap();
            pass(&program, LINE);
            assert!(waiting(&stream).is_err());
            assert!(waiting(&stream).is_err(), "they are still in the socket");
        }
    }

    #[test]
    fn each_other_user_has_a_limit_of_unread_requests() {
        let mut strangers = Strangers::default();
        let (one, other) = (u32::MAX - 1, u32::MAX - 2);
        let unread: Vec<_> = (0..MAX_UNREAD).map(|_| strangers.admit(one)).collect();
        assert!(unread.iter().all(Option::is_some));
        assert!(strangers.admit(one).is_none() && strangers.admit(other).is_some());
        let own: Vec<_> = (0..=MAX_UNREAD).map(|_| strangers.admit(0)).collect();
        assert!(own.iter().all(Option::is_some));
        drop(unread);
        let last = u32::try_from(MAX_STRANGERS).unwrap() + 1000;
        let all: Vec<_> = (1000..last).map(|user| strangers.admit(user)).collect();
        assert!(all.iter().all(Option::is_some) && strangers.admit(last).is_none());
        assert!(strangers.admit(1000).is_some());
    }
}
