//! Paths and interfaces whose MTU becomes smaller.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

use esp_client::{Client, EspError};
use esp_tests::process::{ip, ip_in_switch};
use esp_tests::{check_pattern, client, counter, lab_or_skip, pair, send_pattern, wait_until};
use lab::{Lab, LabOptions};

use super::{IMPATIENT, read_to_error, write_to_error};

/// Creates a lab with jumbo frames whose daemons have a short peer timeout.
fn jumbo_lab(test: &str) -> Option<Lab> {
    let mut options = LabOptions::new(2);
    options.wire.mtu = 9000;
    options.daemon_config = IMPATIENT.into();
    lab_or_skip(test, &options)
}

fn payload(client: &Client, peer_port: u16) -> u16 {
    let status = client.status().expect("status");
    status
        .connections
        .iter()
        .find(|c| c.peer_port == peer_port)
        .and_then(|c| c.payload)
        .unwrap_or(0)
}

/// W-53, W-46: data cut for a larger MTU cannot be cut again; the connection times out, a new one
/// works.
#[test]
fn a_path_that_becomes_narrower_ends_what_was_cut_too_long() {
    let Some(lab) = jumbo_lab("a_path_that_becomes_narrower") else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    for (from, to) in [(0, 1), (1, 0)] {
        ip_in_switch(&lab, "link set dev port1 mtu 9000");
        let (sender, receiver) = pair(&lab, from, to, 7000);
        let (me, other) = if from == 0 {
            (&here, &there)
        } else {
            (&there, &here)
        };
        thread::scope(|scope| {
            let writer = scope.spawn(|| write_to_error(&sender));
            let reader = scope.spawn(|| read_to_error(&receiver).1);
            wait_until("full frames flow", || payload(me, 7000) == 8989);
            let goal = counter(other, "rx_data_bytes") + (1 << 20);
            wait_until("bytes flow", || counter(other, "rx_data_bytes") > goal);
            ip_in_switch(&lab, "link set dev port1 mtu 1500");
            let (wrote, read) = (writer.join().unwrap(), reader.join().unwrap());
            assert!(matches!(wrote, EspError::TimedOut { .. }), "{wrote:?}");
            assert!(matches!(read, EspError::TimedOut { .. }), "{read:?}");
        });
        // New connections do not wait: they use smaller packets.
        let (sender, receiver) = pair(&lab, from, to, 7001);
        thread::scope(|scope| {
            scope.spawn(|| send_pattern(&sender, 4 << 20, 1));
            check_pattern(&receiver, 4 << 20, 1);
        });
    }
}

/// W-53: both ends detect that the switch between them does not carry their MTU.
#[test]
fn a_path_narrower_than_its_ends_carries_smaller_frames() {
    let Some(lab) = jumbo_lab("a_path_narrower_than_its_ends") else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    ip_in_switch(&lab, "link set dev port1 mtu 1500");
    let (left, right) = pair(&lab, 0, 1, 7000);
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(&left, 4 << 20, 1));
        scope.spawn(|| send_pattern(&right, 4 << 20, 2));
        scope.spawn(|| check_pattern(&left, 4 << 20, 2));
        check_pattern(&right, 4 << 20, 1);
    });
    for client in [&here, &there] {
        assert!(
            counter(client, "tx_probes") > 0,
            "the larger size was tried"
        );
        assert_eq!(counter(client, "connections_timed_out"), 0);
        assert_eq!(counter(client, "rx_drop_too_long"), 0);
    }
    // W-53 holds for the connection's life: a repaired path is used after a while, or by the next
    // connection.
    ip_in_switch(&lab, "link set dev port1 mtu 9000");
    let (again, _peer) = pair(&lab, 0, 1, 7002);
    (&again).write_all(&[1]).unwrap();
    wait_until("full frames", || payload(&here, 7002) == 8989);
}

#[test]
fn an_interface_with_a_smaller_mtu_ends_what_does_not_fit() {
    let Some(lab) = jumbo_lab("an_interface_with_a_smaller_mtu") else {
        return;
    };
    let here = client(&lab, 0);
    let (left, right) = pair(&lab, 0, 1, 7000);
    (&left).write_all(&[1; 100_000]).unwrap();
    (&right).read_exact(&mut [0; 100_000]).unwrap();
    ip(&lab, 0, "link set dev eth0 mtu 1500");
    wait_until("the daemon sees it", || {
        here.status().unwrap().interfaces[0].mtu == 1500
    });
    assert!(matches!(read_to_error(&left).1, EspError::EndedHere { .. }));
    assert!(matches!(
        read_to_error(&right).1,
        EspError::PeerLimit { .. }
    ));
    // The other end could send more, but knows the limit of this one.
    let (left, right) = pair(&lab, 0, 1, 7001);
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(&right, 4 << 20, 1));
        check_pattern(&left, 4 << 20, 1);
    });
    left.shutdown(Shutdown::Write).unwrap();
}
