//! Benchmarks within a node, and their measures.

mod papers;

use crate::about::About;

use super::contender::{Contender, Ours};
use super::work::{Step, WINDOW, Work};

/// A benchmark: measures taken in turn, round by round.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Name, title and limits.
    pub about: &'static About,
    /// Measures of a round, in order.
    pub measures: Vec<Measure>,
    /// Number of rounds.
    pub rounds: usize,
}

/// Work that several contenders do.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Quantity: latency, bandwidth, skew, …
    pub what: &'static str,
    /// Work of the contenders.
    pub work: Work,
    /// Work of the limits, if it differs.
    pub limit: Option<Work>,
    /// Number of pairs of processes.
    pub pairs: usize,
    /// Buffers used.
    pub buffers: Option<&'static str>,
    /// Index of the base measure of each contender's own ratio: no skew, a short queue, reused
    /// buffers.
    pub base: Option<usize>,
    /// Contenders, in order.
    pub who: Vec<Contender>,
}

impl Measure {
    /// Returns the work of a contender; `None` if it has none.
    pub fn work_of(&self, who: Contender) -> Option<Work> {
        match who {
            Contender::Limit => Some(self.limit.unwrap_or(self.work)),
            Contender::KernelCopy => match self.limit.unwrap_or(self.work) {
                Work::Memcpy {
                    size,
                    window,
                    count,
                    slots,
                } => Some(Work::CrossCopy {
                    size,
                    window,
                    count,
                    slots,
                }),
                _ => None,
            },
            _ => Some(self.work),
        }
    }

    /// Returns true if the result is a rate, not a time.
    pub fn is_speed(&self) -> bool {
        self.work.bytes().is_some() && !self.what.starts_with("cost")
    }
}

/// All benchmarks within a node, in the order they run.
pub static BENCHES: [About; 4] = [
    About {
        name: "shm",
        title: "one-way latency and window-64 bandwidth between two processes of a node",
        limits: "A short message is limited by moving a cache line from one core to the other, \
                 which the row `limit: cache line` measures by itself. A long one is limited by \
                 copies: one by the kernel, two through shared memory, or one shared by both cores.",
        millis: [415, 400],
    },
    About {
        name: "papers",
        title: "the experiments of the LiMIC and hybrid papers",
        limits: "With two cores, more than one pair of processes is oversubscribed, and the \
                 scheduler is part of the figure. What a slow consumer costs its producer is \
                 limited by the memory for messages that wait to be received.",
        millis: [235, 77],
    },
    About {
        name: "sharing",
        title: "one-way latency and message rate when more pairs share the cores",
        limits: "A message to a process on the same core costs a switch between processes, 1 to 2 \
                 µs here. The message rate of all pairs together is limited by the cores, whose \
                 caches all pairs share.",
        millis: [500, 240],
    },
    About {
        name: "matching",
        title: "time of a match behind unexpected messages, one-way latency past posted receives",
        limits: "Queues are indexed by source and tag, so that a match does not depend on their \
                 length; peers search a list. What remains is the latency of the message.",
        millis: [265, 73],
    },
];

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// Bytes of the buffers of each end: more than any cache holds.
const OUT_OF_CACHE: usize = 128 * MIB;
/// Round trips of a batch: long compared with reading the clock.
const BATCH: usize = 16;

const OPENMPI: Contender = Contender::OpenMpi { two_copy: false };
const OPENMPI_TWO_COPY: Contender = Contender::OpenMpi { two_copy: true };
const SET: Contender = Contender::P2p(Ours::Set);
const TWO_COPY: Contender = Contender::P2p(Ours::TwoCopy);
const ONE_COPY: Contender = Contender::P2p(Ours::OneCopy);
const NO_SKEW: Contender = Contender::P2p(Ours::OneCopyNoSkew);

/// Returns the benchmark of this name; `quick`: shorter, noisier, fewer sizes.
pub fn bench(name: &str, quick: bool) -> Option<Bench> {
    let about = BENCHES.iter().find(|about| about.name == name)?;
    let size = Sizes { quick };
    let measures = match name {
        "shm" => size.shm(),
        "papers" => size.papers(),
        "sharing" => size.sharing(),
        _ => size.matching(),
    };
    Some(Bench {
        about,
        measures,
        rounds: if quick { 3 } else { 5 },
    })
}

impl Bench {
    /// Removes measures of other sizes, if any are given.
    pub fn only_sizes(&mut self, sizes: &[usize]) {
        if sizes.is_empty() {
            return;
        }
        let is_kept = |measure: &Measure| {
            measure
                .work
                .size()
                .is_some_and(|size| sizes.contains(&size))
        };
        let kept: Vec<bool> = self.measures.iter().map(is_kept).collect();
        for measure in &mut self.measures {
            // A measure and its base have the same size.
            let base = measure.base.filter(|base| kept.get(*base) == Some(&true));
            measure.base = base.map(|base| kept.iter().take(base).filter(|kept| **kept).count());
        }
        let mut kept = kept.into_iter();
        self.measures.retain(|_| kept.next() == Some(true));
    }
}

struct Sizes {
    quick: bool,
}

impl Sizes {
    fn less(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    fn pingpong(&self, size: usize) -> Work {
        let count = if size <= 4 * KIB {
            self.less(20_000, 2_000)
        } else {
            self.less(2_000, 200)
        };
        Work::PingPong {
            size,
            count,
            batch: if size <= 4 * KIB { BATCH } else { 1 },
        }
    }

    /// Returns windows that move about the same number of bytes for every size.
    fn window(&self, size: usize, slots: usize, rewrite: bool) -> Work {
        let bytes = self.less(512 * MIB, 64 * MIB);
        let count = (bytes / (size * WINDOW)).clamp(2, self.less(200, 20));
        Work::windows(size, count, slots, rewrite)
    }

    fn latency(&self, what: &'static str, size: usize, who: &[Contender]) -> Measure {
        let limit = Work::Line {
            count: self.less(20_000, 2_000),
            batch: BATCH,
        };
        Measure {
            what,
            work: self.pingpong(size),
            limit: who.contains(&Contender::Limit).then_some(limit),
            pairs: 1,
            buffers: None,
            base: None,
            who: who.to_vec(),
        }
    }

    /// Returns windows over `slots` buffers at each end; with one, messages are sent and received
    /// one after the other.
    fn bandwidth(
        &self,
        what: &'static str,
        size: usize,
        slots: usize,
        rewrite: bool,
        who: &[Contender],
    ) -> Measure {
        let work = self.window(size, slots, rewrite);
        let limit = match work {
            Work::Window {
                size,
                window,
                count,
                slots,
                ..
            } => Some(Work::Memcpy {
                size,
                window,
                count,
                slots,
            }),
            _ => None,
        };
        let buffers = match slots {
            1 => "one, blocking calls",
            _ if size * slots < OUT_OF_CACHE => "64, reused",
            _ => "out of cache",
        };
        Measure {
            what,
            work,
            limit: limit.filter(|_| who.contains(&Contender::Limit)),
            pairs: 1,
            buffers: Some(buffers),
            base: None,
            who: who.to_vec(),
        }
    }

    /// Returns windows from one buffer, with all sends of a window in flight.
    fn sent_at_once(&self, mut measure: Measure) -> Measure {
        if let Work::Window {
            window, at_once, ..
        } = &mut measure.work
        {
            *at_once = *window;
        }
        measure.buffers = Some("one, 64 sends");
        measure
    }

    fn shm(&self) -> Vec<Measure> {
        let who = [
            Contender::Limit,
            SET,
            OPENMPI,
            Contender::Mpich,
            Contender::Ucx,
        ];
        let mut measures: Vec<_> = [8, 64, KIB]
            .iter()
            .map(|&size| self.latency("latency", size, &who))
            .collect();
        let who = [
            Contender::Limit,
            Contender::KernelCopy,
            SET,
            TWO_COPY,
            ONE_COPY,
            OPENMPI,
            OPENMPI_TWO_COPY,
            Contender::Mpich,
        ];
        // It has one buffer at each end and posts 64 receives at once; p2p and MPI receive one
        // after the other.
        let and_ucx = [&who[..], &[Contender::Ucx]].concat();
        let sizes: &[usize] = if self.quick {
            &[64 * KIB, 4 * MIB]
        } else {
            &[4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB]
        };
        for &size in sizes {
            let blocking = self.bandwidth("bandwidth", size, 1, false, &and_ucx);
            measures.push(self.sent_at_once(blocking.clone()));
            measures.push(blocking);
            if size * WINDOW < OUT_OF_CACHE {
                measures.push(self.bandwidth("bandwidth", size, WINDOW, false, &who));
            }
            let slots = (OUT_OF_CACHE / size).max(WINDOW);
            measures.push(self.bandwidth("bandwidth", size, slots, false, &who));
        }
        measures
    }

    /// Twice and four times as many ranks as two cores. Ideally, all pairs together reach the
    /// message rate of one. A ping-pong of one message costs at least a process switch in each
    /// direction.
    fn sharing(&self) -> Vec<Measure> {
        // MPICH's ranks never yield: each message takes a time slice, and a round minutes.
        let who = [SET, OPENMPI];
        let work = Work::PingPong {
            size: 8,
            count: self.less(2_000, 500),
            batch: BATCH,
        };
        let measure = |pairs| {
            let base = (pairs > 1).then_some(0);
            Measure {
                pairs,
                base,
                work,
                ..self.latency("sharing", 8, &who)
            }
        };
        // Many windows in a row, so that waiting after each one is not measured.
        let count = self.less(100, 20);
        let (window, slots) = (WINDOW, WINDOW);
        let work = Work::Window {
            size: KIB,
            window,
            row: 100,
            count,
            slots,
            at_once: window,
            rewrite: false,
        };
        let windows = |pairs: usize| {
            let base = (pairs > 1).then_some(3);
            Measure {
                pairs,
                base,
                work,
                ..self.bandwidth("sharing", KIB, WINDOW, false, &who)
            }
        };
        [1, 2, 4]
            .map(measure)
            .into_iter()
            .chain([1, 2, 4].map(windows))
            .collect()
    }

    fn matching(&self) -> Vec<Measure> {
        let who = [SET, OPENMPI, Contender::Mpich];
        let few = 10;
        let many = 10_000;
        let mut measures = Vec::new();
        for (what, unexpected) in [("unexpected", true), ("posted", false)] {
            let base = measures.len();
            for backlog in [few, many] {
                // A peer that walks the queue takes tens of microseconds per match.
                let count = self.less(2_000, 200);
                let work = if unexpected {
                    Work::Unexpected {
                        backlog,
                        count,
                        depth: 8,
                    }
                } else {
                    Work::Posted {
                        backlog,
                        count,
                        batch: BATCH,
                    }
                };
                measures.push(Measure {
                    what,
                    work,
                    limit: None,
                    pairs: 1,
                    buffers: None,
                    base: (measures.len() > base).then_some(base),
                    who: who.to_vec(),
                });
            }
        }
        measures
    }
}

#[cfg(test)]
mod tests;
