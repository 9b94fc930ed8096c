//! What an engine is started with, and why it may not start.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use esp_proto::{EndpointConfig, Port};

/// Everything an engine needs to know.
#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// Protocol constants, the same for each link.
    pub endpoint: EndpointConfig,
    /// The interfaces to speak on; [`crate::LinkId`] counts in this order.
    pub links: Vec<netif::Interface>,
    /// Socket buffers and options.
    pub socket: netif::SocketOptions,
    /// What to do when there is nothing to do.
    pub idle: IdleConfig,
    /// Ports that other processes hold from before, as after [`crate::Command::Hold`]: their frames
    /// are left alone from the first one on. What cannot be held is not; `Hold` then says why.
    pub held: Vec<(crate::LinkId, RangeInclusive<Port>)>,
    /// Write every frame sent and received to this pcap file.
    pub pcap: Option<PathBuf>,
}

/// A yield that takes longer than this gave the core to somebody who computes, not to one who
/// yields, too, or who works off what we brought. (A time slice is 3 ms. At 50 µs a hiccup of the
/// host was enough, or a program that read its ring in one go, and then a loop slept in the middle
/// of a stream: each sleep costs the sender of the next frame a wake-up.)
pub const YIELD_HOGGED: Duration = Duration::from_millis(1);
/// After that nobody yields for so long, but sleeps: a yield is taken for a renunciation of the
/// rest of the time slice, while a sleeper keeps its claim to run soon after a wake-up.
pub const CONTENDED_TIME: Duration = Duration::from_millis(10);

/// Idle strategy: spin, then yield, then block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleConfig {
    /// Look for work this long after the last work without giving the core away.
    pub spin: Duration,
    /// Then this long, letting others run in between (`sched_yield`).
    pub yield_for: Duration,
    /// Pin the engine's thread to this CPU.
    pub core: Option<usize>,
}

impl Default for IdleConfig {
    /// No spinning: it only pays where the engine has a core of its own, which its administrator
    /// knows. A short yielding phase keeps the engine awake through a burst without taking time
    /// from anybody who wants it.
    fn default() -> Self {
        IdleConfig {
            spin: Duration::ZERO,
            yield_for: Duration::from_micros(50),
            core: None,
        }
    }
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No interface given.
    #[error("no interface to speak on; name at least one")]
    NoLinks,
    /// A packet socket could not be opened.
    #[error(transparent)]
    Socket(#[from] netif::OpenError),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl EngineError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> EngineError {
        move |source| EngineError::System { what, source }
    }
}
