//! A loopback transport that breaks one promise.

mod fault;
mod spoiler;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use btl::{
    Btl, Events, HeldSends, NoticedPuts, PeerError, PeerInfo, PendingPeers, Rank, Region,
    RegisterError, SendError, Started, Tx, Unreachable, contiguous,
};
use btl_conformance::forward;
use btl_conformance::loopback::LoopbackBtl;

pub(crate) use fault::Break;
use spoiler::Spoiler;

#[derive(Debug)]
pub(crate) struct Mutant {
    inner: LoopbackBtl,
    state: State,
    readable: OwnedFd,
}

#[derive(Debug)]
struct State {
    fault: Break,
    rank: Rank,
    count: u64,
    was_busy: bool,
    inside: bool,
    /// Messages held back, oldest first.
    out: VecDeque<(Rank, Vec<u8>, Vec<u8>)>,
    last: BTreeMap<Rank, (Vec<u8>, Vec<u8>)>,
    peers: BTreeSet<Rank>,
    reported: BTreeSet<Rank>,
    completed: Vec<(u64, Result<(), PeerError>)>,
    key: Vec<u8>,
    late: Vec<LatePut>,
    /// Held bodies that are read too late: peer, header, address, length.
    held: Vec<(Rank, Vec<u8>, usize, usize)>,
    region: u64,
}

#[derive(Debug)]
struct LatePut {
    peer: Rank,
    bytes: Vec<u8>,
    key: Vec<u8>,
    offset: usize,
    token: u64,
    wait: u32,
    reported: bool,
}

impl Mutant {
    pub(crate) fn new(inner: LoopbackBtl, fault: Break) -> Mutant {
        let address = inner.address();
        let rank = Rank::from_le_bytes(address[16..20].try_into().unwrap());
        let state = State {
            fault,
            rank,
            count: 0,
            was_busy: false,
            inside: false,
            out: VecDeque::new(),
            last: BTreeMap::new(),
            peers: BTreeSet::new(),
            reported: BTreeSet::new(),
            completed: Vec::new(),
            key: Vec::new(),
            late: Vec::new(),
            held: Vec::new(),
            region: 0,
        };
        let readable = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        Mutant {
            inner,
            state,
            readable,
        }
    }

    fn tx(&mut self) -> MutantTx<'_> {
        MutantTx {
            tx: &mut self.inner,
            state: &mut self.state,
        }
    }
}

struct MutantTx<'a> {
    tx: &'a mut dyn Tx,
    state: &'a mut State,
}

impl MutantTx<'_> {
    fn push_out(&mut self) {
        while let Some((peer, header, body)) = self.state.out.pop_front() {
            if self.tx.send(peer, &header, &[IoSlice::new(&body)]) == Err(SendError::Busy) {
                self.state.out.push_front((peer, header, body));
                break;
            }
        }
    }

    fn one_sided(&mut self, result: Result<Started, SendError>) -> Result<Started, SendError> {
        match (self.state.fault, result) {
            (Break::NoBounds, Err(SendError::TooLong { .. }))
            | (Break::AnyKey, Err(SendError::BadKey)) => Ok(Started::Done),
            (Break::DoneAndCompletes, Ok(Started::Pending)) => Ok(Started::Done),
            (_, result) => result,
        }
    }
}

impl Tx for MutantTx<'_> {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        let parts = body;
        let body = &*contiguous(parts);
        self.state.count += 1;
        let count = self.state.count;
        let mut spoilt = (header.to_vec(), body.to_vec());
        match self.state.fault {
            Break::Duplicates if count.is_multiple_of(20) => self.tx.send(peer, header, parts)?,
            Break::Loses if count.is_multiple_of(1000) => return Ok(()),
            Break::DropsEmpty if header.is_empty() && body.is_empty() => return Ok(()),
            Break::LosesToItself if peer == self.state.rank && count > 50 => return Ok(()),
            Break::DropsInCallbacks if self.state.inside => return Ok(()),
            Break::FlipsBodyBit if body.len() > 1000 => spoilt.1[999] ^= 4,
            Break::FlipsHeaderBit if header.len() > 30 => spoilt.0[30] ^= 4,
            Break::CutsLongest if header.len() + body.len() == 65536 => drop(spoilt.1.pop()),
            Break::SplitsAtPageEnd if body.len() == 4096 => drop(spoilt.1.pop()),
            Break::BusyForEver if self.state.was_busy => return Err(SendError::Busy),
            Break::Reorders if self.state.out.is_empty() && count % 20 < 2 => {
                self.state.out.push_back((peer, spoilt.0, spoilt.1));
                return Ok(());
            }
            Break::FlushLies if self.state.out.len() < 16 && header.len() + body.len() <= 65536 => {
                self.state.out.push_back((peer, spoilt.0, spoilt.1));
                return Ok(());
            }
            Break::FlushLies if self.state.out.len() >= 16 => {
                return Err(SendError::Busy);
            }
            _ => {}
        }
        let result = self.tx.send(peer, &spoilt.0, &[IoSlice::new(&spoilt.1)]);
        let held = self.state.out.front().map(|(held, ..)| *held);
        if self.state.fault == Break::Reorders && result.is_ok() && held == Some(peer) {
            self.push_out();
        }
        let first_busy = result == Err(SendError::Busy) && !self.state.was_busy;
        self.state.was_busy |= result == Err(SendError::Busy);
        match (self.state.fault, result) {
            (Break::TakesTooLong, Err(SendError::TooLong { .. })) => Ok(()),
            (Break::WrongLimit, Err(SendError::TooLong { length, limit })) => {
                Err(SendError::TooLong {
                    length,
                    limit: limit - 1,
                })
            }
            (Break::LosesOnBusy, Err(SendError::Busy)) if first_busy => Ok(()),
            (Break::NeverBusy, Err(SendError::Busy)) => Ok(()),
            (Break::SendsOnBusy, Ok(())) if count.is_multiple_of(50) => Err(SendError::Busy),
            (Break::SendsToUnadded, Err(SendError::NoPeer(_)))
            | (Break::SendsAfterClose, Err(SendError::Closed))
            | (Break::SendsToDead, Err(SendError::Failed { .. })) => Ok(()),
            (_, result) => result,
        }
    }

    unsafe fn get(
        &mut self,
        peer: Rank,
        local: *mut u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        let wrong = self.state.fault == Break::OffByOne && offset > 0 && length > 0;
        let key = if self.state.fault == Break::OneRegion && !self.state.key.is_empty() {
            &self.state.key
        } else {
            key
        };
        let result = if wrong {
            // SAFETY: the caller's promise.
            unsafe { self.tx.get(peer, local, length, key, offset - 1, token) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.tx.get(peer, local, length, key, offset, token) }
        };
        self.state.key = key.to_vec();
        self.one_sided(result)
    }

    unsafe fn put(
        &mut self,
        peer: Rank,
        local: *const u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        if self.state.fault == Break::PutsLate {
            // SAFETY: the caller's promise, during the call.
            let bytes = unsafe { std::slice::from_raw_parts(local, length) }.to_vec();
            let key = key.to_vec();
            self.state.late.push(LatePut {
                peer,
                bytes,
                key,
                offset,
                token,
                wait: 200,
                reported: false,
            });
            return Ok(Started::Pending);
        }
        let wrong = self.state.fault == Break::OffByOne && offset > 0 && length > 0;
        // SAFETY: the caller's promise.
        let result = unsafe {
            self.tx
                .put(peer, local, length, key, offset - usize::from(wrong), token)
        };
        self.one_sided(result)
    }
}

impl HeldSends for MutantTx<'_> {
    unsafe fn send_held(
        &mut self,
        peer: Rank,
        header: &[u8],
        body: *const u8,
        length: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        if self.state.fault == Break::ReadsHeldLate && length <= 65536 {
            self.state
                .held
                .push((peer, header.to_vec(), body.expose_provenance(), length));
            return Ok(Started::Done);
        }
        // SAFETY: the caller's promise.
        unsafe { self.tx.send_held(peer, header, body, length, token) }
    }
}

impl NoticedPuts for MutantTx<'_> {
    unsafe fn put_last(
        &mut self,
        peer: Rank,
        local: *const u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        if self.state.fault != Break::LosesNotice {
            return Err(SendError::Unsupported);
        }
        // SAFETY: the caller's promise.
        unsafe { self.put(peer, local, length, key, offset, token) }
    }
}

impl Tx for Mutant {
    forward!(tx() => send get put);
}

impl HeldSends for Mutant {
    forward!(tx() => send_held);
}

impl NoticedPuts for Mutant {
    forward!(tx() => put_last);
}

impl PendingPeers for Mutant {}

struct Discard;

impl Events for Discard {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, _: &[u8], _: &[u8]) {}
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, _: Rank, _: PeerError) {}
}

impl Btl for Mutant {
    forward!(inner => name capabilities address);

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        assert!(
            self.state.fault != Break::PanicsOnAddress || address.len() != 17,
            "an address of 17 bytes"
        );
        let path = self.inner.add_peer(peer, address);
        self.state.peers.insert(peer);
        match (self.state.fault, path) {
            (Break::AnyAddress, Err(_)) => {
                self.inner.add_peer(self.state.rank, &self.inner.address())
            }
            (Break::WrongFigures, Ok(path)) => Ok(PeerInfo {
                eager: path.max_send + 1,
                ..path
            }),
            (Break::LosesEarly, path) => {
                self.inner.progress(&mut Discard);
                path
            }
            (_, path) => path,
        }
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        if self.state.fault != Break::Reorders {
            self.tx().push_out();
        }
        for (peer, header, at, length) in std::mem::take(&mut self.state.held) {
            // SAFETY: the suite keeps its buffers until the transport is dropped; this reads one
            // that was returned to it.
            let body = unsafe {
                std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), length)
            };
            let _ = self.inner.send(peer, &header, &[IoSlice::new(body)]);
        }
        let mut late = std::mem::take(&mut self.state.late);
        let mut reported = 0;
        for put in &mut late {
            if !put.reported {
                put.reported = true;
                reported += 1;
                events.completed(&mut self.tx(), put.token, Ok(()));
            }
            put.wait -= 1;
            if put.wait == 0 {
                let LatePut {
                    peer,
                    bytes,
                    key,
                    offset,
                    ..
                } = put;
                // SAFETY: the bytes live as long as this transport: they are leaked.
                let _ = unsafe {
                    self.inner.put(
                        *peer,
                        bytes.clone().leak().as_ptr(),
                        bytes.len(),
                        key,
                        *offset,
                        u64::MAX,
                    )
                };
            }
        }
        late.retain(|put| put.wait > 0);
        self.state.late.append(&mut late);
        let mut spoiler = Spoiler {
            state: &mut self.state,
            events,
        };
        if spoiler.state.fault == Break::PutsLate {
            // Completions of the wrapper's own puts are not passed on.
            return reported + self.inner.progress(&mut OnlyMessages(spoiler.events));
        }
        let mut done = self.inner.progress(&mut spoiler);
        while spoiler.state.fault == Break::UnboundedProgress {
            match self.inner.progress(&mut spoiler) {
                0 => break,
                more => done += more,
            }
        }
        if self.state.fault == Break::SaysZero {
            0
        } else {
            done
        }
    }

    unsafe fn register(&mut self, memory: *mut u8, length: usize) -> Result<Region, RegisterError> {
        // SAFETY: the caller's promise.
        let region = unsafe { self.inner.register(memory, length) };
        self.state.region = region.as_ref().map_or(0, |region| region.handle);
        region
    }

    fn deregister(&mut self, handle: u64) {
        self.inner.deregister(handle);
        if self.state.fault == Break::DeregistersAll {
            self.inner.deregister(self.state.region);
        }
    }

    fn drop_peer(&mut self, peer: Rank) -> bool {
        match self.state.fault {
            Break::DropsNothing => true,
            Break::NeverQuiet => false,
            _ => self.inner.drop_peer(peer),
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        if self.state.fault == Break::AlwaysReadable {
            Some(self.readable.as_fd())
        } else {
            self.inner.wait_fd()
        }
    }

    fn arm(&mut self) -> bool {
        if self.state.fault == Break::NeverArmed {
            return true;
        }
        self.state.out.is_empty() && self.state.late.is_empty() && self.inner.arm()
    }

    fn flush(&mut self) -> bool {
        self.state.fault == Break::FlushLies || (self.state.out.is_empty() && self.inner.flush())
    }

    fn close(&mut self) {
        if self.state.fault != Break::ClosesNothing {
            self.state.out.clear();
            self.inner.close();
        }
    }
}

/// Hides the completions of late puts.
struct OnlyMessages<'a>(&'a mut dyn Events);

impl Events for OnlyMessages<'_> {
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        self.0.message(tx, peer, header, body);
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}
    fn failed(&mut self, tx: &mut dyn Tx, peer: Rank, error: PeerError) {
        self.0.failed(tx, peer, error);
    }
}
