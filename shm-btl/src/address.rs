//! The address of a process, by which peers find its memory and check that it is the right one.
//! Untrusted.

use crate::process::NodeView;

const MAGIC: [u8; 8] = *b"btl.shm\0";
/// Version of this format and of the memory.
const VERSION: u64 = 3;
/// Stands for no descriptor.
const NONE: u64 = u64::MAX;

const OPEN_MAGIC: [u8; 8] = *b"shm.open";

/// Address of an open transport, short enough for a name: its memory has the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenAddress {
    /// Identity of the transport.
    pub identity: u64,
    /// Process.
    pub pid: u32,
    /// Number of the descriptor of its data file.
    pub data: u32,
}

impl OpenAddress {
    /// Encodes the address for [`btl::Btl::add_peer`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = OPEN_MAGIC.to_vec();
        bytes.extend(self.identity.to_le_bytes());
        bytes.extend(self.pid.to_le_bytes());
        bytes.extend(self.data.to_le_bytes());
        bytes
    }

    /// Decodes an address, which is untrusted.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<OpenAddress> {
        let rest = bytes.strip_prefix(&OPEN_MAGIC)?;
        let (identity, rest) = rest.split_first_chunk()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let address = OpenAddress {
            identity: u64::from_le_bytes(*identity),
            pid: u32::from_le_bytes(*pid),
            data: u32::from_le_bytes(rest.try_into().ok()?),
        };
        (address.identity != 0).then_some(address)
    }
}

/// The address of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShmAddress {
    /// Hash of the job's name and number of ranks.
    pub(crate) job: u64,
    pub(crate) rank: u32,
    pub(crate) node: NodeView,
    pub(crate) pid: u32,
    /// See [`crate::process::start_time`].
    pub(crate) started: u64,
    /// Descriptor numbers.
    pub(crate) data: u32,
    pub(crate) bell: u32,
    /// Descriptor number of an open transport's requests.
    pub(crate) requests: Option<u32>,
    /// Number that is also in the process's shared and private memory: a peer that reads it there
    /// has found the right process.
    pub(crate) nonce: [u64; 2],
    /// Address in the process's private memory for the probe of cross-memory attach, followed by
    /// eight bytes that may be written. 0: cross-memory attach is off.
    pub(crate) probe: u64,
    /// The process's global fences do not reach other processes, so its peers execute their own
    /// (`shmem::Fence::Full`).
    pub(crate) no_heavy_fence: bool,
}

/// An address is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    #[error("it is not an address of this transport")]
    Foreign,
    #[error(
        "the address has version {0}, this program uses version {VERSION}: use one build for all processes of the job"
    )]
    Version(u64),
    #[error("the address is truncated or malformed")]
    Damaged,
}

impl ShmAddress {
    /// Encodes the address: the magic number, words in little-endian order, and their hash.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let node = &self.node;
        let words = [
            VERSION,
            self.job,
            self.rank.into(),
            node.boot,
            node.pid_ns,
            node.net_ns,
            node.user_ns,
            node.uid.into(),
            self.pid.into(),
            self.started,
            self.data.into(),
            self.bell.into(),
            self.requests.map_or(NONE, u64::from),
            self.nonce[0],
            self.nonce[1],
            self.probe,
            self.no_heavy_fence.into(),
        ];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(words.map(u64::to_le_bytes).as_flattened());
        bytes.extend(sum(&bytes).to_le_bytes());
        bytes
    }

    /// Decodes an address.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ShmAddress, AddressError> {
        let damaged = AddressError::Damaged;
        let rest = bytes.strip_prefix(&MAGIC).ok_or(AddressError::Foreign)?;
        let (words, tail) = rest.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let version = *words.first().ok_or(damaged)?;
        if version != VERSION {
            return Err(AddressError::Version(version));
        }
        let &[
            _,
            job,
            rank,
            boot,
            pid_ns,
            net_ns,
            user_ns,
            uid,
            pid,
            started,
            data,
            bell,
            requests,
            nonce0,
            nonce1,
            probe,
            no_heavy_fence @ 0..=1,
            checksum,
        ] = &words[..]
        else {
            return Err(damaged);
        };
        if !tail.is_empty() || checksum != sum(&bytes[..bytes.len() - 8]) {
            return Err(damaged);
        }
        let half = |word| u32::try_from(word).map_err(|_| damaged);
        Ok(ShmAddress {
            job,
            rank: half(rank)?,
            node: NodeView {
                boot,
                pid_ns,
                net_ns,
                user_ns,
                uid: half(uid)?,
            },
            pid: half(pid)?,
            started,
            data: half(data)?,
            bell: half(bell)?,
            requests: match requests {
                NONE => None,
                number => Some(half(number)?),
            },
            nonce: [nonce0, nonce1],
            probe,
            no_heavy_fence: no_heavy_fence == 1,
        })
    }
}

/// Returns the FNV-1a hash, which distinguishes jobs and detects damage. It does not prevent
/// forgery, which would gain nothing: a process that may open this process's files may do anything
/// to it.
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
                boot: 3,
                pid_ns: 4,
                net_ns: 5,
                user_ns: 6,
                uid: 7,
            },
            pid: 8,
            started: 9,
            data: 10,
            bell: 11,
            requests: Some(12),
            nonce: [18, 19],
            probe: 20,
            no_heavy_fence: true,
        }
    }

    #[test]
    fn an_address_round_trips() {
        let bytes = address().encode();
        assert!(bytes.len() <= btl::MAX_ADDRESS);
        assert_eq!(ShmAddress::decode(&bytes), Ok(address()));
        let of_a_job = ShmAddress {
            requests: None,
            ..address()
        };
        assert_eq!(ShmAddress::decode(&of_a_job.encode()), Ok(of_a_job));
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
    fn an_open_address_round_trips_and_every_cut_is_detected() {
        let address = OpenAddress {
            identity: 1,
            pid: 2,
            data: 3,
        };
        let bytes = address.encode();
        assert_eq!(OpenAddress::decode(&bytes), Some(address));
        for len in 0..bytes.len() {
            assert_eq!(OpenAddress::decode(&bytes[..len]), None, "{len} bytes");
        }
        assert_eq!(OpenAddress::decode(&[&bytes[..], &[0]].concat()), None);
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
