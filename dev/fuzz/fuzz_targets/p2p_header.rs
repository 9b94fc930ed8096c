//! Any bytes as a header of the point-to-point layer: refused, or of one form only.
#![no_main]

use libfuzzer_sys::fuzz_target;
use p2p::wire::Header;

fuzz_target!(|data: &[u8]| {
    if let Ok(header) = Header::decode(data) {
        assert_eq!(header.encode().bytes(), data);
    }
});
