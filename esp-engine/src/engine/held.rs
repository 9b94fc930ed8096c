//! Ports of a link that another process has leased: the kernel keeps their frames from the engine's
//! socket, and the endpoint keeps them reserved.

use std::ops::RangeInclusive;

use esp_proto::{Instant, Port, ResetReason};
use netif::Filter;

use super::link::Link;
use crate::command::{HoldError, Orphan};

impl Link {
    /// Reserves ports for another process. Ports that are reserved already stay so.
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
        self.attach_filter().inspect_err(|_| {
            self.held.pop();
            self.release(ports);
        })
    }

    pub(super) fn unhold(&mut self, now: Instant, ports: RangeInclusive<Port>, orphans: &[Orphan]) {
        self.held.retain(|held| *held != ports);
        self.release(ports);
        // The filter is shorter than the one before, so the kernel accepts it.
        let _ = self.attach_filter();
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

    /// Keeps the frames of held ports from a new socket. Without the filter they are received and
    /// dropped, which only costs time.
    pub(super) fn filter_held(&self) {
        if !self.held.is_empty() {
            let _ = self.attach_filter();
        }
    }

    fn release(&mut self, ports: impl Iterator<Item = Port>) {
        for port in ports {
            self.endpoint.unhold(port);
        }
    }

    /// Attaches a filter that keeps the frames of held ports from the engine's socket.
    fn attach_filter(&self) -> Result<(), HoldError> {
        let Some([esp, _]) = self.carrier.packet_sockets() else {
            return Err(HoldError::Filter("the link is not raw Ethernet".into()));
        };
        let ethertype = self.endpoint.config().esp_ethertype;
        let filter = Filter::except_ports(ethertype, self.held.iter().cloned())
            .map_err(|error| HoldError::Filter(error.to_string()))?;
        esp.attach_filter(&filter)
            .map_err(|error| HoldError::Filter(error.to_string()))
    }
}
