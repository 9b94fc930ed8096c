//! Frames that no conforming station sends: each is dropped, counted by reason, and affects no
//! other.

use std::io::{Read, Write};
use std::time::Duration;

use esp_client::{EdpSocket, EspListener, EspStream, MacAddr};
use esp_tests::frames::{
    ACK, CTL, Dice, EDP, EXT, FIN, Frame, PRB, RST, SYN, Tap, drops, expect_drops, reset, setup,
};
use esp_tests::process::{daemon_pid, ip_in_switch, private_memory};
use esp_tests::{
    PATIENCE, address, check_pattern, client, counter, lab_or_skip, pair, send_pattern, wait_until,
};
use lab::{Lab, LabOptions, Node};

/// A connection of node 0 (the victim) with node 1, and a tap on what node 1 sends.
struct Live {
    left: EspStream,
    right: EspStream,
    ear: Tap,
}

impl Live {
    fn new(lab: &Lab, port: u16) -> Live {
        let ear = Tap::of_cable(lab, 1);
        let (left, right) = pair(lab, 0, 1, port);
        Live { left, right, ear }
    }

    /// Exchanges a byte each way, the victim's last: writing shows its engine that the other byte
    /// was read.
    fn exchange(&self) {
        for (mut from, mut to) in [(&self.right, &self.left), (&self.left, &self.right)] {
            from.write_all(&[9]).expect("write");
            let mut byte = [0];
            to.read_exact(&mut byte).expect("read");
            assert_eq!(byte, [9]);
        }
        wait_until("everything is acknowledged", || {
            self.left.unacknowledged() + self.right.unacknowledged() == 0
        });
    }

    /// Returns the frame that node 1 would send next on this idle connection.
    fn next_of_peer(&mut self, flags: u8) -> Frame {
        while self.ear.hear(Duration::ZERO).is_some() {}
        self.exchange();
        let (from, to) = (self.left.peer_addr().port, self.left.local_addr().port);
        let mut last = None;
        while let Some(frame) = self.ear.hear(Duration::ZERO) {
            if (frame.src_port, frame.dst_port) == (from, to) {
                last = Some(frame);
            }
        }
        let last = last.expect("the peer acknowledged the exchange");
        Frame::new(1, 0, flags)
            .ports(from, to)
            .numbers(last.next_seq(), last.ack)
    }

    /// Asserts that both directions still carry all data to the end.
    fn is_intact(&self) {
        for (from, to, salt) in [(&self.left, &self.right, 11), (&self.right, &self.left, 12)] {
            std::thread::scope(|scope| {
                scope.spawn(|| send_pattern(from, 3 << 20, salt));
                check_pattern(to, 3 << 20, salt);
            });
        }
    }
}

/// Description of a frame, its counter, and the frame.
type Case = (&'static str, &'static str, Vec<u8>);

/// Returns invalid frames of node 2 to node 0, which listens on port 7000 and has datagram port
/// 9000.
fn malformed_esp() -> Vec<Case> {
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
            frame(ACK | EXT).behind(block).bytes(),
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
fn refused() -> Vec<(Case, u8)> {
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
fn datagrams() -> Vec<Case> {
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
            "port nobody has bound",
            "rx_drop_edp_port",
            frame(0).ports(40000, 9001).payload(&[1]).bytes(),
        ),
        (
            "data to the node",
            "rx_drop_edp_port",
            frame(0).ports(40000, 0).payload(&[1]).bytes(),
        ),
        (
            "answer nobody asked for",
            "rx_drop_edp_port",
            frame(CTL).ports(0, 9001).payload(&[2, 1]).bytes(),
        ),
        ("data to everybody", "rx_drop_broadcast", to_all.bytes()),
        ("length beyond the frame", "rx_drop_length", beyond.bytes()),
    ]
}

/// Returns frames with addresses or tags that arrive only from the cable itself, not through a
/// switch.
fn wrong_addresses() -> Vec<Case> {
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
            "link_rx_not_for_us",
            with(|f| f.dst = [0x33, 0x33, 0, 0, 0, 1]),
        ),
        (
            "to another station",
            "link_rx_not_for_us",
            with(|f| f.dst = Node(1).mac()),
        ),
        ("of a VLAN", "link_rx_not_for_us", tagged([0x81, 0, 0, 5])),
        // W-09: treated as untagged.
        (
            "of no VLAN",
            "rx_drop_no_connection",
            tagged([0x81, 0, 0xe0, 0]),
        ),
    ]
}

#[test]
fn each_wrong_frame_is_counted_once_under_its_name() {
    let test = "each_wrong_frame_is_counted_once_under_its_name";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(3)) else {
        return;
    };
    let victim = client(&lab, 0);
    let live = Live::new(&lab, 8000);
    let _listener = EspListener::builder().bind_at(&victim, 7000).unwrap();
    let datagram_port = EdpSocket::builder().bind_at(&victim, 9000).unwrap();
    let (mut stranger, cable) = (Tap::of_node(&lab, 2), Tap::of_cable(&lab, 0));

    for (what, name, bytes) in malformed_esp().into_iter().chain(datagrams()) {
        expect_drops(&victim, name, 1, what, || stranger.send(&bytes));
    }
    // Everything above was dropped silently.
    let answered =
        std::iter::from_fn(|| stranger.hear(Duration::ZERO)).find(|f| f.src == Node(0).mac());
    assert_eq!(answered, None);
    for ((what, name, bytes), reason) in refused() {
        expect_drops(&victim, name, 1, what, || stranger.send(&bytes));
        let answer = stranger.await_frame(what, |f| f.src == Node(0).mac());
        assert_eq!(
            (answer.flags & RST, answer.rest.first()),
            (RST, Some(&reason)),
            "{what}"
        );
    }
    // W-59: a reset is never answered.
    let end = Frame::new(2, 0, RST)
        .ports(40000, 7000)
        .payload(&reset(4, 1));
    expect_drops(
        &victim,
        "rx_drop_no_connection",
        1,
        "reset of nothing",
        || stranger.send(&end.bytes()),
    );
    for (what, name, bytes) in wrong_addresses() {
        expect_drops(&victim, name, 1, what, || cable.send(&bytes));
    }

    // Frames of other EtherTypes do not reach the daemon.
    let received = counter(&victim, "rx_frames");
    let frame = Frame::new(2, 0, ACK).ports(40000, 7000);
    for packet_type in [46, 0x0800, 0x86dd, 0x88b4, 0x88b7, 0xffff] {
        cable.send(
            &frame
                .clone()
                .packet_type(packet_type)
                .behind(&[0; 40])
                .bytes(),
        );
    }
    expect_drops(
        &victim,
        "rx_drop_no_connection",
        1,
        "the frame behind them",
        || cable.send(&frame.bytes()),
    );
    assert_eq!(counter(&victim, "rx_frames"), received + 1);

    // W-04: padding may be anything.
    let padded = Frame::new(2, 0, 0)
        .packet_type(EDP)
        .ports(40000, 9000)
        .payload(b"taken")
        .behind(&[0xee; 40]);
    stranger.send(&padded.bytes());
    let mut buffer = [0; 100];
    let (len, info) = datagram_port
        .recv_from_timeout(&mut buffer, PATIENCE)
        .unwrap();
    assert_eq!(
        (&buffer[..len], info.src, info.len),
        (&b"taken"[..], MacAddr(Node(2).mac()).into(), 5)
    );
    live.is_intact();
}

#[test]
fn frames_cut_off_at_every_length_and_frames_too_long() {
    let test = "frames_cut_off_at_every_length_and_frames_too_long";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(3)) else {
        return;
    };
    let victim = client(&lab, 0);
    let mut live = Live::new(&lab, 8000);
    // The frame that the peer would send next; unaltered, it would be accepted.
    let whole = live.next_of_peer(ACK).payload(&[3; 1489]).bytes();
    let cable = Tap::of_cable(&lab, 0);
    assert_eq!(whole.len(), 1514);
    expect_drops(&victim, "rx_drop_runt", 11, "inside the header", || {
        (14..25).for_each(|len| cable.send(&whole[..len]));
    });
    expect_drops(
        &victim,
        "rx_drop_length",
        1489,
        "inside the payload",
        || {
            (25..1514).for_each(|len| cable.send(&whole[..len]));
        },
    );
    let datagram = Frame::new(2, 0, CTL)
        .packet_type(EDP)
        .payload(&[1; 200])
        .bytes();
    expect_drops(&victim, "rx_drop_length", 200, "a datagram", || {
        (25..225).for_each(|len| cable.send(&datagram[..len]));
    });

    // The switch's port now sends more than the node's MTU. The kernel accepts four more bytes, for
    // a VLAN tag; longer frames do not reach the daemon.
    ip_in_switch(&lab, "link set dev port0 mtu 9000");
    for len in [1494, 1495, 4000, 8989] {
        // Some kernels report the drop, some do not.
        let _ = cable.offer(&live.next_of_peer(ACK).payload(&vec![6; len]).bytes());
    }
    let longest = live.next_of_peer(ACK).payload(&[6; 1493]).bytes();
    expect_drops(
        &victim,
        "rx_drop_too_long",
        1,
        "four bytes too long",
        || cable.send(&longest),
    );
    assert_eq!(counter(&victim, "rx_drop_too_long"), 1);
    live.is_intact();
}

#[test]
fn forged_frames_of_the_peer_do_not_touch_the_connection() {
    let test = "forged_frames_of_the_peer_do_not_touch_the_connection";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(3)) else {
        return;
    };
    let victim = client(&lab, 0);
    let mut live = Live::new(&lab, 8000);
    // Sent by the peer's own station beside its daemon, so that all addresses are right.
    let peer = Tap::of_node(&lab, 1);
    let mut forge = |what: &str, name: &str, change: &dyn Fn(Frame) -> Frame| {
        let frame = change(live.next_of_peer(ACK));
        expect_drops(&victim, name, 1, what, || peer.send(&frame.bytes()));
    };
    let shift = |frame: Frame, seq: u16, ack: u16| {
        let (seq, ack) = (frame.seq.wrapping_add(seq), frame.ack.wrapping_add(ack));
        frame.numbers(seq, ack)
    };
    for ahead in [1, 2, 1000, 4097, 0x7fff] {
        forge(
            "acknowledgement of the future",
            "rx_drop_ack_forged",
            &|f| shift(f, 0, ahead),
        );
        forge("data with it", "rx_drop_ack_forged", &|f| {
            shift(f, 0, ahead).payload(&[6; 500])
        });
    }
    forge(
        "selective acknowledgement",
        "rx_drop_sack_forged",
        &|mut f| {
            f.flags |= EXT;
            f.behind(&[3, 4, 1])
        },
    );
    for ahead in [5000, 0x7fff] {
        forge("data beyond the credit", "rx_drop_beyond_credit", &|f| {
            shift(f, ahead, 0).payload(&[6; 500])
        });
    }
    for back in [1u16, 2, 1000] {
        forge("data of the past", "rx_drop_duplicate", &|f| {
            shift(f, back.wrapping_neg(), 0).payload(&[6; 500])
        });
    }
    let reset_with = |frame: Frame, ahead: u16, nonce: u64| Frame {
        flags: RST | ACK,
        ..shift(frame, ahead, 0).payload(&reset(4, nonce))
    };
    forge("reset with a wrong nonce", "rx_drop_reset_forged", &|f| {
        reset_with(f, 0, 0x1234_5678)
    });
    forge("reset far away", "rx_drop_reset_forged", &|f| {
        reset_with(f, 0x4000, 0)
    });
    forge("short reset block", "rx_drop_reset_block", &|f| Frame {
        flags: RST,
        ..f.payload(&[4, 0, 0])
    });
    let challenges = counter(&victim, "rx_challenges");
    forge("reset close by", "rx_drop_reset_forged", &|f| {
        reset_with(f, 1, 0)
    });
    let syn = |f: Frame, flags, nonce| Frame {
        flags,
        ..f.payload(&setup(nonce, 0, 100, b""))
    };
    forge("SYN of another incarnation", "rx_drop_stale_setup", &|f| {
        syn(f, SYN, 99)
    });
    assert_eq!(
        counter(&victim, "rx_challenges"),
        challenges + 2,
        "the real peer was asked"
    );
    forge(
        "SYN+ACK of another incarnation",
        "rx_drop_stale_setup",
        &|f| syn(f, SYN | ACK, 99),
    );
    // A third station cannot address the connection.
    let stranger = Tap::of_node(&lab, 2);
    let mut frame = live.next_of_peer(ACK).payload(&[6; 500]);
    frame.src = Node(2).mac();
    expect_drops(&victim, "rx_drop_no_connection", 1, "of a third", || {
        stranger.send(&frame.bytes());
    });
    live.is_intact();
}

#[test]
fn data_longer_than_agreed_is_dropped() {
    let mut options = LabOptions::new(2);
    options.wire.mtu = 9000;
    let Some(lab) = lab_or_skip("data_longer_than_agreed_is_dropped", &options) else {
        return;
    };
    let (victim, other) = (client(&lab, 0), client(&lab, 1));
    let ear = Tap::of_cable(&lab, 1);
    let listener = EspListener::builder().bind_at(&other, 8000).unwrap();
    // A receive ring smaller than a frame makes the peer send smaller ones.
    let left = EspStream::builder()
        .rings(4096, 4096)
        .connect_at(&victim, address(1, 8000))
        .unwrap();
    let (right, _) = listener.accept_timeout(PATIENCE).unwrap();
    let mut live = Live { left, right, ear };
    let peer = Tap::of_node(&lab, 1);
    for len in [4097, 8989] {
        let frame = live.next_of_peer(ACK).payload(&vec![6; len]);
        expect_drops(&victim, "rx_drop_too_long", 1, "too long", || {
            peer.send(&frame.bytes());
        });
    }
    live.is_intact();
}

#[test]
fn random_frames_during_transfers() {
    const FRAMES: u64 = 20_000;
    let Some(lab) = lab_or_skip("random_frames_during_transfers", &LabOptions::new(3)) else {
        return;
    };
    let victim = client(&lab, 0);
    let pid = daemon_pid(&lab, 0);
    let mut dice = Dice::new();
    let transfers: Vec<_> = (0..2).map(|i| pair(&lab, i, 1 - i, 8000)).collect();
    let (before, memory) = (drops(&victim), private_memory(pid));
    let lost = counter(&victim, "socket_rx_dropped");
    std::thread::scope(|scope| {
        for (left, right) in &transfers {
            scope.spawn(|| send_pattern(left, 24 << 20, 21));
            scope.spawn(|| check_pattern(right, 24 << 20, 21));
        }
        // From a third station, and from the cable, where even the addresses are random.
        let (stranger, cable) = (Tap::of_node(&lab, 2), Tap::of_cable(&lab, 0));
        for number in 0..FRAMES {
            let mut frame = Frame::parse(&[0; 25]).unwrap();
            let mut header = [0; 13];
            dice.fill(&mut header);
            [frame.dst, frame.src] = [Node(0).mac(), Node(2).mac()];
            let type_and_flags = dice.word();
            frame = frame.packet_type(if type_and_flags & 1 == 0 { 0x88b5 } else { EDP });
            // Ports not used here: a frame that hits a connection by chance is indistinguishable
            // from the peer's.
            frame = frame.ports(
                u16::from_be_bytes([header[0], header[1]]),
                100 + u16::from(header[2]),
            );
            frame = frame.numbers(u16::from_be_bytes([header[3], header[4]]), header[5].into());
            frame.flags =
                (type_and_flags >> 8) as u8 & if type_and_flags & 2 == 0 { 0x3f } else { 0xff };
            frame = frame.behind(&dice.bytes(400));
            frame.len = match dice.below(4) {
                0 => u16::from_be_bytes([header[6], header[7]]),
                _ => u16::try_from(dice.below(frame.rest.len() + 1)).unwrap(),
            };
            if number % 2 == 0 {
                stranger.send(&frame.bytes());
            } else {
                frame.src[5] = header[8];
                frame.src[0] = header[9];
                cable.send(&frame.bytes());
            }
        }
    });
    // Each was counted: as dropped, as answered, or by the kernel when the socket was full.
    wait_until("all frames are counted", || {
        let dropped: u64 = drops(&victim)
            .iter()
            .map(|(name, value)| value - before[name])
            .sum();
        let kernel = counter(&victim, "socket_rx_dropped") - lost;
        dropped + kernel + counter(&victim, "rx_edp_requests") >= FRAMES
    });
    let kinds = drops(&victim)
        .iter()
        .filter(|(name, value)| **value > before[*name])
        .count();
    assert!(kinds > 8, "only {kinds} reasons were met");
    let growth = private_memory(pid).saturating_sub(memory);
    assert!(growth < 64 << 20, "memory has grown by {growth} bytes");
    pair(&lab, 0, 1, 8001);
}

#[test]
fn a_flood_of_forged_syns() {
    const SYNS: u64 = 60_000;
    const BACKLOG: u16 = 16;
    let Some(lab) = lab_or_skip("a_flood_of_forged_syns", &LabOptions::new(2)) else {
        return;
    };
    let victim = client(&lab, 0);
    let pid = daemon_pid(&lab, 0);
    let mut dice = Dice::new();
    let listener = EspListener::builder()
        .backlog(BACKLOG)
        .bind_at(&victim, 7000)
        .unwrap();
    let (left, right) = pair(&lab, 0, 1, 8000);
    let memory = private_memory(pid);
    let before = drops(&victim);
    let flooded = |victim: &esp_client::Client| {
        let dropped: u64 = drops(victim)
            .iter()
            .map(|(name, value)| value - before[name])
            .sum();
        dropped + counter(victim, "half_open_evicted") + counter(victim, "socket_rx_dropped")
    };
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&left, 24 << 20, 31));
        scope.spawn(|| check_pattern(&right, 24 << 20, 31));
        let cable = Tap::of_cable(&lab, 0);
        for number in 0..SYNS {
            let mut syn = Frame::new(1, 0, SYN).ports(dice.word() as u16 | 1, 7000);
            syn = syn
                .numbers(dice.word() as u16, 0)
                .payload(&setup(dice.word() | 1, 0, 64, b""));
            syn.src = [
                2,
                0x99,
                dice.word() as u8,
                dice.word() as u8,
                dice.word() as u8,
                1,
            ];
            cable.send(&syn.bytes());
            if number % 10_000 == 0 {
                let status = victim.status().unwrap();
                let half_open = status
                    .connections
                    .iter()
                    .filter(|c| c.state == "syn-received")
                    .count();
                assert!(
                    half_open <= usize::from(BACKLOG),
                    "{half_open} half-open connections"
                );
            }
        }
    });
    wait_until("the flood is counted", || {
        flooded(&victim) + u64::from(BACKLOG) >= SYNS
    });
    assert!(counter(&victim, "half_open_evicted") > 0);
    let growth = private_memory(pid).saturating_sub(memory);
    assert!(growth < 32 << 20, "memory has grown by {growth} bytes");

    // The listener still works.
    let here = client(&lab, 1);
    let late = EspStream::builder()
        .connect_at(&here, address(0, 7000))
        .unwrap();
    let (accepted, peer) = listener.accept_timeout(PATIENCE).unwrap();
    assert_eq!(peer.addr, MacAddr(Node(1).mac()));
    send_pattern(&late, 1 << 18, 5);
    check_pattern(&accepted, 1 << 18, 5);
}

#[test]
fn resets_to_unknown_stations_are_rate_limited() {
    const FRAMES: u64 = 30_000;
    let Some(lab) = lab_or_skip(
        "resets_to_unknown_stations_are_rate_limited",
        &LabOptions::new(2),
    ) else {
        return;
    };
    let victim = client(&lab, 0);
    let mut dice = Dice::new();
    let cable = Tap::of_cable(&lab, 0);
    let (left, right) = pair(&lab, 0, 1, 8000);
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&left, 8 << 20, 41));
        scope.spawn(|| check_pattern(&right, 8 << 20, 41));
        for _ in 0..FRAMES {
            let mut frame = Frame::new(1, 0, ACK)
                .ports(dice.word() as u16 | 1, 6000)
                .numbers(1, 2);
            frame.src = [
                2,
                0x99,
                dice.word() as u8,
                dice.word() as u8,
                dice.word() as u8,
                1,
            ];
            cable.send(&frame.bytes());
        }
    });
    wait_until("the flood is counted", || {
        counter(&victim, "rx_drop_no_connection") + counter(&victim, "socket_rx_dropped") >= FRAMES
    });
    assert!(counter(&victim, "tx_reset_limited") > 0);
    assert!(counter(&victim, "tx_resets") + counter(&victim, "tx_reset_limited") <= FRAMES);
}
