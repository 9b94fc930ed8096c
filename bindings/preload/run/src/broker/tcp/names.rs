//! True addresses of connections, which look local to the programs, and their counters.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use preload_wire::{Answer, DataPath, SocketStatus};

use super::super::table::lock;

/// A connection with the addresses that its program should see.
pub(super) struct Named {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// Bytes that the program has sent and received.
    sent: AtomicU64,
    received: AtomicU64,
}

/// Maximum number of remembered connections that stayed TCP.
const MAX_STAYED: usize = 64;

/// All connections.
#[derive(Clone, Default)]
pub(super) struct Names(Arc<All>);

#[derive(Default)]
struct All {
    /// Connections by the loopback address that a program sees as its own or as its peer's.
    named: Mutex<HashMap<SocketAddr, Arc<Named>>>,
    /// The last connections that stayed TCP, and the reasons.
    stayed: Mutex<VecDeque<(SocketAddr, &'static str)>>,
}

impl Names {
    /// Adds a connection.
    pub(super) fn insert(&self, key: SocketAddr, (local, peer): (SocketAddr, SocketAddr)) -> Name {
        let named = Arc::new(Named {
            local,
            peer,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        });
        lock(&self.0.named).insert(key, Arc::clone(&named));
        Name {
            all: self.clone(),
            key,
            named,
        }
    }

    /// Records a connection that stays TCP.
    pub(super) fn stayed(&self, peer: SocketAddr, why: &'static str) {
        let mut stayed = lock(&self.0.stayed);
        if stayed.len() >= MAX_STAYED {
            stayed.pop_front();
        }
        stayed.push_back((peer, why));
    }

    /// Returns the connections, and the last ones that stayed TCP.
    pub(super) fn status(&self) -> Vec<SocketStatus> {
        let named = lock(&self.0.named);
        let count = |counter: &AtomicU64| Some(counter.load(Ordering::Relaxed));
        let over_esp = named.values().map(|named| SocketStatus {
            local: named.local.to_string(),
            peer: named.peer.to_string(),
            way: DataPath::Copied,
            sent: count(&named.sent),
            received: count(&named.received),
        });
        let mut all: Vec<_> = over_esp.collect();
        all.sort_by(|one, other| (&one.local, &one.peer).cmp(&(&other.local, &other.peer)));
        let stayed = lock(&self.0.stayed);
        all.extend(stayed.iter().map(|(peer, why)| SocketStatus {
            local: String::new(),
            peer: peer.to_string(),
            way: DataPath::Tcp((*why).into()),
            sent: None,
            received: None,
        }));
        all
    }

    /// Returns true if there are no connections.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0.named).is_empty()
    }

    /// Returns the true addresses of a connection for which the program sees these.
    pub(super) fn find(&self, local: SocketAddr, peer: SocketAddr) -> Answer {
        let names = lock(&self.0.named);
        let found = names.get(&local).or_else(|| names.get(&peer));
        found.map_or(Answer::Tcp, |named| Answer::Names {
            local: named.local,
            peer: named.peer,
        })
    }
}

/// The name of one connection. Dropping it removes the name; it is dropped after the socket, whose
/// port another program of the node can get from then on.
pub(super) struct Name {
    all: Names,
    key: SocketAddr,
    named: Arc<Named>,
}

impl Name {
    /// Counts bytes that the program has sent.
    pub(super) fn count_sent(&self, bytes: usize) {
        self.named.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that the program has received.
    pub(super) fn count_received(&self, bytes: usize) {
        let received = &self.named.received;
        received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let mut names = lock(&self.all.0.named);
        // The address may belong to a later connection by now.
        if names
            .get(&self.key)
            .is_some_and(|named| Arc::ptr_eq(named, &self.named))
        {
            names.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_an_ended_connection_has_no_name() {
        let addr = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let (key, program) = (addr("127.0.0.1:40001"), addr("127.0.0.1:7000"));
        let (local, peer) = (addr("10.1.0.7:7000"), addr("10.1.0.8:41002"));
        let names = Names::default();
        let name = names.insert(key, (local, peer));
        assert_eq!(names.find(program, key), Answer::Names { local, peer });
        drop(name);
        assert_eq!(names.find(program, key), Answer::Tcp);
    }
}
