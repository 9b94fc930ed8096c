//! ESP in UDP between whole nodes: without a daemon and without a privilege, through a router, and
//! by the daemon.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use esp_client::{Client, EdpKind, EdpSocket, EspAddr, EspListener, EspStream, NodeAddr, NodeInfo};
use esp_tests::frames::Dice;
use esp_tests::process::{Daemon, bare_lab, ip};
use esp_tests::{PATIENCE, check_pattern, counter, lab_or_skip, send_pattern, wait_until};
use lab::{Lab, LabOptions, Node};

/// Bytes of a stream under test.
const LENGTH: u64 = 8 << 20;

/// Returns a client in a node that needs no daemon.
fn udp_client(lab: &Lab, node: usize) -> Client {
    lab.run_in(node, || Client::udp_at(0).expect("a UDP client"))
        .expect("enter the node")
}

/// Returns the address of a client's first interface.
fn own_address(client: &Client) -> NodeAddr {
    client.interface(None).expect("an interface").addr
}

/// Connects two clients. Returns both ends.
fn connect(from: &Client, to: &Client) -> (EspStream, EspStream) {
    let listener = EspListener::builder().bind_at(to, 0).expect("listen");
    let address = EspAddr::new(own_address(to), listener.port());
    std::thread::scope(|scope| {
        let left = scope.spawn(|| EspStream::builder().connect_at(from, address));
        let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
        (left.join().expect("no panic").expect("connect"), right)
    })
}

/// Sends a pattern each way at once and checks every byte.
fn exchange((left, right): &(EspStream, EspStream)) {
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(left, LENGTH, 1));
        scope.spawn(|| send_pattern(right, LENGTH, 2));
        scope.spawn(|| check_pattern(left, LENGTH, 2));
        scope.spawn(|| check_pattern(right, LENGTH, 1));
    });
}

#[test]
fn programs_without_a_daemon_exchange_streams() {
    for (mtu, loss_ppm) in [(1500, 0), (9000, 0), (1500, 10_000)] {
        let mut options = LabOptions::new(2);
        options.daemon = false;
        (options.wire.mtu, options.wire.loss_ppm) = (mtu, loss_ppm);
        let Some(lab) = lab_or_skip("programs_without_a_daemon_exchange_streams", &options) else {
            return;
        };
        let clients = [udp_client(&lab, 0), udp_client(&lab, 1)];
        let ends = connect(&clients[0], &clients[1]);
        assert!(ends.0.peer_addr().addr.is_udp());
        exchange(&ends);
    }
}

#[test]
fn a_port_of_a_program_without_a_daemon_has_one_listener() {
    let mut options = LabOptions::new(1);
    options.daemon = false;
    let name = "a_port_of_a_program_without_a_daemon_has_one_listener";
    let Some(lab) = lab_or_skip(name, &options) else {
        return;
    };
    let client = udp_client(&lab, 0);
    let bind = |port| EspListener::builder().bind_at(&client, port);
    let first = bind(7000).expect("listen");
    let again = bind(7000).expect_err("taken");
    assert_eq!(again.kind(), std::io::ErrorKind::AddrInUse);
    let any = [bind(0), bind(0)].map(|any| any.expect("listen"));
    assert_ne!(any[0].port(), any[1].port());
    drop(first);
    bind(7000).expect("listen again");
}

#[test]
fn an_interface_without_ipv4_is_reached_by_ipv6() {
    let Some(lab) = bare_lab("an_interface_without_ipv4_is_reached_by_ipv6", 2) else {
        return;
    };
    for node in 0..2 {
        let enable = || std::fs::write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "0");
        lab.run_in(node, enable)
            .expect("enter the node")
            .expect("IPv6");
        ip(&lab, node, "address flush dev eth0");
        ip(
            &lab,
            node,
            &format!("address add fd00::{node}1/64 dev eth0 nodad"),
        );
    }
    let clients = [udp_client(&lab, 0), udp_client(&lab, 1)];
    assert!(own_address(&clients[0]).to_string().starts_with("[fd00::"));
    exchange(&connect(&clients[0], &clients[1]));
}

#[test]
fn nodes_answer_requests_with_no_more_bytes() {
    let Some(lab) = bare_lab("nodes_answer_requests_with_no_more_bytes", 2) else {
        return;
    };
    let clients = [udp_client(&lab, 0), udp_client(&lab, 1)];
    let socket = EdpSocket::builder().bind_at(&clients[0], 0).expect("bind");
    let peer = own_address(&clients[1]);
    for length in [0, 1, 100, socket.max_payload() - 1] {
        let body = vec![7; length];
        socket.send_echo(peer, 3, &body).expect("send");
        let mut buffer = vec![0; 65536];
        let (got, info) = socket
            .recv_from_timeout(&mut buffer, PATIENCE)
            .expect("an answer");
        assert_eq!(
            (info.kind, info.src, info.sequence),
            (EdpKind::EchoReply, peer, 3)
        );
        assert_eq!(buffer[..got], body);
    }
    socket.send_info_request(peer, 4).expect("send");
    let mut buffer = vec![0; 65536];
    let (got, info) = socket
        .recv_from_timeout(&mut buffer, PATIENCE)
        .expect("an answer");
    assert_eq!(info.kind, EdpKind::InfoReply);
    NodeInfo::parse(&buffer[..got]).expect("a node's information");

    // A packet that is too short is not answered; no answer is longer than its request. (The name
    // of a node makes its answer longer; this one has none.)
    let NodeAddr::Udp(at) = peer else {
        panic!("{peer}")
    };
    let plain = lab
        .run_in(0, || std::net::UdpSocket::bind("0.0.0.0:0").expect("bind"))
        .expect("enter the node");
    plain
        .set_read_timeout(Some(Duration::from_millis(300)))
        .expect("a timeout");
    let request = |length: usize| {
        let mut packet = vec![0x88, 0xb6, 0, 0, 0x9c, 0x40, 0, 3, 0, 0, 0, 1, 1, 3];
        packet.resize(length, 0);
        packet
    };
    for (length, answered) in [(47, false), (48, true), (128, true)] {
        plain.send_to(&request(length), at).expect("send");
        let answer = plain.recv_from(&mut buffer);
        assert_eq!(answer.is_ok(), answered, "{length} bytes: {answer:?}");
        assert!(answer.is_err() || answer.is_ok_and(|(got, _)| got <= length));
    }
}

#[test]
fn a_router_passes_it_and_no_privilege_is_needed() {
    let Some(lab) = bare_lab("a_router_passes_it_and_no_privilege_is_needed", 3) else {
        return;
    };
    // Node 1 routes between the networks of nodes 0 and 2.
    ip(&lab, 2, "address flush dev eth0");
    ip(&lab, 2, "address add 10.98.0.3/24 dev eth0");
    ip(&lab, 1, "address add 10.98.0.2/24 dev eth0");
    ip(&lab, 0, "route add 10.98.0.0/24 via 10.99.0.2");
    ip(&lab, 2, "route add 10.99.0.0/24 via 10.98.0.2");
    lab.run_in(1, || {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwarding");
    })
    .expect("enter the node");

    let program = esp_tests::process::programs().join("examples/udp");
    let unprivileged = |node: usize| -> Command {
        let mut command = lab.command(node, "setpriv").expect("a command of the node");
        let user = "--reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all";
        command.args(user.split(' ')).arg(&program);
        command
    };
    let mut server = unprivileged(2)
        .arg("serve")
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(
        server.stdout.take().expect("its output"),
    ));
    let address = lines.next().expect("a line").expect("its address");
    assert!(address.starts_with("10.98.0.3@"), "{address}");
    let client = unprivileged(0)
        .args([&address, "16"])
        .output()
        .expect("the client");
    assert!(client.status.success(), "{client:?}");
    let said = String::from_utf8_lossy(&client.stdout).into_owned();
    assert!(said.starts_with("16777216 bytes"), "{said}");
    assert!(server.wait().expect("its end").success());
}

/// W-126: the kernel of a killed program's node reports that its port is closed. Without that its
/// peer would wait an hour here.
#[test]
fn a_killed_program_is_noticed_by_its_closed_port() {
    let test = "a_killed_program_is_noticed_by_its_closed_port";
    let Some(lab) = bare_lab(test, 2) else {
        return;
    };
    let program = esp_tests::process::programs().join("examples/udp");
    let start = |node: usize, arguments: &[&str]| {
        let mut command = lab.command(node, &program).expect("a command of the node");
        command
            .args(arguments)
            .env("ESP_PEER_TIMEOUT", "3600")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("the program")
    };
    let mut server = start(1, &["serve"]);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(
        server.stdout.take().expect("its output"),
    ));
    let address = lines.next().expect("a line").expect("its address");
    let client = start(0, &[&address, "1000000"]);
    let connected = lines.next().expect("a line").expect("a peer");
    assert!(connected.starts_with("connected to "), "{connected}");
    server.kill().expect("kill it");
    server.wait().expect("its end");
    let ended = client.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success(), "{said}");
    assert!(said.contains("does not respond"), "{said}");
}

#[test]
fn the_daemon_serves_the_networks_of_its_configuration() {
    let Some(lab) = bare_lab("the_daemon_serves_the_networks_of_its_configuration", 2) else {
        return;
    };
    let daemon = Daemon::start(&lab, 0, "udp = [\"10.99.0.0/24\"]\n");
    let local = daemon.client();
    let names: Vec<_> = local
        .interfaces()
        .iter()
        .map(|own| own.name.clone())
        .collect();
    assert_eq!(names, ["eth0", "eth0/udp"]);

    // A program of the node listens on both; one without a daemon connects by UDP.
    let listener = EspListener::builder().bind_at(&local, 0).expect("listen");
    let far = udp_client(&lab, 1);
    let server = NodeAddr::Udp(SocketAddr::from((Node(0).ip(), 2805)));
    let address = EspAddr::new(server, listener.port());
    let left = EspStream::builder()
        .connect_at(&far, address)
        .expect("connect");
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    let ends = (left, right);
    let seen = local.status().expect("status").connections;
    assert!(
        seen.iter().any(|one| one.interface == "eth0/udp"),
        "{seen:?}"
    );
    exchange(&ends);

    // And back: the daemon's programs reach addresses of UDP.
    let listener = EspListener::builder().bind_at(&far, 0).expect("listen");
    let address = EspAddr::new(own_address(&far), listener.port());
    std::thread::scope(|scope| {
        let back = scope.spawn(|| EspStream::builder().connect_at(&local, address));
        listener.accept_timeout(PATIENCE).expect("accept");
        back.join().expect("no panic").expect("connect");
    });

    // Packets of another network are dropped and counted.
    ip(&lab, 1, "address add 10.97.0.2/24 dev eth0");
    ip(&lab, 0, "route add 10.97.0.0/24 dev eth0");
    let stranger = lab
        .run_in(1, || {
            std::net::UdpSocket::bind("10.97.0.2:0").expect("bind")
        })
        .expect("enter the node");
    let dropped = || counter(&local, "link_rx_source");
    assert_eq!(dropped(), 0);
    stranger.send_to(&[0; 64], "10.99.0.1:2805").expect("send");
    wait_until("the packet is counted", || dropped() == 1);
}

#[test]
fn hostile_datagrams_change_nothing() {
    let Some(lab) = bare_lab("hostile_datagrams_change_nothing", 2) else {
        return;
    };
    let daemon = Daemon::start(&lab, 0, "udp = [\"on-link\"]\n");
    let local = daemon.client();
    let far = udp_client(&lab, 1);
    let listener = EspListener::builder().bind_at(&local, 0).expect("listen");
    let server = NodeAddr::Udp(SocketAddr::from((Node(0).ip(), 2805)));
    let left = EspStream::builder()
        .connect_at(&far, EspAddr::new(server, listener.port()))
        .expect("connect");
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    let hostile = lab
        .run_in(1, || std::net::UdpSocket::bind("0.0.0.0:0").expect("bind"))
        .expect("enter the node");
    let to = SocketAddr::from((Node(0).ip(), 2805));
    let send = |packet: &[u8]| {
        let _ = hostile.send_to(packet, to);
    };
    let runts = || counter(&local, "rx_drop_runt");
    let before = runts();
    for length in 0..48 {
        send(&vec![0x88; length]);
    }
    // The empty one is not a packet at all.
    wait_until("the short ones are counted", || runts() == before + 47);
    let mut dice = Dice::new();
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&left, LENGTH, 5));
        scope.spawn(|| check_pattern(&right, LENGTH, 5));
        for round in 0..20_000u32 {
            let mut packet = dice.bytes(1400);
            // Half of them have a packet type, and half of those the ports of the connection.
            if round % 2 == 0 && packet.len() > 8 {
                packet[..2].copy_from_slice(&[0x88, 0xb5 + (round / 2 % 2) as u8]);
                if round % 4 == 0 {
                    packet[2..4].copy_from_slice(&listener.port().to_be_bytes());
                }
            }
            send(&packet);
        }
    });
    assert!(local.status().is_ok());
}
