//! A complete minimal transport: messages between ranks of one process, over queues.
//! `tests/minimal.rs` runs the conformance suite over it; `cargo run -p btl-conformance --example
//! minimal_transport` sends one message.

use btl::*;
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard};

/// Maximum length of a message, header and body, in bytes.
const MAX_SEND: usize = 32 << 10;
/// Maximum number of queued messages from one rank to another.
const ROOM: usize = 64;

/// Queue from one rank to another.
#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<(Vec<u8>, Vec<u8>)>,
    end: Option<PeerError>,
}

/// Transport of one rank.
#[derive(Debug)]
pub struct MinimalBtl {
    rank: Rank,
    /// Queues by sender and receiver.
    queues: Arc<BTreeMap<(Rank, Rank), Mutex<Queue>>>,
    /// Added peers: the error that makes a peer unusable, if any, and whether it was reported.
    peers: BTreeMap<Rank, (Option<PeerError>, bool)>,
    closed: bool,
}

/// Returns the transports of all ranks of a job.
pub fn job(size: u32) -> Vec<MinimalBtl> {
    let pairs = (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
    let queues = Arc::new(pairs.map(|pair| (pair, Mutex::default())).collect());
    let transport = |rank| MinimalBtl {
        rank,
        queues: Arc::clone(&queues),
        peers: BTreeMap::new(),
        closed: false,
    };
    (0..size).map(transport).collect()
}

impl MinimalBtl {
    fn queue(&self, from: Rank, to: Rank) -> MutexGuard<'_, Queue> {
        self.queues[&(from, to)].lock().unwrap()
    }

    fn address_of(&self, rank: Rank) -> Vec<u8> {
        format!("minimal {:p} {rank}", Arc::as_ptr(&self.queues)).into_bytes()
    }
}

impl Tx for MinimalBtl {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        if self.closed {
            return Err(SendError::Closed);
        }
        let (error, _) = self.peers.get(&peer).ok_or(SendError::NoPeer(peer))?;
        if let Some(error) = error.clone() {
            return Err(SendError::Failed { peer, error });
        }
        let length = header.len() + gathered_len(body);
        for (length, limit) in [(header.len(), MAX_HEADER), (length, MAX_SEND)] {
            if length > limit {
                return Err(SendError::TooLong { length, limit });
            }
        }
        let mut queue = self.queue(self.rank, peer);
        if queue.messages.len() == ROOM {
            return Err(SendError::Busy);
        }
        queue
            .messages
            .push_back((header.to_vec(), contiguous(body).into_owned()));
        Ok(())
    }
}

impl HeldSends for MinimalBtl {}
impl NoticedPuts for MinimalBtl {}
impl PendingPeers for MinimalBtl {}

impl Btl for MinimalBtl {
    fn name(&self) -> &'static str {
        "minimal"
    }

    fn address(&self) -> Vec<u8> {
        self.address_of(self.rank)
    }

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        let known = self.queues.contains_key(&(self.rank, peer));
        if self.closed || !known || address != self.address_of(peer) {
            let reason = "closed, or the address of another job or rank".to_owned();
            return Err(Unreachable { reason });
        }
        self.peers.entry(peer).or_default();
        Ok(PeerInfo {
            latency_ns: 100,
            bandwidth: 1000,
            eager: 4096,
            max_send: MAX_SEND,
            reason: "a queue within the process".to_owned(),
            ..PeerInfo::default()
        })
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        let mut done = 0;
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            let (error, reported) = self.peers[&peer].clone();
            if self.closed || reported {
                continue;
            }
            // Popped and unlocked before the callback, which may send.
            let mut queue = self.queue(peer, self.rank);
            let (message, end) = (queue.messages.pop_front(), queue.end.clone());
            drop(queue);
            match (error, message, end) {
                (None, Some((header, body)), _) => events.message(self, peer, &header, &body),
                (Some(error), ..) | (None, None, Some(error)) => {
                    self.peers.insert(peer, (Some(error.clone()), true));
                    events.failed(self, peer, error);
                }
                (None, None, None) => continue,
            }
            done += 1;
        }
        done
    }

    fn drop_peer(&mut self, peer: Rank) -> bool {
        if let Some((state @ None, _)) = self.peers.get_mut(&peer) {
            let error = PeerError::Lost("the peer was dropped".to_owned());
            *state = Some(error.clone());
            self.queue(self.rank, peer).end.get_or_insert(error);
        }
        true
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn close(&mut self) {
        self.closed = true;
        for (_, to) in self.queues.keys().filter(|pair| pair.0 == self.rank) {
            let mut queue = self.queue(self.rank, *to);
            queue.end.get_or_insert(PeerError::Left);
        }
    }
}

impl Drop for MinimalBtl {
    fn drop(&mut self) {
        self.close();
    }
}

struct Print;
impl Events for Print {
    fn message(&mut self, _: &mut dyn Tx, peer: Rank, _: &[u8], body: &[u8]) {
        println!("from rank {peer}: {}", body.escape_ascii());
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, _: Rank, _: PeerError) {}
}

#[allow(dead_code)] // Unused by the test, which includes this file.
fn main() {
    let mut btl = job(1).remove(0);
    let address = btl.address();
    btl.add_peer(0, &address).unwrap();
    btl.send(0, b"", &[IoSlice::new(b"hello")]).unwrap();
    btl.progress(&mut Print);
}
