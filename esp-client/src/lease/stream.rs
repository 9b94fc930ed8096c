//! A program's ends of what runs over a lease: a stream, and a listener's part on one interface.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use esp_engine::shm::Spin;
use esp_engine::{Arrival, Command, LINGER, ListenerId};
use esp_proto::MacAddr;

use super::open::sizes;
use super::told::Told;
use super::{Host, LeasedPorts, Leases, Opened, host};
use crate::control::Rings;
use crate::error::EspError;
use crate::session::lock;

/// A stream over a lease.
pub(crate) struct LeasedStream {
    pub(crate) ports: Arc<LeasedPorts>,
    pub(super) leases: Weak<Leases>,
    pub(crate) slot: u16,
    /// When it was rung for last, not all was sent; or that is not known.
    pub(super) held_back: AtomicBool,
    /// Bytes acknowledged when a push gave up, and one; 0: none did.
    pub(super) vain: AtomicU64,
    /// When it was rung for last, in ns of the engine's clock.
    pub(super) rung: AtomicU64,
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

    pub(crate) fn host(&self) -> &Host {
        &self.ports.host
    }

    /// How many of so many bytes written have not gone to the kernel; `None`: somebody has the engine.
    pub(crate) fn unsent(&self, written: u64) -> Option<u64> {
        self.host().unsent(self.slot, written)
    }

    /// Says that it has news, and has it sent.
    #[inline]
    pub(crate) fn ring(&self) {
        let (held_back, now) = self.host().ring(self.slot);
        self.held_back.store(held_back, Ordering::Relaxed);
        self.rung.store(now, Ordering::Relaxed);
    }

    /// Says that it has news, and has it sent, or lets it wait for the program's next call.
    #[inline]
    pub(crate) fn ring_soon(&self) {
        if !self.held_back.load(Ordering::Relaxed)
            && let Some(now) = self
                .host()
                .put_off(self.slot, self.rung.load(Ordering::Relaxed))
        {
            self.rung.store(now, Ordering::Relaxed);
        } else {
            self.ring();
        }
    }

    /// Sends what was written, as far as the peer takes it.
    #[inline]
    pub(crate) fn push(&self) {
        if self.held_back.load(Ordering::Relaxed) && self.host().see_out(self.slot, &self.vain) {
            self.held_back.store(false, Ordering::Relaxed);
            // These turns were a part of the write.
            self.rung.store(self.host().last_turn(), Ordering::Relaxed);
        }
    }

    pub(crate) fn abort(&self) {
        self.host().tell(Command::Abort {
            client: host::SELF,
            slot: self.slot,
        });
        self.host().poll(true);
    }

    /// The program's last word. What was written gets half a second to be acknowledged, as if the program died right
    /// behind; the caretaker does the rest while the process lives. Who serves many streams from one thread waits for none of them,
    /// but for all at the end ([`Leases::finish`]).
    pub(crate) fn close(&self, delivered: impl FnMut() -> bool) {
        let polled = self
            .leases
            .upgrade()
            .is_some_and(|leases| leases.session.answers().is_some());
        if !polled {
            self.host()
                .wait(Spin::default(), delivered, Some(Instant::now() + LINGER));
        }
        self.host().close(self.slot);
        self.host().poll(true);
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn wake_later(&self, cx: &std::task::Context<'_>) {
        if let Some(leases) = self.leases.upgrade() {
            leases.wake_later(cx);
        }
    }
}

impl LeasedListener {
    pub(crate) fn host(&self) -> &Host {
        &self.ports.host
    }

    pub(crate) fn waiting(&self) -> bool {
        self.host().has_arrival(self.listener)
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
        }) = self.host().arrival(self.listener)
        {
            let (region, slot) = sizes(rings, esp_proto::least_listener_capacity(self.ports.mtu))
                .and_then(|sizes| leases.prepare(sizes))
                .inspect_err(|_| self.host().tell(Command::Refuse { handle }))?;
            let (client, given) = (host::SELF, Arc::clone(&region));
            let attached = self.host().attach(|reply| Command::Attach {
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
            self.host().withdraw_slot(slot);
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
        self.host().close_listener(self.listener);
    }
}
