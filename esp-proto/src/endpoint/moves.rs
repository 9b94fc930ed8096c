//! Connections that move between the endpoints of a node (section 10). Driven by [`crate::rails`].

use super::Endpoint;
use super::transmit::{Control, ControlBody};
use crate::addr::{MacAddr, NodeAddr};
use crate::api::{ConnId, Event, ResetReason, State};
use crate::connection::{Connection, Cx, Key, MoveAction, Question};
use crate::counters::DropCounter;
use crate::seq::Seq;
use crate::time::Instant;
use crate::wire::{EspFrame, MAX_RAILS, Move, Step};
use alloc::boxed::Box;

/// Maximum number of move requests waiting for the host; exceeds a batch of frames.
const MOVES_WAITING: usize = 1024;

/// A received MOVE, for whichever endpoint has the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveFrame {
    /// Ports and source of the MOVE.
    pub(crate) key: Key,
    pub(crate) seq: Seq,
    pub(crate) block: Move,
}

/// Request that concerns the node's other endpoints.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MoveRequest {
    /// A connection asks for other paths.
    Ask(ConnId),
    /// A MOVE was received.
    Frame(MoveFrame),
}

impl Endpoint {
    /// Sets the addresses of the node's other interfaces, at most 8. New connections with other
    /// nodes then offer to move there (W-100); earlier ones do not. With an empty list, none does.
    /// The host must call [`serve`](crate::rails::serve).
    pub fn set_rails(&mut self, others: &[MacAddr]) {
        let fit = |mac: &&MacAddr| {
            !mac.is_group() && NodeAddr::Mac(**mac) != self.cx.own && mac.0 != [0; 6]
        };
        self.cx.rails = others.iter().filter(fit).take(MAX_RAILS).copied().collect();
    }

    /// Abandons the interface because it carries no frames: connections that may move search for
    /// another path at once (W-103). With `for_good`, the interface will not return with its
    /// address: connections that cannot move are reset (SHUTDOWN), and the others have the peer
    /// timeout to move.
    pub fn abandon(&mut self, now: Instant, for_good: bool) {
        self.clock(now);
        self.with_all(|conn, cx| match (for_good, conn.abandon_path(cx)) {
            (true, true) => conn.start_peer_timeout(cx),
            (true, false) => conn.abort(ResetReason::Shutdown),
            (false, _) => {}
        });
    }

    /// Changes the endpoint's own address, after [`abandon`](Self::abandon) with `for_good`. The
    /// remaining connections send from the new address. Frames that were polled before have the old
    /// one.
    pub fn set_addr(&mut self, addr: impl Into<NodeAddr>) {
        self.cx.own = addr.into();
    }

    /// Returns true when [`serve`](crate::rails::serve) has work for this endpoint.
    pub fn has_moves(&self) -> bool {
        !self.moves.is_empty()
    }

    /// Processes a received MOVE.
    pub(super) fn on_move(&mut self, key: Key, frame: &EspFrame<'_>) {
        let block = match Move::parse(frame.payload) {
            Ok(block) => block,
            Err(error) => return self.cx.counters.wire(error),
        };
        let seq = frame.seq;
        // Connections from before the node lost its other interfaces still follow their peers.
        let moves = |conn: &Connection| conn.has_rails();
        if self.cx.rails.is_empty() && !self.table.find_nonce(block.nonce).is_some_and(moves) {
            return self.serve_move(&MoveFrame { key, seq, block });
        }
        if self.moves.len() >= MOVES_WAITING {
            self.cx.counters.rx_drop_move_unknown += 1;
            return;
        }
        self.moves
            .push_back(MoveRequest::Frame(MoveFrame { key, seq, block }));
    }

    pub(crate) fn poll_move(&mut self) -> Option<MoveRequest> {
        self.moves.pop_front()
    }

    pub(crate) fn set_clock(&mut self, now: Instant) {
        self.clock(now);
    }

    pub(crate) fn question(&self, conn: ConnId) -> Option<(Key, Question)> {
        let conn = self.table.get(conn)?;
        Some((conn.key, conn.question()?))
    }

    /// Returns the connection to which a MOVE refers, and judges the MOVE. `here` is true if it
    /// came in through this endpoint.
    pub(crate) fn judge_move(
        &self,
        frame: &MoveFrame,
        here: bool,
    ) -> Option<(ConnId, Result<MoveAction, DropCounter>)> {
        let conn = self.table.find_nonce(frame.block.nonce)?;
        let moved = Key {
            peer: frame.key.peer,
            ..conn.key
        };
        let here = here && conn.key == frame.key;
        (moved == frame.key).then(|| (conn.id, conn.judge_move(&frame.block, frame.key.peer, here)))
    }

    /// Returns true when a connection with this key can be added.
    pub(crate) fn has_place(&self, key: &Key) -> bool {
        let taken = self.table.find(key).and_then(|slot| self.table.at(slot));
        let free = taken.is_none_or(|conn| conn.state == State::TimeWait);
        free && !self.table.is_full()
            && !self.held.contains(&key.local_port)
            && key.peer != self.cx.own
    }

    /// Removes a connection that moves to another endpoint. Its later frames are dropped here
    /// silently. Its notes contain everything that was not yet reported to the host.
    pub(crate) fn take_connection(&mut self, id: ConnId) -> Option<Box<Connection>> {
        self.table.get(id)?;
        let mut conn = self.table.remove(id.slot)?;
        self.table.release(id.slot);
        self.deadlines.remove(id.slot);
        conn.release(&mut self.cx.pool);
        let now = self.cx.now;
        if self.moved_keys.len() >= self.cx.config.max_connections {
            self.moved_keys.retain(|_, until| now < *until);
        }
        let until = now + self.cx.config.peer_timeout;
        self.moved_keys.insert(conn.key, until);
        let notes = &mut conn.notes;
        self.events.retain(|event| {
            let (connected, finished) = (Event::Connected(id), Event::PeerFinished(id));
            notes.established |= *event == connected;
            notes.peer_finished |= *event == finished;
            *event != connected && *event != finished
        });
        notes.progress = true;
        Some(conn)
    }

    /// Adds a connection from another endpoint, whose peer is now reached at `peer`. It continues
    /// where it stopped. The caller has checked [`has_place`](Self::has_place).
    pub(crate) fn adopt_connection(
        &mut self,
        mut conn: Box<Connection>,
        peer: NodeAddr,
    ) -> Option<ConnId> {
        conn.key.peer = peer;
        if let Some(slot) = self.table.find(&conn.key) {
            self.reclaim(slot);
        }
        let id = self.table.next_id()?;
        conn.id = id;
        conn.queued = Default::default();
        self.moved_keys.remove(&conn.key);
        self.table.insert(conn);
        self.settle(id.slot);
        Some(id)
    }

    /// Applies an accepted MOVE to the connection, which is now at this endpoint.
    pub(crate) fn apply_move(&mut self, id: ConnId, frame: &MoveFrame, action: MoveAction) {
        let room = self.has_room_to_accept(id.slot);
        let waits = |conn: &mut Connection, cx: &mut Cx| conn.must_wait(cx, room);
        if action == MoveAction::Establish && self.with(id.slot, waits) == Some(true) {
            return;
        }
        self.cx.counters.rx_moves += 1;
        self.with(id.slot, |conn, cx| match action {
            MoveAction::Answer => {}
            MoveAction::Go => conn.go(cx),
            MoveAction::Come | MoveAction::Finish => conn.resume(cx, frame.seq, &frame.block),
            MoveAction::Repeat => conn.repeat_done(),
            MoveAction::Lost => conn.lose_peer(),
            // The rest follows when it is repeated: only then is there receive room.
            MoveAction::Establish => conn.establish(cx),
        });
    }

    /// Answers an ASK through this endpoint.
    pub(crate) fn answer_move(&mut self, frame: &MoveFrame) {
        self.cx.counters.rx_moves += 1;
        self.reply_move(frame, Step::Answer);
    }

    /// Answers that the node has no such connection, so that the peer need not wait (W-107).
    /// Rate-limited as resets for unknown connections are.
    pub(crate) fn deny_move(&mut self, frame: &MoveFrame) {
        if matches!(frame.block.step, Step::Ask | Step::Go) {
            if self.is_adopting() {
                // W-136: its program may bring it.
            } else if self.resets.take(self.cx.now) {
                self.reply_move(frame, Step::Gone);
            } else {
                self.cx.counters.tx_reset_limited += 1;
            }
        }
    }

    fn reply_move(&mut self, frame: &MoveFrame, step: Step) {
        let block = Move {
            step,
            nonce: frame.block.sender_nonce,
            sender_nonce: frame.block.nonce,
            received: 0,
            finished: false,
            resumed: false,
            ..frame.block
        };
        self.push_move(frame.key, block);
    }

    /// Queues a MOVE frame that belongs to no connection of this endpoint (yet).
    pub(crate) fn push_move(&mut self, key: Key, block: Move) {
        let block = Move {
            max_payload: self.cx.max_payload,
            credit: 0,
            ..block
        };
        self.push_own(Control {
            key,
            seq: Seq(0),
            ack: None,
            body: ControlBody::Move(block),
        });
    }

    /// Counts a MOVE that was dropped.
    pub(crate) fn drop_move(&mut self, counter: DropCounter) {
        *counter(&mut self.cx.counters) += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Buffers, ConnOptions, EndpointConfig};
    use alloc::vec::Vec;

    const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn endpoint(max_connections: usize) -> (Endpoint, [ConnId; 2]) {
        let config = EndpointConfig {
            max_connections,
            ..EndpointConfig::default()
        };
        let own = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut endpoint = Endpoint::new(config, own, 1500, [1; 32], 1);
        let ids = [5000, 5001].map(|port| {
            let options = ConnOptions {
                buffers: Buffers { rx: 4096, tx: 4096 },
                key: Vec::new(),
            };
            let now = Instant::from_nanos(1000);
            endpoint
                .connect(now, port, PEER.into(), 7, options)
                .unwrap()
        });
        (endpoint, ids)
    }

    #[test]
    fn what_was_not_reported_moves_with_the_connection() {
        let (mut endpoint, [first, second]) = endpoint(4);
        let all = [first, second].map(|id| [Event::Connected(id), Event::PeerFinished(id)]);
        endpoint.events.extend(all.into_iter().flatten());
        let conn = endpoint.take_connection(first).unwrap();
        assert!(conn.notes.established && conn.notes.peer_finished);
        let left = [Event::Connected(second), Event::PeerFinished(second)];
        assert_eq!(endpoint.events, left);
        endpoint.events.clear();
        let conn = endpoint.take_connection(second).unwrap();
        assert!(!conn.notes.established && !conn.notes.peer_finished);
    }

    #[test]
    fn what_others_did_not_report_stays() {
        let (mut endpoint, [first, second]) = endpoint(4);
        let events = [Event::Connected(first), Event::PeerFinished(first)];
        endpoint.events.extend(events.clone());
        let conn = endpoint.take_connection(second).unwrap();
        assert!(!conn.notes.established && !conn.notes.peer_finished);
        assert_eq!(endpoint.events, events);
    }

    #[test]
    fn paths_that_were_left_are_forgotten_when_there_are_many() {
        let (mut endpoint, [first, second]) = endpoint(4);
        endpoint.clock(Instant::from_nanos(5000));
        let key = |local_port| Key {
            local_port,
            peer: PEER.into(),
            peer_port: 9,
        };
        for (port, until) in [(1, 4000), (2, 5000), (3, 6000)] {
            let until = Instant::from_nanos(until);
            endpoint.moved_keys.insert(key(port), until);
        }
        endpoint.take_connection(first).unwrap();
        assert_eq!(endpoint.moved_keys.len(), 4, "as many as connections");
        endpoint.take_connection(second).unwrap();
        let mut ports: Vec<_> = endpoint
            .moved_keys
            .keys()
            .map(|key| key.local_port)
            .collect();
        ports.sort_unstable();
        assert_eq!(ports, [3, 5000, 5001]);
    }

    #[test]
    fn moves_that_wait_are_bounded() {
        let (mut endpoint, _) = endpoint(4);
        endpoint.set_rails(&[MacAddr([2, 0, 0, 0, 1, 1])]);
        let mut payload = [0; crate::wire::MOVE_LEN];
        let block = Move {
            step: Step::Ask,
            finished: false,
            resumed: false,
            max_payload: 1489,
            epoch: 1,
            nonce: 1,
            sender_nonce: 2,
            received: 0,
            credit: 0,
        };
        block.emit(&mut payload);
        let frame = EspFrame {
            dst_port: 7,
            src_port: 9,
            seq: Seq(0),
            ack: Seq(0),
            kind: crate::wire::FrameType::Move,
            asks: false,
            payload: &payload,
            ext: None,
        };
        for _ in 0..MOVES_WAITING + 3 {
            let key = Key {
                local_port: 7,
                peer: PEER.into(),
                peer_port: 9,
            };
            endpoint.on_move(key, &frame);
        }
        assert_eq!(endpoint.moves.len(), MOVES_WAITING);
        assert_eq!(endpoint.counters().rx_drop_move_unknown, 3);
    }
}
