//! Leased sockets in fan-out groups, so that a frame costs the same however many there are ([`netif::FanoutGroup`] tells what a group is,
//! and why its members' sockets are kept here until all of them are over).
//!
//! A leased socket works from the moment it is opened: the kernel shows it every frame, and its own filter chooses. That costs all
//! frames of the interface some 100 ns. So a thread moves it into a group soon after: first the group's routes (the kernel
//! takes some 15 ms to forget the ones before), then the membership. What cannot be in a group stays as it is.
//!
//! When the daemon dies its descriptors close, members move to other slots, and leased sockets may go without frames. So the holder has
//! a spare for each, filtered and locked alike and bound to nothing, which it binds when its daemon is gone. Copies of the spares are kept
//! here, too: who closes a packet socket last waits for the kernel, some 15 ms each time, and that had better not be a program that ends.

use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use esp_engine::LinkId;
use esp_proto::Port;
use netif::{FanoutGroup, Interface, MAX_MEMBERS, OpenError, PacketSocket, Routes};

/// Members of a group whose leases are over: from so many on it takes no new ones, lest they become ever more beside one that stays. Each
/// keeps the memory of its ring.
const MOST_OVER: usize = 32;
/// Sockets kept at most, with as many spares. Those beyond that are in no group.
const MOST_KEPT: usize = 2048;
/// Frames thrown away when a lease is over: more than a receive buffer holds.
const MOST_FRAMES: usize = 1 << 16;

/// The groups of all links.
#[derive(Debug, Default)]
pub(crate) struct Demux {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    groups: Mutex<Groups>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Groups {
    all: Vec<Group>,
    next: u64,
    working: bool,
    over: bool,
}

#[derive(Debug)]
struct Group {
    id: u64,
    link: LinkId,
    ethertype: u16,
    fanout: Arc<FanoutGroup>,
    /// In the order in which the sockets were made.
    members: Vec<Member>,
    /// Slots given out; they are never given twice.
    slots: u16,
    changed: bool,
}

#[derive(Debug)]
struct Member {
    /// Whose it is, by number.
    lease: u64,
    ports: RangeInclusive<Port>,
    socket: Arc<PacketSocket>,
    /// Until it is over.
    spare: Option<PacketSocket>,
    /// It is bound.
    ready: bool,
    /// `None`: not in the group yet.
    slot: Option<u16>,
    over: bool,
    /// What waited in it has been thrown away.
    emptied: bool,
}

impl Group {
    fn has_room(&self) -> bool {
        self.members.len() < MAX_MEMBERS - 1
            && usize::from(self.slots) < MAX_MEMBERS - 1
            && self.members.iter().filter(|member| member.over).count() < MOST_OVER
    }

    /// The next routes, as if those who wait were in already. A port of two is the younger one's.
    fn routes(&self) -> impl Iterator<Item = (RangeInclusive<u16>, u16)> + use<> {
        let mut next = self.slots;
        let mut routes = Vec::with_capacity(self.members.len());
        for member in self.members.iter().filter(|member| !member.over) {
            let slot = member.slot.unwrap_or_else(|| {
                next += 1;
                next
            });
            routes.push((member.ports.clone(), slot));
        }
        routes.into_iter().rev()
    }

    /// Takes in those who wait, in order, up to one that is not bound yet. One who does not get the slot the routes have for it is the last.
    /// Returns who is no member any more.
    fn take_in(&mut self, count: usize, routed: bool) -> Vec<Member> {
        let fanout = Arc::clone(&self.fanout);
        let (mut at, mut removed) = (0, Vec::new());
        for _ in 0..count {
            let Some(member) = self.members.get_mut(at) else {
                break;
            };
            if member.slot.is_some() {
                at += 1;
            } else if !member.ready && !member.over {
                break;
            } else if routed && !member.over && fanout.join(&member.socket).is_ok() {
                self.slots += 1;
                member.slot = Some(self.slots);
                at += 1;
            } else {
                // It goes on by itself, or is over. The slots of those behind are others now.
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

    /// Opens a leased socket and its spare, and has the first put into a group when it is bound, which may take a while.
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
            // Both under the lock: sockets are members in the order in which they are made.
            let mut groups = self.groups();
            let group = groups.of(link, interface, ethertype);
            let socket = make()?;
            if let (Some(group), Ok(kept)) =
                (group.and_then(|at| groups.all.get_mut(at)), copy(&socket))
            {
                let (ports, socket, spare) = (ports.clone(), Arc::new(kept), copy(&spare).ok());
                let (ready, slot, over, emptied) = (false, None, false, false);
                group.members.push(Member {
                    lease,
                    ports,
                    socket,
                    spare,
                    ready,
                    slot,
                    over,
                    emptied,
                });
            }
            socket
        };
        let bound = bind(&socket);
        self.change(link, lease, |member| {
            member.ready = bound.is_ok();
            member.over |= bound.is_err();
        });
        bound.map(|()| [socket, spare])
    }

    /// A lease is over.
    pub(crate) fn end(&self, link: LinkId, lease: u64) {
        self.change(link, lease, |member| member.over = true);
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

    /// Has the thread look at what has changed.
    fn work(&self, groups: &mut Groups) {
        if !groups.working {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new()
                .name("esp-demux".into())
                .spawn(move || shared.work());
            // Without it everybody stays as it is.
            groups.working = thread.is_ok();
        }
        self.shared.changed.notify_one();
    }
}

impl Drop for Demux {
    fn drop(&mut self) {
        self.groups().over = true;
        self.shared.changed.notify_one();
    }
}

impl Groups {
    /// A group for another member; `None` where there can be none.
    fn of(&mut self, link: LinkId, interface: &Interface, ethertype: u16) -> Option<usize> {
        let kept: usize = self.all.iter().map(|group| group.members.len()).sum();
        if kept >= MOST_KEPT {
            return None;
        }
        let fits =
            |group: &Group| group.link == link && group.ethertype == ethertype && group.has_room();
        if let Some(found) = self.all.iter().position(fits) {
            return Some(found);
        }
        let fanout = Arc::new(FanoutGroup::open(interface, ethertype).ok()?);
        let id = self.next;
        self.next += 1;
        self.all.push(Group {
            id,
            link,
            ethertype,
            fanout,
            members: Vec::new(),
            slots: 0,
            changed: false,
        });
        Some(self.all.len() - 1)
    }

    fn by_id(&mut self, id: u64) -> Option<&mut Group> {
        self.all.iter_mut().find(|group| group.id == id)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(id) = self.next() {
            self.update(id);
        }
    }

    /// Waits for a group that has changed; `None` at the end.
    fn next(&self) -> Option<u64> {
        let mut groups = self.lock();
        loop {
            if groups.over {
                return None;
            }
            if let Some(group) = groups.all.iter_mut().find(|group| group.changed) {
                group.changed = false;
                return Some(group.id);
            }
            groups = self
                .changed
                .wait(groups)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// New routes, then new members, then the end of what is over.
    fn update(&self, id: u64) {
        let mut groups = self.lock();
        let Some(group) = groups.by_id(id) else {
            return;
        };
        let (fanout, routes, count) = (
            Arc::clone(&group.fanout),
            group.routes(),
            group.members.len(),
        );
        drop(groups);
        // Slow, so not under the lock. A slot nobody has yet is the first member's, who takes nothing.
        let routed = Routes::new(routes).is_ok_and(|routes| fanout.route(&routes).is_ok());
        let mut groups = self.lock();
        let Some(group) = groups.by_id(id) else {
            return;
        };
        let removed = group.take_in(count, routed);
        let mut over = Vec::new();
        // Only if nothing was ended meanwhile: those the routes do not name any more.
        if !group.changed {
            for member in group
                .members
                .iter_mut()
                .filter(|member| member.over && !member.emptied)
            {
                member.emptied = true;
                over.push((Arc::clone(&member.socket), member.spare.take()));
            }
        }
        let empty = group.members.iter().all(|member| member.over);
        let at = groups.all.iter().position(|group| empty && group.id == id);
        let ended = at.map(|at| groups.all.swap_remove(at));
        drop(groups);
        over.iter()
            .for_each(|(socket, _)| socket.discard(MOST_FRAMES));
        // Slow again: each socket that nobody else has takes as long as new routes.
        drop((over, removed, ended));
    }
}
