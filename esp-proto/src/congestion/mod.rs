//! Congestion control behind one event-driven trait. `docs/congestion.md` explains the design.

mod aimd;
mod dctcp;
mod fixed;

pub use aimd::Aimd;
pub use fixed::Fixed;

use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use core::fmt;

/// The acknowledgements in one received frame.
#[derive(Clone, Copy, Debug)]
pub struct AckEvent {
    /// Time of reception.
    pub now: Instant,
    /// Packets newly acknowledged, cumulatively or selectively.
    pub acked: u32,
    /// Round-trip time of the newest of them that was sent only once.
    pub rtt: Option<Duration>,
    /// Smallest round-trip time of the connection so far.
    pub min_rtt: Option<Duration>,
    /// Packets outstanding before this acknowledgement.
    pub in_flight: u32,
    /// True when the program's data or the peer's credit limited the sending rate, not the window.
    pub app_limited: bool,
    /// True for the first acknowledgement of a packet sent after the previous round ended.
    pub round_start: bool,
}

/// Packets found lost by acknowledgements (not by a retransmission timeout).
#[derive(Clone, Copy, Debug)]
pub struct LossEvent {
    /// Time of detection.
    pub now: Instant,
    /// Packets newly found lost.
    pub lost: u32,
    /// Packets outstanding, excluding the lost ones.
    pub in_flight: u32,
}

/// Packets newly reported as received with a congestion mark.
#[derive(Clone, Copy, Debug)]
pub struct MarkEvent {
    /// Number of these packets.
    pub marked: u32,
    /// Packets outstanding before the acknowledgement that reports them.
    pub in_flight: u32,
}

/// Decides how many packets may be outstanding. Windows count packets, as sequence numbers do.
pub trait Controller: fmt::Debug + Send {
    /// Called when a data packet is sent, new or retransmitted.
    fn on_sent(&mut self, now: Instant, in_flight: u32) {
        let _ = (now, in_flight);
    }
    /// Called when packets were acknowledged.
    fn on_ack(&mut self, event: &AckEvent);
    /// Called when ECN comes into force, before the first packet is sent.
    fn enable_ecn(&mut self) {}
    /// Called when the peer reports congestion marks, before `on_ack` for the same frame. Returns
    /// true when the window was reduced.
    fn on_marks(&mut self, event: &MarkEvent) -> bool {
        let _ = event;
        false
    }
    /// Called when packets were found lost.
    fn on_loss(&mut self, event: &LossEvent);
    /// Called when the retransmission timeout expired: everything outstanding counts as lost.
    fn on_rto(&mut self, now: Instant);
    /// Called when the last timeout proves spurious: the acknowledgement that follows is for
    /// packets sent before it.
    fn on_spurious_rto(&mut self) {}
    /// Returns the maximum number of packets that may be outstanding; at least 1.
    fn window(&self) -> u32;
    /// Returns the controller's short name for display.
    fn name(&self) -> &'static str;
}

/// Selects the controller of new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// [`Aimd`], the default.
    #[default]
    Aimd,
    /// [`Fixed`]: a constant window, for measurements and tests.
    Fixed(u32),
}

impl Congestion {
    /// Creates a controller whose window never exceeds `max_window` packets.
    pub fn build(self, max_window: u32) -> Box<dyn Controller> {
        match self {
            Congestion::Aimd => Box::new(Aimd::new(max_window)),
            Congestion::Fixed(window) => Box::new(Fixed::new(window.clamp(1, max_window))),
        }
    }
}
