//! The experiments of the LiMIC and hybrid papers.

use super::*;

impl Sizes {
    pub(super) fn papers(&self) -> Vec<Measure> {
        let mut measures = Vec::new();
        // Section 3.1 of the hybrid paper: every pair sends 64 messages, each from and to its own
        // buffer.
        let who = [
            SET,
            TWO_COPY,
            ONE_COPY,
            OPENMPI,
            OPENMPI_TWO_COPY,
            Contender::Mpich,
        ];
        let sizes: &[usize] = if self.quick {
            &[64 * KIB]
        } else {
            &[4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB]
        };
        for pairs in if self.quick {
            vec![1, 2]
        } else {
            vec![1, 2, 4]
        } {
            for &size in sizes {
                let mut measure = self.bandwidth("multi-pair", size, WINDOW, false, &who);
                measure.pairs = pairs;
                measures.push(measure);
            }
        }
        // Section 3.2: reused buffers, written before each window.
        let sizes: &[usize] = if self.quick {
            &[16 * KIB]
        } else {
            &[KIB, 4 * KIB, 16 * KIB, 64 * KIB]
        };
        for &size in sizes {
            let reused = measures.len();
            measures.push(self.bandwidth("buffer reuse", size, WINDOW, true, &who));
            let slots = OUT_OF_CACHE / size;
            let mut fresh = self.bandwidth("buffer reuse", size, slots, false, &who);
            fresh.base = Some(reused);
            measures.push(fresh);
        }
        self.skew(&mut measures);
        // LiMIC, section 5.2.1: 64 KiB by two copies and by one.
        let sizes: &[usize] = if self.quick {
            &[64 * KIB]
        } else {
            &[4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB]
        };
        for &size in sizes {
            let who = [TWO_COPY, ONE_COPY, OPENMPI_TWO_COPY, OPENMPI];
            measures.push(self.latency("copies: latency", size, &who));
            measures.push(self.bandwidth("copies: bandwidth", size, WINDOW, false, &who));
        }
        self.cost(&mut measures);
        measures
    }

    /// LiMIC, section 5.1: the cost of one message, from the machine upwards.
    fn cost(&self, measures: &mut Vec<Measure>) {
        let mut add = |what, work, limit, who: &[Contender]| {
            let who = who.to_vec();
            measures.push(Measure {
                what,
                work,
                limit,
                pairs: 1,
                buffers: None,
                base: None,
                who,
            });
        };
        let limits = [Contender::Limit];
        add(
            "cost: system call",
            Work::Trap {
                count: self.less(500, 50),
                batch: 100,
            },
            None,
            &limits,
        );
        for size in [1, 4 * KIB, 64 * KIB] {
            let copy = Work::Memcpy {
                size,
                window: 16,
                count: self.less(500, 50),
                slots: 1,
            };
            add(
                "cost: copy",
                copy,
                None,
                &[Contender::Limit, Contender::KernelCopy],
            );
        }
        let both = [Contender::Transport, SET];
        for (what, step, sizes) in [
            ("cost: look, nothing there", Step::Poll, &[8][..]),
            ("cost: send call", Step::Send, &[8, KIB]),
            ("cost: receive what is there", Step::Receive, &[8, KIB]),
        ] {
            for &size in sizes {
                add(
                    what,
                    Work::Step {
                        step,
                        size,
                        count: self.less(500, 50),
                        batch: 8,
                    },
                    None,
                    &both,
                );
            }
        }
        let line = Work::Line {
            count: self.less(20_000, 2_000),
            batch: BATCH,
        };
        for size in [8, KIB] {
            let who = [Contender::Limit, Contender::Transport, SET];
            add("cost: one way", self.pingpong(size), Some(line), &who);
        }
    }

    /// Section 3.4: messages of 16 KiB; the producer computes for 1 µs before each.
    fn skew(&self, measures: &mut Vec<Measure>) {
        let base = measures.len();
        let times: &[u64] = if self.quick {
            &[0, 50, 200]
        } else {
            &[0, 10, 50, 100, 200, 500]
        };
        for &micros in times {
            let work = Work::Skew {
                size: 16 * KIB,
                produce: 1_000,
                consume: micros * 1_000,
                window: WINDOW,
                count: self.less(30, 5),
            };
            measures.push(Measure {
                what: "skew",
                work,
                limit: None,
                pairs: 1,
                buffers: None,
                base: (measures.len() > base).then_some(base),
                who: vec![
                    SET,
                    ONE_COPY,
                    NO_SKEW,
                    TWO_COPY,
                    OPENMPI,
                    OPENMPI_TWO_COPY,
                    Contender::Mpich,
                ],
            });
        }
    }
}
