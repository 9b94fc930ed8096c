//! Congestion control behind one trait named by events. `docs/congestion.md` says what was chosen and why.

mod aimd;
mod fixed;

pub use aimd::Aimd;
pub use fixed::Fixed;

use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use core::fmt;

/// Acknowledgements of one received frame.
#[derive(Clone, Copy, Debug)]
pub struct AckEvent {
    /// When.
    pub now: Instant,
    /// Packets newly acknowledged, cumulatively or selectively.
    pub acked: u32,
    /// Round trip of the newest of them that was sent once only.
    pub rtt: Option<Duration>,
    /// Smallest round trip of the connection so far.
    pub min_rtt: Option<Duration>,
    /// Packets outstanding before this acknowledgement.
    pub in_flight: u32,
    /// True when the program's data or the peer's credit, not the window, limited what was sent.
    pub app_limited: bool,
    /// True for the first acknowledgement of something sent after the previous round ended.
    pub round_start: bool,
}

/// Packets found lost by acknowledgements (not by a retransmission time-out).
#[derive(Clone, Copy, Debug)]
pub struct LossEvent {
    /// When.
    pub now: Instant,
    /// Packets found lost now.
    pub lost: u32,
    /// Packets outstanding, the lost ones excluded.
    pub in_flight: u32,
}

/// Decides how many packets may be outstanding. Windows count packets, since sequences do.
pub trait Controller: fmt::Debug + Send {
    /// A data packet was sent, new or again.
    fn on_sent(&mut self, now: Instant, in_flight: u32) {
        let _ = (now, in_flight);
    }
    /// Packets were acknowledged.
    fn on_ack(&mut self, event: &AckEvent);
    /// Packets were found lost.
    fn on_loss(&mut self, event: &LossEvent);
    /// The retransmission time-out expired: everything outstanding counts as lost.
    fn on_rto(&mut self, now: Instant);
    /// That time-out was impatient: the acknowledgement that follows is for what was sent before it.
    fn on_spurious_rto(&mut self) {}
    /// The most packets that may be outstanding; at least 1.
    fn window(&self) -> u32;
    /// A short name for people.
    fn name(&self) -> &'static str;
}

/// Which controller new connections get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// [`Aimd`], the default.
    #[default]
    Aimd,
    /// [`Fixed`]: a constant window, for measurements and tests.
    Fixed(u32),
}

impl Congestion {
    /// Makes a controller whose window never exceeds `max_window` packets.
    pub fn build(self, max_window: u32) -> Box<dyn Controller> {
        match self {
            Congestion::Aimd => Box::new(Aimd::new(max_window)),
            Congestion::Fixed(window) => Box::new(Fixed::new(window.clamp(1, max_window))),
        }
    }
}
