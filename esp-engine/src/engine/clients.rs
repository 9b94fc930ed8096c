//! Programs, their pages, and the objects in their slots.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use esp_proto::Port;
use rustix::net::SendFlags;

use crate::command::{ClientId, ConnHandle, LinkId, Slot};
use crate::shm::{ClientPage, SLOTS, SlotSet};

/// Maximum number of visits, each to one stream or one record of a datagram socket, that the
/// programs of a user get in each of the two parts of a turn; the rest waits for the next turn. So
/// a user with thousands of sockets delays others no more than one with four busy ones.
pub(super) const VISITS_PER_TURN: usize = 256;

/// Object in a program's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Free,
    Stream(ConnHandle),
    Datagrams(LinkId, Port),
}

/// A user that has programs. Its index is dense, and is reused after its last program.
#[derive(Debug)]
struct User {
    number: u32,
    programs: usize,
    /// Visits left in this part of the turn.
    left: usize,
}

/// A connected program.
struct Client {
    id: ClientId,
    /// Index in the table of users.
    user: usize,
    page: Arc<ClientPage>,
    doorbell: OwnedFd,
    notify: OwnedFd,
    /// Objects by slot. Grows to the highest slot used, at most 4096.
    objects: Vec<Object>,
    /// Slots with an object.
    owned: SlotSet,
    /// Slots that rang and wait for their visit. The page's bells are taken again when these are
    /// served, so that each slot has one visit before any has two.
    rung: VecDeque<Slot>,
    /// The program ended. The entry stays until its last object is closed.
    gone: bool,
}

/// Programs in a dense table, so that polling all doorbells walks an array.
#[derive(Default)]
pub(super) struct Clients {
    table: Vec<Option<Client>>,
    by_id: HashMap<ClientId, usize>,
    users: Vec<User>,
    /// Index of the program that is served first in this turn.
    first: usize,
}

impl Clients {
    /// Adds a program and returns its index.
    pub(super) fn add(
        &mut self,
        (id, user): (ClientId, u32),
        page: Arc<ClientPage>,
        doorbell: OwnedFd,
        notify: OwnedFd,
    ) -> usize {
        let client = Client {
            id,
            user: self.join_user(user),
            page,
            doorbell,
            notify,
            objects: Vec::new(),
            owned: SlotSet::EMPTY,
            rung: VecDeque::new(),
            gone: false,
        };
        let free = self.table.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        self.table[index] = Some(client);
        self.by_id.insert(id, index);
        index
    }

    /// Counts one more program of a user, and returns the user's index.
    fn join_user(&mut self, number: u32) -> usize {
        let same = |user: &User| user.programs > 0 && user.number == number;
        let found = self.users.iter().position(same);
        let free = || self.users.iter().position(|user| user.programs == 0);
        let index = found.or_else(free).unwrap_or(self.users.len());
        if index == self.users.len() {
            self.users.push(User {
                number,
                programs: 0,
                left: 0,
            });
        }
        let user = &mut self.users[index];
        user.number = number;
        user.programs += 1;
        index
    }

    /// Returns the number of a program's user, dense and at least 1; 0 if there is no such program.
    pub(super) fn user(&self, index: usize) -> u32 {
        let user = self.get(index).map(|client| client.user + 1);
        user.and_then(|user| u32::try_from(user).ok()).unwrap_or(0)
    }

    fn user_mut(&mut self, index: usize) -> Option<&mut User> {
        let user = self.get(index)?.user;
        self.users.get_mut(user)
    }

    pub(super) fn index(&self, id: ClientId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    fn get(&self, index: usize) -> Option<&Client> {
        self.table.get(index)?.as_ref()
    }

    pub(super) fn id(&self, index: usize) -> Option<ClientId> {
        self.get(index).map(|c| c.id)
    }

    pub(super) fn doorbell(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.get(index).map(|c| c.doorbell.as_fd())
    }

    #[inline]
    pub(super) fn object(&self, index: usize, slot: Slot) -> Object {
        self.get(index)
            .and_then(|c| c.objects.get(usize::from(slot)).copied())
            .unwrap_or(Object::Free)
    }

    /// Sets the object of a slot. Returns false if the slot is out of range or taken.
    pub(super) fn occupy(&mut self, index: usize, slot: Slot, object: Object) -> bool {
        let Some(Some(client)) = self.table.get_mut(index) else {
            return false;
        };
        let (number, slot) = (slot, usize::from(slot));
        if slot >= SLOTS {
            return false;
        }
        if client.objects.len() <= slot {
            client.objects.resize(slot + 1, Object::Free);
        }
        if client.objects[slot] != Object::Free {
            return false;
        }
        client.objects[slot] = object;
        client.owned.set(number, true);
        true
    }

    /// Replaces the object of a slot.
    pub(super) fn replace(&mut self, index: usize, slot: Slot, object: Object) {
        if let Some(Some(client)) = self.table.get_mut(index)
            && let Some(entry) = client.objects.get_mut(usize::from(slot))
        {
            *entry = object;
        }
    }

    /// Frees a slot. Removes a program that ended and has no other object.
    pub(super) fn vacate(&mut self, index: usize, slot: Slot) {
        let Some(Some(client)) = self.table.get_mut(index) else {
            return;
        };
        if let Some(object) = client.objects.get_mut(usize::from(slot)) {
            *object = Object::Free;
            client.owned.set(slot, false);
        }
        // A program can have had one object, in the highest slot.
        if client.owned.is_empty() {
            client.objects = Vec::new();
        }
        self.remove_if_empty(index);
    }

    /// Marks a program as ended and returns its objects.
    pub(super) fn mark_gone(&mut self, index: usize) -> Vec<Object> {
        let Some(Some(client)) = self.table.get_mut(index) else {
            return Vec::new();
        };
        client.gone = true;
        let left = client
            .objects
            .iter()
            .copied()
            .filter(|object| *object != Object::Free)
            .collect();
        self.remove_if_empty(index);
        left
    }

    fn remove_if_empty(&mut self, index: usize) {
        let Some(entry) = self.table.get_mut(index) else {
            return;
        };
        let over = entry.as_ref().is_some_and(|c| c.gone && c.owned.is_empty());
        if over && let Some(client) = entry.take() {
            self.by_id.remove(&client.id);
            if let Some(user) = self.users.get_mut(client.user) {
                user.programs -= 1;
            }
        }
    }

    /// Gives each user [`VISITS_PER_TURN`].
    #[inline]
    pub(super) fn grant_visits(&mut self) {
        for user in &mut self.users {
            user.left = VISITS_PER_TURN;
        }
    }

    /// Returns the visits that a program's user has left.
    #[inline]
    pub(super) fn visits_left(&self, index: usize) -> usize {
        let user = self
            .get(index)
            .and_then(|client| self.users.get(client.user));
        user.map_or(0, |user| user.left)
    }

    /// Takes visits from a program's user.
    #[inline]
    pub(super) fn charge_visits(&mut self, index: usize, visits: usize) {
        if let Some(user) = self.user_mut(index) {
            user.left = user.left.saturating_sub(visits);
        }
    }

    /// Returns the indices of the programs in the order of this turn. Each turn begins with another
    /// program.
    #[inline]
    pub(super) fn order(&mut self) -> impl Iterator<Item = usize> + use<> {
        let count = self.table.len();
        self.first = (self.first + 1) % count.max(1);
        (self.first..count).chain(0..self.first)
    }

    /// Collects a program's doorbells that rang, once those collected before are served.
    #[inline]
    pub(super) fn collect_bells(&mut self, index: usize) {
        if let Some(Some(client)) = self.table.get_mut(index)
            && client.rung.is_empty()
            && client.page.any_doorbell()
        {
            let Client {
                page, owned, rung, ..
            } = client;
            page.drain_doorbell(owned, |slot| rung.push_back(slot));
        }
    }

    /// Returns the next slot of a program that rang, if its user has a visit left, and takes that.
    #[inline]
    pub(super) fn next_bell(&mut self, index: usize) -> Option<Slot> {
        let client = self.table.get_mut(index)?.as_mut()?;
        let user = self.users.get_mut(client.user)?;
        if user.left == 0 {
            return None;
        }
        let slot = client.rung.pop_front()?;
        user.left -= 1;
        Some(slot)
    }

    pub(super) fn any_doorbell(&self) -> bool {
        self.table
            .iter()
            .flatten()
            .any(|client| !client.rung.is_empty() || client.page.any_doorbell())
    }

    /// Raises the event bit of a slot and wakes the program's thread that waits for events.
    pub(super) fn notify(&self, index: usize, slot: Slot) {
        if let Some(client) = self.get(index)
            && client.page.raise(slot)
        {
            notify(&client.notify);
        }
    }

    /// Wakes the event thread of every program, which then finds the control socket closed.
    pub(super) fn daemon_gone(&self) {
        for client in self.table.iter().flatten() {
            notify(&client.notify);
        }
    }
}

/// Makes the program's end of the pair readable. Never blocks: if the buffer is full, the end is
/// readable already; if it is closed, the program does not wait for events.
fn notify(notify: &OwnedFd) {
    let _ = rustix::net::send(notify, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Doorbell, EnginePage, EngineView};

    /// A program with its doorbell.
    fn program(clients: &mut Clients, id: u64, user: u32) -> (usize, Doorbell) {
        let (page, fd) = ClientPage::create().expect("memory");
        let theirs = ClientPage::open(fd.as_fd()).expect("own page");
        let (_, engine) = EnginePage::create().expect("memory");
        let engine = EngineView::open(engine.as_fd()).expect("own page");
        let (doorbell, notify) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let index = clients.add((ClientId(id), user), page, doorbell.into(), notify.into());
        (index, Doorbell::new(theirs, engine))
    }

    fn bind(clients: &mut Clients, index: usize, slots: u16) {
        for slot in 0..slots {
            assert!(clients.occupy(index, slot, Object::Datagrams(LinkId(0), slot)));
        }
    }

    /// Returns the programs visited in one turn, in order.
    fn turn(clients: &mut Clients) -> Vec<usize> {
        clients.grant_visits();
        let mut visits = Vec::new();
        for index in clients.order() {
            clients.collect_bells(index);
            while clients.next_bell(index).is_some() {
                visits.push(index);
            }
        }
        visits
    }

    #[test]
    fn bells_of_slots_without_an_object_are_not_visited() {
        let mut clients = Clients::default();
        let (index, doorbell) = program(&mut clients, 1, 0);
        bind(&mut clients, index, 3);
        clients.vacate(index, 1);
        for slot in 0..SLOTS as Slot {
            assert!(!doorbell.ring(slot));
        }
        assert_eq!(turn(&mut clients).len(), 2, "of 4096 bells");
        assert!(!clients.any_doorbell());
    }

    #[test]
    fn a_user_with_many_sockets_does_not_take_the_whole_turn() {
        let mut clients = Clients::default();
        let mut bells = Vec::new();
        for id in 1..=2 {
            let (index, doorbell) = program(&mut clients, id, 7);
            bind(&mut clients, index, 1000);
            (0..1000).for_each(|slot| _ = doorbell.ring(slot));
            bells.push(doorbell);
        }
        let (other, doorbell) = program(&mut clients, 3, 8);
        bind(&mut clients, other, 1);
        let mut visited = [0; 2];
        // The bells of the first user ring again all the time.
        for _ in 0..20 {
            _ = doorbell.ring(0);
            let visits = turn(&mut clients);
            assert!(visits.contains(&other), "another user's in each turn");
            assert_eq!(visits.len(), VISITS_PER_TURN + 1);
            visits
                .iter()
                .filter(|index| **index < 2)
                .for_each(|index| visited[*index] += 1);
            for bell in &bells {
                (0..1000).for_each(|slot| _ = bell.ring(slot));
            }
            assert!(clients.any_doorbell(), "the rest waits");
        }
        assert!(visited.iter().all(|visits| *visits >= 1000), "{visited:?}");
    }

    #[test]
    fn a_user_ends_with_its_last_program() {
        let mut clients = Clients::default();
        let (first, _a) = program(&mut clients, 1, 7);
        let (second, _b) = program(&mut clients, 2, 7);
        let (other, _c) = program(&mut clients, 3, 8);
        assert_eq!(clients.user(first), clients.user(second));
        assert_ne!(clients.user(first), clients.user(other));
        bind(&mut clients, second, 2);
        clients.mark_gone(first);
        assert_eq!(clients.mark_gone(second).len(), 2);
        clients.vacate(second, 0);
        let user = clients.user(second);
        assert_eq!((user, clients.users[0].programs), (1, 1));
        clients.vacate(second, 1);
        assert_eq!((clients.user(second), clients.users[0].programs), (0, 0));
        let (next, _d) = program(&mut clients, 4, 9);
        assert_eq!(
            (next, clients.user(next)),
            (0, user),
            "its place is used again"
        );
    }
}
