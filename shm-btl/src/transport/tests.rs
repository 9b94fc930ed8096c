//! Addresses with one wrong field, and ends of peers.

use btl::{Btl, PostedReceives, SendError, Tx};
use std::io::IoSlice;

use super::ShmBtl;
use crate::address::ShmAddress;
use crate::config::{ShmConfig, ShmError};
use crate::topology::Thresholds;

fn config(rank: u32) -> ShmConfig {
    ShmConfig::new(rank, 2, format!("addresses-{}", std::process::id()))
}

fn transport(rank: u32) -> ShmBtl {
    ShmBtl::new(config(rank)).expect("shared memory")
}

/// Returns the reason why an address changed in this way is refused.
fn refused(change: impl FnOnce(&mut ShmAddress)) -> String {
    let (mut one, other) = (transport(0), transport(1));
    let mut address = ShmAddress::decode(&other.address()).expect("a good address");
    change(&mut address);
    let reason = one
        .add_peer(1, &address.encode())
        .expect_err("a wrong address")
        .reason;
    assert_eq!(one.send(1, &[], &[]), Err(SendError::NoPeer(1)), "{reason}");
    // The unchanged address still works.
    one.add_peer(1, &other.address())
        .expect("the right address");
    one.send(1, &[], &[]).expect("room");
    reason
}

fn expect_word(reason: &str, word: &str) {
    assert!(
        reason.contains(word),
        "{reason:?} does not mention {word:?}"
    );
}

#[test]
fn wrong_addresses_are_refused_with_a_reason() {
    expect_word(&refused(|address| address.job ^= 1), "job");
    expect_word(&refused(|address| address.rank = 0), "rank 0");
    expect_word(&refused(|address| address.node.boot ^= 1), "another node");
    expect_word(
        &refused(|address| address.node.net_ns ^= 1),
        "network namespace",
    );
    expect_word(
        &refused(|address| address.node.pid_ns ^= 1),
        "PID namespace",
    );
    expect_word(&refused(|address| address.node.uid ^= 1), "user");
    expect_word(&refused(|address| address.pid = 0), "process id");
    expect_word(&refused(|address| address.pid = u32::MAX), "process id");
    expect_word(&refused(|address| address.pid = (1 << 22) + 7), "ended");
    expect_word(&refused(|address| address.pid = 1), "ended");
    expect_word(
        &refused(|address| address.started += 1),
        "another process has its number",
    );
    expect_word(&refused(|address| address.data = 1_000_000), "No such file");
    expect_word(
        &refused(|address| address.claims = u32::MAX),
        "No such file",
    );
    expect_word(
        &refused(|address| address.data = address.bell),
        "not its memory",
    );
    expect_word(
        &refused(|address| address.bell = address.data),
        "not its pipe",
    );
    expect_word(&refused(|address| address.data = address.claims), "length");
    expect_word(&refused(|address| address.nonce[1] ^= 1), "nonce");
}

/// The reported failures.
#[derive(Default)]
struct Failures(Vec<(u32, btl::PeerError)>);

impl btl::Events for Failures {
    fn message(&mut self, _: &mut dyn Tx, _: u32, _: &[u8], _: &[u8]) {}
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), btl::PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, peer: u32, error: btl::PeerError) {
        self.0.push((peer, error));
    }
}

#[test]
fn reachability_is_mutual() {
    // The other direction was refused before, so it is unreachable at once.
    let (mut one, mut other) = (transport(0), transport(1));
    let mut address = ShmAddress::decode(&other.address()).expect("a good address");
    address.started += 1;
    one.add_peer(1, &address.encode())
        .expect_err("a wrong address");
    expect_word(
        &other
            .add_peer(0, &one.address())
            .expect_err("one way only")
            .reason,
        "could not reach this process",
    );
    // Refused afterwards: the peer fails.
    let (mut one, mut other) = (transport(0), transport(1));
    other.add_peer(0, &one.address()).expect("reachable");
    one.add_peer(1, &address.encode())
        .expect_err("a wrong address");
    let mut failures = Failures::default();
    let begin = std::time::Instant::now();
    while failures.0.is_empty() {
        other.progress(&mut failures);
        assert!(
            begin.elapsed().as_secs() < 20,
            "failure not reported in time"
        );
    }
    assert!(
        matches!(&failures.0[..], [(0, btl::PeerError::Lost(_))]),
        "{:?}",
        failures.0
    );
    assert!(matches!(
        other.send(0, &[], &[]),
        Err(SendError::Failed { peer: 0, .. })
    ));
}

#[test]
fn a_failed_probe_falls_back_to_two_copies() {
    let (mut one, other) = (transport(0), transport(1));
    let mut address = ShmAddress::decode(&other.address()).expect("a good address");
    if address.probe == 0 {
        println!("SKIPPED: cross-memory attach is not allowed here");
        return;
    }
    address.probe += 8;
    let path = one.add_peer(1, &address.encode()).expect("reachable");
    assert!(!path.one_sided);
    assert_eq!(
        (path.one_sided_from, path.eager),
        (usize::MAX, path.max_send)
    );
    expect_word(&path.reason, "other bytes");
    let (mut one, mut mine) = (transport(0), config(1));
    mine.one_copy = false;
    let other = ShmBtl::new(mine).expect("shared memory");
    let path = one.add_peer(1, &other.address()).expect("reachable");
    expect_word(&path.reason, "disabled by the peer");
    assert!(!path.one_sided && !other.capabilities().get);
}

#[test]
fn thresholds_follow_the_relation() {
    let (mut one, other) = (transport(0), transport(1));
    let path = one.add_peer(1, &other.address()).expect("reachable");
    if path.one_sided {
        assert!(
            path.one_sided_from >= 1024 && path.eager == path.one_sided_from.min(path.max_send)
        );
    }
    assert_eq!(path.eager_skewed, path.max_send);
    let mut config = config(0);
    let same = Thresholds {
        shared_cache: 7777,
        same_socket: 7777,
        other_socket: 7777,
    };
    config.thresholds = same;
    let path = ShmBtl::new(config)
        .expect("shared memory")
        .add_peer(1, &other.address())
        .expect("reachable");
    assert!(
        !path.one_sided || path.one_sided_from == 7777,
        "{}",
        path.reason
    );
}

#[test]
fn sizes_out_of_range_are_errors() {
    let bad: [fn(&mut ShmConfig); 3] = [|c| c.rank = 2, |c| c.size = 0, |c| c.size = u32::MAX];
    for (index, change) in bad.into_iter().enumerate() {
        let mut config = config(0);
        change(&mut config);
        assert!(
            matches!(ShmBtl::new(config), Err(ShmError::Config(_))),
            "case {index}"
        );
    }
}

#[test]
fn no_other_mapping_of_the_data_is_writable() {
    let one = transport(0);
    let address = ShmAddress::decode(&one.address()).expect("a good address");
    let path = format!("/proc/self/fd/{}", address.data);
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("our own file");
    let length = usize::try_from(file.metadata().expect("our own file").len()).expect("a length");
    let shared = shmem::SharedFile::open(&file, length).expect("a sealed file");
    let map = |access| shared.map(0, 4096, access);
    assert!(map(shmem::Access::Write).is_err(), "a writable mapping");
    assert!(map(shmem::Access::Read).is_ok(), "a readable one");
    assert!(
        std::os::unix::fs::FileExt::write_all_at(&file, &[1], 0).is_err(),
        "a write"
    );
    assert!(file.set_len(1).is_err(), "a shorter file");
}

#[test]
fn receives_of_a_closed_transport_are_not_filled() {
    let (mut one, mut other) = (transport(0), transport(1));
    if !one.capabilities().posted_receives {
        println!("SKIPPED: cross-memory attach is not allowed here");
        return;
    }
    one.add_peer(1, &other.address()).expect("reachable");
    other.add_peer(0, &one.address()).expect("reachable");
    let mut buffer = vec![0u8; 100];
    let receive = btl::PostedReceive {
        source: None,
        context: 0,
        tag: None,
        buffer: buffer.as_mut_ptr(),
        length: 100,
        token: 0,
    };
    let envelope = btl::Envelope { context: 0, tag: 1 };
    // SAFETY: the buffer lives as long as the transport.
    unsafe { one.post(&receive) }.expect("a place");
    // SAFETY: as above.
    unsafe { one.post(&receive) }.expect("a place");
    // SAFETY: the array is that long.
    let sent = unsafe { other.send_to_posted(0, envelope, [7u8; 50].as_ptr(), 50) };
    assert_eq!(sent, Ok(btl::PostedDelivery::Delivered));
    assert_eq!(buffer[..50], [7; 50]);
    one.close();
    // SAFETY: the array is that long.
    let sent = unsafe { other.send_to_posted(0, envelope, [8u8; 50].as_ptr(), 50) };
    assert_eq!(sent, Ok(btl::PostedDelivery::NotPosted));
    assert_eq!(buffer[..50], [7; 50]);
}

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
        // Memory that is not mapped is no error of this process.
        (from, 8, length),
        (from, u64::MAX - 100, length),
    ] {
        assert_eq!(asked(wrong), 0, "{wrong:?}");
    }
    assert_eq!(asked((from, to, length)), LENGTH);
    drop(region);
    drop(target);
}

/// Events in order, and bodies.
#[derive(Default)]
struct Seen(Vec<String>, Vec<Vec<u8>>);

impl btl::Events for Seen {
    fn message(&mut self, _: &mut dyn Tx, peer: u32, _: &[u8], body: &[u8]) {
        self.0.push(format!("message of {peer}"));
        self.1.push(body.to_vec());
    }
    fn completed(&mut self, _: &mut dyn Tx, token: u64, result: Result<(), btl::PeerError>) {
        self.0.push(format!(
            "{token} {}",
            if result.is_ok() { "done" } else { "failed" }
        ));
    }
    fn failed(&mut self, _: &mut dyn Tx, peer: u32, _: btl::PeerError) {
        self.0.push(format!("lost {peer}"));
    }
}

/// Returns receiver and sender, with memory of the sender that the receiver can get.
fn pair(length: usize) -> Option<(ShmBtl, ShmBtl, Vec<u8>, btl::Region)> {
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

/// Lets the sender claim the last chunk of the receiver's first `get`, complete or not.
fn claims_last_chunk(sender: &mut ShmBtl, done: u64) {
    let (_, peer) = sender.peer(0).expect("it was added");
    let word = &peer.producer.mine().shares.0[crate::coop::place(1)];
    word.store(1 << 32 | 1 << 16 | done, shmem::sync::Ordering::Release);
    if done != 0 {
        peer.ring();
    }
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

#[test]
fn chunks_of_a_living_peer_are_not_used_for_others() {
    let make = |rank| {
        let config = ShmConfig::new(rank, 3, format!("chunks-{}", std::process::id()));
        ShmBtl::new(config).expect("shared memory")
    };
    let mut all = [make(0), make(1), make(2)];
    let addresses = [0, 1, 2].map(|rank: usize| all[rank].address());
    for (rank, peer) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
        all[rank]
            .add_peer(peer as u32, &addresses[peer])
            .expect("reachable");
    }
    let [one, late, other] = &mut all;
    let body = vec![3u8; 20_000];
    one.send(1, b"h", &[IoSlice::new(&body)]).expect("room");
    let mut seen = Seen::default();
    assert!(one.drop_peer(1));
    one.progress(&mut seen);
    assert_eq!(seen.0, ["lost 1"]);
    one.send(2, b"h", &[IoSlice::new(&vec![9u8; 20_000])])
        .expect("room");
    let (mut heard, mut heard_other) = (Seen::default(), Seen::default());
    late.progress(&mut heard);
    other.progress(&mut heard_other);
    assert_eq!(
        (heard.1, std::mem::take(&mut heard_other.1)),
        (vec![body], vec![vec![9u8; 20_000]])
    );
    // It has read them or ended the connection, so they are returned.
    let begin = std::time::Instant::now();
    while !one.closing.is_empty() {
        one.progress(&mut seen);
        late.progress(&mut heard_other);
        assert!(begin.elapsed().as_secs() < 20, "chunks are lost");
    }
    assert_eq!(one.live, 1);
}

#[test]
fn only_registered_memory_has_a_key() {
    let mut one = transport(0);
    if !one.capabilities().get {
        println!("SKIPPED: cross-memory attach is not allowed here");
        return;
    }
    let mut memory = [0u8; 64];
    // SAFETY: the memory outlives the transport, and no peer is there.
    let register = |one: &mut ShmBtl, memory: &mut [u8]| unsafe {
        one.register(memory.as_mut_ptr(), memory.len())
            .expect("room")
            .handle
    };
    let (a, b) = (
        register(&mut one, &mut memory),
        register(&mut one, &mut memory),
    );
    assert_ne!(a, b);
    one.deregister(a);
    for unknown in [a, 0, u64::MAX] {
        one.deregister(unknown);
    }
    assert_eq!(one.regions.keys().collect::<Vec<_>>(), [&b]);
}

/// Headers and bodies.
#[derive(Default)]
struct Whole(Vec<(Vec<u8>, Vec<u8>)>);

impl btl::Events for Whole {
    fn message(&mut self, _: &mut dyn Tx, _: u32, header: &[u8], body: &[u8]) {
        self.0.push((header.to_vec(), body.to_vec()));
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), btl::PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, _: u32, _: btl::PeerError) {}
}

#[test]
fn long_messages_are_complete_at_every_distance() {
    let (mut one, mut other) = (transport(0), transport(1));
    one.add_peer(1, &other.address()).expect("reachable");
    other.add_peer(0, &one.address()).expect("reachable");
    let source: Vec<u8> = (0..33_000u32).map(|i| (i % 251) as u8).collect();
    for far in [false, true] {
        for (header, from, length) in [
            (1, 0, 32_768),
            (48, 3, 20_001),
            (49, 1, 32_703),
            (64, 0, 32_768),
        ] {
            let super::PeerState::Added(peer) = &mut one.peers[1] else {
                panic!("the peer is added")
            };
            let state = if far {
                crate::distance::Distance::far()
            } else {
                Default::default()
            };
            *peer.producer.distance() = state;
            let (header, body) = (&source[100..100 + header], &source[from..from + length]);
            one.send(1, header, &[IoSlice::new(body)]).expect("room");
            let mut heard = Whole::default();
            other.progress(&mut heard);
            assert!(
                heard.0 == [(header.to_vec(), body.to_vec())],
                "far {far}, {length} bytes"
            );
        }
    }
}

#[test]
fn unchanged_lines_do_not_affect_the_distance() {
    let (mut one, other) = (transport(0), transport(1));
    one.add_peer(1, &other.address()).expect("reachable");
    let super::PeerState::Added(peer) = &mut one.peers[1] else {
        panic!("the peer is added")
    };
    *peer.producer.distance() = crate::distance::Distance::far();
    for _ in 0..200 {
        peer.producer.refresh_timed().expect("nothing was consumed");
    }
    assert!(peer.producer.distance().is_far());
}
