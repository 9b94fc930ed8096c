//! Ports of a link that are given away: the kernel keeps their frames from our socket, the endpoint
//! answers for them.

use std::ops::RangeInclusive;

use esp_proto::{Instant, Port, ResetReason};
use netif::Filter;

use super::link::Link;
use crate::command::{HoldError, Orphan};

impl Link {
    /// What is held already stays so.
    pub(super) fn hold(&mut self, ports: RangeInclusive<Port>) -> Result<(), HoldError> {
        if self.held.contains(&ports) {
            return Ok(());
        }
        for port in ports.clone() {
            if !self.endpoint.hold(port) {
                self.release(*ports.start()..port);
                return Err(HoldError::InUse(port));
            }
        }
        self.held.push(ports.clone());
        self.keep_out().inspect_err(|_| {
            self.held.pop();
            self.release(ports);
        })
    }

    pub(super) fn unhold(&mut self, now: Instant, ports: RangeInclusive<Port>, orphans: &[Orphan]) {
        self.held.retain(|held| *held != ports);
        self.release(ports);
        // A smaller filter than the one before: the kernel has no reason to refuse it.
        let _ = self.keep_out();
        for orphan in orphans {
            let to = (orphan.peer, orphan.peer_port);
            self.endpoint.reset_orphan(
                now,
                orphan.local_port,
                to,
                orphan.nonce,
                ResetReason::ProgramDied,
            );
        }
    }

    fn release(&mut self, ports: impl Iterator<Item = Port>) {
        for port in ports {
            self.endpoint.unhold(port);
        }
    }

    /// Has the kernel keep the frames of held ports from our socket.
    fn keep_out(&self) -> Result<(), HoldError> {
        let ethertype = self.endpoint.config().esp_ethertype;
        let filter = Filter::except_ports(ethertype, self.held.iter().cloned())
            .map_err(|error| HoldError::Filter(error.to_string()))?;
        self.esp
            .socket
            .attach_filter(&filter)
            .map_err(|error| HoldError::Filter(error.to_string()))
    }
}
