//! Tests of faults of the segment and of the paths to peers.

use super::*;

#[test]
fn faults_of_the_segment_are_found() {
    all_found(&[
        (
            |facts| {
                let other = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 3]));
                network(facts).heard.push(node(other, 3, "node1"));
            },
            &[("segment.name", Level::Warning)],
        ),
        (
            |facts| network(facts).heard[0].info.name = "node0".into(),
            &[("segment.name", Level::Warning)],
        ),
        (
            |facts| network(facts).heard.push(node(PEER, 3, "node2")),
            &[("segment.address", Level::Error)],
        ),
        // The second interface of a node has the node's name and another address.
        (
            |facts| {
                let other = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 1, 2]));
                network(facts).heard.push(node(other, 2, "node1"));
            },
            &[],
        ),
        (
            |facts| network(facts).peers.clear(),
            &[("segment.alone", Level::Warning)],
        ),
        (
            |facts| network(facts).left_out = 3,
            &[("segment.many", Level::Note)],
        ),
        (
            |facts| {
                network(facts).peers.clear();
                network(facts).interrupted = 1;
            },
            &[("segment.interrupted", Level::Warning)],
        ),
    ]);
}

#[test]
fn faults_of_the_way_to_a_peer_are_found() {
    fn silence(route: &mut Route) {
        *route = Route {
            interface: route.interface.clone(),
            sent: 3,
            ..Route::untried(route.addr)
        };
    }
    all_found(&[
        (
            |facts| peer(facts).unknown = Some("unknown name".into()),
            &[("peer.unknown", Level::Error)],
        ),
        (
            |facts| {
                peer(facts).routes.clear();
                peer(facts).esp = None;
            },
            &[("peer.untried", Level::Note)],
        ),
        (
            |facts| {
                peer(facts).routes.iter_mut().for_each(silence);
                peer(facts).esp = Some(false);
            },
            &[("peer.silent", Level::Error)],
        ),
        (
            |facts| silence(&mut peer(facts).routes[0]),
            &[("peer.edp", Level::Error)],
        ),
        (
            |facts| peer(facts).esp = Some(false),
            &[("peer.esp", Level::Error)],
        ),
        (
            |facts| {
                silence(&mut peer(facts).routes[0]);
                peer(facts).esp = Some(false);
            },
            &[("peer.raw", Level::Warning)],
        ),
        (
            |facts| silence(&mut peer(facts).routes[1]),
            &[("peer.udp", Level::Warning)],
        ),
        (
            |facts| peer(facts).routes[0].received = 8,
            &[("peer.loss", Level::Warning)],
        ),
        (
            |facts| peer(facts).routes[0].own_payload = 8989,
            &[("peer.mtu", Level::Warning)],
        ),
        (
            |facts| {
                peer(facts).routes[0].own_payload = 8989;
                peer(facts).routes[0].peer_payload = Some(8989);
            },
            &[("peer.path", Level::Warning)],
        ),
        (
            |facts| network(facts).heard[0].info.version = 2,
            &[("peer.version", Level::Error)],
        ),
    ]);
}
