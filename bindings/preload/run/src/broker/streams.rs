//! Streams of `AF_ENET` that programs connect.

use std::collections::HashMap;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use esp_client::{Client, EspAddr, EspListener, EspStream, MacAddr, NodeAddr};
use nix::errno::Errno;
use preload_wire::{Broker, Enet};
use rustix::net::sockopt::socket_peercred;

use super::pump::{drop_bytes, pump};
use super::table::{Entry, lock};
use super::{Node, SLEEP, system};

/// Maximum wait for the other half of a connection, which its program makes at once.
const OTHER_HALF: Duration = Duration::from_secs(10);

/// Halves of connections that wait for the other one, by the name of the program's socket.
#[derive(Default)]
struct Halves {
    /// Sockets of programs.
    sockets: HashMap<String, (UnixStream, Instant)>,
    /// Streams that are connected.
    streams: HashMap<String, (EspStream, Instant)>,
}

static HALVES: LazyLock<Mutex<Halves>> = LazyLock::new(Mutex::default);
static ARRIVED: Condvar = Condvar::new();

/// Returns true if this is the name of a stream or listener of a program.
pub(super) fn is_stream(broker: &Broker, name: &str) -> bool {
    let rest = name.strip_prefix(&broker.prefix());
    rest.is_some_and(|rest| rest.starts_with("s."))
}

/// Sets the local address of a stream or listener.
pub(super) fn bind(node: &Node, name: &str, addr: Enet) -> io::Result<()> {
    let entry = node.table.entry(name)?;
    if entry.state().local.port != 0 {
        return Err(Errno::EINVAL.into());
    }
    let client = Client::shared()?;
    let interface = interface(&client, addr)?;
    // Whether another listener has the port shows here; it is taken when the program listens.
    if addr.port != 0 {
        let mut builder = EspListener::builder();
        if let Some(interface) = &interface {
            builder = builder.interface(interface);
        }
        builder
            .path(esp_client::Path::Daemon)
            .bind_at(&client, addr.port)?;
    }
    entry.set(|state| state.local = addr);
    Ok(())
}

/// Returns the interface that an address names by its index or by its own MAC address.
///
/// # Errors
/// EADDRNOTAVAIL: there is none.
pub(super) fn interface(client: &Client, addr: Enet) -> io::Result<Option<String>> {
    let missing = || io::Error::from(Errno::EADDRNOTAVAIL);
    if addr.interface != 0 {
        return Ok(Some(
            system::interface_name(addr.interface).map_err(|_| missing())?,
        ));
    }
    if addr.mac == [0; 6] {
        return Ok(None);
    }
    let own = NodeAddr::Mac(MacAddr(addr.mac));
    let mut all = client.interfaces().into_iter();
    let found = all.find(|one| one.addr == own);
    Ok(Some(found.ok_or_else(missing)?.name))
}

/// Connects a stream, and waits.
pub(super) fn connect(node: &Node, name: &str, peer: Enet) -> io::Result<()> {
    let entry = node.table.entry(name)?;
    let stream = open(&entry, peer)?;
    entry.set_stream(&stream);
    let mut halves = lock(&HALVES);
    halves
        .streams
        .retain(|_, (_, since)| since.elapsed() < OTHER_HALF);
    halves
        .streams
        .insert(name.to_owned(), (stream, Instant::now()));
    Ok(())
}

/// Begins to connect a stream. The program's socket is connected to the broker, and has `filled`
/// bytes that keep the program from writing.
pub(super) fn begin(node: &Arc<Node>, name: &str, peer: Enet, filled: u64) -> io::Result<()> {
    let local = wait_for_socket(name)?;
    let entry = node.table.entry(name)?;
    entry.set(|state| state.connecting = true);
    let name = name.to_owned();
    node.busy("connect", move |node| {
        match open(&entry, peer) {
            Ok(stream) => {
                entry.set_stream(&stream);
                if drop_bytes(&local, filled).is_ok() {
                    serve(&entry, &local, stream);
                }
            }
            Err(error) => entry.set(|state| {
                state.connecting = false;
                state.errno = system::errno(&error);
            }),
        }
        // Before the socket is closed, so that the program finds the error.
        node.table.remove(&name);
    });
    Ok(())
}

fn wait_for_socket(name: &str) -> io::Result<UnixStream> {
    let halves = lock(&HALVES);
    let is_missing = |halves: &mut Halves| !halves.sockets.contains_key(name);
    let waited = ARRIVED.wait_timeout_while(halves, OTHER_HALF, is_missing);
    let (mut halves, _) = waited.unwrap_or_else(PoisonError::into_inner);
    let found = halves.sockets.remove(name);
    found
        .map(|(socket, _)| socket)
        .ok_or_else(|| Errno::ENOTCONN.into())
}

/// Opens the stream.
fn open(entry: &Entry, peer: Enet) -> io::Result<EspStream> {
    let local = entry.state().local;
    let client = Client::shared()?;
    let mut addr = EspAddr::new(MacAddr(peer.mac), peer.port);
    addr.interface = match peer.interface {
        0 => interface(&client, local)?,
        index => Some(system::interface_name(index)?),
    };
    let builder = EspStream::builder().local_port(local.port).spin(SLEEP);
    builder.connect_at(&client, addr)
}

/// Takes the connections of programs' sockets.
pub(super) fn accept(node: &Arc<Node>, listener: &UnixListener) {
    for socket in listener.incoming() {
        let Ok(socket) = socket else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let addr = socket.peer_addr().ok();
        let name = addr.as_ref().and_then(|addr| addr.as_abstract_name());
        let Some(name) = name.and_then(|name| std::str::from_utf8(name).ok()) else {
            continue;
        };
        if !is_stream(&node.broker, name) || !is_allowed(&socket) {
            continue;
        }
        let mut halves = lock(&HALVES);
        halves
            .sockets
            .retain(|_, (_, since)| since.elapsed() < OTHER_HALF);
        let Some((stream, _)) = halves.streams.remove(name) else {
            halves
                .sockets
                .insert(name.to_owned(), (socket, Instant::now()));
            ARRIVED.notify_all();
            continue;
        };
        drop(halves);
        let (name, Ok(entry)) = (name.to_owned(), node.table.entry(name)) else {
            continue;
        };
        node.busy("stream", move |node| {
            serve(&entry, &socket, stream);
            node.table.remove(&name);
        });
    }
}

/// Returns true if the other end may be a program.
fn is_allowed(socket: &UnixStream) -> bool {
    let other = socket_peercred(socket);
    other.is_ok_and(|other| system::is_user_of_programs(other.uid.as_raw()))
}

/// Copies until both directions have ended.
pub(super) fn serve(entry: &Entry, local: &UnixStream, stream: EspStream) {
    pump(local, stream, |error| {
        entry.set(|state| state.errno = system::errno(error));
    });
}
