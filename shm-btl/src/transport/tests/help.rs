//! Copies that both sides make: requests for help, and ends of peers that may still be copying.

use btl::{Btl, SendError, Tx};
use std::io::IoSlice;

use super::{Failures, Seen, transport};
use crate::transport::ShmBtl;

/// Sends a request for help with an offer that leaves all chunks to the other side.
fn ask(asker: &mut ShmBtl, id: u32, (from, to, length): (u64, u64, u64)) {
    use crate::coop::{Offer, place};
    let (_, peer) = asker.peer(0).expect("it was added");
    let chunks = u32::try_from(length.div_ceil(32 << 10).clamp(1, 1 << 15)).expect("small");
    Offer::open(&peer.producer.mine().offers.0[place(id)], id, chunks);
    assert_eq!(peer.producer.has_room(1), Ok(true));
    peer.producer.push_help(crate::fifo::Help {
        id,
        from,
        to,
        length,
    });
}

/// Returns receiver and sender, with memory of the sender that the receiver can get.
pub(super) fn pair(length: usize) -> Option<(ShmBtl, ShmBtl, Vec<u8>, btl::Region)> {
    let (mut one, mut other) = (transport(0), transport(1));
    let path = one.add_peer(1, &other.address()).expect("reachable");
    other.add_peer(0, &one.address()).expect("reachable");
    if !path.one_sided {
        println!("SKIPPED: cross-memory attach is not allowed here");
        return None;
    }
    let mut source = vec![7u8; length];
    // SAFETY: the memory lives until the end of the test.
    let region = unsafe { other.register(source.as_mut_ptr(), length) }.expect("registered");
    Some((one, other, source, region))
}

/// Claims the last chunk of the receiver's first `get` for the sender, complete or not.
fn claims_last_chunk(sender: &mut ShmBtl, done: u64) {
    let (_, peer) = sender.peer(0).expect("it was added");
    let word = &peer.producer.mine().shares.0[crate::coop::place(1)];
    word.store(1 << 32 | 1 << 16 | done, shmem::sync::Ordering::Release);
    if done != 0 {
        peer.ring();
    }
}

#[test]
fn only_registered_memory_is_copied_on_request_for_help() {
    let (mut one, mut other) = (transport(0), transport(1));
    let path = one.add_peer(1, &other.address()).expect("reachable");
    other.add_peer(0, &one.address()).expect("reachable");
    if !path.one_sided {
        println!("SKIPPED: cross-memory attach is not allowed here");
        return;
    }
    const LENGTH: usize = 64 << 10;
    let mut source = vec![7u8; 2 * LENGTH];
    let mut target = vec![0u8; LENGTH];
    // SAFETY: the memory lives until the end of the test.
    let region = unsafe { one.register(source.as_mut_ptr(), LENGTH) }.expect("registered");
    let (from, to) = (
        source.as_ptr().expose_provenance() as u64,
        target.as_mut_ptr().expose_provenance() as u64,
    );
    let length = LENGTH as u64;
    let mut id = 0;
    let mut seen = Failures::default();
    let mut asked = |what: (u64, u64, u64)| {
        id += 1;
        ask(&mut other, id, what);
        one.progress(&mut seen);
        assert!(seen.0.is_empty(), "{what:?}: {:?}", seen.0);
        // SAFETY: the vector is not touched by its name while this runs; the kernel writes into it.
        let target = unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(to as usize), LENGTH)
        };
        target.iter().filter(|byte| **byte == 7).count()
    };
    for wrong in [
        (from + length, to, length),
        (from + 1, to, length),
        (from, to, length + 1),
        (from, to, u64::MAX),
        (u64::MAX - 5, to, length),
        (to, from, length),
        (from, to, 0),
        // Memory that is not mapped is not an error of this process.
        (from, 8, length),
        (from, u64::MAX - 100, length),
    ] {
        assert_eq!(asked(wrong), 0, "{wrong:?}");
    }
    assert_eq!(asked((from, to, length)), LENGTH);
    drop(region);
    drop(target);
}

#[test]
fn a_receiver_that_waits_for_a_chunk_sleeps_and_is_woken() {
    let Some((mut one, mut other, _source, region)) = pair(256 << 10) else {
        return;
    };
    claims_last_chunk(&mut other, 0);
    let mut target = vec![0u8; 256 << 10];
    // SAFETY: the memory lives until completion.
    let began = unsafe { one.get(1, target.as_mut_ptr(), target.len(), &region.key, 0, 5) };
    assert_eq!(began, Ok(btl::Started::Pending));
    let mut seen = Seen::default();
    for _ in 0..100 {
        one.progress(&mut seen);
    }
    // The sender may be stopped for long.
    assert!(one.arm(), "nothing to do for the receiver");
    assert!(!is_readable(&one) && seen.0.is_empty());
    claims_last_chunk(&mut other, 1);
    assert!(is_readable(&one), "the receiver was not woken");
    assert!(!one.arm() || one.progress(&mut seen) != 0);
    one.progress(&mut seen);
    assert_eq!(seen.0, ["5 done"]);
}

#[test]
fn a_get_fails_if_its_owner_closes_before_it_is_complete() {
    let Some((mut one, mut other, mut source, region)) = pair(256 << 10) else {
        return;
    };
    claims_last_chunk(&mut other, 0);
    let mut target = vec![0u8; 256 << 10];
    // SAFETY: the memory lives until completion.
    let began = unsafe { one.get(1, target.as_mut_ptr(), target.len(), &region.key, 0, 5) };
    assert_eq!(began, Ok(btl::Started::Pending));
    claims_last_chunk(&mut other, 1);
    other.close();
    source.fill(9);
    let mut seen = Seen::default();
    let begin = std::time::Instant::now();
    while seen.0.len() < 2 {
        one.progress(&mut seen);
        assert!(
            begin.elapsed().as_secs() < 20,
            "failure not reported in time"
        );
    }
    assert_eq!(seen.0, ["5 failed", "lost 1"]);
}

#[test]
fn a_living_peer_is_waited_for_before_its_end_is_reported() {
    let Some((mut one, mut other, _source, region)) = pair(256 << 10) else {
        return;
    };
    claims_last_chunk(&mut other, 0);
    let mut target = vec![0u8; 256 << 10];
    // SAFETY: the memory lives until completion.
    let began = unsafe { one.get(1, target.as_mut_ptr(), target.len(), &region.key, 0, 5) };
    assert_eq!(began, Ok(btl::Started::Pending));
    let mut seen = Seen::default();
    for _ in 0..3 {
        assert!(!one.drop_peer(1), "it may be writing");
        one.progress(&mut seen);
    }
    assert!(matches!(
        one.send(1, &[], &[]),
        Err(SendError::Failed { peer: 1, .. })
    ));
    assert!(seen.0.is_empty(), "{:?}", seen.0);
    claims_last_chunk(&mut other, 1);
    let begin = std::time::Instant::now();
    while seen.0.len() < 2 {
        one.drop_peer(1);
        one.progress(&mut seen);
        assert!(
            begin.elapsed().as_secs() < 20,
            "failure not reported in time"
        );
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(seen.0, ["5 failed", "lost 1"]);
    assert!(one.drop_peer(1));
}

#[test]
fn a_peer_that_never_stops_writing_is_ended() {
    let Some((mut one, mut other, _source, region)) = pair(256 << 10) else {
        return;
    };
    claims_last_chunk(&mut other, 0);
    let mut target = vec![0u8; 256 << 10];
    // SAFETY: the memory lives until the end of the test.
    let began = unsafe { one.get(1, target.as_mut_ptr(), target.len(), &region.key, 0, 5) };
    assert_eq!(began, Ok(btl::Started::Pending));
    let mut seen = Seen::default();
    let begin = std::time::Instant::now();
    while seen.0.len() < 2 {
        one.drop_peer(1);
        one.progress(&mut seen);
        assert!(
            begin.elapsed().as_secs() < 20,
            "failure not reported in time"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(seen.0, ["5 failed", "lost 1"]);
}

#[test]
fn unread_requests_for_help_leave_room_for_messages() {
    let Some((mut one, mut other, _source, region)) = pair(64 << 10) else {
        return;
    };
    let mut target = vec![0u8; 64 << 10];
    for token in 0..600 {
        // SAFETY: the sender does not help, so it is complete when the call returns.
        let began = unsafe { one.get(1, target.as_mut_ptr(), target.len(), &region.key, 0, token) };
        assert_eq!(began, Ok(btl::Started::Done));
    }
    assert_eq!(
        one.send(1, b"header", &[IoSlice::new(b"body")]),
        Ok(()),
        "the queue is full of requests for help"
    );
    // A sleeper with unread requests is woken by a sender that finds no room.
    let mut seen = Seen::default();
    while other.progress(&mut seen) != 0 {}
    assert!(other.arm());
    while one.send(1, b"header", &[IoSlice::new(b"body")]).is_ok() {}
    assert!(is_readable(&other));
}

#[test]
fn a_long_request_for_help_is_done_in_parts() {
    const LENGTH: usize = 16 << 20;
    let Some((mut one, mut other, _source, _region)) = pair(64 << 10) else {
        return;
    };
    let mut source = vec![7u8; LENGTH];
    let mut target = vec![0u8; LENGTH];
    // SAFETY: the memory lives until the end of the test.
    let region = unsafe { one.register(source.as_mut_ptr(), LENGTH) }.expect("registered");
    let (from, to) = (
        source.as_ptr().expose_provenance() as u64,
        target.as_mut_ptr().expose_provenance() as u64,
    );
    ask(&mut other, 1, (from, to, LENGTH as u64));
    let mut seen = Seen::default();
    let mut copied = Vec::new();
    while copied.last() != Some(&LENGTH) {
        assert_ne!(one.progress(&mut seen), 0, "the copy stopped at {copied:?}");
        assert!(!copied.is_empty() || !one.arm(), "there is more to do");
        // SAFETY: the vector is not touched by its name while this runs; the kernel writes into it.
        let target = unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(to as usize), LENGTH)
        };
        copied.push(target.iter().filter(|byte| **byte == 7).count());
    }
    assert!(copied.len() >= 8 && copied[0] <= 2 << 20, "{copied:?}");
    while one.progress(&mut seen) != 0 {}
    assert!(one.arm());
    drop((region, source));
}

fn is_readable(btl: &ShmBtl) -> bool {
    let fd = btl.wait_fd().expect("it has one");
    let mut fds = [rustix::event::PollFd::new(
        &fd,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fds, Some(&now)).expect("poll") > 0
}
