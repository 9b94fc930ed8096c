//! Streams over a lease, and the part of a listener on one leased interface.

use std::sync::{Arc, Weak};
use std::time::Instant;

use esp_engine::shm::{Region, RingSizes, Spin};
use esp_engine::{Arrival, Command, LINGER, ListenerId};

use super::embedded::{EmbeddedEngine, SELF};
use super::leases::Leases;
use super::ports::LeasedPorts;
use super::registry::LeaseConnection;
use crate::control::{ErrorKind, Rings};
use crate::error::{EspError, PeerName};
use crate::options::DEFAULT_RING;
use crate::sync::lock;

/// A new stream over a lease, with its region and addresses.
pub(crate) struct Opened {
    pub(crate) stream: LeasedStream,
    pub(crate) region: Arc<Region>,
    pub(crate) interface: String,
    pub(crate) local_port: u16,
    pub(crate) peer: PeerName,
}

/// A stream over a lease.
pub(crate) struct LeasedStream {
    pub(crate) ports: Arc<LeasedPorts>,
    pub(super) leases: Weak<Leases>,
    pub(crate) slot: u16,
}

/// A listener's part on one leased link.
pub(crate) struct LeasedListener {
    pub(super) ports: Arc<LeasedPorts>,
    pub(super) leases: Weak<Leases>,
    pub(super) listener: ListenerId,
}

impl LeasedStream {
    /// Registers the established connection at the daemon, which shows it, and resets it when this
    /// program dies.
    pub(crate) fn register(&self, local_port: u16, peer: PeerName) {
        if let Some(leases) = self.leases.upgrade() {
            leases.register(self.slot, self.connection(local_port, peer));
        }
    }

    /// Registers the connection once it is established.
    pub(crate) fn register_later(&self, local_port: u16, peer: PeerName) {
        if let Some(leases) = self.leases.upgrade() {
            lock(&leases.pending).push((self.slot, self.connection(local_port, peer)));
        }
    }

    fn connection(&self, local_port: u16, peer: PeerName) -> LeaseConnection {
        LeaseConnection {
            lease: Arc::clone(&self.ports.id),
            local_port,
            peer,
        }
    }

    pub(crate) fn engine(&self) -> &EmbeddedEngine {
        &self.ports.engine
    }

    /// Notifies the engine and sends written bytes as far as the window allows.
    #[inline]
    pub(crate) fn ring(&self) {
        self.engine().ring(self.slot);
    }

    pub(crate) fn abort(&self) {
        self.engine().send(Command::Abort {
            client: SELF,
            slot: self.slot,
        });
        self.engine().poll(true);
    }

    /// Closes the stream. Waits at most half a second until written bytes are acknowledged, as if
    /// the program exited right afterwards; the progress thread continues while the process lives.
    /// A client with a poller waits once for all streams instead ([`Leases::finish`]).
    pub(crate) fn close(&self, delivered: impl FnMut() -> bool) {
        let polled = self
            .leases
            .upgrade()
            .is_some_and(|leases| leases.session.notice().is_some());
        if !polled {
            self.engine()
                .wait(Spin::default(), delivered, Some(Instant::now() + LINGER));
        }
        self.engine().close(self.slot);
        self.engine().poll(true);
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn wake_later(&self, cx: &std::task::Context<'_>) {
        if let Some(leases) = self.leases.upgrade() {
            leases.wake_later(cx);
        }
    }
}

impl LeasedListener {
    pub(crate) fn engine(&self) -> &EmbeddedEngine {
        &self.ports.engine
    }

    pub(crate) fn has_arrival(&self) -> bool {
        self.engine().has_arrival(self.listener)
    }

    /// Returns the error that ended the listener, if any.
    pub(crate) fn lost(&self) -> Option<&EspError> {
        self.ports.lost.get()
    }

    /// Returns the next connection, if there is one.
    pub(crate) fn accept(&self, rings: Rings) -> Result<Option<Opened>, EspError> {
        let Some(leases) = self.leases.upgrade() else {
            return Ok(None);
        };
        while let Some(arrival) = self.engine().arrival(self.listener) {
            let Arrival {
                handle,
                port: local_port,
                peer: addr,
                peer_port: port,
            } = arrival;
            let (region, slot) = sizes(rings, esp_proto::least_listener_capacity(self.ports.mtu))
                .and_then(|sizes| leases.prepare(sizes))
                .inspect_err(|_| self.engine().send(Command::Refuse { handle }))?;
            let given = Arc::clone(&region);
            let attached = self.engine().ask(|reply| Command::Attach {
                handle,
                client: SELF,
                slot,
                region: given,
                reply,
            });
            if attached == Some(true) {
                return Ok(Some(Opened {
                    stream: leases.stream(&self.ports, slot),
                    region,
                    interface: self.ports.interface.clone(),
                    local_port,
                    peer: PeerName { addr, port },
                }));
            }
            self.engine().withdraw_slot(slot);
        }
        Ok(None)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn wake_later(&self, cx: &std::task::Context<'_>) {
        if let Some(leases) = self.leases.upgrade() {
            leases.wake_later(cx);
        }
    }
}

impl Drop for LeasedListener {
    fn drop(&mut self) {
        self.engine().close_listener(self.listener);
    }
}

/// Returns the ring sizes of a stream. 0 selects the default, as at the daemon.
pub(super) fn sizes(wanted: Rings, least_rx: u32) -> Result<RingSizes, EspError> {
    let one = |size: u32| if size == 0 { DEFAULT_RING } else { size };
    let sizes = RingSizes {
        tx: one(wanted.tx),
        rx: one(wanted.rx).max(least_rx.next_power_of_two()),
    };
    sizes
        .check()
        .map_err(|error| EspError::denied(ErrorKind::BadArgument, error.to_string()))?;
    Ok(sizes)
}
