//! Ends of daemons, links and transports.

use std::io::IoSlice;

use btl::{Btl, PeerError, SendError, Tx};
use esp_client::Client;
use esp_tests::process::{Daemon, bare_lab, configured_lab, ip, ip_in_switch};
use esp_tests::{client, lab_or_skip, wait_until};
use lab::LabOptions;

use crate::member::{IMPATIENT, Member, join, run, send, talk, until_failed};

#[test]
fn a_killed_daemon_loses_its_peers() {
    let Some(lab) = bare_lab("a_killed_daemon", 3) else {
        return;
    };
    let mut daemons: Vec<_> = (0..3)
        .map(|node| Daemon::start(&lab, node, IMPATIENT))
        .collect();
    let mut members: Vec<_> = (0..3)
        .map(|rank| Member::new(daemons[rank as usize].socket(), rank, 3))
        .collect();
    join(&mut members);
    let [a, b, c] = &mut members[..] else {
        unreachable!()
    };
    talk(a, b, (0, 1));
    talk(a, c, (0, 2));
    talk(b, c, (1, 2));
    daemons[2].kill();
    for peer in [0, 1] {
        let error = until_failed("the end of its own daemon", c, peer);
        assert!(
            matches!(&error, PeerError::Lost(what) if what.contains("daemon")),
            "{error:?}"
        );
    }
    let error = until_failed("the end of a peer's daemon", a, 2);
    assert!(
        matches!(&error, PeerError::Lost(what) if what.contains("does not respond")),
        "{error:?}"
    );
    talk(a, b, (0, 1));
    assert!(c.btl.add_peer(1, &b.btl.address()).is_ok(), "known already");
}

const NUMBERED: u32 = 20;

/// Sends [`NUMBERED`] messages that the peer takes later. `begin` is the number of the first.
fn send_numbered(pair: &mut [&mut Member], from: usize, to: u32, begin: u32) {
    for number in begin..begin + NUMBERED {
        send(pair, from, to, &number.to_le_bytes());
    }
}

#[test]
fn a_job_goes_on_with_the_next_daemon() {
    let Some(lab) = bare_lab("the_next_daemon", 2) else {
        return;
    };
    let mut daemons: Vec<_> = (0..2).map(|node| Daemon::start(&lab, node, "")).collect();
    let mut members: Vec<_> = (0..3u32)
        .map(|rank| Member::at(&lab, rank as usize % 2, rank, 3))
        .collect();
    join(&mut members);
    let [a, b, c] = &mut members[..] else {
        unreachable!()
    };
    talk(a, b, (0, 1));
    for (round, daemon) in daemons.iter_mut().enumerate() {
        daemon.kill();
        let pair = &mut [&mut *a, &mut *b];
        let begin = round as u32 * NUMBERED;
        send_numbered(pair, 0, 1, begin);
        send_numbered(pair, 1, 0, begin);
        let first = round == 0;
        if first {
            // A connection that begins without a daemon.
            let begun = c.btl.send(1, b"h", &[IoSlice::new(b"first")]);
            assert!(matches!(begun, Err(SendError::Busy)), "{begun:?}");
        }
        *daemon = Daemon::start(&lab, round, "");
        if first {
            send(&mut [&mut *c, &mut *b], 0, 1, b"first");
        }
        let members = &mut [&mut *a, &mut *b, &mut *c];
        run("all messages come", members, |members| {
            assert!(members.iter().all(|member| member.log.failed.is_empty()));
            let counts = [0, 1].map(|at| members[at].log.messages.len());
            counts[0] == NUMBERED as usize
                && counts[1] >= NUMBERED as usize
                && (!first || counts[1] > NUMBERED as usize)
        });
        for member in &mut members[..2] {
            let numbered = std::mem::take(&mut member.log.messages);
            let mut next = begin;
            for (_, _, body) in numbered.iter().filter(|(_, _, body)| body != b"first") {
                assert_eq!(body[..], next.to_le_bytes());
                next += 1;
            }
            assert_eq!(next, begin + NUMBERED);
        }
    }
    talk(a, b, (0, 1));
    talk(b, c, (1, 2));
}

#[test]
fn a_link_that_stays_down_loses_the_peer() {
    let Some(lab) = configured_lab("a_link_that_stays_down", 3, IMPATIENT) else {
        return;
    };
    let mut members: Vec<_> = (0..3)
        .map(|rank| Member::at(&lab, rank as usize, rank, 3))
        .collect();
    join(&mut members);
    let [a, b, c] = &mut members[..] else {
        unreachable!()
    };
    talk(a, b, (0, 1));
    talk(a, c, (0, 2));
    ip_in_switch(&lab, "link set port1 down");
    let error = until_failed("the peer behind the link", a, 1);
    assert!(matches!(error, PeerError::Lost(_)), "{error:?}");
    talk(a, c, (0, 2));
    // Without a connection the loss is found by liveness probes.
    let error = until_failed("the peer that was never talked to", c, 1);
    assert!(matches!(error, PeerError::Lost(_)), "{error:?}");
    ip(&lab, 0, "link show eth0");
}

/// Like ranks that leave `MPI_Finalize` before others.
#[test]
fn a_peer_that_left_without_a_connection_is_gone_and_not_lost() {
    let Some(lab) = lab_or_skip("a_peer_that_left", &LabOptions::new(2)) else {
        return;
    };
    let mut members: Vec<_> = (0..2)
        .map(|rank| Member::at(&lab, rank as usize, rank, 2))
        .collect();
    join(&mut members);
    let [a, b] = &mut members[..] else {
        unreachable!()
    };
    b.btl.close();
    let error = until_failed("the peer that left", a, 1);
    assert_eq!(error, PeerError::Gone);
}

#[test]
fn closing_a_transport_releases_everything_at_the_daemon() {
    let Some(lab) = lab_or_skip("leaves_nothing", &LabOptions::new(2)) else {
        return;
    };
    for closes in [true, false] {
        let mut pair = [Member::at(&lab, 0, 0, 2), Member::at(&lab, 1, 1, 2)];
        join(&mut pair);
        let [left, right] = &mut pair;
        talk(left, right, (0, 1));
        if closes {
            left.btl.close();
            assert_eq!(until_failed("the leave", right, 0), PeerError::Left);
        }
        drop(pair);
        for node in [0, 1] {
            let watcher: Client = client(&lab, node);
            wait_until("nothing is left", || {
                let status = watcher.status().expect("status");
                status.connections.is_empty()
                    && status.listeners.is_empty()
                    && status.edp.is_empty()
            });
        }
    }
}
