//! Cryptography of the tests: deterministic, without any strength.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{Cipher, Crypto, TAG_LEN};

#[derive(Clone, Copy, Debug)]
pub(super) struct Toy;

/// Returns a generator whose output depends on all parts and their lengths.
fn mixed(parts: &[&[u8]]) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::from_seed([0; 32]);
    for part in parts {
        let mut seed = [0; 32];
        rng.fill_bytes(&mut seed);
        seed[0] ^= part.len() as u8;
        for chunk in part.chunks(32) {
            for (byte, mixed) in chunk.iter().zip(&mut seed) {
                *mixed ^= byte;
            }
            rng = ChaCha8Rng::from_seed(seed);
            rng.fill_bytes(&mut seed);
        }
        rng = ChaCha8Rng::from_seed(seed);
    }
    rng
}

impl Toy {
    fn tag(key: &[u8; 32], nonce: [u8; 12], aad: &[u8], text: &[u8]) -> [u8; TAG_LEN] {
        let mut tag = [0; TAG_LEN];
        mixed(&[key, &nonce, aad, text, b"tag"]).fill_bytes(&mut tag);
        tag
    }

    fn mask(key: &[u8; 32], nonce: [u8; 12], text: &mut [u8]) {
        let mut rng = mixed(&[key, &nonce, b"mask"]);
        for byte in text {
            *byte ^= rng.next_u32() as u8;
        }
    }
}

impl Crypto for Toy {
    type Key = [u8; 32];

    fn derive(&self, secret: &[u8], salt: &[u8], info: &[&[u8]], out: &mut [u8]) {
        let info = info.concat();
        mixed(&[secret, salt, &info]).fill_bytes(out);
    }

    fn mac(&self, key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = [0; 32];
        mixed(&[key, &parts.concat(), b"mac"]).fill_bytes(&mut mac);
        mac
    }

    fn verify(&self, key: &[u8; 32], parts: &[&[u8]], tag: &[u8]) -> bool {
        self.mac(key, parts) == tag
    }

    fn key(&self, cipher: Cipher, bytes: &[u8]) -> Option<[u8; 32]> {
        let mut key = [cipher as u8; 32];
        key.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(key)
    }

    fn seal(
        &self,
        key: &[u8; 32],
        nonce: [u8; 12],
        aad: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG_LEN]> {
        Toy::mask(key, nonce, text);
        Some(Toy::tag(key, nonce, aad, text))
    }

    fn open(&self, key: &[u8; 32], nonce: [u8; 12], aad: &[u8], text: &mut [u8]) -> bool {
        let Some(at) = text.len().checked_sub(TAG_LEN) else {
            return false;
        };
        let (text, tag) = text.split_at_mut(at);
        let valid = Toy::tag(key, nonce, aad, text) == *tag;
        Toy::mask(key, nonce, text);
        valid
    }
}
