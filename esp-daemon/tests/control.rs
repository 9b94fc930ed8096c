//! Requests of programs over the control socket, and their effects.

mod support;

use esp_client::control::{ErrorKind, Reply, Request, Rings, Status};
use esp_daemon::config::Resource;
use esp_engine::ClientId;
use esp_engine::shm::{ClientPage, Region, RingSizes};
use std::os::fd::AsFd;
use support::engine::{EXISTS, PEER, TOO_MANY, UNLISTENABLE};
use support::program::{RINGS, accept, bind, connect, connect_to, listen};
use support::{Rig, eventually, program::Program};

#[track_caller]
fn status(program: &mut Program) -> Status {
    match program.ask(Request::Status) {
        Reply::Status(status) => *status,
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn hello_returns_pages_and_links() {
    let rig = Rig::new("");
    let mut program = rig.connect();
    let descriptors = program.hello("a \u{7}program\n");
    assert_eq!(descriptors.len(), 4);
    ClientPage::open(descriptors[1].as_fd()).unwrap();
    let second = rig.program();
    assert_ne!(program.client, second.client);
    eventually("the engine knows both", || {
        rig.engine.books().clients.len() == 2
    });
    let (kind, _) = program.refused(Request::Hello {
        version: esp_client::control::VERSION,
        program: String::new(),
    });
    assert_eq!(kind, ErrorKind::BadRequest);
}

#[test]
fn other_version_is_refused_by_name() {
    let rig = Rig::new("");
    let mut program = rig.connect();
    program.post(Request::Hello {
        version: 99,
        program: "old".into(),
    });
    let Some(Reply::Error(error)) = program.last_words() else {
        panic!("no error")
    };
    assert_eq!(error.kind, ErrorKind::Version);
    assert!(error.message.contains("99"), "{}", error.message);
}

#[test]
fn stream_reply_reports_the_ring_sizes() {
    let rig = Rig::new("[rings]\nmax = \"8KiB\"\ndefault = \"4KiB\"\n");
    let mut program = rig.program();
    let cases = [
        (Rings { tx: 0, rx: 0 }, Rings { tx: 4096, rx: 4096 }),
        (
            Rings {
                tx: 65536,
                rx: 65536,
            },
            Rings { tx: 8192, rx: 8192 },
        ),
    ];
    for (wanted, given) in cases {
        let Request::Connect {
            interface,
            local_port,
            peer,
            peer_port,
            key,
            ..
        } = connect(0)
        else {
            panic!()
        };
        let request = Request::Connect {
            interface,
            local_port,
            peer,
            peer_port,
            key,
            rings: wanted,
        };
        let (reply, descriptors) = program.ask_all(request);
        let Reply::Stream {
            rings,
            interface,
            peer,
            peer_port,
            local_port,
            ..
        } = reply
        else {
            panic!("{reply:?}")
        };
        assert_eq!(
            (rings, interface.as_str(), peer, peer_port),
            (given, "net0", PEER.into(), 9)
        );
        assert!(local_port >= 32768);
        Region::open(
            descriptors[0].as_fd(),
            RingSizes {
                tx: given.tx,
                rx: given.rx,
            },
        )
        .unwrap();
    }
    for bad in [
        Rings { tx: 5000, rx: 0 },
        Rings { tx: 0, rx: 2048 },
        Rings { tx: 1, rx: 1 },
    ] {
        let request = Request::BindEdp {
            interface: None,
            port: 0,
            rings: bad,
        };
        assert_eq!(program.refused(request).0, ErrorKind::BadArgument);
    }
}

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
    one.open(7000); // the own listener's port may be connected from
    for program in [&mut one, &mut same, &mut other] {
        let (kind, message) = program.refused(listen(7000));
        assert_eq!(kind, ErrorKind::InUse);
        assert!(
            message.contains("7000") && message.contains("net0"),
            "{message}"
        );
    }
    assert_eq!(other.refused(connect(7000)).0, ErrorKind::InUse);
    let (slot, _) = one.bind(7000); // datagram ports are others
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

#[test]
fn engine_has_the_last_word() {
    let rig = Rig::new("");
    let mut program = rig.program();
    assert_eq!(program.refused(connect_to(0, TOO_MANY)).0, ErrorKind::Limit);
    assert_eq!(
        program.refused(connect_to(5000, EXISTS)).0,
        ErrorKind::InUse
    );
    assert_eq!(program.refused(listen(UNLISTENABLE)).0, ErrorKind::InUse);
    drop(program);
    eventually("nothing is held", || rig.node.is_empty());
}

#[test]
fn arguments_are_checked() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let long_key = vec![0; 33];
    let requests = [
        Request::Listen {
            interface: None,
            port: 5000,
            backlog: 0,
            key: vec![],
        },
        Request::Listen {
            interface: None,
            port: 5000,
            backlog: 1025,
            key: vec![],
        },
        Request::Listen {
            interface: None,
            port: 5000,
            backlog: 1,
            key: long_key.clone(),
        },
        connect_to(0, 0),
    ];
    for request in requests {
        assert_eq!(program.refused(request).0, ErrorKind::BadArgument);
    }
    for peer in [[0xff; 6], [1, 0, 0, 0, 0, 1], [0; 6]] {
        let key = long_key[..32].to_vec();
        let request = Request::Connect {
            interface: None,
            local_port: 0,
            peer: esp_proto::MacAddr(peer).into(),
            peer_port: 5,
            key,
            rings: RINGS,
        };
        assert_eq!(program.refused(request).0, ErrorKind::BadArgument);
    }
    let nothing = [
        Request::Close { slot: 0 },
        Request::Abort { slot: 4095 },
        Request::CloseEdp { slot: 65535 },
        Request::CloseListener { listener: 1 },
        accept(77),
    ];
    for request in nothing {
        assert_eq!(program.refused(request).0, ErrorKind::NotFound);
    }
    let (stream, _) = program.open(0);
    let (socket, _) = program.bind(0);
    assert_eq!(
        program.refused(Request::CloseEdp { slot: stream }).0,
        ErrorKind::NotFound
    );
    assert_eq!(
        program.refused(Request::Close { slot: socket }).0,
        ErrorKind::NotFound
    );
    assert_eq!(
        program.refused(Request::Abort { slot: socket }).0,
        ErrorKind::NotFound
    );
}

#[test]
fn a_program_cannot_use_resources_of_another() {
    let rig = Rig::new("");
    let mut owner = rig.program();
    let mut thief = rig.program();
    let (listener, _) = owner.listen(0);
    let (slot, _) = owner.open(0);
    assert_eq!(thief.refused(accept(listener)).0, ErrorKind::NotFound);
    assert_eq!(
        thief.refused(Request::CloseListener { listener }).0,
        ErrorKind::NotFound
    );
    assert_eq!(
        thief.refused(Request::Abort { slot }).0,
        ErrorKind::NotFound
    );
    owner.done(Request::Abort { slot });
}

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
        "256 places, not more, are free again"
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
    assert_eq!(
        rig.node.programs(),
        1,
        "its slots are still with the engine"
    );
    assert!(!rig.node.is_empty());
    rig.engine.settle();
    eventually("everything came back", || rig.node.is_empty());
}

#[test]
fn limits_hold_for_all_programs_of_a_user_together() {
    let rig = Rig::new(
        "[limits]\nprograms = 2\nstreams = 3\nlisteners = 1\nedp_sockets = 1\nring_bytes = \"64KiB\"\n\
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

#[test]
fn every_user_sees_connections_and_only_the_owner_sees_the_program() {
    let rig = Rig::new("");
    let mut owner = rig.program_of(1);
    owner.open(6001);
    owner.listen(6002);
    owner.bind(6003);
    let mut other = rig.program_of(2);
    let seen = status(&mut other);
    assert_eq!(seen.connections.len(), 1);
    assert_eq!(
        (
            seen.connections[0].local_port,
            seen.connections[0].owner.uid
        ),
        (6001, Some(1))
    );
    assert_eq!(
        (
            seen.connections[0].owner.pid,
            seen.connections[0].owner.program.as_deref()
        ),
        (None, None)
    );
    assert_eq!(seen.listeners.len(), 2, "one for each link");
    assert!(
        seen.listeners
            .iter()
            .all(|l| l.port == 6002 && l.owner.uid == Some(1) && l.owner.program.is_none())
    );
    assert_eq!((seen.edp[0].port, seen.edp[0].owner.pid), (6003, None));
    let mut root = rig.program_of(0);
    for seen in [status(&mut owner), status(&mut root)] {
        assert_eq!(seen.connections[0].owner.pid, Some(std::process::id()));
        assert_eq!(seen.connections[0].owner.program.as_deref(), Some("test"));
        assert_eq!(seen.connections[0].state, "established");
        assert_eq!(seen.connections[0].srtt_us, Some(30.0));
        assert_eq!(seen.listeners[0].owner.program.as_deref(), Some("test"));
        assert_eq!(seen.edp[0].owner.program.as_deref(), Some("test"));
        assert_eq!(seen.interfaces.len(), 2);
        let find = |i: &str, n: &str| {
            seen.counters
                .iter()
                .find(|c| c.interface == i && c.name == n)
                .unwrap()
        };
        assert_eq!(find("net1", "rx_frames").value, 6);
        assert_eq!(find("", "turns").value, 3);
        assert!(find("", "control_requests").value > 3);
    }
}

#[test]
fn a_long_status_is_truncated_and_counted() {
    let rig = Rig::new("");
    rig.engine.books().unowned_connections = 20_000;
    let mut program = rig.program();
    program.open(0);
    let seen = status(&mut program);
    assert!(
        (1000..20_000).contains(&seen.connections.len()),
        "{}",
        seen.connections.len()
    );
    assert_eq!(
        seen.connections[0].owner.uid,
        Some(1000),
        "the own one is not cut off"
    );
    assert_eq!(
        rig.count("status_omitted"),
        20_001 - seen.connections.len() as u64
    );
}

#[test]
fn link_events_reach_programs() {
    let rig = Rig::new("");
    let link_event = |link, up| esp_engine::EngineEvent::Link {
        link: esp_engine::LinkId(link),
        up,
        mtu: 9000,
        gone: false,
    };
    rig.engine.emit(link_event(0, false));
    let mut program = rig.program();
    eventually("net0 is down", || !status(&mut program).interfaces[0].up);
    assert_eq!(status(&mut program).interfaces[0].mtu, 9000);
    let Reply::Stream { interface, .. } = program.ask(connect(0)) else {
        panic!()
    };
    assert_eq!(interface, "net1");
    let named = Request::BindEdp {
        interface: Some("net0".into()),
        port: 0,
        rings: RINGS,
    };
    assert!(
        matches!(program.ask(named), Reply::Edp { .. }),
        "binding is no sending"
    );
    rig.engine.emit(link_event(1, false));
    eventually("net1 is down", || !status(&mut program).interfaces[1].up);
    assert_eq!(program.refused(connect(0)).0, ErrorKind::LinkDown);
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

#[test]
fn stopping_daemon_answers_everything() {
    let mut rig = Rig::new("");
    let mut program = rig.program();
    let (listener, _) = program.listen(0);
    let id = program.post(accept(listener));
    program.open(0);
    rig.stop();
    let (reply, _) = program.reply_to(id);
    assert!(matches!(reply, Reply::Error(e) if e.kind == ErrorKind::Unavailable));
    assert_eq!(program.cut_off(), ErrorKind::Unavailable);
    eventually("everything came back", || rig.node.is_empty());
}

#[test]
fn a_dead_engine_is_reported_and_leaves_nothing() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let (slot, _) = program.open(0);
    rig.engine.die();
    for request in [
        listen(0),
        connect(0),
        bind(0),
        Request::Status,
        Request::Abort { slot },
    ] {
        assert_eq!(program.refused(request).0, ErrorKind::Unavailable);
    }
    drop(program);
    eventually("everything came back", || rig.node.is_empty());
}

#[test]
fn metrics_show_every_counter() {
    let rig = Rig::new("");
    let mut program = rig.program();
    program.open(0);
    let telemetry = esp_daemon::telemetry::Telemetry::local();
    assert!(rig.runtime.block_on(telemetry.refresh(&rig.node)));
    let text = telemetry.handle().render();
    for line in [
        "esp_rx_frames_total{interface=\"net0\"} 5",
        "esp_rx_frames_total{interface=\"net1\"} 6",
        "esp_turns_total 3",
        "esp_control_connections_total 1",
        "esp_programs 1",
        "esp_ring_bytes 8192",
        "esp_connections{interface=\"net0\"} 1",
        "esp_link_up{interface=\"net1\"} 1",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in:\n{text}"
        );
    }
    for (name, help, _) in rig.node.stats.list() {
        assert!(
            text.contains(&format!("\nesp_{name}_total ")),
            "{name} is not in:\n{text}"
        );
        assert!(text.contains(help), "{help} is not in:\n{text}");
    }
}
