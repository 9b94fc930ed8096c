//! Endpoints over loopbacks.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::cell::Cell;
use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use btl::{
    Btl, Capabilities, Events, HeldSends, NoticedPuts, PeerError, PeerInfo, PendingPeers, Rank,
    SendError, Tx, Unreachable,
};
use btl_conformance::loopback::{self, Limits, LoopbackBtl};
use p2p::{Completion, Config, Endpoint, Regions};

/// Addresses of the loopbacks of a test, by identity. An identity is the rank there plus 100.
type Book = Arc<Mutex<HashMap<u64, Vec<u8>>>>;

thread_local! {
    /// Number of addresses that were tried, and whether connections of strangers fail.
    pub(crate) static TRIED: Cell<usize> = const { Cell::new(0) };
    pub(crate) static FAILS: Cell<bool> = const { Cell::new(false) };
}

/// A loopback whose owner numbers the peers, as an open transport does.
#[derive(Debug)]
struct Open {
    inner: LoopbackBtl,
    book: Book,
    /// Figures of all ranks of the loopback, which are added at once: the loopback keeps messages
    /// of a peer that was not added, and does not report them.
    infos: HashMap<Rank, PeerInfo>,
    /// Ranks of the loopback by number.
    ranks: Vec<Option<Rank>>,
    /// Messages of peers that were not added.
    early: Vec<(Rank, Vec<u8>, Vec<u8>)>,
}

impl Open {
    fn number(&self, rank: Rank) -> Option<Rank> {
        let known = self.ranks.iter().position(|known| *known == Some(rank));
        known.map(|number| number as Rank)
    }

    fn rank(&self, number: Rank) -> Result<Rank, SendError> {
        let rank = self.ranks.get(number as usize).copied().flatten();
        rank.ok_or(SendError::NoPeer(number))
    }

    fn enter(&mut self, number: Rank, rank: Rank) -> Result<PeerInfo, Unreachable> {
        let info = self.infos[&rank].clone();
        let length = self.ranks.len().max(number as usize + 1);
        self.ranks.resize(length, None);
        self.ranks[number as usize] = Some(rank);
        Ok(info)
    }
}

impl Tx for Open {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        let rank = self.rank(peer)?;
        self.inner.send(rank, header, body)
    }
}
impl HeldSends for Open {}
impl NoticedPuts for Open {}

impl PendingPeers for Open {
    fn stranger(&self) -> Option<u64> {
        Some(u64::from(self.early.first()?.0) + 100)
    }

    fn admit(&mut self, peer: Rank, stranger: u64) -> Result<PeerInfo, Unreachable> {
        if FAILS.get() {
            let reason = "a connection of somebody else".into();
            return Err(Unreachable { reason });
        }
        self.enter(peer, (stranger - 100) as Rank)
    }

    fn refuse_stranger(&mut self, stranger: u64, _: &str) {
        self.early.retain(|one| u64::from(one.0) + 100 != stranger);
    }
}

/// Events of the loopback before they are translated.
#[derive(Default)]
struct Heard {
    messages: Vec<(Rank, Vec<u8>, Vec<u8>)>,
    failures: Vec<(Rank, PeerError)>,
}

impl Events for Heard {
    fn message(&mut self, _: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        self.messages.push((peer, header.to_vec(), body.to_vec()));
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        self.failures.push((peer, error));
    }
}

impl Btl for Open {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            detects_death: true,
            ..Capabilities::default()
        }
    }
    fn address(&self) -> Vec<u8> {
        self.inner.address()
    }
    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        TRIED.set(TRIED.get() + 1);
        let book = self.book.lock().unwrap();
        let found = book.iter().find(|entry| entry.1 == address);
        let rank = found.map(|entry| (entry.0 - 100) as Rank);
        drop(book);
        match rank {
            Some(rank) => self.enter(peer, rank),
            None => Err(Unreachable {
                reason: "not in the book".into(),
            }),
        }
    }
    fn progress(&mut self, events: &mut dyn Events) -> usize {
        let mut heard = Heard::default();
        let mut count = self.inner.progress(&mut heard);
        let mut all = std::mem::take(&mut self.early);
        all.append(&mut heard.messages);
        for (rank, header, body) in all {
            match self.number(rank) {
                Some(number) => events.message(self, number, &header, &body),
                None => self.early.push((rank, header, body)),
            }
            count += 1;
        }
        for (rank, error) in heard.failures {
            if let Some(number) = self.number(rank) {
                events.failed(self, number, error);
            }
        }
        count
    }
    fn drop_peer(&mut self, peer: Rank) -> bool {
        self.rank(peer).is_ok_and(|rank| self.inner.drop_peer(rank)) || self.rank(peer).is_err()
    }
    fn flush(&mut self) -> bool {
        self.inner.flush()
    }
    fn close(&mut self) {
        self.inner.close();
    }
}

/// Opens endpoints that can reach each other.
pub(crate) fn endpoints(count: u32) -> (Vec<Endpoint>, loopback::Killer) {
    endpoints_with(count, &Arc::default())
}

/// Opens endpoints that share regions.
pub(crate) fn endpoints_with(
    count: u32,
    regions: &Arc<Regions>,
) -> (Vec<Endpoint>, loopback::Killer) {
    let limits = Limits {
        get: false,
        put: false,
        ..Limits::default()
    };
    let (job, book) = (loopback::job(count, limits), Book::default());
    let killer = job[0].killer();
    for (rank, btl) in job.iter().enumerate() {
        let mut book = book.lock().unwrap();
        book.insert(rank as u64 + 100, btl.address());
    }
    let open = |(rank, mut inner): (u64, LoopbackBtl)| {
        let mut infos = HashMap::new();
        for (identity, address) in &*book.lock().unwrap() {
            let peer = (identity - 100) as Rank;
            infos.insert(peer, inner.add_peer(peer, address).unwrap());
        }
        let open = Open {
            inner,
            book: Arc::clone(&book),
            infos,
            ranks: Vec::new(),
            early: Vec::new(),
        };
        let transports: Vec<Box<dyn Btl>> = vec![Box::new(open)];
        let regions = Arc::clone(regions);
        Endpoint::open(transports, rank + 100, regions, &Config::default()).unwrap()
    };
    ((0..).zip(job).map(open).collect(), killer)
}

/// Polls all endpoints until the first has reported `count` requests.
pub(crate) fn reports(of: &[Endpoint], count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    let begin = Instant::now();
    while all.len() < count {
        of[0].poll(|completion| all.push(completion));
        for other in &of[1..] {
            other.poll(|_| {});
        }
        assert!(begin.elapsed() < super::HANG, "{all:?}");
    }
    all
}
