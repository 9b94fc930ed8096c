//! Slots and limits.

use esp_client::control::{ErrorKind, Reply, Request, Rings};
use esp_daemon::config::Resource;
use esp_engine::ClientId;

use crate::support::program::{bind, connect, listen};
use crate::support::{Rig, eventually};

#[test]
fn slot_stays_the_programs_until_it_closes_it() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let (slot, _) = program.open(6000);
    rig.engine.close(program.client, slot);
    eventually("the port is free", || {
        matches!(program.ask(listen(6000)), Reply::Listening { .. })
    });
    let (other, _) = program.open(0);
    assert_ne!(other, slot);
    program.done(Request::Close { slot });
    assert_eq!(program.open(0).0, slot);
    program.done(Request::Abort { slot: other });
    eventually("aborted", || {
        !rig.engine
            .books()
            .streams
            .contains_key(&(ClientId(program.client), other))
    });
    program.done(Request::Abort { slot: other });
    assert_ne!(program.open(0).0, other);
    program.done(Request::Close { slot: other });
    assert_eq!(
        program.refused(Request::Close { slot: other }).0,
        ErrorKind::NotFound
    );
}

#[test]
fn slot_is_not_reused_before_the_engine_has_released_it() {
    let rig = Rig::new("");
    rig.engine.books().slow = true;
    let mut program = rig.program();
    let (slot, _) = program.open(0);
    let (socket, _) = program.bind(0);
    program.done(Request::Close { slot });
    program.done(Request::CloseEdp { slot: socket });
    for _ in 0..4 {
        let (next, _) = program.open(0);
        assert!(next != slot && next != socket);
    }
    drop(program);
    eventually("the program is gone", || rig.engine.books().is_empty());
    assert_eq!(rig.node.programs(), 1, "the engine still has its slots");
    assert!(!rig.node.is_empty());
    rig.engine.settle();
    eventually("everything came back", || rig.node.is_empty());
}

#[test]
fn limits_hold_for_all_programs_of_a_user_together() {
    let rig = Rig::new(
        "[limits]\nprograms = 2\nstreams = 3\nlisteners = 1\nedp_sockets = 1\nring_bytes = \"96KiB\"\n\
         [limits.uid.9]\nstreams = 4\n",
    );
    let mut one = rig.program_of(1);
    let mut two = rig.program();
    let mut third = rig.connect();
    assert_eq!(third.cut_off(), ErrorKind::Limit);
    one.open(0);
    two.open(0);
    one.open(0);
    let (kind, message) = two.refused(connect(0));
    assert_eq!(kind, ErrorKind::Limit);
    assert!(
        message.contains("3 streams") && message.contains("limits.streams"),
        "{message}"
    );
    one.listen(0);
    assert_eq!(two.refused(listen(0)).0, ErrorKind::Limit);
    let (slot, _) = one.bind(0);
    assert_eq!(two.refused(bind(0)).0, ErrorKind::Limit);
    one.done(Request::CloseEdp { slot });
    eventually("its place is free", || {
        rig.node.accounts.total(Resource::EdpSockets) == 0
    });
    let big = |rx| Request::BindEdp {
        interface: None,
        port: 0,
        rings: Rings { tx: 4096, rx },
    };
    let (kind, message) = two.refused(big(65536));
    assert_eq!(kind, ErrorKind::Limit);
    assert!(message.contains("limits.ring_bytes"), "{message}");
    assert!(matches!(two.ask(big(32768)), Reply::Edp { .. }));
    let mut nine = rig.program_of(9);
    for _ in 0..4 {
        nine.open(0);
    }
    assert_eq!(nine.refused(connect(0)).0, ErrorKind::Limit);
    assert_eq!(rig.count("refused_limit"), 6);
}

#[test]
fn one_program_has_4096_slots() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..4096 {
        assert!(seen.insert(program.open(0).0));
    }
    assert_eq!(seen.last(), Some(&4095));
    let (kind, message) = program.refused(connect(0));
    assert_eq!(kind, ErrorKind::Limit);
    assert!(message.contains("4096"), "{message}");
    program.done(Request::Close { slot: 17 });
    eventually("the slot is free", || {
        matches!(program.ask(connect(0)), Reply::Stream { slot: 17, .. })
    });
}
