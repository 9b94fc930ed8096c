//! Connections that are ended because a process has more than its limit.

use std::io::IoSlice;

use btl::{Btl, PeerError, PendingPeers, Rank, SendError, Tx};
use btl_eth::EthConfig;
use btl_eth::record::Kind;
use esp_tests::process::{configured_lab, ip_in_switch};
use esp_tests::{lab_or_skip, wait_until};
use lab::{Lab, LabOptions};

use crate::impostor::Impostor;
use crate::member::{IMPATIENT, JOB, Member, join, run, send, talk, until_failed};

/// Messages from each rank to each other one.
const ROUNDS: u32 = 30;

fn limited(lab: &Lab, node: usize, rank: u32, size: u32) -> Member {
    Member::with_limit(&lab.socket(node), rank, size, Some(1))
}

/// Every message arrives once and in order, though each rank keeps one connection only.
#[test]
fn connections_are_ended_and_made_again() {
    let Some(lab) = lab_or_skip("connections_are_ended", &LabOptions::new(2)) else {
        return;
    };
    let mut members: Vec<_> = (0..4)
        .map(|rank| limited(&lab, rank as usize % 2, rank, 4))
        .collect();
    join(&mut members);
    exchange(&mut members, 0);
}

#[test]
fn connections_of_open_transports_are_ended_and_made_again() {
    let Some(lab) = lab_or_skip("open_connections_are_ended", &LabOptions::new(2)) else {
        return;
    };
    let open = |place: u32| {
        let mut config = EthConfig::open(u64::from(place) + 100, JOB);
        config.max_connections = Some(1);
        Member::with(&lab.socket(place as usize % 2), config)
    };
    let mut members: Vec<_> = (0..4).map(open).collect();
    let addresses: Vec<_> = members.iter().map(|member| member.btl.address()).collect();
    for (place, member) in members.iter_mut().enumerate() {
        for (other, address) in addresses.iter().enumerate().filter(|(at, _)| *at != place) {
            let added = member.btl.add_peer(other as Rank + 1, address);
            added.expect("reachable");
        }
    }
    exchange(&mut members, 1);
}

/// Sends [`ROUNDS`] messages from each member to each other one, and checks them. `first`: number
/// of the first member.
fn exchange(members: &mut [Member], first: Rank) {
    let mut sent = [[0; 4]; 4];
    let mut members: Vec<_> = members.iter_mut().collect();
    run("all messages are sent", &mut members, |members| {
        for (from, sent) in sent.iter_mut().enumerate() {
            assert_eq!(members[from].btl.stranger(), None);
            for (to, sent) in sent.iter_mut().enumerate() {
                if to == from || *sent == ROUNDS {
                    continue;
                }
                let number = sent.to_le_bytes();
                let to = to as Rank + first;
                match members[from].btl.send(to, b"h", &[IoSlice::new(&number)]) {
                    Ok(()) => *sent += 1,
                    Err(SendError::Busy) => {}
                    Err(error) => panic!("{from} to {to}: {error}"),
                }
            }
        }
        let received = members.iter().map(|member| member.log.messages.len());
        received.sum::<usize>() == 12 * ROUNDS as usize
    });
    let open = |member: &Member| {
        let counters = member.btl.counters();
        counters.connected - counters.released
    };
    run("few connections are left", &mut members, |members| {
        members.iter().all(|member| open(member) <= 1)
    });
    run("what was sent is acknowledged", &mut members, |members| {
        members.iter_mut().all(|member| member.btl.flush())
    });
    for (place, member) in members.iter().enumerate() {
        assert!(member.log.failed.is_empty(), "{:?}", member.log.failed);
        let counters = member.btl.counters();
        assert!(counters.released > 1, "{counters:?}");
        for from in (0..4).filter(|from| *from != place) {
            let of_peer = |peer: Rank| peer == from as Rank + first;
            let messages = member.log.messages.iter();
            let received = messages.filter(|(peer, ..)| of_peer(*peer));
            let received: Vec<_> = received.map(|(_, _, body)| body.clone()).collect();
            let all = (0..ROUNDS).map(|number| number.to_le_bytes().to_vec());
            assert_eq!(received, all.collect::<Vec<_>>(), "from {from}");
        }
    }
}

/// Makes a rank with at most one connection, which has written RELEASE to an impostor because it
/// has connected to another rank. Returns the three.
fn releasing(lab: &Lab) -> (Member, Member, Impostor) {
    let mut victim = limited(lab, 0, 0, 3);
    let mut third = Member::at(lab, 1, 2, 3);
    let mut impostor = Impostor::added(lab, &mut victim);
    impostor.establish(&mut victim);
    let addresses = [victim.btl.address(), third.btl.address()];
    victim.btl.add_peer(2, &addresses[1]).expect("reachable");
    third.btl.add_peer(0, &addresses[0]).expect("reachable");
    talk(&mut victim, &mut third, (0, 2));
    assert_eq!(impostor.hears(&mut victim), "Release");
    assert_eq!(victim.btl.counters().released, 0);
    (victim, third, impostor)
}

/// The peer's next stream may be accepted before its RELEASE is read.
#[test]
fn the_next_connection_waits_for_the_end_of_the_last() {
    let Some(lab) = lab_or_skip("the_next_waits", &LabOptions::new(2)) else {
        return;
    };
    let (mut victim, mut third, mut impostor) = releasing(&lab);
    impostor.write(Kind::Message, 1, b"h1");
    let mut next = impostor.again(&lab, &victim);
    next.greet();
    run("its HELLO was read", &mut [&mut victim], |members| {
        members[0].btl.pending_connections() == 1 && !members[0].log.messages.is_empty()
    });
    for _ in 0..1000 {
        victim.step();
    }
    assert_eq!(next.heard(), None);
    let busy = victim.btl.send(1, b"h", &[IoSlice::new(b"x")]);
    assert_eq!(busy, Err(SendError::Busy));
    impostor.write(Kind::Message, 1, b"h2");
    impostor.write(Kind::Release, 0, b"");
    assert_eq!(next.hears(&mut victim), "Welcome");
    next.write(Kind::Confirm, 0, b"");
    next.write(Kind::Message, 1, b"h3");
    run("all has arrived", &mut [&mut victim], |members| {
        members[0].log.messages.len() == 3
    });
    let bodies = victim.log.messages.iter().map(|(_, _, body)| &body[..]);
    assert_eq!(bodies.collect::<Vec<_>>(), [b"1", b"2", b"3"]);
    // This connection is one too many again: that of the third rank is ended.
    run(
        "the other one is ended",
        &mut [&mut victim, &mut third],
        |members| {
            members[0].btl.counters().released == 2 && members[1].btl.counters().released == 1
        },
    );
    assert!(victim.log.failed.is_empty(), "{:?}", victim.log.failed);
    victim.log.messages.clear();
    talk(&mut victim, &mut third, (0, 2));
}

#[test]
fn a_peer_whose_next_connection_waits_is_no_stranger() {
    let Some(lab) = lab_or_skip("no_stranger", &LabOptions::new(2)) else {
        return;
    };
    let open = |node, identity| {
        let mut config = EthConfig::open(identity, JOB);
        config.max_connections = Some(1);
        Member::with(&lab.socket(node), config)
    };
    let (mut victim, mut third) = (open(0, 100), open(1, 102));
    let mut impostor = Impostor::open(&lab, &victim);
    impostor.greet();
    run("the stranger is named", &mut [&mut victim], |members| {
        members[0].btl.stranger() == Some(4711)
    });
    victim.btl.admit(1, 4711).expect("it is waiting");
    assert_eq!(impostor.hears(&mut victim), "Welcome");
    impostor.write(Kind::Confirm, 0, b"");
    let addresses = [victim.btl.address(), third.btl.address()];
    victim.btl.add_peer(2, &addresses[1]).expect("reachable");
    third.btl.add_peer(1, &addresses[0]).expect("reachable");
    talk(&mut victim, &mut third, (1, 2));
    assert_eq!(impostor.hears(&mut victim), "Release");
    let mut next = impostor.again(&lab, &victim);
    next.greet();
    run("its HELLO was read", &mut [&mut victim], |members| {
        members[0].btl.pending_connections() == 1
    });
    for _ in 0..1000 {
        victim.step();
        assert_eq!(victim.btl.stranger(), None);
    }
    assert_eq!(next.heard(), None);
    impostor.write(Kind::Release, 0, b"");
    assert_eq!(next.hears(&mut victim), "Welcome");
}

#[test]
fn a_connection_that_waits_is_refused_when_the_peer_is_given_up() {
    let Some(lab) = lab_or_skip("given_up", &LabOptions::new(2)) else {
        return;
    };
    let (mut victim, _third, impostor) = releasing(&lab);
    let mut next = impostor.again(&lab, &victim);
    next.greet();
    run("its HELLO was read", &mut [&mut victim], |members| {
        members[0].btl.pending_connections() == 1
    });
    for _ in 0..1000 {
        victim.step();
    }
    run("the peer is dropped", &mut [&mut victim], |members| {
        members[0].btl.drop_peer(1)
    });
    assert!(next.hears(&mut victim).starts_with("Refuse"));
    assert_eq!(victim.btl.pending_connections(), 0);
}

/// The HELLO of an abandoned attempt may arrive late.
#[test]
fn an_earlier_attempt_changes_nothing() {
    let Some(lab) = lab_or_skip("an_earlier_attempt", &LabOptions::new(2)) else {
        return;
    };
    let (mut victim, mut third, mut impostor) = releasing(&lab);
    let mut next = impostor.again(&lab, &victim);
    let mut last = next.again(&lab, &victim);
    last.greet();
    run("both were accepted", &mut [&mut victim], |members| {
        members[0].btl.pending_connections() == 2
    });
    for _ in 0..1000 {
        victim.step();
    }
    // While the last one waits, when it was answered, and when it is established.
    next.greet();
    run("the stream has ended", &mut [&mut victim], |_| {
        next.has_ended()
    });
    impostor.write(Kind::Release, 0, b"");
    assert_eq!(last.hears(&mut victim), "Welcome");
    let mut next = impostor.again(&lab, &victim);
    next.greet();
    run("the stream has ended", &mut [&mut victim], |_| {
        next.has_ended()
    });
    last.write(Kind::Confirm, 0, b"");
    last.write(Kind::Message, 1, b"h1");
    run("its message", &mut [&mut victim, &mut third], |members| {
        !members[0].log.messages.is_empty()
    });
    assert!(victim.log.failed.is_empty(), "{:?}", victim.log.failed);
}

/// Its RELEASE was read, but the answer and the messages sent before cannot reach it.
#[test]
fn a_link_lost_at_the_end_of_a_connection_loses_the_peer() {
    let Some(lab) = configured_lab("a_link_lost_at_the_end", 2, IMPATIENT) else {
        return;
    };
    let mut victim = Member::at(&lab, 0, 0, 2);
    let mut impostor = Impostor::added(&lab, &mut victim);
    impostor.establish(&mut victim);
    impostor.write(Kind::Message, 1, b"h1");
    run("its message", &mut [&mut victim], |members| {
        !members[0].log.messages.is_empty()
    });
    impostor.write(Kind::Release, 0, b"");
    wait_until("it is acknowledged", || {
        impostor.stream.unacknowledged() == 0
    });
    ip_in_switch(&lab, "link set port1 down");
    let error = until_failed("the loss", &mut victim, 1);
    assert!(matches!(error, PeerError::Lost(_)), "{error:?}");
    assert!(victim.btl.flush(), "it does not count any more");
}

#[test]
fn a_peer_that_ends_instead_has_failed() {
    let Some(lab) = lab_or_skip("a_peer_ends_instead", &LabOptions::new(2)) else {
        return;
    };
    type End = fn(Impostor);
    let ends: [(PeerError, End); 2] = [
        (PeerError::Left, |mut it| it.write(Kind::Goodbye, 0, b"")),
        (PeerError::Died, drop),
    ];
    for (expected, end) in ends {
        let (mut victim, mut third, impostor) = releasing(&lab);
        end(impostor);
        let error = until_failed("the end of the peer", &mut victim, 1);
        assert_eq!(error, expected);
        assert_eq!(victim.btl.counters().released, 0);
        send(&mut [&mut victim, &mut third], 0, 2, b"goes on");
    }
}
