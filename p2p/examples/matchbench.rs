//! Measures the cost of matching among few and among many receives: a message is received (or
//! received for) while many others wait, none of which it matches. `cargo run --release -p p2p
//! --example matchbench`
//!
//! Rounds with 10 and with 10 000 alternate, and the thread's CPU time is measured. The meaningful
//! result is the median of the rounds' ratios.

use std::time::Duration;

use p2p::{Comm, P2p, Source, Tag};

#[path = "../tests/common/variable.rs"]
mod variable;

const MANY: usize = 10_000;
const FEW: usize = 10;
const MESSAGES: u32 = 20_000;

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Both ranks of a job, in one thread.
struct Pair {
    layers: Vec<P2p>,
    a: Comm,
    b: Comm,
    last: i32,
}

impl Pair {
    fn new() -> Pair {
        let layers = variable::layers();
        let (a, b) = (layers[0].world(), layers[1].world());
        Pair {
            layers,
            a,
            b,
            last: 0,
        }
    }

    fn poll(&self) {
        self.layers.iter().for_each(|layer| {
            layer.progress();
        });
    }

    /// Queues unexpected messages, each with a different tag, then receives and sends the last one
    /// repeatedly.
    fn unexpected(count: usize) -> Pair {
        let mut pair = Pair::new();
        for tag in 0..count as i32 {
            pair.a.send(&[1; 8], 1, tag).expect("room");
            pair.poll();
            pair.last = tag;
        }
        pair
    }

    fn receive_last(&self, source: Source) -> f64 {
        let mut buffer = [0; 8];
        let start = cpu_time();
        for n in 0..MESSAGES {
            self.b
                .recv(&mut buffer, source, self.last)
                .expect("a waiting message");
            self.a.send(&buffer, 1, self.last).expect("room");
            self.layers[1].progress();
            if n % 256 == 0 {
                self.layers[0].progress();
            }
        }
        (cpu_time() - start).as_nanos() as f64 / f64::from(MESSAGES)
    }

    /// Posts `count` receives that match no message, then one whose message is sent repeatedly.
    fn posted(count: usize, wild: bool) -> Pair {
        let pair = Pair {
            last: i32::MAX,
            ..Pair::new()
        };
        for tag in 0..count as i32 {
            let source = if wild && tag % 2 == 0 {
                Source::Any
            } else {
                Source::Rank(0)
            };
            // SAFETY: no message that matches is sent; the memory is leaked.
            let id = unsafe {
                pair.b.irecv_raw(
                    Box::leak(Box::new([0u8; 8])).as_mut_ptr(),
                    8,
                    source,
                    Tag::Is(tag),
                )
            };
            id.expect("posted");
        }
        pair
    }

    fn match_last_posted(&self) -> f64 {
        let mut buffer = [0; 8];
        let start = cpu_time();
        for n in 0..MESSAGES {
            self.a.send(&buffer, 1, self.last).expect("room");
            self.b
                .recv(&mut buffer, 0, self.last)
                .expect("the message arrives");
            if n % 256 == 0 {
                self.layers[0].progress();
            }
        }
        (cpu_time() - start).as_nanos() as f64 / f64::from(MESSAGES)
    }
}

fn compare(what: &str, mut few: impl FnMut() -> f64, mut many: impl FnMut() -> f64) {
    let mut rounds: Vec<(f64, f64)> = (0..21).map(|_| (few(), many())).collect();
    rounds.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    let (few, many) = rounds[rounds.len() / 2];
    println!(
        "{what:32} among {FEW}: {few:6.1} ns, among {MANY}: {many:6.1} ns, ratio {:.2}",
        many / few
    );
}

fn main() {
    let (few, many) = (Pair::unexpected(FEW), Pair::unexpected(MANY));
    compare(
        "unexpected",
        || few.receive_last(Source::Rank(0)),
        || many.receive_last(Source::Rank(0)),
    );
    compare(
        "unexpected, any source",
        || few.receive_last(Source::Any),
        || many.receive_last(Source::Any),
    );
    let (few, many) = (Pair::posted(FEW, false), Pair::posted(MANY, false));
    compare(
        "posted",
        || few.match_last_posted(),
        || many.match_last_posted(),
    );
    let (few, many) = (Pair::posted(FEW, true), Pair::posted(MANY, true));
    compare(
        "posted, half from any source",
        || few.match_last_posted(),
        || many.match_last_posted(),
    );
}
