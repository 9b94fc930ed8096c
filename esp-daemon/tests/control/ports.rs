//! Ports and the users they belong to.

use esp_client::control::{ErrorKind, Reply, Request};
use esp_engine::ClientId;

use crate::support::program::{bind, connect, listen};
use crate::support::{Rig, eventually};

#[test]
fn ports_below_1024_are_for_root() {
    let rig = Rig::new("");
    let mut user = rig.program_of(1000);
    for request in [listen(80), connect(80), bind(80), listen(1023)] {
        let (kind, message) = user.refused(request);
        assert_eq!(kind, ErrorKind::Permission);
        assert!(
            message.contains("superuser") && message.contains("1000"),
            "{message}"
        );
    }
    assert_eq!(rig.count("refused_permission"), 4);
    user.listen(1024);
    let mut root = rig.program_of(0);
    root.listen(80);
    root.open(81);
    root.bind(80);
}

#[test]
fn ports_belong_to_one_user() {
    let rig = Rig::new("");
    let mut one = rig.program_of(1);
    let mut same = rig.program_of(1);
    let mut other = rig.program_of(2);
    let (listener, _) = one.listen(7000);
    one.open(7000); // a program may connect from its listener's port
    for program in [&mut one, &mut same, &mut other] {
        let (kind, message) = program.refused(listen(7000));
        assert_eq!(kind, ErrorKind::InUse);
        assert!(
            message.contains("7000") && message.contains("net0"),
            "{message}"
        );
    }
    assert_eq!(other.refused(connect(7000)).0, ErrorKind::InUse);
    let (slot, _) = one.bind(7000); // datagram ports are separate
    assert_eq!(one.refused(bind(7000)).0, ErrorKind::InUse);
    one.done(Request::CloseListener { listener });
    assert_eq!(
        other.refused(listen(7000)).0,
        ErrorKind::InUse,
        "a connection of user 1 still uses it"
    );
    let (again, _) = same.listen(7000);
    same.done(Request::CloseListener { listener: again });
    one.done(Request::CloseEdp { slot });
    drop(one);
    eventually("the port is free", || rig.node.programs() == 2);
    other.listen(7000);
    other.bind(7000);
}

#[test]
fn a_moved_connection_takes_its_port_to_the_new_link() {
    let rig = Rig::new("");
    let on = |name: &str| Request::Listen {
        interface: Some(name.into()),
        port: 5000,
        backlog: 8,
        key: vec![],
    };
    let mut one = rig.program_of(1);
    let (slot, _) = one.open(5000);
    let mut other = rig.program_of(2);
    assert_eq!(other.refused(on("net0")).0, ErrorKind::InUse);
    let (client, link) = (ClientId(one.client), esp_engine::LinkId(1));
    let moved = |slot, to| esp_engine::EngineEvent::Moved {
        client,
        slot,
        from: esp_engine::LinkId(0),
        link: esp_engine::LinkId(to),
        peer: esp_proto::MacAddr([2, 0, 0, 0, 9, 9]).into(),
    };
    rig.engine.emit(moved(slot, 0));
    assert_eq!(
        other.refused(on("net0")).0,
        ErrorKind::InUse,
        "it is where it was, and its peer elsewhere"
    );
    rig.engine.emit(moved(slot, link.0));
    eventually("the port is free where it was", || {
        matches!(other.ask(on("net0")), Reply::Listening { .. })
    });
    assert_eq!(other.refused(on("net1")).0, ErrorKind::InUse);
    rig.engine.close(one.client, slot);
    eventually("the port is free where it went", || {
        matches!(other.ask(on("net1")), Reply::Listening { .. })
    });
    // Registering an unknown connection has no effect.
    rig.engine.emit(moved(4000, 99));
    assert_eq!(one.refused(on("net1")).0, ErrorKind::InUse);
}

#[test]
fn listening_on_one_link_leaves_the_other() {
    let rig = Rig::new("");
    let on = |name: &str, port| Request::Listen {
        interface: Some(name.into()),
        port,
        backlog: 1,
        key: vec![],
    };
    let mut one = rig.program_of(1);
    let mut other = rig.program_of(2);
    assert!(matches!(
        one.ask(on("net0", 7000)),
        Reply::Listening { port: 7000, .. }
    ));
    assert!(matches!(
        other.ask(on("net1", 7000)),
        Reply::Listening { port: 7000, .. }
    ));
    assert_eq!(other.refused(listen(7000)).0, ErrorKind::InUse);
    let (kind, message) = one.refused(on("net7", 1024));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(message.contains("net0, net1"), "{message}");
    // A refused listen on all links leaves none of them taken.
    let (_, port) = one.listen(0);
    assert!(port >= 32768);
    assert_eq!(other.refused(on("net1", port)).0, ErrorKind::InUse);
}
