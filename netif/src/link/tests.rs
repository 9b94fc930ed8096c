//! The parser on untrusted bytes; `tests/link.rs` uses the real kernel.

use super::message::*;
use super::*;

/// Builds a message of a type with a body.
fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((16 + body.len() as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn link(family: u8, index: u32, flags: i32, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![family, 0, 0, 0];
    bytes.extend(index.to_ne_bytes());
    bytes.extend((flags as u32).to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(attributes.concat());
    bytes
}

fn new_link(index: u32, mtu: u32) -> Vec<u8> {
    let attributes = [
        attribute(libc::IFLA_IFNAME, b"eth0\0"),
        attribute(libc::IFLA_MTU, &mtu.to_ne_bytes()),
        attribute(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 9]),
    ];
    message(
        libc::RTM_NEWLINK,
        0,
        0,
        &link(0, index, libc::IFF_UP | libc::IFF_RUNNING, &attributes),
    )
}

fn done(sequence: u32) -> Vec<u8> {
    message(libc::NLMSG_DONE as u16, 0, sequence, &[0; 4])
}

/// Creates a monitor that receives only the messages of the test.
fn deaf() -> LinkMonitor {
    let mut monitor = LinkMonitor::open().unwrap();
    monitor.inventory = Inventory {
        sequence: 1,
        ..Inventory::default()
    };
    monitor
}

fn hear(monitor: &mut LinkMonitor, datagram: &[u8]) -> Vec<LinkEvent> {
    for message in messages(datagram) {
        monitor.take(message);
    }
    monitor.events.drain(..).collect()
}

#[test]
fn a_link_is_reported_once_and_then_only_when_it_changes() {
    let mut monitor = deaf();
    let first = hear(&mut monitor, &new_link(3, 1500));
    let mac = MacAddr::new(2, 0, 0, 0, 0, 9);
    let expected = LinkEvent {
        index: 3,
        up: true,
        running: true,
        mtu: 1500,
        mac,
        gone: false,
    };
    assert_eq!(first, [expected]);
    assert_eq!(hear(&mut monitor, &new_link(3, 1500)), []);
    assert_eq!(
        hear(&mut monitor, &new_link(3, 9000)),
        [LinkEvent {
            mtu: 9000,
            ..expected
        }]
    );
    let gone = message(libc::RTM_DELLINK, 0, 0, &link(0, 3, 0, &[]));
    let last = LinkEvent {
        mtu: 9000,
        up: false,
        running: false,
        gone: true,
        ..expected
    };
    assert_eq!(hear(&mut monitor, &gone), [last]);
    assert_eq!(hear(&mut monitor, &gone), []);
}

#[test]
fn a_message_without_mtu_keeps_the_previous_one() {
    let mut monitor = deaf();
    let bare = message(libc::RTM_NEWLINK, 0, 0, &link(0, 3, 0, &[]));
    assert_eq!(hear(&mut monitor, &bare), [], "nothing is known of it yet");
    hear(&mut monitor, &new_link(3, 1500));
    let events = hear(&mut monitor, &bare);
    assert_eq!(
        (events[0].up, events[0].mtu, events[0].mac.octets()[5]),
        (false, 1500, 9)
    );
}

#[test]
fn a_bridge_port_message_is_not_a_removal() {
    let mut monitor = deaf();
    hear(&mut monitor, &new_link(3, 1500));
    let left = message(
        libc::RTM_DELLINK,
        0,
        0,
        &link(libc::AF_BRIDGE as u8, 3, 0, &[]),
    );
    assert_eq!(hear(&mut monitor, &left), []);
    assert_eq!(monitor.malformed(), 0);
}

#[test]
fn an_inventory_reports_removed_interfaces() {
    let mut monitor = deaf();
    hear(
        &mut monitor,
        &[new_link(3, 1500), new_link(4, 1500), new_link(5, 1500)].concat(),
    );
    monitor.inventory.running = Some(BTreeSet::new());
    assert_eq!(hear(&mut monitor, &new_link(4, 1500)), []);
    assert_eq!(
        hear(&mut monitor, &done(7)),
        [],
        "the answer to another question"
    );
    let events = hear(&mut monitor, &[new_link(5, 1400), done(1)].concat());
    let seen: Vec<_> = events
        .iter()
        .map(|event| (event.index, event.gone, event.mtu))
        .collect();
    assert_eq!(seen, [(5, false, 1400), (3, true, 1500)]);
    assert!(!monitor.inventory.wanted);
}

#[test]
fn an_interrupted_or_refused_inventory_is_repeated() {
    let mut monitor = deaf();
    monitor.inventory.running = Some(BTreeSet::new());
    hear(
        &mut monitor,
        &message(
            libc::NLMSG_DONE as u16,
            libc::NLM_F_DUMP_INTR as u16,
            1,
            &[0; 4],
        ),
    );
    assert!(monitor.inventory.wanted && monitor.inventory.running.is_none());
    monitor.inventory.wanted = false;
    monitor.inventory.running = Some(BTreeSet::new());
    hear(
        &mut monitor,
        &message(libc::NLMSG_ERROR as u16, 0, 1, &[0; 20]),
    );
    assert!(monitor.inventory.wanted && monitor.inventory.running.is_none());
}

#[test]
fn truncated_and_changed_messages_are_harmless() {
    let whole = [new_link(3, 1500), done(1)].concat();
    for len in 1..whole.len() {
        let mut monitor = deaf();
        hear(&mut monitor, &whole[..len]);
        let complete = [new_link(3, 1500).len()].contains(&len);
        assert_eq!(monitor.malformed() == 0, complete, "{len} bytes");
    }
    for at in 0..whole.len() {
        for value in [0, 1, 3, 4, 15, 17, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let mut monitor = deaf();
            hear(&mut monitor, &bytes);
            assert!(monitor.known.len() <= 1);
        }
    }
}

#[test]
fn wrong_lengths_end_the_datagram() {
    for len in [0u32, 1, 15, 0xffff_ffff, 0x8000_0000] {
        let mut bytes = new_link(3, 1500);
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        let seen: Vec<_> = messages(&bytes).collect();
        assert_eq!(seen, [Message::Malformed], "length {len}");
    }
    let short_mtu = [attribute(libc::IFLA_MTU, &[1, 2])];
    let bytes = message(libc::RTM_NEWLINK, 0, 0, &link(0, 3, 0, &short_mtu));
    assert_eq!(messages(&bytes).collect::<Vec<_>>(), [Message::Malformed]);
    let no_index = message(libc::RTM_NEWLINK, 0, 0, &link(0, 0, 0, &[]));
    assert_eq!(
        messages(&no_index).collect::<Vec<_>>(),
        [Message::Malformed]
    );
}
