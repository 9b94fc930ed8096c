//! The kernel's reports on interfaces in a namespace of the test.

mod common;

use std::collections::BTreeMap;
use std::time::Instant;

use common::{LONG, readable};
use netif::{LinkEvent, LinkMonitor, MacAddr};
use netns::TwoNodes;

/// Opens a monitor in the first node's namespace and reads the initial state.
fn monitor(nodes: &TwoNodes) -> (LinkMonitor, BTreeMap<u32, LinkEvent>) {
    let mut monitor = nodes.a.run(LinkMonitor::open).unwrap();
    let index = nodes.a.interface().index;
    let mut state = BTreeMap::new();
    while !state.contains_key(&index) || !state.contains_key(&1) {
        let event = next(&mut monitor);
        state.insert(event.index, event);
    }
    (monitor, state)
}

fn next(monitor: &mut LinkMonitor) -> LinkEvent {
    let end = Instant::now() + LONG;
    loop {
        if let Some(event) = monitor.next_event().unwrap() {
            return event;
        }
        assert!(
            readable(&*monitor, end.saturating_duration_since(Instant::now())),
            "an event within {LONG:?}"
        );
    }
}

/// Returns the first event that fits; earlier ones are intermediate steps.
fn wait_for(monitor: &mut LinkMonitor, fits: impl Fn(&LinkEvent) -> bool) -> LinkEvent {
    let end = Instant::now() + LONG;
    loop {
        let event = next(monitor);
        if fits(&event) {
            return event;
        }
        assert!(Instant::now() < end);
    }
}

#[test]
fn the_state_found_comes_first() {
    let Some(nodes) = TwoNodes::new_or_skip("state_found") else {
        return;
    };
    let (mut monitor, state) = monitor(&nodes);
    let interface = nodes.a.interface();
    let found = state[&interface.index];
    assert_eq!(
        (found.mtu, found.mac, found.gone),
        (interface.mtu, interface.mac, false)
    );
    assert!(found.up && found.running);
    assert_eq!(state[&1].mtu, 65536, "the loopback interface");
    assert_eq!(monitor.next_event().unwrap(), None);
}

#[test]
fn changes_of_mtu_state_and_address_are_reported() {
    let Some(nodes) = TwoNodes::new_or_skip("changes") else {
        return;
    };
    let (mut monitor, _) = monitor(&nodes);
    let index = nodes.a.interface().index;
    nodes.a.set_link("mtu 9000");
    let event = wait_for(&mut monitor, |event| {
        event.index == index && event.mtu == 9000
    });
    assert!(event.up);
    nodes.a.set_link("down");
    let event = wait_for(&mut monitor, |event| event.index == index && !event.up);
    assert_eq!((event.mtu, event.gone), (9000, false));
    nodes.a.set_link("address 02:00:00:00:00:77");
    wait_for(&mut monitor, |event| {
        event.mac == MacAddr::new(2, 0, 0, 0, 0, 0x77)
    });
    nodes.a.set_link("up");
    wait_for(&mut monitor, |event| event.up && event.running);
    // The other end is switched off: the carrier is lost, the interface remains.
    nodes.b.set_link("down");
    let event = wait_for(&mut monitor, |event| !event.running);
    assert!(event.up && !event.gone);
    assert_eq!(monitor.malformed(), 0);
}

#[test]
fn creation_and_removal_of_an_interface_are_reported() {
    let Some(nodes) = TwoNodes::new_or_skip("comes_and_goes") else {
        return;
    };
    let (mut monitor, state) = monitor(&nodes);
    let namespace = nodes.a.namespace();
    namespace
        .ip("link add more0 type veth peer name more1")
        .unwrap();
    let event = wait_for(&mut monitor, |event| !state.contains_key(&event.index));
    assert!(!event.gone);
    namespace.ip("link del more0").unwrap();
    wait_for(&mut monitor, |gone| gone.gone && gone.index == event.index);
    namespace.ip("link del wire0").unwrap();
    let index = wait_for(&mut monitor, |event| {
        event.gone && state.contains_key(&event.index)
    })
    .index;
    assert_eq!(state[&index].mtu, 1500);
}

#[test]
fn joining_and_leaving_a_bridge_is_not_a_removal() {
    let Some(nodes) = TwoNodes::new_or_skip("bridge") else {
        return;
    };
    let (mut monitor, _) = monitor(&nodes);
    let index = nodes.a.interface().index;
    nodes.a.namespace().ip("link add br0 type bridge").unwrap();
    nodes.a.set_link("master br0");
    nodes.a.set_link("nomaster");
    nodes.a.set_link("mtu 1400");
    let end = Instant::now() + LONG;
    loop {
        let event = next(&mut monitor);
        assert!(!event.gone, "{event:?}");
        if event.index == index && event.mtu == 1400 {
            break;
        }
        assert!(Instant::now() < end);
    }
}

#[test]
fn lost_messages_cause_a_new_query() {
    let Some(nodes) = TwoNodes::new_or_skip("lost_messages") else {
        return;
    };
    let (mut monitor, state) = monitor(&nodes);
    let interface = nodes.a.interface();
    let namespace = nodes.a.namespace();
    namespace
        .ip("link add more0 type veth peer name more1")
        .unwrap();
    let more = wait_for(&mut monitor, |event| !state.contains_key(&event.index)).index;
    // Room for a message or two; each of the changes below is one.
    rustix::net::sockopt::set_socket_recv_buffer_size(&monitor, 1).unwrap();
    for mtu in 1300..1320 {
        nodes.a.set_link(&format!("mtu {mtu}"));
    }
    namespace.ip("link del more0").unwrap();
    nodes.a.set_link("mtu 1234");
    let (mut seen_mtu, mut seen_gone) = (false, false);
    let end = Instant::now() + LONG;
    while !(seen_mtu && seen_gone) {
        let event = next(&mut monitor);
        seen_mtu |= event.index == interface.index && event.mtu == 1234;
        seen_gone |= event.index == more && event.gone;
        assert!(Instant::now() < end);
    }
    assert!(
        monitor.overruns() > 0,
        "nothing was lost: the test shows nothing"
    );
}
