//! Tests of the dissector's analysis of connections.

use super::{Capture, Record, UDP_PORT, ethernet, fields, has_tshark, padded, udp};

const SYN: u8 = 0x01;
const ACK: u8 = 0x02;
const FIN: u8 = 0x04;
const RST: u8 = 0x08;
const EXT: u8 = 0x10;
const PRB: u8 = 0x20;
/// First sequence numbers of both sides: that of the first side wraps at its third packet.
const X: u16 = 65534;
const Y: u16 = 100;

/// Returns a packet of the connection; if `back`, from port 5000 to 40000.
fn packet(back: bool, flags: u8, seq: u16, ack: u16, payload: &[u8], ext: &[u8]) -> Vec<u8> {
    let (src, dst) = if back { (5000, 40000) } else { (40000, 5000) };
    let len = u16::try_from(payload.len()).expect("a short payload");
    let words = [0x88b5, dst, src, seq, ack, len];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
    bytes.push(flags);
    bytes.extend(payload);
    bytes.extend(ext);
    bytes
}

/// Returns a set-up block.
fn setup(nonce: u8, credit: u16) -> Vec<u8> {
    let mut block = vec![1, 0, 5, 209, 0, 0, 0, 2];
    block.extend([nonce; 8]);
    block.extend([0; 8]);
    block.extend(credit.to_be_bytes());
    block.extend([0, 200]);
    block
}

/// Returns an extension with the credit edge.
fn credit(edge: u16) -> Vec<u8> {
    let [high, low] = edge.to_be_bytes();
    vec![4, 1, high, low]
}

/// Creates a capture of packets at these times in µs. Their ports determine the direction.
fn capture(packets: &[(u32, Vec<u8>)]) -> Capture {
    let record = |(time, bytes): &(u32, Vec<u8>)| {
        let back = bytes[2..4] == 40000u16.to_be_bytes();
        Record::new(*time, ethernet(bytes, back))
    };
    Capture::of(&packets.iter().map(record).collect::<Vec<_>>())
}

/// Returns the packets of a connection that is set up in 200 µs and grants the first side a credit
/// of ten.
fn open() -> Vec<(u32, Vec<u8>)> {
    vec![
        (0, packet(false, SYN, X, 0, &setup(1, 10), &[])),
        (
            150,
            packet(true, SYN | ACK, Y, X.wrapping_add(1), &setup(2, 10), &[]),
        ),
        (200, packet(false, ACK, X.wrapping_add(1), Y + 1, &[], &[])),
    ]
}

/// Returns data of the first side with this relative number.
fn data(number: u16) -> Vec<u8> {
    packet(false, ACK, X.wrapping_add(number), Y + 1, b"data", &[])
}

/// Returns a bare acknowledgement of the second side up to this relative number.
fn ack(number: u16, ext: &[u8]) -> Vec<u8> {
    let flags = if ext.is_empty() { ACK } else { ACK | EXT };
    packet(true, flags, Y + 1, X.wrapping_add(number), &[], ext)
}

#[track_caller]
fn check(packets: &[(u32, Vec<u8>)], names: &[&str], wanted: &[(usize, &[&str])]) {
    let found = fields(&capture(packets), names, &[]);
    assert_eq!(found.len(), packets.len());
    for (frame, values) in wanted {
        assert_eq!(found[frame - 1], *values, "frame {frame}: {names:?}");
    }
}

#[test]
fn sequence_numbers_are_relative_and_do_not_wrap() {
    if !has_tshark("sequence_numbers_are_relative") {
        return;
    }
    let mut packets = open();
    packets.extend((1..=4).map(|n| (300 + u32::from(n), data(n))));
    packets.push((400, ack(5, &credit(X.wrapping_add(20)))));
    let names = [
        "espe.stream",
        "espe.seq_raw",
        "espe.seq",
        "espe.nxtseq",
        "espe.ack",
        "espe.credit",
        "espe.analysis.in_flight",
    ];
    let wanted: &[(usize, &[&str])] = &[
        (1, &["0", "65534", "0", "1", "", "", "1"]),
        (2, &["0", "100", "0", "1", "1", "10", "1"]),
        (3, &["0", "65535", "1", "", "1", "10", ""]),
        (4, &["0", "65535", "1", "2", "1", "10", "1"]),
        (5, &["0", "0", "2", "3", "1", "10", "2"]),
        (7, &["0", "2", "4", "5", "1", "10", "4"]),
        (8, &["0", "101", "1", "", "5", "15", ""]),
    ];
    check(&packets, &names, wanted);
}

#[test]
fn round_trips_are_measured() {
    if !has_tshark("round_trips_are_measured") {
        return;
    }
    let mut packets = open();
    packets.push((1000, data(1)));
    packets.push((1100, data(2)));
    packets.push((1400, ack(3, &[])));
    // Sent twice, so there is no sample (Karn).
    packets.push((2000, data(3)));
    packets.push((9000, data(3)));
    packets.push((9100, ack(4, &[])));
    // A probe of eight bytes, and its answer.
    let probe = packet(false, ACK | PRB, X.wrapping_add(4), Y + 1, &[0; 8], &[]);
    packets.push((10_000, probe));
    packets.push((10_250, ack(4, &[4, 2, 0, 8])));
    let names = [
        "espe.analysis.acks_frame",
        "espe.analysis.ack_rtt",
        "espe.analysis.initial_rtt",
        "espe.analysis.answers_probe",
        "espe.analysis.probe_rtt",
    ];
    let wanted: &[(usize, &[&str])] = &[
        (2, &["1", "0.000150000", "", "", ""]),
        (3, &["2", "0.000050000", "0.000200000", "", ""]),
        (6, &["5", "0.000300000", "0.000200000", "", ""]),
        (9, &["8", "", "0.000200000", "", ""]),
        (11, &["", "", "0.000200000", "10", "0.000250000"]),
    ];
    check(&packets, &names, wanted);
}

#[test]
fn losses_and_repetitions_are_marked() {
    if !has_tshark("losses_and_repetitions_are_marked") {
        return;
    }
    let mut packets = open();
    packets.push((1000, data(1)));
    packets.push((1010, data(3))); // 5: 2 is missing
    packets.push((1100, ack(2, &[3, 4, 1]))); // 6
    packets.push((1110, ack(2, &[3, 4, 1]))); // 7: duplicate
    packets.push((1200, data(2))); // 8: reordered
    packets.push((1300, data(5))); // 9: 4 is missing
    packets.push((9000, data(4))); // 10: late
    packets.push((9500, data(5))); // 11: again
    packets.push((9600, ack(6, &[]))); // 12
    packets.push((9700, data(5))); // 13: in vain
    packets.push((9800, ack(8, &[]))); // 14: 6 and 7 were not captured
    let remark = |name: &str| format!("espe.analysis.remark.{name}");
    let names: Vec<String> = [
        "lost_segment",
        "duplicate_ack",
        "out_of_order",
        "retransmission",
        "spurious_retransmission",
        "ack_lost_segment",
    ]
    .map(remark)
    .into();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = fields(&capture(&packets), &names, &[]);
    let marks = |frame: usize| -> Vec<&str> {
        let values = found[frame - 1].iter().zip(&names);
        let set = values.filter(|(value, _)| !value.is_empty());
        set.filter_map(|(_, name)| name.rsplit('.').next())
            .collect()
    };
    let texts = fields(&capture(&packets), &["espe.analysis.remark"], &[]);
    for (frame, text) in texts.iter().enumerate() {
        assert_eq!(text[0].is_empty(), marks(frame + 1).is_empty(), "{texts:?}");
    }
    let none: [&str; 0] = [];
    for frame in [1, 2, 3, 4, 6, 12] {
        assert_eq!(marks(frame), none, "frame {frame}");
    }
    assert_eq!(marks(5), ["lost_segment"]);
    assert_eq!(marks(7), ["duplicate_ack"]);
    assert_eq!(marks(8), ["out_of_order"]);
    assert_eq!(marks(9), ["lost_segment"]);
    assert_eq!(marks(10), ["retransmission"]);
    assert_eq!(marks(11), ["retransmission"]);
    assert_eq!(marks(13), ["spurious_retransmission"]);
    assert_eq!(marks(14), ["ack_lost_segment"]);
    let names = [
        "espe.analysis.duplicate_of",
        "espe.analysis.duplicate_ack",
        "espe.analysis.retransmission_of",
        "espe.analysis.since_original",
    ];
    let wanted: &[(usize, &[&str])] = &[
        (7, &["6", "1", "", ""]),
        (11, &["", "", "9", "0.008200000"]),
    ];
    check(&packets, &names, wanted);
}

/// The time at which the gap was noticed decides, not the time of later packets.
#[test]
fn a_gap_that_is_filled_late_was_a_loss() {
    if !has_tshark("a_gap_that_is_filled_late") {
        return;
    }
    let mut packets = open();
    for (time, number) in [(1000, 1), (1010, 3), (1900, 4), (1910, 2)] {
        packets.push((time, data(number)));
    }
    let names = [
        "espe.analysis.remark.retransmission",
        "espe.analysis.remark.out_of_order",
    ];
    let found = fields(&capture(&packets), &names, &[]);
    assert!(!found[6][0].is_empty(), "{found:?}");
    assert!(found[6][1].is_empty(), "{found:?}");
}

#[test]
fn credit_and_congestion_marks_are_followed() {
    if !has_tshark("credit_and_congestion_marks") {
        return;
    }
    let mut packets = open();
    packets.extend((1..=10).map(|n| (300 + u32::from(n), data(n))));
    let mut zero = credit(X.wrapping_add(11));
    zero.splice(..2, [6, 9]);
    zero.extend([0, 3]);
    packets.push((500, ack(11, &zero))); // 14: 3 marks, no credit
    packets.push((
        600,
        packet(false, ACK | FIN, X.wrapping_add(11), Y + 1, &[], &[]),
    ));
    packets.push((700, packet(true, RST, Y + 1, 0, &[5; 10], &[])));
    let names = [
        "espe.analysis.remark.credit_used",
        "espe.analysis.remark.zero_credit",
        "espe.analysis.new_marks",
        "espe.kind",
        "espe.reset",
    ];
    let found = fields(&capture(&packets), &names, &[]);
    assert_eq!(found[11], ["", "", "", "data", ""]);
    assert!(!found[12][0].is_empty(), "{found:?}");
    assert!(!found[13][1].is_empty(), "{found:?}");
    assert_eq!(found[13][2], "3");
    assert_eq!(found[14][3], "fin");
    assert_eq!(found[15][3], "rst");
    assert!(!found[15][4].is_empty(), "{found:?}");
}

#[test]
fn connections_are_told_apart() {
    if !has_tshark("connections_are_told_apart") {
        return;
    }
    let mut packets = open();
    // The ports are used again, with another nonce.
    packets.push((5000, packet(false, SYN, 7, 0, &setup(3, 10), &[])));
    packets.push((5010, packet(true, SYN | ACK, 9, 8, &setup(4, 10), &[])));
    let mut other = data(1);
    other[3] += 1;
    packets.push((6000, other));
    let found = fields(&capture(&packets), &["espe.stream", "espe.seq"], &[]);
    let streams: Vec<&str> = found.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(streams, ["0", "0", "0", "1", "1", "2"]);
    assert_eq!(found[3][1], "0");
    // Another address is another connection, too, even with equal ports.
    let bytes = data(1);
    let mut elsewhere = ethernet(&bytes, false);
    elsewhere[11] = 9;
    let records = [
        Record::new(0, ethernet(&bytes, false)),
        Record::new(1, elsewhere),
        Record::new(2, udp(&padded(&bytes), (UDP_PORT, UDP_PORT), false)),
        Record::new(3, udp(&padded(&bytes), (40_001, UDP_PORT), false)),
    ];
    let found = fields(&Capture::of(&records), &["espe.stream"], &[]);
    assert_eq!(found.concat(), ["0", "1", "2", "3"]);
}

#[test]
fn a_connection_that_moves_keeps_its_index() {
    if !has_tshark("a_connection_that_moves") {
        return;
    }
    let mut records: Vec<Record> = Vec::new();
    let mut add = |path: u8, bytes: &[u8], back: bool| {
        let mut frame = ethernet(bytes, back);
        (frame[4], frame[10]) = (path, path);
        let time = 100 * u32::try_from(records.len()).expect("few");
        records.push(Record::new(time, frame));
    };
    for (_, bytes) in open() {
        add(0, &bytes, bytes[2..4] == 40000u16.to_be_bytes());
    }
    let step = |step: u8, own: u8, other: u8| {
        let mut block = vec![step, 0, 5, 209, 0, 0, 0, 2];
        block.extend([other; 8]);
        block.extend([own; 8]);
        block.extend([0; 10]);
        block
    };
    let seq = X.wrapping_add(9);
    add(
        1,
        &packet(false, SYN | PRB, 0, 0, &step(1, 1, 2), &[]),
        false,
    );
    add(1, &packet(true, SYN | PRB, 0, 0, &step(2, 2, 1), &[]), true);
    add(
        1,
        &packet(false, SYN | PRB, seq, 0, &step(3, 1, 2), &[]),
        false,
    );
    add(
        1,
        &packet(true, SYN | PRB, Y + 1, 0, &step(4, 2, 1), &[]),
        true,
    );
    add(1, &data(9), false);
    let names = [
        "espe.stream",
        "espe.seq",
        "espe.analysis.remark.lost_segment",
    ];
    let found = fields(&Capture::of(&records), &names, &[]);
    assert!(found.iter().all(|row| row[0] == "0"), "{found:?}");
    assert_eq!(
        found[7],
        ["0", "9", ""],
        "numbers skipped by a move are not lost"
    );
}

#[test]
fn joined_datagrams_are_taken_apart() {
    if !has_tshark("joined_datagrams_are_taken_apart") {
        return;
    }
    let long = |number: u16| packet(false, ACK, number, 7, &[0xaa; 100], &[]);
    let joined = [
        long(1),
        long(2),
        padded(&packet(false, ACK, 3, 7, b"end", &[])),
    ]
    .concat();
    let records = [Record::new(0, udp(&joined, (UDP_PORT, UDP_PORT), false))];
    let names = ["espe.seq_raw", "espe.len", "espe.seq", "espe.malformed"];
    let found = fields(&Capture::of(&records), &names, &[]);
    assert_eq!(found[0], ["1,2,3", "100,100,3", "1,2,3", ""]);
}

#[test]
fn replies_are_connected_with_their_requests() {
    if !has_tshark("replies_are_connected") {
        return;
    }
    let echo = |back: bool, kind: u8| {
        let (src, dst) = if back { (0, 40000) } else { (40000u16, 0u16) };
        let words = [0x88b6, dst, src, 12, 0, 5];
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
        bytes.extend([1, kind]);
        bytes.extend(b"ping");
        bytes
    };
    let records = [
        Record::new(0, ethernet(&echo(false, 1), false)),
        Record::new(75, ethernet(&echo(true, 2), true)),
    ];
    let names = ["edpe.reply_in", "edpe.reply_to", "edpe.time"];
    let found = fields(&Capture::of(&records), &names, &["-2"]);
    assert_eq!(found[0], ["2", "", ""]);
    assert_eq!(found[1], ["", "1", "0.000075000"]);
}
