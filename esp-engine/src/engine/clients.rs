//! Programs, their pages, and the objects in their slots.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use esp_proto::Port;
use rustix::net::SendFlags;

use crate::command::{ClientId, ConnHandle, LinkId, Slot};
use crate::shm::{ClientPage, SLOTS};

/// Object in a program's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Free,
    Stream(ConnHandle),
    Datagrams(LinkId, Port),
}

/// A connected program.
struct Client {
    id: ClientId,
    page: Arc<ClientPage>,
    doorbell: OwnedFd,
    notify: OwnedFd,
    /// Objects by slot. Grows to the highest slot used, at most 4096.
    objects: Vec<Object>,
    /// The program ended. The entry stays until its last object is closed.
    gone: bool,
}

/// Programs in a dense table, so that polling all doorbells walks an array.
#[derive(Default)]
pub(super) struct Clients {
    table: Vec<Option<Client>>,
    by_id: HashMap<ClientId, usize>,
}

impl Clients {
    /// Adds a program and returns its index.
    pub(super) fn add(
        &mut self,
        id: ClientId,
        page: Arc<ClientPage>,
        doorbell: OwnedFd,
        notify: OwnedFd,
    ) -> usize {
        let client = Client {
            id,
            page,
            doorbell,
            notify,
            objects: Vec::new(),
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
        let slot = usize::from(slot);
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
        }
        self.remove_if_empty(index);
    }

    /// Marks a program as ended and returns its objects.
    pub(super) fn mark_gone(&mut self, index: usize) -> Vec<(Slot, Object)> {
        let Some(Some(client)) = self.table.get_mut(index) else {
            return Vec::new();
        };
        client.gone = true;
        let left = client
            .objects
            .iter()
            .enumerate()
            .filter(|(_, object)| **object != Object::Free)
            .filter_map(|(slot, object)| Some((Slot::try_from(slot).ok()?, *object)))
            .collect();
        self.remove_if_empty(index);
        left
    }

    fn remove_if_empty(&mut self, index: usize) {
        let Some(entry) = self.table.get_mut(index) else {
            return;
        };
        let over = entry
            .as_ref()
            .is_some_and(|c| c.gone && c.objects.iter().all(|o| *o == Object::Free));
        if over && let Some(client) = entry.take() {
            self.by_id.remove(&client.id);
        }
    }

    /// Appends (program, slot) for each doorbell that rang since the last call.
    #[inline]
    pub(super) fn drain_doorbells(&self, rung: &mut Vec<(usize, Slot)>) {
        for (index, client) in self.table.iter().enumerate() {
            if let Some(client) = client
                && client.page.any_doorbell()
            {
                client.page.drain_doorbell(|slot| rung.push((index, slot)));
            }
        }
    }

    pub(super) fn any_doorbell(&self) -> bool {
        self.table
            .iter()
            .flatten()
            .any(|client| client.page.any_doorbell())
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
