//! Keys of the cluster, and the values derived from them (W-142).

use core::fmt;
use core::net::IpAddr;

use super::{Cipher, Crypto};
use crate::addr::NodeAddr;

/// Length of a key of the cluster in bytes.
const KEY_LEN: usize = 32;
/// Labels of derived keys.
const LABEL_SETUP: &[u8] = b"esp auth 1 set-up";
const LABEL_ID: &[u8] = b"esp auth 1 key id";
const LABEL_SESSION: &[u8] = b"esp auth 1 session";
const LABEL_SESSION_ID: &[u8] = b"esp auth 1 session id";
const LABEL_PACKETS: &[u8] = b"esp auth 1 packets";
const LABEL_GROUP: &[u8] = b"esp auth 1 group";

/// A key that all nodes of a cluster share: 32 random bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_LEN]);

impl Key {
    /// The key of checksums (W-148): it is public, and authenticates nothing.
    pub const CHECKSUM: Key = Key(*b"esp checksum, no authentication.");

    /// Creates a key from its bytes.
    pub const fn new(bytes: [u8; KEY_LEN]) -> Key {
        Key(bytes)
    }

    /// Returns the public name of the key.
    pub fn id<C: Crypto>(&self, crypto: &C) -> KeyId {
        let mut id = [0; 4];
        crypto.derive(&self.0, &[], &[LABEL_ID], &mut id);
        KeyId(id)
    }
}

impl fmt::Debug for Key {
    /// Does not show the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Public name of a [`Key`], derived from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyId(pub [u8; 4]);

/// A key of the cluster with the parts that do not depend on a session.
pub(super) struct Ready {
    key: Key,
    pub(super) id: KeyId,
    setup: [u8; 32],
}

impl Ready {
    pub(super) fn new<C: Crypto>(crypto: &C, key: Key) -> Ready {
        let mut setup = [0; 32];
        crypto.derive(&key.0, &[], &[LABEL_SETUP], &mut setup);
        Ready {
            id: key.id(crypto),
            key,
            setup,
        }
    }

    /// Returns the tag of a set-up packet from `src` to `dst`.
    pub(super) fn sign<C: Crypto>(&self, crypto: &C, path: Path, packet: &[u8]) -> [u8; 32] {
        let (src, dst) = path.bytes();
        crypto.mac(&self.setup, &[src.get(), dst.get(), packet])
    }

    /// Returns true if the tag of a set-up packet is right.
    pub(super) fn verify<C: Crypto>(
        &self,
        crypto: &C,
        path: Path,
        packet: &[u8],
        tag: &[u8],
    ) -> bool {
        let (src, dst) = path.bytes();
        crypto.verify(&self.setup, &[src.get(), dst.get(), packet], tag)
    }

    /// Derives the secret of the session of two nonces.
    pub(super) fn session<C: Crypto>(&self, crypto: &C, nonces: &[u8; 32]) -> Secret {
        let mut secret = [0; 32];
        crypto.derive(&self.key.0, nonces, &[LABEL_SESSION], &mut secret);
        Secret(secret)
    }

    /// Derives the key of the broadcasts that `src` sends in one run.
    pub(super) fn group<C: Crypto>(
        &self,
        crypto: &C,
        cipher: Cipher,
        src: NodeAddr,
        boot: &[u8; 16],
    ) -> Option<C::Key> {
        let mut bytes = [0; 32];
        let bytes = bytes.get_mut(..cipher.key_len())?;
        let src = Bytes::of(src);
        crypto.derive(&self.key.0, boot, &[LABEL_GROUP, src.get()], bytes);
        crypto.key(cipher, bytes)
    }
}

/// Secret of a session.
pub(super) struct Secret([u8; 32]);

impl Secret {
    /// Returns the session's id, at least 2^31.
    pub(super) fn id<C: Crypto>(&self, crypto: &C) -> u32 {
        let mut id = [0; 4];
        crypto.derive(&self.0, &[], &[LABEL_SESSION_ID], &mut id);
        u32::from_be_bytes(id) | 1 << 31
    }

    /// Derives the key of one direction and epoch.
    pub(super) fn packets<C: Crypto>(
        &self,
        crypto: &C,
        path: Path,
        suite: super::Suite,
        epoch: u64,
    ) -> Option<C::Key> {
        let (src, dst) = path.bytes();
        let cipher = suite.cipher();
        let info = [
            LABEL_PACKETS,
            &[suite.0],
            src.get(),
            dst.get(),
            &epoch.to_be_bytes(),
        ];
        let mut bytes = [0; 32];
        let bytes = bytes.get_mut(..cipher.key_len())?;
        crypto.derive(&self.0, &[], &info, bytes);
        crypto.key(cipher, bytes)
    }
}

/// Source and destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) src: NodeAddr,
    pub(super) dst: NodeAddr,
}

impl Path {
    fn bytes(self) -> (Bytes, Bytes) {
        (Bytes::of(self.src), Bytes::of(self.dst))
    }
}

/// An address as it enters a derivation: its kind, then its bytes.
struct Bytes {
    bytes: [u8; 19],
    len: usize,
}

impl Bytes {
    fn of(addr: NodeAddr) -> Bytes {
        let mut all = Bytes {
            bytes: [0; 19],
            len: 0,
        };
        match addr {
            NodeAddr::Mac(mac) => all.add(&[1]).add(&mac.0),
            NodeAddr::Udp(at) => {
                match at.ip() {
                    IpAddr::V4(ip) => all.add(&[4]).add(&ip.octets()),
                    IpAddr::V6(ip) => all.add(&[6]).add(&ip.octets()),
                };
                all.add(&at.port().to_be_bytes())
            }
        };
        all
    }

    fn add(&mut self, part: &[u8]) -> &mut Bytes {
        crate::wire::put(&mut self.bytes, self.len, part);
        self.len += part.len();
        self
    }

    fn get(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}
