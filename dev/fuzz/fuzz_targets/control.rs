//! Arbitrary bytes on the control socket, in parts of any length: to the daemon's decoder and to
//! the program's.
#![no_main]

use esp_client::control::codec::{Decoder, LENGTH_BYTES, Message, encode};
use esp_client::control::{Reply, Request};
use esp_fuzz::Choices;
use libfuzzer_sys::fuzz_target;

/// Decodes the bytes, and decodes what was decoded again after encoding it.
fn decode<T: Message + PartialEq + std::fmt::Debug>(data: &[u8], framed: bool) {
    let mut decoder = Decoder::<T>::new();
    let mut choices = Choices::new(data);
    while !choices.is_empty() {
        let len = usize::from(choices.byte()) * 4;
        let piece = choices.bytes(len);
        if framed {
            // Correct the length, so that the fuzzer reaches the text.
            decoder.push(&u32::try_from(piece.len()).unwrap_or(0).to_le_bytes(), []);
        }
        decoder.push(piece, []);
        for _ in 0..=piece.len() / LENGTH_BYTES + 1 {
            match decoder.next() {
                Ok(None) => break,
                Err(error) if error.is_fatal() => return,
                Err(_) => {}
                Ok(Some((envelope, _))) => {
                    let bytes = encode(&envelope).expect("what was decoded can be encoded");
                    let mut again = Decoder::<T>::new();
                    again.push(&bytes, []);
                    let second = again
                        .next()
                        .expect("what was encoded can be decoded")
                        .expect("all of it is there");
                    assert_eq!((second.0.id, second.0.body), (envelope.id, envelope.body));
                }
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    for framed in [true, false] {
        decode::<Request>(data, framed);
        decode::<Reply>(data, framed);
    }
});
