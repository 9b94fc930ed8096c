use super::*;

const TYPES: Types = Types {
    esp: 0x88b5,
    edp: 0x88b6,
};

/// Returns a data packet of stream 5000 to 1000 with this payload.
fn data(seq: u16, payload: &[u8]) -> Vec<u8> {
    let words = [0x88b5, 1000, 5000, seq, 7, payload.len() as u16];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
    bytes.push(2);
    bytes.extend(payload);
    bytes.resize(bytes.len().max(MIN_PACKET), 0);
    bytes
}

fn ethernet(after: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..], after].concat()
}

fn udp4(payload: &[u8]) -> Vec<u8> {
    let len = |more: usize| ((payload.len() + more) as u16).to_be_bytes();
    let mut bytes = vec![0x08, 0, 0x45, 0];
    bytes.extend(len(28));
    bytes.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0x0a, 0xf5, 0x9c, 0x40]);
    bytes.extend(len(8));
    bytes.extend([0, 0]);
    bytes.extend(payload);
    ethernet(&bytes)
}

fn udp6(payload: &[u8]) -> Vec<u8> {
    let len = ((payload.len() + 8) as u16).to_be_bytes();
    let mut bytes = vec![0x86, 0xdd, 0x60, 0, 0, 0];
    bytes.extend(len);
    bytes.extend([17, 64]);
    for last in [1, 2] {
        bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    bytes.extend([0x0a, 0xf5, 0x9c, 0x40]);
    bytes.extend(len);
    bytes.extend([0, 0]);
    bytes.extend(payload);
    ethernet(&bytes)
}

/// Returns the ends and data lengths of the packets of a frame.
fn found(frame: &[u8]) -> Vec<(String, String, u16)> {
    let (_, packets) = decode(frame, frame.len(), TYPES).unwrap_or_else(|| panic!("{frame:x?}"));
    let packets = packets.iter().map(|packet| {
        assert!(packet.content.is_ok(), "{packet:?}");
        let len = packet.header.map_or(0, |header| header.len);
        (packet.src.to_string(), packet.dst.to_string(), len)
    });
    packets.collect()
}

#[test]
fn packets_are_found_over_both_carriers() {
    let mac = |last: u8| format!("02:00:00:00:00:{last:02x}");
    let raw = ethernet(&data(1, b"abc"));
    assert_eq!(found(&raw), [(mac(1), mac(2), 3)]);
    let tagged = ethernet(&[&[0x81, 0, 0, 5][..], &data(1, b"abc")].concat());
    assert_eq!(found(&tagged), [(mac(1), mac(2), 3)]);
    let (link, _) = decode(&tagged, tagged.len(), TYPES).expect("a packet");
    assert_eq!((link.vlan, link.ethertype), (Some(5), 0x88b5));
    let (a, b) = ("10.0.0.1".to_owned(), "10.0.0.2@40000".to_owned());
    assert_eq!(found(&udp4(&data(1, b"abc"))), [(a, b, 3)]);
    let (a, b) = ("[fd00::1]".to_owned(), "[fd00::2]@40000".to_owned());
    assert_eq!(found(&udp6(&data(1, b"abc"))), [(a, b, 3)]);
}

#[test]
fn joined_datagrams_are_taken_apart() {
    let parts = [data(1, &[7; 100]), data(2, &[7; 100]), data(3, b"end")];
    let lens = |frame: &[u8]| -> Vec<u16> { found(frame).iter().map(|p| p.2).collect() };
    assert_eq!(lens(&udp4(&parts.concat())), [100, 100, 3]);
    assert_eq!(lens(&udp6(&parts.concat())), [100, 100, 3]);
    // The bytes after it are not a packet but padding.
    assert_eq!(lens(&udp4(&[&parts[0][..], &[0; 60]].concat())), [100]);
}

#[test]
fn joined_protected_datagrams_are_taken_apart() {
    let sealed = |seq: u16, len: usize| {
        let mut bytes = data(seq, &vec![7; len]);
        bytes[HEADER_LEN - 1] |= FLAG_SEC;
        bytes.splice(
            HEADER_LEN..HEADER_LEN,
            [0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        );
        bytes.extend([9; 16]);
        bytes
    };
    let parts = [sealed(1, 100), sealed(2, 100), sealed(3, 3)].concat();
    let lens: Vec<u16> = found(&udp4(&parts)).iter().map(|p| p.2).collect();
    assert_eq!(lens, [100, 100, 3]);
}

#[test]
fn other_frames_have_no_packets() {
    for frame in [
        vec![],
        ethernet(&[0x08]),
        ethernet(&[0x08, 6, 1, 2, 3]),
        ethernet(&[0x08, 0, 0x45]),
        udp4(b""),
        udp4(b"no packet of ours"),
        udp6(b"\x88"),
    ] {
        assert!(decode(&frame, frame.len(), TYPES).is_none(), "{frame:x?}");
    }
}

#[test]
fn a_cut_frame_is_not_malformed() {
    let whole = ethernet(&data(1, &[1; 100]));
    for len in 14..whole.len() {
        let (_, packets) = decode(&whole[..len], whole.len(), TYPES).expect("a packet");
        assert_eq!(
            packets[0].content.as_ref().err(),
            Some(&Problem::Cut),
            "{len}"
        );
        let (_, packets) = decode(&whole[..len], len, TYPES).expect("a packet");
        assert!(
            matches!(packets[0].content, Err(Problem::Malformed(_))),
            "{len}"
        );
    }
}
