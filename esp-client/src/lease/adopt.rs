//! Leases outlive the daemon that gave them.
//!
//! When the control connection ends, streams and listeners over leases go on: the sockets are this
//! program's. But nobody answers liveness queries for it, and nobody would reset its peers if it
//! died. So a thread looks for the next daemon, with pauses from a tenth of a second to a second,
//! introduces the program anew, and has each lease adopted: the daemon checks the request as it
//! does any for a lease, and opens new sockets for the same ports, which take the place of the old
//! ones. Then it is told of the connections, as their first daemon was. The next daemon keeps the
//! ports for their user meanwhile (`lease.grace` in its configuration).
//!
//! A lease that is not adopted (policy, limits, ports that are somebody else's by now) is given up:
//! its connections end here and at their peers, and its listener with the daemon's words. To go on
//! with it would be in vain: the daemon answers its peers with resets.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::told::report;
use super::{Kind, LeasedPorts, Leases, Spares, denied, sockets};
use crate::call::Answer;
use crate::control::{ErrorKind, Reply, Request};
use crate::error::EspError;
use crate::session::{Session, lock};

/// Between two attempts: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why a lease was not adopted.
enum NotAdopted {
    /// By this daemon, not now; perhaps by the next.
    Yet(EspError),
    Ever(EspError),
}

/// Has somebody look for the next daemon, unless that is under way or nothing is leased.
pub(super) fn start(leases: &Arc<Leases>) {
    if lock(&leases.table).is_empty() || leases.adopting.swap(true, Ordering::Relaxed) {
        return;
    }
    let weak = Arc::downgrade(leases);
    let thread = std::thread::Builder::new()
        .name("esp-adopt".into())
        .spawn(move || search(&weak));
    if thread.is_err() {
        // No thread now: the next step of the progress thread tries again.
        leases.adopting.store(false, Ordering::Relaxed);
    }
}

fn search(leases: &Weak<Leases>) {
    let mut pause = FIRST_PAUSE;
    loop {
        std::thread::sleep(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
        // The program has let go of everything: nothing is left to adopt.
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
    /// One attempt; false: there is no daemon yet.
    fn adopt(&self) -> bool {
        let mut all: Vec<Arc<LeasedPorts>> = lock(&self.table)
            .iter()
            .filter(|ports| !ports.is_lost())
            .cloned()
            .collect();
        // A standby is one of a lease that has been adopted.
        all.sort_by_key(|ports| ports.kind == Kind::Standby);
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
                Err(NotAdopted::Yet(why)) => {
                    // With the session goes what has been adopted in it.
                    session.fail(why);
                    return false;
                }
                Err(NotAdopted::Ever(why)) => {
                    let _ = ports.lost.set(why);
                    self.engine.give_up(ports.link);
                }
            }
        }
        self.now_kept_by(session, &adopted);
        true
    }

    /// Asks for the same ports again and puts the new sockets in place of the old ones; gives the
    /// lease's new number.
    fn adopt_one(
        &self,
        session: &Arc<Session>,
        ports: &LeasedPorts,
        adopted: &[(Arc<LeasedPorts>, u64)],
    ) -> Result<u64, NotAdopted> {
        let (port, last) = (*ports.ports.start(), *ports.ports.end());
        let count = last - port + 1;
        let interface = ports.interface.clone();
        let request = if ports.kind == Kind::Standby {
            let of = adopted
                .iter()
                .find(|(of, _)| of.kind != Kind::Standby && of.ports == ports.ports);
            let alone = || {
                denied(
                    ErrorKind::NotFound,
                    "the lease whose standby it is was not adopted",
                )
            };
            let (_, lease) = of.ok_or_else(|| NotAdopted::Ever(alone()))?;
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
                NotAdopted::Ever(error)
            }
            other => NotAdopted::Yet(other),
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
            return Err(NotAdopted::Yet(session.unexpected("a lease")));
        };
        let ([esp, edp], spares) = sockets(descriptors, ring).map_err(NotAdopted::Yet)?;
        if (interface.mac, first, given) != (ports.mac, port, count) {
            session.post(&Request::EndLease { lease });
            let changed = denied(
                ErrorKind::NotFound,
                "the interface of a lease has another address now",
            );
            return Err(NotAdopted::Ever(changed));
        }
        self.engine
            .replace(ports.link, esp, edp)
            .map_err(NotAdopted::Yet)?;
        *lock(&ports.spares) = Some(Spares::new(spares, session));
        Ok(lease)
    }

    /// From now on this daemon is told what comes and goes; first, what there is.
    fn now_kept_by(&self, session: Arc<Session>, adopted: &[(Arc<LeasedPorts>, u64)]) {
        let mut keeper = lock(&self.keeper);
        for (ports, id) in adopted {
            ports.id.store(*id, Ordering::Relaxed);
        }
        for (told, nonce) in lock(&self.told).values() {
            if adopted
                .iter()
                .any(|(ports, _)| Arc::ptr_eq(&ports.id, &told.lease))
            {
                report(&session, told, Some(*nonce));
            }
        }
        *keeper = session;
        *lock(&self.refused) = None;
    }
}
