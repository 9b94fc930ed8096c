//! Datagrams between whole nodes: delivery, and counters of those not delivered.

use std::collections::BTreeSet;
use std::io;
use std::thread;
use std::time::Duration;

use esp_client::control::ErrorKind;
use esp_client::{DatagramInfo, EdpKind, EdpSocket, EspError, MacAddr, NodeInfo};
use esp_tests::{PATIENCE, byte, client, counter, lab_or_skip, wait_until};
use lab::{Lab, LabOptions, Node};

fn bind(lab: &Lab, node: usize, port: u16) -> EdpSocket {
    EdpSocket::builder()
        .bind_at(&client(lab, node), port)
        .expect("bind")
}

fn mac(node: usize) -> MacAddr {
    MacAddr(Node(node).mac())
}

/// Receives the next datagram.
#[track_caller]
fn receive(socket: &EdpSocket) -> (Vec<u8>, DatagramInfo) {
    let mut buffer = vec![0; 65536];
    let (len, info) = socket
        .recv_from_timeout(&mut buffer, PATIENCE)
        .expect("a datagram");
    assert_eq!(len, info.len);
    buffer.truncate(len);
    (buffer, info)
}

fn pattern(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64).map(|i| byte(i, salt)).collect()
}

#[test]
fn datagrams_of_every_size_both_ways_and_within_a_node() {
    for mtu in [1500, 9000] {
        let mut options = LabOptions::new(2);
        options.wire.mtu = mtu;
        let Some(lab) = lab_or_skip("datagrams_of_every_size", &options) else {
            return;
        };
        let max = mtu as usize - 11;
        let sockets = [bind(&lab, 0, 9000), bind(&lab, 1, 9001)];
        let inside = bind(&lab, 0, 9002);
        for len in [0, 1, 34, 35, 36, 128, 129, 1000, max - 1, max] {
            let ways = [
                (&sockets[0], &sockets[1]),
                (&sockets[1], &sockets[0]),
                (&sockets[0], &inside),
            ];
            for (from, to) in ways {
                assert_eq!(from.max_payload(), max);
                let sent = pattern(len, u64::from(to.port()));
                assert_eq!(from.send_to(&sent, to.addr(), to.port()).unwrap(), len);
                let (bytes, info) = receive(to);
                assert!(bytes == sent, "{len} bytes");
                assert_eq!(
                    (info.src, info.src_port, info.kind),
                    (from.addr(), from.port(), EdpKind::Data)
                );
            }
        }
        let error = sockets[0]
            .send_to(&pattern(max + 1, 1), mac(1), 9001)
            .expect_err("too long");
        let Some(EspError::TooLong { max: most, .. }) = EspError::of(&error) else {
            panic!("{error}");
        };
        assert_eq!(*most, max);
        // A buffer that is too small gets the beginning; the next datagram is complete.
        sockets[0]
            .send_to(b"longer than that", mac(1), 9001)
            .unwrap();
        sockets[0].send_to(b"next", mac(1), 9001).unwrap();
        let mut small = [0; 6];
        let (len, info) = sockets[1].recv_from_timeout(&mut small, PATIENCE).unwrap();
        assert_eq!((len, info.len, &small), (6, 16, b"longer"));
        assert_eq!(receive(&sockets[1]).0, b"next");
    }
}

#[test]
fn nodes_answer_echo_and_information() {
    let Some(lab) = lab_or_skip("nodes_answer", &LabOptions::new(2)) else {
        return;
    };
    let socket = bind(&lab, 0, 0);
    assert!(socket.port() >= 32768);
    // The other node, and its own.
    for node in [1, 0] {
        for (sequence, len) in [(7, 0), (8, 1), (65535, 1488)] {
            let body = pattern(len, sequence.into());
            socket.send_echo(mac(node), sequence, &body).unwrap();
            let (bytes, info) = receive(&socket);
            assert!(bytes == body, "{len} bytes");
            assert_eq!(
                (info.src, info.src_port, info.kind, info.sequence),
                (mac(node).into(), 0, EdpKind::EchoReply, sequence)
            );
        }
        socket.send_info_request(mac(node), 9).unwrap();
        let (bytes, info) = receive(&socket);
        assert_eq!(
            (info.src, info.kind, info.sequence),
            (mac(node).into(), EdpKind::InfoReply, 9)
        );
        let about = NodeInfo::parse(&bytes).expect("information");
        let expected = (
            1,
            1489,
            0,
            client(&lab, node).incarnation(),
            Node(node).to_string(),
        );
        assert_eq!(
            (
                about.version,
                about.max_payload,
                about.features,
                about.incarnation,
                about.name
            ),
            expected
        );
    }
    let error = socket
        .send_echo(mac(1), 1, &pattern(1489, 1))
        .expect_err("too long with its type");
    assert!(matches!(
        EspError::of(&error),
        Some(EspError::TooLong { .. })
    ));
    assert_eq!(counter(&client(&lab, 1), "rx_edp_requests"), 4);
}

#[test]
fn every_node_answers_a_broadcast_once() {
    const NODES: usize = 5;
    let Some(lab) = lab_or_skip("everybody_answers", &LabOptions::new(NODES)) else {
        return;
    };
    let socket = bind(&lab, 0, 0);
    for kind in [EdpKind::InfoReply, EdpKind::EchoReply] {
        match kind {
            EdpKind::InfoReply => socket
                .send_info_request(MacAddr::BROADCAST, 3)
                .map(drop)
                .unwrap(),
            _ => socket
                .send_echo(MacAddr::BROADCAST, 3, b"all")
                .map(drop)
                .unwrap(),
        }
        let mut answered = BTreeSet::new();
        for _ in 1..NODES {
            let (_, info) = receive(&socket);
            assert_eq!((info.kind, info.sequence), (kind, 3));
            assert!(
                answered.insert(info.src.mac().unwrap().octets()),
                "{} answered twice",
                info.src
            );
        }
        assert_eq!(answered, (1..NODES).map(|node| Node(node).mac()).collect());
    }
    // Replies are sent only to the requester.
    for node in 1..NODES {
        let other = client(&lab, node);
        assert_eq!(counter(&other, "rx_edp_requests"), 2);
        assert_eq!(counter(&other, "rx_drop_edp_port"), 0);
    }
}

#[test]
fn a_burst_arrives_completely_on_a_good_wire() {
    const MANY: u64 = 1500;
    let Some(lab) = lab_or_skip("a_burst_arrives_whole", &LabOptions::new(2)) else {
        return;
    };
    let receiver = EdpSocket::builder()
        .rings(1 << 16, 1 << 20)
        .bind_at(&client(&lab, 1), 9001)
        .unwrap();
    for tx_ring in [1 << 18, 4096] {
        // Large: all at once. Small: the sender has to wait for room repeatedly.
        let sender = EdpSocket::builder()
            .rings(tx_ring, 1 << 16)
            .bind_at(&client(&lab, 0), 0)
            .unwrap();
        sender.set_write_timeout(Some(PATIENCE)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..MANY {
                    sender
                        .send_to(&pattern(100, number), mac(1), 9001)
                        .expect("room in the end");
                }
            });
            for number in 0..MANY {
                assert!(
                    receive(&receiver).0 == pattern(100, number),
                    "datagram {number} with a ring of {tx_ring}"
                );
            }
        });
    }
    // Datagrams sent before a close are still delivered.
    let sender = bind(&lab, 0, 0);
    for number in 0..200 {
        sender.send_to(&pattern(100, number), mac(1), 9001).unwrap();
    }
    drop(sender);
    for number in 0..200 {
        assert!(
            receive(&receiver).0 == pattern(100, number),
            "datagram {number} of a closed socket"
        );
    }
    assert_eq!(counter(&client(&lab, 0), "link_datagram_refused"), 0);
}

#[test]
fn what_does_not_fit_into_the_ring_is_dropped_and_counted() {
    let Some(lab) = lab_or_skip("what_does_not_fit", &LabOptions::new(2)) else {
        return;
    };
    let there = client(&lab, 1);
    let receiver = EdpSocket::builder()
        .rings(4096, 8192)
        .bind_at(&there, 9001)
        .unwrap();
    let sender = bind(&lab, 0, 9000);
    // A record has 40 bytes in addition to the 1000: seven fit.
    for number in 0..20 {
        sender
            .send_to(&pattern(1000, number), mac(1), 9001)
            .unwrap();
    }
    wait_until("all have come", || counter(&there, "rx_datagrams") == 20);
    wait_until("the rest is counted", || {
        counter(&there, "link_datagram_overflow") > 0
    });
    assert_eq!(counter(&there, "link_datagram_overflow"), 13);
    for number in 0..7 {
        assert!(
            receive(&receiver).0 == pattern(1000, number),
            "datagram {number}"
        );
    }
    assert_eq!(
        receiver
            .try_recv_from(&mut [0; 9])
            .map(drop)
            .unwrap_err()
            .kind(),
        io::ErrorKind::WouldBlock
    );
    // There is room again.
    sender.send_to(b"later", mac(1), 9001).unwrap();
    assert_eq!(receive(&receiver).0, b"later");
}

#[test]
fn unsendable_and_undeliverable_datagrams_are_counted() {
    let Some(lab) = lab_or_skip("what_cannot_be_sent", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let sender = bind(&lab, 0, 9000);
    let receiver = bind(&lab, 1, 9001);
    sender.send_to(b"for nobody", mac(1), 9999).unwrap();
    wait_until("it is counted", || counter(&there, "rx_drop_edp_port") == 1);
    // W-72: data cannot be sent to groups, nor to the node itself.
    sender
        .send_to(b"for all", MacAddr::BROADCAST, 9001)
        .unwrap();
    sender
        .send_to(b"for some", MacAddr([1, 0, 0, 0, 0, 1]), 9001)
        .unwrap();
    sender.send_to(b"for the node", mac(1), 0).unwrap();
    wait_until("they are counted", || {
        counter(&here, "link_datagram_refused") == 3
    });
    // To an absent station: the datagram is sent without an error.
    sender.send_to(b"to nowhere", mac(77), 9001).unwrap();
    sender.send_to(b"but this one", mac(1), 9001).unwrap();
    assert_eq!(receive(&receiver).0, b"but this one");

    let error = receiver
        .recv_from_timeout(&mut [0; 9], Duration::from_millis(30))
        .expect_err("nothing else");
    assert!(
        matches!(EspError::of(&error), Some(EspError::CallTimedOut { .. })),
        "{error}"
    );
    let port_taken = EdpSocket::builder()
        .bind_at(&there, 9001)
        .expect_err("one socket for each port");
    assert!(matches!(
        port_taken,
        EspError::Denied {
            kind: ErrorKind::InUse,
            ..
        }
    ));
    // The port of a closed socket can be bound again at once; waiting datagrams are not delivered
    // to the new owner.
    sender.send_to(b"for the old one", mac(1), 9001).unwrap();
    wait_until("it has come", || counter(&there, "rx_datagrams") == 2);
    drop(receiver);
    wait_until("the port is free", || {
        there.status().unwrap().edp.is_empty()
    });
    let receiver = bind(&lab, 1, 9001);
    sender.send_to(b"for the new one", mac(1), 9001).unwrap();
    assert_eq!(receive(&receiver).0, b"for the new one");
}
