//! The sockets of `AF_ENET` of all programs, by name.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use esp_client::control::ConnectionStatus;
use esp_client::{Client, EdpSocket, EspAddr, EspStream, MacAddr, NodeAddr};
use nix::errno::Errno;
use preload_wire::{DataPath, Enet, SocketStatus, State};

use super::datagrams::Direct;
use super::{MAX_SOCKETS, system};

/// A socket.
#[derive(Default)]
pub(super) struct Entry {
    state: Mutex<State>,
    /// The program has closed it.
    gone: AtomicBool,
    /// It is a listener of ESP.
    pub(super) listens: Mutex<bool>,
    pub(super) datagrams: Datagrams,
}

/// Counters of a datagram socket.
#[derive(Default)]
pub(super) struct Datagrams {
    pub(super) sent: AtomicU32,
    pub(super) send_errors: AtomicU32,
    pub(super) received: AtomicU32,
    pub(super) dropped: AtomicU32,
    pub(super) socket: Mutex<Option<Arc<EdpSocket>>>,
    /// `None` if not connected.
    pub(super) direct: Mutex<Option<Arc<Direct>>>,
}

impl Entry {
    /// Returns a copy of the state.
    pub(super) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    /// Changes the state.
    pub(super) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
    }

    /// Sets addresses and MTU to those of a stream.
    pub(super) fn set_stream(&self, stream: &EspStream) {
        let (local, peer) = (stream.local_addr(), stream.peer_addr());
        let payload = mtu(stream.client(), local.interface.as_deref());
        self.set(|state| {
            state.local = enet(&local);
            state.peer = Some(enet(&peer));
            state.connecting = false;
            state.mtu = payload;
        });
    }

    /// Returns true once the program has closed the socket.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

/// All sockets.
#[derive(Default)]
pub(super) struct Table {
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    /// Sockets that ended by an error, and the time of this. They are kept until the program closes
    /// its socket, which the broker does not notice for accepted streams, but no more than
    /// [`MAX_SOCKETS`].
    ended: Mutex<HashMap<String, (Instant, State)>>,
}

impl Table {
    /// Returns the socket of this name, which is created if it is new.
    ///
    /// # Errors
    /// ENOBUFS: it is new, and there are too many.
    pub(super) fn entry(&self, name: &str) -> io::Result<Arc<Entry>> {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(name) {
            return Ok(Arc::clone(entry));
        }
        check_room(&entries)?;
        let entry = Arc::<Entry>::default();
        entries.insert(name.to_owned(), Arc::clone(&entry));
        Ok(entry)
    }

    /// Fails with ENOBUFS if there are too many sockets.
    pub(super) fn check_room(&self) -> io::Result<()> {
        check_room(&lock(&self.entries))
    }

    /// Removes a socket. If it ended by an error, its state is remembered.
    pub(super) fn remove(&self, name: &str) {
        // Locked until the error is remembered, because the program may request it at any time.
        let mut entries = lock(&self.entries);
        let Some(entry) = entries.remove(name) else {
            return;
        };
        entry.gone.store(true, Ordering::Relaxed);
        let state = entry.state();
        if state.errno == 0 {
            return;
        }
        let mut ended = lock(&self.ended);
        if ended.len() >= MAX_SOCKETS {
            let oldest = ended.iter().min_by_key(|(_, (since, _))| *since);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                ended.remove(&oldest);
            }
        }
        ended.insert(name.to_owned(), (Instant::now(), state));
    }

    /// Returns the names of all sockets, and of those whose errors are remembered.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = lock(&self.entries).keys().cloned().collect();
        names.extend(lock(&self.ended).keys().cloned());
        names
    }

    /// Removes the sockets in `all` that are not among the current `names`, and forgets their
    /// errors.
    pub(super) fn sweep(&self, all: &[String], names: &HashSet<String>) {
        // The name of an accepted stream is the broker's and may not be bound yet, so the stream is
        // not removed here: it ends by itself.
        let is_gone = |name: &&String| !is_accepted(name) && !names.contains(*name);
        for name in all.iter().filter(is_gone) {
            self.remove(name);
            lock(&self.ended).remove(name);
        }
    }

    /// Returns the state of a socket; the default for one that has not been used.
    pub(super) fn state(&self, name: &str) -> State {
        if let Some(entry) = lock(&self.entries).get(name) {
            return entry.state();
        }
        let ended = lock(&self.ended);
        let found = ended.get(name).map(|(_, state)| state.clone());
        found.unwrap_or_default()
    }

    /// Returns the state of a socket, like [`Table::state`], and resets `is_new`.
    pub(super) fn take_state(&self, name: &str) -> State {
        let found = lock(&self.entries).get(name).cloned();
        found.map_or_else(
            || self.state(name),
            |entry| {
                let state = entry.state();
                entry.set(|state| state.is_new = false);
                state
            },
        )
    }

    /// Returns all sockets that have an address.
    pub(super) fn status(&self) -> Vec<SocketStatus> {
        let entries = lock(&self.entries);
        let states = entries.values().map(|entry| entry.state());
        let in_use = states.filter(|state| state.local.port != 0);
        let text = |addr: Enet| format!("{}:{}", MacAddr(addr.mac), addr.port);
        let status = in_use.map(|state| SocketStatus {
            local: text(state.local),
            peer: state.peer.map(text).unwrap_or_default(),
            way: DataPath::Copied,
            sent: None,
            received: None,
        });
        let mut all: Vec<_> = status.collect();
        all.sort_by(|one, other| (&one.local, &one.peer).cmp(&(&other.local, &other.peer)));
        all
    }

    /// Returns the statistics of a socket, in the order of the C structure.
    pub(super) fn statistics(&self, name: &str) -> io::Result<Vec<u32>> {
        let entry = lock(&self.entries).get(name).cloned().unwrap_or_default();
        let state = entry.state();
        let Some(peer) = state.peer.filter(|_| !name.contains(".d.")) else {
            let counts = &entry.datagrams;
            let counts = [
                &counts.sent,
                &counts.send_errors,
                &counts.received,
                &counts.dropped,
            ];
            let mut counts: Vec<u32> = counts.map(|n| n.load(Ordering::Relaxed)).into();
            if !name.contains(".d.") {
                counts = vec![0; 8];
            }
            return Ok(counts);
        };
        let status = Client::shared()?.status()?;
        let addr = NodeAddr::from(MacAddr(peer.mac)).to_string();
        let is_it = |other: &&ConnectionStatus| {
            (other.local_port, other.peer_port) == (state.local.port, peer.port)
                && other.peer == addr
        };
        let found = status.connections.iter().find(is_it);
        let low = |value: Option<u64>| value.unwrap_or(0) as u32;
        Ok(found.map_or_else(
            || vec![0; 8],
            |found| {
                vec![
                    low(found.packets_sent),
                    low(found.retransmits),
                    0,
                    low(found.packets_received),
                    low(found.out_of_order),
                    low(found.duplicates),
                    0,
                    0,
                ]
            },
        ))
    }
}

/// Returns true for the name of the broker's end of an accepted stream.
fn is_accepted(name: &str) -> bool {
    name.split('.').nth(2) == Some("p")
}

fn check_room(entries: &HashMap<String, Arc<Entry>>) -> io::Result<()> {
    if entries.len() >= MAX_SOCKETS {
        return Err(Errno::ENOBUFS.into());
    }
    Ok(())
}

/// Returns the address in the form of `AF_ENET`; zeros for a UDP address.
pub(super) fn enet(addr: &EspAddr) -> Enet {
    let mac = match addr.addr {
        NodeAddr::Mac(mac) => mac.0,
        NodeAddr::Udp(_) => [0; 6],
    };
    let interface = addr.interface.as_deref();
    Enet {
        port: addr.port,
        interface: interface.map_or(0, system::interface_index),
        mac,
    }
}

/// Returns the MTU of an interface, in bytes.
pub(super) fn mtu(client: &Client, interface: Option<&str>) -> u32 {
    client.interface(interface).map_or(0, |own| own.mtu)
}

/// Locks a mutex, even a poisoned one: the broker's data is consistent after a panic, too.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_serves_the_sockets_that_it_has() {
        let table = Table::default();
        let name = |number: usize| format!("esp.1.s.7.{number}");
        for number in 0..MAX_SOCKETS {
            assert!(table.entry(&name(number)).is_ok());
        }
        assert!(table.entry(&name(MAX_SOCKETS)).is_err() && table.check_room().is_err());
        assert!(table.entry(&name(0)).is_ok());
    }

    #[test]
    fn an_accepted_stream_is_kept_before_its_name_is_bound() {
        let table = Table::default();
        let all = ["esp.1.p.0f.1c", "esp.1.s.7.1", "esp.1.d.7.2"].map(String::from);
        let entries = all.each_ref().map(|name| table.entry(name).unwrap());
        table.sweep(&all, &HashSet::new());
        assert_eq!(table.names(), all[..1]);
        assert_eq!(entries.map(|entry| entry.is_gone()), [false, true, true]);
    }

    #[test]
    fn errors_are_known_until_the_program_closes_its_socket() {
        let table = Table::default();
        let name = |number: usize| format!("esp.1.s.7.{number}");
        let fail = |name: &str| {
            let entry = table.entry(name).unwrap();
            entry.set(|state| state.errno = 104);
            table.remove(name);
        };
        (0..MAX_SOCKETS).for_each(|number| fail(&name(number)));
        let known = |number: usize| table.state(&name(number)).errno == 104;
        assert!((0..MAX_SOCKETS).all(known));
        table.sweep(&table.names(), &(0..10).map(name).collect());
        assert!((0..MAX_SOCKETS).all(|number| known(number) == (number < 10)));
        (0..=MAX_SOCKETS).for_each(|number| fail(&format!("esp.1.p.{number}.1c")));
        assert_eq!(table.names().len(), MAX_SOCKETS);
        assert!(!known(0), "the oldest one is forgotten");
    }
}
