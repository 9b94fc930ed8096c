//! Choice of interfaces and paths.

use std::time::{Duration, Instant};

use btl::{Btl, Probe};
use btl_eth::address::{AddressInterface, EthAddress, job_hash};
use btl_eth::{EthBtl, EthConfig, EthError};
use esp_client::MacAddr;
use esp_tests::process::{configured_lab, ip_in_switch};
use esp_tests::{lab_or_skip, wait_until};
use lab::{LabOptions, Node};

use crate::member::{JOB, Member, join, run, send, talk};

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
        "publishes an address of this node",
    );
    refused(
        &EthAddress {
            max_send: 100,
            ..address
        },
        "damaged",
    );
}

/// [`Btl::add_peer`] waits for 0.35 s; a probe ends with the first answer.
#[test]
fn probes_of_several_nodes_outlast_a_pause_of_the_link() {
    let Some(lab) = lab_or_skip("probes_outlast_a_pause", &LabOptions::new(3)) else {
        return;
    };
    let mut left = Member::at(&lab, 0, 0, 3);
    let others = [Member::at(&lab, 1, 1, 3), Member::at(&lab, 2, 2, 3)];
    let addresses = others.map(|member| member.btl.address());
    ip_in_switch(&lab, "link set port0 down");
    let why = left.btl.add_peer(1, &addresses[0]).expect_err("silent");
    assert!(why.reason.contains("no answer to an EDP echo"), "{why}");

    let mut probe = |rank: usize| left.btl.probe(rank as u32 + 1, &addresses[rank]);
    // The failure is known for a while.
    assert_eq!(probe(0), Probe::Settled);
    wait_until("the failure is forgotten", || probe(0) == Probe::Awaited);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(800) {
        assert_eq!([probe(0), probe(1)], [Probe::Awaited; 2]);
        std::thread::sleep(Duration::from_millis(1));
    }
    ip_in_switch(&lab, "link set port0 up");
    wait_until("both answer", || {
        [probe(0), probe(1)] == [Probe::Reached; 2]
    });
    for (rank, address) in (1..).zip(&addresses) {
        left.btl.add_peer(rank, address).expect("reachable");
        assert_eq!(left.btl.probe(rank, address), Probe::Settled);
    }
    assert_eq!(left.btl.probe(1, b"damaged"), Probe::Settled);
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
