//! Adoption of leases by the next daemon.
//!
//! When the control connection ends, streams and listeners over leases continue, because the
//! sockets belong to this program. But no daemon replies to liveness queries for it, and none would
//! reset its connections if it died. So a thread tries to connect to the next daemon, with pauses
//! from 0.1 to 1 second, and requests each lease again. The daemon checks the request like any
//! request for a lease, and opens new sockets for the same ports, which replace the old ones. Then
//! the connections are reported again. Until then the next daemon reserves the ports for their user
//! (`lease.grace` in its configuration). A lease that the last daemon granted in the meantime is
//! adopted with the others, or given up if it comes later ([`Leases::keep`]).
//!
//! A lease that is refused (by policy or limits, or because its ports are in use) is closed: its
//! connections end here and at their peers, and its listener with the daemon's error. It could not
//! continue, because the daemon answers its peers with resets.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use esp_engine::LeasedSocket;

use super::leases::{LeaseKind, LeasedPorts, Leases, sockets};
use crate::control::{ErrorKind, Reply, Request};
use crate::error::EspError;
use crate::session::{Answer, Session};
use crate::sync::lock;

/// Pause before the first attempt; it doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Reason why a lease was not adopted.
enum NotAdopted {
    /// The daemon failed; the next one may adopt the lease.
    Retry(EspError),
    Refused(EspError),
}

/// A lease that the next daemon adopted: its new id, and the new spare sockets.
type Adopted = (Arc<LeasedPorts>, u64, [LeasedSocket; 2]);

/// Starts the thread that searches for the next daemon, unless it is running or nothing is leased.
pub(super) fn start(leases: &Arc<Leases>) {
    if leases.left_to_adopt(&[]).is_empty() || leases.adopting.swap(true, Ordering::Relaxed) {
        return;
    }
    let searching = Arc::clone(leases);
    let thread = std::thread::Builder::new()
        .name("esp-adopt".into())
        .spawn(move || searching.search());
    if thread.is_err() {
        // The next step of the progress thread tries again.
        leases.adopting.store(false, Ordering::Relaxed);
    }
}

impl Leases {
    fn search(&self) {
        let mut pause = FIRST_PAUSE;
        loop {
            std::thread::sleep(pause);
            pause = (2 * pause).min(MAX_PAUSE);
            if self.is_finished() || self.adopt() {
                return self.adopting.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Makes one attempt; false if there is no daemon yet.
    fn adopt(&self) -> bool {
        if self.left_to_adopt(&[]).is_empty() || self.engine.is_forked() {
            return true;
        }
        let Ok(session) = Session::open(&self.session.path, false, false) else {
            return false;
        };
        let mut adopted = Vec::new();
        let mut registry = loop {
            let registry = lock(&self.registry);
            // A lease that the last daemon granted may have been added since. None is added once
            // the keeper has changed.
            let left = self.left_to_adopt(&adopted);
            if left.is_empty() {
                break registry;
            }
            drop(registry);
            if !self.adopt_all(&session, left, &mut adopted) {
                return false;
            }
        };
        let mut ids = Vec::with_capacity(adopted.len());
        for (ports, id, spares) in adopted {
            ports.id.store(id, Ordering::Relaxed);
            *lock(&ports.spares) = Some(spares);
            ids.push(Arc::clone(&ports.id));
        }
        registry.set_keeper(session, |lease| ids.iter().any(|id| Arc::ptr_eq(id, lease)));
        registry.keeper.announce_loss(self.engine.progress.waker());
        // The client may have been dropped in the meantime.
        if self.is_finished() {
            registry.keeper.close();
        }
        true
    }

    /// Returns the leases of the table that are not among these, each standby after its lease.
    fn left_to_adopt(&self, adopted: &[Adopted]) -> Vec<Arc<LeasedPorts>> {
        let is_left = |ports: &&Arc<LeasedPorts>| {
            !ports.is_lost() && !adopted.iter().any(|(of, ..)| Arc::ptr_eq(of, ports))
        };
        let mut left: Vec<_> = lock(&self.table).iter().filter(is_left).cloned().collect();
        left.sort_by_key(|ports| ports.kind == LeaseKind::Standby);
        left
    }

    /// Requests the adoption of these leases from the daemon; false if it failed.
    fn adopt_all(
        &self,
        session: &Arc<Session>,
        left: Vec<Arc<LeasedPorts>>,
        adopted: &mut Vec<Adopted>,
    ) -> bool {
        for ports in left {
            match self.adopt_one(session, &ports, adopted) {
                Ok((id, spares)) => adopted.push((ports, id, spares)),
                Err(NotAdopted::Retry(why)) => {
                    // The end of the session ends the leases adopted in it.
                    session.fail(why);
                    for (ports, _, spares) in adopted.drain(..) {
                        *lock(&ports.spares) = Some(spares);
                    }
                    return false;
                }
                Err(NotAdopted::Refused(why)) => {
                    let _ = ports.lost.set(why);
                    // Resets the connections here and at their peers.
                    let _ = self.engine.with_engine(|engine| {
                        engine.give_up_leased(ports.link);
                        engine.poll()
                    });
                    self.engine.tasks.wake();
                }
            }
        }
        true
    }

    /// Requests the same ports again, replaces the sockets, and returns the lease's new id and
    /// spare sockets.
    fn adopt_one(
        &self,
        session: &Arc<Session>,
        ports: &LeasedPorts,
        adopted: &[Adopted],
    ) -> Result<(u64, [LeasedSocket; 2]), NotAdopted> {
        let (port, last) = (*ports.ports.start(), *ports.ports.end());
        let count = last - port + 1;
        let interface = ports.interface.name.clone();
        let request = if ports.kind == LeaseKind::Standby {
            let is_owner =
                |of: &LeasedPorts| of.kind != LeaseKind::Standby && of.ports == ports.ports;
            let Some((_, lease, _)) = adopted.iter().find(|(of, ..)| is_owner(of)) else {
                return Err(NotAdopted::Refused(EspError::denied(
                    ErrorKind::NotFound,
                    "the lease of a standby was not adopted",
                )));
            };
            Request::Standby {
                lease: *lease,
                interface,
            }
        } else {
            Request::Adopt {
                interface,
                port,
                count,
            }
        };
        // In another session the daemon would find the ports in use by this one, and refuse them.
        let answer = session.ask_while(&request, || !self.is_finished());
        let Answer {
            reply, descriptors, ..
        } = answer.map_err(|error| match error {
            EspError::Denied { kind, .. } if kind != ErrorKind::Unavailable => {
                NotAdopted::Refused(error)
            }
            other => NotAdopted::Retry(other),
        })?;
        let Reply::Lease {
            lease,
            interface,
            port: first,
            count: given,
            ring,
            ..
        } = reply
        else {
            return Err(NotAdopted::Retry(session.unexpected("a lease")));
        };
        let ([esp, edp], spares) = sockets(descriptors, ring).map_err(NotAdopted::Retry)?;
        if (interface.addr, first, given) != (ports.interface.addr, port, count) {
            session.post(Request::EndLease { lease });
            return Err(NotAdopted::Refused(EspError::denied(
                ErrorKind::NotFound,
                "the interface of a lease has another address now",
            )));
        }
        self.engine
            .with_engine(|engine| engine.replace_leased(ports.link, esp, edp))
            .and_then(|replaced| replaced.map_err(EspError::resource("use a leased socket")))
            .map_err(NotAdopted::Retry)?;
        Ok((lease, spares))
    }
}
