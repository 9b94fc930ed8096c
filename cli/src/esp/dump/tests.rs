use super::*;

const TYPES: Types = Types {
    esp: 0x88b5,
    edp: 0x88b6,
};

/// Returns a frame from one station to the other with this packet, given in hexadecimal.
fn frame(back: bool, hex: &str) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if back {
        frame.swap(5, 11);
    }
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(text, 16).expect("hexadecimal")
    };
    frame.extend(digits.chunks(2).map(byte));
    frame
}

fn style(verbose: bool) -> Style {
    Style {
        names: Names::default(),
        ethernet: false,
        verbose,
        times: 1,
    }
}

/// Returns the lines of these frames, with the addresses shortened.
fn lines(frames: &[Vec<u8>], verbose: bool) -> Vec<String> {
    let (style, mut streams) = (style(verbose), Streams::default());
    let line = |frame: &Vec<u8>| {
        let (link, packets) = decode(frame, frame.len(), TYPES).expect("a packet");
        let numbers = streams.follow(&packets[0]);
        style
            .packet(&link, frame.len(), &packets[0], numbers)
            .replace("02:00:00:00:00:01", "A")
            .replace("02:00:00:00:00:02", "B")
    };
    frames.iter().map(line).collect()
}

/// The vectors of the wire format, section 14, as one conversation.
#[test]
fn each_kind_of_packet_has_its_line() {
    let syn = "88b503e8 1388ffff 00000022 01010605 d1000000 02010203 04050607 08000000 00000000 \
               0000b000 c86a6f62 2d3137";
    let syn_ack = "88b51388 03e81234 00000022 03010605 d1000000 00111213 14151617 18010203 \
                   04050607 08000000 c86a6f62 2d3137";
    let go = "88b503e8 13880007 00000022 21030105 d1000000 02111213 14151617 18010203 04050607 \
              08000000 00000000 0500b0";
    let frames = [
        (false, syn),
        (true, syn_ack),
        (false, "88b503e8 13880000 12350000 12040112 e5"),
        (false, "88b503e8 13880000 12350005 4268656c 6c6f"),
        (true, "88b51388 03e81235 00000000 12080d00 b000030d 80"),
        (false, "88b503e8 13880007 12350008 22000000 00000000 00"),
        (true, "88b51388 03e81235 00070000 12060300 b70008"),
        (false, "88b503e8 13880007 12350000 06"),
        (true, "88b51388 03e80000 0000000a 0a010001 02030405 060708"),
        (false, go),
        (false, "88b503e8 13880000 12350001 0600"),
        (false, "88b60007 9c400001 00000005 0068656c 6c6f"),
        (false, "88b60000 9c400002 00000005 01017069 6e67"),
        (true, "88b69c40 00000002 00000005 01027069 6e67"),
        (false, "88b60000 9c400003 00000001 0103"),
        (
            true,
            "88b69c40 00000003 00000014 01040123 1d000000 00000000 0000c0ff ee031b30 37",
        ),
        (false, "88b60000 13880004 00000003 010503e8"),
        (true, "88b61388 00000004 00000004 010603e8 01"),
    ];
    let frames: Vec<Vec<u8>> = frames.iter().map(|(back, hex)| frame(*back, hex)).collect();
    let wanted = [
        "ESP A.5000 > B.1000: Flags [S], seq 0, credit 176, max 1489, length 34",
        "ESP B.1000 > A.5000: Flags [S.], seq 0, ack 1, credit 0, max 1489, length 34",
        "ESP A.5000 > B.1000: Flags [.], ack 1, credit 176, length 0",
        "ESP A.5000 > B.1000: Flags [A.], seq 1, ack 1, length 5",
        "ESP B.1000 > A.5000: Flags [.], ack 1, credit 176, marks 3, sack {2,4-5,17}, length 0",
        "ESP A.5000 > B.1000: Flags [P.], seq 8, ack 1, length 8",
        "ESP B.1000 > A.5000: Flags [.], ack 8, credit 176, probed 8, length 0",
        "ESP A.5000 > B.1000: Flags [F.], seq 8, ack 1, length 0",
        "ESP B.1000 > A.5000: Flags [R.], reset REFUSED, length 10",
        "ESP A.5000 > B.1000: Flags [SP], move GO epoch 2, length 34",
        "ESP A.5000 > B.1000: Flags [F.], [malformed: a FIN with data (W-13)], length 1",
        "EDP A.40000 > B.7: datagram 1, length 5",
        "EDP A.40000 > B.0: echo request 2, length 5",
        "EDP B.0 > A.40000: echo reply 2, length 5",
        "EDP A.40000 > B.0: info request 3, length 1",
        // The name has a control character.
        "EDP B.0 > A.40000: info reply 3, name \"\\u{1b}07\", max 8989, length 20",
        "EDP A.5000 > B.0: port query 4, port 1000, length 3",
        "EDP B.0 > A.5000: port reply 4, port 1000 held, length 4",
    ];
    assert_eq!(lines(&frames, false), wanted);
    let verbose = lines(&frames, true);
    assert_eq!(
        verbose[0],
        "ESP A.5000 > B.1000: Flags [S], seq 0, credit 176, max 1489, length 34 (type 0x88b5, raw \
         seq 65535, raw ack 0, flags 0x01, nonce 0x0102030405060708, peer nonce \
         0x0000000000000000, features 0x2 ECN, ack delay 200 µs, key 6 bytes, extension 0, \
         padding 0)"
    );
    assert!(verbose[4].ends_with("raw credit edge 176, extension 8, padding 0)"));
    assert!(verbose[9].contains("received 5 bytes and FIN, credit 176"));
}

/// Returns the bytes of a vector of the wire format, section 15.
fn vector(id: &str) -> &'static str {
    let page = include_str!("../../../../docs/wire-format.md");
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| {id} |")));
    let row = row.unwrap_or_else(|| panic!("no vector {id}"));
    row.split('`').nth(1).expect("bytes")
}

#[test]
fn protected_packets_are_named() {
    let frames = [
        frame(false, vector("S-01")),
        frame(true, vector("S-05")),
        frame(false, vector("S-03")),
        frame(false, vector("S-07")),
        frame(false, vector("S-08")),
        // One is too short for a tag, the other has no session.
        frame(false, "88b503e8 13880000 12350000 82"),
        frame(false, &vector("S-03").replace("9033fa ca", "0000000002")),
    ];
    let wanted = [
        "EDP A.0 > B.0: set-up HELLO, encrypt by AES-128-GCM, key 60a1a3d6, length 0",
        "EDP B.0 > A.0: set-up ACCEPT, integrity by AES-128-GCM, key 60a1a3d6, length 0",
        "ESP A.5000 > B.1000: Flags [.], protected, session 0x9033faca, counter 0, length 5",
        "EDP A.40000 > B.0: protected broadcast 0, key 60a1a3d6, length 1",
        "EDP A.0 > B.0: set-up HELLO, checksum by CRC-32C, length 0",
        "ESP A.5000 > B.1000: Flags [?.], [malformed: a reserved flag is set (W-05)], length 0",
    ];
    let found = lines(&frames, false);
    assert_eq!(found[..6], wanted);
    assert!(
        found[6].contains("[malformed: a reserved flag"),
        "{}",
        found[6]
    );
    let verbose = lines(&frames[2..3], true);
    let end = "length 5 (type 0x88b5, raw seq 0, raw ack 4661, flags 0x82)";
    assert!(verbose[0].ends_with(end), "{}", verbose[0]);
}

#[test]
fn the_ethernet_header_is_shown_on_request() {
    let mut style = style(false);
    style.ethernet = true;
    let mut tagged = frame(false, "8100 0005 88b60007 9c400001 00000005 0068656c 6c6f");
    tagged.resize(60, 0);
    let (link, packets) = decode(&tagged, 60, TYPES).expect("a packet");
    let line = style.packet(&link, 60, &packets[0], streams::Relative::default());
    let start = "02:00:00:00:00:01 > 02:00:00:00:00:02, vlan 5, ethertype 0x88b6, length 60: EDP ";
    assert!(line.starts_with(start), "{line}");
}

#[test]
fn times_are_shown_in_four_ways() {
    let time = Duration::new(1_700_000_000, 123_456_789);
    let before = Some(time - Duration::from_micros(50));
    let shown = |times| {
        let mut style = style(false);
        style.times = times;
        style.time(time, before)
    };
    assert_eq!(shown(0), "22:13:20.123456 ");
    assert_eq!(shown(1), "");
    assert_eq!(shown(2), "1700000000.123456 ");
    assert_eq!(shown(3), "0.000050 ");
}

#[test]
fn bytes_are_shown_in_rows_of_16() {
    let bytes: Vec<u8> = (0..19).collect();
    assert_eq!(
        line::hex(&bytes),
        "\n\t0x0000:  0001 0203 0405 0607 0809 0a0b 0c0d 0e0f\n\t0x0010:  1011 12"
    );
}

/// Frames of random bytes, whole and cut, are shown or ignored.
#[test]
fn no_frame_makes_the_dump_panic() {
    let (style, mut streams) = (style(true), Streams::default());
    let mut state = 1u64;
    let mut byte = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    };
    let mut shown = 0;
    for round in 0..20_000 {
        let mut frame: Vec<u8> = (0..round % 200).map(|_| byte()).collect();
        if round % 5 == 0
            && let Some(flags) = frame.get_mut(24)
        {
            *flags |= 0x80;
        }
        let kind = [[0x88, 0xb5], [0x88, 0xb6], [0x08, 0x00], [0x86, 0xdd]][round % 4];
        if let Some(place) = frame.get_mut(12..14) {
            place.copy_from_slice(&kind);
        }
        let len = frame.len() + round % 3;
        if let Some((link, packets)) = decode(&frame, len, TYPES) {
            for packet in &packets {
                let numbers = streams.follow(packet);
                let line = style.packet(&link, len, packet, numbers);
                assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
                shown += 1;
            }
        }
    }
    assert!(shown > 5000, "{shown}");
}
