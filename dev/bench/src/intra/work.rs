//! Work of a group of processes, as one line of text that C programs read, too.

use std::fmt;
use std::str::FromStr;

/// Messages of a window in both papers.
pub const WINDOW: usize = 64;

/// Work of a group. Counts are samples, sizes bytes, times nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// A cache line moves between two cores and back.
    Line {
        /// Number of round trips that are timed one by one, and of as many in batches.
        count: usize,
        /// Round trips of a batch.
        batch: usize,
    },
    /// One process copies `window` times.
    Memcpy {
        /// Bytes of each.
        size: usize,
        /// Copies of a sample.
        window: usize,
        /// Samples.
        count: usize,
        /// Number of source and of destination buffers, used in turn.
        slots: usize,
    },
    /// The kernel copies `window` times from another process.
    CrossCopy {
        /// Bytes of each.
        size: usize,
        /// Copies of a sample.
        window: usize,
        /// Samples.
        count: usize,
        /// Number of source and of destination buffers, used in turn.
        slots: usize,
    },
    /// Empty system calls.
    Trap {
        /// Samples.
        count: usize,
        /// Calls of a sample.
        batch: usize,
    },
    /// One step of sending or receiving a message.
    Step {
        /// Step measured.
        step: Step,
        /// Bytes of the message.
        size: usize,
        /// Samples.
        count: usize,
        /// Messages of a sample.
        batch: usize,
    },
    /// Rank 0 sends a message and rank 1 returns it.
    PingPong {
        /// Bytes each way.
        size: usize,
        /// Number of round trips that are timed one by one, and of as many in batches.
        count: usize,
        /// Round trips of a batch.
        batch: usize,
    },
    /// Each rank of the lower half sends `window` messages to one of the upper half and waits for
    /// its confirmation, `row` times in a row without waiting for other pairs.
    Window {
        /// Bytes of each message.
        size: usize,
        /// Messages of a sample.
        window: usize,
        /// Windows of a sample.
        row: usize,
        /// Samples.
        count: usize,
        /// Number of buffers of each end, used in turn. With fewer than `window`, messages are
        /// received by blocking calls, since receives cannot share a buffer.
        slots: usize,
        /// Number of sends in flight: one (blocking calls), or the window.
        at_once: usize,
        /// True if the sender writes its buffers before each sample, which is not timed.
        rewrite: bool,
    },
    /// Process skew of the hybrid paper, section 3.4: time of a window for the producer.
    Skew {
        /// Bytes of each message.
        size: usize,
        /// Computing time of the producer before each message.
        produce: u64,
        /// Computing time of the consumer after each message.
        consume: u64,
        /// Messages of a sample.
        window: usize,
        /// Samples.
        count: usize,
    },
    /// Rank 1 receives `depth` messages, the last one first, behind `backlog` unexpected ones that
    /// stay queued.
    Unexpected {
        /// Number of unexpected messages.
        backlog: usize,
        /// Samples.
        count: usize,
        /// Messages of a sample.
        depth: usize,
    },
    /// A ping-pong past `backlog` receives posted at rank 1 that match other messages.
    Posted {
        /// Number of receives for other messages.
        backlog: usize,
        /// Number of round trips that are timed one by one, and of as many in batches.
        count: usize,
        /// Round trips of a batch.
        batch: usize,
    },
    /// All ranks take part in a collective operation.
    Collective {
        /// The operation.
        call: Call,
        /// Bytes that a rank sends to each other one; of a reduction, bytes of its operand.
        size: usize,
        /// Samples.
        count: usize,
    },
    /// The exchange of an integer sort: all ranks together have `keys` keys of 32 bits in random
    /// order, and each gets those of its range. As in IS of the NAS benchmarks, a sample is a count
    /// of buckets, their sum over the ranks, and the keys themselves.
    Keys {
        /// Keys of all ranks.
        keys: usize,
        /// Samples.
        count: usize,
    },
}

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Each rank sends another part to each rank.
    Alltoall,
    /// Each rank sends one part to all.
    Allgather,
    /// Numbers of all ranks are added.
    Allreduce,
}

impl Call {
    /// All operations.
    pub const ALL: [Call; 3] = [Call::Alltoall, Call::Allgather, Call::Allreduce];

    /// Returns its name in lines of work.
    pub fn name(self) -> &'static str {
        match self {
            Call::Alltoall => "alltoall",
            Call::Allgather => "allgather",
            Call::Allreduce => "allreduce",
        }
    }
}

/// A step of sending or receiving a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Rank 0 polls without a message.
    Poll,
    /// Rank 0 sends; the receiver reads it later.
    Send,
    /// Rank 1 receives a message that has arrived already.
    Receive,
}

impl Step {
    const ALL: [(Step, &'static str); 3] = [
        (Step::Poll, "poll"),
        (Step::Send, "send"),
        (Step::Receive, "receive"),
    ];

    fn name(self) -> &'static str {
        Step::ALL
            .iter()
            .find(|(step, _)| *step == self)
            .map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Work::Line { count, batch } => write!(f, "line {count} {batch}"),
            Work::Memcpy {
                size,
                window,
                count,
                slots,
            } => {
                write!(f, "memcpy {size} {window} {count} {slots}")
            }
            Work::CrossCopy {
                size,
                window,
                count,
                slots,
            } => {
                write!(f, "crosscopy {size} {window} {count} {slots}")
            }
            Work::Trap { count, batch } => write!(f, "trap {count} {batch}"),
            Work::Step {
                step,
                size,
                count,
                batch,
            } => write!(f, "{} {size} {count} {batch}", step.name()),
            Work::PingPong { size, count, batch } => write!(f, "pingpong {size} {count} {batch}"),
            Work::Window {
                size,
                window,
                row,
                count,
                slots,
                at_once,
                rewrite,
            } => {
                write!(
                    f,
                    "window {size} {window} {row} {count} {slots} {at_once} {}",
                    u8::from(rewrite)
                )
            }
            Work::Skew {
                size,
                produce,
                consume,
                window,
                count,
            } => {
                write!(f, "skew {size} {produce} {consume} {window} {count}")
            }
            Work::Unexpected {
                backlog,
                count,
                depth,
            } => write!(f, "unexpected {backlog} {count} {depth}"),
            Work::Posted {
                backlog,
                count,
                batch,
            } => write!(f, "posted {backlog} {count} {batch}"),
            Work::Collective { call, size, count } => {
                write!(f, "{} {size} {count}", call.name())
            }
            Work::Keys { keys, count } => write!(f, "keys {keys} {count}"),
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Work, String> {
        let unknown = || format!("unknown work: {text}");
        let mut words = text.split_ascii_whitespace();
        let name = words.next().ok_or_else(unknown)?;
        let numbers: Vec<usize> = words
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|e| format!("{text}: {e}"))?;
        Ok(match (name, numbers.as_slice()) {
            ("line", &[count, batch]) => Work::Line { count, batch },
            ("memcpy", &[size, window, count, slots]) => Work::Memcpy {
                size,
                window,
                count,
                slots,
            },
            ("crosscopy", &[size, window, count, slots]) => Work::CrossCopy {
                size,
                window,
                count,
                slots,
            },
            ("trap", &[count, batch]) => Work::Trap { count, batch },
            ("pingpong", &[size, count, batch]) => Work::PingPong { size, count, batch },
            ("window", &[size, window, row, count, slots, at_once, rewrite]) => Work::Window {
                size,
                window,
                row,
                count,
                slots,
                at_once,
                rewrite: rewrite != 0,
            },
            ("skew", &[size, produce, consume, window, count]) => Work::Skew {
                size,
                produce: produce as u64,
                consume: consume as u64,
                window,
                count,
            },
            ("unexpected", &[backlog, count, depth]) => Work::Unexpected {
                backlog,
                count,
                depth,
            },
            ("posted", &[backlog, count, batch]) => Work::Posted {
                backlog,
                count,
                batch,
            },
            ("keys", &[keys, count]) => Work::Keys { keys, count },
            (name, &[size, count]) => {
                let call = Call::ALL.into_iter().find(|call| call.name() == name);
                let call = call.ok_or_else(unknown)?;
                Work::Collective { call, size, count }
            }
            (name, &[size, count, batch]) => {
                let (step, _) = Step::ALL
                    .into_iter()
                    .find(|(_, known)| *known == name)
                    .ok_or_else(unknown)?;
                Work::Step {
                    step,
                    size,
                    count,
                    batch,
                }
            }
            _ => return Err(unknown()),
        })
    }
}

/// Result of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Nanoseconds of each sample.
    pub times: Vec<f64>,
    /// Nanoseconds of batches, each divided by the number of its parts.
    pub batches: Vec<f64>,
}

impl Answer {
    /// Parses one line of an answer: `times` or `batches` and numbers.
    pub fn take(&mut self, line: &str, work: &Work) -> Result<(), String> {
        let (name, numbers) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let numbers = || {
            let numbers = numbers.split_ascii_whitespace().map(str::parse);
            numbers
                .collect::<Result<Vec<f64>, _>>()
                .map_err(|e| e.to_string())
        };
        match name {
            "times" => self.times = numbers()?,
            "batches" => {
                let batch = work.batch() as f64;
                self.batches = numbers()?.into_iter().map(|n| n / batch).collect();
            }
            _ => return Err(line.trim().to_owned()),
        }
        Ok(())
    }
}

impl Work {
    /// Returns windows of [`WINDOW`] messages; with fewer buffers, messages are sent and received
    /// one after the other.
    pub fn windows(size: usize, count: usize, slots: usize, rewrite: bool) -> Work {
        let at_once = if slots < WINDOW { 1 } else { WINDOW };
        Work::Window {
            size,
            window: WINDOW,
            row: 1,
            count,
            slots,
            at_once,
            rewrite,
        }
    }

    /// Returns the number of parts of a batch.
    fn batch(&self) -> usize {
        match *self {
            Work::Line { batch, .. }
            | Work::PingPong { batch, .. }
            | Work::Posted { batch, .. } => batch.max(1),
            _ => 1,
        }
    }

    /// Returns the bytes moved in a sample, if a rate is measured.
    pub fn bytes(&self) -> Option<usize> {
        match *self {
            Work::Memcpy { size, window, .. } | Work::CrossCopy { size, window, .. } => {
                Some(size * window)
            }
            Work::Window {
                size, window, row, ..
            } => Some(size * window * row),
            _ => None,
        }
    }

    /// Returns the divisor of a sample: 2 for round trips.
    pub fn parts(&self) -> usize {
        match *self {
            Work::Line { .. } | Work::PingPong { .. } | Work::Posted { .. } => 2,
            Work::Unexpected { depth, .. } => depth.max(1),
            Work::Memcpy { window, .. } | Work::CrossCopy { window, .. } => window.max(1),
            Work::Trap { batch, .. } | Work::Step { batch, .. } => batch.max(1),
            _ => 1,
        }
    }

    /// Returns the bytes of a message, if it has a size.
    pub fn size(&self) -> Option<usize> {
        match *self {
            Work::Memcpy { size, .. }
            | Work::CrossCopy { size, .. }
            | Work::Step { size, .. }
            | Work::PingPong { size, .. }
            | Work::Window { size, .. }
            | Work::Collective { size, .. }
            | Work::Skew { size, .. } => Some(size),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Work; 14] = [
        Work::Collective {
            call: Call::Allgather,
            size: 1,
            count: 2,
        },
        Work::Keys { keys: 1, count: 2 },
        Work::Line { count: 1, batch: 2 },
        Work::Memcpy {
            size: 1,
            window: 2,
            count: 3,
            slots: 4,
        },
        Work::CrossCopy {
            size: 1,
            window: 2,
            count: 3,
            slots: 4,
        },
        Work::Trap { count: 1, batch: 2 },
        Work::Step {
            step: Step::Poll,
            size: 1,
            count: 2,
            batch: 3,
        },
        Work::Step {
            step: Step::Send,
            size: 1,
            count: 2,
            batch: 3,
        },
        Work::Step {
            step: Step::Receive,
            size: 1,
            count: 2,
            batch: 3,
        },
        Work::PingPong {
            size: 1,
            count: 2,
            batch: 3,
        },
        Work::Window {
            size: 1,
            window: 2,
            row: 3,
            count: 4,
            slots: 5,
            at_once: 6,
            rewrite: true,
        },
        Work::Skew {
            size: 1,
            produce: 2,
            consume: 3,
            window: 4,
            count: 5,
        },
        Work::Unexpected {
            backlog: 1,
            count: 2,
            depth: 3,
        },
        Work::Posted {
            backlog: 1,
            count: 2,
            batch: 3,
        },
    ];

    #[test]
    fn lines_are_formatted_and_parsed() {
        for work in ALL {
            assert_eq!(work.to_string().parse(), Ok(work));
        }
        for wrong in [
            "",
            "dance 1",
            "line 1",
            "line 1 2 3",
            "line 1 x",
            "pingpong 1 2 -3",
        ] {
            assert!(wrong.parse::<Work>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn answers_are_divided_by_the_batch() -> Result<(), String> {
        let mut answer = Answer::default();
        let work = Work::PingPong {
            size: 8,
            count: 2,
            batch: 4,
        };
        answer.take("times 100 200\n", &work)?;
        answer.take("batches 400 800\n", &work)?;
        assert_eq!(
            answer,
            Answer {
                times: vec![100.0, 200.0],
                batches: vec![100.0, 200.0]
            }
        );
        assert!(answer.take("times one", &work).is_err());
        assert!(answer.take("error it is late", &work).is_err());
        Ok(())
    }
}
