//! A fabric of interfaces inside one process: reliable connections, RDMA, shared receives and
//! datagrams with the semantics of verbs and without hardware, for tests. It is deterministic: its
//! behaviour depends only on the calls and a seed.

mod net;
mod nic;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use self::net::{Net, Node};
pub use self::nic::FabricNic;
use crate::nic::{About, NO_ANSWER, Place};

/// The interfaces of a test.
#[derive(Clone, Debug, Default)]
pub struct Fabric(Arc<Mutex<Net>>);

impl Fabric {
    /// Returns a fabric without interfaces.
    #[must_use]
    pub fn new() -> Fabric {
        Fabric::default()
    }

    /// Sets the share of datagrams to drop, in parts per million, and the seed that selects them.
    pub fn lose_datagrams(&self, of_a_million: u64, seed: u64) {
        let mut net = self.lock();
        (net.loss, net.seed) = (of_a_million, seed | 1);
    }

    /// Adds an interface and returns its number and the interface.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn nic(&self) -> std::io::Result<(usize, FabricNic)> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let fd = bell.try_clone()?;
        let mut net = self.lock();
        let at = net.nodes.len();
        net.nodes.push(Node {
            alive: true,
            memory: HashMap::new(),
            queues: BTreeMap::new(),
            inbox: VecDeque::new(),
            shared: VecDeque::new(),
            uses_shared: false,
            bell,
            armed: false,
            next: 0,
            registrations: 0,
            limit: u64::MAX,
            refusal: libc::ENOMEM,
        });
        let mut gid = [0; 16];
        gid[8..].copy_from_slice(&(at as u64 + 1).to_be_bytes());
        let place = Place {
            gid,
            lid: 0,
            qpn: 1,
            qkey: 0x1234,
        };
        let about = About {
            device: format!("fake{at}"),
            port: 1,
            ethernet: true,
            place,
            mtu: 5,
            bandwidth: 1000,
            max_completions: 1 << 20,
            inline: 188,
        };
        Ok((
            at,
            FabricNic {
                net: Arc::clone(&self.0),
                at,
                about,
                fd,
            },
        ))
    }

    /// Ends an interface as if its process had been killed.
    pub fn kill(&self, at: usize) {
        let mut net = self.lock();
        net.end(at);
    }

    /// Breaks all connections between two interfaces.
    pub fn cut(&self, one: usize, other: usize) {
        let mut net = self.lock();
        for (at, to) in [(one, other), (other, one)] {
            let numbers = net.nodes.get(at).map(|node| {
                node.queues
                    .iter()
                    .filter(|(_, end)| end.peer.is_some_and(|peer| peer.0 == to))
                    .map(|(n, _)| *n)
                    .collect()
            });
            for number in numbers.unwrap_or_else(Vec::new) {
                net.break_off(at, number, NO_ANSWER);
            }
        }
    }

    /// Returns the number of registrations made at an interface.
    #[must_use]
    pub fn registrations(&self, at: usize) -> u64 {
        self.lock()
            .nodes
            .get(at)
            .map_or(0, |node| node.registrations)
    }

    /// Returns the bytes and the number of regions registered at an interface.
    #[must_use]
    pub fn registered(&self, at: usize) -> (u64, usize) {
        self.lock().nodes.get(at).map_or((0, 0), |node| {
            (
                node.memory.values().map(|memory| memory.1).sum(),
                node.memory.len(),
            )
        })
    }

    /// Sets the maximum number of registered bytes of an interface.
    pub fn limit(&self, at: usize, bytes: u64) {
        if let Some(node) = self.lock().nodes.get_mut(at) {
            node.limit = bytes;
        }
    }

    /// Sets the error of refused registrations at an interface; `ENOMEM` by default.
    pub fn refuse_by(&self, at: usize, errno: i32) {
        if let Some(node) = self.lock().nodes.get_mut(at) {
            node.refusal = errno;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
