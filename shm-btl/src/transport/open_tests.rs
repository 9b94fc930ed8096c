//! Open transports of one process.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use btl::{Btl, Events, PeerError, PendingPeers, Rank, SendError, Tx};

use super::ShmBtl;
use crate::address::OpenAddress;
use crate::attach::read_address;
use crate::config::ShmConfig;
use crate::layout::{Layout, OPEN_PEERS, REQUESTS};
use shmem::sync::Ordering;

const KEY: &str = "open tests";

fn open(identity: u64) -> ShmBtl {
    // Tests run in parallel, and identities are unique in the machine.
    let identity = identity | u64::from(std::process::id()) << 32;
    ShmBtl::new(ShmConfig::open(identity, KEY)).expect("shared memory")
}

fn identity(transport: &ShmBtl) -> u64 {
    OpenAddress::decode(&transport.address())
        .expect("an address")
        .identity
}

/// Events that a transport has reported.
#[derive(Default)]
struct Seen {
    messages: Vec<(Rank, Vec<u8>)>,
    failed: Vec<(Rank, PeerError)>,
}

impl Events for Seen {
    fn message(&mut self, _: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        self.messages.push((peer, [header, body].concat()));
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        self.failed.push((peer, error));
    }
}

/// Calls `progress` of the transports in turn until `done`.
fn until(
    all: &mut [(&mut ShmBtl, &mut Seen)],
    mut done: impl FnMut(&mut [(&mut ShmBtl, &mut Seen)]) -> bool,
) {
    let begin = Instant::now();
    while !done(all) {
        for (transport, seen) in all.iter_mut() {
            transport.progress(*seen);
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "not in time");
    }
}

/// Sends once the connection is established.
fn send(all: &mut [(&mut ShmBtl, &mut Seen)], from: usize, to: Rank, body: &[u8]) {
    until(all, |all| {
        let sent = all[from].0.send(to, b"h", &[IoSlice::new(body)]);
        assert!(matches!(sent, Ok(()) | Err(SendError::Busy)), "{sent:?}");
        sent.is_ok()
    });
}

/// Returns two transports that have added each other as peer 1, and can send.
fn pair(first: u64) -> (ShmBtl, ShmBtl) {
    let (mut one, mut other) = (open(first), open(first + 1));
    let (mut a, mut b) = (Seen::default(), Seen::default());
    one.add_peer(1, &other.address()).expect("on this node");
    other.add_peer(1, &one.address()).expect("on this node");
    let mut all = [(&mut one, &mut a), (&mut other, &mut b)];
    send(&mut all, 0, 1, b"to");
    send(&mut all, 1, 1, b"fro");
    until(&mut all, |all| {
        all.iter().all(|(_, seen)| seen.messages.len() == 1)
    });
    (one, other)
}

#[test]
fn a_stranger_is_admitted_and_both_send() {
    let (mut one, mut other) = (open(1), open(2));
    let (mut a, mut b) = (Seen::default(), Seen::default());
    one.add_peer(7, &other.address()).expect("on this node");
    assert_eq!(one.send(7, b"", &[]), Err(SendError::Busy), "not admitted");
    let it = identity(&one);
    let mut all = [(&mut one, &mut a), (&mut other, &mut b)];
    until(&mut all, |all| all[1].0.stranger().is_some());
    assert_eq!(all[1].0.stranger(), Some(it));
    all[1].0.admit(3, it).expect("it is there");
    assert_eq!(all[1].0.stranger(), None);
    let long = vec![9; 20_000];
    for length in [0, 40, 100, 3000, 20_000] {
        send(&mut all, 0, 7, &long[..length]);
        send(&mut all, 1, 3, &long[..length]);
    }
    until(&mut all, |all| {
        all.iter().all(|(_, seen)| seen.messages.len() == 5)
    });
    for (peer, seen) in [(7, &a), (3, &b)] {
        let lengths: Vec<_> = seen
            .messages
            .iter()
            .map(|(from, body)| (*from, body.len()))
            .collect();
        assert_eq!(
            lengths,
            [1, 41, 101, 3001, 20_001].map(|length| (peer, length))
        );
    }
}

#[test]
fn peers_that_add_each_other_have_one_connection() {
    let (mut one, mut other) = (open(3), open(4));
    let (mut a, mut b) = (Seen::default(), Seen::default());
    one.add_peer(1, &other.address()).expect("on this node");
    other.add_peer(1, &one.address()).expect("on this node");
    let again = one
        .add_peer(2, &other.address())
        .expect_err("a second number");
    assert!(again.reason.contains("identity"), "{}", again.reason);
    let mut all = [(&mut one, &mut a), (&mut other, &mut b)];
    send(&mut all, 0, 1, b"to");
    send(&mut all, 1, 1, b"fro");
    until(&mut all, |all| {
        all.iter().all(|(_, seen)| seen.messages.len() == 1)
    });
    assert!(one.stranger().is_none() && other.stranger().is_none());
}

#[test]
fn a_peer_that_refuses_or_leaves_first_is_reported() {
    let (mut one, mut other) = (open(5), open(6));
    let mut a = Seen::default();
    one.add_peer(1, &other.address()).expect("on this node");
    other.progress(&mut Seen::default());
    other.refuse_stranger(identity(&one), "no");
    until(&mut [(&mut one, &mut a)], |all| !all[0].1.failed.is_empty());
    assert!(matches!(&a.failed[..], [(1, PeerError::Lost(why))] if why.contains("refused")));
    assert!(matches!(
        one.send(1, b"", &[]),
        Err(SendError::Failed { .. })
    ));

    let mut third = open(7);
    one.add_peer(2, &third.address()).expect("on this node");
    third.close();
    until(&mut [(&mut one, &mut a)], |all| all[0].1.failed.len() == 2);
    assert_eq!(a.failed[1], (2, PeerError::Left));

    let fourth = open(8);
    one.add_peer(3, &fourth.address()).expect("on this node");
    assert!(one.drop_peer(3));
    until(&mut [(&mut one, &mut a)], |all| all[0].1.failed.len() == 3);
    assert!(matches!(a.failed[2], (3, PeerError::Lost(_))));
}

#[test]
fn pairs_of_peers_that_left_are_used_again() {
    let mut server = open(9);
    let mut seen = Seen::default();
    for number in 1..=OPEN_PEERS as u32 + 20 {
        let (mut client, mut theirs) = (open(100 + u64::from(number)), Seen::default());
        client.add_peer(1, &server.address()).expect("on this node");
        let it = identity(&client);
        let mut all = [(&mut server, &mut seen), (&mut client, &mut theirs)];
        until(&mut all, |all| all[0].0.stranger().is_some());
        all[0].0.admit(number, it).expect("a free pair");
        send(&mut all, 1, 1, b"question");
        send(&mut all, 0, number, b"answer");
        until(&mut all, |all| !all[1].1.messages.is_empty());
        until(&mut all, |all| all[0].1.messages.len() == number as usize);
        assert_eq!(theirs.messages, [(1, b"hanswer".to_vec())]);
        client.close();
        until(&mut [(&mut server, &mut seen)], |all| {
            all[0].1.failed.len() == number as usize
        });
    }
    assert!(
        seen.failed
            .iter()
            .all(|(_, error)| *error == PeerError::Left)
    );
}

#[test]
fn what_is_not_a_peer_is_refused_or_ignored() {
    let (mut one, other) = (open(10), open(11));
    let good = OpenAddress::decode(&other.address()).expect("an address");
    let wrong = [
        OpenAddress {
            identity: 1,
            ..good
        },
        OpenAddress { pid: 1, ..good },
        OpenAddress { pid: 0, ..good },
        OpenAddress {
            data: good.data + 1000,
            ..good
        },
        OpenAddress { data: 0, ..good },
        OpenAddress::decode(&one.address()).expect("an address"),
    ];
    for address in wrong {
        one.add_peer(1, &address.encode()).expect_err("wrong");
    }
    one.add_peer(1, b"").expect_err("no address");
    one.add_peer(0, &other.address())
        .expect_err("its own number");
    // Requests are written by anyone of this user.
    let open = one.open.as_ref().expect("open");
    for (place, word) in open.requests.from.iter().enumerate() {
        word.store(u64::MAX - place as u64, Ordering::Release);
    }
    open.requests
        .count
        .fetch_add(REQUESTS as u64, Ordering::AcqRel);
    assert_eq!(one.progress(&mut Seen::default()), 0);
    assert_eq!(one.stranger(), None);
    // The right address still works.
    one.add_peer(1, &other.address()).expect("on this node");
    assert!(one.admit(2, 99).is_err(), "no stranger");
}

#[test]
fn the_memory_of_a_job_is_not_that_of_an_open_transport() {
    let job = ShmBtl::new(ShmConfig::new(0, 2, KEY)).expect("shared memory");
    let data = crate::address::ShmAddress::decode(&job.address()).expect("an address");
    let read = read_address(data.pid, data.data, &Layout::open());
    assert!(read.is_err(), "another length");
}

#[test]
fn chunks_return_when_both_sides_end_the_connection() {
    let (mut one, mut other) = pair(30);
    let body = vec![9; 20_000];
    other.send(1, b"h", &[IoSlice::new(&body)]).expect("room");
    assert!(one.drop_peer(1) && other.drop_peer(1));
    let (mut a, mut b) = (Seen::default(), Seen::default());
    // One after the other: the words of the first one's pair must stay.
    until(&mut [(&mut one, &mut a)], |all| !all[0].1.failed.is_empty());
    until(&mut [(&mut other, &mut b)], |all| {
        !all[0].1.failed.is_empty() && all[0].0.live == 0
    });
    assert!(other.closing.is_empty());
}

#[test]
fn pairs_of_living_former_peers_are_used_again() {
    let mut server = open(40);
    let mut seen = Seen::default();
    let mut clients = Vec::new();
    for number in 1..=OPEN_PEERS as u32 + 3 {
        let (mut client, mut theirs) = (open(200 + u64::from(number)), Seen::default());
        client.add_peer(1, &server.address()).expect("on this node");
        server.add_peer(number, &client.address()).expect("a pair");
        let mut all = [(&mut server, &mut seen), (&mut client, &mut theirs)];
        send(&mut all, 1, 1, b"question");
        until(&mut all, |all| all[0].1.messages.len() == number as usize);
        all[0].0.drop_peer(number);
        until(&mut all, |all| all.iter().all(|(one, _)| one.live == 0));
        clients.push(client);
    }
}

#[test]
fn a_full_transport_is_unreachable_until_a_peer_leaves() {
    let (mut server, mut seen) = (open(50), Seen::default());
    let mut clients = Vec::new();
    for number in 1..=OPEN_PEERS as u32 {
        let mut client = open(300 + u64::from(number));
        client.add_peer(1, &server.address()).expect("on this node");
        server.add_peer(number, &client.address()).expect("a pair");
        clients.push((client, Seen::default()));
    }
    let mut late = open(400);
    let why = late.add_peer(1, &server.address()).expect_err("full");
    assert!(why.reason.contains("peers on this node"), "{}", why.reason);
    // A peer that the server has added itself is one of those that it has.
    let (known, _) = &mut clients[0];
    let mut all = [(&mut server, &mut seen), (known, &mut Seen::default())];
    send(&mut all, 1, 1, b"question");
    clients.pop();
    until(&mut [(&mut server, &mut seen)], |all| {
        !all[0].1.failed.is_empty()
    });
    late.add_peer(1, &server.address()).expect("a free pair");
}

#[test]
fn a_request_of_a_peer_that_has_ended_is_refused() {
    let (mut one, mut other) = (open(60), open(61));
    let (mut a, mut b) = (Seen::default(), Seen::default());
    one.add_peer(1, &other.address()).expect("on this node");
    other.progress(&mut b);
    assert!(one.drop_peer(1));
    until(&mut [(&mut one, &mut a)], |all| !all[0].1.failed.is_empty());
    other.admit(1, identity(&one)).expect("it is there");
    let mut all = [(&mut one, &mut a), (&mut other, &mut b)];
    until(&mut all, |all| !all[1].1.failed.is_empty());
    assert!(matches!(&b.failed[..], [(1, PeerError::Lost(why))] if why.contains("refused")));
}

#[test]
fn a_request_that_was_not_answered_is_repeated() {
    let (mut one, mut other) = (open(70), open(71));
    let (mut a, mut b) = (Seen::default(), Seen::default());
    other.add_peer(1, &one.address()).expect("on this node");
    one.progress(&mut a);
    one.admit(1, identity(&other)).expect("it is there");
    // The connection ends before the other side has polled.
    assert!(one.drop_peer(1));
    until(&mut [(&mut one, &mut a)], |all| !all[0].1.failed.is_empty());
    let mut all = [(&mut one, &mut a), (&mut other, &mut b)];
    until(&mut all, |all| !all[1].1.failed.is_empty());
    assert!(matches!(&b.failed[..], [(1, PeerError::Lost(why))] if why.contains("refused")));
}

/// A peer that sleeps is woken by a request, and by the admission.
#[test]
fn sleepers_are_woken() {
    let (mut one, mut other) = (open(12), open(13));
    let (mut a, mut b) = (Seen::default(), Seen::default());
    one.progress(&mut a);
    assert!(one.arm(), "nothing to do");
    other.add_peer(1, &one.address()).expect("on this node");
    assert!(is_readable(&one), "by the request");
    one.progress(&mut a);
    assert!(!one.arm(), "a stranger waits");
    other.progress(&mut b);
    assert!(other.arm(), "nothing to do");
    let it = identity(&other);
    one.admit(1, it).expect("it is there");
    assert!(is_readable(&other), "by the admission");
}

fn is_readable(transport: &ShmBtl) -> bool {
    let fd = transport.wait_fd().expect("a descriptor");
    let mut fds = [rustix::event::PollFd::new(
        &fd,
        rustix::event::PollFlags::IN,
    )];
    let time = rustix::event::Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fds, Some(&time)).expect("poll") == 1
}
