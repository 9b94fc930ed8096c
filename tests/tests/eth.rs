//! The Ethernet transport beyond its contract: connection set-up, refused peers, loss of daemons
//! and links. `eth_conformance.rs` tests the contract.

use std::io::IoSlice;
use std::io::Write;
use std::path::Path;

use btl::{Btl, Events, PeerError, PendingPeers, Rank, SendError, Tx};
use btl_eth::address::{AddressInterface, EthAddress, job_hash};
use btl_eth::record::{self, Hello, Kind};
use btl_eth::{EthBtl, EthConfig, EthError};
use esp_client::{Client, EspError, EspListener, EspStream, MacAddr};
use esp_tests::process::{Daemon, bare_lab, configured_lab, ip, ip_in_switch};
use esp_tests::{address, client, lab_or_skip, wait_until};
use lab::{Lab, LabOptions, Node};

const JOB: &[u8] = b"the job of these tests";
/// Daemon configuration with short timeouts.
const IMPATIENT: &str =
    "[timers]\npeer_timeout = \"1500ms\"\nkeepalive = \"400ms\"\nconnect_timeout = \"1s\"\n";

/// Events of a transport.
#[derive(Default)]
struct Log {
    messages: Vec<(Rank, Vec<u8>, Vec<u8>)>,
    failed: Vec<(Rank, PeerError)>,
}

impl Events for Log {
    fn message(&mut self, _: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        self.messages.push((peer, header.to_vec(), body.to_vec()));
    }

    fn completed(&mut self, _: &mut dyn Tx, token: u64, _: Result<(), PeerError>) {
        panic!("completion of unknown operation {token}");
    }

    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        self.failed.push((peer, error));
    }
}

/// A rank of a test.
struct Member {
    btl: EthBtl,
    log: Log,
}

impl Member {
    fn new(socket: &Path, rank: Rank, size: u32) -> Member {
        let mut config = EthConfig::new(rank, size, JOB);
        config.socket = socket.to_owned();
        Member {
            btl: EthBtl::new(config).expect("a transport"),
            log: Log::default(),
        }
    }

    fn at(lab: &Lab, node: usize, rank: Rank, size: u32) -> Member {
        Member::new(&lab.socket(node), rank, size)
    }

    fn step(&mut self) -> usize {
        self.btl.progress(&mut self.log)
    }

    fn port(&self) -> u16 {
        EthAddress::decode(&self.btl.address())
            .expect("its own address")
            .port
    }
}

/// Adds all ranks to each other.
fn join(members: &mut [Member]) {
    let addresses: Vec<_> = members.iter().map(|member| member.btl.address()).collect();
    for member in members {
        for (rank, address) in (0..).zip(&addresses) {
            member.btl.add_peer(rank, address).expect("reachable");
        }
    }
}

/// Polls all ranks until `done`.
fn run(what: &str, members: &mut [&mut Member], mut done: impl FnMut(&mut [&mut Member]) -> bool) {
    wait_until(what, || {
        for _ in 0..200 {
            for member in members.iter_mut() {
                member.step();
            }
            if done(members) {
                return true;
            }
        }
        false
    });
}

/// Sends a message, polling all ranks until it is accepted.
fn send(members: &mut [&mut Member], from: usize, to: Rank, body: &[u8]) {
    run("a message is taken", members, |members| {
        match members[from].btl.send(to, b"h", &[IoSlice::new(body)]) {
            Ok(()) => true,
            Err(SendError::Busy) => false,
            Err(error) => panic!("{error}"),
        }
    });
}

/// Exchanges one message in each direction.
fn talk(left: &mut Member, right: &mut Member, ranks: (Rank, Rank)) {
    let members = &mut [left, right];
    send(members, 0, ranks.1, b"there");
    send(members, 1, ranks.0, b"and back");
    run("both come", members, |members| {
        members.iter().all(|member| !member.log.messages.is_empty())
    });
    assert_eq!(
        members[0].log.messages.pop(),
        Some((ranks.1, b"h".to_vec(), b"and back".to_vec()))
    );
    assert_eq!(
        members[1].log.messages.pop(),
        Some((ranks.0, b"h".to_vec(), b"there".to_vec()))
    );
}

fn until_failed(what: &str, member: &mut Member, peer: Rank) -> PeerError {
    run(what, &mut [member], |members| {
        members[0].log.failed.iter().any(|(rank, _)| *rank == peer)
    });
    let failed = &member.log.failed;
    assert_eq!(
        failed.iter().filter(|(rank, _)| *rank == peer).count(),
        1,
        "once: {failed:?}"
    );
    failed
        .iter()
        .find(|(rank, _)| *rank == peer)
        .expect("just seen")
        .1
        .clone()
}

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
    assert_eq!(right.btl.pending_peer(), None);
    let mut pair = [&mut left, &mut right];
    assert_eq!(
        pair[0].btl.send(1, b"h", &[IoSlice::new(b"x")]),
        Err(SendError::Busy)
    );
    run("the stranger is named", &mut pair, |members| {
        members[1].btl.pending_peer() == Some(0)
    });
    let address = pair[0].btl.address();
    let info = pair[1].btl.add_peer(0, &address).expect("reachable");
    assert_eq!(pair[1].btl.pending_peer(), None);
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

/// An owner may refuse a pending peer. The next one is named then.
#[test]
fn refusing_a_pending_peer_makes_room_for_the_next() {
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
        |members| members[0].btl.pending_peer() == Some(1),
    );
    assert_eq!(
        second.btl.send(0, b"h", &[IoSlice::new(b"x")]),
        Err(SendError::Busy)
    );
    let mut all = [&mut host, &mut first, &mut second];
    run("the second waits, too", &mut all, |members| {
        members[0].btl.pending_connections() == 2
    });
    assert_eq!(host.btl.pending_peer(), Some(1));
    host.btl.refuse(1, "not today");
    host.btl.refuse(1, "twice does no harm");
    run(
        "the second is named",
        &mut [&mut host, &mut second],
        |members| members[0].btl.pending_peer() == Some(2),
    );
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
fn reachable_and_unreachable_peers_have_reasons() {
    let Some(lab) = lab_or_skip("paths_have_reasons", &LabOptions::new(2)) else {
        return;
    };
    let (mut left, right, same) = (
        Member::at(&lab, 0, 0, 4),
        Member::at(&lab, 1, 1, 4),
        Member::at(&lab, 0, 2, 4),
    );
    let path = left
        .btl
        .add_peer(1, &right.btl.address())
        .expect("reachable");
    for part in ["eth0 to eth0 02:", "EDP echo in", "1488 bytes in"] {
        assert!(path.reason.contains(part), "{part:?} in {:?}", path.reason);
    }
    assert!(path.latency_ns > 100, "{}", path.latency_ns);
    let path = left
        .btl
        .add_peer(2, &same.btl.address())
        .expect("reachable");
    assert!(
        path.reason.contains("this node, through its daemon"),
        "{}",
        path.reason
    );

    let address = EthAddress::decode(&right.btl.address()).expect("an address");
    let mut refused = |address: &EthAddress, part: &str| {
        let why = left
            .btl
            .add_peer(3, &address.encode())
            .expect_err("unreachable")
            .reason;
        assert!(
            why.contains("rank 3") && why.contains(part),
            "{part:?} in {why:?}"
        );
    };
    refused(
        &EthAddress {
            job: job_hash(b"another"),
            ..address.clone()
        },
        "another job",
    );
    let elsewhere = AddressInterface {
        addr: MacAddr([2, 9, 9, 9, 9, 9]).into(),
        mtu: 1500,
        name: "eth5".into(),
    };
    refused(
        &EthAddress {
            interfaces: vec![elsewhere],
            ..address.clone()
        },
        "no answer to an EDP echo",
    );
    let own = AddressInterface {
        addr: MacAddr(Node(0).mac()).into(),
        mtu: 1500,
        name: "eth0".into(),
    };
    refused(
        &EthAddress {
            interfaces: vec![own],
            ..address.clone()
        },
        "it is on another node",
    );
    refused(
        &EthAddress {
            max_send: 100,
            ..address
        },
        "damaged",
    );
}

#[test]
fn interfaces_are_included_and_excluded() {
    let Some(lab) = lab_or_skip("interfaces_are_included", &LabOptions::new(1)) else {
        return;
    };
    let made = |change: fn(&mut EthConfig)| {
        let mut config = EthConfig::new(0, 1, JOB);
        config.socket = lab.socket(0);
        change(&mut config);
        EthBtl::new(config)
    };
    made(|config| config.include = vec!["e*".into()]).expect("eth0");
    for change in [
        |c: &mut EthConfig| c.include = vec!["ib0".into()],
        |c: &mut EthConfig| c.exclude = vec!["eth*".into()],
    ] {
        let error = made(change).expect_err("no interface");
        assert!(
            matches!(&error, EthError::NoInterface(what) if what.contains("eth0")),
            "{error}"
        );
    }
}

/// A rank that the test plays over a plain stream.
struct Impostor {
    stream: EspStream,
    hello: Hello,
    number: u16,
}

impl Impostor {
    /// Makes rank 1 of two, on node 1, and adds it to `victim`, rank 0 on node 0.
    fn added(lab: &Lab, victim: &mut Member) -> Impostor {
        let mut impostor = Impostor::new(lab, victim);
        let address = EthAddress {
            port: 2000,
            job: job_hash(JOB),
            incarnation: client(lab, 1).incarnation(),
            nonce: 4711,
            max_send: 1 << 16,
            interfaces: vec![AddressInterface {
                addr: MacAddr(Node(1).mac()).into(),
                mtu: 1500,
                name: "eth0".into(),
            }],
        };
        victim
            .btl
            .add_peer(1, &address.encode())
            .expect("its node answers");
        impostor.hello.from_nonce = 4711;
        impostor
    }

    fn new(lab: &Lab, victim: &Member) -> Impostor {
        let to_nonce = EthAddress::decode(&victim.btl.address())
            .expect("an address")
            .nonce;
        let builder = EspStream::builder()
            .key(job_hash(JOB))
            .rings(1 << 18, 1 << 18);
        let stream = builder
            .connect_at(&client(lab, 1), address(0, victim.port()))
            .expect("connect");
        let hello = Hello {
            job: job_hash(JOB),
            from: 1,
            to: 0,
            from_nonce: 0,
            to_nonce,
        };
        Impostor {
            stream,
            hello,
            number: 0,
        }
    }

    fn write(&mut self, kind: Kind, header: usize, body: &[u8]) {
        let head = record::head(kind, header, body.len(), self.number);
        self.number = self.number.wrapping_add(1);
        self.stream
            .write_all(&[&head[..], body].concat())
            .expect("write");
    }

    fn greet(&mut self) {
        let hello = self.hello.encode();
        self.write(Kind::Hello, 0, &hello);
    }

    /// Returns the next record, polling the victim.
    fn hears(&mut self, victim: &mut Member) -> String {
        let mut bytes = Vec::new();
        let mut received = String::new();
        run("an answer", &mut [victim], |_| {
            let mut part = [0; 300];
            match self.stream.try_read(&mut part) {
                Ok(0) => panic!("the end behind {bytes:?}"),
                Ok(n) => bytes.extend(&part[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            match record::decode(&bytes, 0, 0).expect("a record") {
                Some((record, _)) => {
                    let body = String::from_utf8_lossy(record.body);
                    received = format!("{:?} {body}", record.kind).trim_end().to_owned();
                }
                None => return false,
            }
            true
        });
        received
    }
}

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
    let attacks: [(&str, Write); 9] = [
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
        let mut again = Impostor::new(&lab, &victim);
        again.hello.from_nonce = 4711;
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
        let hello = impostor.hello;
        impostor = Impostor {
            hello,
            ..Impostor::new(&lab, &victim)
        };
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
        let error = until_failed("the own daemon's end", c, peer);
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

#[test]
fn small_rings_limit_messages() {
    let Some(lab) = configured_lab(
        "small_rings",
        2,
        "[rings]\ndefault = \"16KiB\"\nmax = \"16KiB\"\n",
    ) else {
        return;
    };
    let mut pair = [Member::at(&lab, 0, 0, 2), Member::at(&lab, 1, 1, 2)];
    join(&mut pair);
    let [left, right] = &mut pair;
    let path = left.btl.add_peer(1, &right.btl.address()).expect("known");
    assert_eq!((path.max_send, path.eager), (4096, 4096));
    talk(left, right, (0, 1));
    let most = vec![5; 4095];
    for _ in 0..100 {
        send(&mut [left, right], 0, 1, &most);
    }
    run("all come", &mut [left, right], |members| {
        members[1].log.messages.len() == 100
    });
    assert!(right.log.messages.iter().all(|(_, _, body)| *body == most));
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
