//! Datagram sockets against a daemon inside the test.

use std::io::ErrorKind;
use std::time::Duration;

use crate::support::{self, FakeDaemon, OWN, PEER};
use esp_client::control::Request;
use esp_client::{EdpKind, EdpSocket, EspError, NODE_PORT, NodeInfo, monotonic_nanos};

fn bind(daemon: &FakeDaemon) -> EdpSocket {
    let socket = EdpSocket::builder()
        .interface("eth1")
        .bind_at(&daemon.client(), 0)
        .unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    socket
}

#[test]
fn a_node_echoes_with_sequence_and_time() {
    let daemon = FakeDaemon::start();
    let socket = bind(&daemon);
    let before = monotonic_nanos();
    for sequence in 0..100 {
        let body = vec![sequence as u8; usize::from(sequence)];
        assert_eq!(socket.send_echo(PEER, sequence, &body).unwrap(), body.len());
        let mut buffer = [0; 2000];
        let (n, info) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..n], body);
        assert_eq!(
            (info.src, info.src_port, info.len),
            (PEER.into(), NODE_PORT, n)
        );
        assert_eq!((info.kind, info.sequence), (EdpKind::EchoReply, sequence));
        assert!((before..=monotonic_nanos()).contains(&info.received_nanos));
    }
}

#[test]
fn information_request_returns_node_info() {
    let daemon = FakeDaemon::start();
    let socket = bind(&daemon);
    socket.send_info_request(PEER, 3).unwrap();
    let mut buffer = [0; 100];
    let (n, info) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!((info.kind, info.sequence), (EdpKind::InfoReply, 3));
    let node = NodeInfo::parse(&buffer[..n]).unwrap();
    assert_eq!(
        (node.name.as_str(), node.max_payload, node.incarnation),
        ("peer", 1489, 7)
    );
}

#[test]
fn datagrams_keep_boundaries_and_short_buffers_truncate() {
    let daemon = FakeDaemon::start();
    let socket = bind(&daemon);
    socket.send_to(b"first", PEER, 9).unwrap();
    socket.send_to(b"second", PEER, 9).unwrap();
    let mut three = [0; 3];
    let (n, info) = socket.recv_from(&mut three).unwrap();
    assert_eq!(
        (n, info.len, info.src_port, info.kind),
        (3, 5, 9, EdpKind::Data)
    );
    assert_eq!(&three, b"fir");
    let mut buffer = [0; 10];
    let (n, _) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..n], b"second");
}

#[test]
fn a_datagram_longer_than_a_frame_is_refused() {
    let daemon = FakeDaemon::start();
    let socket = EdpSocket::builder().bind_at(&daemon.client(), 0).unwrap();
    assert_eq!(
        (socket.interface(), socket.addr(), socket.max_payload()),
        ("eth0", OWN.into(), 1489)
    );
    socket.send_to(&[0; 1489], PEER, 9).unwrap();
    let error = socket.send_to(&[0; 1490], PEER, 9).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        error.to_string(),
        "a datagram of 1490 bytes is too long: eth0 carries at most 1489"
    );
    socket.send_echo(PEER, 0, &[0; 1488]).unwrap();
    assert!(
        socket.send_echo(PEER, 0, &[0; 1489]).is_err(),
        "the control type takes a byte"
    );
}

#[test]
fn sending_waits_for_room_in_the_ring() {
    let daemon = FakeDaemon::start();
    let socket = EdpSocket::builder()
        .rings(4096, 1 << 20)
        .bind_at(&daemon.client(), 0)
        .unwrap();
    for i in 0..200u16 {
        socket.send_echo(PEER, i, &[0; 1000]).unwrap();
    }
    let mut buffer = [0; 1000];
    for i in 0..200 {
        let (_, info) = socket
            .recv_from_timeout(&mut buffer, Duration::from_secs(30))
            .unwrap();
        assert_eq!(info.sequence, i);
    }
}

#[test]
fn waits_time_out_and_nonblocking_calls_return() {
    let daemon = FakeDaemon::start();
    let socket = bind(&daemon);
    let error = socket
        .recv_from_timeout(&mut [0; 8], Duration::from_millis(10))
        .unwrap_err();
    assert!(matches!(
        EspError::of(&error),
        Some(EspError::CallTimedOut { .. })
    ));
    socket.set_nonblocking(true).unwrap();
    assert_eq!(
        socket.recv_from(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    assert_eq!(
        socket.try_recv_from(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
}

#[test]
fn bound_port_is_in_use_until_dropped() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let error = EdpSocket::builder().bind_at(&client, 13).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(bind(&daemon));
    daemon.wait_for("close", |request| {
        matches!(request, Request::CloseEdp { .. })
    });
}

#[test]
fn waiting_receiver_fails_with_the_daemon() {
    let mut daemon = FakeDaemon::start();
    let socket = EdpSocket::builder().bind_at(&daemon.client(), 0).unwrap();
    let error = support::within(30, "receiving", move || {
        std::thread::scope(|scope| {
            let waiting = support::blocked(scope, || socket.recv_from(&mut [0; 8]).unwrap_err());
            daemon.die();
            waiting.join().unwrap()
        })
    });
    assert!(
        matches!(EspError::of(&error), Some(EspError::DaemonGone { .. })),
        "{error}"
    );
}
