//! Streams of `AF_ENET` that programs connect.

use std::collections::{HashMap, hash_map};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use esp_client::{Client, EspAddr, EspListener, EspStream, MacAddr, NodeAddr};
use nix::errno::Errno;
use preload_wire::{Broker, Enet};

use super::pump::{drop_bytes, pump};
use super::table::{Entry, lock};
use super::{MAX_SOCKETS, Node, SLEEP, system};

/// Maximum wait for the other half of a connection, which the program normally creates at once.
const OTHER_HALF: Duration = Duration::from_secs(10);

/// Maximum number of waiting sockets of each user other than the broker's and root. These users get
/// no more room when half of [`MAX_SOCKETS`] wait.
const MAX_OF_OTHERS: usize = 64;

/// Halves of connections that wait for the other half, by the name of the program's socket.
#[derive(Default)]
struct Halves {
    /// Sockets of programs.
    sockets: HashMap<String, Socket>,
    /// Streams that are connected.
    streams: HashMap<String, (EspStream, Instant)>,
    /// Attempts to connect for which programs wait, or waited until a signal arrived.
    attempts: HashMap<String, Waiting>,
    /// Results of attempts whose programs no longer wait.
    late: HashMap<String, (io::Result<EspStream>, Instant)>,
}

/// The broker's end of a program's socket.
struct Socket {
    end: UnixStream,
    /// User of the program.
    user: u32,
    since: Instant,
}

impl Halves {
    /// Returns true if there is room for one more socket of this user.
    fn has_room(&self, user: u32) -> bool {
        let sockets = &self.sockets;
        if system::is_own_or_root(user) {
            return sockets.len() < MAX_SOCKETS;
        }
        let of_user = sockets.values().filter(|socket| socket.user == user);
        sockets.len() < MAX_SOCKETS / 2 && of_user.count() < MAX_OF_OTHERS
    }
}

/// Whether a program waits for the result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Yes,
    Interrupted,
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
    // Fails if another listener has the port. The port is taken when the program listens.
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
/// EADDRNOTAVAIL: there is no such interface.
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

/// Connects a stream, and waits until it is connected.
pub(super) fn connect(node: &Node, name: &str, peer: Enet) -> io::Result<()> {
    let entry = node.table.entry(name)?;
    // A stream that is still here belongs to a process that shared the socket and has ended.
    let left = {
        let mut halves = lock(&HALVES);
        match halves.attempts.entry(name.to_owned()) {
            hash_map::Entry::Occupied(_) => return Err(Errno::EALREADY.into()),
            hash_map::Entry::Vacant(attempt) => attempt.insert(Waiting::Yes),
        };
        halves.streams.remove(name)
    };
    drop(left);
    let opened = open(&entry, peer);
    {
        let mut halves = lock(&HALVES);
        if halves.attempts.remove(name) == Some(Waiting::Interrupted) {
            let late = (opened, Instant::now());
            halves.late.insert(name.to_owned(), late);
            ARRIVED.notify_all();
            return Ok(());
        }
    }
    let stream = opened?;
    entry.set_stream(&stream);
    let half = (stream, Instant::now());
    lock(&HALVES).streams.insert(name.to_owned(), half);
    Ok(())
}

/// Leaves an attempt to connect, for which the program no longer waits, to a following [`begin`].
///
/// # Errors
/// EISCONN: there is no such attempt, because it has not begun or has ended.
pub(super) fn interrupt(name: &str) -> io::Result<()> {
    let mut halves = lock(&HALVES);
    let attempt = halves.attempts.get_mut(name).ok_or(Errno::EISCONN)?;
    *attempt = Waiting::Interrupted;
    Ok(())
}

/// Drops halves of connections whose other half did not arrive in time.
pub(super) fn expire(node: &Node) {
    let is_late = |since: &Instant| since.elapsed() >= OTHER_HALF;
    let mut halves = lock(&HALVES);
    let sockets = halves.sockets.extract_if(|_, half| is_late(&half.since));
    let sockets: Vec<_> = sockets.collect();
    let streams = halves.streams.extract_if(|_, half| is_late(&half.1));
    let streams: Vec<_> = streams.collect();
    let late = halves.late.extract_if(|_, half| is_late(&half.1));
    let late: Vec<_> = late.collect();
    // Closing them takes time, so it is done without the lock.
    drop(halves);
    drop((streams, late));
    for (_, socket) in sockets {
        node.closer.close_socket(socket.user, socket.end.into());
    }
}

/// Begins to connect a stream, or continues an attempt for which another call waits or waited. The
/// program's socket is connected to the broker, and contains `filled` bytes, which keep the program
/// from writing.
pub(super) fn begin(node: &Arc<Node>, name: &str, peer: Enet, filled: u64) -> io::Result<()> {
    let local = wait_for_socket(name)?;
    let entry = node.table.entry(name)?;
    let has_begun = {
        let mut halves = lock(&HALVES);
        let attempt = halves.attempts.get_mut(name);
        let goes_on = attempt.map(|attempt| *attempt = Waiting::Interrupted);
        goes_on.is_some() || halves.late.contains_key(name)
    };
    entry.set(|state| state.connecting = true);
    let (own, connecting) = (name.to_owned(), Arc::clone(&entry));
    let began = node.busy("connect", move |node| {
        let (name, entry) = (own, connecting);
        let opened = match has_begun {
            true => take_late(&name),
            false => open(&entry, peer),
        };
        match opened {
            Ok(stream) => {
                entry.set(|state| state.is_new = true);
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
        // Removed before the socket is closed, so that the program finds the error.
        node.table.remove(&name);
    });
    began.inspect_err(|error| {
        entry.set(|state| {
            state.connecting = false;
            state.errno = system::errno(error);
        });
        node.table.remove(name);
    })
}

fn wait_for_socket(name: &str) -> io::Result<UnixStream> {
    let halves = lock(&HALVES);
    let is_missing = |halves: &mut Halves| !halves.sockets.contains_key(name);
    let waited = ARRIVED.wait_timeout_while(halves, OTHER_HALF, is_missing);
    let (mut halves, _) = waited.unwrap_or_else(PoisonError::into_inner);
    let found = halves.sockets.remove(name);
    found
        .map(|socket| socket.end)
        .ok_or_else(|| Errno::ENOTCONN.into())
}

/// Waits for the result of an attempt that was interrupted.
fn take_late(name: &str) -> io::Result<EspStream> {
    let halves = lock(&HALVES);
    let goes_on = |halves: &mut Halves| halves.attempts.contains_key(name);
    let waited = ARRIVED.wait_while(halves, goes_on);
    let mut halves = waited.unwrap_or_else(PoisonError::into_inner);
    let found = halves.late.remove(name);
    found.map_or_else(|| Err(Errno::ETIMEDOUT.into()), |(opened, _)| opened)
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

/// Accepts the connections of programs' sockets.
pub(super) fn accept(node: &Arc<Node>, listener: &UnixListener) {
    for socket in listener.incoming() {
        let Ok(socket) = socket else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let user = system::user_of(&socket);
        if let Err(socket) = take(node, socket, user) {
            node.closer.close_socket(user, socket.into());
        }
    }
}

/// Takes the connection of a program's socket. Returns it if it is not from a program's socket or
/// there is no room.
fn take(node: &Arc<Node>, socket: UnixStream, user: u32) -> Result<(), UnixStream> {
    let addr = socket.peer_addr().ok();
    let name = addr.as_ref().and_then(|addr| addr.as_abstract_name());
    let name = name.and_then(|name| std::str::from_utf8(name).ok());
    let is_allowed = |name: &&str| {
        // Other users may connect, too.
        is_stream(&node.broker, name) && system::is_user_of_programs(user)
    };
    let Some(name) = name.filter(is_allowed) else {
        return Err(socket);
    };
    let mut halves = lock(&HALVES);
    if let Some((stream, _)) = halves.streams.remove(name) {
        drop(halves);
        let Ok(entry) = node.table.entry(name) else {
            stream.abort();
            return Err(socket);
        };
        serve_in_thread(node, "stream", name, (entry, socket, stream));
        return Ok(());
    }
    if !halves.has_room(user) {
        return Err(socket);
    }
    let half = Socket {
        end: socket,
        user,
        since: Instant::now(),
    };
    let earlier = halves.sockets.insert(name.to_owned(), half);
    ARRIVED.notify_all();
    drop(halves);
    if let Some(earlier) = earlier {
        node.closer.close_socket(earlier.user, earlier.end.into());
    }
    Ok(())
}

/// Copies in a thread named `thread` until both directions have ended, and then removes the socket
/// `name`. If the thread cannot be started, both sides get an error.
pub(super) fn serve_in_thread(
    node: &Arc<Node>,
    thread: &str,
    name: &str,
    ends: (Arc<Entry>, UnixStream, EspStream),
) {
    let own = name.to_owned();
    let served = node.busy_with(thread, ends, move |node, (entry, socket, stream)| {
        serve(&entry, &socket, stream);
        node.table.remove(&own);
    });
    if let Err((error, (entry, _socket, stream))) = served {
        entry.set(|state| state.errno = system::errno(&error));
        // Removed before the socket is closed, so that the program finds the error.
        node.table.remove(name);
        stream.abort();
    }
}

/// Copies until both directions have ended.
fn serve(entry: &Entry, local: &UnixStream, stream: EspStream) {
    pump(local, stream, |error| {
        entry.set(|state| state.errno = system::errno(error));
    });
}
