//! Adoption of leases by the next daemon.
//!
//! When the control connection ends, streams and listeners over leases go on, because the sockets
//! belong to this program. But no daemon replies to liveness queries for it, and none would reset
//! its connections if it died. So a thread tries to connect to the next daemon, with pauses from
//! 0.1 to 1 second, and requests each lease again. The daemon checks the request as any for a
//! lease, and opens new sockets for the same ports, which replace the old ones. Then the
//! connections are registered anew. The next daemon reserves the ports for their user meanwhile
//! (`lease.grace` in its configuration).
//!
//! A lease that is refused (by policy or limits, or because its ports are in use) is closed: its
//! connections end here and at their peers, and its listener with the daemon's error. It could not
//! go on, because the daemon answers its peers with resets.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::leases::Leases;
use super::ports::{LeaseKind, LeasedPorts, Spares, sockets};
use crate::control::{ErrorKind, Reply, Request};
use crate::error::EspError;
use crate::session::{Answer, Session};
use crate::sync::lock;

/// Pause before the first attempt; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Reason why a lease was not adopted.
enum NotAdopted {
    /// The daemon failed; the next one may adopt the lease.
    Retry(EspError),
    Refused(EspError),
}

/// Starts the thread that searches for the next daemon, unless it runs or nothing is leased.
pub(super) fn start(leases: &Arc<Leases>) {
    if lock(&leases.table).is_empty() || leases.adopting.swap(true, Ordering::Relaxed) {
        return;
    }
    let weak = Arc::downgrade(leases);
    let thread = std::thread::Builder::new()
        .name("esp-adopt".into())
        .spawn(move || search(&weak));
    if thread.is_err() {
        // The next step of the progress thread tries again.
        leases.adopting.store(false, Ordering::Relaxed);
    }
}

fn search(leases: &Weak<Leases>) {
    let mut pause = FIRST_PAUSE;
    loop {
        std::thread::sleep(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
        // The program has dropped everything.
        let Some(leases) = leases.upgrade() else {
            return;
        };
        if leases.adopt() {
            leases.adopting.store(false, Ordering::Relaxed);
            return;
        }
    }
}

impl Leases {
    /// Makes one attempt; false if there is no daemon yet.
    fn adopt(&self) -> bool {
        let mut all: Vec<Arc<LeasedPorts>> = lock(&self.table)
            .iter()
            .filter(|ports| !ports.is_lost())
            .cloned()
            .collect();
        // A standby belongs to a lease, which is adopted first.
        all.sort_by_key(|ports| ports.kind == LeaseKind::Standby);
        if all.is_empty() || self.engine.is_forked() {
            return true;
        }
        let Ok(session) = Session::open(self.session.path()) else {
            return false;
        };
        let mut adopted = Vec::with_capacity(all.len());
        for ports in all {
            match self.adopt_one(&session, &ports, &adopted) {
                Ok(id) => adopted.push((ports, id)),
                Err(NotAdopted::Retry(why)) => {
                    // The end of the session ends what was adopted in it.
                    session.fail(why);
                    return false;
                }
                Err(NotAdopted::Refused(why)) => {
                    let _ = ports.lost.set(why);
                    self.engine.give_up(ports.link);
                }
            }
        }
        let mut registry = lock(&self.registry);
        for (ports, id) in &adopted {
            ports.id.store(*id, Ordering::Relaxed);
        }
        registry.set_keeper(session, |lease| {
            adopted
                .iter()
                .any(|(ports, _)| Arc::ptr_eq(&ports.id, lease))
        });
        drop(registry);
        *lock(&self.refused) = None;
        true
    }

    /// Requests the same ports again, replaces the sockets, and returns the lease's new id.
    fn adopt_one(
        &self,
        session: &Arc<Session>,
        ports: &LeasedPorts,
        adopted: &[(Arc<LeasedPorts>, u64)],
    ) -> Result<u64, NotAdopted> {
        let (port, last) = (*ports.ports.start(), *ports.ports.end());
        let count = last - port + 1;
        let interface = ports.interface.clone();
        let request = if ports.kind == LeaseKind::Standby {
            let is_owner =
                |of: &LeasedPorts| of.kind != LeaseKind::Standby && of.ports == ports.ports;
            let Some((_, lease)) = adopted.iter().find(|(of, _)| is_owner(of)) else {
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
        let Answer { reply, descriptors } = session.ask(&request).map_err(|error| match error {
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
        if (interface.addr, first, given) != (ports.addr, port, count) {
            session.post(&Request::EndLease { lease });
            return Err(NotAdopted::Refused(EspError::denied(
                ErrorKind::NotFound,
                "the interface of a lease has another address now",
            )));
        }
        self.engine
            .replace(ports.link, esp, edp)
            .map_err(NotAdopted::Retry)?;
        *lock(&ports.spares) = Some(Spares::new(spares, session));
        Ok(lease)
    }
}
