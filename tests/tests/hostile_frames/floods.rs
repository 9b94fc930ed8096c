//! Many frames at once.

use esp_client::{EspListener, EspStream, MacAddr};
use esp_tests::frames::{ACK, Dice, EDP, Frame, SYN, Tap, drops, setup};
use esp_tests::process::{daemon_pid, private_memory};
use esp_tests::{
    PATIENCE, address, check_pattern, client, counter, lab_or_skip, pair, send_pattern, wait_until,
};
use lab::{LabOptions, Node};

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
            frame = frame.trailing(&dice.bytes(400));
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
