//! Two engines connected by two virtual cables: streams continue when one is cut.

mod common;

use common::{Host, PATIENCE, pattern};
use esp_engine::shm::StreamState;
use esp_proto::{CloseReason, ResetReason};
use netif::Interface;
use netns::{Node, TwoNodes, connect};
use std::time::Instant;

const LEN: usize = 24 << 20;

fn two_rails(test: &str) -> Option<TwoNodes> {
    let nodes = TwoNodes::new_or_skip(test)?;
    connect(nodes.a.namespace(), "rail1", nodes.b.namespace(), "rail1").expect("a second cable");
    Some(nodes)
}

/// Starts an engine on both interfaces of a node.
fn start(node: &Node) -> Host {
    let second = node
        .run(|| Interface::by_name("rail1"))
        .expect("the second interface");
    Host::start(node, |config| {
        config.links.push(esp_engine::LinkConfig::Ethernet(second));
    })
}

/// Returns the number of moved connections, summed over both links.
fn moved(host: &Host) -> u64 {
    let snapshot = host.snapshot();
    let counters = snapshot.links.iter().flat_map(|link| &link.counters);
    counters
        .filter(|(name, _, _)| *name == "connections_moved")
        .map(|(_, _, value)| value)
        .sum()
}

fn wait_until(what: &str, mut there: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !there() {
        assert!(Instant::now() < end, "timed out waiting until {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_stream_continues_over_the_other_link() {
    let Some(nodes) = two_rails("a_stream_continues_over_the_other_link") else {
        return;
    };
    let (mut a, mut b) = (start(&nodes.a), start(&nodes.b));
    b.listen(7000);
    let mut left = a.connect(b.mac, 7000);
    let mut right = b.accept();
    assert_eq!(left.wait_open(), StreamState::Open);

    let (there, back) = (pattern(LEN, 1), pattern(LEN, 2));
    let (sent, returned) = (there.clone(), back.clone());
    let writer = std::thread::spawn(move || {
        let got = right.read_to_end();
        right.send_all(&returned);
        right.finish();
        (got, right)
    });
    // The cable is cut after the first half; the rest takes the other link.
    left.send_all(&sent[..LEN / 2]);
    nodes
        .a
        .namespace()
        .ip(&format!("link set {} down", nodes.a.name()))
        .unwrap();
    left.send_all(&sent[LEN / 2..]);
    left.finish();
    assert!(left.read_to_end() == back, "answer differs");
    let (got, right) = writer.join().unwrap();
    assert!(got == there, "message differs");
    assert_eq!(
        left.wait_closed(),
        StreamState::Closed(CloseReason::Finished)
    );
    assert_eq!(
        right.wait_closed(),
        StreamState::Closed(CloseReason::Finished)
    );
    assert_eq!((moved(&a), moved(&b)), (1, 1));
}

#[test]
fn state_of_a_stream_moves_with_it() {
    let Some(nodes) = two_rails("state_of_a_stream_moves_with_it") else {
        return;
    };
    let (mut a, mut b) = (start(&nodes.a), start(&nodes.b));
    b.listen(7001);
    let mut closed = a.connect(b.mac, 7001);
    let mut closed_peer = b.accept();
    let mut orphan = a.connect(b.mac, 7001);
    let mut orphan_peer = b.accept();
    for stream in [&closed, &orphan] {
        assert_eq!(stream.wait_open(), StreamState::Open);
    }
    // One is closed by its program while bytes are undelivered: its deadline moves, too.
    closed.send_all(&pattern(50_000, 3));
    a.close(&closed);
    nodes
        .b
        .namespace()
        .ip(&format!("link set {} down", nodes.b.name()))
        .unwrap();
    wait_until("both have moved", || moved(&a) >= 2 && moved(&b) >= 2);
    assert!(a.snapshot().links[0].connections.is_empty());
    assert_eq!(a.snapshot().links[1].connections.len(), 2);
    assert!(closed_peer.read_to_end() == pattern(50_000, 3));
    b.close(&closed_peer);
    assert_eq!(
        closed.wait_closed(),
        StreamState::Closed(CloseReason::Finished)
    );
    // The doorbell of a moved stream still works.
    orphan.send_all(b"last words");
    wait_until("they arrive", || orphan_peer.rx.available() == 10);
    a.kill_program();
    assert_eq!(
        orphan_peer.wait_closed(),
        StreamState::Closed(CloseReason::Reset(ResetReason::ProgramDied))
    );
    let mut buffer = [0; 64];
    let n = orphan_peer.rx.read(&mut buffer);
    assert_eq!(&buffer[..n], b"last words");
    wait_until("no connection is left", || {
        a.snapshot()
            .links
            .iter()
            .all(|link| link.connections.is_empty())
    });
}

#[test]
fn an_interface_that_is_removed_takes_nothing_with_it() {
    let Some(nodes) = two_rails("an_interface_that_is_removed") else {
        return;
    };
    let (mut a, mut b) = (start(&nodes.a), start(&nodes.b));
    b.listen(7002);
    let mut left = a.connect(b.mac, 7002);
    let mut right = b.accept();
    assert_eq!(left.wait_open(), StreamState::Open);
    nodes
        .a
        .namespace()
        .ip(&format!("link del {}", nodes.a.name()))
        .unwrap();
    wait_until("both have moved", || moved(&a) == 1 && moved(&b) == 1);
    left.send_all(&pattern(100_000, 4));
    left.finish();
    assert!(right.read_to_end() == pattern(100_000, 4));
    right.finish();
    assert_eq!(
        left.wait_closed(),
        StreamState::Closed(CloseReason::Finished)
    );
}
