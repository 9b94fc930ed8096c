//! Datagram sockets of the embedded engine.

use std::sync::Arc;
use std::time::Instant;

use esp_engine::shm::{Region, Spin};
use esp_proto::FIRST_EPHEMERAL_PORT;

use super::embedded::EmbeddedEngine;
use super::leases::Leases;
use super::stream::sizes;
use crate::control::{ErrorKind, Rings};
use crate::error::EspError;
use crate::sync::lock;

/// A datagram port bound at the embedded engine.
pub(crate) struct LeasedDatagrams {
    engine: Arc<EmbeddedEngine>,
    slot: u16,
}

/// A new datagram socket, with its region, interface and port.
pub(crate) struct OpenedDatagrams {
    pub(crate) socket: LeasedDatagrams,
    pub(crate) region: Arc<Region>,
    pub(crate) interface: String,
    pub(crate) port: u16,
}

impl Leases {
    /// Binds a datagram port (0: any free one) of this interface; `None`: the first one.
    pub(crate) fn bind_datagrams(
        &self,
        interface: Option<&str>,
        port: u16,
        rings: Rings,
    ) -> Result<OpenedDatagrams, EspError> {
        let table = lock(&self.table);
        let wanted = |name: &str| interface.is_none_or(|only| only == name);
        let found = table.iter().find(|ports| wanted(&ports.interface)).cloned();
        drop(table);
        let ports = found.ok_or_else(|| {
            EspError::denied(ErrorKind::NotFound, "the program has no such interface")
        })?;
        let (region, slot) = self.prepare(sizes(rings, 0)?)?;
        let candidates = match port {
            0 => FIRST_EPHEMERAL_PORT..=u16::MAX,
            port => port..=port,
        };
        for port in candidates {
            match self
                .engine
                .bind_datagrams(ports.link, (slot, port), Arc::clone(&region))
            {
                Some(Ok(())) => {
                    let engine = Arc::clone(&self.engine);
                    return Ok(OpenedDatagrams {
                        socket: LeasedDatagrams { engine, slot },
                        region,
                        interface: ports.interface.clone(),
                        port,
                    });
                }
                Some(Err(_)) => {}
                None => break,
            }
        }
        self.engine.withdraw_slot(slot);
        Err(EspError::denied(
            ErrorKind::InUse,
            "the datagram port is in use",
        ))
    }
}

impl LeasedDatagrams {
    /// Notifies the engine of datagrams written.
    pub(crate) fn ring(&self) {
        self.engine.ring(self.slot);
    }

    /// Polls the engine for received datagrams.
    pub(crate) fn poll(&self) {
        self.engine.poll_all_links();
    }

    /// Waits until `ready` returns true; false at the deadline.
    pub(crate) fn wait(
        &self,
        spin: Spin,
        ready: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        self.engine.wait(spin, ready, deadline)
    }
}

impl Drop for LeasedDatagrams {
    fn drop(&mut self) {
        if !self.engine.is_forked() {
            self.engine.close_datagrams(self.slot);
        }
    }
}
