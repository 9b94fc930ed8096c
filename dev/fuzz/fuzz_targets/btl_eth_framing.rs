//! Any bytes as the card of an Ethernet peer, and as what it writes into its stream, in pieces of
//! any length.
#![no_main]

use btl_eth::card::Card;
use btl_eth::frame::{HEAD, Kind, Record, decode, head};
use esp_fuzz::Choices;
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 4096;

/// What was decoded, once more as bytes, with its number.
fn encode(record: &Record<'_>, number: u16) -> Vec<u8> {
    let (kind, header, body) = match record {
        Record::Hello(hello) => (Kind::Hello, 0, hello.encode().to_vec()),
        Record::Welcome => (Kind::Welcome, 0, Vec::new()),
        Record::Confirm => (Kind::Confirm, 0, Vec::new()),
        Record::Yield => (Kind::Yield, 0, Vec::new()),
        Record::Refuse(words) => (Kind::Refuse, 0, words.as_bytes().to_vec()),
        Record::Message { header, body } => {
            (Kind::Message, header.len(), [*header, *body].concat())
        }
        Record::Goodbye => (Kind::Goodbye, 0, Vec::new()),
    };
    [&head(kind, header, body.len(), number)[..], &body].concat()
}

/// Reads records until the bytes are used up or wrong. `framed`: numbers and lengths are made right
/// first, so that the fuzzer gets behind them.
fn stream(data: &[u8], framed: bool) {
    let mut choices = Choices::new(data);
    let mut number = u16::from(choices.byte());
    let mut bytes = Vec::new();
    while !choices.is_empty() {
        let len = usize::from(choices.byte());
        let piece = choices.bytes(len);
        if framed {
            let [low, high] = number.to_le_bytes();
            let length = u32::try_from(piece.len().saturating_sub(2))
                .unwrap_or(0)
                .to_le_bytes();
            bytes.extend(length);
            bytes.extend([
                piece.first().copied().unwrap_or(0),
                piece.get(1).copied().unwrap_or(6),
                low,
                high,
            ]);
            bytes.extend(piece.get(2..).unwrap_or_default());
        } else {
            bytes.extend(piece);
        }
        loop {
            match decode(&bytes, number, LIMIT) {
                Err(_) => return,
                Ok(None) => {
                    // What waits for more is never longer than the longest record.
                    assert!(bytes.len() < HEAD + LIMIT);
                    break;
                }
                Ok(Some((record, length))) => {
                    assert_eq!(encode(&record, number), bytes[..length]);
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
    if let Ok(card) = Card::decode(data) {
        assert_eq!(card.encode(), data);
        assert!(data.len() <= btl::MAX_ADDRESS);
    }
    stream(data, false);
    stream(data, true);
});
