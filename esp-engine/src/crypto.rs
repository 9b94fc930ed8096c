//! Cryptography of protected packets, by `aws-lc-rs`, and their checksum, by `crc32c`.

use aws_lc_rs::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, hmac};
use esp_proto::secure::{Cipher, Crypto, Key, KeyId, Suite, TAG_LEN};

/// Implementation of [`Crypto`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Aead;

/// Prepared key of a cipher.
#[derive(Debug)]
pub struct AeadKey(Prepared);

#[derive(Debug)]
enum Prepared {
    Aead(LessSafeKey),
    /// CRC-32C of the key, to which packets are appended.
    Crc32c(u32),
}

/// Returns the bits of a suite that choose the faster cipher on this machine.
pub fn hardware_suite() -> Suite {
    #[cfg(target_arch = "x86_64")]
    let has_aes = std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    if has_aes {
        Suite::INTEGRITY
    } else {
        Suite::CHACHA
    }
}

/// Returns the public name of a key, which set-up packets contain (W-142, W-143).
pub fn key_id(key: &Key) -> KeyId {
    key.id(&Aead)
}

/// Length of a derived key in bytes.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Crypto for Aead {
    type Key = AeadKey;

    fn derive(&self, secret: &[u8], salt: &[u8], info: &[&[u8]], out: &mut [u8]) {
        let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret);
        let filled = prk
            .expand(info, Length(out.len()))
            .and_then(|okm| okm.fill(out));
        // RFC 5869 permits 255 times 32 bytes; the layer asks for 32 at most.
        debug_assert!(filled.is_ok(), "{} bytes", out.len());
    }

    fn mac(&self, key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = [0; 32];
        let tag = context(key, parts).sign();
        let (all, tag) = (mac.len(), tag.as_ref());
        mac.copy_from_slice(tag.get(..all).unwrap_or(&[0; 32]));
        mac
    }

    fn verify(&self, key: &[u8; 32], parts: &[&[u8]], tag: &[u8]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        hmac::verify(&key, &parts.concat(), tag).is_ok()
    }

    fn key(&self, cipher: Cipher, bytes: &[u8]) -> Option<AeadKey> {
        let algorithm = match cipher {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            Cipher::Crc32c => {
                let has_length = bytes.len() == cipher.key_len();
                return has_length.then(|| AeadKey(Prepared::Crc32c(crc32c::crc32c(bytes))));
            }
        };
        let key = UnboundKey::new(algorithm, bytes).ok()?;
        Some(AeadKey(Prepared::Aead(LessSafeKey::new(key))))
    }

    fn seal(
        &self,
        key: &AeadKey,
        nonce: [u8; 12],
        aad: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG_LEN]> {
        match &key.0 {
            Prepared::Aead(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(aad), text);
                tag.ok()?.as_ref().try_into().ok()
            }
            Prepared::Crc32c(start) => Some(checksum(*start, aad, text)),
        }
    }

    fn open(&self, key: &AeadKey, nonce: [u8; 12], aad: &[u8], text: &mut [u8]) -> bool {
        match &key.0 {
            Prepared::Aead(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, Aad::from(aad), text).is_ok()
            }
            Prepared::Crc32c(start) => match text.split_last_chunk() {
                Some((text, tag)) => checksum(*start, aad, text) == *tag,
                None => false,
            },
        }
    }
}

/// Returns the tag of W-148. It is not secret, so the comparison need not take constant time.
fn checksum(start: u32, aad: &[u8], text: &[u8]) -> [u8; TAG_LEN] {
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(start, aad), text);
    (u128::from(crc) << 96).to_be_bytes()
}

fn context(key: &[u8; 32], parts: &[&[u8]]) -> hmac::Context {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut context = hmac::Context::with_key(&key);
    for part in parts {
        context.update(part);
    }
    context
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        let pairs = digits.chunks(2);
        pairs
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    /// RFC 5869, appendix A.1.
    #[test]
    fn derivation_is_hkdf() {
        let (salt, info) = (
            bytes("000102030405060708090a0b0c"),
            bytes("f0f1f2f3f4f5f6f7f8f9"),
        );
        let mut okm = [0; 32];
        let (first, second) = info.split_at(4);
        Aead.derive(&[0x0b; 22], &salt, &[first, second], &mut okm);
        let expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf";
        assert_eq!(okm.to_vec(), bytes(expected));
    }

    /// RFC 4231, test case 2, with a key padded to the length of the digest.
    #[test]
    fn mac_is_hmac() {
        let mut key = [0; 32];
        key[..4].copy_from_slice(b"Jefe");
        let parts: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        let mac = Aead.mac(&key, &parts);
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(mac.to_vec(), bytes(expected));
        assert!(Aead.verify(&key, &parts, &mac));
        assert!(!Aead.verify(&key, &parts, &mac[..31]));
        assert!(!Aead.verify(&key, &parts[..1], &mac));
    }

    /// RFC 3720, appendix B.4: the CRCs of 32 zeros, of 32 bytes of ones, and of 0 to 31.
    #[test]
    fn checksum_is_crc32c() {
        let counted: [u8; 32] = std::array::from_fn(|at| at as u8);
        for (bytes, expected) in [
            ([0; 32], 0x8a91_36aa_u32),
            ([0xff; 32], 0x62a8_ab43),
            (counted, 0x46dd_794e),
        ] {
            let key = Aead.key(Cipher::Crc32c, &bytes[..4]).unwrap();
            for at in [4, 5, 32] {
                let (aad, text) = bytes[4..].split_at(at - 4);
                let mut text = text.to_vec();
                let tag = Aead.seal(&key, [1; 12], aad, &mut text).unwrap();
                assert_eq!(text, bytes[at..], "nothing is encrypted");
                assert_eq!(tag[..4], expected.to_be_bytes());
                assert_eq!(tag[4..], [0; 12]);
                text.extend(tag);
                assert!(Aead.open(&key, [2; 12], aad, &mut text));
                for bit in 0..text.len() * 8 {
                    let mut wrong = text.clone();
                    wrong[bit / 8] ^= 1 << (bit % 8);
                    assert!(!Aead.open(&key, [2; 12], aad, &mut wrong), "bit {bit}");
                }
            }
            assert!(!Aead.open(&key, [0; 12], &[], &mut [0; 15]));
        }
        for len in [0, 3, 5, 16] {
            assert!(Aead.key(Cipher::Crc32c, &vec![0; len]).is_none());
        }
    }

    /// Test case 2 of the GCM specification, and RFC 8439, section 2.8.2 by a round trip.
    #[test]
    fn ciphers_seal_and_open() {
        let key = Aead.key(Cipher::Aes128Gcm, &[0; 16]).unwrap();
        let mut text = [0; 16];
        let tag = Aead.seal(&key, [0; 12], &[], &mut text).unwrap();
        assert_eq!(text.to_vec(), bytes("0388dace60b6a392f328c2b971b2fe78"));
        assert_eq!(tag.to_vec(), bytes("ab6e47d42cec13bdf53a67b21257bddf"));
        for cipher in [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305] {
            let key = Aead.key(cipher, &vec![3; cipher.key_len()]).unwrap();
            let mut all = b"text".to_vec();
            let tag = Aead.seal(&key, [1; 12], b"aad", &mut all).unwrap();
            all.extend(tag);
            assert!(!Aead.open(&key, [2; 12], b"aad", &mut all.clone()));
            assert!(!Aead.open(&key, [1; 12], b"Aad", &mut all.clone()));
            assert!(Aead.open(&key, [1; 12], b"aad", &mut all));
            assert_eq!(&all[..4], b"text");
            assert!(Aead.key(cipher, &[0; 15]).is_none());
        }
    }
}
