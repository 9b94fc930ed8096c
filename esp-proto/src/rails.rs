//! Several interfaces of one node: a connection whose path fails goes on over another (section 10).
//!
//! Each interface has an [`Endpoint`] of its own, which knows nothing of the others. The host owns them all, calls
//! [`serve`] after frames and deadlines were handled, and takes along what belongs to a connection that moved.

use crate::addr::{MacAddr, Port};
use crate::api::ConnId;
use crate::connection::{Key, MoveVerdict};
use crate::endpoint::{Endpoint, MoveFrame, Work};
use crate::time::Instant;

/// The interfaces of a node.
pub trait Rails {
    /// One more than the number of the last.
    fn count(&self) -> usize;

    /// The endpoint of an interface; `None` for a number that is free.
    fn endpoint(&mut self, rail: usize) -> Option<&mut Endpoint>;

    /// False while the interface carries nothing, as far as the node knows, or when frames of this port do not come to its endpoint.
    fn usable(&self, rail: usize, local_port: Port) -> bool;

    /// A connection of one interface's endpoint has become another one's: its buffers, its program, all that the host keeps by
    /// its name, has the new name from now on. The old name never comes back.
    fn moved(&mut self, from: (usize, ConnId), to: (usize, ConnId));
}

/// Carries questions and answers between the endpoints of a node and moves connections. Call it after frames and deadlines
/// were handled and before [`Endpoint::poll_transmit`]; it costs nothing when no endpoint
/// [has something to do](Endpoint::has_moves).
///
/// Work is bounded by what came in: a frame costs one look-up for each interface and at most one frame in answer.
pub fn serve(rails: &mut impl Rails, now: Instant) {
    for rail in 0..rails.count() {
        while let Some(work) = rails.endpoint(rail).and_then(Endpoint::poll_move) {
            for other in 0..rails.count() {
                if let Some(endpoint) = rails.endpoint(other) {
                    endpoint.set_clock(now);
                }
            }
            match work {
                Work::Ask(conn) => ask(rails, rail, conn),
                Work::Frame(frame) => take(rails, rail, &frame),
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
            let present = rail == home && peer == key.peer;
            if !(present && question.skip_present) && peer != endpoint.mac() {
                endpoint.push_move(Key { peer, ..key }, question.block);
            }
        }
    }
}

/// A move came in through an interface.
fn take(rails: &mut impl Rails, rail: usize, frame: &MoveFrame) {
    let found =
        (0..rails.count()).find_map(|home| Some((home, rails.endpoint(home)?.find_moving(frame)?)));
    let verdict = match found {
        Some((home, conn)) => rails.endpoint(home).map_or(MoveVerdict::Unknown, |e| {
            e.judge_move(conn, frame, home == rail)
        }),
        None => MoveVerdict::Unknown,
    };
    let moves = matches!(
        verdict,
        MoveVerdict::Answer | MoveVerdict::Go | MoveVerdict::Come
    );
    let place = found.filter(|from| !moves || has_place(rails, *from, (rail, frame)));
    let Some(endpoint) = rails.endpoint(rail) else {
        return;
    };
    match (verdict, found, place) {
        (MoveVerdict::Unknown, ..) => {
            endpoint.refuse_move(verdict);
            if found.is_none() {
                endpoint.deny_move(frame);
            }
        }
        (MoveVerdict::Answer, _, Some(_)) => endpoint.answer_move(frame),
        (MoveVerdict::Go | MoveVerdict::Come, _, Some(from)) => {
            let Some(conn) = relocate(rails, from, (rail, frame.src)) else {
                return;
            };
            let Some(endpoint) = rails.endpoint(rail) else {
                return;
            };
            if verdict == MoveVerdict::Go {
                endpoint.go(conn);
            } else {
                endpoint.resume(conn, frame);
            }
        }
        (MoveVerdict::Finish, _, Some((_, conn))) => endpoint.resume(conn, frame),
        (MoveVerdict::Repeat, _, Some((_, conn))) => endpoint.repeat_done(conn),
        (MoveVerdict::Lost, _, Some((home, conn))) => {
            if let Some(home) = rails.endpoint(home) {
                home.lose_peer(conn);
            }
        }
        (_, _, None) => endpoint.refuse_move(MoveVerdict::State),
        _ => endpoint.refuse_move(verdict),
    }
}

/// Is there room for the connection where the move came from? It is where it is, of course.
fn has_place(
    rails: &mut impl Rails,
    (home, conn): (usize, ConnId),
    to: (usize, &MoveFrame),
) -> bool {
    let (rail, frame) = to;
    let Some(key) = rails.endpoint(home).and_then(|e| e.key_of(conn)) else {
        return false;
    };
    let wanted = Key {
        peer: frame.src,
        ..key
    };
    (home == rail && wanted == key) || rails.endpoint(rail).is_some_and(|e| e.has_place(&wanted))
}

/// Moves a connection to where the peer is; the caller has asked for room.
fn relocate(
    rails: &mut impl Rails,
    (home, conn): (usize, ConnId),
    (rail, peer): (usize, MacAddr),
) -> Option<ConnId> {
    if home == rail && rails.endpoint(home)?.key_of(conn)?.peer == peer {
        return Some(conn);
    }
    let detached = rails.endpoint(home)?.take_connection(conn)?;
    let id = rails.endpoint(rail)?.adopt_connection(detached, peer)?;
    rails.moved((home, conn), (rail, id));
    Some(id)
}
