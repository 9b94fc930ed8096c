//! Invariants during the run, and the output when one is violated.

use crate::plan::Side;
use crate::world::{Flow, Todo, World};
use esp_proto::{CloseReason, ConnId, ConnInfo, Duration, ResetReason, State};
use std::fmt::Write as _;

/// Interval of checking connections.
const WATCH_EVERY: Duration = Duration::from_millis(100);

impl World {
    /// Panics with the state of the world.
    pub fn fail(&self, what: &str) -> ! {
        panic!("{what}\n{}", self.dump());
    }

    /// Returns the state of the world for display.
    pub fn dump(&self) -> String {
        let mut out = format!("at {:.6} ms\n", self.now.as_nanos() as f64 / 1e6);
        for (number, flow) in self
            .flows
            .iter()
            .enumerate()
            .filter(|(_, flow)| flow.started)
        {
            let _ = writeln!(
                out,
                "flow {number}: active {:?}\n        passive {:?}",
                flow.active, flow.passive
            );
        }
        for (number, node) in self.nodes.iter().enumerate() {
            let _ = writeln!(
                out,
                "node {number}: next timer {:?}, frames waiting {}, waits for room {}",
                node.timer_at.map(|at| at.as_nanos()),
                node.ring.len(),
                node.waits_for_room
            );
            for (id, info) in node.endpoint.connections().take(20) {
                let _ = writeln!(out, "  {id:?} {info:?}");
                if let Some(conn) = node.conns.get(&id.slot).filter(|conn| conn.id == id) {
                    let _ = writeln!(out, "    program: {:?} {:?}", conn.tx, conn.rx);
                }
            }
        }
        out
    }

    pub(crate) fn watch(&mut self) {
        self.queue.push(self.now + WATCH_EVERY, Todo::Watch);
        for flow in &self.flows {
            for side in [Side::Active, Side::Passive] {
                if let Some(problem) = self.stuck(flow, side) {
                    self.fail(&problem);
                }
            }
        }
        self.checker.at(self.now);
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some(problem) = self.overdue(number) {
                self.fail(&format!("node {number}: {problem}"));
            }
            let (count, limit) = (
                node.endpoint.connections().count(),
                node.config.endpoint.max_connections,
            );
            if count > limit {
                self.fail(&format!("{count} connections, {limit} allowed"));
            }
            for (port, info) in node.endpoint.listeners() {
                if info.half_open > 2 * info.backlog || info.waiting > info.backlog {
                    self.fail(&format!("W-24: listener {port}: {info:?}"));
                }
            }
        }
    }

    /// Describes an open connection of a node that has missed a deadline of the wire format.
    fn overdue(&self, number: usize) -> Option<String> {
        let node = &self.nodes[number];
        if node.waits_for_room {
            return None;
        }
        let open = |(_, info): &(ConnId, ConnInfo)| {
            info.state.is_synchronized() && info.state != State::TimeWait
        };
        node.endpoint
            .connections()
            .filter(open)
            .find_map(|(_, info)| {
                let peer = (self.carrier.mac(info.peer)?, info.peer_port);
                let problem = self
                    .checker
                    .overdue(number, (node.mac, info.local_port), peer)?;
                Some(format!("{problem}: {info:?}"))
            })
    }

    /// Describes a connection that has work, makes no progress, and is not blocked.
    fn stuck(&self, flow: &Flow, side: Side) -> Option<String> {
        let node = &self.nodes[flow.node(side)];
        let id = flow
            .side(side)
            .conn
            .filter(|_| flow.side(side).closed.is_none())?;
        let conn = node
            .conns
            .get(&id.slot)
            .filter(|conn| conn.id == id && conn.pending())?;
        let other = &self.nodes[flow.node(side.other())];
        let peer = flow
            .side(side.other())
            .conn
            .and_then(|id| other.conns.get(&id.slot).filter(|c| c.id == id));
        if conn.rx.finished && conn.tx.shut && conn.tx.acked == conn.tx.written {
            return None; // LAST-ACK: bounded by the peer time-out alone
        }
        // The FIN is sent and everything is acknowledged: only the peer's program decides when the
        // connection ends.
        let waits_for_peer_program =
            conn.tx.shut && conn.tx.acked == conn.tx.written && peer.is_some();
        if waits_for_peer_program || peer.is_some_and(|peer| peer.holds_up(self.now)) {
            return None;
        }
        let since = peer
            .and_then(|peer| peer.paused_until)
            .unwrap_or(conn.moved);
        let since = since.max(conn.moved).max(self.obstacle_until);
        let idle = self.now.since(since);
        (idle > self.patience)
            .then(|| format!("{id:?} of {side:?} side is stuck for {idle:?}: {flow:?}"))
    }

    pub(crate) fn check_outcomes(&self) {
        for (number, flow) in self
            .flows
            .iter()
            .enumerate()
            .filter(|(_, flow)| !flow.plan.may_fail)
        {
            for side in [Side::Active, Side::Passive] {
                let status = flow.side(side);
                if !matches!(
                    status.closed,
                    Some(CloseReason::Finished | CloseReason::Reset(ResetReason::Unknown))
                ) {
                    self.fail(&format!(
                        "flow {number} ended with an error: {side:?} {status:?}"
                    ));
                }
                let expected = flow.side_plan(side.other()).write.total();
                if status.delivered != expected {
                    self.fail(&format!(
                        "flow {number}: {side:?} got {} of {expected} bytes",
                        status.delivered
                    ));
                }
            }
        }
    }
}
