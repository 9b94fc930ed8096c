//! Copies datagrams from standard input and to standard output.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use esp_client::{Client, EdpKind, EdpSocket, NodeAddr};

use super::flags::Flags;
use super::traffic::Traffic;
use crate::out::{self, Context, Failure, Verdict};

/// Interval between checks of the time-out.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Binds the port. Standard input is sent to the first sender.
pub(super) fn listen(flags: &Flags, port: u16) -> Result<Verdict, Failure> {
    let client = flags.carrier.serve()?;
    let socket = bind(&client, flags.carrier.interface.as_deref(), port)?;
    if flags.verbose {
        let (interface, addr) = (socket.interface(), socket.addr());
        out::note(format_args!("port {port} of {addr} on {interface}"));
    }
    copy(flags, socket, None)
}

/// Sends standard input to the node, and accepts only datagrams from it.
pub(super) fn connect(flags: &Flags, node: &str, port: u16) -> Result<Verdict, Failure> {
    let (client, addr) = flags.carrier.reach(node, port)?;
    let interface = match addr.interface {
        Some(interface) => interface,
        None => client.route(addr.addr).map_err(Failure::new)?,
    };
    let socket = bind(&client, Some(&interface), 0)?;
    if flags.verbose {
        let (own, peer) = (socket.port(), addr.addr);
        out::note(format_args!(
            "port {own} on {interface} to {peer} port {port}"
        ));
    }
    copy(flags, socket, Some((addr.addr, port)))
}

fn bind(client: &Client, interface: Option<&str>, port: u16) -> Result<EdpSocket, Failure> {
    let mut builder = EdpSocket::builder();
    if let Some(interface) = interface {
        builder = builder.interface(interface);
    }
    builder.bind_at(client, port).map_err(Failure::new)
}

/// Copies in both directions until -w ends it. Standard input is sent to the peer once there is
/// one.
fn copy(
    flags: &Flags,
    socket: EdpSocket,
    mut peer: Option<(NodeAddr, u16)>,
) -> Result<Verdict, Failure> {
    let is_client = peer.is_some();
    let socket = Arc::new(socket);
    let traffic = Arc::new(Traffic::new(flags.verbose));
    let mut sender = None;
    let mut has_sender = flags.detached;
    let mut buffer = vec![0; socket.max_payload()];
    let mut output = io::stdout().lock();
    loop {
        if let Some(peer) = peer
            && !has_sender
        {
            has_sender = true;
            let (socket, traffic) = (Arc::clone(&socket), Arc::clone(&traffic));
            let named = thread::Builder::new().name("stdin".into());
            let run = move || send(&socket, &traffic, peer);
            sender = Some(named.spawn(run).doing("starting a thread")?);
        }
        if let Some(ended) = sender.take_if(|sender| sender.is_finished()) {
            let sent = ended.join().map_err(|_| Failure::new("a thread failed"))?;
            sent?;
        }
        let is_idle = |limit| traffic.patience(limit).is_zero();
        if flags.wait.is_some_and(is_idle) {
            traffic.report();
            return Ok(Verdict::Done);
        }
        let (count, info) = match socket.recv_from_timeout(&mut buffer, POLL_INTERVAL) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => continue,
            Err(error) => return Err(Failure::broken(error)),
        };
        let src = (info.src, info.src_port);
        if info.kind != EdpKind::Data || (is_client && peer != Some(src)) {
            continue;
        }
        if peer.is_none() && flags.verbose {
            out::note(format_args!("datagrams from {} port {}", src.0, src.1));
        }
        peer = peer.or(Some(src));
        traffic.received(count);
        output.write_all(buffer.get(..count).unwrap_or_default())?;
        output.flush()?;
    }
}

/// Sends the bytes of each read from standard input as one datagram.
fn send(
    socket: &EdpSocket,
    traffic: &Traffic,
    (node, port): (NodeAddr, u16),
) -> Result<(), Failure> {
    let mut input = io::stdin().lock();
    let mut block = vec![0; socket.max_payload()];
    loop {
        let count = match input.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).doing("reading standard input"),
        };
        let bytes = block.get(..count).unwrap_or_default();
        socket.send_to(bytes, node, port).map_err(Failure::broken)?;
        traffic.sent(count);
    }
}
