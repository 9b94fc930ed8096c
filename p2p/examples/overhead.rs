//! What this layer adds to a message of 8 bytes, without any transport's cost: both ranks in one thread, over a transport that is a variable.
//! `cargo run --release -p p2p --example overhead`
//!
//! Alternates with the bare transport, so that the difference says something on a busy machine.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::time::Instant;

use btl::{Btl, Capabilities, Events, Path, Rank, SendError, Tx, Unreachable};
use p2p::{Card, Config, P2p, Setup};

/// One message on its way.
#[derive(Debug, Default)]
struct Slot {
    full: bool,
    header: [u8; 16],
    header_length: usize,
    body: [u8; 32],
    length: usize,
}

/// Both directions; used by one thread only.
#[derive(Debug)]
struct Wire(UnsafeCell<[Slot; 2]>);

// SAFETY: this program has one thread.
unsafe impl Send for Wire {}
// SAFETY: as above.
unsafe impl Sync for Wire {}

#[derive(Debug)]
struct Bare {
    wire: Arc<Wire>,
    rank: usize,
}

impl Tx for Bare {
    #[inline]
    fn send(&mut self, _: Rank, header: &[u8], body: &[u8]) -> Result<(), SendError> {
        // SAFETY: one thread, and no reference is kept.
        let slot = unsafe { &mut (*self.wire.0.get())[1 - self.rank] };
        if slot.full || header.len() > 16 || body.len() > 32 {
            return Err(SendError::Busy);
        }
        slot.header[..header.len()].copy_from_slice(header);
        slot.body[..body.len()].copy_from_slice(body);
        (slot.full, slot.header_length, slot.length) = (true, header.len(), body.len());
        Ok(())
    }
}

impl Btl for Bare {
    fn name(&self) -> &'static str {
        "variable"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn address(&self) -> Vec<u8> {
        vec![1]
    }
    fn add_peer(&mut self, _: Rank, _: &[u8]) -> Result<Path, Unreachable> {
        Ok(Path {
            latency_ns: 1,
            bandwidth: 1000,
            exclusivity: 1,
            eager: 64,
            eager_skewed: 64,
            max_send: 4096,
            one_sided: false,
            one_sided_from: usize::MAX,
            reason: "a variable".into(),
        })
    }
    #[inline]
    fn progress(&mut self, events: &mut dyn Events) -> usize {
        // SAFETY: as in `send`; what is delivered is copied out first.
        let (header, header_length, body, length) = unsafe {
            let slot = &mut (*self.wire.0.get())[self.rank];
            if !slot.full {
                return 0;
            }
            slot.full = false;
            (slot.header, slot.header_length, slot.body, slot.length)
        };
        let peer = 1 - self.rank as u32;
        events.message(self, peer, &header[..header_length], &body[..length]);
        1
    }
    fn flush(&mut self) -> bool {
        true
    }
    fn close(&mut self) {}
}

/// Takes what comes, as little as a receiver can do.
struct Take([u8; 64]);

impl Events for Take {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, _: &[u8], body: &[u8]) {
        self.0[..body.len()].copy_from_slice(body);
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), btl::PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, _: Rank, _: btl::PeerError) {}
}

fn pair() -> Vec<Bare> {
    let wire = Arc::new(Wire(UnsafeCell::new(Default::default())));
    (0..2).map(|rank| Bare { wire: Arc::clone(&wire), rank }).collect()
}

fn main() {
    const COUNT: u32 = 2_000_000;
    let layers: Vec<P2p> = pair()
        .into_iter()
        .map(|btl| {
            let rank = btl.rank as u32;
            let config = Config { local_ranks: 1, ..Config::default() };
            let setup = Setup { rank, size: 2, transports: vec![Box::new(btl)], config };
            let card = Card { transport: "variable".into(), address: vec![1] };
            P2p::start(setup, |_| Ok(vec![card.clone()])).expect("a variable reaches everything")
        })
        .collect();
    let (a, b) = (layers[0].world(), layers[1].world());
    let mut bare: Vec<Box<dyn Btl>> = pair().into_iter().map(|btl| Box::new(btl) as Box<dyn Btl>).collect();
    let out = [7u8; 8];
    let mut into = [0u8; 8];
    for _ in 0..5 {
        let start = Instant::now();
        for n in 0..COUNT {
            let tag = (n & 7) as i32;
            a.send(&out, 1, tag).expect("room");
            b.recv(&mut into, 0, tag).expect("it is there");
        }
        let ours = start.elapsed().as_nanos() as f64 / f64::from(COUNT);
        let start = Instant::now();
        let mut take = Take([0; 64]);
        for _ in 0..COUNT {
            bare[0].send(1, &[0; 12], std::hint::black_box(&out)).expect("room");
            while bare[1].progress(&mut take) == 0 {}
        }
        std::hint::black_box(take.0);
        let theirs = start.elapsed().as_nanos() as f64 / f64::from(COUNT);
        println!(
            "send + recv {ours:.1} ns, of these the bare transport {theirs:.1} ns: the layer {:.1} ns",
            ours - theirs
        );
    }
}
