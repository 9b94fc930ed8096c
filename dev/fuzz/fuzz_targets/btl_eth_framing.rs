//! Arbitrary bytes as the address of an Ethernet peer and as the records of its stream, which
//! arrive in parts of any length.
#![no_main]

use btl_eth::address::EthAddress;
use btl_eth::record::{HEAD, Hello, Kind, Record, decode, head};
use esp_fuzz::Choices;
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 4096;

/// Encodes a decoded record again.
fn encode(record: &Record<'_>, number: u16) -> Vec<u8> {
    let contents = [record.header, record.body].concat();
    let head = head(record.kind, record.header.len(), contents.len(), number);
    [&head[..], &contents].concat()
}

/// Decodes records until the bytes are used up or invalid. `framed`: sets correct numbers and
/// lengths, so that the fuzzer reaches what follows them.
fn stream(data: &[u8], framed: bool) {
    let mut choices = Choices::new(data);
    let mut number = u16::from(choices.byte());
    let mut bytes = Vec::new();
    while !choices.is_empty() {
        let len = usize::from(choices.byte());
        let part = choices.bytes(len);
        if framed {
            let [low, high] = number.to_le_bytes();
            let length = u32::try_from(part.len().saturating_sub(2))
                .unwrap_or(0)
                .to_le_bytes();
            bytes.extend(length);
            bytes.extend([
                part.first().copied().unwrap_or(0),
                part.get(1).copied().unwrap_or(6),
                low,
                high,
            ]);
            bytes.extend(part.get(2..).unwrap_or_default());
        } else {
            bytes.extend(part);
        }
        loop {
            match decode(&bytes, number, LIMIT) {
                Err(_) => return,
                Ok(None) => {
                    // An incomplete record is not longer than the limit.
                    assert!(bytes.len() < HEAD + LIMIT);
                    break;
                }
                Ok(Some((record, length))) => {
                    assert_eq!(encode(&record, number), bytes[..length]);
                    if record.kind == Kind::Hello
                        && let Some(hello) = Hello::decode(record.body)
                    {
                        assert_eq!(hello.encode(), record.body);
                    }
                    // No part of it is a whole record.
                    assert_eq!(decode(&bytes[..length - 1], number, LIMIT), Ok(None));
                    bytes.drain(..length);
                    number = number.wrapping_add(1);
                }
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    if let Ok(address) = EthAddress::decode(data) {
        assert_eq!(address.encode(), data);
        assert!(data.len() <= btl::MAX_ADDRESS);
    }
    stream(data, false);
    stream(data, true);
});
