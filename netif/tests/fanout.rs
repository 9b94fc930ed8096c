//! Delivery of frames to the members of a group by the kernel.

mod common;

use std::time::Instant;

use common::{TYPE, push_numbered, receive, send_all};
use netif::{FanoutGroup, Filter, MAX_MEMBERS, PacketSocket, Routes, SendBatch, SocketOptions};
use netns::TwoNodes;

/// Opens a socket that accepts one port, and 9.
fn socket_of(nodes: &TwoNodes, port: u16) -> PacketSocket {
    let filter = Filter::for_ports(TYPE, [port..=port, 9..=9]).unwrap();
    nodes.b.socket(
        TYPE,
        &SocketOptions {
            filter: Some(filter),
            ..SocketOptions::default()
        },
    )
}

fn group(nodes: &TwoNodes) -> FanoutGroup {
    nodes
        .b
        .run(|| FanoutGroup::open(&nodes.b.interface(), TYPE))
        .expect("a group")
}

fn send(nodes: &TwoNodes, from: &PacketSocket, ports: impl IntoIterator<Item = u16>) {
    let (a, b) = (nodes.a.interface(), nodes.b.interface().mac);
    let mut batch = SendBatch::new(64);
    for port in ports {
        push_numbered(&mut batch, b, &a, port);
        send_all(from, &mut batch);
    }
}

/// Routes ports 101 to 100 + count, each to the slot of its member.
fn routes(count: u16) -> Routes {
    Routes::new((1..=count).map(|slot| (100 + slot..=100 + slot, slot))).unwrap()
}

#[test]
fn every_member_gets_its_own_frames_and_keeps_its_slot_over_a_flap() {
    let Some(nodes) = TwoNodes::new_or_skip("fanout_members") else {
        return;
    };
    let a = nodes.a.socket(TYPE, &SocketOptions::default());
    let witness = nodes.b.socket(TYPE, &SocketOptions::default());
    let group = group(&nodes);
    let members: Vec<_> = (101..=164).map(|port| socket_of(&nodes, port)).collect();
    group.route(&routes(64)).unwrap();
    members
        .iter()
        .for_each(|member| group.join(member).unwrap());
    for flap in [false, true] {
        if flap {
            nodes.b.set_link("down");
            nodes.b.set_link("up");
            let end = Instant::now() + common::LONG;
            while !(nodes.a.interface().running && nodes.b.interface().running) {
                assert!(Instant::now() < end, "no carrier");
            }
            // Each socket reports once that it was down.
            members
                .iter()
                .chain([&witness])
                .for_each(|socket| socket.discard(1));
        }
        // 100, 165 and 9 have no route: only the witness, which is not a member, receives them.
        send(&nodes, &a, (100..=165).chain([9]));
        let seen: Vec<u16> = receive(&witness, 67)
            .iter()
            .map(common::Kept::number)
            .collect();
        assert_eq!(seen, (100..=165).chain([9]).collect::<Vec<_>>());
        for (port, member) in (101..).zip(&members) {
            assert_eq!(receive(member, 1).remove(0).number(), port);
            let statistics = member.statistics().unwrap();
            assert_eq!(statistics.received, 1 + u64::from(flap), "port {port}");
        }
    }
}

#[test]
fn a_wrong_slot_loses_a_frame() {
    let Some(nodes) = TwoNodes::new_or_skip("fanout_wrong") else {
        return;
    };
    let a = nodes.a.socket(TYPE, &SocketOptions::default());
    let witness = nodes.b.socket(TYPE, &SocketOptions::default());
    let group = group(&nodes);
    let members = [socket_of(&nodes, 101), socket_of(&nodes, 102)];
    members
        .iter()
        .for_each(|member| group.join(member).unwrap());
    // Swapped, and one to a missing slot: with three members, 7 is 1.
    group
        .route(&Routes::new([(101..=101, 2), (102..=102, 1), (103..=103, 7)]).unwrap())
        .unwrap();
    send(&nodes, &a, [101, 102, 103]);
    receive(&witness, 3);
    for member in &members {
        assert_eq!(member.statistics().unwrap().received, 0);
    }
    // Restored.
    group.route(&routes(2)).unwrap();
    send(&nodes, &a, [101, 102]);
    assert_eq!(
        members.map(|member| receive(&member, 1).remove(0).number()),
        [101, 102]
    );
}

#[test]
fn members_are_bound_for_good_and_groups_are_bounded() {
    let Some(nodes) = TwoNodes::new_or_skip("fanout_bounds") else {
        return;
    };
    let group = group(&nodes);
    let other = self::group(&nodes);
    let members: Vec<_> = (1..MAX_MEMBERS).map(|_| socket_of(&nodes, 101)).collect();
    members
        .iter()
        .for_each(|member| group.join(member).unwrap());
    let late = socket_of(&nodes, 101);
    assert_eq!(
        group.join(&late).unwrap_err().raw_os_error(),
        Some(libc::ENOSPC)
    );
    other.join(&late).unwrap();
    assert_eq!(
        other.join(&late).unwrap_err().raw_os_error(),
        Some(libc::EALREADY)
    );
    let elsewhere = nodes.b.socket(TYPE + 1, &SocketOptions::default());
    assert_eq!(
        other.join(&elsewhere).unwrap_err().raw_os_error(),
        Some(libc::EINVAL)
    );
    assert_eq!(
        late.bind_like(&elsewhere).unwrap_err().raw_os_error(),
        Some(libc::EINVAL)
    );
}

#[test]
fn an_unbound_socket_receives_once_it_is_bound_like_another() {
    let Some(nodes) = TwoNodes::new_or_skip("bind_like") else {
        return;
    };
    let a = nodes.a.socket(TYPE, &SocketOptions::default());
    let witness = nodes.b.socket(TYPE, &SocketOptions::default());
    let filter = Some(Filter::for_ports(TYPE, [5..=5]).unwrap());
    let options = SocketOptions {
        filter,
        ..SocketOptions::default()
    };
    let spare = nodes
        .b
        .run(|| PacketSocket::open_unbound(&nodes.b.interface(), &options))
        .unwrap();
    send(&nodes, &a, [5]);
    receive(&witness, 1);
    assert_eq!(spare.statistics().unwrap().received, 0);
    let unbound = nodes
        .b
        .run(|| PacketSocket::open_unbound(&nodes.b.interface(), &options))
        .unwrap();
    assert_eq!(
        spare.bind_like(&unbound).unwrap_err().kind(),
        std::io::ErrorKind::InvalidInput
    );
    spare.bind_like(&witness).unwrap();
    send(&nodes, &a, [4, 5]);
    assert_eq!(receive(&spare, 1).remove(0).number(), 5);
    receive(&witness, 2);
    spare.discard(9);
    assert_eq!(spare.statistics().unwrap().received, 1);
}
