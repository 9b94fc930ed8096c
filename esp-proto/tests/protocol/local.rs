//! Both ends on one endpoint: frames come back with `looped` set.

use crate::common::*;
use esp_proto::*;

/// Runs one node whose frames are looped back to it.
fn run(node: &mut Node, now: &mut Instant, time: Duration) {
    let until = *now + time;
    loop {
        node.drain(*now);
        let mut frames = vec![];
        while let Some(frame) = node.transmit(*now) {
            assert!(frame.looped);
            frames.push(frame);
        }
        for frame in &frames {
            node.receive(*now, frame);
        }
        if !frames.is_empty() {
            continue;
        }
        let Some(at) = node.ep.poll_timeout().filter(|at| *at <= until) else {
            break;
        };
        *now = (*now).max(at);
        node.ep.handle_timeout(*now);
    }
    *now = until;
}

#[test]
fn two_ports_of_one_node_connect() {
    let mut node = Node::new(MAC_A, 65536, 1, EndpointConfig::default());
    let mut now = Instant::from_nanos(1000);
    node.ep
        .listen(
            1000,
            ListenOptions {
                backlog: 4,
                ..ListenOptions::default()
            },
        )
        .unwrap();
    let options = ConnOptions {
        buffers: Buffers { rx: ROOM, tx: ROOM },
        key: vec![],
    };
    let a = node
        .ep
        .connect(now, 5000, MAC_A.into(), 1000, options)
        .unwrap();
    node.apps.insert(
        a,
        App {
            room: ROOM,
            ..App::default()
        },
    );
    node.attach = Some(4 * 65536);
    run(&mut node, &mut now, Duration::from_millis(100));
    assert_eq!(node.apps.len(), 2);
    let b = *node.apps.keys().find(|id| **id != a).unwrap();
    assert_eq!(node.ep.info(a).unwrap().payload, 65525);
    node.write(now, a, 1_000_000);
    node.write(now, b, 2_000_000);
    run(&mut node, &mut now, Duration::from_millis(100));
    assert_eq!(
        (node.app(a).received, node.app(b).received),
        (2_000_000, 1_000_000)
    );
    node.ep.shutdown(now, a);
    node.ep.shutdown(now, b);
    run(&mut node, &mut now, Duration::from_secs(1));
    assert_eq!(node.app(a).closed, Some(CloseReason::Finished));
    assert_eq!(node.app(b).closed, Some(CloseReason::Finished));
    assert_eq!(node.ep.connections().count(), 0);
}

#[test]
fn a_refused_local_connection_is_reported() {
    let mut node = Node::new(MAC_A, 1500, 1, EndpointConfig::default());
    let mut now = Instant::from_nanos(1000);
    let options = ConnOptions {
        buffers: Buffers { rx: ROOM, tx: ROOM },
        key: vec![],
    };
    let a = node
        .ep
        .connect(now, 5000, MAC_A.into(), 1000, options)
        .unwrap();
    node.apps.insert(
        a,
        App {
            room: ROOM,
            ..App::default()
        },
    );
    run(&mut node, &mut now, Duration::from_millis(1));
    assert_eq!(
        node.app(a).closed,
        Some(CloseReason::Reset(ResetReason::Refused))
    );
}
