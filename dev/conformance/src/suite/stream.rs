//! Self-checking messages: each contains its number and length, and the receiver can compute every
//! byte.

use std::collections::BTreeMap;

use crate::rng::Rng;
use btl::{MAX_HEADER, Rank};

const MAGIC: u32 = 0x5d1e_c0de;
/// Length of the header's fixed part: magic, number, body length, header length.
const HEADER: usize = 4 + 8 + 4 + 1;

/// Lengths of the messages of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// 0 to 64 bytes.
    Tiny,
    /// Mostly short, some up to the maximum.
    Mixed,
    /// Maximum length.
    Longest,
}

/// Positions of all streams from and to a rank.
#[derive(Debug, Default)]
pub(super) struct Streams {
    rank: Rank,
    seed: u64,
    sent: BTreeMap<Rank, u64>,
    arrived: BTreeMap<Rank, u64>,
}

impl Streams {
    pub(super) fn new(rank: Rank, seed: u64) -> Streams {
        Streams {
            rank,
            seed,
            ..Streams::default()
        }
    }

    /// Returns the next message to a peer, of at most `max_send` bytes. It stays the next one until
    /// [`sent`](Streams::sent) is called.
    pub(super) fn next(&self, peer: Rank, sizes: Sizes, max_send: usize) -> (Vec<u8>, Vec<u8>) {
        let number = self.count_sent(peer);
        let mut rng = Rng::new(self.key(self.rank, peer, number) ^ 1);
        let most = max_send - MAX_HEADER;
        let length = match sizes {
            Sizes::Tiny => rng.below(65),
            Sizes::Longest => most,
            Sizes::Mixed => match rng.below(100) {
                0..=1 => rng.below(most + 1),
                2 => most,
                3..=20 => rng.below(most.min(4096) + 1),
                _ => rng.below(257),
            },
        };
        // The header's length varies, too.
        let mut header = vec![0; HEADER + rng.below(MAX_HEADER - HEADER + 1)];
        let key = self.key(self.rank, peer, number);
        Rng::new(key ^ 2).fill(&mut header[HEADER..]);
        header[..4].copy_from_slice(&MAGIC.to_le_bytes());
        header[4..12].copy_from_slice(&number.to_le_bytes());
        header[12..16].copy_from_slice(&(length as u32).to_le_bytes());
        header[16] = header.len() as u8;
        let mut body = vec![0; length];
        Rng::new(key).fill(&mut body);
        (header, body)
    }

    pub(super) fn sent(&mut self, peer: Rank) {
        *self.sent.entry(peer).or_default() += 1;
    }

    pub(super) fn count_sent(&self, peer: Rank) -> u64 {
        self.sent.get(&peer).copied().unwrap_or(0)
    }

    pub(super) fn count_arrived(&self, peer: Rank) -> u64 {
        self.arrived.get(&peer).copied().unwrap_or(0)
    }

    /// Checks a received message. Returns `None` if it does not belong to a stream.
    pub(super) fn check(
        &mut self,
        peer: Rank,
        header: &[u8],
        body: &[u8],
    ) -> Option<Result<(), String>> {
        let number: [u8; 8] = header.get(4..12)?.try_into().ok()?;
        if header.len() < HEADER || header[..4] != MAGIC.to_le_bytes() {
            return None;
        }
        let (number, expected) = (u64::from_le_bytes(number), self.count_arrived(peer));
        if number != expected {
            return Some(Err(format!(
                "message {number} of rank {peer} arrived, expected {expected}"
            )));
        }
        *self.arrived.entry(peer).or_default() += 1;
        if header[12..16] != (body.len() as u32).to_le_bytes()
            || usize::from(header[16]) != header.len()
        {
            let (header, body) = (header.len(), body.len());
            return Some(Err(format!(
                "message {number} of rank {peer} arrived with {header} + {body} bytes"
            )));
        }
        let key = self.key(peer, self.rank, number);
        let mut bytes = vec![0; body.len()];
        Rng::new(key).fill(&mut bytes);
        if let Some(at) = bytes.iter().zip(body).position(|(want, is)| want != is) {
            return Some(Err(format!(
                "message {number} of rank {peer} is wrong at byte {at} of {}",
                body.len()
            )));
        }
        let mut tail = vec![0; header.len() - HEADER];
        Rng::new(key ^ 2).fill(&mut tail);
        if tail != header[HEADER..] {
            return Some(Err(format!(
                "the header of message {number} of rank {peer} is wrong"
            )));
        }
        Some(Ok(()))
    }

    fn key(&self, from: Rank, to: Rank, number: u64) -> u64 {
        let mut rng = Rng::new(self.seed ^ (u64::from(from) << 40) ^ (u64::from(to) << 20));
        rng.next()
            .wrapping_add(number.wrapping_mul(0xd134_2543_de82_ef95))
    }
}
