//! Two endpoints and a wire between them, in virtual time.
//!
//! The wire has a constant delay and no rate limit; a filter decides the fate of each frame.
//! Everything is deterministic. The rig checks the invariants: each byte is delivered once and in
//! order, within the receive room, and no frame exceeds the MTU or is shorter than 60 bytes.
#![allow(dead_code, unreachable_pub, unused_imports)]

mod forge;
mod node;
mod pair;

pub use forge::*;
pub use node::*;
pub use pair::*;

use esp_proto::MacAddr;

pub const MAC_A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
pub const MAC_B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
pub const ROOM: u32 = 256 * 1024;

/// Returns byte `at` of every program's stream.
pub fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}
