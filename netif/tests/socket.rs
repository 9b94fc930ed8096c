//! Packet sockets between two network namespaces.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use common::{LONG, TYPE, header, push_numbered, readable, receive, receive_for, send_all};
use netif::{
    FrameKind, Interface, InterfaceError, MacAddr, OpenError, PacketSocket, RecvBatch, SendBatch,
    SocketOptions,
};
use netns::{TwoNodes, skip};
use rustix::net::sockopt::{socket_recv_buffer_size, socket_send_buffer_size};

fn sockets(nodes: &TwoNodes) -> (PacketSocket, PacketSocket) {
    let options = SocketOptions::default();
    (
        nodes.a.socket(TYPE, &options),
        nodes.b.socket(TYPE, &options),
    )
}

#[test]
fn both_ways() {
    let Some(nodes) = TwoNodes::new_or_skip("both_ways") else {
        return;
    };
    let (a, b) = sockets(&nodes);
    let (a_if, b_if) = (nodes.a.interface(), nodes.b.interface());
    assert!(a_if.up && a_if.running && !a_if.loopback, "{a_if:?}");
    assert_eq!((a_if.mtu, a_if.link_type), (1500, 1));
    assert_ne!(a_if.mac, b_if.mac);
    for (from, from_if, to, to_if) in [(&a, &a_if, &b, &b_if), (&b, &b_if, &a, &a_if)] {
        let mut batch = SendBatch::new(4);
        push_numbered(&mut batch, to_if.mac, from_if, 77);
        push_numbered(&mut batch, MacAddr::broadcast(), from_if, 78);
        assert_eq!(send_all(from, &mut batch), 2);
        let frames = receive(to, 2);
        assert_eq!(frames[0].bytes.len(), 60);
        assert_eq!(frames[0].bytes[..14], header(to_if.mac, from_if.mac));
        assert_eq!((frames[0].number(), frames[0].kind), (77, FrameKind::Host));
        assert_eq!(
            (frames[1].number(), frames[1].kind),
            (78, FrameKind::Broadcast)
        );
        assert!(frames.iter().all(|frame| !frame.truncated));
    }
}

#[test]
fn an_empty_socket_is_no_error_and_own_frames_are_not_received() {
    let Some(nodes) = TwoNodes::new_or_skip("nothing_waits") else {
        return;
    };
    let (a, b) = sockets(&nodes);
    let mut batch = RecvBatch::new(8, 1600);
    assert_eq!(a.recv_batch(&mut batch).unwrap(), 0);
    let mut out = SendBatch::new(1);
    push_numbered(&mut out, nodes.b.interface().mac, &nodes.a.interface(), 1);
    send_all(&a, &mut out);
    receive(&b, 1);
    assert_eq!(a.recv_batch(&mut batch).unwrap(), 0, "{batch:?}");
}

#[test]
fn sixty_four_in_one_batch_keep_their_order() {
    let Some(nodes) = TwoNodes::new_or_skip("sixty_four") else {
        return;
    };
    let (a, b) = sockets(&nodes);
    let (a_if, b_if) = (nodes.a.interface(), nodes.b.interface());
    let mut out = SendBatch::new(64);
    let mut batch = RecvBatch::new(64, 1600);
    for round in 0..3u16 {
        for number in 0..64 {
            push_numbered(&mut out, b_if.mac, &a_if, round * 64 + number);
        }
        assert!(out.is_full());
        assert_eq!(a.send_batch(&mut out).unwrap(), 64);
        assert!(out.is_empty());
        assert!(readable(&b, LONG));
        // veth delivers before the send returns: all are there.
        assert_eq!(b.recv_batch(&mut batch).unwrap(), 64);
        let numbers: Vec<u16> = batch
            .frames()
            .map(|f| u16::from_be_bytes([f.bytes[14], f.bytes[15]]))
            .collect();
        assert_eq!(numbers, (round * 64..round * 64 + 64).collect::<Vec<_>>());
    }
    let counted = b.statistics().unwrap();
    assert_eq!((counted.received, counted.dropped), (192, 0));
    assert_eq!(
        b.statistics().unwrap(),
        counted,
        "reading does not start again from zero"
    );
}

#[test]
fn prefix_payload_and_tail_arrive_as_one_frame() {
    let Some(nodes) = TwoNodes::new_or_skip("prefix_payload_tail") else {
        return;
    };
    nodes.set_mtu(9000);
    let (a, b) = sockets(&nodes);
    let payload: Vec<u8> = (0..8000u32).map(|n| n as u8).collect();
    let mut out = SendBatch::new(2);
    let head = out.head().unwrap();
    head[..14].copy_from_slice(&header(nodes.b.interface().mac, nodes.a.interface().mac));
    head[14..25].fill(0xaa);
    head[25..28].fill(0xbb);
    // SAFETY: the payload lives until the frame was sent below.
    unsafe { out.push(25, Some((NonNull::from(&payload[0]), payload.len())), 3) };
    send_all(&a, &mut out);
    let frame = receive(&b, 1).remove(0);
    assert_eq!(frame.bytes.len(), 25 + 8000 + 3);
    assert_eq!(frame.bytes[14..25], [0xaa; 11]);
    assert_eq!(frame.bytes[25..8025], payload);
    assert_eq!(frame.bytes[8025..], [0xbb; 3]);
}

#[test]
fn frames_that_no_driver_accepts_do_not_delay_others() {
    let Some(nodes) = TwoNodes::new_or_skip("oversize") else {
        return;
    };
    let (a, b) = sockets(&nodes);
    let (a_if, b_if) = (nodes.a.interface(), nodes.b.interface());
    let payload = vec![0u8; 1600];
    let mut out = SendBatch::new(8);
    let oversize = |out: &mut SendBatch| {
        out.head().unwrap()[..14].copy_from_slice(&header(b_if.mac, a_if.mac));
        // SAFETY: the payload outlives the batch.
        unsafe { out.push(14, Some((NonNull::from(&payload[0]), payload.len())), 0) };
    };
    oversize(&mut out);
    push_numbered(&mut out, b_if.mac, &a_if, 1);
    oversize(&mut out);
    out.push_inline(5); // shorter than an Ethernet header
    push_numbered(&mut out, b_if.mac, &a_if, 2);
    oversize(&mut out);
    assert_eq!(a.send_batch(&mut out).unwrap(), 2);
    assert!(out.is_empty());
    assert_eq!(out.rejected(), 4);
    let numbers: Vec<u16> = receive(&b, 2).iter().map(common::Kept::number).collect();
    assert_eq!(numbers, [1, 2]);
}

#[test]
fn the_largest_frame_is_the_mtu_and_longer_than_the_batch_is_marked() {
    let Some(nodes) = TwoNodes::new_or_skip("largest_frame") else {
        return;
    };
    let (a, b) = sockets(&nodes);
    let payload = vec![9u8; 1500];
    let mut out = SendBatch::new(2);
    for _ in 0..2 {
        out.head().unwrap()[..14]
            .copy_from_slice(&header(nodes.b.interface().mac, nodes.a.interface().mac));
        // SAFETY: the payload outlives the batch.
        unsafe { out.push(14, Some((NonNull::from(&payload[0]), payload.len())), 0) };
    }
    send_all(&a, &mut out);
    assert_eq!(out.rejected(), 0);
    let mut short = RecvBatch::new(1, 100);
    assert!(readable(&b, LONG));
    assert_eq!(b.recv_batch(&mut short).unwrap(), 1);
    let frame = short.frames().next().unwrap();
    assert!(frame.truncated);
    assert_eq!(frame.bytes.len(), 100);
    let whole = receive(&b, 1).remove(0);
    assert!(!whole.truncated);
    assert_eq!(whole.bytes.len(), 1514);
}

#[test]
fn a_full_receive_buffer_drops_and_counts() {
    let Some(nodes) = TwoNodes::new_or_skip("full_receive_buffer") else {
        return;
    };
    let a = nodes.a.socket(TYPE, &SocketOptions::default());
    let b = nodes.b.socket(
        TYPE,
        &SocketOptions {
            receive_buffer: 1,
            ..SocketOptions::default()
        },
    );
    let (a_if, b_if) = (nodes.a.interface(), nodes.b.interface());
    let mut out = SendBatch::new(64);
    for _ in 0..4 {
        for number in 0..64 {
            push_numbered(&mut out, b_if.mac, &a_if, number);
        }
        send_all(&a, &mut out);
    }
    let counted = b.statistics().unwrap();
    assert_eq!(counted.received + counted.dropped, 256, "{counted:?}");
    assert!(counted.dropped > 0 && counted.received > 0, "{counted:?}");
    assert_eq!(
        receive_for(&b, 256, Duration::from_millis(50)).len() as u64,
        counted.received
    );
}

#[test]
fn buffers_hold_a_window_where_the_system_allows() {
    let Some(nodes) = TwoNodes::new_or_skip("buffers") else {
        return;
    };
    let (a, _b) = sockets(&nodes);
    assert!(socket_recv_buffer_size(&a).unwrap() >= 2 * netif::WINDOW_BYTES);
    assert!(socket_send_buffer_size(&a).unwrap() >= 2 * netif::WINDOW_BYTES);
}

#[test]
fn a_link_that_goes_down_is_reported_once_and_works_again_later() {
    let Some(nodes) = TwoNodes::new_or_skip("link_down") else {
        return;
    };
    let (a, b) = sockets(&nodes);
    let (a_if, b_if) = (nodes.a.interface(), nodes.b.interface());
    let mut batch = RecvBatch::new(4, 1600);
    nodes.b.set_link("down");
    assert!(readable(&b, LONG));
    let error = b.recv_batch(&mut batch).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN));
    assert_eq!(b.recv_batch(&mut batch).unwrap(), 0);
    let mut out = SendBatch::new(4);
    push_numbered(&mut out, a_if.mac, &b_if, 1);
    assert_eq!(
        b.send_batch(&mut out).unwrap_err().raw_os_error(),
        Some(libc::ENETDOWN)
    );
    assert_eq!(out.len(), 1, "what was not sent stays");
    nodes.b.set_link("up");
    send_all(&b, &mut out);
    assert_eq!(receive(&a, 1)[0].number(), 1);
    push_numbered(&mut out, b_if.mac, &a_if, 2);
    send_all(&a, &mut out);
    assert_eq!(receive(&b, 1)[0].number(), 2);
}

#[test]
fn an_interface_that_is_removed_is_an_error_not_a_hang() {
    let Some(nodes) = TwoNodes::new_or_skip("removed") else {
        return;
    };
    let (a, b) = sockets(&nodes);
    let (a_if, b_if) = (nodes.a.interface(), nodes.b.interface());
    nodes.a.namespace().ip("link del wire0").unwrap();
    let mut batch = RecvBatch::new(4, 1600);
    for socket in [&a, &b] {
        assert!(readable(socket, LONG));
        assert!(socket.recv_batch(&mut batch).is_err());
    }
    let mut out = SendBatch::new(4);
    push_numbered(&mut out, b_if.mac, &a_if, 1);
    let error = a.send_batch(&mut out).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
    let error = nodes
        .a
        .run(|| PacketSocket::open(&a_if, TYPE, &SocketOptions::default()))
        .unwrap_err();
    assert!(matches!(error, OpenError::Gone { .. }), "{error}");
    assert!(error.to_string().contains("wire0"), "{error}");
}

#[test]
fn a_socket_works_after_it_was_passed_on() {
    let Some(nodes) = TwoNodes::new_or_skip("handed_over") else {
        return;
    };
    let (a, b) = sockets(&nodes);
    let b = PacketSocket::from_fd(OwnedFd::from(b)).unwrap();
    let mut out = SendBatch::new(1);
    push_numbered(&mut out, nodes.b.interface().mac, &nodes.a.interface(), 5);
    send_all(&a, &mut out);
    assert_eq!(receive(&b, 1)[0].number(), 5);
    let other = std::fs::File::open("/dev/null").unwrap();
    assert!(PacketSocket::from_fd(other.into()).is_err());
    let stream = std::os::unix::net::UnixStream::pair().unwrap().0;
    assert!(PacketSocket::from_fd(stream.as_fd().try_clone_to_owned().unwrap()).is_err());
}

#[test]
fn loopback_is_refused() {
    let Some(nodes) = TwoNodes::new_or_skip("loopback") else {
        return;
    };
    let error = nodes.a.run(|| {
        let loopback = Interface::by_name("lo").unwrap();
        PacketSocket::open(&loopback, TYPE, &SocketOptions::default()).unwrap_err()
    });
    assert!(
        matches!(
            error,
            OpenError::Interface(InterfaceError::NotEthernet { .. })
        ),
        "{error}"
    );
    assert!(error.to_string().contains("use a veth pair"), "{error}");
}

#[test]
fn an_interface_without_ethernet_is_refused() {
    let Some(nodes) = TwoNodes::new_or_skip("not_ethernet") else {
        return;
    };
    if let Err(error) = nodes.a.namespace().ip("tuntap add dev tun0 mode tun") {
        return skip("not_ethernet", &error.to_string());
    }
    let error = nodes.a.run(|| {
        let tunnel = Interface::by_name("tun0").unwrap();
        PacketSocket::open(&tunnel, TYPE, &SocketOptions::default()).unwrap_err()
    });
    assert!(
        matches!(
            error,
            OpenError::Interface(InterfaceError::NotEthernet { .. })
        ),
        "{error}"
    );
}

#[test]
fn names_are_listed_when_one_is_not_found() {
    let Some(nodes) = TwoNodes::new_or_skip("names_listed") else {
        return;
    };
    let text = nodes
        .a
        .run(|| Interface::by_name("eth7"))
        .unwrap_err()
        .to_string();
    assert_eq!(text, r#"no interface named "eth7"; existing: lo, wire0"#);
    let names: Vec<String> = nodes
        .a
        .run(Interface::list)
        .into_iter()
        .map(|i| i.name)
        .collect();
    assert_eq!(names, ["lo", "wire0"]);
}

#[test]
fn a_missing_capability_is_explained() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let Some(nodes) = TwoNodes::new_or_skip("no_permission") else {
        return;
    };
    let interface = nodes.a.interface();
    // Capabilities belong to threads: this one drops CAP_NET_RAW and ends.
    let error = nodes.a.run(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_RAW);
        set_capabilities(None, sets).unwrap();
        PacketSocket::open(&interface, TYPE, &SocketOptions::default()).unwrap_err()
    });
    assert!(matches!(error, OpenError::NoPermission { .. }), "{error}");
    let text = error.to_string();
    let program = std::env::current_exe().unwrap();
    for part in [
        "wire0",
        "CAP_NET_RAW",
        "Run as root",
        &format!("setcap cap_net_raw+ep {}", program.display()),
        "AmbientCapabilities=CAP_NET_RAW",
    ] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

#[test]
fn without_net_admin_the_buffers_are_what_the_system_grants() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let Some(nodes) = TwoNodes::new_or_skip("no_net_admin") else {
        return;
    };
    let interface = nodes.a.interface();
    let socket = nodes.a.run(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).unwrap();
        PacketSocket::open(&interface, TYPE, &SocketOptions::default()).unwrap()
    });
    let max: usize = std::fs::read_to_string("/proc/sys/net/core/rmem_max")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert_eq!(
        socket_recv_buffer_size(&socket).unwrap(),
        2 * max.min(netif::WINDOW_BYTES)
    );
}
