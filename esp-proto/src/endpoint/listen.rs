//! Listeners with their half-open connections and those that wait for `attach` (W-23, W-24).

use super::Endpoint;
use crate::addr::Port;
use crate::api::{
    Buffers, CloseReason, ConnId, Event, ListenError, ListenOptions, ResetReason, State,
};
use crate::connection::Connection;
use crate::time::{Duration, Instant};
use crate::wire::MAX_KEY;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Time during which newer half-open connections cannot evict one: on a loaded node the peer
/// answers only after the time slices of about ten other processes, and our SYN+ACK already
/// reported it connected. Otherwise a job whose processes all connect at once would evict its own
/// connections.
const HALF_OPEN_GRACE: Duration = Duration::from_millis(50);

/// A listening port.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) key: Vec<u8>,
    pub(super) info: ListenerInfo,
    pub(super) owner: u32,
    /// Half-open connections, oldest first. Entries of connections that have advanced are skipped.
    queue: VecDeque<ConnId>,
}

/// Queue lengths of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerInfo {
    /// Limit of each of the two queues.
    pub backlog: u32,
    /// Connections whose peer has not completed the set-up.
    pub half_open: u32,
    /// Established connections that wait for `attach`.
    pub waiting: u32,
}

impl ListenerInfo {
    pub(super) fn accept_full(&self) -> bool {
        self.waiting >= self.backlog
    }
}

impl Endpoint {
    /// Opens a port for incoming connections. `backlog` 0 counts as 1.
    ///
    /// Each new connection is reported by [`Event::Incoming`] and receives nothing before
    /// [`attach`](Self::attach).
    pub fn listen(&mut self, port: Port, options: ListenOptions) -> Result<(), ListenError> {
        if port == 0 {
            return Err(ListenError::BadPort); // W-15
        }
        if options.key.len() > MAX_KEY {
            return Err(ListenError::BadKey);
        }
        if self.listeners.contains_key(&port) {
            return Err(ListenError::InUse);
        }
        let listener = Listener {
            key: options.key,
            info: ListenerInfo {
                backlog: options.backlog.max(1).into(),
                half_open: 0,
                waiting: 0,
            },
            owner: options.owner,
            queue: VecDeque::new(),
        };
        self.listeners.insert(port, listener);
        Ok(())
    }

    /// Closes a listener. Its half-open connections and those not yet attached are reset (REFUSED);
    /// attached ones continue.
    pub fn unlisten(&mut self, now: Instant, port: Port) {
        self.clock(now);
        if self.listeners.remove(&port).is_none() {
            return;
        }
        let slots: Vec<u32> = self.table.of_port(port).collect();
        for slot in slots {
            let waits = |conn: &Connection| conn.passive && !conn.attached && !conn.over;
            if self.table.at(slot).is_some_and(waits) {
                self.with(slot, |conn, _| conn.abort(ResetReason::Refused));
            }
        }
    }

    /// Sets the buffers of a listener's connection; the peer may send from now on. Returns
    /// false when the connection has ended or is already attached.
    ///
    /// `buffers.rx` must hold at least four of the agreed payloads ([`min_listener_capacity`]
    /// always suffices). With less, the connection is reset (RESOURCES), its `Closed` follows, and
    /// the result is false.
    ///
    /// [`min_listener_capacity`]: crate::min_listener_capacity
    pub fn attach(&mut self, now: Instant, conn: ConnId, buffers: Buffers) -> bool {
        self.clock(now);
        let waits = |c: &&mut Connection| c.passive && c.visible && !c.attached && !c.over;
        let Some(found) = self.table.get_mut(conn).filter(waits) else {
            return false;
        };
        if buffers.rx < 4 * u32::from(found.agreed()) {
            self.abort(now, conn, ResetReason::Resources);
            return false;
        }
        let (port, owner) = (found.key.local_port, found.owner);
        self.with(conn.slot, |c, _| c.attach(buffers));
        self.unattached.remove(owner);
        if let Some(listener) = self.listeners.get_mut(&port) {
            listener.info.waiting = listener.info.waiting.saturating_sub(1);
        }
        true
    }

    /// Adds a half-open connection to its listener.
    pub(super) fn join_listener(&mut self, port: Port, id: ConnId) {
        let Some(listener) = self.listeners.get_mut(&port) else {
            return;
        };
        listener.info.half_open += 1;
        listener.queue.push_back(id);
        // Stale entries accumulate behind one that stays half open.
        if listener.queue.len() > 2 * listener.info.backlog as usize + 16 {
            let half_open = |conn: &Connection| conn.state == State::SynReceived;
            let table = &self.table;
            (listener.queue).retain(|id| table.get(*id).is_some_and(half_open));
        }
    }

    /// Evicts the oldest half-open connection of a listener, unless it is so young that its peer
    /// may still answer (W-24). Returns false when none was evicted.
    pub(super) fn evict_half_open(&mut self, port: Port) -> bool {
        let Some(listener) = self.listeners.get_mut(&port) else {
            return false;
        };
        while let Some(id) = listener.queue.front().copied() {
            match self
                .table
                .get(id)
                .filter(|conn| conn.state == State::SynReceived)
            {
                None => listener.queue.pop_front(),
                // The peer has answered and believes that it is connected, so the entry stays until
                // there is room.
                Some(conn) if conn.proven => listener.queue.pop_front(),
                Some(conn) if self.cx.now.since(conn.born) < HALF_OPEN_GRACE => return false,
                Some(_) => {
                    listener.queue.pop_front();
                    self.cx.counters.half_open_evicted += 1;
                    self.finish(id.slot, CloseReason::ConnectTimedOut, None);
                    return true;
                }
            };
        }
        false
    }

    /// Queues the `Incoming` event of a connection that became established.
    pub(super) fn announce(&mut self, slot: u32) {
        let Some(conn) = self.table.at_mut(slot) else {
            return;
        };
        if !conn.passive {
            return self.events.push_back(Event::Connected(conn.id));
        }
        conn.visible = true;
        let (id, key) = (conn.id, conn.key);
        if let Some(listener) = self.listeners.get_mut(&key.local_port) {
            listener.info.half_open = listener.info.half_open.saturating_sub(1);
            listener.info.waiting += 1;
        }
        self.events.push_back(Event::Incoming {
            conn: id,
            port: key.local_port,
            peer: key.peer,
            peer_port: key.peer_port,
        });
    }

    /// Removes a connection that has ended from its listener's queues.
    pub(super) fn leave_listener(&mut self, conn: &Connection) {
        if !conn.attached {
            self.unattached.remove(conn.owner);
        }
        let Some(listener) = self.listeners.get_mut(&conn.key.local_port) else {
            return;
        };
        if !conn.visible {
            listener.info.half_open = listener.info.half_open.saturating_sub(1);
        } else if !conn.attached {
            listener.info.waiting = listener.info.waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::MacAddr;
    use crate::api::EndpointConfig;

    #[test]
    fn the_queue_of_half_open_connections_is_bounded() {
        let (own, config) = (MacAddr([2, 0, 0, 0, 0, 1]), EndpointConfig::default());
        let mut endpoint = Endpoint::new(config, own, 1500, [1; 32], 1);
        let options = ListenOptions {
            backlog: 5,
            ..ListenOptions::default()
        };
        endpoint.listen(7, options).unwrap();
        // None of them is half open any more.
        let lengths = (0..1000).map(|slot| {
            endpoint.join_listener(
                7,
                ConnId {
                    slot,
                    generation: 1,
                },
            );
            endpoint.listeners.get(&7).map_or(0, |it| it.queue.len())
        });
        assert_eq!(lengths.max(), Some(2 * 5 + 16));
    }
}
