//! Tests with packets that no sender would send: they cause no error in the dissector's own code.

use std::fs;

use super::vectors::rows;
use super::{Capture, Record, UDP_PORT, ethernet, has_tshark, padded, tshark, tshark_within, udp};

/// Wireshark's text for an error of a Lua script.
const LUA_ERROR: &str = "Lua Error";

/// Limit on the address space of a tshark that must use little memory, in bytes. Half of it is for
/// libraries.
const LIMIT: u64 = 600 << 20;

/// Reproducible random numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).expect("below 256")
    }
}

/// Returns packets that are cut, changed, joined, or random.
fn packets() -> Vec<Vec<u8>> {
    let mut dice = Dice(4711);
    let all: Vec<Vec<u8>> = ["V-", "D-", "S-"]
        .iter()
        .flat_map(|prefix| rows(prefix))
        .map(|row| row.bytes)
        .collect();
    let mut packets = Vec::new();
    for bytes in &all {
        packets.extend((2..bytes.len()).map(|len| bytes[..len].to_vec()));
        for _ in 0..20 {
            let mut changed = padded(bytes);
            for _ in 0..=dice.below(4) {
                let at = 2 + dice.below(changed.len() - 2);
                changed[at] = dice.byte();
            }
            packets.push(changed);
        }
    }
    for _ in 0..2000 {
        let mut random: Vec<u8> = (0..dice.below(150)).map(|_| dice.byte()).collect();
        random.splice(0..0, [0x88, [0xb5, 0xb6][dice.below(2)]]);
        packets.push(random);
    }
    for _ in 0..100 {
        let parts = (0..5).map(|_| all[dice.below(all.len())].clone());
        packets.push(parts.collect::<Vec<_>>().concat());
    }
    packets
}

#[test]
fn no_packet_makes_the_dissector_fail() {
    if !has_tshark("no_packet_makes_the_dissector_fail") {
        return;
    }
    let packets = packets();
    let raw = packets.iter().map(|bytes| ethernet(bytes, false));
    let datagrams = packets
        .iter()
        .map(|bytes| udp(bytes, (UDP_PORT, UDP_PORT), false));
    let records: Vec<Record> = raw.chain(datagrams).map(|b| Record::new(0, b)).collect();
    let text = tshark(&Capture::of(&records), &[], &["-V"]);
    assert!(!text.contains(LUA_ERROR), "{}", around(&text));
    let seen = text
        .lines()
        .filter(|line| line.starts_with("Frame "))
        .count();
    assert_eq!(seen, records.len());
    assert!(text.contains("W-43"), "malformed packets were seen");
}

#[test]
fn captures_that_cut_packets_do_not_make_the_dissector_fail() {
    if !has_tshark("captures_that_cut_packets") {
        return;
    }
    let mut records = Vec::new();
    for row in rows("V-") {
        let udp = udp(&padded(&row.bytes), (UDP_PORT, UDP_PORT), false);
        for whole in [ethernet(&row.bytes, false), udp] {
            records.extend((14..whole.len()).map(|len| Record {
                time: 0,
                bytes: whole[..len].to_vec(),
                len: whole.len(),
            }));
        }
    }
    let text = tshark(&Capture::of(&records), &[], &["-V"]);
    assert!(!text.contains(LUA_ERROR), "{}", around(&text));
    // The packets are valid: only the capture lacks bytes.
    assert!(!text.contains("[Malformed]"), "a cut packet was blamed");
    assert!(text.contains("The capture lacks bytes"));
}

/// In this capture, each packet of a connection opens a gap, and none is acknowledged. Each gap is
/// as wide as the range that is remembered, so only the last one may be remembered.
#[test]
fn gaps_without_end_take_no_memory_without_end() {
    if !has_tshark("gaps_without_end_take_no_memory_without_end") {
        return;
    }
    const GAP: u16 = 8192;
    let packet = |number: u16| {
        let words = [0x88b5, 5000, 40000, number.wrapping_mul(GAP), 0, 1];
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
        bytes.extend([0x02, 0x5a]); // data
        Record::new(u32::from(number), ethernet(&bytes, false))
    };
    let records: Vec<Record> = (0..3000).map(packet).collect();
    let args = ["-T", "fields", "-e", "espe.stream"];
    let text = tshark_within(LIMIT, &Capture::of(&records), &args);
    assert_eq!(text.lines().count(), records.len());
    assert!(text.lines().all(|line| line == "0"), "one connection");
}

/// The tests above detect errors: this script has one.
#[test]
fn an_error_of_a_script_is_seen() {
    if !has_tshark("an_error_of_a_script_is_seen") {
        return;
    }
    let name = format!("esp-wireshark-broken-{}.lua", std::process::id());
    let script = std::env::temp_dir().join(name);
    let text = "local p = Proto(\"broken\", \"Broken\")\n\
                function p.dissector(tvb) local beyond = tvb(0, tvb:len() + 1) end\n\
                register_postdissector(p)\n";
    fs::write(&script, text).expect("write a script");
    let capture = Capture::of(&[Record::new(0, ethernet(&[0x88, 0xb5, 1, 2], false))]);
    let text = tshark(&capture, &[&script], &["-V"]);
    let _ = fs::remove_file(&script);
    assert!(text.contains(LUA_ERROR), "{text}");
}

/// Returns the first error with the lines before it.
fn around(text: &str) -> &str {
    let at = text.find(LUA_ERROR).unwrap_or(0);
    let from = text[..at].rfind("\nFrame ").unwrap_or(0);
    let to = (at + 300).min(text.len());
    text.get(from..to).unwrap_or(text)
}
