//! Listeners of `AF_ENET`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use esp_client::{Client, EspListener, EspStream, Path};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect};

use super::streams::{interface, serve_in_thread};
use super::table::{Entry, enet, lock};
use super::{Node, SLEEP};

/// Interval between checks whether the program still listens.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Pause after an error.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of connections that wait, a limit of ESP.
const MAX_BACKLOG: u16 = 1024;

/// Listens at the address that the socket is bound to, unless it does already.
pub(super) fn listen(node: &Arc<Node>, name: &str, backlog: u16) -> io::Result<()> {
    let entry = node.table.entry(name)?;
    let mut listens = lock(&entry.listens);
    if *listens {
        return Ok(());
    }
    let local = entry.state().local;
    let client = Client::shared()?;
    let mut builder = EspListener::builder()
        .backlog(backlog.clamp(1, MAX_BACKLOG))
        .path(Path::Daemon)
        .spin(SLEEP);
    if let Some(interface) = interface(&client, local)? {
        builder = builder.interface(interface);
    }
    let listener = builder.bind_at(&client, local.port)?;
    entry.set(|state| state.local.port = listener.port());
    let (listening, name) = (Arc::clone(node), name.to_owned());
    let accepting = Arc::clone(&entry);
    node.busy("listener", move |_| {
        accept(&listening, &name, &accepting, &listener);
    })?;
    *listens = true;
    Ok(())
}

fn accept(node: &Arc<Node>, name: &str, entry: &Entry, listener: &EspListener) {
    while !entry.is_gone() {
        let stream = match listener.accept_timeout(POLL_INTERVAL) {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => continue,
            // At a limit, the peer is refused. If the daemon is gone permanently, the listener is
            // kept for a program that may be waiting in `accept`.
            Err(_) => {
                thread::sleep(PAUSE);
                continue;
            }
        };
        // A program that does not accept delays only the connections of this listener. An error
        // concerns only this connection, or the program has closed its socket, which `entry` will
        // show.
        if hand_over(node, name, stream).is_err() {
            thread::sleep(PAUSE);
        }
    }
}

/// Connects to the program's listener, so that the program can accept the stream.
fn hand_over(node: &Arc<Node>, name: &str, stream: EspStream) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let peer = enet(&stream.peer_addr());
    let prefix = node.broker.prefix();
    let tag = node.broker.tag(&format!("{prefix}p.{number}"));
    let own = format!("{prefix}p.{tag}.{}", peer.digits());
    let entry = node.table.entry(&own)?;
    entry.set_stream(&stream);
    let socket = connected(&own, name).inspect_err(|_| node.table.remove(&own))?;
    serve_in_thread(node, "accepted", &own, (entry, socket, stream));
    Ok(())
}

/// Returns a socket of this name, connected to another one.
fn connected(own: &str, to: &str) -> io::Result<UnixStream> {
    let socket: OwnedFd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    bind(
        socket.as_fd(),
        &SocketAddrUnix::new_abstract_name(own.as_bytes())?,
    )?;
    connect(
        socket.as_fd(),
        &SocketAddrUnix::new_abstract_name(to.as_bytes())?,
    )?;
    Ok(socket.into())
}
