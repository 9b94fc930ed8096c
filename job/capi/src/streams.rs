//! Streams, listeners and pollers of this process, and their handles in C.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use esp_client::{Client, EspListener, EspStream, Interest, Poller, socket_path};

use crate::code::{Code, Fault};

/// Time limit of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timeout {
    /// The call does not wait.
    AtOnce,
    After(Duration),
    Never,
}

impl Timeout {
    /// Returns the limit as the setting of a stream; `None`: no limit.
    fn limit(self) -> Option<Duration> {
        match self {
            Timeout::AtOnce | Timeout::Never => None,
            Timeout::After(limit) => Some(limit),
        }
    }
}

/// A poller, shared with its streams.
struct PollerEntry {
    client: Client,
    state: Mutex<PollerState>,
}

struct PollerState {
    poller: Poller,
    /// Handles of its streams by slot.
    slots: BTreeMap<u16, u64>,
    /// Streams with an event that the program has not taken.
    ready: BTreeSet<u64>,
    /// A reply of the daemon was taken since the last sleep, perhaps a connection to accept.
    replied: bool,
}

#[derive(Clone)]
struct StreamEntry {
    stream: Arc<EspStream>,
    poller: Option<Arc<PollerEntry>>,
}

#[derive(Clone)]
struct ListenerEntry {
    listener: Arc<EspListener>,
    poller: Option<Arc<PollerEntry>>,
}

/// Open objects by handle. Handles of all kinds differ, and none is used twice.
struct Table {
    next: u64,
    streams: BTreeMap<u64, StreamEntry>,
    listeners: BTreeMap<u64, ListenerEntry>,
    pollers: BTreeMap<u64, Arc<PollerEntry>>,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    next: 1,
    streams: BTreeMap::new(),
    listeners: BTreeMap::new(),
    pollers: BTreeMap::new(),
});

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a new handle.
fn next(table: &mut Table) -> u64 {
    let handle = table.next;
    table.next += 1;
    handle
}

fn unknown(what: &str, handle: u64) -> Fault {
    Fault::new(
        Code::Stream,
        format!("no {what} {handle}: it is closed, or was never open"),
    )
}

fn stream(handle: u64) -> Result<StreamEntry, Fault> {
    let found = lock(&TABLE).streams.get(&handle).cloned();
    found.ok_or_else(|| unknown("stream", handle))
}

fn listener(handle: u64) -> Result<ListenerEntry, Fault> {
    let found = lock(&TABLE).listeners.get(&handle).cloned();
    found.ok_or_else(|| unknown("listener", handle))
}

fn poller(handle: u64) -> Result<Arc<PollerEntry>, Fault> {
    let found = lock(&TABLE).pollers.get(&handle).cloned();
    found.ok_or_else(|| unknown("poller", handle))
}

/// Returns the poller of a handle (0: none), and the client to use.
fn client(handle: u64) -> Result<(Client, Option<Arc<PollerEntry>>), Fault> {
    match handle {
        0 => Ok((Client::shared()?, None)),
        handle => {
            let entry = poller(handle)?;
            Ok((entry.client.clone(), Some(entry)))
        }
    }
}

/// Assigns a slot to a stream. The stream that had the slot has ended, and its last event may be
/// attributed to the new stream, so it is marked as ready.
fn assign(slots: &mut BTreeMap<u16, u64>, ready: &mut BTreeSet<u64>, slot: u16, handle: u64) {
    ready.extend(slots.insert(slot, handle));
}

/// Adds a stream to the table, and to its poller. Returns its handle.
fn add_stream(stream: EspStream, poller: Option<Arc<PollerEntry>>) -> u64 {
    let slot = stream.slot();
    let entry = StreamEntry {
        stream: Arc::new(stream),
        poller: poller.clone(),
    };
    let mut table = lock(&TABLE);
    let handle = next(&mut table);
    table.streams.insert(handle, entry);
    drop(table);
    if let Some(poller) = poller {
        let mut state = lock(&poller.state);
        let PollerState { slots, ready, .. } = &mut *state;
        assign(slots, ready, slot, handle);
    }
    handle
}

pub(crate) fn connect(address: &str, timeout: Timeout, poller: u64) -> Result<u64, Fault> {
    let mut builder = EspStream::builder();
    match timeout {
        Timeout::AtOnce => {
            let text = "connecting waits for the peer: give a timeout, or ESP_FOREVER";
            return Err(Fault::new(Code::Arg, text));
        }
        Timeout::After(limit) => builder = builder.timeout(limit),
        Timeout::Never => {}
    }
    let (client, poller) = client(poller)?;
    Ok(add_stream(builder.connect_at(&client, address)?, poller))
}

pub(crate) fn read(handle: u64, buffer: &mut [u8], timeout: Timeout) -> Result<usize, Fault> {
    let stream = stream(handle)?.stream;
    if timeout == Timeout::AtOnce {
        return Ok(stream.try_read(buffer)?);
    }
    stream.set_read_timeout(timeout.limit())?;
    Ok((&*stream).read(buffer)?)
}

/// Writes all bytes; without waiting, those for which there is room. `count`, initially 0, becomes
/// the number written.
pub(crate) fn write(
    handle: u64,
    bytes: &[u8],
    timeout: Timeout,
    count: &mut usize,
) -> Result<(), Fault> {
    let stream = stream(handle)?.stream;
    if timeout == Timeout::AtOnce {
        *count = stream.try_write(bytes)?;
        return Ok(());
    }
    stream.set_write_timeout(timeout.limit())?;
    while let Some(rest @ [_, ..]) = bytes.get(*count..) {
        *count += (&*stream).write(rest)?;
    }
    Ok(())
}

pub(crate) fn shutdown(handle: u64) -> Result<(), Fault> {
    Ok(stream(handle)?.stream.shutdown(Shutdown::Write)?)
}

pub(crate) fn finish(handle: u64, timeout: Timeout) -> Result<(), Fault> {
    let limit = match timeout {
        Timeout::AtOnce => Duration::ZERO,
        Timeout::After(limit) => limit,
        Timeout::Never => Duration::MAX,
    };
    let done = stream(handle)?.stream.finish(limit);
    done.map_err(|error| again(error.into(), timeout))
}

/// Converts the time-out of a call that must not wait to `Again`: no time limit has passed.
fn again(fault: Fault, timeout: Timeout) -> Fault {
    match (fault.code, timeout) {
        (Code::Timeout, Timeout::AtOnce) => Fault {
            code: Code::Again,
            ..fault
        },
        _ => fault,
    }
}

pub(crate) fn peer(handle: u64) -> Result<String, Fault> {
    Ok(stream(handle)?.stream.peer_addr().to_string())
}

pub(crate) fn close_stream(handle: u64) -> Result<(), Fault> {
    let entry = lock(&TABLE).streams.remove(&handle);
    let entry = entry.ok_or_else(|| unknown("stream", handle))?;
    if let Some(poller) = &entry.poller {
        let mut state = lock(&poller.state);
        state.ready.remove(&handle);
        // The slot may have another stream already if this one's connection to the daemon is lost.
        let slot = entry.stream.slot();
        if state.slots.get(&slot) == Some(&handle) {
            state.slots.remove(&slot);
        }
    }
    Ok(())
}

pub(crate) fn listen(port: u16, poller: u64) -> Result<u64, Fault> {
    let (client, poller) = client(poller)?;
    let listener = EspListener::builder().bind_at(&client, port)?;
    let entry = ListenerEntry {
        listener: Arc::new(listener),
        poller,
    };
    let mut table = lock(&TABLE);
    let handle = next(&mut table);
    table.listeners.insert(handle, entry);
    Ok(handle)
}

pub(crate) fn port(handle: u64) -> Result<u16, Fault> {
    Ok(listener(handle)?.listener.port())
}

pub(crate) fn accept(handle: u64, timeout: Timeout) -> Result<u64, Fault> {
    let entry = listener(handle)?;
    let accepted = match timeout {
        Timeout::AtOnce => entry.listener.accept_timeout(Duration::ZERO),
        Timeout::After(limit) => entry.listener.accept_timeout(limit),
        Timeout::Never => entry.listener.accept(),
    };
    let (stream, _) = accepted.map_err(|error| again(error.into(), timeout))?;
    Ok(add_stream(stream, entry.poller))
}

pub(crate) fn close_listener(handle: u64) -> Result<(), Fault> {
    // Dropped without the table's lock: closing asks the daemon.
    let entry = lock(&TABLE).listeners.remove(&handle);
    entry.map(drop).ok_or_else(|| unknown("listener", handle))
}

pub(crate) fn open_poller() -> Result<u64, Fault> {
    let (client, poller) = Client::polled(socket_path())?;
    let state = Mutex::new(PollerState {
        poller,
        slots: BTreeMap::new(),
        ready: BTreeSet::new(),
        replied: false,
    });
    let mut table = lock(&TABLE);
    let handle = next(&mut table);
    let entry = Arc::new(PollerEntry { client, state });
    table.pollers.insert(handle, entry);
    Ok(handle)
}

pub(crate) fn poller_fd(handle: u64) -> Result<RawFd, Fault> {
    let entry = poller(handle)?;
    let state = lock(&entry.state);
    Ok(state.poller.fd().as_raw_fd())
}

pub(crate) fn arm(handle: u64, interests: &[Interest]) -> Result<(), Fault> {
    let entry = stream(handle)?;
    if entry.poller.is_none() {
        let text = "the stream has no poller, which would report its events";
        return Err(Fault::new(Code::Arg, text));
    }
    for interest in interests {
        entry.stream.arm(*interest);
    }
    Ok(())
}

/// Takes streams with an event into `ready`, and returns their number.
pub(crate) fn take(handle: u64, ready: &mut [u64]) -> Result<usize, Fault> {
    let entry = poller(handle)?;
    let mut state = lock(&entry.state);
    let PollerState {
        poller,
        slots,
        ready: waiting,
        replied,
    } = &mut *state;
    let has_reply = poller.poll(|slot| waiting.extend(slots.get(&slot)));
    *replied |= has_reply;
    // The engine that reports events has ended with the daemon. Reported once, because streams over
    // leases continue.
    if has_reply && entry.client.check_waiting().is_err() {
        waiting.extend(slots.values());
    }
    let mut count = 0;
    for place in ready {
        let Some(stream) = waiting.pop_first() else {
            break;
        };
        *place = stream;
        count += 1;
    }
    Ok(count)
}

/// Returns true if the program may wait for the descriptor.
pub(crate) fn sleep(handle: u64) -> Result<bool, Fault> {
    let entry = poller(handle)?;
    let mut state = lock(&entry.state);
    // It is not known here whether the program has tried to accept since that reply.
    let replied = std::mem::take(&mut state.replied);
    Ok(!replied && state.ready.is_empty() && state.poller.try_sleep())
}

pub(crate) fn close_poller(handle: u64) -> Result<(), Fault> {
    let entry = lock(&TABLE).pollers.remove(&handle);
    entry.map(drop).ok_or_else(|| unknown("poller", handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next daemon gives the slots of streams that it refused to new ones.
    #[test]
    fn the_end_of_a_stream_is_reported_though_its_slot_has_another() {
        let (mut slots, mut ready) = (BTreeMap::new(), BTreeSet::new());
        assign(&mut slots, &mut ready, 3, 10);
        assert!(ready.is_empty());
        assign(&mut slots, &mut ready, 3, 11);
        assert_eq!(ready, BTreeSet::from([10]));
        assert_eq!(slots.get(&3), Some(&11));
    }
}
