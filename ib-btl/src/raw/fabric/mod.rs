//! A fabric of interfaces inside one process: reliable connections, RDMA, shared receives and
//! datagrams with the rules of verbs and without hardware, for tests. What happens is decided by
//! the calls and a seed alone.

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
    /// None yet.
    #[must_use]
    pub fn new() -> Fabric {
        Fabric::default()
    }

    /// Loses this many of a million datagrams.
    pub fn lose_datagrams(&self, of_a_million: u64, seed: u64) {
        let mut net = self.lock();
        (net.loss, net.seed) = (of_a_million, seed | 1);
    }

    /// One more interface, and its number.
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
            max_message: 1 << 20,
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

    /// Ends one as if its process had been killed.
    pub fn kill(&self, at: usize) {
        let mut net = self.lock();
        net.end(at);
    }

    /// Breaks the connection between two.
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

    /// Bytes and pieces that are registered at one.
    #[must_use]
    pub fn registered(&self, at: usize) -> (u64, usize) {
        self.lock().nodes.get(at).map_or((0, 0), |node| {
            (
                node.memory.values().map(|memory| memory.1).sum(),
                node.memory.len(),
            )
        })
    }

    /// Refuses more than this many registered bytes at one.
    pub fn limit(&self, at: usize, bytes: u64) {
        if let Some(node) = self.lock().nodes.get_mut(at) {
            node.limit = bytes;
        }
    }

    /// The error of refused registrations at one; `ENOMEM` if nothing is said.
    pub fn refuse_by(&self, at: usize, errno: i32) {
        if let Some(node) = self.lock().nodes.get_mut(at) {
            node.refusal = errno;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
