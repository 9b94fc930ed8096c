//! Ownership of the ports of a link.
//!
//! A stream port belongs to one user, for one listener and any number of connections: no other user
//! can listen on a port that has connections. On a leased port only the program with the lease can
//! listen, because only its sockets receive the frames. A datagram port belongs to one socket.

use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use esp_engine::{ClientId, MAX_ENGINES};
use esp_proto::{FIRST_EPHEMERAL_PORT, Port};

/// Number of ephemeral ports: [`FIRST_EPHEMERAL_PORT`] and all above.
const EPHEMERAL: u32 = 65536 - FIRST_EPHEMERAL_PORT as u32;

#[derive(Debug)]
struct Use {
    uid: u32,
    /// Number of claims; 0 only while the first is taken.
    claims: u32,
    listener: bool,
    /// The program that has leased the port.
    leased: Option<ClientId>,
    /// Number of claims for the programs of each engine. Leases use none.
    engines: [u32; MAX_ENGINES as usize],
}

impl Use {
    fn mark(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Listener(_) => self.listener = true,
            Purpose::Leased(holder) => self.leased = Some(holder),
            Purpose::Connection | Purpose::Accepted | Purpose::Sole => {}
        }
    }
}

/// The ports of one link and one protocol.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    table: DashMap<Port, Use>,
}

/// Purpose of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Listener of a program; only one. Other purposes of this user may coexist, leases only of
    /// this program.
    Listener(ClientId),
    /// Connection; any number, all of one user; none on a leased port.
    Connection,
    /// Connection accepted by a listener; on a leased port only from this node.
    Accepted,
    /// Lease of this program; only the listener may coexist.
    Leased(ClientId),
    /// Exclusive use.
    Sole,
}

impl Purpose {
    fn uses_engine(self) -> bool {
        !matches!(self, Purpose::Leased(_))
    }
}

/// A program that claims a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claimant {
    /// Its user.
    pub(crate) uid: u32,
    /// Its engine.
    pub(crate) engine: u8,
}

/// Right to use a port, released on drop.
#[derive(Debug)]
pub(crate) struct PortClaim {
    ports: Arc<Ports>,
    port: Port,
    purpose: Purpose,
    engine: u8,
}

impl PortClaim {
    /// Returns the port.
    pub(crate) fn port(&self) -> Port {
        self.port
    }

    /// Passes a leased port to another program.
    pub(crate) fn pass_to(&mut self, holder: ClientId) {
        if let Entry::Occupied(mut held) = self.ports.table.entry(self.port) {
            held.get_mut().mark(Purpose::Leased(holder));
        }
        self.purpose = Purpose::Leased(holder);
    }

    /// Takes this port on another link, for this purpose.
    pub(crate) fn take_on(&self, ports: &Arc<Ports>, uid: u32) -> Option<PortClaim> {
        let engine = self.engine;
        ports.take(self.port, Claimant { uid, engine }, self.purpose)
    }
}

impl Drop for PortClaim {
    fn drop(&mut self) {
        if let Entry::Occupied(mut held) = self.ports.table.entry(self.port) {
            let entry = held.get_mut();
            entry.claims = entry.claims.saturating_sub(1);
            if let Some(count) = entry.engines.get_mut(usize::from(self.engine))
                && self.purpose.uses_engine()
            {
                *count = count.saturating_sub(1);
            }
            match self.purpose {
                Purpose::Listener(_) => entry.listener = false,
                Purpose::Leased(_) => entry.leased = None,
                _ => {}
            }
            if entry.claims == 0 {
                held.remove();
            }
        }
    }
}

impl Ports {
    /// Takes a certain port; `None` if it is in use in a way that excludes this purpose.
    pub(crate) fn take(
        self: &Arc<Self>,
        port: Port,
        claimant: Claimant,
        purpose: Purpose,
    ) -> Option<PortClaim> {
        self.claim(port, claimant, purpose, |held| {
            let fits = match purpose {
                Purpose::Sole => false,
                Purpose::Listener(client) => {
                    !held.listener && held.leased.is_none_or(|holder| holder == client)
                }
                Purpose::Connection => held.leased.is_none(),
                Purpose::Accepted => true,
                Purpose::Leased(_) => held.listener && held.claims == 1,
            };
            held.uid == claimant.uid && fits
        })
    }

    /// Takes a certain port if it is not used for anything.
    pub(crate) fn take_vacant(
        self: &Arc<Self>,
        port: Port,
        claimant: Claimant,
        purpose: Purpose,
    ) -> Option<PortClaim> {
        self.claim(port, claimant, purpose, |_| false)
    }

    /// Returns true if programs of other engines than this one use a port.
    pub(crate) fn used_by_others(&self, port: Port, engine: u8) -> bool {
        let held = self.table.get(&port);
        held.is_some_and(|held| {
            let mut counts = (0..).zip(held.engines);
            counts.any(|(other, count)| other != engine && count > 0)
        })
    }

    /// Takes a port that is unused, or whose current use is compatible.
    fn claim(
        self: &Arc<Self>,
        port: Port,
        Claimant { uid, engine }: Claimant,
        purpose: Purpose,
        fits: impl FnOnce(&Use) -> bool,
    ) -> Option<PortClaim> {
        let mut held = self.table.entry(port).or_insert(Use {
            uid,
            claims: 0,
            listener: false,
            leased: None,
            engines: [0; _],
        });
        if held.claims > 0 && !fits(&held) {
            return None;
        }
        held.claims = held.claims.checked_add(1)?;
        if let Some(count) = held.engines.get_mut(usize::from(engine))
            && purpose.uses_engine()
        {
            *count = count.saturating_add(1);
        }
        held.mark(purpose);
        let ports = Arc::clone(self);
        Some(PortClaim {
            ports,
            port,
            purpose,
            engine,
        })
    }

    /// Returns true when no port is in use.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

/// Returns all ephemeral ports once, starting at `start`.
pub(crate) fn ephemeral(start: u32) -> impl Iterator<Item = Port> {
    (0..EPHEMERAL).map(move |step| {
        let offset = (start % EPHEMERAL + step) % EPHEMERAL;
        // Below 32768, so the sum is a port.
        FIRST_EPHEMERAL_PORT + offset as Port
    })
}

/// Returns an unpredictable starting point, so that ports reveal nothing about other users'
/// connections.
pub(crate) fn random_start() -> u32 {
    // Without entropy the search starts at the first port: less private, still correct.
    getrandom::u32().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Claimant {
        Claimant { uid, engine: 0 }
    }

    /// Claims of leases belong to no engine: the frames reach their programs.
    #[test]
    fn programs_of_other_engines_are_found() {
        let ports = Arc::new(Ports::default());
        let program = |engine| Claimant { uid: 1, engine };
        let take = |engine, purpose| ports.take(7000, program(engine), purpose).unwrap();
        let listener = take(2, Purpose::Listener(ClientId(9)));
        let _lease = take(0, Purpose::Leased(ClientId(9)));
        assert!(!ports.used_by_others(7000, 2) && ports.used_by_others(7000, 0));
        let accepted = [take(2, Purpose::Accepted), take(2, Purpose::Accepted)];
        drop(listener);
        assert!(ports.used_by_others(7000, 1) && ports.used_by_others(7000, MAX_ENGINES));
        drop(accepted);
        assert!(!ports.used_by_others(7000, 1) && !ports.used_by_others(7000, MAX_ENGINES));
    }

    const ANY: Purpose = Purpose::Listener(ClientId(9));

    #[test]
    fn only_the_program_with_a_lease_listens_on_its_port() {
        let ports = Arc::new(Ports::default());
        let (holder, other) = (ClientId(1), ClientId(2));
        let listener = ports
            .take(7000, user(1), Purpose::Listener(holder))
            .unwrap();
        let lease = ports.take(7000, user(1), Purpose::Leased(holder)).unwrap();
        assert!(
            ports
                .take(7000, user(1), Purpose::Listener(holder))
                .is_none(),
            "one at a time"
        );
        drop(listener);
        assert!(
            ports
                .take(7000, user(1), Purpose::Listener(other))
                .is_none(),
            "its connections would bypass the daemon"
        );
        assert!(
            ports
                .take(7000, user(2), Purpose::Listener(holder))
                .is_none(),
            "another user"
        );
        assert!(
            ports.take(7000, user(1), Purpose::Leased(holder)).is_none(),
            "the program already has a listener"
        );
        let again = ports
            .take(7000, user(1), Purpose::Listener(holder))
            .unwrap();
        assert!(ports.take(7000, user(1), Purpose::Connection).is_none());
        drop((lease, again));
        assert!(ports.is_empty());
    }

    #[test]
    fn one_listener_and_many_connections_of_one_user() {
        let ports = Arc::new(Ports::default());
        let listener = ports.take(7000, user(1), ANY).unwrap();
        assert!(ports.take(7000, user(1), ANY).is_none());
        assert!(ports.take(7000, user(2), Purpose::Connection).is_none());
        let first = ports.take(7000, user(1), Purpose::Connection).unwrap();
        let second = ports.take(7000, user(1), Purpose::Connection).unwrap();
        drop(listener);
        assert!(
            ports.take(7000, user(2), ANY).is_none(),
            "connections of user 1 live there"
        );
        let again = ports.take(7000, user(1), ANY).unwrap();
        drop((first, second, again));
        assert!(ports.is_empty());
        assert!(ports.take(7000, user(2), ANY).is_some());
    }

    #[test]
    fn sole_port_is_not_shared() {
        let ports = Arc::new(Ports::default());
        let held = ports.take(9, user(1), Purpose::Sole).unwrap();
        assert!(ports.take(9, user(1), Purpose::Sole).is_none());
        drop(held);
        assert!(ports.take(9, user(1), Purpose::Sole).is_some());
    }

    #[test]
    fn every_ephemeral_port_is_found_and_no_other() {
        let ports = Arc::new(Ports::default());
        let take_free = |start| {
            let take = |port| ports.take_vacant(port, user(1), Purpose::Connection);
            ephemeral(start).find_map(take)
        };
        let mut claims: Vec<_> = (0..EPHEMERAL)
            .map(|n| take_free(n.wrapping_mul(7919)).unwrap())
            .collect();
        assert!(
            claims
                .iter()
                .all(|claim| claim.port() >= FIRST_EPHEMERAL_PORT)
        );
        assert!(take_free(3).is_none());
        let freed = claims.swap_remove(100).port();
        assert_eq!(take_free(u32::MAX).unwrap().port(), freed);
        drop(claims);
        assert!(ports.is_empty());
    }
}
