//! Broadcasts (W-146): their key does not depend on the receiver.

use alloc::vec::Vec;

use super::Crypto;
use super::keys::KeyId;
use super::layer::Layer;
use super::packet::{DATA_AT, GROUP, GROUP_DATA_AT, TAG_LEN, clear_flag, emit};
use super::session::nonce;
use crate::addr::NodeAddr;
use crate::time::Instant;
use crate::wire::HEADER_LEN;

impl<C: Crypto> Layer<C> {
    /// Protects a broadcast, which is always encrypted.
    pub(super) fn seal_group(&mut self, mut packet: Vec<u8>) -> Option<Vec<u8>> {
        let sealed = self.seal_group_in(&mut packet);
        match sealed {
            Some(()) => self.counters.auth_sealed += 1,
            None => self.counters.auth_unsent += 1,
        }
        sealed.map(|()| packet)
    }

    fn seal_group_in(&mut self, packet: &mut Vec<u8>) -> Option<()> {
        let (id, key) = (self.keys.first()?.id, self.group_key.as_ref()?);
        let counter = self.group;
        self.group = counter.checked_add(1)?;
        let run = id.0.into_iter().chain(self.boot);
        packet.splice(DATA_AT..DATA_AT, run);
        emit(packet, GROUP, counter);
        let (aad, text) = packet.split_at_mut_checked(GROUP_DATA_AT)?;
        let tag = self.crypto.seal(key, nonce(counter), aad, text)?;
        packet.extend_from_slice(&tag);
        Some(())
    }

    /// Verifies a broadcast and writes it without protection to `opened`. Only the run that the
    /// sender named in a session is accepted, and each counter once; the first broadcast of another
    /// one leads to a session, after which its sender repeats it.
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
        let key = key.group(&self.crypto, src, &boot);
        let opened = key.and_then(|key| open(&self.crypto, &key, counter, body, &mut self.opened));
        if opened.is_none() {
            self.counters.auth_drop_forged += 1;
            return false;
        }
        let run = self.peer(now, src).run.as_mut();
        let Some(run) = run.filter(|run| run.boot == boot) else {
            self.counters.auth_drop_group_unknown += 1;
            self.greet(now, src, false);
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

fn open<C: Crypto>(
    crypto: &C,
    key: &C::Key,
    counter: u64,
    body: &[u8],
    out: &mut Vec<u8>,
) -> Option<()> {
    let (aad, content) = body.split_at_checked(GROUP_DATA_AT)?;
    let len = HEADER_LEN + content.len().checked_sub(TAG_LEN)?;
    out.clear();
    out.extend_from_slice(aad.get(..HEADER_LEN)?);
    out.extend_from_slice(content);
    let valid = crypto.open(key, nonce(counter), aad, out.get_mut(HEADER_LEN..)?);
    out.truncate(len);
    clear_flag(out);
    valid.then_some(())
}
