//! Requests of programs.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use constant_time_eq::constant_time_eq;
use esp_client::Client;
use preload_wire::{Answer, PATIENCE, Request, Sealed, Sockets, read_line, write_line};

use super::{MAX_SOCKETS, Node, datagrams, listeners, streams, system, tcp};

/// Answers requests, each in a thread of its own.
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
        node.busy("request", {
            let node = Arc::clone(node);
            move |_| {
                let _ = answer(&node, &stream);
            }
        });
    }
}

fn answer(node: &Arc<Node>, stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let Sealed { secret, request } = read_line(stream)?;
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
    write_line(stream, &answer)
}

fn handle(node: &Arc<Node>, request: Request) -> io::Result<Answer> {
    let table = &node.table;
    match request {
        Request::Open => {
            Client::shared()?;
            table.check_room()?;
        }
        Request::Bind { name, addr } if streams::is_stream(&node.broker, &name) => {
            streams::bind(node, &name, addr)?;
        }
        Request::Bind { name, addr } => datagrams::bind(node, name, addr)?,
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
        Request::Direct { name, peer } => datagrams::direct(node, &name, peer)?,
        Request::State { name } => return Ok(Answer::State(table.state(&name))),
        Request::Statistics { name } => return Ok(Answer::Statistics(table.statistics(&name)?)),
        Request::TcpListen {
            addr,
            only_v6,
            inode,
        } => tcp::listen(node, (addr, only_v6), inode)?,
        Request::TcpConnect { peer } => return Ok(tcp::connect(node, peer)),
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
