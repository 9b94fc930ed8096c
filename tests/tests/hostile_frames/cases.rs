//! Invalid frames, each with the counter that it raises.

use esp_tests::frames::{ACK, CTL, EDP, EXT, FIN, Frame, PRB, RST, SYN, setup};
use lab::Node;

/// Description of a frame, its counter, and the frame.
pub(super) type Case = (&'static str, &'static str, Vec<u8>);

/// Returns invalid frames of node 2 to node 0, which listens on port 7000 and has datagram port
/// 9000.
pub(super) fn malformed_esp() -> Vec<Case> {
    let frame = |flags| Frame::new(2, 0, flags).ports(40000, 7000);
    let mut cases = Vec::new();
    for flags in [0x80, 0x80 | ACK, 0xc0 | ACK, 0xff] {
        cases.push((
            "reserved flag",
            "rx_drop_reserved_flag",
            frame(flags).bytes(),
        ));
    }
    for flags in [
        0,
        FIN,
        PRB,
        EXT,
        0x40,
        0x40 | ACK,
        SYN | FIN,
        SYN | RST,
        SYN | EXT,
        RST | ACK | EXT,
        ACK | FIN | PRB,
    ] {
        cases.push((
            "flags that do not go together",
            "rx_drop_flag_combination",
            frame(flags).bytes(),
        ));
    }
    let mut beyond = frame(ACK).payload(&[1; 99]);
    beyond.len = 100;
    cases.push((
        "length one beyond the frame",
        "rx_drop_length",
        beyond.bytes(),
    ));
    beyond.len = u16::MAX;
    cases.push(("largest length", "rx_drop_length", beyond.bytes()));
    cases.push((
        "FIN with data",
        "rx_drop_fin_length",
        frame(ACK | FIN).payload(&[1]).bytes(),
    ));
    cases.push((
        "from port 0",
        "rx_drop_port_zero",
        frame(ACK).ports(0, 7000).bytes(),
    ));
    cases.push((
        "to port 0",
        "rx_drop_port_zero",
        frame(SYN).ports(40000, 0).payload(&[1; 40]).bytes(),
    ));
    let blocks: [&[u8]; 9] = [
        &[],
        &[0, 0],
        &[1, 0],
        &[3, 1, 0],
        &[5, 1, 0, 0, 0],
        &[4, 16, 0, 0],
        &[2, 4],
        &[137, 4],
        &[100, 4, 1, 1, 1],
    ];
    for block in blocks {
        cases.push((
            "extension block",
            "rx_drop_extension",
            // No padding, which would belong to the block, follows in any carrier.
            frame(ACK | EXT).payload(&[1; 40]).trailing(block).bytes(),
        ));
    }
    let good = setup(7, 0, 10, b"");
    let changed = |at: usize, byte: u8| {
        let mut block = good.clone();
        block[at] = byte;
        frame(SYN).payload(&block).bytes()
    };
    cases.push((
        "short set-up block",
        "rx_drop_setup",
        frame(SYN).payload(&good[..27]).bytes(),
    ));
    cases.push(("key beyond the payload", "rx_drop_setup", changed(1, 1)));
    cases.push((
        "key too long",
        "rx_drop_setup",
        frame(SYN).payload(&setup(7, 0, 1, &[1; 33])).bytes(),
    ));
    cases.push(("nonce 0", "rx_drop_setup", changed(15, 0)));
    let mut small = good.clone();
    small[2..4].copy_from_slice(&63u16.to_be_bytes());
    cases.push((
        "largest payload below 64",
        "rx_drop_setup",
        frame(SYN).payload(&small).bytes(),
    ));
    cases
}

/// Returns frames that are answered with a reset of this reason.
pub(super) fn refused() -> Vec<(Case, u8)> {
    let frame = |flags| Frame::new(2, 0, flags).ports(40000, 7000).numbers(500, 600);
    let good = setup(7, 0, 10, b"");
    let mut other_version = good.clone();
    other_version[0] = 77;
    let key = setup(7, 0, 10, b"secret");
    let closed = frame(SYN).ports(40000, 7001).payload(&good);
    let answer = frame(SYN | ACK).payload(&setup(7, 8, 10, b""));
    vec![
        (
            (
                "another version",
                "rx_drop_version",
                frame(SYN).payload(&other_version).bytes(),
            ),
            2,
        ),
        (
            (
                "another key",
                "rx_drop_key",
                frame(SYN).payload(&key).bytes(),
            ),
            3,
        ),
        (
            ("SYN to a closed port", "rx_drop_refused", closed.bytes()),
            1,
        ),
        (
            (
                "acknowledgement of nothing",
                "rx_drop_no_connection",
                frame(ACK).bytes(),
            ),
            9,
        ),
        (
            (
                "data for nobody",
                "rx_drop_no_connection",
                frame(ACK).payload(&[1; 1000]).bytes(),
            ),
            9,
        ),
        (
            (
                "FIN for nobody",
                "rx_drop_no_connection",
                frame(ACK | FIN).bytes(),
            ),
            9,
        ),
        (
            (
                "probe for nobody",
                "rx_drop_no_connection",
                frame(ACK | PRB).bytes(),
            ),
            9,
        ),
        (
            (
                "SYN+ACK for nobody",
                "rx_drop_no_connection",
                answer.bytes(),
            ),
            9,
        ),
    ]
}

/// Returns datagrams of node 2 that node 0 drops without an answer.
pub(super) fn datagrams() -> Vec<Case> {
    let frame = |flags| Frame::new(2, 0, flags).packet_type(EDP).ports(40000, 9000);
    let mut to_all = frame(0).payload(&[1]);
    to_all.dst = [0xff; 6];
    let mut beyond = frame(0).payload(&[1; 50]);
    beyond.len = 51;
    vec![
        (
            "unknown control type",
            "rx_drop_control",
            frame(CTL).payload(&[99]).bytes(),
        ),
        (
            "control type 0",
            "rx_drop_control",
            frame(CTL).payload(&[0]).bytes(),
        ),
        (
            "control without a type",
            "rx_drop_control",
            frame(CTL).bytes(),
        ),
        (
            "information request with a body",
            "rx_drop_control",
            frame(CTL).payload(&[3, 1]).bytes(),
        ),
        (
            "reserved flag",
            "rx_drop_reserved_flag",
            frame(2).payload(&[1]).bytes(),
        ),
        (
            "port that is not bound",
            "rx_drop_edp_port",
            frame(0).ports(40000, 9001).payload(&[1]).bytes(),
        ),
        (
            "data to the node",
            "rx_drop_edp_port",
            frame(0).ports(40000, 0).payload(&[1]).bytes(),
        ),
        (
            "unsolicited answer",
            "rx_drop_edp_port",
            frame(CTL).ports(0, 9001).payload(&[2, 1]).bytes(),
        ),
        ("data to everybody", "rx_drop_broadcast", to_all.bytes()),
        ("length beyond the frame", "rx_drop_length", beyond.bytes()),
    ]
}

/// Returns frames with addresses or tags that arrive only from the cable itself, not through a
/// switch.
pub(super) fn wrong_addresses() -> Vec<Case> {
    let frame = Frame::new(2, 0, ACK).ports(40000, 7000);
    let with = |change: fn(&mut Frame)| {
        let mut frame = frame.clone();
        change(&mut frame);
        frame.bytes()
    };
    let tagged = |tag: [u8; 4]| {
        let mut bytes = frame.bytes();
        bytes.splice(12..12, tag);
        bytes
    };
    vec![
        (
            "our own frame",
            "rx_drop_echo",
            with(|f| f.src = Node(0).mac()),
        ),
        (
            "from everybody",
            "rx_drop_source_group",
            with(|f| f.src = [0xff; 6]),
        ),
        (
            "from a group",
            "rx_drop_source_group",
            with(|f| f.src = [0x33, 0x33, 0, 0, 0, 1]),
        ),
        (
            "to everybody",
            "rx_drop_destination",
            with(|f| f.dst = [0xff; 6]),
        ),
        (
            "to a group",
            "link_rx_foreign",
            with(|f| f.dst = [0x33, 0x33, 0, 0, 0, 1]),
        ),
        (
            "to another station",
            "link_rx_foreign",
            with(|f| f.dst = Node(1).mac()),
        ),
        ("of a VLAN", "link_rx_foreign", tagged([0x81, 0, 0, 5])),
        // W-09: treated as untagged.
        (
            "of no VLAN",
            "rx_drop_no_connection",
            tagged([0x81, 0, 0xe0, 0]),
        ),
    ]
}
