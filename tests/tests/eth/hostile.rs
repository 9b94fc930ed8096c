//! Peers that break the rules of the transport: refused, or failed alone.

use std::io::{IoSlice, Write};

use btl::{Btl, PeerError, SendError, Tx};
use btl_eth::address::job_hash;
use btl_eth::record::{Hello, Kind};
use esp_client::{EspError, EspStream};
use esp_tests::{address, client, lab_or_skip};
use lab::LabOptions;

use crate::impostor::Impostor;
use crate::member::{Member, join, run, talk, until_failed};

#[test]
fn invalid_peers_are_refused_and_counted() {
    type Change = fn(&mut Hello);
    let Some(lab) = lab_or_skip("strangers_are_turned_away", &LabOptions::new(2)) else {
        return;
    };
    let mut victim = Member::at(&lab, 0, 0, 2);
    // A stream with another key is refused by the daemon.
    let plain = EspStream::builder().connect_at(&client(&lab, 1), address(0, victim.port()));
    let error = plain.expect_err("another key");
    assert!(
        matches!(EspError::of(&error), Some(EspError::BadKey { .. })),
        "{error}"
    );

    let _real = Impostor::added(&lab, &mut victim);
    let wrong: [(Change, &str); 5] = [
        (|hello| hello.job = job_hash(b"another"), "another job"),
        (|hello| hello.to = 1, "wrong rank"),
        (|hello| hello.from = 77, "wrong rank"),
        (|hello| hello.from_nonce = 1, "wrong rank"),
        (|hello| hello.to_nonce ^= 1, "wrong rank"),
    ];
    for (change, words) in wrong {
        let mut impostor = Impostor::new(&lab, &victim);
        impostor.hello.from_nonce = 4711;
        change(&mut impostor.hello);
        impostor.greet();
        let received = impostor.hears(&mut victim);
        assert!(
            received.starts_with("Refuse") && received.contains(words),
            "{received}"
        );
    }
    let counters = victim.btl.counters();
    assert_eq!(
        (
            counters.refused_job,
            counters.refused_rank,
            counters.malformed
        ),
        (1, 4, 0)
    );

    let mut impostor = Impostor::new(&lab, &victim);
    impostor.stream.write_all(&[0xa5; 100]).expect("write");
    let received = impostor.hears(&mut victim);
    assert!(
        received.starts_with("Refuse") && received.contains("not a HELLO record"),
        "{received}"
    );
    assert_eq!(victim.btl.counters().malformed, 1);
    assert!(victim.log.failed.is_empty() && victim.log.messages.is_empty());
}

#[test]
fn silent_connections_do_not_exclude_a_peer() {
    let Some(lab) = lab_or_skip("many_silent_strangers", &LabOptions::new(2)) else {
        return;
    };
    let mut pair = [Member::at(&lab, 0, 0, 2), Member::at(&lab, 1, 1, 2)];
    let mut strangers = Vec::new();
    for _ in 0..50 {
        strangers.push(Impostor::new(&lab, &pair[0]));
        pair[0].step();
    }
    run("the first strangers go", &mut [&mut pair[0]], |members| {
        members[0].btl.counters().evicted >= 30
    });
    assert!(
        pair[0].btl.pending_connections() <= 20,
        "{}",
        pair[0].btl.pending_connections()
    );
    join(&mut pair);
    let [left, right] = &mut pair;
    talk(left, right, (0, 1));
}

#[test]
fn invalid_records_fail_their_peer_only() {
    let Some(lab) = lab_or_skip("whatever_a_peer_writes", &LabOptions::new(2)) else {
        return;
    };
    type Write = fn(&mut Impostor);
    let attacks: [(&str, Write); 10] = [
        ("at most 65600", |it| {
            it.write(Kind::Message, 0, &[0; 65601]);
        }),
        ("at most 65600", |it| {
            it.stream
                .write_all(&[0xff, 0xff, 0xff, 0xff, 0, 6, 2, 0])
                .expect("write");
        }),
        ("longer than its message", |it| {
            it.write(Kind::Message, 5, b"1234");
        }),
        ("longer than its message", |it| {
            it.write(Kind::Message, 65, &[0; 100]);
        }),
        ("unknown kind 99", |it| {
            it.stream
                .write_all(&[0, 0, 0, 0, 0, 99, 2, 0])
                .expect("write");
        }),
        ("instead of 2", |it| {
            it.number = 7;
            it.write(Kind::Message, 0, b"out of step");
        }),
        ("instead of 3", |it| {
            it.write(Kind::Message, 1, b"good");
            it.stream.write_all(&[0; 5000]).expect("write");
        }),
        ("unexpected record", |it| it.greet()),
        ("permitted", |it| it.write(Kind::Release, 0, b"reason")),
        ("unexpected record", |it| it.write(Kind::Yield, 0, b"")),
    ];
    for (words, attack) in attacks {
        let mut victim = Member::at(&lab, 0, 0, 4);
        let mut others = [Member::at(&lab, 1, 2, 4), Member::at(&lab, 0, 3, 4)];
        let mut impostor = Impostor::added(&lab, &mut victim);
        impostor.greet();
        assert_eq!(impostor.hears(&mut victim), "Welcome");
        impostor.write(Kind::Confirm, 0, b"");
        attack(&mut impostor);
        let error = until_failed("the violation", &mut victim, 1);
        assert!(
            matches!(&error, PeerError::Violation(what) if what.contains(words)),
            "{words}: {error:?}"
        );
        assert_eq!(victim.btl.counters().violations, 1);
        assert!(
            victim
                .log
                .messages
                .iter()
                .all(|(_, header, body)| (&header[..], &body[..]) == (b"g", b"ood"))
        );
        victim.log.messages.clear();
        assert!(matches!(
            victim.btl.send(1, b"", &[IoSlice::new(b"")]),
            Err(SendError::Failed { peer: 1, .. })
        ));
        for (rank, other) in (2..).zip(&mut others) {
            victim
                .btl
                .add_peer(rank, &other.btl.address())
                .expect("reachable");
            other
                .btl
                .add_peer(0, &victim.btl.address())
                .expect("reachable");
            talk(&mut victim, other, (0, rank));
        }
        // Another attempt is refused, because the peer has failed.
        let mut again = impostor.again(&lab, &victim);
        again.greet();
        let received = again.hears(&mut victim);
        assert!(
            received.starts_with("Refuse") && received.contains("has failed for good"),
            "{received}"
        );
    }
}

#[test]
fn a_message_before_confirm_is_a_violation() {
    let Some(lab) = lab_or_skip("before_the_confirmation", &LabOptions::new(2)) else {
        return;
    };
    let mut victim = Member::at(&lab, 0, 0, 2);
    let mut impostor = Impostor::added(&lab, &mut victim);
    impostor.greet();
    impostor.write(Kind::Message, 0, b"too early");
    let error = until_failed("the violation", &mut victim, 1);
    assert!(
        matches!(&error, PeerError::Violation(what) if what.contains("before")),
        "{error:?}"
    );
    assert!(victim.log.messages.is_empty());
}
