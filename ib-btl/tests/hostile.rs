//! Two transports on one thread over the fabric: failures, and a peer that violates the protocol.

#![allow(clippy::needless_pass_by_value)] // pairs of borrows

use std::io::IoSlice;
use std::time::Duration;

use btl::{Btl, Events, NoticedPuts, PeerError, Rank, SendError, Started, Tx};
use fake_verbs::{Fabric, FabricNic};
use ib_btl::nic::{Completion, Nic, Place, PostMode, Remote, Sge, Verb};
use ib_btl::{IbBtl, IbConfig};

#[derive(Default)]
struct Seen {
    messages: Vec<Vec<u8>>,
    completed: Vec<(u64, Result<(), PeerError>)>,
    failed: Vec<(Rank, PeerError)>,
}

impl Events for Seen {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, _: &[u8], body: &[u8]) {
        self.messages.push(body.to_vec());
    }
    fn completed(&mut self, _: &mut dyn Tx, token: u64, result: Result<(), PeerError>) {
        self.completed.push((token, result));
    }
    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        self.failed.push((peer, error));
    }
}

fn transport(fabric: &Fabric, rank: u32) -> IbBtl {
    let (_, nic) = fabric.nic().unwrap();
    let mut config = IbConfig::new(rank, 3, b"hostile");
    config.add_wait = Duration::ZERO;
    IbBtl::over(Box::new(nic), config).unwrap()
}

/// Makes progress at both ends until `done`.
fn until(
    one: (&mut IbBtl, &mut Seen),
    two: (&mut IbBtl, &mut Seen),
    done: impl Fn(&Seen, &Seen) -> bool,
) {
    let begin = std::time::Instant::now();
    while !done(one.1, two.1) {
        one.0.progress(one.1);
        two.0.progress(two.1);
        assert!(
            begin.elapsed().as_secs() < 60,
            "timed out waiting for the condition"
        );
    }
}

/// Sends once there is a connection.
fn send(from: &mut IbBtl, to: &mut IbBtl, seen: (&mut Seen, &mut Seen), peer: Rank, body: &[u8]) {
    let begin = std::time::Instant::now();
    while from.send(peer, b"", &[IoSlice::new(body)]) == Err(SendError::Busy) {
        from.progress(seen.0);
        to.progress(seen.1);
        assert!(begin.elapsed().as_secs() < 60, "busy for 60 s");
    }
}

#[test]
fn a_cut_connection_fails_once_and_is_not_reestablished() {
    let fabric = Fabric::new();
    let (mut a, mut b) = (transport(&fabric, 0), transport(&fabric, 1));
    let (mut saw_a, mut saw_b) = (Seen::default(), Seen::default());
    a.add_peer(1, &b.address()).unwrap();
    b.add_peer(0, &a.address()).unwrap();
    send(&mut a, &mut b, (&mut saw_a, &mut saw_b), 1, b"before");
    until((&mut a, &mut saw_a), (&mut b, &mut saw_b), |_, b| {
        b.messages.len() == 1
    });
    fabric.cut(0, 1);
    until((&mut a, &mut saw_a), (&mut b, &mut saw_b), |a, b| {
        !a.failed.is_empty() && !b.failed.is_empty()
    });
    assert!(
        matches!(saw_a.failed[..], [(1, PeerError::Lost(_))]),
        "{:?}",
        saw_a.failed
    );
    assert!(matches!(
        a.send(1, b"", &[IoSlice::new(b"x")]),
        Err(SendError::Failed { peer: 1, .. })
    ));
    // Neither this process nor a successor connects again.
    let why = a.add_peer(1, &b.address()).unwrap_err();
    assert!(why.reason.contains("failed"), "{why}");
    let why = a.add_peer(1, &transport(&fabric, 1).address()).unwrap_err();
    assert!(why.reason.contains("another address"), "{why}");
    assert_eq!((saw_a.failed.len(), saw_b.failed.len()), (1, 1));
}

/// Connects `a`, which is rank 0, with another transport.
fn meet(a: &mut IbBtl, (rank, other): (Rank, &mut IbBtl), (saw, seen): (&mut Seen, &mut Seen)) {
    a.add_peer(rank, &other.address()).unwrap();
    other.add_peer(0, &a.address()).unwrap();
    for _ in 0..4 {
        a.progress(saw);
        other.progress(seen);
    }
}

/// A process that knows all numbers of a job, including its secret, but does not have the address
/// and queue pair of a rank, cannot impersonate that rank.
#[test]
fn a_connection_request_from_another_queue_pair_is_ignored() {
    let fabric = Fabric::new();
    let (mut a, mut b) = (transport(&fabric, 0), transport(&fabric, 1));
    let (mut saw_a, mut saw_b) = (Seen::default(), Seen::default());
    let (_, mut forger) = fabric.nic().unwrap();
    let to = Place {
        gid: word(&a.address(), 24),
        lid: 0,
        qpn: 1,
        qkey: 0x1234,
    };
    let (card_a, card_b) = (a.address(), b.address());
    // From 1 to 0 with both nonces, the job, and a queue pair of the forger; then a notice that
    // rank 1 leaves.
    let forged = |flags: u8| {
        let mut bytes = b"IBh1".to_vec();
        bytes.extend([1u32, 0].map(u32::to_le_bytes).concat());
        bytes.extend([&card_b[16..24], &card_a[16..24], &card_a[4..12]].concat());
        bytes.push(flags);
        bytes.extend([99u32, 5].map(u32::to_le_bytes).concat());
        bytes.extend([0; 12]);
        bytes
    };
    // Before rank 1 is added the request is kept, and checked then.
    forger.datagram(&to, &forged(2)).unwrap();
    a.progress(&mut saw_a);
    a.add_peer(1, &card_b).unwrap();
    assert_eq!((a.stats().forged, a.stats().strays), (1, 0));
    for flags in [1, 2, 3, 4] {
        forger.datagram(&to, &forged(flags)).unwrap();
    }
    a.progress(&mut saw_a);
    assert_eq!((a.stats().forged, saw_a.failed.len()), (5, 0));
    b.add_peer(0, &card_a).unwrap();
    send(
        &mut a,
        &mut b,
        (&mut saw_a, &mut saw_b),
        1,
        b"to the real one",
    );
    until((&mut a, &mut saw_a), (&mut b, &mut saw_b), |_, b| {
        b.messages == [b"to the real one"]
    });
    // Refused when connected as well; accepted from the real address.
    forger.datagram(&to, &forged(4)).unwrap();
    a.progress(&mut saw_a);
    assert_eq!((a.stats().forged, saw_a.failed.len()), (6, 0));
}

/// The messages of a peer with more blocks fill the queue of one with few.
#[test]
fn a_put_behind_a_full_queue_continues_when_the_messages_are_complete() {
    let fabric = Fabric::new();
    let one = |rank, blocks| {
        let mut config = IbConfig::new(rank, 2, b"unequal");
        (config.add_wait, config.blocks) = (Duration::ZERO, blocks);
        IbBtl::over(Box::new(fabric.nic().unwrap().1), config).unwrap()
    };
    let (mut a, mut b) = (one(0, 8), one(1, 4096));
    let (mut saw_a, mut saw_b) = (Seen::default(), Seen::default());
    meet(&mut a, (1, &mut b), (&mut saw_a, &mut saw_b));
    send(&mut a, &mut b, (&mut saw_a, &mut saw_b), 1, b"connected");
    let mut target = [0u8; 100];
    // SAFETY: the memory outlives the transports, and is read after the last access.
    let region = unsafe { b.register(target.as_mut_ptr(), target.len()) }.unwrap();
    while a.send(1, b"", &[IoSlice::new(b"one more")]) == Ok(()) {}
    let source = [7u8; 100];
    // SAFETY: the memory lives until completion.
    let began = unsafe { a.put(1, source.as_ptr(), source.len(), &region.key, 0, 5) };
    assert_eq!(began, Ok(Started::Pending));
    until((&mut a, &mut saw_a), (&mut b, &mut saw_b), |a, _| {
        !a.completed.is_empty()
    });
    assert_eq!(saw_a.completed, [(5, Ok(()))]);
    drop((a, b));
    assert_eq!(target, source);
}

/// Two peers that send as fast as they can do not delay the report of a third one's death.
#[test]
fn a_death_is_reported_while_others_keep_sending() {
    let fabric = Fabric::new();
    let one = |rank| {
        let mut config = IbConfig::new(rank, 4, b"busy");
        config.add_wait = Duration::ZERO;
        IbBtl::over(Box::new(fabric.nic().unwrap().1), config).unwrap()
    };
    let (mut a, mut saw_a) = (one(0), Seen::default());
    let mut others = [one(1), one(2), one(3)];
    let mut saw = Seen::default();
    for (rank, other) in (1..).zip(&mut others) {
        meet(&mut a, (rank, other), (&mut saw_a, &mut saw));
        send(other, &mut a, (&mut saw, &mut saw_a), 0, b"here");
    }
    a.progress(&mut saw_a);
    assert_eq!(saw_a.messages.len(), 3);
    fabric.kill(3);
    let begin = std::time::Instant::now();
    while saw_a.failed.is_empty() {
        for other in &mut others[..2] {
            while other.send(0, b"", &[IoSlice::new(b"more")]) == Ok(()) {}
        }
        a.progress(&mut saw_a);
        for other in &mut others[..2] {
            other.progress(&mut saw);
        }
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "not reported after {} messages",
            saw_a.messages.len()
        );
    }
    assert!(
        matches!(saw_a.failed[..], [(3, PeerError::Lost(_))]),
        "{:?}",
        saw_a.failed
    );
}

/// A process that ended after it published its address, or that datagrams do not reach.
#[test]
fn a_peer_that_never_answers_is_lost_soon_and_alone() {
    let fabric = Fabric::new();
    let (mut a, mut c) = (transport(&fabric, 0), transport(&fabric, 2));
    let (mut saw_a, mut saw_c) = (Seen::default(), Seen::default());
    let address = transport(&fabric, 1).address();
    a.add_peer(1, &address).unwrap();
    assert_eq!(a.send(1, b"", &[IoSlice::new(b"x")]), Err(SendError::Busy));
    meet(&mut a, (2, &mut c), (&mut saw_a, &mut saw_c));
    until((&mut a, &mut saw_a), (&mut c, &mut saw_c), |a, _| {
        !a.failed.is_empty()
    });
    let [(1, PeerError::Lost(why))] = &saw_a.failed[..] else {
        panic!("{:?}", saw_a.failed)
    };
    assert!(why.contains("no datagram"), "{why}");
    send(&mut a, &mut c, (&mut saw_a, &mut saw_c), 2, b"still here");
    until((&mut a, &mut saw_a), (&mut c, &mut saw_c), |_, c| {
        c.messages == [b"still here"]
    });
}

/// Peer that implements the wire protocol by hand, as rank 1.
struct HostilePeer {
    nic: FabricNic,
    address: Vec<u8>,
    page: Box<[u8; 4096]>,
    lkey: u32,
    queue: ib_btl::nic::Queue,
    ring: (u64, u32),
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

impl HostilePeer {
    /// Connects to `a` with the address of a regular transport whose numbers are replaced by its
    /// own.
    fn connect(fabric: &Fabric, a: &mut IbBtl, saw: &mut Seen) -> HostilePeer {
        let mut address = transport(fabric, 1).address();
        let (_, mut nic) = fabric.nic().unwrap();
        let place = nic.about().place;
        address[24..40].copy_from_slice(&place.gid);
        address[42..46].copy_from_slice(&place.qpn.to_le_bytes());
        let nonce = u64::from_le_bytes(word(&address, 16));
        a.add_peer(1, &address).unwrap();
        let mut out = Vec::new();
        nic.poll(16, &mut out).unwrap();
        let Some(Completion::Datagram { bytes: hello, .. }) = out.first() else {
            panic!("no request for a connection")
        };
        let (queue, qpn) = nic.open(0, 64).unwrap();
        nic.expect(queue, 64).unwrap();
        let theirs = a.address();
        let to = Place {
            gid: word(&theirs, 24),
            lid: 0,
            qpn: 1,
            qkey: 0x1234,
        };
        let (their_qpn, ring) = (
            u32::from_le_bytes(word(hello, 37)),
            u64::from_le_bytes(word(hello, 45)),
        );
        let key = u32::from_le_bytes(word(hello, 53));
        let remote = Remote {
            place: to,
            mtu: 5,
            qpn: their_qpn,
            psn: [0, 0],
            timeout: 14,
            retries: 6,
        };
        nic.connect(queue, &remote).unwrap();
        // The answer: from 1 to 0, nonces exchanged, with the flag that it has the other part.
        let mut mine = hello.clone();
        mine[4..8].copy_from_slice(&1u32.to_le_bytes());
        mine[8..12].copy_from_slice(&0u32.to_le_bytes());
        mine[12..20].copy_from_slice(&nonce.to_le_bytes());
        mine[20..28].copy_from_slice(&hello[12..20]);
        mine[36] = 1;
        mine[37..41].copy_from_slice(&qpn.to_le_bytes());
        nic.datagram(&to, &mine).unwrap();
        a.progress(saw);
        let page = Box::new([0; 4096]);
        // SAFETY: lives as long as the interface.
        let lkey = unsafe { nic.register(page.as_ptr().expose_provenance(), 4096, true) }
            .unwrap()
            .lkey;
        HostilePeer {
            nic,
            address,
            page,
            lkey,
            queue,
            ring: (ring, key),
        }
    }

    fn write(&mut self, immediate: Option<u32>, bytes: &[u8], at: u64) {
        self.page[..bytes.len()].copy_from_slice(bytes);
        let address = self.page.as_ptr().expose_provenance() as u64;
        let sge = [Sge {
            address,
            length: bytes.len() as u32,
            lkey: self.lkey,
        }];
        let to = (self.ring.0.wrapping_add(at), self.ring.1);
        // SAFETY: the fabric has copied the bytes when this returns.
        unsafe {
            self.nic.post(
                self.queue,
                1,
                Verb::Write(immediate),
                &sge,
                to,
                PostMode::Registered,
            )
        }
        .unwrap();
    }
}

/// A message of two bytes, as laid out in a block.
const SOUND: &[u8] = &[0, 0xff, 0, 0, 2, 0, 0, 0, b'h', b'i'];

#[test]
fn violations_fail_only_their_sender() {
    type Case = (&'static str, fn(&mut HostilePeer));
    let cases: &[Case] = &[
        ("another rank", |v| v.write(Some(2), SOUND, 0)),
        ("no kind", |v| v.write(Some(7 << 29 | 1), SOUND, 0)),
        ("blocks it never had", |v| {
            v.write(Some(1 << 29 | 9 << 16 | 1), &[], 0);
        }),
        ("a region that it was not given is full", |v| {
            v.write(Some(3 << 29 | 1), &[], 0);
        }),
        ("a header too long", |v| {
            v.write(Some(1), &[65, !65, 0, 0, 0, 0, 0, 0], 0);
        }),
        ("a body too long", |v| {
            v.write(Some(1), &[0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff], 0);
        }),
        ("no message at all", |v| v.write(Some(1), &[], 0)),
        ("in the wrong block", |v| v.write(Some(1), SOUND, 4096)),
    ];
    for (name, act) in cases {
        let fabric = Fabric::new();
        let (mut a, mut saw) = (transport(&fabric, 0), Seen::default());
        // A bystander, connected before.
        let (mut c, mut saw_c) = (transport(&fabric, 2), Seen::default());
        meet(&mut a, (2, &mut c), (&mut saw, &mut saw_c));
        let mut hostile = HostilePeer::connect(&fabric, &mut a, &mut saw);
        hostile.write(Some(1), SOUND, 0);
        a.progress(&mut saw);
        assert_eq!(saw.messages, [b"hi"], "{name}: a valid message is accepted");
        let next: fn(&mut HostilePeer) = *act;
        // The next message belongs into the second block.
        hostile.ring.0 += 4096;
        next(&mut hostile);
        for _ in 0..10 {
            a.progress(&mut saw);
        }
        assert!(
            matches!(saw.failed[..], [(1, PeerError::Violation(_))]),
            "{name}: {:?}",
            saw.failed
        );
        assert_eq!(saw.messages.len(), 1, "{name}");
        assert!(a.add_peer(1, &hostile.address).is_err(), "{name}");
        send(
            &mut a,
            &mut c,
            (&mut saw, &mut saw_c),
            2,
            b"to the bystander",
        );
        send(
            &mut c,
            &mut a,
            (&mut saw_c, &mut saw),
            0,
            b"from the bystander",
        );
        until((&mut a, &mut saw), (&mut c, &mut saw_c), |a, c| {
            a.messages.len() == 2 && c.messages.len() == 1
        });
        assert_eq!(
            (&saw.messages[1][..], saw.failed.len()),
            (&b"from the bystander"[..], 1),
            "{name}"
        );
        assert_eq!(
            (&saw_c.messages[0][..], saw_c.failed.len()),
            (&b"to the bystander"[..], 0),
            "{name}"
        );
    }
}

/// Messages after a malformed one are refused as well: they would take the place of lost ones.
#[test]
fn nothing_is_accepted_after_a_violation() {
    type Case = (&'static str, fn(&mut HostilePeer));
    let cases: &[Case] = &[
        ("after a violation", |v| v.write(Some(2), SOUND, 4096)),
        ("after its end", |v| {
            v.write(Some(2 << 29 | 1), &[], 0);
        }),
    ];
    for (name, act) in cases {
        let fabric = Fabric::new();
        let (mut a, mut saw) = (transport(&fabric, 0), Seen::default());
        let mut hostile = HostilePeer::connect(&fabric, &mut a, &mut saw);
        hostile.write(Some(1), SOUND, 0);
        act(&mut hostile);
        hostile.write(Some(1), SOUND, 4096);
        for _ in 0..10 {
            a.progress(&mut saw);
        }
        assert_eq!(
            (saw.messages.len(), saw.failed.len()),
            (1, 1),
            "{name}: {:?}",
            saw.failed
        );
    }
}

/// A peer that guesses the number of another peer's region neither notifies its owner nor prevents
/// the notice of the right peer.
#[test]
fn only_the_peer_of_a_region_can_report_it_full() {
    let fabric = Fabric::new();
    let (mut a, mut saw) = (transport(&fabric, 0), Seen::default());
    let (mut c, mut saw_c) = (transport(&fabric, 2), Seen::default());
    meet(&mut a, (2, &mut c), (&mut saw, &mut saw_c));
    let mut hostile = HostilePeer::connect(&fabric, &mut a, &mut saw);
    let mut memory = vec![1; 1000];
    // SAFETY: outlives the transport, and is read only after that has ended.
    let region = unsafe { a.register_noticed(memory.as_mut_ptr(), 1000, 2, b"full") }.unwrap();
    let number = u32::from_le_bytes(word(&region.key, 32));
    assert_ne!(number, 0);
    hostile.write(Some(3 << 29 | number), &[], 0);
    until((&mut a, &mut saw), (&mut c, &mut saw_c), |a, _| {
        !a.failed.is_empty()
    });
    assert!(
        matches!(saw.failed[..], [(1, PeerError::Violation(_))]),
        "{:?}",
        saw.failed
    );
    let local = [2; 1000];
    // SAFETY: lives until the completion.
    let put = unsafe { c.put_last(0, local.as_ptr(), 1000, &region.key, 0, 5) };
    assert_eq!(put, Ok(Started::Pending));
    until((&mut a, &mut saw), (&mut c, &mut saw_c), |a, c| {
        a.messages.len() == 1 && c.completed.len() == 1
    });
    // SAFETY: as above.
    let silent = unsafe { a.register(memory.as_mut_ptr(), 1000) }.unwrap();
    // SAFETY: lives until the completion.
    let put = unsafe { c.put_last(0, local.as_ptr(), 1000, &silent.key, 0, 6) };
    assert_eq!(put, Err(SendError::Unsupported));
    drop((a, c));
    assert_eq!(memory, local);
}

#[test]
fn memory_outside_of_the_blocks_cannot_be_written() {
    let fabric = Fabric::new();
    let (mut a, mut saw) = (transport(&fabric, 0), Seen::default());
    let mut hostile = HostilePeer::connect(&fabric, &mut a, &mut saw);
    hostile.write(None, SOUND, 67 * 4096 - 5);
    let mut out = Vec::new();
    hostile.nic.poll(16, &mut out).unwrap();
    assert!(
        out.iter()
            .any(|one| matches!(one, Completion::Done { status: 10, .. })),
        "{out:?}"
    );
    for _ in 0..10 {
        a.progress(&mut saw);
    }
    assert!(
        saw.messages.is_empty() && saw.failed.len() == 1,
        "{:?}",
        saw.failed
    );
}

#[test]
fn datagrams_of_unknown_senders_are_counted_and_dropped() {
    let fabric = Fabric::new();
    let (mut a, mut saw) = (transport(&fabric, 0), Seen::default());
    let (_, mut nic) = fabric.nic().unwrap();
    let to = Place {
        gid: word(&a.address(), 24),
        lid: 0,
        qpn: 1,
        qkey: 0x1234,
    };
    for length in 0..192usize {
        nic.datagram(&to, &vec![length as u8; length]).unwrap();
    }
    while a.progress(&mut saw) > 0 {}
    assert_eq!(a.stats().strays, 192);
    assert!(saw.failed.is_empty());
}

#[test]
fn a_refused_registration_does_not_affect_the_peer() {
    let fabric = Fabric::new();
    let (mut a, mut b) = (transport(&fabric, 0), transport(&fabric, 1));
    let (mut saw_a, mut saw_b) = (Seen::default(), Seen::default());
    a.add_peer(1, &b.address()).unwrap();
    b.add_peer(0, &a.address()).unwrap();
    let mut memory = vec![1; 100_000];
    // SAFETY: deregistered by dropping the transport first.
    let region = unsafe { b.register(memory.as_mut_ptr(), memory.len()) }.unwrap();
    send(&mut a, &mut b, (&mut saw_a, &mut saw_b), 1, b"connected");
    fabric.limit(0, 0);
    let local = vec![2; 1000];
    // SAFETY: lives until the end of the test.
    let put = unsafe { a.put(1, local.as_ptr(), 1000, &region.key, 0, 7) };
    assert_eq!(put, Err(SendError::Unsupported));
    // SAFETY: lives until the end of the test.
    let text = unsafe { a.register(memory.as_mut_ptr(), 10) }
        .unwrap_err()
        .to_string();
    assert!(text.contains("limit of locked memory"), "{text}");
    fabric.limit(0, u64::MAX);
    // SAFETY: lives until the end of the test.
    unsafe { a.put(1, local.as_ptr(), 1000, &region.key, 10, 8) }.unwrap();
    until((&mut a, &mut saw_a), (&mut b, &mut saw_b), |a, _| {
        a.completed.len() == 1
    });
    assert_eq!(saw_a.completed, [(8, Ok(()))]);
    drop((a, b));
    assert_eq!(
        (memory[9], memory[10], memory[1009], memory[1010]),
        (1, 2, 2, 1)
    );
}
