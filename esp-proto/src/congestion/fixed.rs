//! A window that never changes.

use super::{AckEvent, Controller, LossEvent};
use crate::time::Instant;

/// Controller with a constant window. For measurements; unfit for a shared network.
#[derive(Clone, Debug)]
pub struct Fixed(u32);

impl Fixed {
    /// Creates a controller with a window of `packets`.
    pub fn new(packets: u32) -> Self {
        Fixed(packets.max(1))
    }
}

impl Controller for Fixed {
    fn on_ack(&mut self, _: &AckEvent) {}
    fn on_loss(&mut self, _: &LossEvent) {}
    fn on_rto(&mut self, _: Instant) {}
    fn window(&self) -> u32 {
        self.0
    }
    fn name(&self) -> &'static str {
        "fixed"
    }
}
