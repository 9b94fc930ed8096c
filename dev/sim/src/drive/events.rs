//! Progress and events that an endpoint reports: each is checked, and noted for the programs.

use crate::host::Conn;
use crate::pattern;
use crate::plan::Side;
use crate::trace;
use crate::world::{Todo, World};
use esp_proto::{CloseReason, ConnId, Event, MacAddr, Port, Progress, ResetReason};

impl World {
    pub(super) fn drain_progress(&mut self, number: usize) -> bool {
        let mut any = false;
        while let Some(progress) = self.nodes[number].endpoint.poll_progress() {
            any = true;
            self.on_progress(number, progress);
        }
        any
    }

    fn on_progress(&mut self, number: usize, progress: Progress) {
        let now = self.now;
        let Progress {
            conn: id,
            acked,
            delivered,
            epoch: _,
        } = progress;
        let Some(conn) = self.nodes[number].conn(id) else {
            if (acked, delivered) == (0, 0) {
                return; // opened and closed within one batch; Incoming and Closed follow
            }
            self.fail(&format!(
                "node {number}: progress of {id:?}, which the host does not have"
            ));
        };
        let sound =
            acked >= conn.tx.acked && acked <= conn.tx.written && delivered == conn.rx.delivered;
        let (tx, role) = (conn.tx.clone(), conn.role);
        if acked > conn.tx.acked {
            conn.tx.acked = acked;
            conn.moved = now;
        }
        let report = (conn.rx.consumed > conn.rx.reported).then(|| conn.report());
        let stream = tx.stream;
        self.nodes[number].dirty.push_back(id);
        if let Some(report) = report {
            self.call(number, id, stream, report);
        }
        if !sound {
            self.fail(&format!("{progress:?} does not fit {tx:?}"));
        }
        let arrived = self
            .streams
            .get(tx.stream)
            .map_or(0, |stream| stream.delivered);
        if self.check_content && acked >= pattern::NAME_LEN && acked > arrived {
            self.fail(&format!("{acked} bytes acknowledged, {arrived} delivered"));
        }
        if let Some((flow, side)) = role {
            self.flows[flow].side_mut(side).acked = acked;
        }
    }

    pub(super) fn drain_events(&mut self, number: usize) -> bool {
        let mut any = false;
        while let Some(event) = self.nodes[number].endpoint.poll_event() {
            any = true;
            self.trace(|world| trace::note(world.now, number, &format!("{event:?}")));
            self.nodes[number].events.push((self.now, event.clone()));
            match event {
                Event::Connected(id) => self.on_connected(number, id),
                Event::Incoming {
                    conn,
                    port,
                    peer,
                    peer_port,
                } => {
                    self.on_incoming(
                        number,
                        conn,
                        port,
                        (self.carrier.mac(peer).unwrap_or_default(), peer_port),
                    );
                }
                Event::PeerFinished(id) => self.on_peer_finished(number, id),
                Event::Closed { conn, reason } => self.on_closed(number, conn, reason),
            }
        }
        any
    }

    fn on_connected(&mut self, number: usize, id: ConnId) {
        let now = self.now;
        let Some(conn) = self.nodes[number].conn(id) else {
            self.fail(&format!("Connected {id:?} is unknown"))
        };
        if conn.open_since.replace(now).is_some() {
            self.fail(&format!("Connected {id:?} twice"));
        }
        conn.moved = now;
        let role = conn.role;
        self.note_opening(role);
        self.nodes[number].dirty.push_back(id);
    }

    fn note_opening(&mut self, role: Option<(usize, Side)>) {
        let now = self.now;
        if let Some((flow, side)) = role {
            let status = self.flows[flow].side_mut(side);
            status.opened = true;
            status.opened_at = Some(now);
        }
    }

    fn on_incoming(&mut self, number: usize, id: ConnId, port: Port, peer: (MacAddr, Port)) {
        if self.nodes[number].conns.contains_key(&id.slot) {
            self.fail(&format!("slot {} given out again before Closed", id.slot));
        }
        let own = (self.nodes[number].mac, port);
        let flow = self.flows.iter().rposition(|flow| {
            let plan = &flow.plan;
            flow.started
                && (plan.to, plan.to_port, plan.from_port) == (number, port, peer.1)
                && crate::net::mac_of(plan.from) == peer.0
        });
        let plan = flow
            .map(|flow| self.flows[flow].plan.passive.clone())
            .unwrap_or_default();
        let attach_at = self.now + plan.attach_after;
        let mut conn = Conn::new(id, own, peer, plan, &mut self.streams, self.now);
        conn.open_since = Some(self.now);
        conn.role = flow.map(|flow| (flow, Side::Passive));
        if let Some(flow) = flow {
            let status = &self.flows[flow].passive;
            if status.conn.is_some() && !self.flows[flow].plan.may_fail {
                self.fail(&format!("W-26: flow {flow} was accepted twice"));
            }
            self.flows[flow].passive.conn = Some(id);
            self.flows[flow].passive.closed = None;
        }
        self.note_opening(conn.role);
        self.nodes[number].conns.insert(id.slot, conn);
        self.queue.push(attach_at, Todo::Attach(number, id));
    }

    pub(super) fn attach(&mut self, number: usize, id: ConnId) {
        let now = self.now;
        // After a restart an id may recur; its second `attach` is not called.
        let Some(conn) = self.nodes[number]
            .conn(id)
            .filter(|conn| conn.rx.capacity == 0)
        else {
            return;
        };
        let buffers = conn.plan.buffers();
        conn.rx.capacity = buffers.rx;
        conn.moved = now;
        if !self.nodes[number].endpoint.attach(now, id, buffers) {
            let reason = self.nodes[number].endpoint.info(id).map(|info| info.state);
            if reason.is_some() {
                self.fail(&format!("attach of {id:?} failed in {reason:?}"));
            }
        }
        self.nodes[number].dirty.push_back(id);
        self.drain(number);
    }

    fn on_peer_finished(&mut self, number: usize, id: ConnId) {
        let node = &mut self.nodes[number];
        let Some(conn) = node.conns.get_mut(&id.slot).filter(|conn| conn.id == id) else {
            self.fail(&format!("PeerFinished {id:?} is unknown"));
        };
        conn.moved = self.now;
        if let Err(problem) = conn.peer_finished(&self.streams)
            && self.check_content
        {
            self.fail(&problem);
        }
        node.dirty.push_back(id);
    }

    fn on_closed(&mut self, number: usize, id: ConnId, reason: CloseReason) {
        let Some(conn) = self.nodes[number]
            .conns
            .remove(&id.slot)
            .filter(|conn| conn.id == id)
        else {
            self.fail(&format!("Closed {id:?} is unknown"));
        };
        let all_acked = conn.tx.shut && conn.tx.acked == conn.tx.written;
        if self.check_content && reason == CloseReason::Finished && !(all_acked && conn.rx.finished)
        {
            self.fail(&format!("Finished, but {conn:?}"));
        }
        let Some((flow, side)) = conn.role else {
            return;
        };
        let may_fail = self.flows[flow].plan.may_fail;
        // Not a protocol violation: each last acknowledgement was lost until the peer's TIME-WAIT
        // ended. That all bytes arrived is checked at the end.
        let late =
            reason == CloseReason::Reset(ResetReason::Unknown) && conn.tx.shut && conn.rx.finished;
        if reason != CloseReason::Finished && !may_fail && !late {
            self.fail(&format!(
                "flow {flow}, {side:?}: {reason:?} without a cause"
            ));
        }
        let now = self.now;
        let status = self.flows[flow].side_mut(side);
        if status.conn == Some(id) {
            status.closed = Some(reason);
            status.closed_at = Some(now);
        }
    }
}
