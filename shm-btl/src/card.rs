//! The business card: what a peer must know to find this process and to be sure that it found the right one. Untrusted.

use crate::host::Host;
use crate::layout::Layout;

const MAGIC: [u8; 8] = *b"btl.shm\0";
/// Of the card's format; the memory has its own.
pub(crate) const VERSION: u16 = 1;

/// See the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// Hash of the job's name.
    pub(crate) job: u64,
    pub(crate) rank: u32,
    pub(crate) host: Host,
    pub(crate) pid: u32,
    /// See [`crate::host::start_time`].
    pub(crate) started: u64,
    /// Numbers of its descriptors.
    pub(crate) data: u32,
    pub(crate) claims: u32,
    pub(crate) bell: u32,
    pub(crate) layout: Layout,
    /// Also in its memory, shared and private: whoever reads the same there found the right process.
    pub(crate) nonce: [u64; 2],
    /// Where in its private memory, for the probe of cross-memory attach; behind it are eight bytes that may be written. 0: it
    /// does not want to be reached this way.
    pub(crate) probe: u64,
    /// It cannot fence for others: who sends to it fences for itself (`sleep.rs`).
    pub(crate) no_heavy_fence: bool,
}

/// What is wrong with a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadCard {
    #[error("the card is not one of this transport")]
    Foreign,
    #[error(
        "the card is of version {0}, this program speaks version {VERSION}: use one build in the whole job"
    )]
    Version(u16),
    #[error("the card is cut off or damaged")]
    Damaged,
}

impl Card {
    /// As bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(192);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(u16::from(self.no_heavy_fence).to_le_bytes());
        bytes.extend(self.host.boot);
        let (host, layout) = (&self.host, &self.layout);
        for word in [
            self.job,
            host.pid_ns,
            host.net_ns,
            host.user_ns,
            self.started,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [self.nonce[0], self.nonce[1], self.probe] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [
            self.rank,
            host.uid,
            self.pid,
            self.data,
            self.claims,
            self.bell,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [
            layout.size,
            layout.slots,
            layout.ring,
            layout.chunk,
            layout.chunks,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(sum(&bytes).to_le_bytes());
        bytes
    }

    /// From bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Card, BadCard> {
        let mut reader = Reader(bytes);
        if reader.take::<8>() != Ok(MAGIC) {
            return Err(BadCard::Foreign);
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(BadCard::Version(version));
        }
        let flags = reader.u16()?;
        let boot = reader.take()?;
        let [job, pid_ns, net_ns, user_ns, started] = reader.u64s()?;
        let [nonce0, nonce1, probe] = reader.u64s()?;
        let [rank, uid, pid, data, claims, bell] = reader.u32s()?;
        let [size, slots, ring, chunk, chunks] = reader.u32s()?;
        let body = bytes.len() - reader.0.len();
        let [told] = reader.u64s()?;
        if !reader.0.is_empty() || flags > 1 || told != sum(&bytes[..body]) {
            return Err(BadCard::Damaged);
        }
        Ok(Card {
            job,
            rank,
            host: Host {
                boot,
                pid_ns,
                net_ns,
                user_ns,
                uid,
            },
            pid,
            started,
            data,
            claims,
            bell,
            layout: Layout {
                size,
                slots,
                ring,
                chunk,
                chunks,
            },
            nonce: [nonce0, nonce1],
            probe,
            no_heavy_fence: flags == 1,
        })
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BadCard> {
        let (head, tail) = self.0.split_first_chunk().ok_or(BadCard::Damaged)?;
        self.0 = tail;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, BadCard> {
        self.take().map(u16::from_le_bytes)
    }

    fn u64s<const N: usize>(&mut self) -> Result<[u64; N], BadCard> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.take().map(u64::from_le_bytes)?;
        }
        Ok(words)
    }

    fn u32s<const N: usize>(&mut self) -> Result<[u32; N], BadCard> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.take().map(u32::from_le_bytes)?;
        }
        Ok(words)
    }
}

/// FNV-1a: tells jobs apart, and finds damage. Not against forgery: whoever may open our files may do anything to us.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Card {
        Card {
            job: 1,
            rank: 2,
            host: Host {
                boot: [3; 16],
                pid_ns: 4,
                net_ns: 5,
                user_ns: 6,
                uid: 7,
            },
            pid: 8,
            started: 9,
            data: 10,
            claims: 11,
            bell: 12,
            layout: Layout {
                size: 13,
                slots: 14,
                ring: 15,
                chunk: 16,
                chunks: 17,
            },
            nonce: [18, 19],
            probe: 20,
            no_heavy_fence: true,
        }
    }

    #[test]
    fn a_card_comes_back() {
        let bytes = card().encode();
        assert!(bytes.len() <= btl::MAX_ADDRESS);
        assert_eq!(Card::decode(&bytes), Ok(card()));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let bytes = card().encode();
        for len in 0..bytes.len() {
            assert!(Card::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(Card::decode(&longer), Err(BadCard::Damaged));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Card::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn other_versions_are_told_apart_from_other_things() {
        let mut other = card().encode();
        other[8] = 9;
        assert_eq!(Card::decode(&other), Err(BadCard::Version(9)));
        assert_eq!(Card::decode(b"btl.eth\0 and so on"), Err(BadCard::Foreign));
        assert_eq!(Card::decode(&[]), Err(BadCard::Foreign));
    }
}
