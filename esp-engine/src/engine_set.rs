//! Several engines that serve the interfaces of one node together.
//!
//! Each port number, of streams and datagrams alike, belongs to one engine. The ephemeral ports are
//! divided into blocks, one for each engine; all others belong to the first, until one is assigned
//! to the engine of the program that uses it. On each interface the engines' packet sockets form a
//! fan-out group, which passes a frame to the owner of its destination port. The cost of a frame
//! therefore does not depend on the number of engines:
//!
//! ```text
//!                       ┌─▶ packet socket of engine 0 ── connections of the ports it owns
//!  interface ── group ──┤                                     │ frames to this node
//!                       └─▶ packet socket of engine 1 ◀───────┘ (queue)
//! ```
//!
//! An engine drops the frames of other engines' ports, which it gets for a moment when sockets join
//! a group, or a port is assigned; those of streams are sent again. A frame to the node's own
//! address passes no interface. Its engine queues it for the owner of the port, and drops it when
//! the queue is full, as a network would.

mod routes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use esp_proto::{FIRST_EPHEMERAL_PORT, Port};
use netif::{Interface, PacketSocket, SocketOptions};

use crate::command::{LinkId, Reply};
use crate::config::EngineError;
use crate::handle::EngineHandle;
use routes::Group;

/// Maximum number of engines.
pub const MAX_ENGINES: u8 = 16;
/// Maximum number of assigned ports; a BPF program of the kernel has room for about 600 ranges.
const MAX_ASSIGNED: usize = 200;
/// Maximum number of assigned ports of one user, so that others have some left.
const MAX_OF_USER: usize = 50;
/// Maximum number of frames to this node that wait for an engine.
const MAX_LOOPED: usize = 1024;
/// Offset of the destination port in a frame that starts at its EtherType.
const PORT_OFFSET: usize = 2;
/// Length of the two addresses before the EtherType.
pub(crate) const ADDRESSES: usize = 12;

/// Reason why a port was not assigned to an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// Programs of other engines use the port.
    #[error(
        "programs served by another engine of esp-daemon use it; choose another port, or set `engines` to 1"
    )]
    InUse,
    /// Too many ports are assigned.
    #[error(
        "several engines can serve {MAX_ASSIGNED} ports that esp-daemon has not chosen, \
         {MAX_OF_USER} of one user: let the daemon choose ports, or set `engines` to 1"
    )]
    TooMany,
    /// The kernel refuses the new routes.
    #[error("cannot route its frames to an engine: {0}")]
    Kernel(String),
}

/// The engines of a node.
pub struct EngineSet {
    engines: u8,
    incarnation: u64,
    /// The owner of each port.
    owners: Vec<AtomicU8>,
    state: Mutex<State>,
    /// Frames to this node for each engine.
    looped: Vec<Looped>,
    handles: OnceLock<Vec<EngineHandle>>,
}

#[derive(Default)]
struct State {
    /// Assigned ports with their engines and users.
    assigned: BTreeMap<Port, (u8, u32)>,
    groups: Vec<Arc<Group>>,
    /// Ports whose frames the kernel does not pass to their owner yet.
    unrouted: BTreeSet<Port>,
    /// Programs that wait for routes.
    pending: Vec<Reply<Result<(), AssignError>>>,
    /// A thread installs routes.
    installing: bool,
}

#[derive(Debug, Default)]
struct Looped {
    /// Frames, starting at the destination address.
    frames: Mutex<VecDeque<(LinkId, Vec<u8>)>>,
    /// True if there are frames.
    any: AtomicBool,
}

/// The place of an engine in a set.
#[derive(Clone, Debug)]
pub struct Member {
    /// The set.
    pub set: Arc<EngineSet>,
    /// Index of the engine.
    pub engine: u8,
}

impl std::fmt::Debug for EngineSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineSet")
            .field("engines", &self.engines)
            .finish_non_exhaustive()
    }
}

impl EngineSet {
    /// Creates a set of 1 to [`MAX_ENGINES`] engines.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(engines: u8) -> Result<Arc<EngineSet>, EngineError> {
        let engines = engines.clamp(1, MAX_ENGINES);
        let owner = |port| AtomicU8::new(block_of(engines, port));
        Ok(Arc::new(EngineSet {
            engines,
            incarnation: crate::engine::random()?,
            owners: (0..=Port::MAX).map(owner).collect(),
            state: Mutex::default(),
            looped: (0..engines).map(|_| Looped::default()).collect(),
            handles: OnceLock::new(),
        }))
    }

    /// Returns the number of engines.
    pub fn engines(&self) -> u8 {
        self.engines
    }

    /// Returns the random number that identifies this run of all engines, as in INFO_REPLY.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Sets the handles of all engines in order, by which they wake each other.
    pub fn connect(&self, handles: Vec<EngineHandle>) {
        let _ = self.handles.set(handles);
    }

    /// Returns the engine that serves a port.
    #[inline]
    pub fn owner(&self, port: Port) -> u8 {
        self.owners[usize::from(port)].load(Ordering::Relaxed)
    }

    /// Assigns a port to the engine of a program of `user`, which has claimed it. `used_by_others`
    /// returns true if programs of other engines than the given one use a port. `reply` is called,
    /// here or by a thread, once the kernel passes the frames of the port to the engine. That takes
    /// about 30 ms per interface, however many ports are assigned in that time.
    ///
    /// A program may use a port that its engine owns without this call, if it checks the owner
    /// after it has claimed the port.
    pub fn assign(
        self: &Arc<Self>,
        port: Port,
        (engine, user): (u8, u32),
        used_by_others: impl Fn(Port, u8) -> bool,
        reply: Reply<Result<(), AssignError>>,
    ) {
        let mut state = self.state();
        let assigned = if self.owner(port) == engine {
            if let Some((_, of)) = state.assigned.get_mut(&port) {
                *of = user;
            }
            Ok(())
        } else {
            self.reassign(&mut state, port, (engine, user), used_by_others)
        };
        match assigned {
            Ok(()) if state.unrouted.contains(&port) => state.pending.push(reply),
            answer => reply(answer),
        }
        self.install_routes(&mut state);
    }

    /// Makes an engine the owner of a port, and notes that the route is missing.
    fn reassign(
        &self,
        state: &mut State,
        port: Port,
        (engine, user): (u8, u32),
        used_by_others: impl Fn(Port, u8) -> bool,
    ) -> Result<(), AssignError> {
        let is_block = engine == block_of(self.engines, port);
        if !is_block && !self.make_room(state, user, &used_by_others) {
            return Err(AssignError::TooMany);
        }
        if !self.give(port, engine, &used_by_others) {
            return Err(AssignError::InUse);
        }
        match is_block {
            true => state.assigned.remove(&port),
            false => state.assigned.insert(port, (engine, user)),
        };
        state.unrouted.insert(port);
        Ok(())
    }

    /// Returns true if there is room for another assigned port of the user. Ports that no program
    /// uses may become those of their blocks' engines again.
    fn make_room(
        &self,
        State {
            assigned, unrouted, ..
        }: &mut State,
        user: u32,
        used_by_others: impl Fn(Port, u8) -> bool,
    ) -> bool {
        let has_room = |assigned: &BTreeMap<Port, (u8, u32)>| {
            let of_user = assigned.values().filter(|(_, other)| *other == user);
            assigned.len() < MAX_ASSIGNED && of_user.count() < MAX_OF_USER
        };
        if !has_room(assigned) {
            assigned.retain(|port, _| {
                // No engine has the number MAX_ENGINES: the port is not used at all.
                let is_used = |port, _| used_by_others(port, MAX_ENGINES);
                let freed = self.give(*port, block_of(self.engines, *port), is_used);
                if freed {
                    unrouted.insert(*port);
                }
                !freed
            });
        }
        has_room(assigned)
    }

    /// Makes an engine the owner of a port that no program of another one uses. Returns false,
    /// without effect, if one does.
    fn give(&self, port: Port, engine: u8, used_by_others: impl Fn(Port, u8) -> bool) -> bool {
        if used_by_others(port, engine) {
            return false;
        }
        // Stored before the claims are read: a program that claims the port later sees the new
        // owner.
        let owner = &self.owners[usize::from(port)];
        let before = owner.swap(engine, Ordering::SeqCst);
        let used = used_by_others(port, engine);
        if used {
            owner.store(before, Ordering::SeqCst);
        }
        !used
    }

    /// Returns the sockets of an engine on an interface, for the EtherTypes of streams and
    /// datagrams. The first call opens those of all engines. `None`: the interface is down or has
    /// been replaced; the engine calls again when its monitor reports a change.
    ///
    /// # Errors
    /// The sockets cannot be opened.
    pub(crate) fn sockets(
        &self,
        engine: u8,
        interface: &Interface,
        ethertypes: [u16; 2],
        options: &SocketOptions,
    ) -> Result<Option<[PacketSocket; 2]>, EngineError> {
        let mut state = self.state();
        let now = Interface::by_name(&interface.name);
        let is_same = |now: &Interface| now.index == interface.index && now.up;
        if !now.is_ok_and(|now| is_same(&now)) {
            // The kernel would not let its sockets join a group.
            return Ok(None);
        }
        let of_name = |group: &Arc<Group>| group.name == interface.name;
        let found = state.groups.iter().position(of_name);
        let current = found.and_then(|at| state.groups.get(at));
        let current = current.filter(|group| group.index == interface.index);
        // An engine that has taken its sockets calls again if the interface was away, for example
        // in another namespace.
        if let Some(sockets) = current.and_then(|group| group.take(engine)) {
            return Ok(Some(sockets));
        }
        let group = Arc::new(Group::open(self.engines, interface, ethertypes, options)?);
        let routed = group.route(self.engines, &state.assigned);
        routed.map_err(|error| EngineError::System {
            what: "route frames to the engines",
            source: std::io::Error::other(error),
        })?;
        if let Some(at) = found {
            state.groups.swap_remove(at);
        }
        state.groups.push(Arc::clone(&group));
        Ok(group.take(engine))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Looped {
    fn frames(&self) -> MutexGuard<'_, VecDeque<(LinkId, Vec<u8>)>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    /// Returns true if this engine serves the destination port of a frame, which starts at its
    /// EtherType.
    #[inline]
    pub(crate) fn owns(&self, frame: &[u8]) -> bool {
        let owner = port_of(frame).map(|port| self.set.owner(port));
        // The endpoint counts frames without a port.
        owner.is_none_or(|owner| owner == self.engine)
    }

    /// Queues a frame to this node, which starts at its destination address, for the engine that
    /// owns its port. Returns the frame if that is this engine. Counts it in `dropped` if the queue
    /// is full.
    pub(crate) fn pass_on(
        &self,
        link: LinkId,
        frame: Vec<u8>,
        dropped: &mut u64,
    ) -> Option<Vec<u8>> {
        let owner = match frame.get(ADDRESSES..).and_then(port_of) {
            Some(port) => self.set.owner(port),
            None => self.engine,
        };
        let to = self.set.looped.get(usize::from(owner));
        let Some(to) = to.filter(|_| owner != self.engine) else {
            return Some(frame);
        };
        let mut frames = to.frames();
        if frames.len() >= MAX_LOOPED {
            *dropped += 1;
            return None;
        }
        frames.push_back((link, frame));
        let was_empty = !to.any.swap(true, Ordering::Relaxed);
        drop(frames);
        let handle = self
            .set
            .handles
            .get()
            .and_then(|all| all.get(usize::from(owner)));
        if let Some(handle) = handle.filter(|_| was_empty) {
            handle.wake();
        }
        None
    }

    /// Takes at most `most` frames to this node that other engines have queued.
    pub(crate) fn take_looped(&self, most: usize) -> Vec<(LinkId, Vec<u8>)> {
        let own = self.set.looped.get(usize::from(self.engine));
        let Some(own) = own.filter(|own| own.any.load(Ordering::Relaxed)) else {
            return Vec::new();
        };
        let mut frames = own.frames();
        let count = frames.len().min(most);
        let taken = frames.drain(..count).collect();
        own.any.store(!frames.is_empty(), Ordering::Relaxed);
        taken
    }
}

/// Returns the destination port of a frame, which starts at its EtherType.
fn port_of(frame: &[u8]) -> Option<Port> {
    let port = frame.get(PORT_OFFSET..PORT_OFFSET + 2)?;
    Some(Port::from_be_bytes([port[0], port[1]]))
}

/// Returns the engine whose block of ephemeral ports has this port; 0 for other ports.
fn block_of(engines: u8, port: Port) -> u8 {
    (1..engines)
        .find(|engine| block(engines, *engine).contains(&port))
        .unwrap_or(0)
}

/// Returns the block of ephemeral ports of an engine.
fn block(engines: u8, engine: u8) -> RangeInclusive<Port> {
    let size = (Port::MAX - FIRST_EPHEMERAL_PORT) / Port::from(engines) + 1;
    let first = FIRST_EPHEMERAL_PORT.saturating_add(size.saturating_mul(engine.into()));
    first..=first.saturating_add(size - 1)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    /// Assigns a port and waits for the answer.
    fn assign(
        set: &Arc<EngineSet>,
        port: Port,
        program: (u8, u32),
        used_by_others: impl Fn(Port, u8) -> bool,
    ) -> Result<(), AssignError> {
        let (answer, answered) = channel();
        let reply = Box::new(move |result| answer.send(result).unwrap());
        set.assign(port, program, used_by_others, reply);
        answered.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn every_port_has_an_owner_and_every_engine_a_block() {
        for engines in 1..=MAX_ENGINES {
            let set = EngineSet::new(engines).unwrap();
            let mut blocks = vec![0u32; engines.into()];
            for port in 0..=Port::MAX {
                let owner = set.owner(port);
                if port < FIRST_EPHEMERAL_PORT {
                    assert_eq!(owner, 0, "port {port}");
                } else {
                    blocks[usize::from(owner)] += 1;
                }
            }
            let least = blocks.iter().min().unwrap();
            let most = blocks.iter().max().unwrap();
            assert!(most - least <= engines.into(), "{blocks:?}");
        }
    }

    #[test]
    fn a_port_in_use_stays_with_its_engine() {
        let set = EngineSet::new(2).unwrap();
        assert_eq!(
            assign(&set, 7, (1, 0), |_, _| true),
            Err(AssignError::InUse)
        );
        assert_eq!(set.owner(7), 0);
        assert_eq!(assign(&set, 7, (0, 0), |_, _| unreachable!()), Ok(()));
        assert_eq!(assign(&set, 7, (1, 0), |_, _| false), Ok(()));
        assert_eq!(set.owner(7), 1);
    }

    /// Ports that no program uses make room for others.
    #[test]
    fn the_number_of_assigned_ports_is_bounded() {
        let set = EngineSet::new(2).unwrap();
        let most = Port::try_from(MAX_ASSIGNED).unwrap();
        // Every port is in use, but none by a program of another engine than its own.
        let used_by_others = |_, engine| engine == MAX_ENGINES;
        for port in 1..=most {
            let user = port.into();
            assert_eq!(assign(&set, port, (1, user), used_by_others), Ok(()));
        }
        let refused = assign(&set, most + 1, (1, 0), used_by_others);
        assert_eq!(refused, Err(AssignError::TooMany));
        assert_eq!((set.owner(most + 1), set.owner(1)), (0, 1));
        let one_is_free = |port, engine| engine == MAX_ENGINES && port != 1;
        assert_eq!(assign(&set, most + 1, (1, 0), one_is_free), Ok(()));
        assert_eq!((set.owner(most + 1), set.owner(1)), (1, 0));
    }

    /// Even if the assignment that needs the room then fails.
    #[test]
    fn ports_that_are_freed_are_routed_again() {
        let set = EngineSet::new(2).unwrap();
        let used_by_others = |port, engine| engine == MAX_ENGINES && port != 1;
        for port in 1..=Port::try_from(MAX_OF_USER).unwrap() {
            assert_eq!(assign(&set, port, (1, 7), |_, _| false), Ok(()));
        }
        let in_use = |port, engine| port == 999 || used_by_others(port, engine);
        assert_eq!(assign(&set, 999, (1, 7), in_use), Err(AssignError::InUse));
        assert_eq!(set.owner(1), 0);
        assert!(set.state().installing || !set.state().unrouted.contains(&1));
        assert_eq!(assign(&set, 1, (0, 9), |_, _| unreachable!()), Ok(()));
        assert!(!set.state().unrouted.contains(&1));
    }

    /// A program may request a port while a thread already installs its route.
    #[test]
    fn the_end_of_a_round_answers_all_that_wait_for_its_ports() {
        let set = EngineSet::new(2).unwrap();
        {
            let mut state = set.state();
            state.installing = true;
            state.unrouted.insert(7);
        }
        let (answer, answered) = channel();
        let reply = Box::new(move |result| answer.send(result).unwrap());
        set.assign(7, (0, 0), |_, _| false, reply);
        assert!(answered.try_recv().is_err(), "it has no route yet");
        set.state().unrouted.clear();
        assert!(!set.install_missing(), "there is nothing to do");
        assert_eq!(answered.try_recv(), Ok(Ok(())));
        assert!(!set.state().installing);
    }

    #[test]
    fn a_port_counts_for_its_current_user() {
        let set = EngineSet::new(2).unwrap();
        let used_by_others = |_, engine| engine == MAX_ENGINES;
        for port in 1..=Port::try_from(MAX_OF_USER).unwrap() {
            assert_eq!(assign(&set, port, (1, 7), used_by_others), Ok(()));
            assert_eq!(assign(&set, port, (1, 8), used_by_others), Ok(()));
        }
        assert_eq!(assign(&set, 999, (1, 7), used_by_others), Ok(()));
        assert_eq!(
            assign(&set, 998, (1, 8), used_by_others),
            Err(AssignError::TooMany)
        );
    }

    #[test]
    fn a_user_leaves_ports_to_others() {
        let set = EngineSet::new(2).unwrap();
        let used_by_others = |_, engine| engine == MAX_ENGINES;
        let most = Port::try_from(MAX_OF_USER).unwrap();
        for port in 1..=most {
            assert_eq!(assign(&set, port, (1, 7), used_by_others), Ok(()));
        }
        let refused = assign(&set, most + 1, (1, 7), used_by_others);
        assert_eq!(refused, Err(AssignError::TooMany));
        assert_eq!(assign(&set, most + 1, (1, 8), used_by_others), Ok(()));
    }

    #[test]
    fn a_frame_to_this_node_reaches_the_owner_of_its_port() {
        let set = EngineSet::new(2).unwrap();
        let [first, second] = [0, 1].map(|engine| Member {
            set: Arc::clone(&set),
            engine,
        });
        let frame = |port: Port| [&[0; 14][..], &port.to_be_bytes()].concat();
        let (link, mut dropped) = (LinkId(3), 0);
        let own = first.pass_on(link, frame(7), &mut dropped);
        assert_eq!(own, Some(frame(7)));
        assert!(first.owns(&frame(7)[ADDRESSES..]) && !second.owns(&frame(7)[ADDRESSES..]));
        for _ in 0..MAX_LOOPED {
            assert_eq!(first.pass_on(link, frame(65535), &mut dropped), None);
        }
        assert_eq!(dropped, 0);
        assert_eq!(first.pass_on(link, frame(65535), &mut dropped), None);
        assert_eq!(dropped, 1);
        assert!(first.take_looped(9).is_empty());
        assert_eq!(second.take_looped(1), [(link, frame(65535))]);
        assert_eq!(second.take_looped(MAX_LOOPED).len(), MAX_LOOPED - 1);
        assert!(second.take_looped(1).is_empty());
        // A frame without a port is for the endpoint to count.
        assert_eq!(
            second.pass_on(link, vec![0; 9], &mut dropped),
            Some(vec![0; 9])
        );
    }
}
