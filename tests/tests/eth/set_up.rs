//! Connection set-up: pending peers, simultaneous open, repeated attempts.

use std::io::{IoSlice, Write};

use btl::{Btl, PeerError, PendingPeers, SendError, Tx};
use btl_eth::address::job_hash;
use btl_eth::record::{self, Kind};
use btl_eth::{EthBtl, EthConfig};
use esp_client::{EspListener, EspStream};
use esp_tests::{client, lab_or_skip, wait_until};
use lab::LabOptions;

use crate::impostor::Impostor;
use crate::member::{JOB, Member, join, run, talk, until_failed};

#[test]
fn a_missing_daemon_is_an_error_with_advice() {
    let mut config = EthConfig::new(0, 1, JOB);
    config.socket = "/nonexistent/esp.sock".into();
    let text = EthBtl::new(config).expect_err("no daemon").to_string();
    assert!(
        text.contains("/nonexistent/esp.sock") && text.contains("start esp-daemon"),
        "{text}"
    );
}

/// A peer that connects before it was added is pending. Messages may be gathered.
#[test]
fn a_pending_peer_is_named_and_waits_until_it_is_added() {
    let Some(lab) = lab_or_skip("a_stranger_is_named", &LabOptions::new(2)) else {
        return;
    };
    let mut left = Member::at(&lab, 0, 0, 2);
    let mut right = Member::at(&lab, 1, 1, 2);
    left.btl
        .add_peer(1, &right.btl.address())
        .expect("reachable");
    assert_eq!(right.btl.pending_peers().len(), 0);
    let mut pair = [&mut left, &mut right];
    assert_eq!(
        pair[0].btl.send(1, b"h", &[IoSlice::new(b"x")]),
        Err(SendError::Busy)
    );
    run("the stranger is named", &mut pair, |members| {
        members[1].btl.pending_peers() == [0]
    });
    let address = pair[0].btl.address();
    let info = pair[1].btl.add_peer(0, &address).expect("reachable");
    assert!(
        info.reason.starts_with("it connected from "),
        "not probed: {}",
        info.reason
    );
    assert_eq!(pair[1].btl.pending_peers().len(), 0);
    let parts: Vec<&[u8]> = vec![b"a", b"", b"bcd", b"ef"];
    for count in 0..=parts.len() {
        let body: Vec<_> = parts[..count]
            .iter()
            .map(|part| std::io::IoSlice::new(part))
            .collect();
        run(
            "the parts are accepted",
            &mut pair,
            |members| match members[0].btl.send(1, b"h", &body) {
                Ok(()) => true,
                Err(SendError::Busy) => false,
                Err(error) => panic!("{error}"),
            },
        );
        run("they arrive", &mut pair, |members| {
            !members[1].log.messages.is_empty()
        });
        assert_eq!(
            pair[1].log.messages.pop(),
            Some((0, b"h".to_vec(), parts[..count].concat()))
        );
    }
    let long = vec![0; info.max_send];
    let body = [std::io::IoSlice::new(&long)];
    assert!(matches!(
        pair[0].btl.send(1, b"h", &body),
        Err(SendError::TooLong { .. })
    ));
}

/// An owner may refuse a pending peer. Others that are pending stay so.
#[test]
fn refusing_a_pending_peer_leaves_the_others() {
    let Some(lab) = lab_or_skip("a_pending_peer_is_refused", &LabOptions::new(2)) else {
        return;
    };
    let mut host = Member::at(&lab, 0, 0, 3);
    let mut first = Member::at(&lab, 1, 1, 3);
    let mut second = Member::at(&lab, 1, 2, 3);
    for peer in [&mut first, &mut second] {
        peer.btl
            .add_peer(0, &host.btl.address())
            .expect("reachable");
    }
    assert_eq!(
        first.btl.send(0, b"h", &[IoSlice::new(b"x")]),
        Err(SendError::Busy)
    );
    run(
        "the first is named",
        &mut [&mut host, &mut first],
        |members| members[0].btl.pending_peers() == [1],
    );
    assert_eq!(
        second.btl.send(0, b"h", &[IoSlice::new(b"x")]),
        Err(SendError::Busy)
    );
    let mut all = [&mut host, &mut first, &mut second];
    run("the second is named, too", &mut all, |members| {
        let mut pending = members[0].btl.pending_peers();
        pending.sort_unstable();
        pending == [1, 2]
    });
    assert_eq!(host.btl.pending_connections(), 2);
    host.btl.refuse(1, "not today");
    host.btl.refuse(1, "twice does no harm");
    assert_eq!(host.btl.pending_peers(), [2]);
    let error = until_failed("the first is received", &mut first, 0);
    assert!(
        matches!(&error, PeerError::Lost(words) if words.contains("not today")),
        "{error}"
    );
    host.btl
        .add_peer(2, &second.btl.address())
        .expect("reachable");
    talk(&mut host, &mut second, (0, 2));
}

#[test]
fn a_simultaneous_open_leaves_one_stream() {
    let Some(lab) = lab_or_skip("both_connect_at_once", &LabOptions::new(2)) else {
        return;
    };
    let mut yields = 0;
    for round in 0..60u8 {
        let mut pair = [Member::at(&lab, 0, 0, 2), Member::at(&lab, 1, 1, 2)];
        join(&mut pair);
        let [left, right] = &mut pair;
        // The first send of each side connects. The sides differ by some polls.
        let (first, second) = if round % 2 == 0 {
            (&mut *left, &mut *right)
        } else {
            (&mut *right, &mut *left)
        };
        let (one, other) = (1 - u32::from(round % 2), u32::from(round % 2));
        assert_eq!(
            first.btl.send(one, b"", &[IoSlice::new(b"")]),
            Err(SendError::Busy)
        );
        for _ in 0..round / 4 {
            first.step();
        }
        let _ = second.btl.send(other, b"", &[IoSlice::new(b"")]);
        let mut sent = [0u8; 2];
        let members = &mut [left, right];
        run("fifty messages each way", members, |members| {
            for (at, to) in [(0, 1), (1, 0)] {
                if sent[at] < 50
                    && members[at]
                        .btl
                        .send(to, &[sent[at]], &[IoSlice::new(b"body")])
                        .is_ok()
                {
                    sent[at] += 1;
                }
            }
            members.iter().all(|member| member.log.messages.len() >= 50)
        });
        for member in members {
            let numbers: Vec<u8> = member
                .log
                .messages
                .iter()
                .map(|(_, header, _)| header[0])
                .collect();
            assert_eq!(numbers, (0..50).collect::<Vec<u8>>(), "round {round}");
            assert!(member.log.failed.is_empty(), "{:?}", member.log.failed);
            assert_eq!(member.btl.counters().connected, 1, "round {round}");
            yields += member.btl.counters().yielded;
        }
        // Each node has exactly one stream left.
        for node in [0, 1] {
            let watcher = client(&lab, node);
            wait_until("the other stream is gone", || {
                let open = watcher.status().expect("status").connections;
                open.iter().filter(|c| c.owner.program.is_some()).count() == 1
            });
        }
    }
    assert!(yields > 0, "no round had two attempts: nothing was tested");
}

#[test]
fn a_stream_that_ends_before_confirm_is_dropped() {
    let Some(lab) = lab_or_skip("an_unconfirmed_stream", &LabOptions::new(2)) else {
        return;
    };
    let mut victim = Member::at(&lab, 0, 0, 2);
    let mut impostor = Impostor::added(&lab, &mut victim);
    for _ in 0..5 {
        impostor.greet();
        assert_eq!(impostor.hears(&mut victim), "Welcome");
        let before = victim.btl.counters().failed_attempts;
        impostor = impostor.again(&lab, &victim);
        run("its end is seen", &mut [&mut victim], |m| {
            m[0].btl.counters().failed_attempts > before
        });
    }
    impostor.greet();
    assert_eq!(impostor.hears(&mut victim), "Welcome");
    impostor.write(Kind::Confirm, 0, b"");
    impostor.write(Kind::Message, 0, b"at last");
    run("the message", &mut [&mut victim], |members| {
        !members[0].log.messages.is_empty()
    });
    assert!(victim.log.failed.is_empty());
}

#[test]
fn connecting_is_retried_a_bounded_number_of_times() {
    let Some(lab) = lab_or_skip("refuses_while_set_up", &LabOptions::new(2)) else {
        return;
    };
    let mut victim = Member::at(&lab, 0, 0, 2);
    // Its address has port 2000. It closes the streams of the first two attempts.
    let listener = EspListener::builder()
        .key(job_hash(JOB))
        .bind_at(&client(&lab, 1), 2000)
        .expect("listen");
    let _impostor = Impostor::added(&lab, &mut victim);
    assert_eq!(
        victim.btl.send(1, b"", &[IoSlice::new(b"")]),
        Err(SendError::Busy)
    );
    listener.set_nonblocking(true).expect("nonblocking");
    let (mut held, mut hung_up) = (None, 0);
    run("two attempts are hung up on", &mut [&mut victim], |_| {
        held = held
            .take()
            .or_else(|| listener.accept().ok().map(|(stream, _)| stream));
        // After its HELLO.
        if held
            .take_if(|stream: &mut EspStream| stream.try_read(&mut [0; 300]).is_ok())
            .is_some()
        {
            hung_up += 1;
        }
        hung_up == 2
    });
    let mut third = None;
    run("a third attempt", &mut [&mut victim], |_| {
        third = listener.accept().ok();
        third.is_some()
    });
    let (mut stream, _) = third.expect("just seen");
    stream
        .write_all(&record::head(Kind::Welcome, 0, 0, 0))
        .expect("write");
    run("the message is taken", &mut [&mut victim], |members| {
        members[0].btl.send(1, b"", &[IoSlice::new(b"x")]).is_ok()
    });
    assert_eq!(victim.btl.counters().failed_attempts, 2);
    // Without a listener the number of attempts is bounded.
    drop((stream, listener));
    let error = until_failed("its end", &mut victim, 1);
    assert_eq!(error, PeerError::Died, "no goodbye");
}
