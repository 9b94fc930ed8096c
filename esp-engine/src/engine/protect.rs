//! Protection of a link's packets (section 15 of the wire format): between the endpoint and the
//! carrier.

use std::ptr::NonNull;

use esp_proto::secure::{self, DATA_AT, Key, Layer, SecureConfig};
use esp_proto::wire::HEADER_LEN;
use esp_proto::{Instant, NodeAddr, PREFIX_LEN};

use super::entropy;
use super::link::Link;
use crate::config::EngineError;
use crate::crypto::Aead;

/// Protection layer of a link.
pub(super) type Secure = Layer<Aead>;

/// Bytes that protection adds to a packet.
pub(super) const OVERHEAD: u16 = secure::OVERHEAD as u16;
/// Bytes of the addresses, which precede the packet in a frame.
const ADDRESSES: usize = PREFIX_LEN - HEADER_LEN;

/// Returns the MTU of frames at this address (W-08, W-121, W-141), in bytes after the EtherType,
/// for an interface MTU.
pub fn frame_mtu(addr: NodeAddr, mtu: u32, protected: bool) -> u32 {
    let overhead = if protected { OVERHEAD.into() } else { 0 };
    addr.frame_mtu(mtu).saturating_sub(overhead)
}

impl Link {
    /// Protects all packets from now on.
    pub(super) fn protect(&mut self, config: SecureConfig) -> Result<(), EngineError> {
        let mut seed = [0; 32];
        entropy(&mut seed)?;
        let own = self.endpoint.addr();
        self.secure = Some(Layer::new(config, Aead, own, seed));
        Ok(())
    }

    /// Replaces the keys.
    pub(super) fn set_keys(&mut self, keys: Vec<Key>) {
        if let Some(secure) = &mut self.secure {
            secure.set_keys(keys);
        }
    }

    /// Returns true if a packet to this address has to be protected.
    #[inline]
    pub(super) fn protects(&mut self, now: Instant, dst: NodeAddr) -> bool {
        match &mut self.secure {
            None => false,
            Some(secure) => secure.protects(now, dst),
        }
    }

    /// Queues a packet of the layer itself. Returns false if it has none, or the batch is full.
    pub(super) fn fill_setup(&mut self) -> bool {
        if self.tx.is_full() {
            return false;
        }
        let Some((dst, packet)) = self.secure.as_mut().and_then(Layer::poll_transmit) else {
            return false;
        };
        if let Some(head) = self.tx.head() {
            let own = self.endpoint.addr().mac().unwrap_or_default();
            let to = dst.mac().unwrap_or_default();
            let (addresses, _) = head.split_at_mut(ADDRESSES);
            let (first, second) = addresses.split_at_mut(ADDRESSES / 2);
            first.copy_from_slice(&to.octets());
            second.copy_from_slice(&own.octets());
        }
        self.queue_packet(dst, packet);
        true
    }

    /// Protects and queues the frame whose header is in the batch's next slot. The payload is
    /// copied: it is not encrypted in the program's memory.
    pub(super) fn enqueue_protected(
        &mut self,
        now: Instant,
        prefix: usize,
        dst: NodeAddr,
        payload: &[u8],
        tail_len: usize,
    ) {
        let mut packet = self.spare_buffers.pop().unwrap_or_default();
        packet.clear();
        let Some(head) = self.tx.head() else { return };
        let (Some(header), Some(inlined), Some(tail)) = (
            head.get(ADDRESSES..PREFIX_LEN),
            head.get(PREFIX_LEN..prefix),
            head.get(prefix..prefix + tail_len),
        ) else {
            return;
        };
        packet.extend_from_slice(header);
        packet.extend_from_slice(&[0; DATA_AT - HEADER_LEN]);
        packet.extend_from_slice(inlined);
        packet.extend_from_slice(payload);
        packet.extend_from_slice(tail);
        let sealed = match &mut self.secure {
            Some(secure) => secure.seal(now, dst, packet),
            None => None,
        };
        if let Some(packet) = sealed {
            self.queue_packet(dst, packet);
        }
    }

    /// Queues a packet whose addresses are in the batch's next slot.
    fn queue_packet(&mut self, dst: NodeAddr, packet: Vec<u8>) {
        let payload = (NonNull::from(&*packet).cast(), packet.len());
        if self.queue(ADDRESSES, dst, payload, 0) {
            self.owned.push(packet);
        } else {
            self.recycle(packet);
        }
    }
}
