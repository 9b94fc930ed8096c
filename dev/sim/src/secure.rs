//! Protection of simulated packets: the layer of esp-proto over cryptography that costs little and
//! has no strength. The simulated [forger](crate::forger) does not compute tags.

use crate::rng::{Rng, mix};
use esp_proto::NodeAddr;
use esp_proto::secure::{Cipher, Crypto, Key, Layer, SecureConfig, Suite, TAG_LEN};

/// Key of all nodes.
const KEY: [u8; 32] = [0x6b; 32];
/// Reflected polynomial of CRC-32C.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const TABLE: [u32; 256] = table();

/// Protection of a node's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Suite that the node asks for.
    pub suite: Suite,
    /// Packets without protection are dropped, and none are sent.
    pub require: bool,
}

impl Protection {
    /// Creates the layer of a node.
    pub(crate) fn layer(self, own: NodeAddr, edp: u16, rng: &mut Rng) -> Layer<Weak> {
        let config = if self.suite == Suite::CHECKSUM {
            SecureConfig::checksum(self.require, edp)
        } else {
            SecureConfig {
                keys: vec![Key::new(KEY)],
                require: self.require,
                suite: self.suite,
                edp_ethertype: edp,
            }
        };
        Layer::new(config, Weak, own, rng.seed32())
    }
}

/// Cryptography of the simulator.
#[derive(Clone, Copy, Debug)]
pub struct Weak;

/// A prepared key.
#[derive(Clone, Copy, Debug)]
pub enum WeakKey {
    /// In the place of an AEAD.
    Keyed(u64),
    /// CRC-32C of the key.
    Crc(u32),
}

/// Appends bytes and their number to a state. Two inputs that differ in one word only have
/// different states.
fn absorb(state: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let all = words.iter().chain([&last]);
    let state = all.fold(state, |state, word| mix(state ^ u64::from_le_bytes(*word)));
    mix(state ^ bytes.len() as u64)
}

fn absorb_all(state: u64, parts: &[&[u8]]) -> u64 {
    parts.iter().fold(state, |state, part| absorb(state, part))
}

fn fill(state: u64, out: &mut [u8]) {
    for (number, chunk) in (1u64..).zip(out.chunks_mut(8)) {
        let word = mix(state ^ number).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

fn tag(key: u64, nonce: [u8; 12], aad: &[u8], text: &[u8]) -> [u8; TAG_LEN] {
    let mut tag = [0; TAG_LEN];
    fill(absorb_all(key, &[&nonce, aad, text]), &mut tag);
    tag
}

fn mask(key: u64, nonce: [u8; 12], text: &mut [u8]) {
    let state = absorb(!key, &nonce);
    for (number, chunk) in (1u64..).zip(text.chunks_mut(8)) {
        let word = mix(state ^ number).to_le_bytes();
        chunk.iter_mut().zip(word).for_each(|(byte, x)| *byte ^= x);
    }
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// Returns the CRC-32C of bytes that follow those of `crc`.
fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!crc, |crc, byte| {
        crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)]
    })
}

fn checksum(start: u32, aad: &[u8], text: &[u8]) -> [u8; TAG_LEN] {
    let crc = crc32c(crc32c(start, aad), text);
    (u128::from(crc) << 96).to_be_bytes()
}

impl Crypto for Weak {
    type Key = WeakKey;

    fn derive(&self, secret: &[u8], salt: &[u8], info: &[&[u8]], out: &mut [u8]) {
        fill(absorb_all(1, &[secret, salt, &info.concat()]), out);
    }

    fn mac(&self, key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = [0; 32];
        fill(absorb_all(2, &[key, &parts.concat()]), &mut mac);
        mac
    }

    fn verify(&self, key: &[u8; 32], parts: &[&[u8]], tag: &[u8]) -> bool {
        self.mac(key, parts) == tag
    }

    fn key(&self, cipher: Cipher, bytes: &[u8]) -> Option<WeakKey> {
        (bytes.len() == cipher.key_len()).then(|| match cipher {
            Cipher::Crc32c => WeakKey::Crc(crc32c(0, bytes)),
            Cipher::Aes128Gcm => WeakKey::Keyed(absorb(3, bytes)),
            Cipher::ChaCha20Poly1305 => WeakKey::Keyed(absorb(4, bytes)),
        })
    }

    fn seal(
        &self,
        key: &WeakKey,
        nonce: [u8; 12],
        aad: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG_LEN]> {
        Some(match *key {
            WeakKey::Crc(start) => checksum(start, aad, text),
            WeakKey::Keyed(key) => {
                mask(key, nonce, text);
                tag(key, nonce, aad, text)
            }
        })
    }

    fn open(&self, key: &WeakKey, nonce: [u8; 12], aad: &[u8], text: &mut [u8]) -> bool {
        let Some((text, found)) = text.split_last_chunk_mut() else {
            return false;
        };
        match *key {
            WeakKey::Crc(start) => checksum(start, aad, text) == *found,
            WeakKey::Keyed(key) => {
                let is_valid = tag(key, nonce, aad, text) == *found;
                mask(key, nonce, text);
                is_valid
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4.
    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(crc32c(0, &[0xff; 5]), &[0xff; 27]), 0x62a8_ab43);
    }

    #[test]
    fn each_bit_of_a_packet_counts() {
        for cipher in [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305, Cipher::Crc32c] {
            let key = Weak.key(cipher, &vec![5; cipher.key_len()]).expect("a key");
            for len in [0, 1, 8, 61] {
                let (aad, text) = ([7; 25], vec![9; len]);
                let mut sealed = text.clone();
                let tag = Weak.seal(&key, [1; 12], &aad, &mut sealed).expect("a tag");
                assert!(len == 0 || (sealed == text) == (cipher == Cipher::Crc32c));
                sealed.extend(tag);
                let mut opened = sealed.clone();
                assert!(Weak.open(&key, [1; 12], &aad, &mut opened));
                assert_eq!(opened[..len], text);
                for bit in 0..8 * sealed.len() {
                    let mut wrong = sealed.clone();
                    wrong[bit / 8] ^= 1 << (bit % 8);
                    assert!(!Weak.open(&key, [1; 12], &aad, &mut wrong), "bit {bit}");
                }
                for bit in 0..8 * aad.len() {
                    let (mut wrong, mut text) = (aad, sealed.clone());
                    wrong[bit / 8] ^= 1 << (bit % 8);
                    assert!(!Weak.open(&key, [1; 12], &wrong, &mut text), "bit {bit}");
                }
            }
        }
    }
}
