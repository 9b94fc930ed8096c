//! The address of a process, by which peers find its memory and check that they found the right
//! one. Untrusted.

use crate::layout::Layout;
use crate::process::NodeView;

const MAGIC: [u8; 8] = *b"btl.shm\0";
/// Version of the address format; the memory has its own.
pub(crate) const VERSION: u16 = 1;

/// The address of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShmAddress {
    /// Hash of the job's name.
    pub(crate) job: u64,
    pub(crate) rank: u32,
    pub(crate) node: NodeView,
    pub(crate) pid: u32,
    /// See [`crate::process::start_time`].
    pub(crate) started: u64,
    /// Descriptor numbers.
    pub(crate) data: u32,
    pub(crate) claims: u32,
    pub(crate) bell: u32,
    pub(crate) layout: Layout,
    /// Number that is also in its shared and private memory: a peer that reads it there has found
    /// the right process.
    pub(crate) nonce: [u64; 2],
    /// Place in its private memory for the probe of cross-memory attach, followed by eight bytes
    /// that may be written. 0: cross-memory attach is off.
    pub(crate) probe: u64,
    /// Its global fences do not reach others, so its peers execute their own
    /// (`shmem::Fence::Full`).
    pub(crate) no_heavy_fence: bool,
}

/// An address is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    #[error("the address is not one of this transport")]
    Foreign,
    #[error(
        "the address is of version {0}, this program speaks version {VERSION}: use one build in the whole job"
    )]
    Version(u16),
    #[error("the address is cut off or damaged")]
    Damaged,
}

impl ShmAddress {
    /// Encodes the address.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(192);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(u16::from(self.no_heavy_fence).to_le_bytes());
        bytes.extend(self.node.boot);
        let (node, layout) = (&self.node, &self.layout);
        for word in [
            self.job,
            node.pid_ns,
            node.net_ns,
            node.user_ns,
            self.started,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [self.nonce[0], self.nonce[1], self.probe] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [
            self.rank,
            node.uid,
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

    /// Decodes an address.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ShmAddress, AddressError> {
        let mut reader = Reader(bytes);
        if reader.take::<8>() != Ok(MAGIC) {
            return Err(AddressError::Foreign);
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(AddressError::Version(version));
        }
        let flags = reader.u16()?;
        let boot = reader.take()?;
        let [job, pid_ns, net_ns, user_ns, started] = reader.u64s()?;
        let [nonce0, nonce1, probe] = reader.u64s()?;
        let [rank, uid, pid, data, claims, bell] = reader.u32s()?;
        let [size, slots, ring, chunk, chunks] = reader.u32s()?;
        let body = bytes.len() - reader.0.len();
        let [checksum] = reader.u64s()?;
        if !reader.0.is_empty() || flags > 1 || checksum != sum(&bytes[..body]) {
            return Err(AddressError::Damaged);
        }
        Ok(ShmAddress {
            job,
            rank,
            node: NodeView {
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
    fn take<const N: usize>(&mut self) -> Result<[u8; N], AddressError> {
        let (head, tail) = self.0.split_first_chunk().ok_or(AddressError::Damaged)?;
        self.0 = tail;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, AddressError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u64s<const N: usize>(&mut self) -> Result<[u64; N], AddressError> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.take().map(u64::from_le_bytes)?;
        }
        Ok(words)
    }

    fn u32s<const N: usize>(&mut self) -> Result<[u32; N], AddressError> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.take().map(u32::from_le_bytes)?;
        }
        Ok(words)
    }
}

/// Returns the FNV-1a hash: tells jobs apart and detects damage. It is no protection against
/// forgery, which gains nothing: a process that may open our files may do anything to us.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> ShmAddress {
        ShmAddress {
            job: 1,
            rank: 2,
            node: NodeView {
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
    fn an_address_survives_encoding() {
        let bytes = address().encode();
        assert!(bytes.len() <= btl::MAX_ADDRESS);
        assert_eq!(ShmAddress::decode(&bytes), Ok(address()));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_detected() {
        let bytes = address().encode();
        for len in 0..bytes.len() {
            assert!(ShmAddress::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(ShmAddress::decode(&longer), Err(AddressError::Damaged));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(ShmAddress::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_another_error() {
        let mut other = address().encode();
        other[8] = 9;
        assert_eq!(ShmAddress::decode(&other), Err(AddressError::Version(9)));
        assert_eq!(
            ShmAddress::decode(b"btl.eth\0 and so on"),
            Err(AddressError::Foreign)
        );
        assert_eq!(ShmAddress::decode(&[]), Err(AddressError::Foreign));
    }
}
