//! Changes of interfaces in a namespace of the test.

mod common;

use std::time::Instant;

use common::{LONG, TYPE, readable};
use netif::{LinkMonitor, LinkState, PacketSocket, SocketOptions, UdpOptions, UdpSocket};
use netns::TwoNodes;

/// Opens a monitor and a socket in the first node's namespace.
fn open(nodes: &TwoNodes) -> (LinkMonitor, PacketSocket) {
    let mut monitor = nodes.a.run(LinkMonitor::open).unwrap();
    assert!(monitor.changed(), "the state before it was opened");
    let socket = nodes.a.socket(TYPE, &SocketOptions::default());
    (monitor, socket)
}

/// Waits for changes until the state fits.
fn wait_for(
    monitor: &mut LinkMonitor,
    socket: &PacketSocket,
    fits: impl Fn(Option<LinkState>) -> bool,
) {
    let end = Instant::now() + LONG;
    while !(monitor.changed() && fits(socket.link_state().unwrap())) {
        let left = end.saturating_duration_since(Instant::now());
        assert!(readable(&*monitor, left), "a change within {LONG:?}");
    }
}

#[test]
fn the_state_is_that_of_the_interface() {
    let Some(nodes) = TwoNodes::new_or_skip("state_found") else {
        return;
    };
    let (mut monitor, socket) = open(&nodes);
    let interface = nodes.a.interface();
    let expected = Some(LinkState {
        up: true,
        mtu: interface.mtu,
        mac: interface.mac,
    });
    assert_eq!(socket.link_state().unwrap(), expected);
    let loopback = "127.0.0.1:0".parse().unwrap();
    let bind = || UdpSocket::bind(loopback, &UdpOptions::default());
    let udp = nodes.a.run(bind).unwrap();
    assert_eq!(udp.link_state(interface.index).unwrap(), expected);
    let loopback = udp.link_state(1).unwrap().unwrap();
    assert_eq!(loopback.mtu, 65536);
    assert_eq!(udp.link_state(99).unwrap(), None);
    assert!(!monitor.changed(), "nothing has changed");
}

#[test]
fn changes_of_mtu_and_state_are_noticed() {
    let Some(nodes) = TwoNodes::new_or_skip("changes") else {
        return;
    };
    let (mut monitor, socket) = open(&nodes);
    let mac = nodes.a.interface().mac;
    let up = |up, mtu| move |state| state == Some(LinkState { up, mtu, mac });
    nodes.a.set_link("mtu 9000");
    wait_for(&mut monitor, &socket, up(true, 9000));
    nodes.a.set_link("down");
    wait_for(&mut monitor, &socket, up(false, 9000));
    nodes.a.set_link("up");
    wait_for(&mut monitor, &socket, up(true, 9000));
    // The other end is switched off: the carrier is lost, the interface remains.
    nodes.b.set_link("down");
    wait_for(&mut monitor, &socket, up(false, 9000));
}

#[test]
fn a_changed_hardware_address_is_noticed() {
    let Some(nodes) = TwoNodes::new_or_skip("new_address") else {
        return;
    };
    let (mut monitor, socket) = open(&nodes);
    nodes.a.set_link("address 02:00:00:00:77:01");
    wait_for(&mut monitor, &socket, |state| {
        state.is_some_and(|state| state.mac.octets() == [2, 0, 0, 0, 0x77, 1])
    });
}

#[test]
fn creation_and_removal_of_an_interface_are_noticed() {
    let Some(nodes) = TwoNodes::new_or_skip("comes_and_goes") else {
        return;
    };
    let (mut monitor, socket) = open(&nodes);
    let namespace = nodes.a.namespace();
    namespace
        .ip("link add more0 type veth peer name more1")
        .unwrap();
    wait_for(&mut monitor, &socket, |state| state.is_some());
    namespace.ip("link del wire0").unwrap();
    wait_for(&mut monitor, &socket, |state| state.is_none());
}

#[test]
fn joining_and_leaving_a_bridge_is_not_a_removal() {
    let Some(nodes) = TwoNodes::new_or_skip("bridge") else {
        return;
    };
    let (mut monitor, socket) = open(&nodes);
    nodes.a.namespace().ip("link add br0 type bridge").unwrap();
    for change in ["master br0", "nomaster", "mtu 1400"] {
        nodes.a.set_link(change);
        wait_for(&mut monitor, &socket, |_| true);
        assert!(socket.link_state().unwrap().is_some(), "{change}");
    }
}

#[test]
fn lost_messages_are_a_change() {
    let Some(nodes) = TwoNodes::new_or_skip("lost_messages") else {
        return;
    };
    let (mut monitor, socket) = open(&nodes);
    // Room for a message or two; each of the changes below is one.
    rustix::net::sockopt::set_socket_recv_buffer_size(&monitor, 1).unwrap();
    for mtu in 1300..1320 {
        nodes.a.set_link(&format!("mtu {mtu}"));
    }
    wait_for(&mut monitor, &socket, |state| state.unwrap().mtu == 1319);
}
