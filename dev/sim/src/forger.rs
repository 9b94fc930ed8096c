//! A station that sees all frames on the switch, and sends its own: recordings, late, redirected or
//! changed; recordings without their protection; and inventions.

use crate::check::frame::{ACK, FIN, Forge, RST, SYN};
use crate::link::Frame;
use crate::net::mac_of;
use crate::rng::Rng;
use esp_proto::secure::{DATA_AT, FLAG_SEC, TAG_LEN};
use esp_proto::wire::HEADER_LEN;
use esp_proto::{Duration, PREFIX_LEN};
use std::collections::VecDeque;

/// Number of frames that the station remembers.
const REMEMBERED: usize = 256;
/// Bytes of the two addresses.
const ADDRESSES: usize = PREFIX_LEN - HEADER_LEN;
/// Offset of the flags in a frame.
const FLAGS_AT: usize = PREFIX_LEN - 1;
/// Minimum length of a frame.
const MIN_FRAME: usize = 60;
/// Maximum time between a recording and its repetition, in microseconds.
const MAX_DELAY: u64 = 100_000;

/// The station.
#[derive(Debug)]
pub struct Forger {
    rng: Rng,
    /// Parts per million of the frames on which it acts.
    rate: u32,
    nodes: usize,
    recorded: VecDeque<Frame>,
    sent: u64,
}

impl Forger {
    /// Creates a station that acts on `rate` parts per million of the frames between `nodes`.
    pub fn new(rng: Rng, rate: u32, nodes: usize) -> Self {
        Forger {
            rng,
            rate,
            nodes,
            recorded: VecDeque::new(),
            sent: 0,
        }
    }

    /// Returns the number of frames it has sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Records a frame. Returns the frames that the station sends, each with its delay; without one
    /// it arrives before the recorded frame.
    pub fn sees(&mut self, frame: &Frame) -> Vec<(Duration, Frame)> {
        let mut out = Vec::new();
        // Damaged on the way.
        if frame.bytes.len() < MIN_FRAME {
            return out;
        }
        self.recorded.push_back(frame.clone());
        if self.recorded.len() > REMEMBERED {
            self.recorded.pop_front();
        }
        if self.rng.chance(self.rate) {
            for _ in 0..self.rng.range(1, 3) {
                let delay = if self.rng.chance(300_000) {
                    Duration::ZERO
                } else {
                    Duration::from_micros(self.rng.magnitude(1, MAX_DELAY))
                };
                out.push((delay, self.forge()));
            }
        }
        self.sent += out.len() as u64;
        out
    }

    /// Returns the last frame, or an earlier one.
    fn pick(&mut self) -> Frame {
        let last = self.recorded.len() as u64 - 1;
        let at = if self.rng.chance(500_000) {
            last
        } else {
            self.rng.below(last + 1)
        };
        self.recorded[at as usize].clone()
    }

    fn forge(&mut self) -> Frame {
        let mut frame = self.pick();
        let bytes = &mut frame.bytes;
        match self.rng.below(11) {
            0 => {} // as it was
            1 => flip(&mut self.rng, bytes, ADDRESSES),
            2 => flip(&mut self.rng, bytes, 0),
            3 => bytes.truncate(self.rng.range(ADDRESSES as u64, bytes.len() as u64) as usize),
            4 => bytes.resize(bytes.len() + self.rng.range(1, 40) as usize, 0),
            5 => self.redirect(bytes, 0),
            6 => self.redirect(bytes, ADDRESSES / 2),
            7 => bytes[..ADDRESSES].rotate_left(ADDRESSES / 2),
            8 => strip(bytes),
            9 => {
                let other = self.pick().bytes;
                splice(bytes, &other);
            }
            _ => frame = self.invent(),
        }
        frame
    }

    /// Replaces one of the addresses by that of any node.
    fn redirect(&mut self, bytes: &mut [u8], at: usize) {
        let mac = mac_of(self.rng.below(self.nodes as u64) as usize);
        bytes[at..at + ADDRESSES / 2].copy_from_slice(&mac.0);
    }

    /// Returns a frame of any content, with or without the flag of protection, with addresses and
    /// ports of a recorded one.
    fn invent(&mut self) -> Frame {
        let known = self.pick().bytes;
        let rng = &mut self.rng;
        let mut number = || rng.next_u64();
        let mut forged = Forge::new(mac_of(0), 0, mac_of(0), 0, 0);
        forged.flags = [SYN, SYN | ACK, ACK, ACK | FIN, RST, FLAG_SEC][number() as usize % 6];
        (forged.seq, forged.ack) = (number() as u16, number() as u16);
        forged.packet_type = [0x88b5, 0x88b6][number() as usize % 2];
        if forged.flags & SYN != 0 {
            forged = forged.with_set_up(number(), number(), 100);
        } else {
            forged.payload = (0..number() % 200).map(|_| number() as u8).collect();
        }
        let mut bytes = forged.bytes();
        bytes[..ADDRESSES].copy_from_slice(&known[..ADDRESSES]);
        let ports = ADDRESSES + 2..ADDRESSES + 6;
        bytes[ports.clone()].copy_from_slice(&known[ports]);
        Frame {
            bytes,
            ..Frame::default()
        }
    }
}

/// Flips one to three bits in the bytes from index `from`.
fn flip(rng: &mut Rng, bytes: &mut [u8], from: usize) {
    for _ in 0..rng.range(1, 3) {
        let at = rng.range(from as u64, bytes.len() as u64 - 1) as usize;
        bytes[at] ^= 1 << rng.below(8);
    }
}

/// Removes the protection: what remains is the sender's packet if it was not encrypted.
fn strip(bytes: &mut Vec<u8>) {
    let content = ADDRESSES + DATA_AT;
    if bytes[FLAGS_AT] & FLAG_SEC != 0 && bytes.len() >= content + TAG_LEN {
        bytes[FLAGS_AT] &= !FLAG_SEC;
        bytes.truncate(bytes.len() - TAG_LEN);
        bytes.drain(PREFIX_LEN..content);
    }
}

/// Replaces everything after the addresses, session and counter by that of another packet.
fn splice(bytes: &mut Vec<u8>, other: &[u8]) {
    let content = ADDRESSES + DATA_AT;
    if bytes.len() >= content && other.len() >= content {
        bytes.truncate(content);
        bytes.extend_from_slice(&other[content..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_that_acts_on_each_frame_sends_all_kinds() {
        let mut forger = Forger::new(Rng::new(1), 1_000_000, 3);
        let mut forged = Vec::new();
        for number in 0..300u16 {
            let mut bytes = Forge::new(mac_of(0), number, mac_of(1), 7, FLAG_SEC).bytes();
            bytes.resize(200, number as u8);
            let frame = Frame {
                bytes,
                ..Frame::default()
            };
            forged.extend(
                forger
                    .sees(&frame)
                    .into_iter()
                    .map(|(_, frame)| frame.bytes),
            );
        }
        assert_eq!(forger.sent(), forged.len() as u64);
        let some = |what: &dyn Fn(&[u8]) -> bool| forged.iter().filter(|f| what(f)).count();
        let sent = [&mac_of(1).0[..], &mac_of(0).0[..]].concat();
        assert!(some(&|f| f.starts_with(&sent)) > 100, "as they were");
        assert!(some(&|f| !f.starts_with(&sent)) > 50, "other addresses");
        assert!(some(&|f| f.len() < 200) > 20, "shorter");
        assert!(some(&|f| f.len() > 200) > 20, "longer");
        assert!(some(&|f| f.get(FLAGS_AT).is_some_and(|x| x & FLAG_SEC == 0)) > 20);
    }
}
