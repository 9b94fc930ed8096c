//! Authentication and encryption of whole packets (section 15 of the specification).
//!
//! ```text
//!   Endpoint::poll_transmit ──► Layer::seal ──► wire
//!                                   │ ▲
//!                 set-up packets ───┘ └─── Layer::poll_transmit
//!                                   ▲
//!   Endpoint::handle_frame ◄─── Layer::open ◄── wire
//! ```
//!
//! A [`Layer`] stands between an [`Endpoint`](crate::Endpoint) and its carrier. It protects every
//! packet alike, whatever it contains, so no rule of the endpoint depends on it. Keys are those of
//! a session with one peer address. Two packets set a session up, in which both sides contribute a
//! random number: packets recorded in another session, or before a restart, are not accepted.
//!
//! Without keys the layer can check packets for damage instead ([`Suite::CHECKSUM`], W-148): the
//! key of the sessions is not secret, and the tag is a CRC. This is not authentication.
//!
//! Like the rest of the crate, the layer does no I/O and reads no clock; the host passes in the
//! cryptography as a [`Crypto`].

mod counters;
mod group;
mod keys;
mod layer;
mod packet;
mod peer;
mod seal;
mod session;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy;
mod window;

pub use counters::SecureCounters;
pub use keys::{Key, KeyId};
pub use layer::{Layer, Opened};
pub use packet::{DATA_AT, FLAG_SEC, OVERHEAD, Protected, SETUP_PACKET, Step, TAG_LEN};

use crate::time::Duration;
use alloc::vec::Vec;

/// Protection of a session's packets: a set of bits. Both sides use the union of the bits that they
/// request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suite(pub(crate) u8);

impl Suite {
    /// The packet has a tag, its content is readable.
    pub const INTEGRITY: Suite = Suite(0);
    /// The content is encrypted.
    pub const ENCRYPT: Suite = Suite(1);
    /// ChaCha20-Poly1305 in place of AES-128-GCM, for processors without AES instructions.
    pub const CHACHA: Suite = Suite(2);
    /// CRC-32C in place of a cipher, with [`Key::CHECKSUM`] and without other bits (W-148). It
    /// detects damage, not forgery.
    pub const CHECKSUM: Suite = Suite(4);

    /// Returns the bits of both.
    #[must_use]
    pub const fn union(self, other: Suite) -> Suite {
        Suite(self.0 | other.0)
    }

    /// Returns true if all bits of `other` are set.
    pub const fn contains(self, other: Suite) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the cipher of the suite.
    pub const fn cipher(self) -> Cipher {
        if self.contains(Suite::CHECKSUM) {
            Cipher::Crc32c
        } else if self.contains(Suite::CHACHA) {
            Cipher::ChaCha20Poly1305
        } else {
            Cipher::Aes128Gcm
        }
    }

    pub(crate) const fn from_bits(bits: u8) -> Option<Suite> {
        match bits {
            0..=4 => Some(Suite(bits)),
            _ => None,
        }
    }
}

/// An AEAD with nonces of 12 bytes and tags of 16 bytes, or the checksum in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-128-GCM (NIST SP 800-38D).
    Aes128Gcm,
    /// ChaCha20-Poly1305 (RFC 8439).
    ChaCha20Poly1305,
    /// CRC-32C (RFC 3720, section 12.1). It encrypts nothing and needs no nonce; the tag is the CRC
    /// of key and associated data, big endian, and twelve zeros (W-148).
    Crc32c,
}

impl Cipher {
    /// Returns the length of a key in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            Cipher::Aes128Gcm => 16,
            Cipher::ChaCha20Poly1305 => 32,
            Cipher::Crc32c => 4,
        }
    }
}

/// The cryptography that a [`Layer`] is built on. All comparisons of tags must take constant time.
pub trait Crypto {
    /// A key of a [`Cipher`], ready for use.
    type Key;

    /// Derives `out.len()` bytes (at most 32) from a secret by HKDF-SHA-256 (RFC 5869). `info` is
    /// the concatenation of its parts.
    fn derive(&self, secret: &[u8], salt: &[u8], info: &[&[u8]], out: &mut [u8]);

    /// Returns HMAC-SHA-256 of the concatenated parts.
    fn mac(&self, key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32];

    /// Returns true if `tag` is the HMAC-SHA-256 of the concatenated parts.
    fn verify(&self, key: &[u8; 32], parts: &[&[u8]], tag: &[u8]) -> bool;

    /// Prepares a key; `bytes` has [`Cipher::key_len`] bytes. `None` if the cipher fails.
    fn key(&self, cipher: Cipher, bytes: &[u8]) -> Option<Self::Key>;

    /// Encrypts `text` in place and returns the tag over it and `aad`. `None` if the cipher fails.
    /// `text` is empty where nothing is encrypted.
    fn seal(
        &self,
        key: &Self::Key,
        nonce: [u8; 12],
        aad: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG_LEN]>;

    /// Verifies the tag at the end of `text` and decrypts what precedes it in place. Returns false
    /// if the tag is wrong.
    fn open(&self, key: &Self::Key, nonce: [u8; 12], aad: &[u8], text: &mut [u8]) -> bool;
}

/// Configuration of a [`Layer`].
#[derive(Clone, Debug)]
pub struct SecureConfig {
    /// Keys of the cluster. The first one is used for new sessions, all are accepted. Without any,
    /// no session can be set up.
    pub keys: Vec<Key>,
    /// Drops packets without protection, and sends none (W-147). Otherwise protection is used with
    /// peers that have it.
    pub require: bool,
    /// Protection to request. [`Suite::CHECKSUM`] requires [`Key::CHECKSUM`], and other suites
    /// require other keys (W-148).
    pub suite: Suite,
    /// EtherType of EDP, which set-up packets have.
    pub edp_ethertype: u16,
}

impl SecureConfig {
    /// Returns the configuration of a layer that checks packets for damage and authenticates
    /// nothing (W-148). `require` and `edp_ethertype` are the values of the fields of these names.
    pub fn checksum(require: bool, edp_ethertype: u16) -> SecureConfig {
        SecureConfig {
            keys: alloc::vec![Key::CHECKSUM],
            require,
            suite: Suite::CHECKSUM,
            edp_ethertype,
        }
    }
}

/// Time after which a set-up packet is repeated, if packets wait for it.
const RETRY: Duration = Duration::from_millis(20);
/// Maximum time for which a packet waits for a session. If the peer answers, the session is set up
/// sooner.
const HELD_TIME: Duration = Duration::from_secs(1);
/// Time without a packet from the peer, while packets are sent to it, after which a new session is
/// set up (W-145): it may have restarted.
const SILENCE: Duration = Duration::from_secs(1);
/// Time without a packet from the peer after which packets without protection are again exchanged
/// with it, where these are permitted.
const FORGET: Duration = Duration::from_secs(10);
