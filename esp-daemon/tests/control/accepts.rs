//! Connections that arrive and the accepts that take them.

use esp_client::control::{ErrorKind, Reply, Request, Rings};

use crate::support::engine::PEER;
use crate::support::program::accept;
use crate::support::{Rig, eventually};

#[test]
fn connections_and_accepts_are_matched() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let (listener, port) = program.listen(0);
    // The connection comes first.
    rig.engine.incoming(port, 1);
    // The accept comes first; another connection ends before it is accepted.
    let id = program.post(accept(listener));
    let (reply, descriptors) = program.reply_to(id);
    assert!(
        matches!(reply, Reply::Stream { peer_port: 1, local_port, .. } if local_port == port),
        "{reply:?}"
    );
    assert_eq!(descriptors.len(), 1);
    let ids = [
        program.post(accept(listener)),
        program.post(accept(listener)),
    ];
    program.done(Request::CancelAccept { accept: 0 });
    for (id, peer_port) in ids.into_iter().zip([2, 3]) {
        rig.engine.incoming(port, peer_port);
        let (reply, _) = program.reply_to(id);
        assert!(
            matches!(reply, Reply::Stream { peer_port: p, .. } if p == peer_port),
            "{reply:?}"
        );
    }
    let gone = rig.engine.incoming(port, 4);
    rig.engine.gone(port, gone);
    rig.engine.incoming(port, 5);
    let (reply, _) = program.ask_all(accept(listener));
    assert!(
        matches!(reply, Reply::Stream { peer_port: 5, .. }),
        "{reply:?}"
    );
}

#[test]
fn a_connection_that_ends_before_its_accept_costs_no_accept() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let (listener, port) = program.listen(0);
    let gone = rig.engine.incoming(port, 1);
    rig.engine.books().waiting.remove(&gone); // and its IncomingGone is still on the way
    let id = program.post(accept(listener));
    eventually("it was tried", || {
        rig.engine.books().refused.contains(&gone)
    });
    rig.engine.incoming(port, 2);
    let (reply, _) = program.reply_to(id);
    assert!(
        matches!(
            reply,
            Reply::Stream {
                slot: 0,
                peer_port: 2,
                ..
            }
        ),
        "{reply:?}"
    );
}

#[test]
fn withdrawn_accepts_are_answered() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let (listener, port) = program.listen(0);
    let ids: Vec<u64> = (0..256).map(|_| program.post(accept(listener))).collect();
    assert_eq!(program.refused(accept(listener)).0, ErrorKind::Limit);
    let cancel = program.post(Request::CancelAccept { accept: ids[1] });
    let (reply, _) = program.reply_to(ids[1]);
    assert!(matches!(reply, Reply::Error(e) if e.kind == ErrorKind::Cancelled));
    assert_eq!(program.reply_to(cancel).0, Reply::Done);
    rig.engine.incoming(port, 1);
    assert!(matches!(program.reply_to(ids[0]).0, Reply::Stream { .. }));
    let close = program.post(Request::CloseListener { listener });
    for id in &ids[2..] {
        let (reply, _) = program.reply_to(*id);
        assert!(matches!(reply, Reply::Error(e) if e.kind == ErrorKind::Cancelled));
    }
    assert_eq!(program.reply_to(close).0, Reply::Done);
    let (next, _) = program.listen(0);
    for _ in 0..256 {
        program.post(accept(next));
    }
    assert_eq!(
        program.refused(accept(next)).0,
        ErrorKind::Limit,
        "exactly 256 places are free again"
    );
}

#[test]
fn a_connection_is_refused_when_its_program_is_at_a_limit_or_disconnected() {
    let rig = Rig::new("[limits]\nstreams = 1\n");
    let mut program = rig.program();
    let (listener, port) = program.listen(0);
    program.open(0);
    let conn = rig.engine.incoming(port, 1);
    assert_eq!(program.refused(accept(listener)).0, ErrorKind::Limit);
    eventually("refused", || rig.engine.books().refused == [conn]);
    // The engine resets waiting connections when the program disconnects; those that arrive now are
    // refused.
    let late = esp_engine::EngineEvent::Incoming {
        listener: esp_engine::ListenerId(listener),
        arrival: esp_engine::Arrival {
            handle: esp_engine::ConnHandle {
                link: esp_engine::LinkId(0),
                conn: esp_proto::ConnId {
                    slot: 99,
                    generation: 1,
                },
            },
            port,
            peer: PEER.into(),
            peer_port: 1,
        },
    };
    drop(program);
    eventually("gone", || rig.node.programs() == 0);
    rig.engine.emit(late);
    eventually("refused", || rig.engine.books().refused.contains(&99));
}

#[test]
fn accepted_stream_has_room_for_what_the_handshake_agreed() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let (listener, port) = program.listen(0);
    rig.engine.incoming(port, 1);
    let Reply::Stream { rings, .. } = program.ask(accept(listener)) else {
        panic!()
    };
    assert_eq!(
        rings,
        Rings { tx: 4096, rx: 8192 },
        "four frames of MTU 1500"
    );
}
