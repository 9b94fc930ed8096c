//! Streams over leases on nodes with two interfaces move when one of them fails.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use esp_client::control::{ErrorKind, Reply, Request};
use esp_client::{Client, EspError, EspListener, EspStream, Path};
use esp_tests::exchange::Exchange;
use esp_tests::links::{set, silence, two_rails, two_rails_bare};
use esp_tests::process::{Daemon, ip_in_switch, signal};
use esp_tests::program::Program;
use esp_tests::raw::RawProgram;
use esp_tests::{PATIENCE, address, client, counter, wait_until};
use lab::Lab;
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");
const ALL: &str = "[lease]\nallow = \"all\"\n";
/// All pairs of paths with at least one lease.
const PATHS: [[Path; 2]; 3] = [
    [Path::Lease, Path::Lease],
    [Path::Lease, Path::Daemon],
    [Path::Daemon, Path::Lease],
];

/// Returns two connected streams with these paths through their nodes; the listener is on this
/// interface, or on both.
fn pair(lab: &Lab, port: u16, paths: [Path; 2], interface: Option<&str>) -> (EspStream, EspStream) {
    let mut listener = EspListener::builder().path(paths[1]);
    if let Some(interface) = interface {
        listener = listener.interface(interface);
    }
    let listener = listener.bind_at(&client(lab, 1), port).expect("listen");
    let left = EspStream::builder()
        .path(paths[0])
        .connect_at(&client(lab, 0), address(1, port))
        .expect("connect");
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    assert_eq!([left.path(), right.path()], paths);
    (left, right)
}

/// Returns the interfaces of a node's connections, as its daemon shows them.
fn places(at: &Client) -> Vec<String> {
    let mut all: Vec<_> = at
        .status()
        .expect("status")
        .connections
        .iter()
        .map(|c| c.interface.clone())
        .collect();
    all.sort();
    all
}

fn run_over(lab: &Lab, interface: &str) {
    for node in [0, 1] {
        let at = client(lab, node);
        wait_until(&format!("node {node} is on {interface}"), || {
            let places = places(&at);
            !places.is_empty() && places.iter().all(|place| place == interface)
        });
    }
}

#[test]
fn streams_move_from_an_interface_set_down() {
    let Some(lab) = two_rails("lease_moves_down", ALL) else {
        return;
    };
    for (port, paths) in (7000..).zip(PATHS) {
        for interface in [None, Some("eth0")] {
            let (left, right) = pair(&lab, port, paths, interface);
            run_over(&lab, "eth0");
            Exchange::during(&left, &right, |exchange| {
                exchange.flows(4 << 20);
                set(&lab, 0, "eth0", "down");
                run_over(&lab, "eth1");
                exchange.flows(4 << 20);
                set(&lab, 0, "eth0", "up");
            });
            drop((left, right));
            for node in [0, 1] {
                wait_until("nothing is left", || places(&client(&lab, node)).is_empty());
            }
        }
    }
}

#[test]
fn streams_move_from_a_silent_switch() {
    let Some(lab) = two_rails("lease_moves_silent", ALL) else {
        return;
    };
    for (port, paths) in (7000..).zip(PATHS) {
        let (left, right) = pair(&lab, port, paths, None);
        Exchange::during(&left, &right, |exchange| {
            exchange.flows(4 << 20);
            silence(&lab, 0, true);
            run_over(&lab, "eth1");
            exchange.flows(4 << 20);
            silence(&lab, 0, false);
        });
        drop((left, right));
        wait_until("nothing is left", || places(&client(&lab, 1)).is_empty());
    }
}

#[test]
fn streams_move_from_a_deleted_interface() {
    let Some(lab) = two_rails("lease_moves_gone", ALL) else {
        return;
    };
    let (left, right) = pair(&lab, 7000, [Path::Lease; 2], None);
    Exchange::during(&left, &right, |exchange| {
        exchange.flows(4 << 20);
        ip_in_switch(&lab, "link del dev port0");
        run_over(&lab, "eth1");
    });
}

#[test]
fn streams_survive_flapping_interfaces() {
    let Some(lab) = two_rails("lease_moves_flap", ALL) else {
        return;
    };
    let (left, right) = pair(&lab, 7000, [Path::Lease; 2], Some("eth0"));
    Exchange::during(&left, &right, |exchange| {
        for round in 0..6 {
            let (node, interface) = (round / 2 % 2, ["eth0", "eth1"][round % 2]);
            exchange.flows(2 << 20);
            set(&lab, node, interface, "down");
            run_over(&lab, ["eth1", "eth0"][round % 2]);
            exchange.flows(2 << 20);
            set(&lab, node, interface, "up");
        }
    });
}

/// Writes some bytes and waits for their echo.
fn echoes(mut stream: &EspStream, round: u8) {
    stream.write_all(&[round; 3000]).expect("write");
    let mut got = [0; 3000];
    stream.read_exact(&mut got).expect("the echo");
    assert_eq!(got, [round; 3000]);
}

/// Starts a holder at node 0 that connects one stream and accepts another; returns their other
/// ends.
fn holder(lab: &Lab, listener: &EspListener) -> (Program, [EspStream; 2]) {
    let connect = format!("connect:1:{}", listener.port());
    let steps = ["path:lease", &connect, "listen:7000", "accept", "echo"];
    let program = Program::start(PROGRAM, &lab.socket(0), &steps);
    let (idle, _) = listener.accept_timeout(PATIENCE).expect("accept");
    for step in &steps[..3] {
        program.says(&format!("ok {step}"));
    }
    let busy = EspStream::builder()
        .connect_at(&client(lab, 1), address(0, 7000))
        .expect("connect");
    program.says("ok accept");
    for stream in [&idle, &busy] {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    }
    (program, [idle, busy])
}

#[track_caller]
fn peer_died(mut stream: &EspStream) {
    let error = stream.read(&mut [0; 9]).expect_err("the holder is dead");
    let error = EspError::of(&error).expect("one of ours").clone();
    assert!(matches!(error, EspError::PeerDied { .. }), "{error:?}");
}

#[test]
fn holder_killed_after_a_move_resets_its_peers_and_frees_its_ports() {
    let Some(lab) = two_rails("lease_moves_killed", ALL) else {
        return;
    };
    let listener = EspListener::builder()
        .bind_at(&client(&lab, 1), 7100)
        .unwrap();
    let (mut program, [idle, busy]) = holder(&lab, &listener);
    echoes(&busy, 1);
    set(&lab, 0, "eth0", "down");
    echoes(&busy, 2);
    run_over(&lab, "eth1");
    program.kill();
    peer_died(&idle);
    peer_died(&busy);
    // On both interfaces.
    wait_until("the port is free again", || {
        EspListener::builder()
            .bind_at(&client(&lab, 0), 7000)
            .is_ok()
    });
    wait_until("nothing is left", || {
        [0, 1]
            .iter()
            .all(|node| places(&client(&lab, *node)).is_empty())
    });
}

#[test]
fn next_daemon_adopts_moved_streams_and_standbys() {
    let Some(lab) = two_rails_bare("lease_moves_adopted") else {
        return;
    };
    let mut near = Daemon::on(&lab, 0, &["eth0", "eth1"], ALL);
    let _far = Daemon::on(&lab, 1, &["eth0", "eth1"], ALL);
    let listener = EspListener::builder()
        .bind_at(&client(&lab, 1), 7100)
        .unwrap();
    let (mut program, [idle, busy]) = holder(&lab, &listener);
    for (round, down, up) in [(1, "eth0", "eth1"), (2, "eth1", "eth0")] {
        set(&lab, 0, down, "down");
        echoes(&busy, round);
        run_over(&lab, up);
        near.kill();
        echoes(&busy, 10 + round);
        near = Daemon::on(&lab, 0, &["eth0", "eth1"], ALL);
        wait_until("all is adopted", || {
            let at = client(&lab, 0);
            counter(&at, "leases_adopted") >= 2
                && places(&at).iter().filter(|place| *place == up).count() == 2
        });
        echoes(&busy, 20 + round);
        set(&lab, 0, down, "up");
    }
    program.kill();
    peer_died(&idle);
    peer_died(&busy);
}

#[track_caller]
fn refused(program: &mut RawProgram, request: Request) -> ErrorKind {
    match program.ask(request).0 {
        Reply::Error(error) => error.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn standby_needs_an_own_lease_and_another_interface() {
    let config = "[lease]\nallow = \"all\"\n[limits]\nleases = 1\n";
    let Some(lab) = two_rails("lease_moves_rules", config) else {
        return;
    };
    let [mut one, mut other] = [0, 1].map(|_| RawProgram::welcomed(&lab.socket(0)).0);
    let request = Request::Lease {
        interface: Some("eth0".into()),
        listener: None,
        count: 4,
    };
    let (
        Reply::Lease {
            lease, port: first, ..
        },
        _first,
    ) = one.ask(request)
    else {
        panic!("no lease")
    };
    let standby = |lease, interface: &str| Request::Standby {
        lease,
        interface: interface.into(),
    };
    let listen = |port| Request::Listen {
        interface: Some("eth1".into()),
        port,
        backlog: 1,
        key: Vec::new(),
    };

    // The lease uses the only permit of the user; a standby needs none.
    let (reply, sockets) = one.ask(standby(lease, "eth1"));
    let Reply::Lease {
        lease: second,
        interface,
        port,
        count,
        ring,
        ..
    } = reply
    else {
        panic!("{reply:?}")
    };
    assert_eq!(
        (
            interface.name.as_str(),
            port,
            count,
            ring.slots,
            sockets.len()
        ),
        ("eth1", first, 4, 0, 4)
    );
    assert_eq!(refused(&mut one, standby(lease, "eth1")), ErrorKind::InUse);
    assert_eq!(refused(&mut one, standby(lease, "eth0")), ErrorKind::InUse);
    assert_eq!(
        refused(&mut one, standby(second, "eth0")),
        ErrorKind::NotFound
    );
    assert_eq!(
        refused(&mut one, standby(lease, "eth7")),
        ErrorKind::NotFound
    );
    assert_eq!(
        refused(&mut other, standby(lease, "eth1")),
        ErrorKind::NotFound
    );
    assert_eq!(refused(&mut other, listen(port + 3)), ErrorKind::InUse);
    assert!(matches!(
        one.ask(Request::EndLease { lease: second }).0,
        Reply::Done
    ));
    assert!(matches!(
        other.ask(listen(port + 3)).0,
        Reply::Listening { .. }
    ));
    // One of the ports is in use there now, and those reserved before it was found are released.
    assert_eq!(refused(&mut one, standby(lease, "eth1")), ErrorKind::InUse);
    assert!(matches!(other.ask(listen(port)).0, Reply::Listening { .. }));
}

/// A stopped holder answers first over the path that works, so its peers stay on it.
#[test]
fn stopped_holder_does_not_move_its_peers() {
    let Some(lab) = two_rails("lease_moves_still", ALL) else {
        return;
    };
    let listener = EspListener::builder()
        .bind_at(&client(&lab, 1), 7100)
        .unwrap();
    let (program, [_idle, busy]) = holder(&lab, &listener);
    for round in 0..10 {
        signal(program.pid(), Signal::STOP);
        (&busy).write_all(&[round; 3000]).expect("write");
        // More than three retransmission time-outs.
        thread::sleep(Duration::from_millis(150));
        signal(program.pid(), Signal::CONT);
        let mut got = [0; 3000];
        (&busy).read_exact(&mut got).expect("the echo");
        assert_eq!(got, [round; 3000]);
    }
    run_over(&lab, "eth0");
}
