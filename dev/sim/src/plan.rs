//! What the simulated programs shall do.

use esp_proto::{Duration, ResetReason};

/// A connection and its two programs.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// Node that connects.
    pub from: usize,
    /// Its port.
    pub from_port: u16,
    /// Node that listens.
    pub to: usize,
    /// Its port.
    pub to_port: u16,
    /// When it connects.
    pub start: Duration,
    /// Job key of the connecting side.
    pub key: Vec<u8>,
    /// Both sides call connect at the same time (W-28); nobody needs to listen.
    pub crossing: bool,
    /// A fault is planned that may end it; otherwise both sides must end with `Finished`.
    pub may_fail: bool,
    /// The program of the connecting side.
    pub active: SidePlan,
    /// The program of the listening side.
    pub passive: SidePlan,
}

impl FlowPlan {
    /// A flow of two default programs that starts at once.
    pub fn new(from: usize, from_port: u16, to: usize, to_port: u16) -> Self {
        FlowPlan {
            from,
            from_port,
            to,
            to_port,
            start: Duration::ZERO,
            key: Vec::new(),
            crossing: false,
            may_fail: false,
            active: SidePlan::default(),
            passive: SidePlan::default(),
        }
    }

    /// The connecting side writes `bytes`, the listening side nothing.
    #[must_use]
    pub fn bulk(mut self, bytes: u64) -> Self {
        self.active.write = Write::Bulk(bytes);
        self
    }

    /// Sets the start.
    #[must_use]
    pub fn at(mut self, start: Duration) -> Self {
        self.start = start;
        self
    }

    /// It need not end well.
    #[must_use]
    pub fn may_fail(mut self) -> Self {
        self.may_fail = true;
        self
    }

    /// Changes the connecting side's program.
    #[must_use]
    pub fn active(mut self, change: impl FnOnce(&mut SidePlan)) -> Self {
        change(&mut self.active);
        self
    }

    /// Changes the listening side's program.
    #[must_use]
    pub fn passive(mut self, change: impl FnOnce(&mut SidePlan)) -> Self {
        change(&mut self.passive);
        self
    }
}

/// One program on its connection.
#[derive(Clone, Debug)]
pub struct SidePlan {
    /// Bytes it may have written and not acknowledged.
    pub tx_buffer: u32,
    /// Its receive buffer.
    pub rx_buffer: u32,
    /// What it writes.
    pub write: Write,
    /// When it does not read.
    pub pause: Option<Pause>,
    /// How it ends.
    pub end: End,
    /// How long a listener's connection waits for `attach`.
    pub attach_after: Duration,
}

impl Default for SidePlan {
    fn default() -> Self {
        SidePlan {
            tx_buffer: 1 << 20,
            rx_buffer: 1 << 20,
            write: Write::Bulk(0),
            pause: None,
            end: End::Shutdown,
            attach_after: Duration::ZERO,
        }
    }
}

/// What a program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// So many bytes as fast as the buffer takes them.
    Bulk(u64),
    /// `chunk` bytes every `every`, `bytes` in all.
    Trickle {
        /// In all.
        bytes: u64,
        /// At a time.
        chunk: u32,
        /// Pause between.
        every: Duration,
    },
    /// Messages of `size` bytes; the next one when the answer to the last one has arrived whole.
    Ask {
        /// Bytes of a message and of its answer.
        size: u32,
        /// Messages.
        rounds: u32,
    },
    /// Answers each message of `size` bytes with as many.
    Answer {
        /// Bytes of a message and of its answer.
        size: u32,
        /// Messages.
        rounds: u32,
    },
}

impl Write {
    /// Bytes written in the end.
    pub fn total(self) -> u64 {
        match self {
            Write::Bulk(bytes) | Write::Trickle { bytes, .. } => bytes,
            Write::Ask { size, rounds } | Write::Answer { size, rounds } => {
                u64::from(size) * u64::from(rounds)
            }
        }
    }
}

/// A time without reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// It begins when so many bytes have been received.
    pub after: u64,
    /// It lasts so long.
    pub lasts: Duration,
}

/// How a program ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Shuts its direction down when all is written.
    Shutdown,
    /// The same, but not before the peer has finished.
    AfterPeer,
    /// Aborts so long after the opening.
    Abort(Duration, ResetReason),
    /// Does nothing.
    Never,
}

/// Which program of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The one that connects.
    Active,
    /// The one that listens.
    Passive,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::Active => Side::Passive,
            Side::Passive => Side::Active,
        }
    }
}
