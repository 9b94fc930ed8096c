//! A fabric of interfaces inside one process: reliable connections, RDMA, shared receives and datagrams with the rules of verbs
//! and without hardware, for tests. What happens is decided by the calls and a seed alone.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::nic::{
    About, Completion, FLUSHED, GOOD, MAX_DATAGRAM, NO_ANSWER, Nic, NicError, Place, Queue, REMOTE_ACCESS,
    Registered, Remote, Sge, Source, Verb,
};

/// The interfaces of a test.
#[derive(Clone, Debug, Default)]
pub struct Fabric(Arc<Mutex<Net>>);

#[derive(Debug, Default)]
struct Net {
    nodes: Vec<Node>,
    /// Of a million datagrams, so many are lost.
    loss: u64,
    seed: u64,
}

#[derive(Debug)]
struct Node {
    alive: bool,
    /// By key: start, length, open to peers.
    memory: HashMap<u32, (u64, u64, bool)>,
    queues: BTreeMap<u32, End>,
    inbox: VecDeque<Completion>,
    shared: VecDeque<(u32, Sge)>,
    uses_shared: bool,
    bell: OwnedFd,
    armed: bool,
    next: u32,
    registrations: u64,
    /// Registrations of more bytes than this in all are refused.
    limit: u64,
}

#[derive(Debug)]
struct End {
    number: u32,
    peer: Option<(usize, u32)>,
    depth: usize,
    receives: usize,
    waiting: VecDeque<Request>,
    /// Over, and nobody was told.
    untold: usize,
    broken: bool,
}

#[derive(Clone, Debug)]
struct Request {
    id: u64,
    verb: Verb,
    local: Vec<Sge>,
    /// Instead of `local`: bytes that came with the request.
    carried: Option<Vec<u8>>,
    /// A good end is told.
    tell: bool,
    remote: (u64, u32),
}

/// What became of the oldest request of a queue pair.
enum Went {
    Done,
    Waits,
    Bad(u32),
}

impl Fabric {
    /// None yet.
    #[must_use]
    pub fn new() -> Fabric {
        Fabric::default()
    }

    /// Loses this many of a million datagrams.
    pub fn lose_datagrams(&self, of_a_million: u64, seed: u64) {
        let mut net = self.lock();
        (net.loss, net.seed) = (of_a_million, seed | 1);
    }

    /// One more interface, and its number.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn nic(&self) -> std::io::Result<(usize, FabricNic)> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let fd = bell.try_clone()?;
        let mut net = self.lock();
        let at = net.nodes.len();
        net.nodes.push(Node {
            alive: true,
            memory: HashMap::new(),
            queues: BTreeMap::new(),
            inbox: VecDeque::new(),
            shared: VecDeque::new(),
            uses_shared: false,
            bell,
            armed: false,
            next: 0,
            registrations: 0,
            limit: u64::MAX,
        });
        let mut gid = [0; 16];
        gid[8..].copy_from_slice(&(at as u64 + 1).to_be_bytes());
        let place = Place { gid, lid: 0, qpn: 1, qkey: 0x1234 };
        let about = About {
            device: format!("fake{at}"),
            port: 1,
            ethernet: true,
            place,
            mtu: 5,
            bandwidth: 1000,
            max_completions: 1 << 20,
            max_message: 1 << 20,
            inline: 188,
        };
        Ok((at, FabricNic { net: Arc::clone(&self.0), at, about, fd }))
    }

    /// Ends one as if its process had been killed.
    pub fn kill(&self, at: usize) {
        let mut net = self.lock();
        net.end(at);
    }

    /// Breaks the connection between two.
    pub fn cut(&self, one: usize, other: usize) {
        let mut net = self.lock();
        for (at, to) in [(one, other), (other, one)] {
            let numbers = net.nodes.get(at).map(|node| {
                node.queues
                    .iter()
                    .filter(|(_, end)| end.peer.is_some_and(|peer| peer.0 == to))
                    .map(|(n, _)| *n)
                    .collect()
            });
            for number in numbers.unwrap_or_else(Vec::new) {
                net.break_off(at, number, NO_ANSWER);
            }
        }
    }

    /// How often memory was registered at one.
    #[must_use]
    pub fn registrations(&self, at: usize) -> u64 {
        self.lock().nodes.get(at).map_or(0, |node| node.registrations)
    }

    /// Bytes and pieces that are registered at one.
    #[must_use]
    pub fn registered(&self, at: usize) -> (u64, usize) {
        self.lock()
            .nodes
            .get(at)
            .map_or((0, 0), |node| (node.memory.values().map(|memory| memory.1).sum(), node.memory.len()))
    }

    /// Refuses more than this many registered bytes at one.
    pub fn limit(&self, at: usize, bytes: u64) {
        if let Some(node) = self.lock().nodes.get_mut(at) {
            node.limit = bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    fn tell(&mut self, completion: Completion) {
        self.inbox.push_back(completion);
        if std::mem::take(&mut self.armed) {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// May this key be used for these bytes?
    fn covers(&self, address: u64, length: u64, key: u32, by_peer: bool) -> bool {
        self.memory.get(&key).is_some_and(|(start, size, remote)| {
            (*remote || !by_peer)
                && address >= *start
                && address.checked_add(length).is_some_and(|end| end <= start + size)
        })
    }
}

/// # Safety
/// Both sides are registered, so mapped, and the fabric's lock is held.
unsafe fn copy(from: u64, to: u64, length: usize) {
    let from: *const u8 = ptr::with_exposed_provenance(from as usize);
    let to: *mut u8 = ptr::with_exposed_provenance_mut(to as usize);
    // SAFETY: as promised; they may overlap if a test wants that.
    unsafe { ptr::copy(from, to, length) };
}

impl Net {
    fn end(&mut self, at: usize) {
        let Some(node) = self.nodes.get_mut(at) else { return };
        node.alive = false;
        node.memory.clear();
        node.queues.clear();
        node.inbox.clear();
        node.shared.clear();
        self.run_towards(at);
    }

    fn break_off(&mut self, at: usize, number: u32, status: u32) {
        let Some(node) = self.nodes.get_mut(at) else { return };
        let Some(end) = node.queues.get_mut(&number) else { return };
        end.broken = true;
        let mut status = status;
        let mut told = Vec::new();
        for request in end.waiting.drain(..) {
            told.push(Completion::Done { id: request.id, status });
            status = FLUSHED;
        }
        if std::mem::take(&mut end.receives) > 0 {
            told.push(Completion::Arrived {
                connection: end.number,
                status: FLUSHED,
                immediate: None,
                shared: None,
            });
        }
        told.into_iter().for_each(|completion| node.tell(completion));
    }

    /// Lets all go on that send to this node.
    fn run_towards(&mut self, to: usize) {
        for at in 0..self.nodes.len() {
            let numbers: Vec<u32> = self.nodes[at]
                .queues
                .iter()
                .filter(|(_, end)| end.peer.is_some_and(|peer| peer.0 == to))
                .map(|(number, _)| *number)
                .collect();
            numbers.into_iter().for_each(|number| self.run(at, number));
        }
    }

    fn run(&mut self, at: usize, number: u32) {
        loop {
            let Some(end) = self.nodes.get(at).and_then(|node| node.queues.get(&number)) else { return };
            let (Some(request), Some(peer), false) = (end.waiting.front().cloned(), end.peer, end.broken)
            else {
                return;
            };
            match self.attempt(at, number, peer, &request) {
                Went::Waits => return,
                Went::Bad(status) => {
                    if status == REMOTE_ACCESS {
                        self.break_off(peer.0, peer.1, FLUSHED);
                    }
                    return self.break_off(at, number, status);
                }
                Went::Done => {
                    let node = &mut self.nodes[at];
                    if let Some(end) = node.queues.get_mut(&number) {
                        end.waiting.pop_front();
                        end.untold = if request.tell { 0 } else { end.untold + 1 };
                    }
                    if request.tell {
                        node.tell(Completion::Done { id: request.id, status: GOOD });
                    }
                }
            }
        }
    }

    fn attempt(&mut self, at: usize, number: u32, peer: (usize, u32), request: &Request) -> Went {
        let Some(target) = self.nodes.get(peer.0).filter(|node| node.alive) else {
            return Went::Bad(NO_ANSWER);
        };
        let Some(end) = target.queues.get(&peer.1).filter(|end| !end.broken) else {
            return Went::Bad(NO_ANSWER);
        };
        match end.peer {
            None => return Went::Waits,
            Some(back) if back != (at, number) => return Went::Bad(NO_ANSWER),
            Some(_) => {}
        }
        let (connection, shares) = (end.number, target.uses_shared);
        let carried = request.carried.as_ref().map(|bytes| Sge {
            address: bytes.as_ptr().expose_provenance() as u64,
            length: bytes.len() as u32,
            lkey: 0,
        });
        let pieces = carried.as_ref().map_or(&request.local[..], std::slice::from_ref);
        let length: u64 = pieces.iter().map(|sge| u64::from(sge.length)).sum();
        let own = &self.nodes[at];
        if !request.local.iter().all(|sge| own.covers(sge.address, sge.length.into(), sge.lkey, false)) {
            return Went::Bad(4);
        }
        let (mut place, immediate) = match request.verb {
            Verb::Send(immediate) => (None, Some(immediate)),
            Verb::Write(immediate) => (Some(request.remote), immediate),
            Verb::Read => (Some(request.remote), None),
        };
        if place.is_some_and(|(address, key)| length > 0 && !target.covers(address, length, key, true)) {
            return Went::Bad(REMOTE_ACCESS);
        }
        let mut shared = None;
        if immediate.is_some() {
            let there = if shares { target.shared.front().copied() } else { None };
            if (shares && there.is_none()) || (!shares && end.receives == 0) {
                return Went::Waits;
            }
            if let Some((index, buffer)) = there {
                if place.is_none() && length > u64::from(buffer.length) {
                    return Went::Bad(REMOTE_ACCESS);
                }
                shared = Some((index, length as u32));
                place = place.or(Some((buffer.address, buffer.lkey)));
            } else if place.is_none() && length > 0 {
                return Went::Bad(REMOTE_ACCESS);
            }
        }
        let mut other = place.map_or(0, |(address, _)| address);
        for sge in pieces {
            let (from, to) =
                if request.verb == Verb::Read { (other, sge.address) } else { (sge.address, other) };
            // SAFETY: both were just looked up; registrations end under the same lock.
            unsafe { copy(from, to, sge.length as usize) };
            other += u64::from(sge.length);
        }
        if immediate.is_some() {
            let target = &mut self.nodes[peer.0];
            if shares {
                target.shared.pop_front();
            } else if let Some(end) = target.queues.get_mut(&peer.1) {
                end.receives -= 1;
            }
            target.tell(Completion::Arrived { connection, status: GOOD, immediate, shared });
        }
        Went::Done
    }
}

/// One of its interfaces.
#[derive(Debug)]
pub struct FabricNic {
    net: Arc<Mutex<Net>>,
    at: usize,
    about: About,
    fd: OwnedFd,
}

impl FabricNic {
    fn lock(&self) -> MutexGuard<'_, Net> {
        self.net.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(call: &'static str, errno: i32) -> NicError {
    NicError { call, errno }
}

impl FabricNic {
    fn request(&mut self, queue: Queue, request: Request) -> Result<(), NicError> {
        let at = self.at;
        let mut net = self.lock();
        if !net.nodes[at].alive {
            // Nobody hears of it any more.
            return Ok(());
        }
        let Some(end) = net.nodes[at].queues.get_mut(&queue.0) else {
            return Err(failed("ibv_post_send", libc::ENOTCONN));
        };
        // One that nobody is told of keeps its place until a later one is over.
        if end.waiting.len() + end.untold >= end.depth {
            return Err(failed("ibv_post_send", libc::ENOMEM));
        }
        end.waiting.push_back(request);
        if end.broken {
            net.break_off(at, queue.0, FLUSHED);
        } else {
            net.run(at, queue.0);
        }
        Ok(())
    }
}

impl Nic for FabricNic {
    fn about(&self) -> &About {
        &self.about
    }

    unsafe fn register(
        &mut self,
        address: usize,
        length: usize,
        remote: bool,
    ) -> Result<Registered, NicError> {
        let at = self.at;
        let mut net = self.lock();
        let node = &mut net.nodes[at];
        let sum: u64 = node.memory.values().map(|memory| memory.1).sum();
        if sum.saturating_add(length as u64) > node.limit {
            return Err(failed("ibv_reg_mr", libc::ENOMEM));
        }
        node.next += 1;
        node.registrations += 1;
        // Keys differ from node to node, so that one used at the wrong place is noticed.
        let key = node.next << 8 | (at as u32 & 0xff);
        node.memory.insert(key, (address as u64, length as u64, remote));
        Ok(Registered { id: key.into(), lkey: key, rkey: key })
    }

    fn deregister(&mut self, id: u64) {
        let at = self.at;
        self.lock().nodes[at].memory.remove(&(id as u32));
    }

    fn open(&mut self, number: u32, depth: usize) -> Result<(Queue, u32), NicError> {
        let at = self.at;
        let mut net = self.lock();
        let node = &mut net.nodes[at];
        node.next += 1;
        let qpn = node.next;
        let end = End {
            number,
            peer: None,
            depth,
            receives: 0,
            waiting: VecDeque::new(),
            untold: 0,
            broken: false,
        };
        node.queues.insert(qpn, end);
        Ok((Queue(qpn), qpn))
    }

    fn connect(&mut self, queue: Queue, remote: &Remote) -> Result<(), NicError> {
        let at = self.at;
        let mut net = self.lock();
        let mut eight = [0; 8];
        eight.copy_from_slice(&remote.place.gid[8..]);
        let to = (u64::from_be_bytes(eight) as usize).wrapping_sub(1);
        let Some(end) = net.nodes[at].queues.get_mut(&queue.0) else { return Ok(()) };
        end.peer = Some((to, remote.qpn));
        net.run_towards(at);
        Ok(())
    }

    fn stop(&mut self, queue: Queue) {
        let at = self.at;
        self.lock().break_off(at, queue.0, FLUSHED);
    }

    fn close(&mut self, queue: Queue) {
        let at = self.at;
        let mut net = self.lock();
        net.nodes[at].queues.remove(&queue.0);
        net.run_towards(at);
    }

    unsafe fn post(
        &mut self,
        queue: Queue,
        id: u64,
        verb: Verb,
        local: &[Sge],
        remote: (u64, u32),
    ) -> Result<(), NicError> {
        self.request(queue, Request { id, verb, local: local.to_vec(), carried: None, tell: true, remote })
    }

    unsafe fn post_inline(
        &mut self,
        queue: Queue,
        id: u64,
        verb: Verb,
        local: &[Sge],
        remote: (u64, u32),
        tell: bool,
    ) -> Result<(), NicError> {
        let mut bytes = Vec::new();
        for sge in local {
            let start: *const u8 = ptr::with_exposed_provenance(sge.address as usize);
            // SAFETY: as promised to us.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(start, sge.length as usize) });
        }
        if bytes.len() > self.about.inline {
            return Err(failed("ibv_post_send", libc::ENOMEM));
        }
        self.request(queue, Request { id, verb, local: Vec::new(), carried: Some(bytes), tell, remote })
    }

    fn expect(&mut self, queue: Queue, count: usize) -> Result<(), NicError> {
        let at = self.at;
        let mut net = self.lock();
        if let Some(end) = net.nodes[at].queues.get_mut(&queue.0) {
            end.receives += count;
        }
        net.run_towards(at);
        Ok(())
    }

    unsafe fn share(&mut self, index: u32, buffer: Sge, _most: usize) -> Result<(), NicError> {
        let at = self.at;
        let mut net = self.lock();
        net.nodes[at].uses_shared = true;
        net.nodes[at].shared.push_back((index, buffer));
        net.run_towards(at);
        Ok(())
    }

    fn datagram(&mut self, to: &Place, bytes: &[u8]) -> Result<(), NicError> {
        let mut eight = [0; 8];
        eight.copy_from_slice(&to.gid[8..]);
        let to = (u64::from_be_bytes(eight) as usize).wrapping_sub(1);
        let mut net = self.lock();
        if net.loss > 0 {
            net.seed ^= net.seed << 13;
            net.seed ^= net.seed >> 7;
            net.seed ^= net.seed << 17;
            if net.seed % 1_000_000 < net.loss {
                return Ok(());
            }
        }
        let Some(node) = net.nodes.get_mut(to) else {
            return Err(failed("ibv_create_ah", libc::EHOSTUNREACH));
        };
        if node.alive {
            let place = self.about.place;
            let from = Source { gid: Some(place.gid), lid: place.lid, qpn: place.qpn };
            let bytes = bytes.get(..MAX_DATAGRAM).unwrap_or(bytes).to_vec();
            node.tell(Completion::Datagram { from, bytes });
        }
        Ok(())
    }

    fn poll(&mut self, most: usize, out: &mut Vec<Completion>) -> Result<(), NicError> {
        let at = self.at;
        let mut net = self.lock();
        let inbox = &mut net.nodes[at].inbox;
        let count = inbox.len().min(most);
        out.extend(inbox.drain(..count));
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn arm(&mut self) {
        let at = self.at;
        self.lock().nodes[at].armed = true;
    }

    fn calm(&mut self) {
        let mut eight = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut eight);
    }
}

impl Drop for FabricNic {
    fn drop(&mut self) {
        let at = self.at;
        self.lock().end(at);
    }
}
