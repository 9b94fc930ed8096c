//! Measures the time this layer adds to a message of 8 bytes, without the cost of a transport: both
//! ranks in one thread, over a transport that only copies to a variable. `cargo run --release -p
//! p2p --example overhead`
//!
//! Alternates with the bare transport and measures the thread's CPU time, so that the difference is
//! meaningful on a busy machine.

use std::io::IoSlice;
use std::time::Duration;

use btl::{Btl, Events, Rank, Tx};

#[path = "../tests/common/variable.rs"]
mod variable;

/// Copies each message, which is the least that a receiver does.
struct Take([u8; 64]);

impl Events for Take {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, _: &[u8], body: &[u8]) {
        self.0[..body.len()].copy_from_slice(body);
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), btl::PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, _: Rank, _: btl::PeerError) {}
}

fn cpu_time() -> Duration {
    // The thread's CPU time, because other processes run, too.
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    const COUNT: u32 = 2_000_000;
    let layers = variable::layers();
    let (a, b) = (layers[0].world(), layers[1].world());
    let mut bare: Vec<Box<dyn Btl>> = variable::pair()
        .into_iter()
        .map(|btl| Box::new(btl) as Box<dyn Btl>)
        .collect();
    let out = [7u8; 8];
    let mut into = [0u8; 8];
    for _ in 0..5 {
        let start = cpu_time();
        for n in 0..COUNT {
            let tag = (n & 7) as i32;
            a.send(&out, 1, tag).expect("room");
            b.recv(&mut into, 0, tag).expect("the message is there");
        }
        let ours = (cpu_time() - start).as_nanos() as f64 / f64::from(COUNT);
        let start = cpu_time();
        let mut take = Take([0; 64]);
        for _ in 0..COUNT {
            bare[0]
                .send(1, &[0; 12], std::hint::black_box(&[IoSlice::new(&out)]))
                .expect("room");
            while bare[1].progress(&mut take) == 0 {}
        }
        std::hint::black_box(take.0);
        let theirs = (cpu_time() - start).as_nanos() as f64 / f64::from(COUNT);
        println!(
            "send + recv {ours:.1} ns, of these the bare transport {theirs:.1} ns: the layer {:.1} ns",
            ours - theirs
        );
    }
}
