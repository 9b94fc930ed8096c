//! Plans of the simulated programs.

use esp_proto::{Buffers, Duration, ResetReason};

/// Plan of a connection and its two programs.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// Node that connects.
    pub from: usize,
    /// Port of the connecting side.
    pub from_port: u16,
    /// Node that listens.
    pub to: usize,
    /// Port of the listening side.
    pub to_port: u16,
    /// Time of the connect call.
    pub start: Duration,
    /// Job key of the connecting side.
    pub key: Vec<u8>,
    /// Both sides call connect at one instant (W-28); no listener is needed.
    pub crossing: bool,
    /// A planned fault may end the flow; otherwise both sides must end with `Finished`.
    pub may_fail: bool,
    /// The program of the connecting side.
    pub active: SidePlan,
    /// The program of the listening side.
    pub passive: SidePlan,
}

impl FlowPlan {
    /// Creates a flow of two default programs that starts at once.
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

    /// Makes the connecting side write `bytes` and the listening side nothing.
    #[must_use]
    pub fn bulk(mut self, bytes: u64) -> Self {
        self.active.write = Write::Bulk(bytes);
        self
    }

    /// Sets the start time.
    #[must_use]
    pub fn at(mut self, start: Duration) -> Self {
        self.start = start;
        self
    }

    /// Allows the flow to fail.
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

/// Plan of one program on its connection.
#[derive(Clone, Debug)]
pub struct SidePlan {
    /// Size of the program's send buffer in bytes.
    pub tx_buffer: u32,
    /// Size of the program's receive buffer in bytes.
    pub rx_buffer: u32,
    /// Writing behaviour.
    pub write: Write,
    /// Reports the bytes read together with progress, and after each quarter of the buffer, as an
    /// engine does for programs in other processes; otherwise reports them at once.
    pub reports_late: bool,
    /// Pause of reading.
    pub pause: Option<Pause>,
    /// Way of ending.
    pub end: End,
    /// Delay of `attach` on a listener's connection.
    pub attach_after: Duration,
}

impl SidePlan {
    /// Returns the sizes of the program's buffers.
    pub(crate) fn buffers(&self) -> Buffers {
        Buffers {
            rx: self.rx_buffer,
            tx: self.tx_buffer,
        }
    }
}

impl Default for SidePlan {
    fn default() -> Self {
        SidePlan {
            tx_buffer: 1 << 20,
            rx_buffer: 1 << 20,
            reports_late: false,
            write: Write::Bulk(0),
            pause: None,
            end: End::Shutdown,
            attach_after: Duration::ZERO,
        }
    }
}

/// Writing behaviour of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// A number of bytes as fast as the buffer accepts them.
    Bulk(u64),
    /// `chunk` bytes every `every`, `bytes` in all.
    Trickle {
        /// Total bytes.
        bytes: u64,
        /// Bytes at a time.
        chunk: u32,
        /// Interval.
        every: Duration,
    },
    /// Messages of `size` bytes, each sent when the answer to the previous one is complete.
    Ask {
        /// Bytes of a message and of its answer.
        size: u32,
        /// Number of messages.
        rounds: u32,
    },
    /// Answers each message of `size` bytes with `size` bytes.
    Answer {
        /// Bytes of a message and of its answer.
        size: u32,
        /// Number of messages.
        rounds: u32,
    },
}

impl Write {
    /// Returns the total number of bytes written.
    pub fn total(self) -> u64 {
        match self {
            Write::Bulk(bytes) | Write::Trickle { bytes, .. } => bytes,
            Write::Ask { size, rounds } | Write::Answer { size, rounds } => {
                u64::from(size) * u64::from(rounds)
            }
        }
    }
}

/// A pause of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Number of received bytes at which it starts.
    pub after: u64,
    /// Its duration.
    pub lasts: Duration,
}

/// Way in which a program ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Shuts its direction down when everything is written.
    Shutdown,
    /// Shuts down when everything is written and the peer has finished.
    AfterPeer,
    /// Aborts this long after the opening.
    Abort(Duration, ResetReason),
    /// Never ends the connection.
    Never,
}

/// One of the two programs of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The connecting program.
    Active,
    /// The listening program.
    Passive,
}

impl Side {
    /// Returns the other side.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::Active => Side::Passive,
            Side::Passive => Side::Active,
        }
    }
}
