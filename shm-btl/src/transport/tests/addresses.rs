//! Addresses with one wrong field, peers that reach each other one way only, and thresholds of
//! paths.

use btl::{Btl, SendError, Tx};

use super::{Failures, config, expect_word, transport};
use crate::address::ShmAddress;
use crate::config::{ShmConfig, ShmError};
use crate::topology::Thresholds;
use crate::transport::ShmBtl;

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
        &refused(|address| address.requests = Some(u32::MAX)),
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
    expect_word(
        &refused(|address| address.requests = Some(address.data)),
        "length",
    );
    expect_word(&refused(|address| address.nonce[1] ^= 1), "nonce");
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
