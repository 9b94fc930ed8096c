//! Keys, counters and replay window of one session.

use alloc::vec::Vec;

use super::keys::{KeyId, Path, Secret};
use super::packet::{DATA_AT, emit};
use super::seal::PacketKey;
use super::window::Window;
use super::{Crypto, Suite};

/// Bits of the counter within an epoch: a key protects 2^23 packets (W-142), the limit that RFC
/// 9001, section 6.6, gives for AES-GCM.
const EPOCH_BITS: u32 = 23;

/// Reason why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The counter was used before, or is too old.
    Replay,
    /// The tag is wrong.
    Forged,
}

/// A session with a peer.
pub(super) struct Session<K> {
    pub(super) id: u32,
    /// Key of the cluster that it was set up with.
    pub(super) key: KeyId,
    pub(super) nonces: [u8; 32],
    suite: Suite,
    secret: Secret,
    /// Paths of sent and received packets.
    out: Path,
    back: Path,
    /// Counter of the next packet sent.
    next: u64,
    sending: Option<Epoch<K>>,
    receiving: Option<Epoch<K>>,
    /// The epoch before that of `receiving`.
    before: Option<Epoch<K>>,
    window: Window,
}

/// Key of one direction and epoch.
struct Epoch<K> {
    number: u64,
    key: K,
}

impl<K> Session<K> {
    /// Creates the session of a secret; `out` is the path of the packets it sends.
    pub(super) fn new<C: Crypto<Key = K>>(
        crypto: &C,
        secret: Secret,
        (key, nonces): (KeyId, [u8; 32]),
        suite: Suite,
        out: Path,
    ) -> Session<K> {
        Session {
            id: secret.id(crypto),
            key,
            nonces,
            suite,
            secret,
            out,
            back: Path {
                src: out.dst,
                dst: out.src,
            },
            next: 0,
            sending: None,
            receiving: None,
            before: None,
            window: Window::default(),
        }
    }

    fn derive<C: Crypto<Key = K>>(&self, crypto: &C, path: Path, number: u64) -> Option<Epoch<K>> {
        let key = self.secret.packets(crypto, path, self.suite, number)?;
        Some(Epoch { number, key })
    }

    /// Protects a packet in which [`DATA_AT`] bytes precede the content (W-141). `None` if the
    /// counter is exhausted or the cipher fails.
    pub(super) fn seal<C: Crypto<Key = K>>(
        &mut self,
        crypto: &C,
        packet: &mut Vec<u8>,
    ) -> Option<()> {
        let counter = self.next;
        self.next = counter.checked_add(1)?;
        let number = counter >> EPOCH_BITS;
        if self.sending.as_ref().map(|epoch| epoch.number) != Some(number) {
            self.sending = self.derive(crypto, self.out, number);
        }
        let key = &self.sending.as_ref()?.key;
        emit(packet, self.id, counter);
        self.packet_key(key, counter).seal(crypto, packet)
    }

    fn packet_key<'a>(&self, key: &'a K, counter: u64) -> PacketKey<'a, K> {
        PacketKey {
            key,
            encrypts: self.suite.contains(Suite::ENCRYPT),
            counter,
            data_at: DATA_AT,
        }
    }

    /// Verifies a packet and writes it without protection to `out` (W-144).
    pub(super) fn open<C: Crypto<Key = K>>(
        &mut self,
        crypto: &C,
        counter: u64,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        if !self.window.is_new(counter) {
            return Err(Refused::Replay);
        }
        let number = counter >> EPOCH_BITS;
        let mut known = self.receiving.iter().chain(&self.before);
        let opened = match known.find(|epoch| epoch.number == number) {
            Some(epoch) => self.packet_key(&epoch.key, counter).open(crypto, body, out),
            None => self.open_next(crypto, (number, counter), body, out),
        };
        opened.ok_or(Refused::Forged)?;
        self.window.record(counter);
        Ok(())
    }

    /// Opens the first packet of the next epoch.
    fn open_next<C: Crypto<Key = K>>(
        &mut self,
        crypto: &C,
        (number, counter): (u64, u64),
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let next = self.receiving.as_ref().map_or(0, |epoch| epoch.number + 1);
        if number != next {
            return None;
        }
        let epoch = self.derive(crypto, self.back, number)?;
        self.packet_key(&epoch.key, counter)
            .open(crypto, body, out)?;
        self.before = self.receiving.replace(epoch);
        Some(())
    }

    /// Sets the counter of the next packet.
    #[cfg(test)]
    pub(super) fn skip_to(&mut self, counter: u64) {
        self.next = counter;
    }
}
