//! Fan-out groups of leased sockets, with which the cost of a frame does not depend on their
//! number. [`netif::FanoutGroup`] explains groups, and why members' sockets are kept here until all
//! members have ended.
//!
//! A leased socket works as soon as it is opened, but its filter costs every frame of the interface
//! about 100 ns. Therefore a thread moves it into a group: it installs the group's new routes (the
//! kernel takes about 15 ms to retire the old ones), then adds the socket. A socket that cannot
//! join stays outside.
//!
//! When the daemon dies, its descriptors close, members move to other slots, and leased sockets may
//! lose frames. Therefore a program has a spare for each, unbound and with the same locked filter,
//! and binds it when the daemon has ended. Copies of the spares are kept here, too: the last close
//! of a packet socket takes about 15 ms, for which an ending program need not wait.
//!
//! If programs spin on all processors, a close takes 0.1 s. Sockets of ended leases are therefore
//! closed several at a time, which takes hardly longer than one, and few are kept: a killed daemon
//! is gone only after the kernel has closed them one by one.

use std::mem;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use esp_engine::LinkId;
use esp_proto::Port;
use netif::{FanoutGroup, Interface, MAX_MEMBERS, OpenError, PacketSocket, Routes};

/// Number of ended members at which a group accepts no new ones. Each keeps the memory of its ring
/// and delays the end of a killed daemon.
const MAX_ENDED: usize = 8;
/// Number of threads that close sockets.
const CLOSERS: usize = 32;
/// Maximum number of sockets in groups; each also keeps a spare.
const MAX_KEPT: usize = 2048;
/// Maximum number of frames discarded at the end of a lease; more than a receive buffer holds.
const MAX_FRAMES: usize = 1 << 16;

/// The groups of all links.
#[derive(Debug, Default)]
pub(crate) struct Demux {
    shared: Arc<DemuxState>,
}

#[derive(Debug, Default)]
struct DemuxState {
    groups: Mutex<Groups>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Groups {
    all: Vec<Group>,
    working: bool,
    stopped: bool,
}

#[derive(Debug)]
struct Group {
    link: LinkId,
    /// Index of its interface.
    index: u32,
    ethertype: u16,
    fanout: Arc<FanoutGroup>,
    /// In the order in which the sockets were created.
    members: Vec<Member>,
    /// Number of assigned slots; slots are not reused.
    slots: u16,
    changed: bool,
}

#[derive(Debug)]
struct Member {
    /// Id of the lease.
    lease: u64,
    ports: RangeInclusive<Port>,
    socket: Arc<PacketSocket>,
    /// Its spare, until the lease ends.
    spare: Option<PacketSocket>,
    /// The socket is bound.
    ready: bool,
    /// `None`: not in the group yet.
    slot: Option<u16>,
    ended: bool,
    /// Its waiting frames have been discarded.
    emptied: bool,
}

impl Group {
    fn has_room(&self) -> bool {
        self.members.len() < MAX_MEMBERS - 1
            && usize::from(self.slots) < MAX_MEMBERS - 1
            && self.members.iter().filter(|member| member.ended).count() < MAX_ENDED
    }

    /// Returns the next routes, which include waiting members. A port of two members belongs to the
    /// newer one.
    fn routes(&self) -> impl Iterator<Item = (RangeInclusive<u16>, u16)> + use<> {
        let mut next = self.slots;
        let mut routes = Vec::with_capacity(self.members.len());
        for member in self.members.iter().filter(|member| !member.ended) {
            let slot = member.slot.unwrap_or_else(|| {
                next += 1;
                next
            });
            routes.push((member.ports.clone(), slot));
        }
        routes.into_iter().rev()
    }

    /// Adds waiting members in order. Stops at one that is not bound yet, and after one that does
    /// not get the slot assumed by the routes. Returns the members that were removed.
    fn add_waiting(&mut self, count: usize, routed: bool) -> Vec<Member> {
        let fanout = Arc::clone(&self.fanout);
        let (mut at, mut removed) = (0, Vec::new());
        for _ in 0..count {
            let Some(member) = self.members.get_mut(at) else {
                break;
            };
            if member.slot.is_some() {
                at += 1;
            } else if !member.ready && !member.ended {
                break;
            } else if routed && !member.ended && fanout.join(&member.socket).is_ok() {
                self.slots += 1;
                member.slot = Some(self.slots);
                at += 1;
            } else {
                // It stays outside the group, or has ended. The slots of later members change.
                removed.push(self.members.remove(at));
                self.changed = true;
                if routed {
                    break;
                }
            }
        }
        removed
    }
}

impl Demux {
    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.shared.lock()
    }

    /// Opens a leased socket and its spare, and queues the first for a group once it is bound.
    pub(crate) fn open(
        &self,
        (link, interface): (LinkId, &Interface),
        (ethertype, lease, ports): (u16, u64, &RangeInclusive<Port>),
        make: impl Fn() -> Result<PacketSocket, OpenError>,
        bind: impl FnOnce(&PacketSocket) -> Result<(), OpenError>,
    ) -> Result<[PacketSocket; 2], OpenError> {
        let copy = |of: &PacketSocket| {
            of.as_fd()
                .try_clone_to_owned()
                .and_then(PacketSocket::from_fd)
        };
        let spare = make()?;
        let socket = {
            // Both under the lock: sockets join in the order in which they are created.
            let mut groups = self.groups();
            let group = groups.of(link, interface, ethertype);
            let socket = make()?;
            if let (Some(group), Ok(kept)) =
                (group.and_then(|at| groups.all.get_mut(at)), copy(&socket))
            {
                group.members.push(Member {
                    lease,
                    ports: ports.clone(),
                    socket: Arc::new(kept),
                    spare: copy(&spare).ok(),
                    ready: false,
                    slot: None,
                    ended: false,
                    emptied: false,
                });
            }
            socket
        };
        let bound = bind(&socket);
        self.change(link, lease, |member| {
            member.ready = bound.is_ok();
            member.ended |= bound.is_err();
        });
        bound.map(|()| [socket, spare])
    }

    /// Ends the membership of a lease.
    pub(crate) fn end(&self, link: LinkId, lease: u64) {
        self.change(link, lease, |member| member.ended = true);
    }

    fn change(&self, link: LinkId, lease: u64, mut change: impl FnMut(&mut Member)) {
        let mut groups = self.groups();
        for group in groups.all.iter_mut().filter(|group| group.link == link) {
            for member in group
                .members
                .iter_mut()
                .filter(|member| member.lease == lease)
            {
                change(member);
                group.changed = true;
            }
        }
        self.work(&mut groups);
    }

    /// Wakes the thread to process changes.
    fn work(&self, groups: &mut Groups) {
        if !groups.working {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new()
                .name("esp-demux".into())
                .spawn(move || shared.work());
            // Without the thread, all sockets stay outside groups.
            groups.working = thread.is_ok();
        }
        self.shared.changed.notify_one();
    }
}

impl Drop for Demux {
    fn drop(&mut self) {
        let mut groups = self.groups();
        groups.stopped = true;
        let all = mem::take(&mut groups.all);
        drop(groups);
        self.shared.changed.notify_one();
        let members = all.into_iter().flat_map(|group| group.members);
        close(
            members
                .map(|member| (member.socket, member.spare))
                .collect(),
        );
    }
}

/// A socket and its spare.
type Sockets = (Arc<PacketSocket>, Option<PacketSocket>);

/// Closes sockets. The kernel waits for each of them, but serves several threads at once.
fn close(mut sockets: Vec<Sockets>) {
    let share = sockets.len().div_ceil(CLOSERS).max(1);
    thread::scope(|scope| {
        while sockets.len() > share {
            let some = sockets.split_off(sockets.len() - share);
            // Without a thread, this one closes them here.
            let _ = thread::Builder::new().spawn_scoped(scope, || drop(some));
        }
        drop(sockets);
    });
}

impl Groups {
    /// Returns a group with room for another member; `None` if none can be created.
    fn of(&mut self, link: LinkId, interface: &Interface, ethertype: u16) -> Option<usize> {
        let kept: usize = self.all.iter().map(|group| group.members.len()).sum();
        if kept >= MAX_KEPT {
            return None;
        }
        let fits = |group: &Group| {
            (group.link, group.index, group.ethertype) == (link, interface.index, ethertype)
                && group.has_room()
        };
        if let Some(found) = self.all.iter().position(fits) {
            return Some(found);
        }
        let fanout = Arc::new(FanoutGroup::open(interface, ethertype).ok()?);
        self.all.push(Group {
            link,
            index: interface.index,
            ethertype,
            fanout,
            members: Vec::new(),
            slots: 0,
            changed: false,
        });
        Some(self.all.len() - 1)
    }

    fn with(&mut self, fanout: &Arc<FanoutGroup>) -> Option<&mut Group> {
        let mut all = self.all.iter_mut();
        all.find(|group| Arc::ptr_eq(&group.fanout, fanout))
    }
}

impl DemuxState {
    fn lock(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(fanout) = self.next() {
            self.update(&fanout);
        }
    }

    /// Waits for a group that has changed; `None` at the end.
    fn next(&self) -> Option<Arc<FanoutGroup>> {
        let mut groups = self.lock();
        loop {
            if groups.stopped {
                return None;
            }
            if let Some(group) = groups.all.iter_mut().find(|group| group.changed) {
                group.changed = false;
                return Some(Arc::clone(&group.fanout));
            }
            groups = self
                .changed
                .wait(groups)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Installs new routes, adds new members, then closes ended ones.
    fn update(&self, fanout: &Arc<FanoutGroup>) {
        let mut groups = self.lock();
        let Some(group) = groups.with(fanout) else {
            return;
        };
        let (routes, count) = (group.routes(), group.members.len());
        drop(groups);
        // Slow, so not under the lock. Frames for an unassigned slot go to the first member, which
        // accepts none.
        let routed = Routes::new(routes).is_ok_and(|routes| fanout.route(&routes).is_ok());
        let mut groups = self.lock();
        let Some(group) = groups.with(fanout) else {
            return;
        };
        let removed = group.add_waiting(count, routed);
        let mut closing = Vec::new();
        // Only if no lease has ended since; these members no longer have routes.
        if !group.changed {
            for member in group
                .members
                .iter_mut()
                .filter(|member| member.ended && !member.emptied)
            {
                member.emptied = true;
                closing.push((Arc::clone(&member.socket), member.spare.take()));
            }
        }
        let empty = group.members.iter().all(|member| member.ended);
        let is_this = |group: &Group| empty && Arc::ptr_eq(&group.fanout, fanout);
        let at = groups.all.iter().position(is_this);
        let group = at.map(|at| groups.all.swap_remove(at));
        drop(groups);
        closing
            .iter()
            .for_each(|(socket, _)| socket.discard(MAX_FRAMES));
        // Slow, too: closing a socket takes as long as new routes.
        let members = group.into_iter().flat_map(|group| group.members);
        let ended = removed.into_iter().chain(members);
        closing.extend(ended.map(|member| (member.socket, member.spare)));
        close(closing);
    }
}
