//! Broadcasts (W-146): their key does not depend on the receiver.

use alloc::vec::Vec;

use super::keys::KeyId;
use super::layer::Layer;
use super::packet::{DATA_AT, GROUP, GROUP_DATA_AT, emit};
use super::peer::Broadcast;
use super::seal::PacketKey;
use super::{Cipher, Crypto, Suite};
use crate::addr::NodeAddr;
use crate::time::{Duration, Instant};

/// Time for which a broadcast is recent: a node that does not know its sender yet processes it once
/// it has a session.
const RECENT: Duration = Duration::from_secs(1);
/// Maximum number of recent broadcasts.
const MAX_RECENT: usize = 64;
/// Maximum length of a broadcast that waits for a session.
const MAX_WAITING: usize = 256;

impl<C: Crypto> Layer<C> {
    /// Protects a broadcast. With keys it is encrypted in every suite.
    pub(super) fn seal_group(&mut self, now: Instant, mut packet: Vec<u8>) -> Option<Vec<u8>> {
        let sealed = self.seal_group_in(&mut packet);
        match sealed {
            Some(()) => {
                self.counters.auth_sealed += 1;
                if self.recent.len() >= MAX_RECENT {
                    self.recent.pop_front();
                }
                self.recent.push_back((now, self.group - 1));
            }
            None => self.counters.auth_unsent += 1,
        }
        sealed.map(|()| packet)
    }

    /// Returns the counter of the first broadcast of the last second; if there was none, that of
    /// the next one.
    pub(super) fn first_recent(&self, now: Instant) -> u64 {
        let mut recent = self.recent.iter();
        let first = recent.find(|(sent, _)| now.since(*sent) < RECENT);
        first.map_or(self.group, |(_, counter)| *counter)
    }

    fn seal_group_in(&mut self, packet: &mut Vec<u8>) -> Option<()> {
        let (id, key) = (self.keys.first()?.id, self.group_key.as_ref()?);
        let counter = self.group;
        self.group = counter.checked_add(1)?;
        let run = id.0.into_iter().chain(self.boot);
        packet.splice(DATA_AT..DATA_AT, run);
        emit(packet, GROUP, counter);
        packet_key(key, self.group_cipher(), counter).seal(&self.crypto, packet)
    }

    /// Returns the cipher of broadcasts.
    pub(super) fn group_cipher(&self) -> Cipher {
        match self.suite.contains(Suite::CHECKSUM) {
            true => Cipher::Crc32c,
            false => Cipher::Aes128Gcm,
        }
    }

    /// Verifies a broadcast and writes it without protection to `opened`. Only broadcasts of the
    /// run that the sender named in a session are accepted, each counter once. One of another run
    /// starts the set-up of a session, and waits for it.
    pub(super) fn open_group(
        &mut self,
        now: Instant,
        src: NodeAddr,
        (key, boot): (KeyId, [u8; 16]),
        counter: u64,
        body: &[u8],
    ) -> bool {
        let Some(key) = self.keys.iter().find(|known| known.id == key) else {
            self.counters.auth_drop_key += 1;
            return false;
        };
        let cipher = self.group_cipher();
        let key = key.group(&self.crypto, cipher, src, &boot);
        let opened = key.and_then(|key| {
            packet_key(&key, cipher, counter).open(&self.crypto, body, &mut self.opened)
        });
        if opened.is_none() {
            self.counters.auth_drop_forged += 1;
            return false;
        }
        let run = self.peer(now, src).run.as_mut();
        let Some(run) = run.filter(|run| run.boot == boot) else {
            self.counters.auth_group_waits += 1;
            if self.opened.len() <= MAX_WAITING {
                let packet = self.opened.clone();
                self.peer(now, src).broadcast = Some(Broadcast {
                    boot,
                    counter,
                    packet,
                });
            }
            self.greet(now, src, true);
            return false;
        };
        if !run.window.is_new(counter) {
            self.counters.auth_drop_replay += 1;
            return false;
        }
        run.window.record(counter);
        self.counters.auth_opened += 1;
        true
    }
}

fn packet_key<K>(key: &K, cipher: Cipher, counter: u64) -> PacketKey<'_, K> {
    PacketKey {
        key,
        encrypts: cipher != Cipher::Crc32c,
        counter,
        data_at: GROUP_DATA_AT,
    }
}
