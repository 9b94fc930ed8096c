//! Tests of every test vector of `docs/wire-format.md`, over raw Ethernet and in UDP.

use std::collections::BTreeMap;

use super::{Capture, Record, UDP_PORT, ethernet, fields, has_tshark, padded, udp};

/// Fields of a vector and their values.
type Meaning = &'static [(&'static str, &'static str)];

/// Vectors whose frames are valid; a receiver drops them only because of its state, or they are not
/// for it.
const NOT_MALFORMED: [&str; 4] = ["D-17", "D-18", "D-22", "D-44"];

#[rustfmt::skip]
const MEANINGS: &[(&str, Meaning)] = &[
    ("V-01", &[("espe.srcport", "5000"), ("espe.dstport", "1000"), ("espe.seq_raw", "65535"),
        ("espe.len", "34"), ("espe.flags", "0x01"), ("espe.kind", "syn"), ("espe.setup.version", "1"),
        ("espe.setup.max_payload", "1489"), ("espe.setup.features", "0x00000000"),
        ("espe.setup.nonce", "0x0102030405060708"), ("espe.setup.peer_nonce", "0x0000000000000000"),
        ("espe.setup.credit", "176"), ("espe.setup.max_ack_delay", "200"),
        ("espe.setup.key_len", "6"), ("espe.setup.key", "6a6f622d3137")]),
    ("V-02", &[("espe.srcport", "1000"), ("espe.seq_raw", "4660"), ("espe.ack_raw", "0"),
        ("espe.kind", "synack"), ("espe.setup.nonce", "0x1112131415161718"),
        ("espe.setup.peer_nonce", "0x0102030405060708"), ("espe.setup.credit", "0")]),
    ("V-03", &[("espe.kind", "ack"), ("espe.flags", "0x12"), ("espe.ack_raw", "4661"),
        ("espe.ext.len", "4"), ("espe.ext.fields", "0x01"), ("espe.ext.credit_raw", "4837")]),
    ("V-04", &[("espe.kind", "data"), ("espe.seq_raw", "0"), ("espe.len", "5"),
        ("espe.payload", "68656c6c6f")]),
    ("V-05", &[("espe.kind", "data"), ("espe.payload", "68656c6c6f"),
        ("espe.ext.credit_raw", "4837")]),
    ("V-06", &[("espe.ext.credit_raw", "176"), ("espe.ext.sack", "0d80"),
        ("espe.ext.sack.count", "4"),
        ("espe.ext.sack.range", "1 (raw),3-4 (raw),16 (raw)")]),
    ("V-07", &[("espe.kind", "probe"), ("espe.seq_raw", "7"), ("espe.len", "8"),
        ("espe.filler", "0000000000000000")]),
    ("V-08", &[("espe.kind", "ack"), ("espe.ack_raw", "7"), ("espe.ext.credit_raw", "183"),
        ("espe.ext.probed", "8")]),
    ("V-09", &[("espe.kind", "fin"), ("espe.seq_raw", "7")]),
    ("V-10", &[("espe.kind", "rst"), ("espe.reset.reason", "1"), ("espe.reset.detail", "0"),
        ("espe.reset.nonce", "0x0102030405060708")]),
    ("V-11", &[("espe.flags", "0x08"), ("espe.reset.reason", "2"), ("espe.reset.detail", "1"),
        ("espe.reset.nonce", "0x0000000000000000")]),
    ("V-12", &[("edpe.srcport", "40000"), ("edpe.dstport", "7"), ("edpe.seq", "1"),
        ("edpe.len", "5"), ("edpe.flags", "0x00"), ("edpe.payload", "68656c6c6f")]),
    ("V-13", &[("edpe.control", "1"), ("edpe.seq", "2"), ("edpe.echo", "70696e67")]),
    ("V-14", &[("edpe.control", "2"), ("edpe.dstport", "40000"), ("edpe.echo", "70696e67")]),
    ("V-15", &[("edpe.control", "3"), ("edpe.seq", "3"), ("edpe.flags", "0x01")]),
    ("V-16", &[("edpe.control", "4"), ("edpe.info.version", "1"),
        ("edpe.info.max_payload", "8989"), ("edpe.info.features", "0x00000000"),
        ("edpe.info.incarnation", "0x0000000000c0ffee"), ("edpe.info.name", "n07")]),
    ("V-17", &[("espe.kind", "data"), ("espe.flags", "0x42"), ("espe.payload", "68656c6c6f")]),
    ("V-18", &[("edpe.control", "5"), ("edpe.srcport", "5000"), ("edpe.query.port", "1000")]),
    ("V-40", &[("espe.setup.features", "0x00000001"), ("espe.setup.addresses", "1"),
        ("espe.setup.address", "02:00:00:00:01:0a"), ("espe.setup.key", "6a6f622d3137")]),
    ("V-41", &[("espe.kind", "move"), ("espe.move.step", "1"), ("espe.move.flags", "0x00"),
        ("espe.move.max_payload", "1489"), ("espe.move.epoch", "2"),
        ("espe.move.nonce", "0x1112131415161718"),
        ("espe.move.sender_nonce", "0x0102030405060708"), ("espe.move.received", "5"),
        ("espe.move.credit", "0")]),
    ("V-42", &[("espe.move.step", "3"), ("espe.move.flags", "0x01"), ("espe.seq_raw", "7"),
        ("espe.move.credit", "176")]),
    ("V-43", &[("espe.move.step", "4"), ("espe.move.max_payload", "8989"),
        ("espe.seq_raw", "4661"), ("espe.move.received", "5"), ("espe.move.credit", "16")]),
    ("V-44", &[("espe.move.step", "5"), ("espe.move.epoch", "2")]),
    ("V-45", &[("espe.setup.features", "0x00000002"), ("espe.setup.credit", "176")]),
    ("V-46", &[("espe.ext.ce", "3"), ("espe.ext.credit_raw", "176"), ("espe.ext.sack", "0d80")]),
    ("V-47", &[("espe.ext.ce", "65535"), ("espe.ext.probed", "8")]),
    ("V-48", &[("espe.setup.features", "0x00000004"), ("espe.setup.credit", "176")]),
    ("V-49", &[("espe.move.step", "3"), ("espe.move.flags", "0x02"), ("espe.seq_raw", "7"),
        ("espe.move.received", "5"), ("espe.move.credit", "176")]),
    ("V-50", &[("espe.setup.features", "0x00000008"),
        ("espe.setup.peer_nonce", "0x0000000000000000")]),
    ("V-51", &[("espe.kind", "rst"), ("espe.reset.reason", "11"),
        ("espe.reset.nonce", "0x0102030405060708"), ("espe.reset.cookie", "0x2122232425262728")]),
    ("V-52", &[("espe.setup.features", "0x00000008"),
        ("espe.setup.peer_nonce", "0x2122232425262728")]),
    ("V-19", &[("edpe.control", "6"), ("edpe.query.port", "1000"), ("edpe.query.state", "1")]),
];

/// A row of the page's sections 14 and 15.
pub(super) struct Row {
    pub(super) id: String,
    /// Its description, or the error.
    pub(super) text: String,
    pub(super) bytes: Vec<u8>,
}

/// Reads the vectors whose ID begins with `prefix`.
pub(super) fn rows(prefix: &str) -> Vec<Row> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/wire-format.md");
    let page = std::fs::read_to_string(path).expect("docs/wire-format.md");
    let parse = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let hex: Vec<u8> = cells
            .last()?
            .bytes()
            .filter(u8::is_ascii_hexdigit)
            .collect();
        let byte = |pair: &[u8]| {
            let text = std::str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(text, 16).expect("hexadecimal")
        };
        Some(Row {
            id: cells[0].into(),
            text: cells[1].into(),
            bytes: hex.chunks(2).map(byte).collect(),
        })
    };
    let rows: Vec<Row> = page
        .lines()
        .filter(|line| line.starts_with(&format!("| {prefix}")))
        .filter_map(parse)
        .collect();
    assert!(rows.len() >= 7, "the page has vectors: {}", rows.len());
    rows
}

/// Creates a capture of packets over raw Ethernet, or else in UDP.
fn capture<'a>(packets: impl Iterator<Item = &'a Row>, raw: bool) -> Capture {
    let frame = |row: &Row| match raw {
        true => ethernet(&row.bytes, false),
        false => udp(&padded(&row.bytes), (UDP_PORT, UDP_PORT), false),
    };
    let records: Vec<Record> = packets.map(|row| Record::new(0, frame(row))).collect();
    Capture::of(&records)
}

#[test]
fn every_vector_is_decoded_to_its_meaning_over_both_carriers() {
    if !has_tshark("every_vector_is_decoded") {
        return;
    }
    let rows = rows("V-");
    let meanings: BTreeMap<&str, Meaning> = MEANINGS.iter().copied().collect();
    let names: Vec<&str> = {
        let all = MEANINGS.iter().flat_map(|(_, meaning)| meaning.iter());
        let mut names: Vec<&str> = all.map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        names.extend(["espe.malformed", "edpe.malformed", "_ws.expert.message"]);
        names
    };
    for raw in [true, false] {
        let decoded = fields(&capture(rows.iter(), raw), &names, &[]);
        assert_eq!(decoded.len(), rows.len());
        for (row, values) in rows.iter().zip(decoded) {
            let meaning = meanings
                .get(row.id.as_str())
                .unwrap_or_else(|| panic!("{} has no meaning here", row.id));
            let found: BTreeMap<&str, String> = names.iter().copied().zip(values).collect();
            for (name, value) in *meaning {
                assert_eq!(found[name], *value, "{} {name}, raw: {raw}", row.id);
            }
            for malformed in ["espe.malformed", "edpe.malformed"] {
                assert_eq!(found[malformed], "", "{}: {found:?}", row.id);
            }
        }
    }
    let known: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    for id in meanings.keys() {
        assert!(known.contains(id), "the page lacks {id}");
    }
}

#[test]
fn protected_packets_are_recognized_and_not_read() {
    if !has_tshark("protected_packets_are_recognized") {
        return;
    }
    let rows = rows("S-");
    let parts = ["session", "counter", "step", "suite", "key"];
    let names: Vec<String> = ["espe", "edpe"]
        .iter()
        .flat_map(|proto| parts.map(|part| format!("{proto}.sec.{part}")))
        .collect();
    let others = ["espe.payload", "edpe.payload", "_ws.expert.message"];
    let names: Vec<&str> = names.iter().map(String::as_str).chain(others).collect();
    for raw in [true, false] {
        let decoded = fields(&capture(rows.iter(), raw), &names, &[]);
        let found = decoded
            .iter()
            .map(|values| values.join(" ").trim().to_owned());
        let found: Vec<String> = found.collect();
        let hello = |suite, key| format!("0x00000000  1 0x0{suite} {key}");
        let accept = |suite, key| format!("0x00000000  2 0x0{suite} {key}");
        let session = |suite, key, id| {
            let data = format!("{id} 0");
            [hello(suite, key), accept(suite, key), data]
        };
        let group = |key| format!("0x00000001 0   {key}");
        let (secret, public) = ("60a1a3d6", "a1255d3c");
        let expected = [
            &session(1, secret, "0x9033faca")[..],
            &session(0, secret, "0x9033faca"),
            &[group(secret)],
            &session(4, public, "0xf863c3bf"),
            &[group(public)],
        ]
        .concat();
        assert_eq!(found, expected, "raw: {raw}");
    }
}

#[test]
fn malformed_packets_are_marked_with_the_rule_that_they_break() {
    if !has_tshark("malformed_packets_are_marked") {
        return;
    }
    let rows = rows("D-");
    let names = ["espe.malformed", "edpe.malformed", "_ws.expert.message"];
    let decoded = fields(&capture(rows.iter(), true), &names, &[]);
    assert_eq!(decoded.len(), rows.len());
    for (row, values) in rows.iter().zip(decoded) {
        let marked = !values[0].is_empty() || !values[1].is_empty();
        assert_eq!(
            marked,
            !NOT_MALFORMED.contains(&row.id.as_str()),
            "{}: {values:?}",
            row.id
        );
        if !marked {
            continue;
        }
        // The text ends with the rule, such as `(W-43)`. A move with EXT breaks two rules.
        let rule = row
            .text
            .rsplit_once('(')
            .map_or("", |(_, rule)| rule.trim_end_matches(')'));
        let rule = if row.id == "D-48" { "W-11" } else { rule };
        assert!(rule.starts_with("W-"), "{}: {}", row.id, row.text);
        assert!(
            values[2].contains(&format!("{rule}:")),
            "{} breaks {rule}, not {:?}",
            row.id,
            values[2]
        );
    }
}

#[test]
fn short_datagrams_are_malformed() {
    if !has_tshark("short_datagrams_are_malformed") {
        return;
    }
    let sound = rows("V-").remove(3).bytes;
    let record = |bytes: &[u8]| Record::new(0, udp(bytes, (UDP_PORT, UDP_PORT), false));
    let records = [record(&sound), record(&padded(&sound))];
    let found = fields(&Capture::of(&records), &["_ws.expert.message"], &[]);
    assert!(found[0][0].contains("W-120"), "{found:?}");
    assert!(!found[1][0].contains("W-120"), "{found:?}");
}

#[test]
fn types_and_ports_are_preferences() {
    if !has_tshark("types_and_ports_are_preferences") {
        return;
    }
    let sound = padded(&rows("V-").remove(3).bytes);
    let mut other = ethernet(&sound, false);
    other[12..14].copy_from_slice(&0x88f0u16.to_be_bytes());
    let records = [
        Record::new(0, udp(&sound, (4000, 4000), false)),
        Record::new(0, other),
        Record::new(0, ethernet(&sound, false)),
    ];
    let capture = Capture::of(&records);
    let decoded = |options: &[&str]| -> Vec<bool> {
        let found = fields(&capture, &["frame.number", "espe.len"], options);
        found.iter().map(|row| row[1] == "5").collect()
    };
    assert_eq!(decoded(&[]), [true, false, true], "any UDP port");
    let quiet = "espe.any_port:FALSE";
    assert_eq!(decoded(&["-o", quiet]), [false, false, true]);
    let port = "espe.udp_ports:4000-4010";
    assert_eq!(decoded(&["-o", quiet, "-o", port]), [true, false, true]);
    let ethertype = format!("espe.esp_type:{}", 0x88f0);
    let options = ["-o", &ethertype, "-o", quiet, "-o", port];
    assert_eq!(decoded(&options), [false, true, false]);
}
