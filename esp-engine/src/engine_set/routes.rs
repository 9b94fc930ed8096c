//! The sockets of an interface that several engines share, and the routes of frames to them.
//!
//! The kernel takes about 15 ms to retire the previous routes. Therefore a thread installs the
//! routes of all ports assigned in the meantime together, so that no program delays another.

use std::collections::BTreeMap;
use std::mem;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use esp_proto::Port;
use netif::{FanoutGroup, Interface, PacketSocket, Routes, SocketOptions};

use super::{AssignError, EngineSet, State, block, block_of};
use crate::config::EngineError;

/// The sockets of one interface.
#[derive(Debug)]
pub(super) struct Group {
    /// Name of the interface.
    pub(super) name: String,
    /// Its index, which changes when the interface is created again.
    pub(super) index: u32,
    /// For streams and for datagrams. The socket of engine 0 is the first member.
    fanouts: [FanoutGroup; 2],
    /// Sockets of each engine, until it takes them.
    sockets: Mutex<Vec<Option<[PacketSocket; 2]>>>,
    /// Copies of them, so that none leaves its group when an engine ends before the others.
    _members: Vec<PacketSocket>,
}

impl Group {
    /// Opens the sockets of all engines, in order: members of a group that join again when the
    /// interface has been down do so in the order in which they were created.
    pub(super) fn open(
        engines: u8,
        interface: &Interface,
        ethertypes: [u16; 2],
        options: &SocketOptions,
    ) -> Result<Group, EngineError> {
        let open = |ethertype| PacketSocket::open(interface, ethertype, options);
        let group = |first: &PacketSocket| -> Result<FanoutGroup, EngineError> {
            Ok(FanoutGroup::of(copy(first)?, interface)?)
        };
        let first = [open(ethertypes[0])?, open(ethertypes[1])?];
        let fanouts = [group(&first[0])?, group(&first[1])?];
        let (mut sockets, mut members) = (vec![Some(first)], Vec::new());
        for _ in 1..engines {
            let mut member = |at: usize| -> Result<PacketSocket, EngineError> {
                let socket = open(ethertypes[at])?;
                let joined = fanouts[at].join(&socket);
                joined.map_err(EngineError::system("join a fan-out group"))?;
                members.push(copy(&socket)?);
                Ok(socket)
            };
            sockets.push(Some([member(0)?, member(1)?]));
        }
        Ok(Group {
            name: interface.name.clone(),
            index: interface.index,
            fanouts,
            sockets: Mutex::new(sockets),
            _members: members,
        })
    }

    /// Returns the sockets of an engine; `None` if it has taken them.
    pub(super) fn take(&self, engine: u8) -> Option<[PacketSocket; 2]> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.get_mut(usize::from(engine))?.take()
    }

    /// Installs the routes to the owners of all ports.
    pub(super) fn route(
        &self,
        engines: u8,
        assigned: &BTreeMap<Port, (u8, u32)>,
    ) -> Result<(), String> {
        let assigned = assigned.iter();
        let single = assigned.map(|(&port, &(engine, _))| (port..=port, engine));
        let blocks = (1..engines).map(|engine| (block(engines, engine), engine));
        // All other frames get to slot 0.
        let slots = single.chain(blocks);
        let slots = slots.map(|(ports, engine)| (ports, u16::from(engine)));
        let routes = Routes::new(slots).map_err(|error| error.to_string())?;
        for fanout in &self.fanouts {
            fanout.route(&routes).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

fn copy(socket: &PacketSocket) -> Result<PacketSocket, EngineError> {
    let copy = socket.as_fd().try_clone_to_owned();
    let copy = copy.and_then(PacketSocket::from_fd);
    copy.map_err(EngineError::system("copy a packet socket"))
}

impl EngineSet {
    /// Starts a thread that installs the missing routes, unless none are missing or one is running.
    pub(super) fn install_routes(self: &Arc<Self>, state: &mut State) {
        if state.unrouted.is_empty() || mem::replace(&mut state.installing, true) {
            return;
        }
        let set = Arc::clone(self);
        let thread = thread::Builder::new()
            .name("esp-routes".into())
            .spawn(move || while set.install_missing() {});
        if let Err(error) = thread {
            state.installing = false;
            answer(state, &Err(AssignError::Kernel(error.to_string())));
        }
    }

    /// Installs all missing routes. Returns false if there were none, or the kernel refuses them.
    pub(super) fn install_missing(&self) -> bool {
        let mut state = self.state();
        if state.unrouted.is_empty() {
            state.installing = false;
            // Programs that requested ports of the last round while it ran.
            answer(&mut state, &Ok(()));
            return false;
        }
        let (assigned, groups) = (state.assigned.clone(), state.groups.clone());
        let routed = state.unrouted.clone();
        let waiting = mem::take(&mut state.pending);
        // Slow, so not under the lock.
        drop(state);
        let mut groups = groups.iter();
        let installed = groups.try_for_each(|group| group.route(self.engines, &assigned));
        let installed = installed.map_err(AssignError::Kernel);
        let mut state = self.state();
        if installed.is_ok() {
            // A port that was reassigned during the installation needs another route.
            let owner = |port: &Port| assigned.get(port).map(|(engine, _)| *engine);
            let is_routed = |port: &Port| {
                let engine = owner(port).unwrap_or_else(|| block_of(self.engines, *port));
                routed.contains(port) && self.owner(*port) == engine
            };
            state.unrouted.retain(|port| !is_routed(port));
        } else {
            // The next assignment tries again.
            state.installing = false;
            answer(&mut state, &installed);
        }
        drop(state);
        for reply in waiting {
            reply(installed.clone());
        }
        installed.is_ok()
    }
}

/// Answers all waiting programs.
fn answer(state: &mut State, result: &Result<(), AssignError>) {
    for reply in state.pending.drain(..) {
        reply(result.clone());
    }
}
