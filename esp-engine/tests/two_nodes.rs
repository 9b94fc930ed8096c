//! Two engines connected by a virtual cable, each on its own thread.

mod common;

use common::{Host, pattern};
use esp_engine::shm::record::{DgramHeader, EdpKind};
use esp_engine::shm::{StreamState, Wake};
use esp_proto::{CloseReason, ResetReason};
use netns::TwoNodes;

#[test]
fn bytes_pass_in_both_directions() {
    let Some(nodes) = TwoNodes::new_or_skip("bytes_pass_in_both_directions") else {
        return;
    };
    let (mut a, mut b) = (Host::start(&nodes.a, |_| {}), Host::start(&nodes.b, |_| {}));
    b.listen(7000);
    let mut left = a.connect(b.mac, 7000);
    let mut right = b.accept();
    assert_eq!(left.wait_open(), StreamState::Open);

    let (there, back) = (pattern(8 << 20, 1), pattern(3 << 20, 2));
    let (sent, returned) = (there.clone(), back.clone());
    let writer = std::thread::spawn(move || {
        let got = right.read_to_end();
        right.send_all(&returned);
        right.finish();
        (got, right)
    });
    left.send_all(&sent);
    left.finish();
    assert!(left.read_to_end() == back, "answer differs");
    let (got, right) = writer.join().unwrap();
    assert!(got == there, "message differs");
    assert_eq!(
        left.wait_closed(),
        StreamState::Closed(CloseReason::Finished)
    );
    assert_eq!(
        right.wait_closed(),
        StreamState::Closed(CloseReason::Finished)
    );
    a.stop();
    b.stop();
}

#[test]
fn a_port_without_listener_refuses() {
    let Some(nodes) = TwoNodes::new_or_skip("a_port_without_listener_refuses") else {
        return;
    };
    let (mut a, b) = (Host::start(&nodes.a, |_| {}), Host::start(&nodes.b, |_| {}));
    let stream = a.connect(b.mac, 7001);
    assert_eq!(
        stream.wait_open(),
        StreamState::Closed(CloseReason::Reset(ResetReason::Refused))
    );
    assert!(a.snapshot().links[0].connections.is_empty());
}

#[test]
fn programs_of_one_node_reach_each_other() {
    let Some(nodes) = TwoNodes::new_or_skip("programs_of_one_node_reach_each_other") else {
        return;
    };
    let mut a = Host::start(&nodes.a, |_| {});
    a.listen(7002);
    let mut left = a.connect(a.mac, 7002);
    let mut right = a.accept();
    let message = pattern(2 << 20, 3);
    let expected = message.clone();
    let reader = std::thread::spawn(move || right.read_to_end() == expected);
    left.send_all(&message);
    left.finish();
    assert!(reader.join().unwrap(), "message differs");
}

#[test]
fn a_dead_program_delivers_what_it_wrote_and_resets_its_peer() {
    let Some(nodes) = TwoNodes::new_or_skip("a_dead_program_…") else {
        return;
    };
    let (mut a, mut b) = (Host::start(&nodes.a, |_| {}), Host::start(&nodes.b, |_| {}));
    b.listen(7003);
    let mut left = a.connect(b.mac, 7003);
    let mut right = b.accept();
    left.wait_open();
    left.send_all(b"last words");
    a.kill_program();
    assert_eq!(
        right.wait_closed(),
        StreamState::Closed(CloseReason::Reset(ResetReason::ProgramDied))
    );
    let mut buffer = [0; 64];
    let n = right.rx.read(&mut buffer);
    assert_eq!(&buffer[..n], b"last words");
    assert!(a.snapshot().links[0].connections.is_empty());
}

#[test]
fn the_end_that_a_dead_program_has_written_precedes_the_reset() {
    let Some(nodes) = TwoNodes::new_or_skip("the_end_that_a_dead_program_…") else {
        return;
    };
    let (mut a, mut b) = (Host::start(&nodes.a, |_| {}), Host::start(&nodes.b, |_| {}));
    b.listen(7003);
    let mut left = a.connect(b.mac, 7003);
    let right = b.accept();
    left.wait_open();
    // The engine learns of both at once.
    left.tx.finish();
    a.kill_program();
    assert_eq!(
        right.wait_closed(),
        StreamState::Closed(CloseReason::Reset(ResetReason::ProgramDied))
    );
    assert!(right.rx.at_end(), "no end before the reset");
}

#[test]
fn a_closed_stream_still_delivers() {
    let Some(nodes) = TwoNodes::new_or_skip("a_closed_stream_still_delivers") else {
        return;
    };
    let (mut a, mut b) = (Host::start(&nodes.a, |_| {}), Host::start(&nodes.b, |_| {}));
    b.listen(7004);
    let mut left = a.connect(b.mac, 7004);
    let mut right = b.accept();
    left.wait_open();
    left.send_all(&pattern(100_000, 4));
    a.close(&left);
    assert!(right.read_to_end() == pattern(100_000, 4));
    b.close(&right);
    assert_eq!(
        left.wait_closed(),
        StreamState::Closed(CloseReason::Finished)
    );
}

#[test]
fn shutdown_resets_the_peers() {
    let Some(nodes) = TwoNodes::new_or_skip("shutdown_resets_the_peers") else {
        return;
    };
    let (mut a, mut b) = (Host::start(&nodes.a, |_| {}), Host::start(&nodes.b, |_| {}));
    b.listen(7005);
    let left = a.connect(b.mac, 7005);
    let right = b.accept();
    left.wait_open();
    a.stop();
    assert_eq!(
        right.wait_closed(),
        StreamState::Closed(CloseReason::Reset(ResetReason::Shutdown))
    );
    assert_eq!(
        left.wait_closed(),
        StreamState::Closed(CloseReason::Aborted(ResetReason::Shutdown))
    );
}

#[test]
fn jumbo_frames_are_used_once_verified() {
    let Some(nodes) = TwoNodes::new_or_skip("jumbo_frames_are_used_once_verified") else {
        return;
    };
    nodes.set_mtu(9000);
    let (mut a, mut b) = (Host::start(&nodes.a, |_| {}), Host::start(&nodes.b, |_| {}));
    b.listen(7006);
    let mut left = a.connect(b.mac, 7006);
    let mut right = b.accept();
    left.wait_open();
    let message = pattern(8 << 20, 6);
    let expected = message.clone();
    let reader = std::thread::spawn(move || right.read_to_end() == expected);
    left.send_all(&message);
    left.finish();
    assert!(reader.join().unwrap(), "message differs");
    let info = &a.snapshot().links[0].connections;
    assert!(info.is_empty() || info[0].2.payload == 8989, "{info:?}");
}

#[test]
fn a_program_cannot_block_the_loop_through_its_eventfd() {
    let Some(nodes) = TwoNodes::new_or_skip("a_program_cannot_block_the_loop") else {
        return;
    };
    let (mut a, b) = (Host::start(&nodes.a, |_| {}), Host::start(&nodes.b, |_| {}));
    let stream = a.connect(b.mac, 7001);
    stream.wait_closed();
    // Both descriptors share the flags.
    rustix::fs::fcntl_setfl(&stream.eventfd, rustix::fs::OFlags::empty()).unwrap();
    let eventfd = stream.eventfd.try_clone().unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let thief = std::thread::spawn(move || {
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            rustix::io::read(&eventfd, &mut [0u8; 8]).unwrap();
        }
    });
    for _ in 0..300 {
        stream.ring();
        rustix::io::write(&stream.eventfd, &1u64.to_ne_bytes()).unwrap();
        a.snapshot(); // fails when the loop hangs
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    rustix::io::write(&stream.eventfd, &1u64.to_ne_bytes()).unwrap();
    thief.join().unwrap();
}

#[test]
fn a_datagram_sender_that_waits_for_room_is_woken() {
    let Some(nodes) = TwoNodes::new_or_skip("a_datagram_sender_…") else {
        return;
    };
    let (mut a, mut b) = (Host::start(&nodes.a, |_| {}), Host::start(&nodes.b, |_| {}));
    let mut sender = a.datagrams(5000);
    let _receiver = b.datagrams(5001);
    let header = DgramHeader {
        kind: EdpKind::Data,
        addr: esp_proto::MacAddr(b.mac.octets()).into(),
        port: 5001,
        sequence: 0,
        timestamp_ns: 0,
    };
    let body = [7; 1400];
    let mut waited = 0;
    for _ in 0..2000 {
        while !sender.tx.put_record(&header, &body) {
            sender.ring();
            waited += 1;
            let tx = &sender.tx;
            let room = || tx.free() > 2 * body.len();
            let deadline = Some(std::time::Instant::now() + common::PATIENCE);
            assert!(
                sender
                    .status
                    .wait(Wake::Writable, common::SPIN, room, deadline),
                "the sender was not woken"
            );
        }
    }
    sender.ring();
    assert!(waited > 0, "the ring was never full: nothing was tested");
}

#[test]
fn closing_a_datagram_socket_releases_its_memory_without_traffic() {
    let Some(nodes) = TwoNodes::new_or_skip("closing_a_datagram_socket_…") else {
        return;
    };
    let mut a = Host::start(&nodes.a, |_| {});
    let (socket, mapped) = a.bind(5000);
    assert!(mapped.upgrade().is_some());
    a.close(&socket);
    // The first may be answered in the turn of the close, which releases the rings at its end.
    a.snapshot();
    a.snapshot();
    assert!(
        mapped.upgrade().is_none(),
        "the engine still maps the rings"
    );
}
