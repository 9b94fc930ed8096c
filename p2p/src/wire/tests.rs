use super::*;
use crate::testing::Random;

/// Checks that a header that decodes encodes to equal bytes, so every header has one form only.
fn check(bytes: &[u8]) {
    if let Ok(header) = Header::decode(bytes) {
        assert_eq!(header.encode().bytes(), bytes, "{header:?}");
    }
}

#[test]
fn every_short_string_is_refused_or_has_one_form() {
    check(&[]);
    for kind in 0..=255 {
        for flags in 0..=255 {
            for length in 1..=64 {
                for fill in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bytes = vec![fill; length];
                    bytes[0] = kind;
                    if let Some(second) = bytes.get_mut(1) {
                        *second = flags;
                    }
                    check(&bytes);
                }
            }
        }
    }
    for four in 0..=u32::from(u16::MAX) {
        check(&(four << 8 | u32::from(BYE)).to_le_bytes());
        check(&(four << 8 | u32::from(SKEW)).to_le_bytes());
    }
}

#[test]
fn random_strings_are_refused_or_have_one_form() {
    let mut random = Random::new(3);
    let mut good = 0;
    for _ in 0..500_000 {
        let length = *random.pick(&[4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 52]);
        let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        bytes[0] = random.below(11) as u8;
        bytes[1] = random.below(17) as u8;
        if random.below(2) == 0 {
            bytes[2..4].fill(0);
        }
        good += u32::from(Header::decode(&bytes).is_ok());
        check(&bytes);
    }
    assert!(good > 3_000, "only {good} were valid headers");
}

const SWAP: Operation = Operation::Atomic {
    op: AtomicOp::SwapEqual,
    number: AtomicType::U64,
    fetch: true,
};

fn access(operation: Operation, offset: u64, data: Option<u64>) -> Header {
    Header::Access(Access {
        operation,
        request: 0x0000_0003_0000_0007,
        key: 5,
        address: 4096,
        length: if operation == SWAP { 8 } else { 1 << 20 },
        offset,
        data,
    })
}

#[test]
fn numbers_and_offsets_come_with_writes_only() {
    for operation in [Operation::Read, SWAP] {
        for (offset, data) in [(1, None), (0, Some(1))] {
            let header = access(operation, offset, data).encode();
            assert_eq!(
                Header::decode(header.bytes()),
                Err(Malformed::Flags(ACCESS))
            );
        }
    }
    for (operation, number) in [(2, 0), (35, 0), (16, 14), (0, 1), (1, 1)] {
        let mut bytes = access(SWAP, 0, None).encode().bytes().to_vec();
        (bytes[1], bytes[2], bytes[3]) = (0, operation, number);
        let unknown = Err(Malformed::Operation(operation, number));
        assert_eq!(Header::decode(&bytes), unknown);
    }
}

#[test]
fn encoded_headers_decode() {
    let envelope = Sequenced {
        flags: ASK,
        sequence: 65_535,
        context: u32::MAX,
        tag: u64::from(NARROW),
        data: None,
    };
    let wide = Sequenced {
        tag: u64::from(NARROW) + 1,
        ..envelope
    };
    let full = Sequenced {
        tag: u64::MAX,
        data: Some(u64::MAX),
        ..envelope
    };
    for header in [
        Header::Eager(envelope, None),
        Header::Eager(envelope, Some(u64::MAX)),
        Header::Rts(envelope, MAX_LENGTH, 1),
        Header::Eager(wide, None),
        Header::Eager(full, None),
        Header::Eager(full, Some(7)),
        Header::Rts(wide, 1, 2),
        Header::Rts(full, MAX_LENGTH, u64::MAX),
        Header::Cts {
            request: 1,
            target: 2,
            length: 3,
            put: true,
        },
        Header::Fragment {
            target: 1,
            offset: 2,
        },
        Header::Fin {
            request: 1,
            written: true,
        },
        Header::Credit {
            amount: u32::MAX,
            rts_only: true,
        },
        Header::Skew { late: true },
        Header::Bye,
        access(Operation::Read, 0, None),
        access(Operation::Write, MAX_LENGTH, Some(u64::MAX)),
        access(SWAP, 0, None),
        Header::Result {
            request: 1,
            offset: MAX_LENGTH,
            status: u16::MAX,
        },
    ] {
        assert_eq!(Header::decode(header.encode().bytes()), Ok(header));
    }
    assert_eq!(
        eager(ASK, 65_535, u32::MAX, NARROW),
        Header::Eager(envelope, None).encode().bytes()
    );
}

/// The vectors of docs/p2p.md, one per line: `| `hex` | meaning |`.
#[test]
fn the_specification_has_these_bytes() {
    let page = include_str!("../../../docs/p2p.md");
    let envelope = Sequenced {
        flags: 0,
        sequence: 0x1234,
        context: 6,
        tag: 99,
        data: None,
    };
    let wide = Sequenced {
        tag: 0x0102_0304_0000_0063,
        ..envelope
    };
    let with_data = Sequenced {
        data: Some(0x55),
        ..wide
    };
    let asking = Sequenced {
        flags: ASK,
        ..envelope
    };
    let vectors = [
        Header::Eager(envelope, None),
        Header::Eager(asking, Some(0x0000_0003_0000_0007)),
        Header::Rts(envelope, 1 << 20, 0x0000_0003_0000_0007),
        Header::Eager(wide, None),
        Header::Rts(with_data, 1 << 20, 0x0000_0003_0000_0007),
        Header::Cts {
            request: 0x0000_0003_0000_0007,
            target: 0x0000_0001_0000_0002,
            length: 1 << 20,
            put: false,
        },
        Header::Cts {
            request: 0x0000_0003_0000_0007,
            target: 0x0000_0001_0000_0002,
            length: 4096,
            put: true,
        },
        Header::Fragment {
            target: 0x0000_0001_0000_0002,
            offset: 8192,
        },
        Header::Fin {
            request: 0x0000_0003_0000_0007,
            written: false,
        },
        Header::Fin {
            request: 0x0000_0001_0000_0002,
            written: true,
        },
        Header::Credit {
            amount: 262_144,
            rts_only: false,
        },
        Header::Credit {
            amount: 0,
            rts_only: true,
        },
        Header::Skew { late: true },
        Header::Skew { late: false },
        Header::Bye,
        access(Operation::Write, 65_536, Some(0x55)),
        access(SWAP, 0, None),
        Header::Result {
            request: 0x0000_0003_0000_0007,
            offset: 65_536,
            status: 0,
        },
        Header::Result {
            request: 0x0000_0003_0000_0007,
            offset: 0,
            status: 3,
        },
    ];
    let lines = vectors.map(|header| {
        let hex: String = header
            .encode()
            .bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("| `{hex}` |")
    });
    let missing: Vec<&String> = lines
        .iter()
        .filter(|line| !page.contains(line.as_str()))
        .collect();
    assert!(missing.is_empty(), "docs/p2p.md lacks {missing:#?}");
    assert_eq!(
        page.matches("\n| `0").count(),
        vectors.len(),
        "docs/p2p.md has vectors that are not tested"
    );
}
