//! The filters, run by the kernel.

mod common;

use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};

use common::{LONG, TYPE, header, push_numbered, receive, send_all};
use netif::{Filter, FrameKind, PacketSocket, SendBatch, SocketOptions};
use netns::TwoNodes;

fn with_filter(filter: Filter) -> SocketOptions {
    SocketOptions {
        filter: Some(filter),
        ..SocketOptions::default()
    }
}

/// Sends one frame to each of the ports, and one to port 9, which ends the test.
fn send_to_ports(nodes: &TwoNodes, socket: &PacketSocket, ports: impl IntoIterator<Item = u16>) {
    let (from, to) = (nodes.a.interface(), nodes.b.interface().mac);
    let mut batch = SendBatch::new(64);
    for port in ports.into_iter().chain([9]) {
        push_numbered(&mut batch, to, &from, port);
        send_all(socket, &mut batch);
    }
}

/// Returns the ports of the frames that came before the one to port 9.
fn received_ports(socket: &PacketSocket) -> Vec<u16> {
    let mut ports = Vec::new();
    loop {
        match receive(socket, 1).remove(0).number() {
            9 => return ports,
            port => ports.push(port),
        }
    }
}

#[test]
fn only_frames_to_selected_ports_arrive() {
    let Some(nodes) = TwoNodes::new_or_skip("filter_ports") else {
        return;
    };
    let a = nodes.a.socket(TYPE, &SocketOptions::default());
    let few = Filter::for_ports(TYPE, [9..=9, 1000..=1003, 65535..=65535]).unwrap();
    let many = Filter::for_ports(
        TYPE,
        (0..700u16).map(|n| n * 90..=n * 90 + 1).chain([9..=9]),
    )
    .unwrap();
    let sockets = [few, many].map(|filter| nodes.b.socket(TYPE, &with_filter(filter)));
    let all = nodes.b.socket(TYPE, &SocketOptions::default());
    let sent: Vec<u16> = (0..8)
        .chain(995..1010)
        .chain(30_060..30_070)
        .chain([62_910, 62_912, 65_535])
        .collect();
    send_to_ports(&nodes, &a, sent.clone());
    assert_eq!(received_ports(&all), sent);
    assert_eq!(
        received_ports(&sockets[0]),
        [1000, 1001, 1002, 1003, 65_535]
    );
    assert_eq!(received_ports(&sockets[1]), [0, 1, 30_060, 30_061, 62_910]);
}

#[test]
fn the_node_gets_what_no_lease_has() {
    let Some(nodes) = TwoNodes::new_or_skip("filter_except") else {
        return;
    };
    let a = nodes.a.socket(TYPE, &SocketOptions::default());
    let node = nodes.b.socket(
        TYPE,
        &with_filter(Filter::except_ports(TYPE, [50..=59]).unwrap()),
    );
    let lease = nodes.b.socket(
        TYPE,
        &with_filter(Filter::for_ports(TYPE, [50..=59, 9..=9]).unwrap()),
    );
    send_to_ports(&nodes, &a, [48, 49, 50, 55, 59, 60]);
    assert_eq!(received_ports(&node), [48, 49, 60]);
    assert_eq!(received_ports(&lease), [50, 55, 59]);
}

#[test]
fn frames_of_other_interfaces_are_left_out() {
    let Some(nodes) = TwoNodes::new_or_skip("filter_interface") else {
        return;
    };
    let a = nodes.a.socket(TYPE, &SocketOptions::default());
    let index = nodes.b.interface().index;
    let filter = |port, index| {
        Filter::for_ports(TYPE, [port..=port, 9..=9])
            .unwrap()
            .on_interface(index)
    };
    let here = nodes.b.socket(TYPE, &with_filter(filter(5, index)));
    let elsewhere = nodes.b.socket(TYPE, &with_filter(filter(5, index + 1)));
    send_to_ports(&nodes, &a, [4, 5]);
    assert_eq!(received_ports(&here), [5]);
    // The last frame had arrived when the other socket had all.
    elsewhere
        .attach_filter(&Filter::for_ethertype(TYPE))
        .unwrap();
    send_to_ports(&nodes, &a, [7]);
    assert_eq!(received_ports(&elsewhere), [7]);
}

#[test]
fn a_filter_can_be_replaced_until_it_is_locked() {
    let Some(nodes) = TwoNodes::new_or_skip("filter_locked") else {
        return;
    };
    let a = nodes.a.socket(TYPE, &SocketOptions::default());
    let b = nodes.b.socket(
        TYPE,
        &with_filter(Filter::for_ports(TYPE, [9..=9, 1..=1]).unwrap()),
    );
    b.attach_filter(&Filter::for_ports(TYPE, [9..=9, 2..=2]).unwrap())
        .unwrap();
    b.lock_filter().unwrap();
    let error = b.attach_filter(&Filter::for_ethertype(TYPE)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    send_to_ports(&nodes, &a, [1, 2, 3]);
    assert_eq!(received_ports(&b), [2]);
}

#[test]
fn the_largest_program_is_accepted() {
    let Some(nodes) = TwoNodes::new_or_skip("filter_largest") else {
        return;
    };
    let ports = |count: u16| Filter::for_ports(TYPE, (0..count).map(|n| n * 40..=n * 40 + 1));
    let largest = (600..1600)
        .map_while(|count| ports(count).ok())
        .last()
        .unwrap();
    let b = nodes.b.socket(TYPE, &SocketOptions::default());
    b.attach_filter(&largest).unwrap();
}

/// Queues a frame with an 802.1Q tag in its bytes.
fn push_tagged(nodes: &TwoNodes, batch: &mut SendBatch, tci: u16, number: u16) {
    let (from, to) = (nodes.a.interface().mac, nodes.b.interface().mac);
    let head = batch.head().unwrap();
    head.fill(0);
    head[..12].copy_from_slice(&header(to, from)[..12]);
    head[12..14].copy_from_slice(&[0x81, 0]);
    head[14..16].copy_from_slice(&tci.to_be_bytes());
    head[16..18].copy_from_slice(&TYPE.to_be_bytes());
    head[18..20].copy_from_slice(&number.to_be_bytes());
    batch.push_inline(64);
}

#[test]
fn frames_of_a_vlan_are_not_for_the_interface_below() {
    let Some(nodes) = TwoNodes::new_or_skip("vlan") else {
        return;
    };
    let a = nodes.a.socket(TYPE, &SocketOptions::default());
    let open = nodes.b.socket(TYPE, &SocketOptions::default());
    let filtered = nodes
        .b
        .socket(TYPE, &with_filter(Filter::for_ethertype(TYPE)));
    let mut batch = SendBatch::new(8);
    push_tagged(&nodes, &mut batch, 5, 1); // VLAN 5, which has no interface here
    push_tagged(&nodes, &mut batch, 0x6000, 2); // a priority only
    push_numbered(&mut batch, nodes.b.interface().mac, &nodes.a.interface(), 9);
    send_all(&a, &mut batch);

    // The kernel removes tags: the number is where it is without one.
    assert_eq!(received_ports(&filtered), [2]);
    let frames = receive(&open, 3);
    assert_eq!(
        (frames[0].number(), frames[0].kind),
        (1, FrameKind::OtherHost)
    );
    assert_eq!((frames[1].number(), frames[1].kind), (2, FrameKind::Host));
}

#[test]
fn frames_of_a_vlan_are_kept_from_a_socket_of_all_types() {
    let Some(nodes) = TwoNodes::new_or_skip("vlan_all") else {
        return;
    };
    let a = nodes.a.socket(TYPE, &SocketOptions::default());
    let options = with_filter(Filter::for_ethertype(TYPE));
    let filtered = nodes.b.socket(libc::ETH_P_ALL as u16, &options);
    let mut batch = SendBatch::new(8);
    push_tagged(&nodes, &mut batch, 0x6005, 1);
    push_tagged(&nodes, &mut batch, 0x6000, 2);
    push_numbered(&mut batch, nodes.b.interface().mac, &nodes.a.interface(), 3);
    send_all(&a, &mut batch);
    let frames = receive(&filtered, 2);
    let seen: Vec<_> = frames.iter().map(common::Kept::number).collect();
    assert_eq!(seen, [2, 3]);
}

/// Makes a socket receive the frames that this node sends, as the holder of a lease could.
fn receive_sent(socket: &PacketSocket) {
    let off: libc::c_int = 0;
    // SAFETY: the option's value is this integer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            std::ptr::from_ref(&off).cast(),
            size_of_val(&off) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// The frames are those of the kernel's UDP: a [`PacketSocket`] sends past other sockets. Their
/// first two bytes after the EtherType, version and service type, are at the place of the port.
#[test]
fn sent_frames_are_kept_from_a_socket_of_all_types() {
    let Some(nodes) = TwoNodes::new_or_skip("sent_frames") else {
        return;
    };
    let sockets = [(&nodes.a, "10.9.0.1"), (&nodes.b, "10.9.0.2")].map(|(node, address)| {
        let command = format!("addr add {address}/24 dev {}", node.name());
        node.namespace().ip(&command).expect("an address");
        let socket = node.run(|| UdpSocket::bind((address, 0)));
        let socket = socket.expect("a UDP socket");
        socket.set_read_timeout(Some(LONG)).expect("a timeout");
        socket
    });
    let [there, here] = &sockets;
    let all = libc::ETH_P_ALL as u16;
    let lease = Filter::for_ports(libc::ETH_P_IP as u16, [0x4500..=0x4500])
        .unwrap()
        .on_interface(nodes.b.interface().index);
    let filtered = nodes.b.socket(all, &with_filter(lease));
    let open = nodes.b.socket(all, &SocketOptions::default());
    receive_sent(&filtered);
    receive_sent(&open);

    here.send_to(b"sent", there.local_addr().unwrap()).unwrap();
    // Once it has arrived, the sockets of its sender have it, too.
    let mut buffer = [0; 16];
    assert_eq!(there.recv(&mut buffer).unwrap(), 4);
    there
        .send_to(b"received", here.local_addr().unwrap())
        .unwrap();

    let frame = receive(&filtered, 1).remove(0);
    assert_eq!(frame.kind, FrameKind::Host);
    let text = |frame: &common::Kept, bytes: &[u8]| frame.bytes.windows(8).any(|w| w == bytes);
    assert!(text(&frame, b"received"), "{frame:?}");
    loop {
        let frame = receive(&open, 1).remove(0);
        if frame.kind == FrameKind::Outgoing && frame.bytes.ends_with(b"sent") {
            return;
        }
        assert!(!text(&frame, b"received"), "the frame was not sent here");
    }
}
