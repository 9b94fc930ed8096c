//! Services that end while their programs live: the next one resumes the connections.

use crate::host::Conn;
use crate::plan::Side;
use crate::world::{Action, Todo, World};
use esp_proto::{CloseReason, ConnImage, Duration, Instant, Positions, ResetReason};

/// Time within which the programs of a node have found its next service (W-136).
const GRACE: Duration = Duration::from_secs(2);

/// A connection without a service: its image, and its program's end.
pub(crate) type Lost = (ConnImage, Conn);

impl World {
    /// Ends the service of a node, of all its interfaces; the next one adopts its connections after
    /// `down`. Rules that span frames are no longer checked for a connection that is resumed,
    /// because sequences begin again; contents are.
    pub(crate) fn lose(&mut self, number: usize, down: Duration) {
        let grace = self.now + down + GRACE;
        self.obstacle_until = self.obstacle_until.max(grace + Duration::from_secs(1));
        let members = self.members(number);
        for member in &members {
            self.excuse_opening(*member);
        }
        for member in &members {
            self.lose_endpoint(*member, grace);
        }
        self.script_in(down, Action::Adopt(number));
        for member in members {
            self.drain(member);
        }
    }

    fn lose_endpoint(&mut self, number: usize, grace: Instant) {
        let node = &mut self.nodes[number];
        let mut unattached = Vec::new();
        for (_, conn) in std::mem::take(&mut node.conns) {
            match node.endpoint.image(conn.id) {
                Some(image) if conn.rx.capacity > 0 => {
                    if let Some((flow, side)) = conn.role {
                        // Its id may belong to another connection by then.
                        self.flows[flow].side_mut(side).conn = None;
                    }
                    node.lost.push((image, conn));
                }
                _ => unattached.push(conn),
            }
        }
        self.renew(number);
        self.nodes[number].endpoint.expect_resumptions(grace);
        for conn in unattached {
            self.end_program(&conn);
        }
    }

    /// Allows flows to fail that the node's service has not completely established: a program whose
    /// connection is not established when the service ends gets an error.
    fn excuse_opening(&mut self, number: usize) {
        for at in 0..self.flows.len() {
            let flow = &self.flows[at];
            let ours = [Side::Active, Side::Passive].map(|side| flow.node(side) == number);
            if !flow.started || flow.is_over() || !ours.contains(&true) {
                continue;
            }
            let resumable = |side: Side| {
                let status = flow.side(side);
                let node = &self.nodes[flow.node(side)];
                let conn = status.conn.and_then(|id| node.conns.get(&id.slot));
                let lost = |(_, conn): &Lost| conn.role == Some((at, side));
                let opened = conn.is_some_and(|conn| {
                    conn.role == Some((at, side))
                        && conn.rx.capacity > 0
                        && node.endpoint.image(conn.id).is_some()
                });
                status.closed.is_some() || opened || node.lost.iter().any(lost)
            };
            if !resumable(Side::Active) || !resumable(Side::Passive) {
                self.flows[at].plan.may_fail = true;
            }
        }
    }

    /// Records that a program has lost its connection with its service.
    pub(crate) fn end_program(&mut self, conn: &Conn) {
        let Some((flow, side)) = conn.role else {
            return;
        };
        let status = self.flows[flow].side_mut(side);
        if status.conn == Some(conn.id) {
            status.closed = Some(CloseReason::Aborted(ResetReason::ProgramDied));
            status.closed_at = Some(self.now);
        }
    }

    /// Resumes the connections of a node's programs.
    pub(crate) fn adopt(&mut self, number: usize) {
        for member in self.members(number) {
            self.adopt_endpoint(member);
        }
    }

    fn adopt_endpoint(&mut self, number: usize) {
        let now = self.now;
        for (image, mut conn) in std::mem::take(&mut self.nodes[number].lost) {
            let node = &mut self.nodes[number];
            let at = Positions {
                acked: conn.tx.acked,
                written: conn.tx.written,
                finished: conn.tx.shut,
                delivered: conn.rx.delivered,
                consumed: conn.rx.consumed,
                peer_finished: conn.rx.finished,
            };
            let id = match node.endpoint.resume(now, &image, &at, conn.plan.buffers()) {
                Ok(id) => id,
                Err(error) => self.fail(&format!("{image:?} {at:?}: {error}")),
            };
            conn.id = id;
            conn.moved = now;
            if let Some(at) = conn.wake_at {
                self.queue.push(at.max(now), Todo::Act(number, id));
                conn.wake_at = Some(at.max(now));
            }
            if let Some((flow, side)) = conn.role {
                self.flows[flow].side_mut(side).conn = Some(id);
            }
            let node = &mut self.nodes[number];
            node.dirty.push_back(id);
            if node.conns.insert(id.slot, conn).is_some() {
                self.fail(&format!("slot {} given out again before Closed", id.slot));
            }
        }
        self.drain(number);
    }

    /// Returns the number of resumptions completed by a node's endpoint since it was made.
    pub fn resumptions(&self, node: usize) -> u64 {
        self.nodes[node].endpoint.counters().connections_resumed
    }
}
