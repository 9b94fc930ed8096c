//! The frozen vectors of `docs/wire-format.md`, section 14, parsed and emitted by this crate.
//!
//! The page is the reference. When this test fails, the code is wrong, unless the format itself was
//! changed deliberately.

use crate::common::*;
use esp_proto::wire::*;
use esp_proto::*;
use std::collections::BTreeMap;

/// Meaning of a vector, written independently of its bytes.
enum Body {
    SetUp(SetUp<'static>),
    Reset(Reset),
    Retry(Retry),
    Bytes(&'static [u8]),
    Control(EdpKind, &'static [u8]),
    Info(InfoReply<'static>),
    Move(Move),
}

struct Meaning {
    header: Header,
    body: Body,
    ext: Option<Ext<'static>>,
}

pub(crate) const ESP: u16 = 0x88b5;
pub(crate) const EDP: u16 = 0x88b6;

fn header(
    packet_type: u16,
    ports: (Port, Port),
    seq: u16,
    ack: u16,
    len: u16,
    flags: u8,
) -> Header {
    let (src_port, dst_port) = ports;
    Header {
        packet_type,
        dst_port,
        src_port,
        seq: Seq(seq),
        ack: Seq(ack),
        len,
        flags,
    }
}

/// Meaning of a control datagram.
fn control(ports: (Port, Port), seq: u16, kind: EdpKind, bytes: &'static [u8]) -> Meaning {
    let len = bytes.len() as u16 + 1;
    Meaning {
        header: header(EDP, ports, seq, 0, len, FLAG_CTL),
        body: Body::Control(kind, bytes),
        ext: None,
    }
}

/// The set-up blocks of V-01 and V-02.
fn set_ups() -> (SetUp<'static>, SetUp<'static>) {
    let syn = SetUp {
        max_payload: 1489,
        features: 0,
        nonce: 0x0102_0304_0506_0708,
        peer_nonce: 0,
        credit: 176,
        max_ack_delay: 200,
        key: b"job-17",
        rails: &[],
    };
    let syn_ack = SetUp {
        nonce: 0x1112_1314_1516_1718,
        peer_nonce: syn.nonce,
        credit: 0,
        ..syn
    };
    (syn, syn_ack)
}

/// Returns the vectors of MOVE frames.
fn moving() -> Vec<(&'static str, Meaning)> {
    let (syn, syn_ack) = set_ups();
    let (a, b) = ((5000, 1000), (1000, 5000));
    let plain = |header, body| Meaning {
        header,
        body,
        ext: None,
    };
    let rail = SetUp {
        features: FEATURE_MOVES,
        rails: &[2, 0, 0, 0, 1, 0xa],
        ..syn
    };
    let resume = SetUp {
        features: FEATURE_RESUME,
        ..syn
    };
    let ask = Move {
        resumed: false,
        step: Step::Ask,
        finished: false,
        max_payload: 1489,
        epoch: 2,
        nonce: syn_ack.nonce,
        sender_nonce: syn.nonce,
        received: 5,
        credit: 0,
    };
    let go = Move {
        step: Step::Go,
        finished: true,
        credit: 176,
        ..ask
    };
    let resumed = Move {
        finished: false,
        resumed: true,
        ..go
    };
    let (nonce, sender_nonce) = (syn.nonce, syn_ack.nonce);
    let done = Move {
        step: Step::Done,
        max_payload: 8989,
        nonce,
        sender_nonce,
        credit: 16,
        ..ask
    };
    let gone = Move {
        step: Step::Gone,
        nonce,
        sender_nonce,
        received: 0,
        ..ask
    };
    let moving = |ports, seq, block| {
        plain(
            header(ESP, ports, seq, 0, 34, FLAG_SYN | FLAG_PRB),
            Body::Move(block),
        )
    };
    vec![
        (
            "V-40",
            plain(header(ESP, a, 65535, 0, 41, FLAG_SYN), Body::SetUp(rail)),
        ),
        ("V-41", moving(a, 0, ask)),
        ("V-42", moving(a, 7, go)),
        ("V-43", moving(b, 4661, done)),
        ("V-44", moving(b, 0, gone)),
        (
            "V-48",
            plain(header(ESP, a, 65535, 0, 34, FLAG_SYN), Body::SetUp(resume)),
        ),
        ("V-49", moving(a, 7, resumed)),
    ]
}

/// Returns the vectors of congestion notification.
fn marks() -> Vec<(&'static str, Meaning)> {
    let (syn, _) = set_ups();
    let answer = |seq, ack, ext| Meaning {
        header: header(ESP, (1000, 5000), seq, ack, 0, FLAG_ACK | FLAG_EXT),
        body: Body::Bytes(b""),
        ext: Some(ext),
    };
    let with_ecn = SetUp {
        features: FEATURE_ECN,
        ..syn
    };
    vec![
        (
            "V-45",
            Meaning {
                header: header(ESP, (5000, 1000), 65535, 0, 34, FLAG_SYN),
                body: Body::SetUp(with_ecn),
                ext: None,
            },
        ),
        (
            "V-46",
            answer(
                4661,
                0,
                Ext {
                    credit: Some(Seq(176)),
                    probed: None,
                    ce: Some(3),
                    sack: &[0b0000_1101, 0b1000_0000],
                },
            ),
        ),
        (
            "V-47",
            answer(
                4661,
                7,
                Ext {
                    credit: Some(Seq(183)),
                    probed: Some(8),
                    ce: Some(65535),
                    sack: &[],
                },
            ),
        ),
    ]
}

/// Returns the vectors of cookies.
fn cookies() -> Vec<(&'static str, Meaning)> {
    let syn = SetUp {
        features: FEATURE_COOKIES,
        ..set_ups().0
    };
    let cookie = 0x2122_2324_2526_2728;
    let plain = |header, body| Meaning {
        header,
        body,
        ext: None,
    };
    let syn_of = |peer_nonce| {
        let body = Body::SetUp(SetUp { peer_nonce, ..syn });
        plain(header(ESP, (5000, 1000), 65535, 0, 34, FLAG_SYN), body)
    };
    let nonce = syn.nonce;
    let retry = plain(
        header(ESP, (1000, 5000), 0, 0, 18, FLAG_RST | FLAG_ACK),
        Body::Retry(Retry { nonce, cookie }),
    );
    vec![
        ("V-50", syn_of(0)),
        ("V-51", retry),
        ("V-52", syn_of(cookie)),
    ]
}

/// Returns the meaning of every vector on the page.
fn meanings() -> BTreeMap<&'static str, Meaning> {
    let a = (5000, 1000);
    let b = (1000, 5000);
    let (syn, syn_ack) = set_ups();
    let plain = |header, body| Meaning {
        header,
        body,
        ext: None,
    };
    let credit = Ext {
        credit: Some(Seq(4837)),
        ..Ext::default()
    };
    let info = InfoReply {
        version: 1,
        max_payload: 8989,
        features: 0,
        incarnation: 0x00c0_ffee,
        name: "n07",
    };
    let mut all = BTreeMap::from([
        (
            "V-01",
            plain(header(ESP, a, 65535, 0, 34, FLAG_SYN), Body::SetUp(syn)),
        ),
        (
            "V-02",
            plain(
                header(ESP, b, 4660, 0, 34, FLAG_SYN | FLAG_ACK),
                Body::SetUp(syn_ack),
            ),
        ),
        (
            "V-03",
            Meaning {
                header: header(ESP, a, 0, 4661, 0, FLAG_ACK | FLAG_EXT),
                body: Body::Bytes(b""),
                ext: Some(credit),
            },
        ),
        (
            "V-17",
            plain(
                header(ESP, a, 0, 4661, 5, FLAG_ACK | FLAG_ASK),
                Body::Bytes(b"hello"),
            ),
        ),
        (
            "V-04",
            plain(header(ESP, a, 0, 4661, 5, FLAG_ACK), Body::Bytes(b"hello")),
        ),
        (
            "V-05",
            Meaning {
                header: header(ESP, a, 0, 4661, 5, FLAG_ACK | FLAG_EXT),
                body: Body::Bytes(b"hello"),
                ext: Some(credit),
            },
        ),
        (
            "V-06",
            Meaning {
                header: header(ESP, b, 4661, 0, 0, FLAG_ACK | FLAG_EXT),
                body: Body::Bytes(b""),
                ext: Some(Ext {
                    credit: Some(Seq(176)),
                    probed: None,
                    ce: None,
                    sack: &[0b0000_1101, 0b1000_0000],
                }),
            },
        ),
        (
            "V-07",
            plain(
                header(ESP, a, 7, 4661, 8, FLAG_ACK | FLAG_PRB),
                Body::Bytes(&[0; 8]),
            ),
        ),
        (
            "V-08",
            Meaning {
                header: header(ESP, b, 4661, 7, 0, FLAG_ACK | FLAG_EXT),
                body: Body::Bytes(b""),
                ext: Some(Ext {
                    credit: Some(Seq(183)),
                    probed: Some(8),
                    ce: None,
                    sack: &[],
                }),
            },
        ),
        (
            "V-09",
            plain(
                header(ESP, a, 7, 4661, 0, FLAG_ACK | FLAG_FIN),
                Body::Bytes(b""),
            ),
        ),
        (
            "V-10",
            plain(
                header(ESP, b, 0, 0, 10, FLAG_RST | FLAG_ACK),
                Body::Reset(Reset {
                    reason: ResetReason::Refused,
                    nonce: syn.nonce,
                }),
            ),
        ),
        (
            "V-11",
            plain(
                header(ESP, b, 0, 0, 10, FLAG_RST),
                Body::Reset(Reset {
                    reason: ResetReason::Version(1),
                    nonce: 0,
                }),
            ),
        ),
        (
            "V-12",
            plain(header(EDP, (40000, 7), 1, 0, 5, 0), Body::Bytes(b"hello")),
        ),
        (
            "V-13",
            plain(
                header(EDP, (40000, 0), 2, 0, 5, FLAG_CTL),
                Body::Control(EdpKind::EchoRequest, b"ping"),
            ),
        ),
        (
            "V-14",
            plain(
                header(EDP, (0, 40000), 2, 0, 5, FLAG_CTL),
                Body::Control(EdpKind::EchoReply, b"ping"),
            ),
        ),
        (
            "V-15",
            plain(
                header(EDP, (40000, 0), 3, 0, 1, FLAG_CTL),
                Body::Control(EdpKind::InfoRequest, b""),
            ),
        ),
        ("V-18", control((5000, 0), 4, EdpKind::PortQuery, &[3, 232])),
        (
            "V-19",
            control((0, 5000), 4, EdpKind::PortReply, &[3, 232, 1]),
        ),
        (
            "V-16",
            plain(
                header(EDP, (0, 40000), 3, 0, 20, FLAG_CTL),
                Body::Info(info),
            ),
        ),
    ]);
    all.extend(moving());
    all.extend(marks());
    all.extend(cookies());
    all
}

impl Meaning {
    fn emit(&self) -> Vec<u8> {
        let mut bytes = self.header.emit().to_vec();
        match &self.body {
            Body::SetUp(block) => {
                let mut out = [0; MAX_SETUP];
                let len = block.emit(&mut out);
                bytes.extend_from_slice(&out[..len]);
            }
            Body::Reset(reset) => {
                let mut out = [0; RESET_LEN];
                reset.emit(&mut out);
                bytes.extend(out);
            }
            Body::Retry(retry) => {
                let mut out = [0; RETRY_LEN];
                retry.emit(&mut out);
                bytes.extend(out);
            }
            Body::Move(block) => {
                let mut out = [0; MOVE_LEN];
                block.emit(&mut out);
                bytes.extend(out);
            }
            Body::Bytes(payload) => bytes.extend_from_slice(payload),
            Body::Control(kind, body) => {
                bytes.push(*kind as u8);
                bytes.extend_from_slice(body);
            }
            Body::Info(info) => {
                bytes.push(EdpKind::InfoReply as u8);
                info.emit(&mut bytes);
            }
        }
        if let Some(ext) = &self.ext {
            let mut out = [0; MAX_EXT];
            let len = ext.emit(&mut out);
            bytes.extend_from_slice(&out[..len]);
        }
        bytes
    }

    /// Parses the bytes and compares all parts.
    fn check(&self, id: &str, bytes: &[u8]) {
        let (header, rest) = Header::parse(bytes).unwrap();
        assert_eq!(header, self.header, "{id}");
        let (payload, _) = header.split_payload(rest).unwrap();
        if header.packet_type == ESP {
            let frame = EspFrame::parse(&header, rest).unwrap();
            assert_eq!(frame.ext, self.ext, "{id}");
        }
        match &self.body {
            Body::SetUp(block) => assert_eq!(SetUp::parse(payload), Ok(*block), "{id}"),
            Body::Reset(reset) => assert_eq!(Reset::parse(payload), Ok(*reset), "{id}"),
            Body::Retry(retry) => assert_eq!(Retry::parse(payload), Some(Ok(*retry)), "{id}"),
            Body::Move(block) => assert_eq!(Move::parse(payload), Ok(*block), "{id}"),
            Body::Bytes(expected) => assert_eq!(&payload, expected, "{id}"),
            Body::Control(kind, expected) => {
                let frame = EdpFrame::parse(&header, rest).unwrap();
                assert_eq!((frame.kind, frame.body), (*kind, *expected), "{id}");
            }
            Body::Info(info) => {
                let frame = EdpFrame::parse(&header, rest).unwrap();
                assert_eq!(InfoReply::parse(frame.body), Ok(*info), "{id}");
            }
        }
    }
}

/// Rows `| id | … | … | ` + "`hex`" + ` |` of the page's section 14 whose id begins with `prefix`:
/// id, last text cell, bytes.
pub(crate) fn rows(prefix: &str) -> Vec<(String, String, Vec<u8>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/wire-format.md");
    let page = std::fs::read_to_string(path).expect("docs/wire-format.md");
    let mut rows = vec![];
    for line in page
        .lines()
        .filter(|line| line.starts_with(&format!("| {prefix}")))
    {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let hex: String = cells
            .last()
            .unwrap()
            .chars()
            .filter(char::is_ascii_hexdigit)
            .collect();
        assert!(hex.len().is_multiple_of(2), "{line}");
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes = (0..hex.len()).step_by(2).map(byte).collect();
        rows.push((
            cells[0].to_string(),
            cells[cells.len() - 2].to_string(),
            bytes,
        ));
    }
    rows
}

#[test]
fn the_specification_and_the_code_agree_on_every_frame() {
    let mut meanings = meanings();
    for (id, _, bytes) in rows("V-") {
        let meaning = meanings
            .remove(id.as_str())
            .unwrap_or_else(|| panic!("{id} has no meaning here"));
        meaning.check(&id, &bytes);
        let emitted = meaning.emit();
        let hex: String = emitted.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(emitted, bytes, "{id}: {hex}");
        // Padding changes nothing.
        let mut padded = bytes;
        padded.resize(padded.len().max(48), 0);
        meaning.check(&id, &padded);
    }
    for (id, meaning) in &meanings {
        let hex: String = meaning.emit().iter().map(|b| format!("{b:02x}")).collect();
        println!("{id}: {hex}");
    }
    assert!(
        meanings.is_empty(),
        "not on the page: {:?}",
        meanings.keys()
    );
}

/// W-10; each row names the rule that is broken, such as W-02, W-22, W-71 and W-101.
#[test]
fn frames_are_dropped_under_the_documented_counter() {
    let rows = rows("D-");
    assert!(rows.len() >= 12, "rows on the page: {}", rows.len());
    for (id, counter, bytes) in rows {
        let counter = counter.trim_matches('`').to_string();
        let mut pair = Pair::new();
        pair.listen(1000, 4);
        let frame = OnWire {
            at: pair.now,
            src: MAC_A,
            dst: MAC_B,
            body: bytes,
            looped: false,
            ce: false,
        };
        pair.b.receive(pair.now, &frame);
        let counters = pair.b.ep.counters();
        let value = counters
            .iter()
            .find(|c| c.0 == counter)
            .unwrap_or_else(|| panic!("{id}: no counter {counter}"))
            .2;
        assert_eq!(
            (value, counters.rx_dropped()),
            (1, 1),
            "{id} under {counter}"
        );
        pair.b.drain(pair.now);
        assert!(pair.b.transmit(pair.now).is_none(), "{id}: no answer");
    }
}
