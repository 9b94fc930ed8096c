//! A transport over Unix stream sockets with names in the abstract namespace: messages only.
//!
//! Each rank connects to each and sends on its own connections only; it reads the accepted ones. The end of one that did not say
//! that it leaves is a death.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::IoSlice;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use btl::{
    Btl, Capabilities, Events, HeldSends, MAX_HEADER, NoticedPuts, PeerError, PeerInfo,
    PendingPeers, PostedReceives, Rank, SendError, Tx, Unreachable,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

const MAX_SEND: usize = 32 << 10;
/// Bytes that wait for a connection; more is `Busy`.
const MOST_WAITING: usize = 128 << 10;
/// In place of the header's length: the peer leaves.
const LEAVES: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct SocketBtl {
    rank: Rank,
    size: u32,
    job: String,
    /// Says that all is out when it is not.
    lies: bool,
    listener: UnixListener,
    epoll: OwnedFd,
    out: BTreeMap<Rank, Out>,
    /// Accepted, and who is at the other end once it has said so.
    incoming: Vec<In>,
    /// Peers whose failure was told.
    failed: BTreeMap<Rank, PeerError>,
    dropped: BTreeSet<Rank>,
    closed: bool,
}

#[derive(Debug)]
struct Out {
    stream: UnixStream,
    bytes: VecDeque<u8>,
}

#[derive(Debug)]
struct In {
    stream: UnixStream,
    peer: Option<Rank>,
    bytes: Vec<u8>,
    left: bool,
    over: bool,
}

impl SocketBtl {
    pub(crate) fn new(rank: Rank, size: u32, job: &str, lies: bool) -> io::Result<SocketBtl> {
        let listener = UnixListener::bind_addr(&address(job, rank)?)?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            &listener,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )?;
        Ok(SocketBtl {
            rank,
            size,
            job: job.into(),
            lies,
            listener,
            epoll,
            out: BTreeMap::new(),
            incoming: Vec::new(),
            failed: BTreeMap::new(),
            dropped: BTreeSet::new(),
            closed: false,
        })
    }

    fn connect(&self, peer: Rank) -> io::Result<UnixStream> {
        let mut stream = UnixStream::connect_addr(&address(&self.job, peer)?)?;
        stream.write_all(&self.rank.to_le_bytes())?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    fn write_out(&mut self) -> usize {
        let mut done = 0;
        for out in self.out.values_mut() {
            // Who lies keeps the last byte.
            let kept = usize::from(self.lies);
            while out.bytes.len() > kept {
                let bytes = out.bytes.as_slices().0;
                match out
                    .stream
                    .write(&bytes[..bytes.len().min(out.bytes.len() - kept)])
                {
                    Ok(count) => drop(out.bytes.drain(..count)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // The reading side will tell.
                    Err(_) => out.bytes.clear(),
                }
                done += 1;
            }
        }
        done
    }

    fn read_in(&mut self) -> usize {
        let mut done = 0;
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                let data = epoll::EventData::new_u64(0);
                let _ = epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN);
                self.incoming.push(In {
                    stream,
                    peer: None,
                    bytes: Vec::new(),
                    left: false,
                    over: false,
                });
            }
            done += 1;
        }
        let mut buffer = [0; 64 << 10];
        for one in &mut self.incoming {
            // What is here already comes first.
            if one.over || one.bytes.len() > 2 * MAX_SEND {
                continue;
            }
            match one.stream.read(&mut buffer) {
                Ok(0) => one.over = true,
                Ok(count) => one.bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => one.over = true,
            }
            if one.over {
                let _ = epoll::delete(&self.epoll, &one.stream);
            }
            done += 1;
        }
        done
    }

    /// The next complete message of a connection, of a peer that was added.
    fn next(&mut self, index: usize) -> Option<(Rank, Vec<u8>, Vec<u8>)> {
        let one = self.incoming.get_mut(index)?;
        if one.peer.is_none() && one.bytes.len() >= 4 {
            one.peer = Some(Rank::from_le_bytes(one.bytes[..4].try_into().ok()?));
            one.bytes.drain(..4);
        }
        let peer = one.peer.filter(|peer| self.out.contains_key(peer))?;
        let header = u32::from_le_bytes(one.bytes.get(..4)?.try_into().ok()?);
        if header == LEAVES {
            one.left = true;
            return None;
        }
        let body = u32::from_le_bytes(one.bytes.get(4..8)?.try_into().ok()?) as usize;
        let end = 8 + header as usize + body;
        if one.bytes.len() < end {
            return None;
        }
        let rest = one.bytes.split_off(end);
        let message = std::mem::replace(&mut one.bytes, rest);
        Some((
            peer,
            message[8..8 + header as usize].to_vec(),
            message[8 + header as usize..].to_vec(),
        ))
    }

    fn deliver(&mut self, events: &mut dyn Events) -> usize {
        let mut done = 0;
        for index in 0..self.incoming.len() {
            for _ in 0..16 {
                let Some((peer, header, body)) = self.next(index) else {
                    break;
                };
                events.message(self, peer, &header, &body);
                done += 1;
            }
        }
        done
    }

    fn tell_failed(&mut self, events: &mut dyn Events) -> usize {
        let mut done = 0;
        for index in 0..self.incoming.len() {
            let left = self.incoming[index].left;
            // A part of a message may be there still, a whole one not.
            let over = left || self.incoming[index].over;
            let Some(peer) = self.incoming[index]
                .peer
                .filter(|peer| over && self.out.contains_key(peer))
            else {
                continue;
            };
            if self.failed.contains_key(&peer) || (!left && self.is_whole(index)) {
                continue;
            }
            let error = match left {
                _ if self.dropped.contains(&peer) => PeerError::Lost("closed out".into()),
                true => PeerError::Left,
                false => PeerError::Died,
            };
            self.failed.insert(peer, error.clone());
            events.failed(self, peer, error);
            done += 1;
        }
        done
    }

    fn is_whole(&self, index: usize) -> bool {
        let bytes = &self.incoming[index].bytes;
        let word = |at: usize| {
            bytes
                .get(at..at + 4)
                .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        };
        match (word(0), word(4)) {
            (Some(LEAVES), _) => true,
            (Some(header), Some(body)) => bytes.len() >= 8 + header as usize + body as usize,
            _ => false,
        }
    }
}

impl Out {
    /// All is out, and there is room for the word that this rank leaves.
    fn is_flushed(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::OUT)];
        self.bytes.is_empty()
            && poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for SocketBtl {
    fn drop(&mut self) {
        self.close();
    }
}

fn address(job: &str, rank: Rank) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("btl-test-{job}-{rank}"))
}

impl Tx for SocketBtl {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        if self.closed {
            return Err(SendError::Closed);
        }
        let Some(out) = self.out.get_mut(&peer) else {
            return Err(SendError::NoPeer(peer));
        };
        if let Some(error) = self.failed.get(&peer) {
            return Err(SendError::Failed {
                peer,
                error: error.clone(),
            });
        }
        if self.dropped.contains(&peer) {
            return Err(SendError::Failed {
                peer,
                error: PeerError::Lost("closed out".into()),
            });
        }
        if header.len() > MAX_HEADER {
            return Err(SendError::TooLong {
                length: header.len(),
                limit: MAX_HEADER,
            });
        }
        let length = header.len() + btl::gathered_len(body);
        if length > MAX_SEND {
            return Err(SendError::TooLong {
                length,
                limit: MAX_SEND,
            });
        }
        if out.bytes.len() > MOST_WAITING {
            return Err(SendError::Busy);
        }
        out.bytes.extend((header.len() as u32).to_le_bytes());
        out.bytes
            .extend((btl::gathered_len(body) as u32).to_le_bytes());
        out.bytes.extend(header);
        out.bytes.extend(body.iter().flat_map(|part| part.iter()));
        Ok(())
    }
}

impl PostedReceives for SocketBtl {}

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
        format!("{} {}", self.job, self.rank).into_bytes()
    }

    fn add_peer(&mut self, peer: Rank, card: &[u8]) -> Result<PeerInfo, Unreachable> {
        if self.closed || peer >= self.size || card != format!("{} {peer}", self.job).as_bytes() {
            return Err(Unreachable {
                reason: "closed, or a card of another job or rank".into(),
            });
        }
        let stream = self.connect(peer).map_err(|error| Unreachable {
            reason: error.to_string(),
        })?;
        self.out.insert(
            peer,
            Out {
                stream,
                bytes: VecDeque::new(),
            },
        );
        Ok(PeerInfo {
            latency_ns: 5000,
            bandwidth: 1000,
            exclusivity: 1,
            eager: 4096,
            eager_skewed: 4096,
            max_send: MAX_SEND,
            one_sided: false,
            one_sided_from: usize::MAX,
            reason: "connected".into(),
        })
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        if self.closed {
            return 0;
        }
        self.read_in() + self.deliver(events) + self.tell_failed(events) + self.write_out()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn arm(&mut self) -> bool {
        self.write_out();
        let waiting = self.out.values().any(|out| !out.bytes.is_empty());
        let here = (0..self.incoming.len()).any(|index| {
            let one = &self.incoming[index];
            let told = one.peer.is_none_or(|peer| {
                self.failed.contains_key(&peer) || !self.out.contains_key(&peer)
            });
            self.is_whole(index) || (one.over && !told)
        });
        !waiting && !here
    }

    fn drop_peer(&mut self, peer: Rank) -> bool {
        self.write_out();
        if self.failed.contains_key(&peer) || self.dropped.contains(&peer) {
            return true;
        }
        let Some(out) = self.out.get_mut(&peer) else {
            return true;
        };
        if !out.bytes.is_empty() {
            return false;
        }
        let _ = out.stream.shutdown(Shutdown::Both);
        self.dropped.insert(peer);
        for one in self
            .incoming
            .iter_mut()
            .filter(|one| one.peer == Some(peer))
        {
            let _ = epoll::delete(&self.epoll, &one.stream);
            one.bytes.clear();
            one.over = true;
        }
        true
    }

    fn flush(&mut self) -> bool {
        self.write_out();
        self.lies
            || self.closed
            || self
                .out
                .iter()
                .all(|(peer, out)| out.is_flushed() || self.failed.contains_key(peer))
    }

    fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            for out in self.out.values_mut() {
                if out.bytes.is_empty() {
                    let _ = out.stream.write(&LEAVES.to_le_bytes());
                }
            }
            self.out.clear();
            self.incoming.clear();
        }
    }
}
