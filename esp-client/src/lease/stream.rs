//! A program's ends of what runs over a lease: a stream, and a listener's part on one interface.

use std::sync::{Arc, Weak};
use std::time::Instant;

use esp_engine::shm::Spin;
use esp_engine::{Arrival, Command, LINGER, ListenerId};
use esp_proto::MacAddr;

use super::open::sizes;
use super::told::Told;
use super::{EmbeddedEngine, LeasedPorts, Leases, Opened, embedded};
use crate::control::Rings;
use crate::error::EspError;
use crate::session::lock;

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
    /// The connection is established: the daemon shows it, and resets it when this program dies.
    pub(crate) fn established(&self, local_port: u16, peer: MacAddr, peer_port: u16) {
        if let Some(leases) = self.leases.upgrade() {
            leases.tell(self.slot, &self.told(local_port, peer, peer_port));
        }
    }

    fn told(&self, local_port: u16, peer: MacAddr, peer_port: u16) -> Told {
        Told {
            lease: Arc::clone(&self.ports.id),
            local_port,
            peer,
            peer_port,
        }
    }

    /// The same for one that nobody waits for.
    pub(crate) fn begun(&self, local_port: u16, peer: MacAddr, peer_port: u16) {
        if let Some(leases) = self.leases.upgrade() {
            let told = self.told(local_port, peer, peer_port);
            lock(&leases.begun).push((self.slot, told));
        }
    }

    pub(crate) fn engine(&self) -> &EmbeddedEngine {
        &self.ports.engine
    }

    /// Notifies the engine, and sends what was written as far as the window allows.
    #[inline]
    pub(crate) fn ring(&self) {
        self.engine().ring(self.slot);
    }

    pub(crate) fn abort(&self) {
        self.engine().tell(Command::Abort {
            client: embedded::SELF,
            slot: self.slot,
        });
        self.engine().poll(true);
    }

    /// The program's last word. What was written gets half a second to be acknowledged, as if the
    /// program died right behind; the progress thread does the rest while the process lives. Who
    /// serves many streams from one thread waits for none of them, but for all at the end
    /// ([`Leases::finish`]).
    pub(crate) fn close(&self, delivered: impl FnMut() -> bool) {
        let polled = self
            .leases
            .upgrade()
            .is_some_and(|leases| leases.session.answers().is_some());
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

    pub(crate) fn waiting(&self) -> bool {
        self.engine().has_arrival(self.listener)
    }

    /// Why nobody will come here any more.
    pub(crate) fn lost(&self) -> Option<&EspError> {
        self.ports.lost.get()
    }

    /// The next connection, if there is one.
    pub(crate) fn accept(&self, rings: Rings) -> Result<Option<Opened>, EspError> {
        let Some(leases) = self.leases.upgrade() else {
            return Ok(None);
        };
        while let Some(Arrival {
            handle,
            port,
            peer,
            peer_port,
        }) = self.engine().arrival(self.listener)
        {
            let (region, slot) = sizes(rings, esp_proto::least_listener_capacity(self.ports.mtu))
                .and_then(|sizes| leases.prepare(sizes))
                .inspect_err(|_| self.engine().tell(Command::Refuse { handle }))?;
            let (client, given) = (embedded::SELF, Arc::clone(&region));
            let attached = self.engine().attach(|reply| Command::Attach {
                handle,
                client,
                slot,
                region: given,
                reply,
            });
            if attached {
                let stream = leases.stream(&self.ports, slot);
                let interface = self.ports.interface.clone();
                return Ok(Some(Opened {
                    stream,
                    region,
                    interface,
                    local_port: port,
                    peer,
                    peer_port,
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
