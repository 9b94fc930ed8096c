//! The wrong frames as UDP datagrams, and datagrams that no frame can be: each is dropped and
//! counted, and answered with no more bytes than it has.

use std::net::UdpSocket;
use std::time::Duration;

use esp_client::{EdpSocket, EspAddr, EspListener, EspStream};
use esp_tests::frames::{RST, expect_drops};
use esp_tests::{PATIENCE, check_pattern, client, lab_or_skip, send_pattern};
use lab::{Carriers, Lab, LabOptions};
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};

use crate::cases::{datagrams, malformed_esp, refused};

/// Bytes of the two addresses, which are not in a datagram.
const ADDRESSES: usize = 12;
/// Offset of the flags in a datagram.
const FLAGS_AT: usize = 12;
/// Bytes of the shortest datagram (W-120).
const MIN_LEN: usize = 48;

/// Returns a socket of a node, connected to the daemon of node 0.
fn socket(lab: &Lab, node: usize) -> UdpSocket {
    let socket = lab.run_in(node, || UdpSocket::bind("0.0.0.0:0").expect("bind"));
    let socket = socket.expect("enter the node");
    socket.connect("10.99.0.1:2805").expect("connect");
    socket
}

/// Returns the datagram with this frame, padded to the minimum length.
fn datagram(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame[ADDRESSES..].to_vec();
    bytes.resize(bytes.len().max(MIN_LEN), 0);
    bytes
}

/// Returns the next datagram that arrives within this time.
fn answer(socket: &UdpSocket, within: Duration) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 2048];
    socket.set_read_timeout(Some(within)).expect("a timeout");
    let len = socket.recv(&mut buffer).ok()?;
    buffer.truncate(len);
    Some(buffer)
}

/// Returns both ends of a stream from node 0 to node 1.
fn stream(lab: &Lab) -> (EspStream, EspStream) {
    let (left, right) = (client(lab, 0), client(lab, 1));
    let listener = EspListener::builder().bind_at(&right, 8000).unwrap();
    let to = right.interface(None).expect("an interface").addr;
    assert!(to.is_udp());
    let stream = EspStream::builder().connect_at(&left, EspAddr::new(to, 8000));
    (
        stream.unwrap(),
        listener.accept_timeout(PATIENCE).unwrap().0,
    )
}

#[test]
fn each_wrong_datagram_is_counted_and_answered_with_no_more() {
    let test = "each_wrong_datagram_is_counted_and_answered_with_no_more";
    let options = LabOptions {
        carriers: Carriers::Udp,
        ..LabOptions::new(3)
    };
    let Some(lab) = lab_or_skip(test, &options) else {
        return;
    };
    let victim = client(&lab, 0);
    let (left, right) = stream(&lab);
    let _listener = EspListener::builder().bind_at(&victim, 7000).unwrap();
    let _port = EdpSocket::builder().bind_at(&victim, 9000).unwrap();
    let stranger = socket(&lab, 2);
    let send = |bytes: &[u8]| {
        stranger.send(bytes).expect("send");
    };

    let silent = malformed_esp().into_iter().chain(datagrams());
    for (what, name, frame) in silent.filter(|case| case.1 != "rx_drop_broadcast") {
        expect_drops(&victim, name, 1, what, || send(&datagram(&frame)));
    }
    let whole = datagram(&refused().swap_remove(3).0.2);
    send(&[]); // Of no length: not counted.
    expect_drops(
        &victim,
        "rx_drop_runt",
        MIN_LEN as u64 - 1,
        "too short",
        || {
            (1..MIN_LEN).for_each(|len| send(&whole[..len]));
        },
    );
    assert_eq!(answer(&stranger, Duration::from_millis(1)), None);

    for ((what, name, frame), reason) in refused() {
        let request = datagram(&frame);
        expect_drops(&victim, name, 1, what, || send(&request));
        let answer = answer(&stranger, PATIENCE).expect(what);
        assert!(answer.len() <= request.len(), "{what}");
        let block = answer.get(FLAGS_AT + 1);
        assert_eq!(
            (answer[FLAGS_AT] & RST, block),
            (RST, Some(&reason)),
            "{what}"
        );
    }

    // Segments of a length that no packet of ESP has, and a shorter last one: the receiving kernel
    // may join them.
    let (_, name, frame) = malformed_esp().swap_remove(0);
    let last = datagram(&frame);
    let segment = [&last[..], &[0; 3]].concat();
    let joined = [segment.repeat(10), last].concat();
    setsockopt(&stranger, UdpGsoSegment, &(segment.len() as i32)).expect("segments");
    expect_drops(&victim, name, 11, "joined datagrams", || send(&joined));

    for (from, to, salt) in [(&left, &right, 11), (&right, &left, 12)] {
        std::thread::scope(|scope| {
            scope.spawn(|| send_pattern(from, 3 << 20, salt));
            check_pattern(to, 3 << 20, salt);
        });
    }
}
