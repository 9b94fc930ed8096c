//! Requests of programs.

use std::io::{self, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use constant_time_eq::constant_time_eq;
use esp_client::Client;
use preload_wire::{Answer, PATIENCE, Request, Sealed, Sockets, read_line, write_line};
use rustix::net::{RecvFlags, recv};

use super::{MAX_SOCKETS, Node, datagrams, listeners, streams, system, tcp};

/// Answers requests: at once where that cannot block, else in a thread of its own each.
pub(super) fn serve(node: &Arc<Node>, control: &UnixListener) {
    for stream in control.incoming() {
        // Other users may connect, too.
        if node.busy.load(Ordering::SeqCst) > 2 * MAX_SOCKETS {
            continue;
        }
        let Ok(stream) = stream else {
            // Out of descriptors: others are closed meanwhile.
            thread::sleep(std::time::Duration::from_millis(10));
            continue;
        };
        let mut request = None;
        if has_line(&stream) {
            match read_line::<Sealed>(&stream) {
                Ok(sealed) if is_quick(&sealed.request) => {
                    // The answer fits into the empty buffer of the socket.
                    let _ = answer(node, &stream, sealed);
                    continue;
                }
                Ok(sealed) => request = Some(sealed),
                Err(_) => continue,
            }
        }
        // Without a thread there is no answer.
        let _ = node.busy("request", {
            let node = Arc::clone(node);
            move |_| {
                let _ = answer_late(&node, &stream, request);
            }
        });
    }
}

/// Returns true if the request is there, as it is for most, which are written right after the
/// connection is made.
fn has_line(stream: &UnixStream) -> bool {
    let mut bytes = [0; 1024];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let waiting = recv(stream, &mut bytes[..], flags);
    waiting.is_ok_and(|(count, _)| bytes.iter().take(count).any(|&byte| byte == b'\n'))
}

/// Returns true if the answer needs no other process, and is short.
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

/// Reads the request, unless it is given, and answers it.
fn answer_late(node: &Arc<Node>, stream: &UnixStream, request: Option<Sealed>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let sealed = match request {
        Some(sealed) => sealed,
        None => read_line(stream)?,
    };
    answer(node, stream, sealed)
}

fn answer(node: &Arc<Node>, stream: &UnixStream, sealed: Sealed) -> io::Result<()> {
    let Sealed { secret, request } = sealed;
    let is_allowed = match request {
        Request::Sockets => system::is_own_or_root(stream),
        _ => constant_time_eq(secret.as_bytes(), node.broker.secret.as_bytes()),
    };
    if !is_allowed {
        return Ok(());
    }
    let answer = handle(node, request).unwrap_or_else(|error| Answer::Failed {
        errno: system::errno(&error),
        text: error.to_string(),
    });
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
            // Not a count: other users could take the names that it leads to.
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
