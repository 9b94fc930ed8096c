//! UDP sockets between two network namespaces.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use netif::{SendBatch, UdpOpenError, UdpOptions, UdpRecvBatch, UdpSocket};
use netns::TwoNodes;

/// Bytes of a frame's head that UDP does not send.
const UNUSED: usize = 12;

/// A received datagram: sender, bytes, mark.
type Received = (SocketAddr, Vec<u8>, bool);

/// Two nodes with addresses of both versions of IP.
fn nodes(test: &str) -> Option<TwoNodes> {
    let nodes = TwoNodes::new_or_skip(test)?;
    for (node, last) in [(&nodes.a, 1), (&nodes.b, 2)] {
        let name = node.name().to_owned();
        let set = |arguments: String| node.namespace().ip(&arguments).expect("ip");
        node.run(|| {
            let file = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
            std::fs::write(file, "0").expect("IPv6");
        });
        set(format!("address add 10.88.0.{last}/24 dev {name}"));
        set(format!("address add fd88::{last}/64 dev {name} nodad"));
    }
    Some(nodes)
}

fn bind(node: &netns::Node, address: &str) -> UdpSocket {
    let local = address.parse().expect("an address");
    node.run(|| UdpSocket::bind(local, &UdpOptions::default()).expect("bind"))
}

/// Addresses of the nodes `a` and `b`, over IPv4 and IPv6.
const BOTH_VERSIONS: [(&str, &str); 2] = [
    ("10.88.0.1:0", "10.88.0.2:0"),
    ("[fd88::1]:0", "[fd88::2]:0"),
];

/// Returns a socket on each node, and the address of a closed port on node `b`.
fn pair_and_closed_port(
    nodes: &TwoNodes,
    near: &str,
    far: &str,
) -> (UdpSocket, UdpSocket, SocketAddr) {
    let closed = bind(&nodes.b, far).local_addr();
    (bind(&nodes.a, near), bind(&nodes.b, far), closed)
}

/// Queues a datagram of `length` bytes, each of which is `mark`.
fn push(batch: &mut SendBatch, to: SocketAddr, mark: u8, payload: &'static [u8], length: usize) {
    let head = batch.head().expect("room");
    head[UNUSED] = mark;
    batch.set_destination(Some(to));
    let payload = &payload[..length - 1];
    let start = NonNull::from(payload).cast();
    // SAFETY: static memory.
    unsafe { batch.push(UNUSED + 1, Some((start, payload.len())), 0) };
}

static PAYLOAD: [u8; 65536] = [0x5a; 65536];

/// Receives until there are `count` datagrams.
fn receive(socket: &UdpSocket, count: usize) -> Vec<Received> {
    let mut batch = UdpRecvBatch::new();
    let mut all = Vec::new();
    let end = Instant::now() + Duration::from_secs(10);
    while all.len() < count && Instant::now() < end {
        match socket.recv_batch(&mut batch) {
            Ok(_) => {}
            // An ICMP error is reported once.
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
        }
        all.extend(batch.datagrams().map(|d| (d.src, d.bytes.to_vec(), d.ce)));
    }
    all
}

/// W-122: they come from the address at which the socket receives.
#[test]
fn datagrams_arrive_whole_and_in_order_over_both_versions_of_ip() {
    let Some(nodes) = nodes("datagrams_arrive_whole_and_in_order") else {
        return;
    };
    for (near, far) in BOTH_VERSIONS {
        let (a, b) = (bind(&nodes.a, near), bind(&nodes.b, far));
        // Runs of one length, which leave as one buffer, short last ones, and lone ones.
        let lengths: Vec<usize> = [1400; 50]
            .into_iter()
            .chain([700, 1400, 1400, 3, 1, 1, 1, 1000, 1400])
            .collect();
        let mut batch = SendBatch::new(lengths.len());
        for (number, &length) in lengths.iter().enumerate() {
            push(&mut batch, b.local_addr(), number as u8, &PAYLOAD, length);
        }
        assert_eq!(a.send_batch(&mut batch).expect("send"), lengths.len());
        assert!(batch.is_empty());
        let received = receive(&b, lengths.len());
        assert_eq!(received.len(), lengths.len());
        for (number, ((src, bytes, ce), &length)) in received.iter().zip(&lengths).enumerate() {
            assert_eq!((*src, *ce), (a.local_addr(), false));
            assert_eq!((bytes.len(), bytes[0]), (length, number as u8));
            assert!(bytes[1..].iter().all(|byte| *byte == 0x5a));
        }
    }
}

#[test]
fn each_destination_gets_its_own() {
    let Some(nodes) = nodes("each_destination_gets_its_own") else {
        return;
    };
    let a = bind(&nodes.a, "10.88.0.1:0");
    let ends = [bind(&nodes.b, "10.88.0.2:0"), bind(&nodes.b, "10.88.0.2:0")];
    let mut batch = SendBatch::new(32);
    for number in 0..32 {
        let to = ends[usize::from(number / 3 % 2 == 0)].local_addr();
        push(&mut batch, to, number, &PAYLOAD, 500);
    }
    assert_eq!(a.send_batch(&mut batch).expect("send"), 32);
    let marks = |end| {
        receive(end, 14)
            .iter()
            .map(|(_, bytes, _)| bytes[0])
            .collect::<Vec<_>>()
    };
    let expected = |first: bool| -> Vec<u8> {
        (0..32)
            .filter(|number| (number / 3 % 2 == 0) == first)
            .collect()
    };
    assert_eq!(marks(&ends[1]), expected(true));
    assert_eq!(marks(&ends[0]), expected(false));
}

/// W-121: nothing is fragmented.
#[test]
fn what_does_not_fit_the_mtu_is_rejected_and_the_rest_is_sent() {
    let Some(nodes) = nodes("what_does_not_fit_the_mtu_is_rejected") else {
        return;
    };
    let (a, b) = (bind(&nodes.a, "10.88.0.1:0"), bind(&nodes.b, "10.88.0.2:0"));
    let mut batch = SendBatch::new(8);
    for (number, length) in [1472, 1473, 1473, 100, 65507, 1472].into_iter().enumerate() {
        push(&mut batch, b.local_addr(), number as u8, &PAYLOAD, length);
    }
    assert_eq!(a.send_batch(&mut batch).expect("send"), 3);
    assert_eq!((batch.len(), batch.rejected()), (0, 3));
    let lengths: Vec<usize> = receive(&b, 3)
        .iter()
        .map(|(_, bytes, _)| bytes.len())
        .collect();
    assert_eq!(lengths, [1472, 100, 1472]);
}

#[test]
fn without_offload_the_kernel_cuts_the_segments() {
    let Some(nodes) = nodes("without_offload_the_kernel_cuts_the_segments") else {
        return;
    };
    let name = nodes.a.name().to_owned();
    if nodes
        .a
        .namespace()
        .tool("ethtool", &format!("-K {name} tx off tso off gso off"))
        .is_err()
    {
        netns::skip("without_offload_the_kernel_cuts_the_segments", "no ethtool");
        return;
    }
    let (a, b) = (bind(&nodes.a, "10.88.0.1:0"), bind(&nodes.b, "10.88.0.2:0"));
    let mut batch = SendBatch::new(40);
    for number in 0..40 {
        push(&mut batch, b.local_addr(), number, &PAYLOAD, 1200);
    }
    assert_eq!(a.send_batch(&mut batch).expect("send"), 40);
    let received = receive(&b, 40);
    assert_eq!(received.len(), 40);
    assert!(received.iter().all(|(_, bytes, _)| bytes.len() == 1200));
}

#[test]
fn marks_of_congestion_are_seen() {
    let Some(nodes) = nodes("marks_of_congestion_are_seen") else {
        return;
    };
    for (near, far) in BOTH_VERSIONS {
        let (a, b) = (bind(&nodes.a, near), bind(&nodes.b, far));
        let mut batch = SendBatch::new(1);
        for (class, marked) in [(2, false), (3, true)] {
            set_class(&a, class);
            push(&mut batch, b.local_addr(), 1, &PAYLOAD, 100);
            a.send_batch(&mut batch).expect("send");
            assert_eq!(receive(&b, 1).first().map(|(_, _, ce)| *ce), Some(marked));
        }
    }
}

/// W-111.
#[test]
fn datagrams_are_sent_as_capable_of_marks() {
    use rustix::net::sockopt::{ip_tos, ipv6_tclass};
    let Some(nodes) = nodes("datagrams_are_sent_as_capable_of_marks") else {
        return;
    };
    let (four, six) = (bind(&nodes.a, "10.88.0.1:0"), bind(&nodes.a, "[fd88::1]:0"));
    assert_eq!(ip_tos(four.as_fd()).expect("TOS"), 2, "ECT(0)");
    assert_eq!(ipv6_tclass(six.as_fd()).expect("traffic class"), 2);
}

/// W-126: the kernel's report that a port is closed names the address, once.
#[test]
fn a_closed_port_is_reported() {
    let Some(nodes) = nodes("a_closed_port_is_reported") else {
        return;
    };
    for (near, far) in BOTH_VERSIONS {
        let (a, b, closed) = pair_and_closed_port(&nodes, near, far);
        let mut batch = SendBatch::new(2);
        for to in [closed, b.local_addr()] {
            push(&mut batch, to, 1, &PAYLOAD, 100);
        }
        assert_eq!(a.send_batch(&mut batch).expect("send"), 2);
        let mut reports = Vec::new();
        let end = Instant::now() + Duration::from_secs(10);
        while reports.is_empty() && Instant::now() < end {
            a.closed_ports(|to| reports.push(to));
        }
        assert_eq!(reports, [closed]);
        a.closed_ports(|to| panic!("{to} once more"));
        assert_eq!(receive(&b, 1).len(), 1);
    }
}

/// W-124: an "unreachable" has no effect on what is sent and received afterwards.
#[test]
fn icmp_errors_change_nothing() {
    let Some(nodes) = nodes("icmp_errors_change_nothing") else {
        return;
    };
    for (near, far) in BOTH_VERSIONS {
        let (a, b, closed) = pair_and_closed_port(&nodes, near, far);
        let mut batch = SendBatch::new(1);
        for _ in 0..5 {
            push(&mut batch, closed, 1, &PAYLOAD, 100);
            assert_eq!(a.send_batch(&mut batch).expect("send"), 1);
            // The answer to a datagram that is received comes after the error.
            for (from, to) in [(&a, &b), (&b, &a)] {
                push(&mut batch, to.local_addr(), 2, &PAYLOAD, 100);
                assert_eq!(from.send_batch(&mut batch).expect("send"), 1);
                assert_eq!(receive(to, 1).len(), 1);
            }
        }
    }
}

/// Sets the traffic class of what a socket sends, as a router that marks would.
fn set_class(socket: &UdpSocket, class: u32) {
    use rustix::net::sockopt::{set_ip_tos, set_ipv6_tclass};
    match socket.local_addr() {
        SocketAddr::V4(_) => set_ip_tos(socket.as_fd(), class as u8).expect("TOS"),
        SocketAddr::V6(_) => set_ipv6_tclass(socket.as_fd(), class).expect("traffic class"),
    }
}

#[test]
fn an_address_in_use_is_named() {
    let Some(nodes) = nodes("an_address_in_use_is_named") else {
        return;
    };
    let held = bind(&nodes.a, "10.88.0.1:0");
    let again = |local| {
        nodes
            .a
            .run(|| UdpSocket::bind(local, &UdpOptions::default()))
    };
    let error = again(held.local_addr()).expect_err("in use");
    assert!(matches!(error, UdpOpenError::InUse { .. }), "{error}");
    let error = again(SocketAddr::from(([10, 88, 0, 77], 0))).expect_err("no address");
    assert!(
        error.to_string().contains("no address 10.88.0.77"),
        "{error}"
    );
}
