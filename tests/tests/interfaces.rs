//! Interfaces that change below a daemon: removed and made again, another address, an address that
//! another node has; and what esping says about them.

use std::io::Read;
use std::net::SocketAddr;

use esp_client::{Client, EspAddr, EspListener, EspStream, MacAddr, NodeAddr};
use esp_tests::process::{
    Daemon, Finished, TempFile, bare_lab, ip, ip_in_switch, output, programs,
};
use esp_tests::program::Program;
use esp_tests::{PATIENCE, check_pattern, client, lab_or_skip, pair, send_pattern, wait_until};
use lab::{Lab, LabOptions, Node};

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");

fn run(lab: &Lab, node: usize, program: &str, args: &[&str]) -> Finished {
    let mut command = lab
        .command(node, programs().join(program))
        .expect("a command of the node");
    output(command.args(args))
}

/// Makes the interface of node 0 again, with this address.
fn make_again(lab: &Lab, mac: MacAddr) {
    let pid = lab.state().nodes[0].holder.pid;
    ip_in_switch(
        lab,
        &format!("link add name port0 type veth peer name eth0 address {mac} netns {pid}"),
    );
    ip_in_switch(lab, "link set dev port0 master br0 up");
    ip(lab, 0, "link set dev eth0 up");
}

fn state(client: &Client) -> (bool, String) {
    let status = client.status().expect("status");
    let own = &status.interfaces[0];
    (own.up, own.addr.to_string())
}

/// Asserts that streams connect both ways and carry data.
fn works(left: &EspStream, right: &EspStream) {
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(left, 300_000, 1));
        check_pattern(right, 300_000, 1);
    });
}

#[test]
fn an_interface_that_is_removed_and_made_again_is_used_again() {
    removed_and_made_again("made_again", 1);
}

#[test]
fn an_interface_that_is_made_again_is_used_by_all_engines() {
    removed_and_made_again("made_again_for_all", 2);
}

fn removed_and_made_again(test: &str, engines: u8) {
    let Some(lab) = bare_lab(test, 2) else {
        return;
    };
    let config = format!("engines = {engines}\n");
    let (daemon, _other) = (Daemon::start(&lab, 0, &config), Daemon::start(&lab, 1, ""));
    let here = daemon.client();
    let listener = EspListener::builder().bind_at(&here, 7001).unwrap();
    // The second time with another address, as another adapter in the slot would have.
    let other = MacAddr([2, 0xe5, 0, 0, 0, 0x51]);
    for mac in [MacAddr(Node(0).mac()), other] {
        let (mut left, _right) = pair(&lab, 0, 1, 7000);
        ip_in_switch(&lab, "link del dev port0");
        wait_until("the daemon notices the removal", || !state(&here).0);
        left.set_read_timeout(Some(PATIENCE)).unwrap();
        left.read(&mut [0; 9]).expect_err("its interface is gone");
        make_again(&lab, mac);
        wait_until("the daemon uses it again", || {
            state(&here) == (true, mac.to_string())
        });
        // Connections from here, and to the listener that was there before.
        let (left, right) = pair(&lab, 0, 1, 7002);
        works(&left, &right);
        let back = EspStream::builder()
            .connect_at(&client(&lab, 1), EspAddr::new(mac, 7001))
            .unwrap();
        works(&back, &listener.accept_timeout(PATIENCE).unwrap().0);
        // Each program gets the engine with the fewest.
        let ports = [7003, 7004].map(|port| (port, format!("listen:{port}")));
        let servers = ports.each_ref().map(|(_, listen)| {
            let server = Program::start_in(&lab, 0, PROGRAM, &[listen, "accept", "echo"]);
            server.says(&format!("ok {listen}"));
            server
        });
        for (port, _) in ports {
            wait_until("the engine serves it", || {
                let to = EspAddr::new(mac, port);
                let stream = EspStream::builder().connect_at(&client(&lab, 1), to);
                stream.is_ok_and(|stream| {
                    works(&stream, &stream);
                    true
                })
            });
        }
        drop(servers);
        // Datagrams, from a new program.
        let echo = run(&lab, 0, "esping", &["-c", "2", "-i", "0.01", "node1"]);
        assert_eq!(echo.code, Some(0), "{echo:?}");
    }
    // Another daemon may not serve the interface under its new number either.
    let second = run(
        &lab,
        0,
        "esp-daemon",
        &[
            "--interface",
            "eth0",
            "--socket",
            "/tmp/esp-tests-second/esp.sock",
        ],
    );
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.err.contains("serves eth0"), "{second:?}");
}

#[test]
fn a_link_of_udp_is_used_again_when_its_interface_is_made_again() {
    let Some(lab) = bare_lab("made_again_udp", 2) else {
        return;
    };
    let daemon = Daemon::start(&lab, 0, "udp = [\"10.99.0.0/24\"]\n");
    let here = daemon.client();
    let is_up = || {
        let status = here.status().expect("status");
        let mut links = status.interfaces.iter();
        links.any(|link| link.name == "eth0/udp" && link.up)
    };
    let (listener, far) = (
        EspListener::builder().bind_at(&here, 7001).unwrap(),
        lab.run_in(1, || Client::udp_at(0).expect("a UDP client"))
            .expect("the node"),
    );
    let own = Node(0).ip();
    let at = NodeAddr::Udp(SocketAddr::from((own, 2805)));
    let works_by_udp = || {
        let there = EspStream::builder()
            .connect_at(&far, EspAddr::new(at, 7001))
            .unwrap();
        works(&there, &listener.accept_timeout(PATIENCE).unwrap().0);
    };
    works_by_udp();
    ip_in_switch(&lab, "link del dev port0");
    wait_until("the daemon notices the removal", || !is_up());
    make_again(&lab, MacAddr(Node(0).mac()));
    ip(&lab, 0, &format!("addr add {own}/24 dev eth0"));
    wait_until("the daemon uses it again", is_up);
    works_by_udp();
}

#[test]
fn a_changed_address_is_used_and_streams_end_at_once() {
    let Some(lab) = lab_or_skip("changed_address", &LabOptions::new(2)) else {
        return;
    };
    let here = client(&lab, 0);
    let (left, right) = pair(&lab, 0, 1, 7000);
    ip(&lab, 0, "link set eth0 address 02:e5:00:00:00:61");
    wait_until("the daemon uses the new address", || {
        state(&here) == (true, "02:e5:00:00:00:61".to_owned())
    });
    for mut end in [&left, &right] {
        // Not after the peer's time limit: the peer is notified from the old address.
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = end.read(&mut [0; 9]).expect_err("the address has changed");
        assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
    }
    let (left, right) = pair(&lab, 0, 1, 7001);
    works(&left, &right);
    let to_new = EspAddr::new(MacAddr([2, 0xe5, 0, 0, 0, 0x61]), 7002);
    let listener = EspListener::builder().bind_at(&here, 7002).unwrap();
    let back = EspStream::builder()
        .connect_at(&client(&lab, 1), to_new)
        .unwrap();
    works(&back, &listener.accept_timeout(PATIENCE).unwrap().0);
    // A node that still uses the old address learns the new one.
    let old = run(&lab, 1, "esping", &["-c", "1", "-W", "0.05", "node0"]);
    assert_eq!(old.code, Some(1), "{old:?}");
    assert!(
        old.out.contains("has the address 02:e5:00:00:00:61 now"),
        "{old:?}"
    );
}

#[test]
fn two_nodes_with_one_address_are_reported() {
    let Some(lab) = lab_or_skip("one_address", &LabOptions::new(3)) else {
        return;
    };
    let same = MacAddr(Node(1).mac());
    let args = ["-c", "2", "-i", "0.01", "-W", "0.1", "node1"];
    let before = run(&lab, 0, "esping", &args);
    assert!(!before.out.contains("several nodes"), "{before:?}");
    ip(&lab, 2, &format!("link set eth0 address {same}"));
    let third = client(&lab, 2);
    wait_until("the third node has it, too", || {
        state(&third).1 == same.to_string()
    });
    let after = run(&lab, 0, "esping", &args);
    assert!(
        after
            .out
            .contains("several nodes have the address 02:e5:00:00:00:02: node1, node2"),
        "{after:?}"
    );
    let json = run(&lab, 0, "esping", &[&args[..], &["--json"]].concat());
    assert!(
        json.out.contains("\"type\":\"duplicate_address\""),
        "{json:?}"
    );
    let doctor = run(&lab, 0, "esp", &["doctor", "--all", "-q"]);
    assert!(doctor.out.contains("have the address"), "{doctor:?}");
}

/// Faults and what esping says about them, each repaired before the next.
#[test]
fn total_loss_is_explained() {
    let Some(lab) = bare_lab("total_loss", 3) else {
        return;
    };
    let own = Daemon::start(&lab, 0, "");
    let mut peer = Daemon::start(&lab, 1, "");
    let third = Daemon::start(&lab, 2, "");
    let explained = |wanted: &str| {
        let args = ["-c", "1", "-W", "0.05", "node1"];
        let run = run(&lab, 0, "esping", &args);
        assert_eq!(run.code, Some(1), "{wanted}: {run:?}");
        let all = format!("{}{}", run.out, run.err);
        assert!(all.contains(wanted), "{wanted}: {run:?}");
    };
    // The peer's switch port is in another VLAN; the third node still answers.
    ip_in_switch(&lab, "link set dev port0 type bridge_slave isolated on");
    ip_in_switch(&lab, "link set dev port1 type bridge_slave isolated on");
    explained("another node on eth0 answers");
    // As if the switch port of this node were in another VLAN.
    ip_in_switch(&lab, "link set dev port2 type bridge_slave isolated on");
    explained("no other node on eth0 answers either");
    for port in 0..3 {
        let isolated = format!("link set dev port{port} type bridge_slave isolated off");
        ip_in_switch(&lab, &isolated);
    }
    peer.terminate();
    explained("is esp-daemon running there");
    let here = own.client();
    ip(&lab, 0, "link set eth0 down");
    wait_until("the daemon notices", || !state(&here).0);
    explained("eth0 is disabled: ip link set eth0 up");
    ip(&lab, 0, "link set eth0 up");
    ip_in_switch(&lab, "link set dev port0 down");
    wait_until("the daemon notices", || !state(&here).0);
    explained("eth0 has no carrier");
    ip_in_switch(&lab, "link del dev port0");
    explained("eth0 no longer exists");
    drop(third);
}

#[test]
fn small_socket_buffers_are_warned_of() {
    let Some(lab) = bare_lab("small_buffers", 1) else {
        return;
    };
    let limit = |file: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/core/{file}")).unwrap();
        text.trim().parse::<usize>().unwrap()
    };
    let small = limit("rmem_max").min(limit("wmem_max")) < netif::WINDOW_BYTES;
    // Without the privilege to exceed the system's limit, and with it.
    let set = "--bounding-set=-net_admin --inh-caps=-net_admin";
    for (wrapper, warned) in [(format!("setpriv {set}"), small), ("env".into(), false)] {
        let log = TempFile::new("");
        let line = format!("exec {wrapper} \"$@\" 2>{}", log.path().display());
        let mut daemon = Daemon::start_by(&lab, 0, "", &["sh", "-c", &line, "sh"]);
        assert_eq!(daemon.terminate().code(), Some(0));
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(text.contains("small socket buffers"), warned, "{text}");
    }
}
