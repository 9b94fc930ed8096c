//! Endpoints: peers without ranks, wide tags, masks, reports.

use crate::common;
use std::time::{Duration, Instant};

use btl::Rank;
use common::open::{FAILS, TRIED, endpoints, reports};
use p2p::{Completion, Context, Endpoint, Error, Pattern, Sent, Target};

const TAGGED: Context = Context::ALL[0];
const OTHER: Context = Context::ALL[1];

fn target(peer: Rank, tag: u64) -> Target {
    Target {
        peer,
        context: TAGGED,
        tag,
        data: None,
        sync: false,
    }
}

fn pattern(peer: Option<Rank>, tag: u64, ignore: u64) -> Pattern {
    Pattern {
        peer,
        context: TAGGED,
        tag,
        ignore,
    }
}

fn receive(at: &Endpoint, buffer: &mut [u8], from: &Pattern, cookie: u64) {
    // SAFETY: the tests keep their buffers until all requests are reported.
    unsafe { at.recv(buffer.as_mut_ptr(), buffer.len(), from, cookie) }.unwrap();
}

#[test]
fn strangers_are_admitted_and_answered() {
    let (all, _) = endpoints(2);
    let (a, b) = (&all[0], &all[1]);
    let to_b = a.add_peer(101, b.addresses()).unwrap();
    assert_eq!(a.add_peer(101, Vec::new()).unwrap(), to_b);
    assert_eq!(a.add_peer(100, Vec::new()).unwrap(), 0);
    let long = vec![7; 300_000];
    let with_data = Target {
        data: Some(u64::MAX),
        ..target(to_b, u64::MAX)
    };
    for (cookie, body) in [(1, &long[..5]), (2, &long[..])] {
        // SAFETY: as in `receive`.
        let sent = unsafe { a.send(body.as_ptr(), body.len(), &with_data, cookie) };
        assert!(matches!(sent, Ok(Sent::Complete | Sent::Pending(_))));
    }
    let (mut short, mut buffer) = ([0; 5], vec![0; 300_000]);
    receive(b, &mut short, &pattern(None, u64::MAX, 0), 8);
    receive(b, &mut buffer, &pattern(None, 0, u64::MAX), 9);
    let got = reports(&[b.clone(), a.clone()], 2);
    assert_eq!(got.iter().map(|one| one.cookie).collect::<Vec<_>>(), [8, 9]);
    assert!(
        got.iter()
            .all(|one| one.result.is_ok() && one.data == Some(u64::MAX))
    );
    assert_eq!((got[1].tag, got[1].length), (u64::MAX, 300_000));
    assert_eq!((short, buffer), ([7; 5], long));
    // The stranger has a number, by which it is answered, and keeps it when it is added.
    let from = got[0].peer.unwrap();
    assert_eq!(b.identity_of(from), Some(100));
    assert_eq!(b.add_peer(100, a.addresses()).unwrap(), from);
    assert!(b.try_send(b"answer", &target(from, 3)));
    let mut answer = [0; 6];
    receive(a, &mut answer, &pattern(Some(to_b), 3, 0), 4);
    let got = reports(&[a.clone(), b.clone()], 1);
    assert_eq!((got[0].cookie, got[0].peer), (4, Some(to_b)));
    assert_eq!(&answer, b"answer");
}

#[test]
fn masks_and_contexts_select_messages() {
    let (all, _) = endpoints(1);
    let own = &all[0];
    for tag in [0xA1u64, 0xB1, 0xA2] {
        // SAFETY: as in `receive`.
        unsafe { own.send([tag as u8].as_ptr(), 1, &target(0, tag << 32), tag) }.unwrap();
    }
    let other = Target {
        context: OTHER,
        ..target(0, 0)
    };
    // SAFETY: as in `receive`.
    unsafe { own.send([1].as_ptr(), 1, &other, 1) }.unwrap();
    let found = own.peek(&pattern(None, 0xA2 << 32, 0), false).unwrap();
    assert_eq!(found.map(|found| found.tag), Some(0xA2 << 32));
    let claimed = own.peek(&pattern(None, 0xA0 << 32, 0xF << 32), true);
    let claimed = claimed.unwrap().unwrap();
    assert_eq!(claimed.tag, 0xA1 << 32);
    let mut first = [0; 1];
    // SAFETY: as in `receive`.
    unsafe { own.recv_claimed(first.as_mut_ptr(), 1, (TAGGED, claimed.claim), 20) }.unwrap();
    let mut second = [0; 1];
    receive(own, &mut second, &pattern(Some(0), 1 << 32, 0xF0 << 32), 21);
    let mut third = [0; 1];
    receive(own, &mut third, &pattern(None, 0, u64::MAX), 22);
    let mut never = [0; 1];
    // SAFETY: as in `receive`.
    let last = unsafe { own.recv(never.as_mut_ptr(), 1, &pattern(None, 9, 0), 23) }.unwrap();
    assert_eq!(own.cancel(last), Ok(true));
    let mut got = Vec::new();
    own.poll(|completion| got.push(completion));
    let over = |cookie| got.iter().find(|one: &&Completion| one.cookie == cookie);
    assert!([20, 21, 22].iter().all(|cookie| over(*cookie).is_some()));
    assert_eq!(over(23).unwrap().result, Err(Error::Cancelled));
    assert_eq!((first, second, third), ([0xA1], [0xB1], [0xA2]));
}

#[test]
fn a_dead_peer_fails_only_requests_that_name_it() {
    let (all, killer) = endpoints(3);
    let (a, b) = (&all[0], &all[1]);
    let to_b = a.add_peer(101, b.addresses()).unwrap();
    let unreachable = a.add_peer(555, b.addresses()[..0].to_vec()).unwrap();
    let failed = |sent: Result<Sent, Error>| matches!(sent, Err(Error::PeerFailed { .. }));
    // SAFETY: as in `receive`.
    assert!(failed(unsafe {
        a.send([1].as_ptr(), 1, &target(unreachable, 1), 1)
    }));
    // SAFETY: as in `receive`.
    unsafe { a.send([1].as_ptr(), 1, &target(to_b, 1), 2) }.unwrap();
    let (mut named, mut any) = ([0; 1], [0; 1]);
    receive(a, &mut named, &pattern(Some(to_b), 1, 0), 3);
    receive(a, &mut any, &pattern(None, 1, 0), 4);
    killer.kill(1);
    let got = reports(std::slice::from_ref(a), 1);
    let ended = got.iter().find(|one| one.cookie == 3).unwrap();
    assert!(matches!(ended.result, Err(Error::PeerFailed { .. })));
    let later = Instant::now() + Duration::from_millis(50);
    let over = || false;
    assert!(!a.wait(Some(later), |one| assert_ne!(one.cookie, 4), over));
    // The third may still send.
    let c = &all[2];
    let to_a = c.add_peer(100, a.addresses()).unwrap();
    // SAFETY: as in `receive`.
    unsafe { c.send([9].as_ptr(), 1, &target(to_a, 1), 5) }.unwrap();
    assert_eq!(reports(&[a.clone(), c.clone()], 1)[0].cookie, 4);
    assert_eq!(any, [9]);
    assert_eq!(a.close(), Ok(()));
    // SAFETY: as in `receive`.
    assert!(unsafe { a.recv(any.as_mut_ptr(), 1, &pattern(None, 1, 0), 6) }.is_err());
}

#[test]
fn a_peer_that_cannot_be_reached_is_admitted_when_it_connects() {
    let (all, _) = endpoints(2);
    let (a, b) = (&all[0], &all[1]);
    let to_b = a.add_peer(101, Vec::new()).unwrap();
    let to_a = b.add_peer(100, a.addresses()).unwrap();
    static BODY: [u8; 1] = [5];
    // SAFETY: static.
    unsafe { b.send(BODY.as_ptr(), 1, &target(to_a, 1), 1) }.unwrap();
    let mut first = [0; 1];
    receive(a, &mut first, &pattern(Some(to_b), 1, 0), 2);
    let got = reports(&[a.clone(), b.clone()], 1);
    assert_eq!((got[0].cookie, &got[0].result), (2, &Ok(())));
    assert!(a.try_send(b"answer", &target(to_b, 2)));
    let mut answer = [0; 6];
    receive(b, &mut answer, &pattern(Some(to_a), 2, 0), 3);
    let got = reports(&[b.clone(), a.clone()], 1);
    assert_eq!((got[0].cookie, &got[0].result), (3, &Ok(())));
    assert_eq!((first, &answer), ([5], b"answer"));
}

#[test]
fn connections_in_the_name_of_a_peer_do_not_try_its_addresses_again() {
    let (all, _) = endpoints(2);
    let (a, b) = (&all[0], &all[1]);
    let unreachable = p2p::TransportAddress {
        transport: a.addresses()[0].transport.clone(),
        address: b"elsewhere".to_vec(),
    };
    let to_b = a.add_peer(101, vec![unreachable]).unwrap();
    let to_a = b.add_peer(100, a.addresses()).unwrap();
    assert!(!b.try_send(b"", &target(to_a, 1)));
    static BODY: [u8; 1] = [5];
    let send = |cookie| {
        // SAFETY: static.
        unsafe { b.send(BODY.as_ptr(), 1, &target(to_a, 1), cookie) }.unwrap();
        b.poll(|_| ());
    };
    FAILS.set(true);
    TRIED.set(0);
    for cookie in 0..5 {
        send(cookie);
        a.poll(|_| ());
    }
    assert_eq!(
        TRIED.get(),
        2,
        "the address of b to a, and once that of a to b"
    );
    // It may still come.
    FAILS.set(false);
    send(5);
    let mut buffer = [0; 1];
    receive(a, &mut buffer, &pattern(Some(to_b), 1, 0), 9);
    let got = reports(&[a.clone(), b.clone()], 1);
    assert_eq!((got[0].cookie, &got[0].result), (9, &Ok(())));
}
