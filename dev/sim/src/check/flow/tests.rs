use super::*;
use crate::check::frame::{Forge, Rules};
use crate::net::mac_of;

#[test]
fn positions_unwrap_on_both_sides_of_the_wrap() {
    for about in [1u64, 65_535, 65_536, 1_000_000] {
        for distance in [-30_000i64, -1, 0, 1, 30_000] {
            let position = about as i64 + distance;
            let seq = 777u16.wrapping_add(position as u16);
            assert_eq!(unwrap(seq, 777, about), position);
        }
    }
}

/// Returns two sides of which both, or only the first, offer ECN.
fn sides(both: bool) -> (Side, Side) {
    let set_up = |nonce, ecn| SetUpView {
        max_payload: 1489,
        nonce,
        peer_nonce: 0,
        credit: 100,
        max_ack_delay: 200,
        features: if ecn { ECN } else { 0 },
        key: &[],
    };
    let mut here = Side::new(&set_up(1, true), 0, 1489);
    let mut there = Side::new(&set_up(2, both), 0, 1489);
    here.link(2, 100, 1489, both);
    there.link(1, 100, 1489, true);
    (here, there)
}

/// Checks a frame of the first side after the second has sent two packets, the second of them
/// marked.
fn judge(both: bool, flags: u8, payload: &[u8], tail: &[u8]) -> Result<(), String> {
    let (mut here, there) = sides(both);
    let rules = Rules {
        esp: 0x88b5,
        edp: 0x88b6,
        mtu: 1500,
        is_udp: false,
    };
    for (seq, ce) in [(1, false), (2, true)] {
        let data = Forge {
            seq,
            ack: 1,
            payload: vec![7; 40],
            ..Forge::new(mac_of(1), 2000, mac_of(0), 1000, ACK)
        }
        .bytes();
        here.receives(&View::of(&data, &rules).expect("sound"), 0, ce);
    }
    let frame = Forge {
        seq: 1,
        ack: 3,
        payload: payload.to_vec(),
        tail: tail.to_vec(),
        ..Forge::new(mac_of(0), 1000, mac_of(1), 2000, flags)
    }
    .bytes();
    here.sends(&View::of(&frame, &rules).expect("sound"), &there, 1024)
}

#[test]
fn each_fault_of_a_count_is_named() {
    let fault = |verdict: Result<(), String>, rule: &str| {
        let text = verdict.expect_err(rule);
        assert!(text.starts_with(rule), "{text} is not {rule}");
    };
    let one = [4, 8, 0, 1];
    assert_eq!(judge(true, ACK | EXT, &[], &one), Ok(()));
    assert_eq!(judge(true, ACK, &[7; 40], &[]), Ok(()));
    assert_eq!(judge(false, ACK | EXT, &[], &[2, 0]), Ok(()));
    fault(judge(true, ACK | EXT, &[], &[2, 0]), "W-113");
    fault(judge(true, ACK, &[], &[]), "W-113");
    fault(judge(true, ACK | EXT, &[7; 40], &one), "W-113");
    fault(judge(true, ACK | EXT, &[], &[4, 8, 0, 2]), "W-112");
    fault(judge(true, ACK | EXT, &[], &[4, 8, 0, 0]), "W-112");
    fault(judge(false, ACK | EXT, &[], &one), "W-114");
}

#[test]
fn fingerprints_differ_by_length_and_bytes() {
    assert_ne!(fingerprint(&[0; 8]), fingerprint(&[0; 9]));
    assert_ne!(fingerprint(&[0; 8]), fingerprint(&[0, 0, 0, 0, 0, 0, 0, 1]));
    assert_eq!(fingerprint(b"same"), fingerprint(b"same"));
}
