//! Nodes with two interfaces: programs do not notice the failure of one.

use std::io::{Read, Write};

use esp_client::{EspAddr, EspError, EspListener, EspStream, MacAddr};
use esp_tests::exchange::Exchange;
use esp_tests::links::{set, silence, two_rails};
use esp_tests::process::ip_in_switch;
use esp_tests::{PATIENCE, client, counter, pair, wait_until};
use lab::{Lab, Node};

fn moved(lab: &Lab) -> u64 {
    [0, 1]
        .map(|node| counter(&client(lab, node), "connections_moved"))
        .iter()
        .sum()
}

#[test]
fn an_interface_set_down_under_load() {
    let Some(lab) = two_rails("an_interface_set_down_under_load", "") else {
        return;
    };
    let (left, right) = pair(&lab, 0, 1, 7000);
    Exchange::during(&left, &right, |exchange| {
        exchange.flows(4 << 20);
        set(&lab, 0, "eth0", "down");
        wait_until("both ends have moved", || moved(&lab) >= 2);
    });
    let status = client(&lab, 0).status().unwrap();
    assert!(
        status
            .connections
            .iter()
            .all(|c| c.interface == "eth1" && c.moves == Some(1)),
        "{status:?}"
    );
}

#[test]
fn a_switch_that_falls_silent_under_load() {
    let Some(lab) = two_rails("a_switch_that_falls_silent_under_load", "") else {
        return;
    };
    let (left, right) = pair(&lab, 0, 1, 7000);
    Exchange::during(&left, &right, |exchange| {
        exchange.flows(4 << 20);
        silence(&lab, 0, true);
        wait_until("both ends have moved", || moved(&lab) >= 2);
    });
}

#[test]
fn an_interface_that_vanishes_under_load() {
    let Some(lab) = two_rails("an_interface_that_vanishes_under_load", "") else {
        return;
    };
    let (left, right) = pair(&lab, 0, 1, 7000);
    Exchange::during(&left, &right, |exchange| {
        exchange.flows(4 << 20);
        ip_in_switch(&lab, "link del dev port0");
        wait_until("both ends have moved", || moved(&lab) >= 2);
    });
}

#[test]
fn interfaces_that_flap() {
    let Some(lab) = two_rails("interfaces_that_flap", "") else {
        return;
    };
    let (left, right) = pair(&lab, 0, 1, 7000);
    Exchange::during(&left, &right, |exchange| {
        for round in 0..6 {
            let (node, interface) = (round / 2 % 2, ["eth0", "eth1"][round % 2]);
            exchange.flows(2 << 20);
            set(&lab, node, interface, "down");
            exchange.flows(2 << 20);
            set(&lab, node, interface, "up");
        }
    });
    assert!(moved(&lab) >= 4, "{}", moved(&lab));
}

/// Many idle connections of several programs; a listener continues, too.
#[test]
fn idle_connections_follow_and_new_ones_come_over_the_other_interface() {
    let Some(lab) = two_rails("idle_connections_follow", "") else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let listener = EspListener::builder().bind_at(&there, 7100).unwrap();
    let connect = |rail| {
        let to = EspAddr::new(MacAddr(Node(1).rail_mac(rail)), 7100);
        let interface = if rail == 0 { "eth0" } else { "eth1" };
        let left = EspStream::builder()
            .interface(interface)
            .connect_at(&here, to)
            .unwrap();
        (left, listener.accept_timeout(PATIENCE).unwrap().0)
    };
    let mut pairs: Vec<_> = (0..40).map(|_| connect(0)).collect();
    set(&lab, 1, "eth0", "down");
    wait_until("all have moved", || moved(&lab) >= 80);
    pairs.push(connect(1));
    for (number, (left, right)) in pairs.iter_mut().enumerate() {
        left.write_all(&[number as u8; 9]).unwrap();
        let mut got = [0; 9];
        right.read_exact(&mut got).unwrap();
        assert_eq!(got, [number as u8; 9]);
        right.write_all(&got).unwrap();
        left.read_exact(&mut got).unwrap();
    }
    drop(pairs);
    wait_until("all end", || {
        [&here, &there]
            .iter()
            .all(|c| c.status().unwrap().connections.is_empty())
    });
}

#[test]
fn programs_get_an_error_when_both_interfaces_are_silent() {
    let config = "[timers]\npeer_timeout = \"1500ms\"\nkeepalive = \"300ms\"\n";
    let Some(lab) = two_rails("when_both_interfaces_are_silent", config) else {
        return;
    };
    let (mut left, mut right) = pair(&lab, 0, 1, 7000);
    silence(&lab, 0, true);
    silence(&lab, 1, true);
    left.write_all(&[1; 100]).unwrap();
    for end in [&mut left, &mut right] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = end.read(&mut [0; 9]).expect_err("no peer");
        let error = EspError::of(&error).expect("one of ours").clone();
        assert!(matches!(error, EspError::TimedOut { .. }), "{error:?}");
    }
    assert_eq!(moved(&lab), 0);
}
