//! Several engines of one daemon: programs of all of them reach each other, within the node and
//! from others, as with one engine.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::thread;

use esp_client::{Client, EdpSocket, EspStream};
use esp_tests::process::{Daemon, bare_lab, configured_lab, ip};
use esp_tests::program::Program;
use esp_tests::{PATIENCE, address, check_pattern, client, send_pattern, wait_until};
use lab::Lab;

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");
const ENGINES: u16 = 3;

fn lab_of_engines(test: &str) -> Option<Lab> {
    configured_lab(test, 2, &format!("engines = {ENGINES}\n"))
}

/// Starts programs that do nothing. Each gets the engine with the fewest, of several the first.
fn others(lab: &Lab, node: usize, count: usize) -> Vec<Program> {
    let start = |_| {
        let other = Program::start_in(lab, node, PROGRAM, &["client", "hold"]);
        other.says("ok client");
        other
    };
    (0..count).map(start).collect()
}

/// Starts a server of some connections at a port (0: any), which it returns.
fn server(lab: &Lab, node: usize, port: u16, connections: usize) -> (Program, u16) {
    let listen = format!("listen:{port}");
    let mut steps = vec!["client", listen.as_str(), "port"];
    steps.extend(["accept", "echo", "shutdown"].repeat(connections));
    let server = Program::start_in(lab, node, PROGRAM, &[&steps[..], &["hold"]].concat());
    server.says("ok client");
    server.says(&format!("ok {listen}"));
    let port = server.says("port ").trim_start_matches("port ").parse();
    (server, port.expect("a port"))
}

/// Returns the engine to whose block of ports this one belongs.
fn engine_of(port: u16) -> u16 {
    (port - 32768) / ((65535 - 32768) / ENGINES + 1)
}

/// Connects to a server, whose answers must be the bytes sent.
fn echoes(from: &Client, to: usize, port: u16) -> EspStream {
    let stream = EspStream::builder().connect_at(from, address(to, port));
    let stream = stream.expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(&stream, 3 << 20, port.into()));
        check_pattern(&stream, 3 << 20, port.into());
    });
    stream
}

#[test]
fn programs_of_all_engines_reach_each_other() {
    const ATTEMPTS: usize = 30;
    let Some(lab) = lab_of_engines("programs_of_all_engines") else {
        return;
    };
    let nodes = [0, 1].into_iter();
    let servers = nodes.flat_map(|node| (0..ENGINES).map(move |engine| (node, engine)));
    let servers: Vec<_> = servers
        .map(|(node, engine)| {
            let (server, port) = server(&lab, node, 0, ATTEMPTS);
            assert_eq!(engine_of(port), engine, "port {port} of node {node}");
            (node, port, server)
        })
        .collect();
    // This program, by one engine after the other.
    let mut seen = BTreeSet::new();
    for attempt in 0..ATTEMPTS {
        let _others = others(&lab, 0, attempt % usize::from(ENGINES));
        let here = client(&lab, 0);
        for (node, port, _) in &servers {
            let stream = echoes(&here, *node, *port);
            seen.insert(engine_of(stream.local_addr().port));
        }
        if seen.len() == usize::from(ENGINES) {
            return;
        }
    }
    panic!("this program had the engines {seen:?} only");
}

#[test]
fn a_port_is_served_by_the_engine_of_its_present_listener() {
    let Some(lab) = lab_of_engines("a_port_is_served_by_the_engine") else {
        return;
    };
    for before in [2, 0, 1, 2, 1] {
        for from in [0, 1] {
            // So that the server gets the next engine.
            let _others = others(&lab, 1, before);
            let (mut server, _) = server(&lab, 1, 7000, 1);
            echoes(&client(&lab, from), 1, 7000);
            server.kill();
            wait_until("nothing of it remains", || {
                let status = client(&lab, 1).status().expect("a status");
                status.listeners.is_empty() && status.connections.is_empty()
            });
        }
    }
    // Ports of all blocks, and the state of all engines in one.
    let ports = [65000, 33000, 50000];
    let _servers = ports.map(|port| server(&lab, 1, port, 1));
    let status = client(&lab, 1).status().expect("a status");
    for port in ports {
        assert!(status.listeners.iter().any(|found| found.port == port));
        echoes(&client(&lab, 0), 1, port);
    }
}

#[test]
fn a_port_is_of_one_engine_at_a_time() {
    let Some(lab) = lab_of_engines("a_port_is_of_one_engine") else {
        return;
    };
    let (mut server, _) = server(&lab, 0, 7000, 1);
    let here = client(&lab, 0);
    let refused = EdpSocket::builder().bind_at(&here, 7000);
    let error = refused.expect_err("the server's engine has it").to_string();
    let text = "programs served by another engine of esp-daemon use it";
    assert!(error.contains(text), "{error}");
    server.kill();
    wait_until("the port is free", || {
        EdpSocket::builder().bind_at(&here, 7000).is_ok()
    });
}

#[test]
fn an_interface_that_is_down_at_the_start_is_used_once_it_is_up() {
    let Some(lab) = bare_lab("an_interface_that_is_down", 2) else {
        return;
    };
    ip(&lab, 1, "link set eth0 down");
    let config = format!("engines = {ENGINES}\n");
    let _daemons = [0, 1].map(|node| Daemon::start(&lab, node, &config));
    ip(&lab, 1, "link set eth0 up");
    let servers: Vec<_> = (0..ENGINES).map(|_| server(&lab, 1, 0, 2)).collect();
    wait_until("the interface is used", || all_answer(&lab));
    for (_, port) in &servers {
        echoes(&client(&lab, 0), 1, *port);
    }
    // Members of a group join again in order.
    for state in ["down", "up"] {
        ip(&lab, 1, &format!("link set eth0 {state}"));
    }
    wait_until("the interface is up", || all_answer(&lab));
    for (_, port) in &servers {
        echoes(&client(&lab, 0), 1, *port);
    }
}

/// Returns true if each engine of node 1 refuses a connection to one of its ports.
fn all_answer(lab: &Lab) -> bool {
    [6999, 45_000, 60_000].into_iter().all(|port| {
        let connect = EspStream::builder().connect_at(&client(lab, 0), address(1, port));
        connect.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    })
}
