//! Protection of a packet by a key: its tag, and its encryption (W-141, W-142, W-148).

use alloc::vec::Vec;

use super::Crypto;
use super::packet::{TAG_LEN, clear_flag};
use crate::wire::{HEADER_LEN, put};

/// Key of a packet, and how it is used.
pub(super) struct PacketKey<'a, K> {
    pub(super) key: &'a K,
    /// The content is encrypted.
    pub(super) encrypts: bool,
    pub(super) counter: u64,
    /// Offset of the content.
    pub(super) data_at: usize,
}

impl<K> PacketKey<'_, K> {
    /// Encrypts the content of a packet, if the key requires it, and appends the tag. `None` if the
    /// cipher fails.
    pub(super) fn seal<C: Crypto<Key = K>>(&self, crypto: &C, packet: &mut Vec<u8>) -> Option<()> {
        let nonce = nonce(self.counter);
        let tag = if self.encrypts {
            let (aad, text) = packet.split_at_mut_checked(self.data_at)?;
            crypto.seal(self.key, nonce, aad, text)
        } else {
            crypto.seal(self.key, nonce, packet, &mut [])
        };
        packet.extend_from_slice(&tag?);
        Some(())
    }

    /// Writes a packet without its protection to `out`. `None` if the tag is wrong; the content of
    /// `out` is then unspecified.
    pub(super) fn open<C: Crypto<Key = K>>(
        &self,
        crypto: &C,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let (header, content) = (body.get(..HEADER_LEN)?, body.get(self.data_at..)?);
        let len = HEADER_LEN + content.len().checked_sub(TAG_LEN)?;
        out.clear();
        out.extend_from_slice(header);
        out.extend_from_slice(content);
        let nonce = nonce(self.counter);
        let valid = if self.encrypts {
            let text = out.get_mut(HEADER_LEN..)?;
            crypto.open(self.key, nonce, body.get(..self.data_at)?, text)
        } else {
            let (aad, _) = body.split_at_checked(body.len().checked_sub(TAG_LEN)?)?;
            crypto.open(self.key, nonce, aad, out.get_mut(len..)?)
        };
        out.truncate(len);
        clear_flag(out);
        valid.then_some(())
    }
}

/// Returns the nonce of a packet: its counter.
fn nonce(counter: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    put(&mut nonce, 4, &counter.to_be_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W-141: no nonce is used twice with a key, because no counter is.
    #[test]
    fn the_nonce_is_the_counter() {
        assert_eq!(nonce(0), [0; 12]);
        assert_eq!(nonce(0x0102), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        let all = [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255];
        assert_eq!(nonce(u64::MAX), all);
    }
}
