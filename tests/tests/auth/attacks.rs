//! Frames of every kind from a station that sees all frames: they change nothing, and each is
//! counted.

use std::io::{Read, Write};
use std::time::Duration;

use esp_client::{Client, EspStream};
use esp_tests::frames::{ACK, CTL, EDP, FIN, Frame, PRB, RST, SYN, Tap, reset, setup};
use esp_tests::process::{Daemon, bare_lab};
use esp_tests::{check_pattern, client, counter, lab_or_skip, pair, send_pattern, wait_until};
use lab::{Carriers, LabOptions};

use crate::{KeyFile, config, connect, refused};

/// State of a node that no frame of an attacker may change: packets that reached its endpoint, and
/// packets that it sent.
fn untouched(client: &Client) -> [u64; 3] {
    ["rx_frames", "auth_sealed", "auth_setups_sent"].map(|name| counter(client, name))
}

/// Sends frames to a node, each of which must be dropped, counted and unanswered.
#[track_caller]
fn expect_refused(victim: &Client, what: &str, tap: &Tap, frames: &[Vec<u8>]) {
    let (before, state) = (refused(victim), untouched(victim));
    for chunk in frames.chunks(64) {
        let chunk_before = refused(victim);
        chunk.iter().for_each(|frame| tap.send(frame));
        let expected = chunk_before + chunk.len() as u64;
        wait_until(what, || refused(victim) >= expected);
    }
    assert_eq!(refused(victim) - before, frames.len() as u64, "{what}");
    assert_eq!(untouched(victim), state, "{what}");
}

/// Exchanges a byte each way, and waits until all is acknowledged.
fn exchange(left: &EspStream, right: &EspStream) {
    for (mut from, mut to) in [(left, right), (right, left)] {
        from.write_all(&[9]).expect("write");
        let mut byte = [0];
        to.read_exact(&mut byte).expect("read");
    }
    wait_until("everything is acknowledged", || {
        left.unacknowledged() + right.unacknowledged() == 0
    });
}

fn is_intact(left: &EspStream, right: &EspStream) {
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(left, 1 << 20, 3));
        check_pattern(right, 1 << 20, 3);
        scope.spawn(|| send_pattern(right, 1 << 20, 4));
        check_pattern(left, 1 << 20, 4);
    });
}

/// Returns all frames that the tap has heard.
fn heard(tap: &mut Tap) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| tap.hear(Duration::ZERO))
        .map(|frame| frame.bytes())
        .collect()
}

/// Frames without protection, each of which would do something to a node without authentication.
fn plain_frames(ports: (u16, u16), nonce: u64) -> Vec<Vec<u8>> {
    let (from, to) = ports;
    let esp = |flags| Frame::new(1, 0, flags).ports(from, to);
    let edp = |flags, port, payload: &[u8]| {
        let frame = Frame::new(1, 0, flags).packet_type(EDP).ports(9, port);
        frame.payload(payload)
    };
    let mut moving = vec![1, 0, 5, 0xd1, 0, 0, 0, 2];
    moving.extend([0; 26]);
    let mut frames = vec![
        esp(SYN).payload(&setup(nonce, 0, 100, b"")),
        esp(SYN | ACK).payload(&setup(nonce, 1, 100, b"")),
        esp(SYN | PRB).payload(&moving),
        esp(RST).payload(&reset(4, 0)),
        esp(RST | ACK).payload(&reset(9, nonce)),
        esp(ACK | PRB),
        edp(0, 9000, b"datagram"),
        edp(CTL, 0, &[1, 7]),
        edp(CTL, 0, &[3]),
        edp(CTL, 0, &[5, 3, 0xe8]),
        edp(CTL, 9000, &[6, 3, 0xe8, 1]),
    ];
    for number in (0..=u16::MAX).step_by(4096) {
        frames.push(esp(ACK).numbers(number, number).payload(b"injected"));
        frames.push(esp(ACK | FIN).numbers(number, number));
        frames.push(esp(RST).numbers(number, 0).payload(&reset(4, 0)));
    }
    let padded = |frame: Frame| {
        let mut bytes = frame.bytes();
        bytes.resize(bytes.len().max(60), 0);
        bytes
    };
    frames.into_iter().map(padded).collect()
}

/// Copies of a frame with one bit changed, in each byte after the EtherType and in the source.
fn damaged(frame: &[u8]) -> Vec<Vec<u8>> {
    let places = (7..12).chain(14..frame.len());
    places
        .map(|at| {
            let mut copy = frame.to_vec();
            copy[at] ^= 1 << (at % 8);
            copy
        })
        .collect()
}

#[test]
fn a_station_that_sees_all_frames_changes_nothing() {
    for mode in ["encrypt", "integrity"] {
        let key = KeyFile::new(1);
        let mut options = LabOptions::new(2);
        options.daemon_config = config(&[&key], &format!("mode = \"{mode}\""));
        let test = "a_station_that_sees_all_frames_changes_nothing";
        let Some(lab) = lab_or_skip(test, &options) else {
            return;
        };
        let (mut from_peer, mut to_peer) = (Tap::of_cable(&lab, 1), Tap::of_cable(&lab, 0));
        let (left, right) = pair(&lab, 0, 1, 7000);
        for _ in 0..20 {
            exchange(&left, &right);
        }
        let victim = client(&lab, 0);
        let recorded = heard(&mut from_peer);
        assert!(recorded.len() > 20, "{} frames", recorded.len());
        expect_refused(&victim, "replay", &to_peer, &recorded);
        let own = heard(&mut to_peer);
        assert!(own.len() > 20, "{} frames", own.len());
        let swap = |frame: &Vec<u8>| [&frame[6..12], &frame[..6], &frame[12..]].concat();
        let reflected: Vec<_> = own.iter().map(swap).collect();
        expect_refused(&victim, "reflection", &to_peer, &reflected);
        let last = recorded.last().expect("a frame");
        expect_refused(&victim, "one bit changed", &to_peer, &damaged(last));
        expect_refused(
            &victim,
            "a set-up changed",
            &to_peer,
            &damaged(&recorded[0]),
        );
        let cut: Vec<_> = (25..last.len()).map(|len| last[..len].to_vec()).collect();
        expect_refused(&victim, "cut", &to_peer, &cut);
        let mut bare = recorded.clone();
        bare.iter_mut().for_each(|frame| frame[24] &= !crate::SEC);
        expect_refused(&victim, "without the flag", &to_peer, &bare);
        let ports = (left.peer_addr().port, left.local_addr().port);
        expect_refused(&victim, "plain", &to_peer, &plain_frames(ports, 99));
        expect_refused(
            &victim,
            "plain to a listener",
            &to_peer,
            &plain_frames((5, 7000), 98),
        );
        is_intact(&left, &right);
    }
}

#[test]
fn frames_ahead_of_their_time_do_not_take_its_place() {
    let key = KeyFile::new(1);
    let mut options = LabOptions::new(2);
    options.daemon_config = config(&[&key], "");
    let test = "frames_ahead_of_their_time_do_not_take_its_place";
    let Some(lab) = lab_or_skip(test, &options) else {
        return;
    };
    let mut tap = Tap::of_cable(&lab, 1);
    let (left, right) = pair(&lab, 0, 1, 7000);
    exchange(&left, &right);
    let victim = client(&lab, 0);
    let frame = heard(&mut tap).pop().expect("a frame");
    // Counters that the peer has not used yet: they must not move the window.
    let ahead = |counter: u64| {
        let mut copy = frame.clone();
        copy[29..37].copy_from_slice(&counter.to_be_bytes());
        copy
    };
    let counters = [1000, 1 << 23, 1 << 24, u64::MAX - 1, u64::MAX];
    let frames: Vec<_> = counters.into_iter().map(ahead).collect();
    expect_refused(&victim, "counters", &Tap::of_cable(&lab, 0), &frames);
    is_intact(&left, &right);
}

#[test]
fn a_restarted_node_accepts_no_recording() {
    let test = "a_restarted_node_accepts_no_recording";
    let Some(lab) = bare_lab(test, 2) else {
        return;
    };
    let key = KeyFile::new(1);
    let config = config(&[&key], "");
    let mut victim = Daemon::start(&lab, 0, &config);
    let peer = Daemon::start(&lab, 1, &config);
    let (mut from_peer, to_victim) = (Tap::of_cable(&lab, 1), Tap::of_cable(&lab, 0));
    let (left, right) = connect(&victim.client(), &peer.client()).expect("connect");
    exchange(&left, &right);
    let (back, there) = connect(&peer.client(), &victim.client()).expect("connect");
    exchange(&back, &there);
    drop((left, right, back, there));
    wait_until("the connections end", || {
        peer.client()
            .status()
            .is_ok_and(|s| s.connections.is_empty())
    });
    let recorded = heard(&mut from_peer);
    victim.kill();
    victim = Daemon::start(&lab, 0, &config);
    let fresh = victim.client();
    let sent = recorded.len() as u64;
    recorded.iter().for_each(|frame| to_victim.send(frame));
    // Of all that was recorded only a HELLO has an effect: one answer of its length, no session.
    wait_until("all frames are counted", || {
        refused(&fresh) + counter(&fresh, "auth_setups_sent") >= sent
    });
    assert!(counter(&fresh, "auth_setups_sent") <= 1);
    assert_eq!(counter(&fresh, "auth_opened"), 0);
    assert_eq!(counter(&fresh, "auth_sessions"), 0);
    assert_eq!(counter(&fresh, "rx_frames"), 0);
    let (left, right) = connect(&peer.client(), &fresh).expect("connect again");
    is_intact(&left, &right);
}

#[test]
fn datagrams_of_udp_are_covered() {
    let key = KeyFile::new(1);
    let mut options = LabOptions::new(2);
    options.carriers = Carriers::Udp;
    options.daemon_config = config(&[&key], "");
    let Some(lab) = lab_or_skip("datagrams_of_udp_are_covered", &options) else {
        return;
    };
    let clients = [client(&lab, 0), client(&lab, 1)];
    let (left, right) = connect(&clients[0], &clients[1]).expect("connect");
    exchange(&left, &right);
    let at = |client: &Client| client.interface(None).expect("an interface").addr;
    let (to, from) = (at(&clients[0]), at(&clients[1]));
    let (esp_client::NodeAddr::Udp(to), esp_client::NodeAddr::Udp(from)) = (to, from) else {
        panic!("not UDP: {to} {from}");
    };
    // The peer's own address, at another port: that of its daemon is in use.
    let socket = lab
        .run_in(1, || {
            std::net::UdpSocket::bind((from.ip(), 0)).expect("bind")
        })
        .expect("enter the node");
    let (before, state) = (refused(&clients[0]), untouched(&clients[0]));
    let frames = plain_frames((right.local_addr().port, left.local_addr().port), 97);
    for frame in &frames {
        socket.send_to(&frame[12..], to).expect("send");
    }
    let expected = before + frames.len() as u64;
    wait_until("all are refused", || refused(&clients[0]) >= expected);
    assert_eq!(untouched(&clients[0]), state);
    is_intact(&left, &right);
}
