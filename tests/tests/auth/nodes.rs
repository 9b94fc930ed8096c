//! Functions that work as without authentication.

use std::io::{Read, Write};
use std::time::Duration;

use esp_client::{EdpKind, EdpSocket, MacAddr};
use esp_tests::exchange::Exchange;
use esp_tests::frames::Tap;
use esp_tests::links::{set, two_rails};
use esp_tests::{
    PATIENCE, check_pattern, client, counter, lab_or_skip, pair, send_pattern, wait_until,
};
use lab::{Carriers, LabOptions, Node};

use crate::{KeyFile, SEC, config, connect, refused};

const LENGTH: u64 = 4 << 20;

#[test]
fn streams_in_both_modes_over_both_carriers() {
    let key = KeyFile::new(1);
    for (mode, carriers, mtu, loss_ppm) in [
        ("encrypt", Carriers::Raw, 1500, 0),
        ("integrity", Carriers::Raw, 9000, 10_000),
        ("encrypt", Carriers::Udp, 9000, 10_000),
        ("integrity", Carriers::Udp, 1500, 0),
    ] {
        let mut options = LabOptions::new(2);
        (options.carriers, options.wire.mtu) = (carriers, mtu);
        options.wire.loss_ppm = loss_ppm;
        options.daemon_config = config(&[&key], &format!("mode = \"{mode}\""));
        let Some(lab) = lab_or_skip("streams_in_both_modes_over_both_carriers", &options) else {
            return;
        };
        let clients = [client(&lab, 0), client(&lab, 1)];
        let (left, right) = connect(&clients[0], &clients[1]).expect("connect");
        std::thread::scope(|scope| {
            scope.spawn(|| send_pattern(&left, LENGTH, 1));
            scope.spawn(|| send_pattern(&right, LENGTH, 2));
            scope.spawn(|| check_pattern(&left, LENGTH, 2));
            scope.spawn(|| check_pattern(&right, LENGTH, 1));
        });
        for client in &clients {
            assert!(counter(client, "auth_opened") * u64::from(mtu) > LENGTH);
            assert_eq!(refused(client), 0, "{mode} {mtu}");
            assert_eq!(counter(client, "link_tx_rejected"), 0, "{mode} {mtu}");
        }
    }
}

#[test]
fn nothing_readable_is_on_the_wire() {
    let key = KeyFile::new(1);
    let mut options = LabOptions::new(2);
    options.daemon_config = config(&[&key], "");
    let Some(lab) = lab_or_skip("nothing_readable_is_on_the_wire", &options) else {
        return;
    };
    let mut tap = Tap::of_cable(&lab, 0);
    let (mut left, mut right) = pair(&lab, 0, 1, 7000);
    let text = b"a text of the program that is easily found ".repeat(8);
    left.write_all(&text).expect("write");
    let mut read = vec![0; text.len()];
    right.read_exact(&mut read).expect("read");
    assert_eq!(read, text);
    let mut frames = 0;
    while let Some(frame) = tap.hear(Duration::ZERO) {
        frames += 1;
        assert_eq!(frame.flags & SEC, SEC, "{frame:?}");
        assert!(!frame.rest.windows(16).any(|part| part == &text[..16]));
    }
    assert!(frames > 3, "{frames} frames");
}

#[test]
fn echo_and_discovery() {
    let key = KeyFile::new(1);
    let mut options = LabOptions::new(3);
    options.daemon_config = config(&[&key], "");
    let Some(lab) = lab_or_skip("echo_and_discovery", &options) else {
        return;
    };
    let socket = EdpSocket::builder()
        .bind_at(&client(&lab, 0), 9000)
        .expect("bind");
    let mut buffer = [0; 2048];
    let mac = MacAddr(Node(1).mac());
    socket.send_echo(mac, 7, b"ping").expect("send");
    let (len, info) = socket
        .recv_from_timeout(&mut buffer, PATIENCE)
        .expect("a reply");
    assert_eq!(
        (&buffer[..len], info.kind),
        (&b"ping"[..], EdpKind::EchoReply)
    );
    // The first broadcast makes unknown nodes set up a session.
    let mut found = Vec::new();
    wait_until("both other nodes answer a broadcast", || {
        socket
            .send_info_request(MacAddr::BROADCAST, 8)
            .expect("send");
        let wait = Duration::from_millis(200);
        while let Ok((_, info)) = socket.recv_from_timeout(&mut buffer, wait) {
            if info.kind == EdpKind::InfoReply && !found.contains(&info.src) {
                found.push(info.src);
            }
        }
        found.len() == 2
    });
}

#[test]
fn connections_move_to_another_interface() {
    let key = KeyFile::new(1);
    let config = config(&[&key], "");
    let Some(lab) = two_rails("connections_move_to_another_interface", &config) else {
        return;
    };
    let (left, right) = pair(&lab, 0, 1, 7000);
    Exchange::during(&left, &right, |exchange| {
        exchange.flows(2 << 20);
        set(&lab, 0, "eth0", "down");
        wait_until("both ends have moved", || {
            let moved = |node| counter(&client(&lab, node), "connections_moved");
            moved(0) + moved(1) >= 2
        });
    });
}

#[test]
fn a_jumbo_stream_through_a_switch_of_a_small_mtu() {
    let key = KeyFile::new(1);
    let mut options = LabOptions::new(2);
    options.wire.mtu = 9000;
    options.daemon_config = config(&[&key], "");
    let test = "a_jumbo_stream_through_a_switch_of_a_small_mtu";
    let Some(lab) = lab_or_skip(test, &options) else {
        return;
    };
    esp_tests::process::ip_in_switch(&lab, "link set dev port1 mtu 1500");
    let (left, right) = pair(&lab, 0, 1, 7000);
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&left, 1 << 20, 1));
        check_pattern(&right, 1 << 20, 1);
    });
}

#[test]
fn programs_get_no_leases() {
    let key = KeyFile::new(1);
    let mut options = LabOptions::new(2);
    options.daemon_config = config(&[&key], "[lease]\nallow = \"root\"");
    let Some(lab) = lab_or_skip("programs_get_no_leases", &options) else {
        return;
    };
    let (left, right) = pair(&lab, 0, 1, 7000);
    send_pattern(&left, 1000, 1);
    check_pattern(&right, 1000, 1);
    for node in [0, 1] {
        assert_eq!(counter(&client(&lab, node), "leases_granted"), 0);
    }
}
