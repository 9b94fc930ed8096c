//! Several interfaces of one node: a connection whose path fails continues on another (section 10).
//!
//! Each interface has its own [`Endpoint`], which does not know the others. The host owns them all,
//! calls [`serve`] after frames and deadlines were handled, and transfers its own state of a
//! connection that moved.

use crate::addr::Port;
use crate::api::ConnId;
use crate::connection::{Key, MoveAction};
use crate::endpoint::{Endpoint, MoveFrame, MoveRequest};
use crate::time::Instant;

/// The interfaces of a node.
pub trait Rails {
    /// Returns the highest interface number plus one.
    fn count(&self) -> usize;

    /// Returns the endpoint of an interface; `None` for an unused number.
    fn endpoint(&mut self, rail: usize) -> Option<&mut Endpoint>;

    /// Returns false while the interface is known to carry no frames, or when frames of this port
    /// do not reach its endpoint.
    fn usable(&self, rail: usize, local_port: Port) -> bool;

    /// Reports that a connection of one endpoint has become one of another: the host's buffers,
    /// program and other state of the old id belong to the new id. The old id is never reused.
    fn moved(&mut self, from: (usize, ConnId), to: (usize, ConnId));
}

/// Exchanges move requests between the endpoints of a node and moves connections. Call it after
/// frames and deadlines were handled and before [`Endpoint::poll_transmit`]. It costs nothing when
/// no endpoint [has requests](Endpoint::has_moves).
///
/// Work is bounded by the input: a frame costs one lookup for each interface and at most one
/// frame in reply.
pub fn serve(rails: &mut impl Rails, now: Instant) {
    for rail in 0..rails.count() {
        while let Some(work) = rails.endpoint(rail).and_then(Endpoint::poll_move) {
            for other in 0..rails.count() {
                if let Some(endpoint) = rails.endpoint(other) {
                    endpoint.set_clock(now);
                }
            }
            match work {
                MoveRequest::Ask(conn) => ask(rails, rail, conn),
                MoveRequest::Frame(frame) => take(rails, rail, &frame),
            }
        }
    }
}

/// Asks every address of the peer over every interface.
fn ask(rails: &mut impl Rails, home: usize, conn: ConnId) {
    let Some((key, question)) = rails.endpoint(home).and_then(|e| e.question(conn)) else {
        return;
    };
    for rail in 0..rails.count() {
        if !rails.usable(rail, key.local_port) {
            continue;
        }
        let Some(endpoint) = rails.endpoint(rail) else {
            continue;
        };
        for &peer in &question.addresses {
            let current = rail == home && peer == key.peer;
            if !(current && question.skip_current) && peer != endpoint.addr() {
                endpoint.push_move(Key { peer, ..key }, question.block);
            }
        }
    }
}

/// Processes a MOVE that was received through an interface.
fn take(rails: &mut impl Rails, rail: usize, frame: &MoveFrame) {
    let found = (0..rails.count()).find_map(|home| {
        let (conn, verdict) = rails.endpoint(home)?.judge_move(frame, home == rail)?;
        Some(((home, conn), verdict))
    });
    let Some(endpoint) = rails.endpoint(rail) else {
        return;
    };
    let (from, action) = match found {
        None => {
            endpoint.drop_move(|c| &mut c.rx_drop_move_unknown);
            return endpoint.deny_move(frame);
        }
        Some((_, Err(counter))) => return endpoint.drop_move(counter),
        Some((from, Ok(action))) => (from, action),
    };
    let to = match action {
        MoveAction::Answer | MoveAction::Go | MoveAction::Come => {
            if !has_place(rails, from, rail, &frame.key) {
                if let Some(endpoint) = rails.endpoint(rail) {
                    endpoint.drop_move(|c| &mut c.rx_drop_move_state);
                }
                return;
            }
            if action == MoveAction::Answer {
                if let Some(endpoint) = rails.endpoint(rail) {
                    endpoint.answer_move(frame);
                }
                return;
            }
            relocate(rails, from, rail, &frame.key)
        }
        MoveAction::Finish | MoveAction::Repeat | MoveAction::Lost | MoveAction::Establish => {
            Some(from)
        }
    };
    if let Some((rail, conn)) = to
        && let Some(endpoint) = rails.endpoint(rail)
    {
        endpoint.apply_move(conn, frame, action);
    }
}

/// Returns true if the connection can be added where the MOVE came from, or is there already.
fn has_place(rails: &mut impl Rails, from: (usize, ConnId), rail: usize, key: &Key) -> bool {
    stays(rails, from, rail, key) || rails.endpoint(rail).is_some_and(|e| e.has_place(key))
}

/// Returns true if the connection is already where the MOVE came from.
fn stays(rails: &mut impl Rails, (home, conn): (usize, ConnId), rail: usize, key: &Key) -> bool {
    let peer = rails.endpoint(home).and_then(|e| e.peer_of(conn));
    home == rail && peer == Some(key.peer)
}

/// Moves a connection to the endpoint that reaches the peer; the caller has checked that it has
/// room.
fn relocate(
    rails: &mut impl Rails,
    (home, conn): (usize, ConnId),
    rail: usize,
    key: &Key,
) -> Option<(usize, ConnId)> {
    if stays(rails, (home, conn), rail, key) {
        return Some((home, conn));
    }
    let detached = rails.endpoint(home)?.take_connection(conn)?;
    let id = rails.endpoint(rail)?.adopt_connection(detached, key.peer)?;
    rails.moved((home, conn), (rail, id));
    Some((rail, id))
}
