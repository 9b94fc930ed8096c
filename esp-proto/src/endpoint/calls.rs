//! Calls of the application: connect, write, consume, close.

use super::Endpoint;
use crate::addr::{NodeAddr, Port};
use crate::api::{CloseReason, ConnId, ConnOptions, ConnectError, ResetReason, State};
use crate::connection::{Connection, Cx, Key};
use crate::time::Instant;
use crate::wire::{MAX_KEY, MIN_MAX_PAYLOAD, max_payload};
use alloc::boxed::Box;

impl Endpoint {
    /// Starts opening a connection; [`Event::Connected`](crate::Event::Connected) or `Closed`
    /// follows.
    ///
    /// `peer` may be the endpoint's own address: the host then hands every frame for it back with
    /// `looped` set, and the two sides are two connections of this endpoint.
    pub fn connect(
        &mut self,
        now: Instant,
        local_port: Port,
        peer: NodeAddr,
        peer_port: Port,
        options: ConnOptions,
    ) -> Result<ConnId, ConnectError> {
        self.clock(now);
        let key = Key {
            local_port,
            peer,
            peer_port,
        };
        if local_port == 0
            || peer_port == 0
            || peer.is_group()
            || !peer.is_kind_of(&self.cx.own)
            || (peer == self.cx.own && local_port == peer_port)
        {
            return Err(ConnectError::BadAddress);
        }
        if options.key.len() > MAX_KEY {
            return Err(ConnectError::BadKey);
        }
        if options.buffers.rx < u32::from(MIN_MAX_PAYLOAD) {
            return Err(ConnectError::BadCapacity);
        }
        if let Some(slot) = self.table.find(&key) {
            if self
                .table
                .at(slot)
                .is_some_and(|conn| conn.state != State::TimeWait)
            {
                return Err(ConnectError::InUse);
            }
            self.reclaim(slot);
        }
        let id = self.table.next_id().ok_or(ConnectError::TooMany)?;
        let secrets = self.secrets();
        let conn = Connection::active(&self.cx, id, key, secrets, options.buffers, options.key);
        self.table.insert(Box::new(conn));
        self.moved_keys.remove(&key);
        self.settle(id.slot);
        Ok(id)
    }

    /// Ends TIME-WAIT early (W-55).
    pub(super) fn reclaim(&mut self, slot: u32) {
        self.cx.counters.time_wait_reclaimed += 1;
        self.finish(slot, CloseReason::Finished, None);
    }

    /// Runs `act` on a connection that the host may still use.
    fn with_open(&mut self, now: Instant, conn: ConnId, act: impl FnOnce(&mut Connection)) {
        self.clock(now);
        if self.table.get(conn).is_some_and(|c| c.visible && !c.over) {
            self.with(conn.slot, |c, _| act(c));
        }
    }

    /// Sets the owner of a connection. Owners are served in turn, so that the connections of one do
    /// not wait for all those of another. Numbers should be dense; 0 stands for connections without
    /// an owner.
    pub fn set_owner(&mut self, conn: ConnId, owner: u32) {
        let Some(conn) = self.table.get_mut(conn) else {
            return;
        };
        if !conn.attached {
            self.unattached.remove(conn.owner);
            self.unattached.add(owner);
        }
        conn.owner = owner;
    }

    /// Records that the program's stream has `total` bytes so far. A total that is not larger than
    /// before, or that comes after `shutdown`, has no effect. The bytes must stay in place until
    /// [`Progress::acked`](crate::Progress::acked) passes them.
    pub fn written(&mut self, now: Instant, conn: ConnId, total: u64) {
        self.with_open(now, conn, |c| c.written(total));
    }

    /// Records that the program has consumed `total` of the delivered bytes; their room becomes
    /// credit for the peer. A total above what was delivered, or below the previous one, has no
    /// effect.
    pub fn consumed(&mut self, now: Instant, conn: ConnId, total: u64) {
        self.with_open(now, conn, |c| c.consumed(total));
    }

    /// Ends the program's writing: a FIN follows all bytes that were `written`. The other direction
    /// stays open (W-54).
    pub fn shutdown(&mut self, now: Instant, conn: ConnId) {
        self.with_open(now, conn, Connection::shutdown);
    }

    /// Ends a connection immediately. The peer receives RST with `reason`; `Closed` with
    /// `Aborted(reason)` follows.
    pub fn abort(&mut self, now: Instant, conn: ConnId, reason: ResetReason) {
        self.with_open(now, conn, |c| c.abort(reason));
    }

    /// Ends all connections: every peer receives RST SHUTDOWN, every connection reports `Closed`,
    /// and every listener is removed.
    pub fn shutdown_all(&mut self, now: Instant) {
        self.clock(now);
        self.listeners.clear();
        self.end_where(ResetReason::Shutdown, |_| true);
    }

    /// Changes the interface's MTU. Connections that agreed on a larger payload than now fits are
    /// reset (RESOURCES): their packets are cut and cannot be cut again (W-30). A larger MTU
    /// applies to new connections only.
    pub fn set_mtu(&mut self, now: Instant, mtu: u32) {
        self.clock(now);
        let limit = max_payload(mtu);
        (self.cx.mtu, self.cx.max_payload) = (mtu, limit);
        self.end_where(ResetReason::Resources, |conn| conn.agreed() > limit);
    }

    /// Reports that the node of `peer` has no program at this UDP port, by ICMP, which anyone can
    /// forge: connections with it that await an answer time out unless it arrives within ten
    /// seconds (W-126).
    pub fn port_closed(&mut self, now: Instant, peer: NodeAddr) {
        self.clock(now);
        for slot in 0..self.table.slots() {
            let is_it = |conn: &Connection| !conn.over && conn.key.peer == peer;
            if self.table.at(slot).is_some_and(is_it) {
                self.with(slot, |conn, cx| conn.on_closed_port(cx));
            }
        }
    }

    /// Resets the connections for which `which` is true.
    pub(super) fn end_where(&mut self, reason: ResetReason, which: impl Fn(&Connection) -> bool) {
        self.with_all(|conn, _| {
            if which(conn) {
                conn.abort(reason);
            }
        });
    }

    /// Runs `act` on all connections that the host may still use or that are opening.
    pub(super) fn with_all(&mut self, mut act: impl FnMut(&mut Connection, &mut Cx)) {
        for slot in 0..self.table.slots() {
            if self.table.at(slot).is_some_and(|conn| !conn.over) {
                self.with(slot, &mut act);
            }
        }
    }
}
