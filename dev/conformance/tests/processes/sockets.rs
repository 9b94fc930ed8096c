//! A transport between processes of one node, over Unix sockets of type SEQPACKET.
//!
//! Every rank listens on an abstract address. It connects to each peer, sends only on its own
//! connections and only reads accepted ones. The kernel keeps the order, bounds the queues, and
//! reports the end of a process.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use btl::{
    Btl, Capabilities, Events, HeldSends, MAX_HEADER, NoticedPuts, PeerError, PeerInfo,
    PendingPeers, Rank, SendError, Tx, Unreachable, gathered_len,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, connect, listen, recv, send, sendmsg, shutdown,
    socket_with,
};

/// Maximum length of a message, header and body, in bytes.
const MAX_SEND: usize = 32 << 10;
/// Maximum number of packets that one `progress` reads from one connection.
const BURST: usize = 16;
/// A packet of this single byte announces that the peer closes its transport. In all others the
/// first byte is the length of the header.
const LEAVING: u8 = u8::MAX;

/// Transport of one rank.
#[derive(Debug)]
pub(crate) struct SocketBtl {
    rank: Rank,
    job: String,
    /// Contains `listener` and every accepted connection.
    epoll: OwnedFd,
    listener: OwnedFd,
    /// Own connections to the added peers.
    outgoing: BTreeMap<Rank, OwnedFd>,
    accepted: Vec<Accepted>,
    /// Errors of peers that cannot be sent to any more.
    failed: BTreeMap<Rank, PeerError>,
    closed: bool,
}

/// A connection accepted from a peer.
#[derive(Debug)]
struct Accepted {
    socket: OwnedFd,
    /// Rank of the peer, known from its first packet.
    peer: Option<Rank>,
    /// Error of the connection, set at its end.
    end: Option<PeerError>,
}

fn address(job: &str, rank: Rank) -> io::Result<SocketAddrUnix> {
    let name = format!("socket-btl-{job}-{rank}");
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | flags;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

impl SocketBtl {
    /// Starts listening.
    pub(crate) fn new(rank: Rank, job: &str) -> io::Result<SocketBtl> {
        let listener = new_socket(SocketFlags::NONBLOCK)?;
        bind(&listener, &address(job, rank)?)?;
        listen(&listener, 128)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &listener, data, epoll::EventFlags::IN)?;
        Ok(SocketBtl {
            rank,
            job: job.into(),
            epoll,
            listener,
            outgoing: BTreeMap::new(),
            accepted: Vec::new(),
            failed: BTreeMap::new(),
            closed: false,
        })
    }

    /// Connects and sends this rank's number.
    fn connect(&self, peer: Rank) -> io::Result<OwnedFd> {
        let socket = new_socket(SocketFlags::empty())?;
        connect(&socket, &address(&self.job, peer)?)?;
        send(&socket, &self.rank.to_le_bytes(), SendFlags::NOSIGNAL)?;
        Ok(socket)
    }

    fn accept(&mut self) -> usize {
        let before = self.accepted.len();
        while let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC) {
            let data = epoll::EventData::new_u64(0);
            if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
                self.accepted.push(Accepted {
                    socket,
                    peer: None,
                    end: None,
                });
            }
        }
        self.accepted.len() - before
    }

    /// Reads and delivers one packet of a connection. Returns whether there was one.
    fn read(&mut self, index: usize, events: &mut dyn Events) -> bool {
        let mut packet = [0; 1 + MAX_SEND];
        // A callback may have closed the transport.
        let Some(from) = self
            .accepted
            .get_mut(index)
            .filter(|from| from.end.is_none())
        else {
            return false;
        };
        let length = match recv(&from.socket, &mut packet[..], RecvFlags::DONTWAIT) {
            Ok((length, _)) => length,
            Err(rustix::io::Errno::AGAIN) => return false,
            Err(_) => 0,
        };
        match (packet.get(..length).unwrap_or_default(), from.peer) {
            ([], _) => from.end = Some(PeerError::Died),
            (&[a, b, c, d], None) => from.peer = Some(Rank::from_le_bytes([a, b, c, d])),
            (&[LEAVING], Some(_)) => from.end = Some(PeerError::Left),
            (&[header, ref rest @ ..], Some(peer)) if usize::from(header) <= rest.len() => {
                let (header, body) = rest.split_at(usize::from(header));
                events.message(self, peer, header, body);
            }
            _ => from.end = Some(PeerError::Violation("a malformed packet".into())),
        }
        true
    }

    /// Reports the peers whose connections have ended.
    fn report_ends(&mut self, events: &mut dyn Events) -> usize {
        let mut reports = 0;
        for index in 0..self.accepted.len() {
            let Some(Accepted {
                socket,
                peer,
                end: Some(error),
            }) = self.accepted.get(index)
            else {
                continue;
            };
            let _ = epoll::delete(&self.epoll, socket);
            if let Some(peer) = *peer
                && self.outgoing.contains_key(&peer)
                && !self.failed.contains_key(&peer)
            {
                let error = error.clone();
                self.failed.insert(peer, error.clone());
                events.failed(self, peer, error);
                reports += 1;
            }
        }
        reports
    }
}

impl Tx for SocketBtl {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        if self.closed {
            return Err(SendError::Closed);
        }
        let socket = self.outgoing.get(&peer).ok_or(SendError::NoPeer(peer))?;
        if let Some(error) = self.failed.get(&peer).cloned() {
            return Err(SendError::Failed { peer, error });
        }
        let length = header.len() + gathered_len(body);
        for (length, limit) in [(header.len(), MAX_HEADER), (length, MAX_SEND)] {
            if length > limit {
                return Err(SendError::TooLong { length, limit });
            }
        }
        let first = [header.len() as u8];
        let mut parts = vec![IoSlice::new(&first), IoSlice::new(header)];
        parts.extend_from_slice(body);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Errors of a connection that accepts nothing are reported by its other direction.
        sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags)
            .map(|_| ())
            .map_err(|_| SendError::Busy)
    }
}

impl HeldSends for SocketBtl {}

impl NoticedPuts for SocketBtl {}

impl PendingPeers for SocketBtl {}

impl Btl for SocketBtl {
    fn name(&self) -> &'static str {
        "socket"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            blocking: true,
            detects_death: true,
            ..Capabilities::default()
        }
    }

    fn address(&self) -> Vec<u8> {
        format!("socket {} {}", self.job, self.rank).into_bytes()
    }

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        let unreachable = |reason: String| Unreachable { reason };
        if self.closed || address != format!("socket {} {peer}", self.job).as_bytes() {
            return Err(unreachable(
                "closed, or the address of another job or rank".into(),
            ));
        }
        if !self.outgoing.contains_key(&peer) {
            let socket = self
                .connect(peer)
                .map_err(|error| unreachable(error.to_string()))?;
            self.outgoing.insert(peer, socket);
        }
        Ok(PeerInfo {
            latency_ns: 5000,
            bandwidth: 1000,
            exclusivity: 1,
            eager: 4096,
            eager_skewed: 4096,
            max_send: MAX_SEND,
            one_sided: false,
            one_sided_from: usize::MAX,
            reason: "a socket of this node".into(),
        })
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        if self.closed {
            return 0;
        }
        let mut done = self.accept();
        for index in 0..self.accepted.len() {
            done += (0..BURST).take_while(|_| self.read(index, events)).count();
        }
        done + self.report_ends(events)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    /// The descriptor stays readable while an event is there, so sleeping is always allowed.
    fn arm(&mut self) -> bool {
        true
    }

    fn drop_peer(&mut self, peer: Rank) -> bool {
        if let Some(socket) = self.outgoing.get(&peer)
            && !self.failed.contains_key(&peer)
        {
            let _ = shutdown(socket, Shutdown::Both);
            for from in self
                .accepted
                .iter_mut()
                .filter(|from| from.peer == Some(peer))
            {
                from.end = Some(PeerError::Lost("this process dropped the peer".into()));
            }
        }
        true
    }

    /// The kernel has all messages already, but the one that `close` sends needs room.
    fn flush(&mut self) -> bool {
        self.outgoing.iter().all(|(peer, socket)| {
            let mut fds = [PollFd::new(socket, PollFlags::OUT)];
            self.failed.contains_key(peer)
                || poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        })
    }

    fn close(&mut self) {
        self.closed = true;
        for socket in std::mem::take(&mut self.outgoing).values() {
            let _ = send(
                socket,
                &[LEAVING],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
        }
        self.accepted.clear();
    }
}

impl Drop for SocketBtl {
    fn drop(&mut self) {
        if !self.closed {
            self.close();
        }
    }
}
