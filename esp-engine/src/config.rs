//! Configuration of an engine, and errors of its start.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use esp_proto::secure::SecureConfig;
use esp_proto::{EndpointConfig, Port};

use crate::engine_set::Member;

/// Configuration of an engine.
#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// Protocol constants of all links.
    pub endpoint: EndpointConfig,
    /// The links; [`crate::LinkId`] counts in this order.
    pub links: Vec<LinkConfig>,
    /// Socket buffers and options.
    pub socket: netif::SocketOptions,
    /// Idle strategy.
    pub idle: IdleConfig,
    /// Ports that other processes have leased already, as with [`crate::Command::Hold`]: their
    /// frames are ignored from the start. Ports that cannot be held are skipped; `Hold` then
    /// reports the reason.
    pub held: Vec<(crate::LinkId, RangeInclusive<Port>)>,
    /// Protection of the packets of all links; `None` for none.
    pub secure: Option<SecureConfig>,
    /// pcap file for every frame sent and received.
    pub pcap: Option<PathBuf>,
    /// Time after the start during which programs may bring connections of an earlier engine
    /// ([`crate::Command::Resume`]), and frames of unknown connections are not answered.
    pub adoption: Duration,
    /// Place in a set of engines; `None`: the only engine. If the set has several engines, the
    /// links must be raw Ethernet without protection, and there must be no pcap file.
    pub member: Option<Member>,
}

/// A link of an engine.
#[derive(Clone, Debug)]
pub enum LinkConfig {
    /// Raw Ethernet on an interface.
    Ethernet(netif::Interface),
    /// ESP in UDP.
    Udp {
        /// Interface that has the address. Its name is the link's, its MTU limits packets.
        interface: netif::Interface,
        /// Address to bind; UDP port 0: any free one.
        local: SocketAddr,
        /// Networks whose packets are accepted; none: all.
        sources: Vec<netif::IpNetwork>,
    },
}

/// Minimum duration of a yield that shows a contended core: another thread computes on it, and does
/// not merely yield as well or handle what this thread delivered. (A time slice is 3 ms. At 50 µs,
/// a short disturbance of the machine was enough, or a program that read its ring at once; the loop
/// then slept in the middle of a stream, and each sleep costs the sender of the next frame a
/// wake-up.)
pub const CONTENDED_YIELD: Duration = Duration::from_millis(1);
/// Time for which the loop blocks instead of yielding after such a yield: the scheduler takes the
/// rest of the time slice from a thread that yields, while a blocked one runs soon after its
/// wake-up.
pub const CONTENDED_TIME: Duration = Duration::from_millis(10);

/// Idle strategy: spin, then yield, then block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleConfig {
    /// Time after the last work for which the loop polls without releasing the core.
    pub spin: Duration,
    /// Time after that for which it polls and yields (`sched_yield`).
    pub yield_for: Duration,
    /// Pin the engine's thread to this CPU.
    pub core: Option<usize>,
}

impl Default for IdleConfig {
    /// Does not spin: that only pays if the engine has a dedicated core, which its administrator
    /// knows. A short yielding phase keeps the engine awake through a burst without taking time
    /// from other threads.
    fn default() -> Self {
        IdleConfig {
            spin: Duration::ZERO,
            yield_for: Duration::from_micros(50),
            core: None,
        }
    }
}

/// Reason why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No interface was given.
    #[error("no interface given: name at least one")]
    NoLinks,
    /// A packet socket could not be opened.
    #[error(transparent)]
    Socket(#[from] netif::OpenError),
    /// A UDP socket could not be opened.
    #[error(transparent)]
    Udp(#[from] netif::UdpOpenError),
    /// The pcap file could not be created.
    #[error("cannot create the pcap file {}: {source}; set `pcap` to another path", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
}

impl EngineError {
    /// Returns true if another socket has the UDP port.
    pub fn is_in_use(&self) -> bool {
        matches!(self, EngineError::Udp(netif::UdpOpenError::InUse { .. }))
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> EngineError {
        move |source| EngineError::System { what, source }
    }
}
