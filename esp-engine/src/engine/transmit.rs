//! Transmission of frames: the endpoint builds headers; payloads are sent from where they are.

use std::ptr::NonNull;

use esp_proto::{HEAD_LEN, Instant, NodeAddr, PREFIX_LEN, Payload, Transmit};

use super::carrier::destination;
use super::link::Link;
use super::streams::joined_mut;
use super::{RX_BATCH, SEND_PATIENCE, TX_BATCHES};

/// Maximum length of a payload that is copied to the end of the header: cheaper for the kernel than
/// a second part.
const INLINE: usize = 128;
/// Content of probes (W-51: without meaning).
static FILLER: [u8; 65536] = [0; 65536];

impl Link {
    /// Transmits the endpoint's frames, at most [`TX_BATCHES`] batches. Returns true if any was
    /// sent.
    pub(super) fn transmit(&mut self, now: Instant) -> bool {
        let mut any = false;
        for _ in 0..TX_BATCHES {
            let full = self.fill(now);
            if self.tx.is_empty() {
                break;
            }
            // An empty batch: each of its frames was too long, and later ones may not be.
            if self.flush(now) == 0 && !self.tx.is_empty() {
                break;
            }
            any = true;
            if !full {
                break;
            }
        }
        any
    }

    /// Builds frames until the batch is full (returns true) or the endpoint has no more (false).
    pub(super) fn fill(&mut self, now: Instant) -> bool {
        loop {
            if self.is_full() || self.is_kept_for_datagrams() {
                return true;
            }
            if self.secure.is_some() && self.fill_setup() {
                continue;
            }
            let Some(head) = self.tx.head() else {
                return true;
            };
            let Some(transmit) = self.endpoint.poll_transmit(now, head) else {
                return false;
            };
            self.enqueue(now, PREFIX_LEN, transmit);
        }
    }

    /// Queues the frame whose header is in the batch's next slot. `prefix` bytes of it precede the
    /// payload.
    pub(super) fn enqueue(&mut self, now: Instant, prefix: usize, transmit: Transmit) {
        let Transmit {
            dst,
            payload,
            tail_len,
            ..
        } = transmit;
        let (pointer, len) = match payload {
            Payload::None => (NonNull::dangling(), 0),
            Payload::Stream { conn, offset, len } => {
                let len = usize::from(len);
                let found =
                    joined_mut(&mut self.streams, conn).and_then(|j| j.tx.payload(offset, len));
                match found {
                    Some(pointer) => (pointer, len),
                    None => {
                        // A bug: the endpoint asked for bytes that its program has not written.
                        debug_assert!(false, "segment outside the ring");
                        self.stats.tx_errors += 1;
                        return;
                    }
                }
            }
            Payload::Filler { len } => {
                let filler = FILLER.get(..usize::from(len)).unwrap_or(&FILLER);
                (NonNull::from(filler).cast(), filler.len())
            }
            Payload::Owned(bytes) => {
                self.enqueue_owned(now, prefix, dst, bytes.into_vec(), tail_len);
                return;
            }
        };
        self.enqueue_located(now, prefix, dst, (pointer, len), tail_len);
    }

    /// Queues a frame with an owned payload, which is kept until the batch is sent, and then
    /// reused.
    pub(super) fn enqueue_owned(
        &mut self,
        now: Instant,
        prefix: usize,
        dst: NodeAddr,
        bytes: Vec<u8>,
        tail_len: usize,
    ) {
        // On the heap, so it does not move with its owner.
        let payload = (NonNull::from(&*bytes).cast(), bytes.len());
        if self.enqueue_located(now, prefix, dst, payload, tail_len) {
            self.owned.push(bytes);
        } else {
            self.recycle(bytes);
        }
    }

    /// Keeps a used buffer.
    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare_buffers.len() < RX_BATCH {
            self.spare_buffers.push(buffer);
        }
    }

    /// Queues a frame by the address of its payload: in a ring, in `owned`, or the filler. Returns
    /// false if the batch does not refer to it.
    fn enqueue_located(
        &mut self,
        now: Instant,
        prefix: usize,
        dst: NodeAddr,
        (pointer, len): (NonNull<u8>, usize),
        tail_len: usize,
    ) -> bool {
        if dst == self.endpoint.addr() {
            self.enqueue_loopback(prefix, pointer, len, tail_len);
            return false;
        }
        if self.protects(now, dst) {
            // SAFETY: as for `queue`. A program may change its ring bytes concurrently; the packet
            // and its tag are made of one copy.
            let payload = unsafe { std::slice::from_raw_parts(pointer.as_ptr(), len) };
            self.enqueue_protected(now, prefix, dst, payload, tail_len);
            return false;
        }
        self.queue(prefix, dst, (pointer, len), tail_len)
    }

    /// Queues a frame for the wire as it is. Returns false if the batch does not refer to its
    /// payload.
    pub(super) fn queue(
        &mut self,
        prefix: usize,
        dst: NodeAddr,
        (pointer, len): (NonNull<u8>, usize),
        tail_len: usize,
    ) -> bool {
        self.tx.set_destination(destination(dst));
        if len == 0 {
            self.tx.push_inline(prefix + tail_len);
        } else if len <= INLINE && prefix + len + tail_len <= HEAD_LEN {
            if let Some(head) = self.tx.head() {
                head.copy_within(prefix..prefix + tail_len, prefix + len);
                // SAFETY: `pointer` covers `len` readable bytes (ring range checked by `payload`,
                // static filler, or a vector kept in `owned`); the head is our own memory, so they
                // do not overlap, and has room for them.
                unsafe {
                    pointer
                        .as_ptr()
                        .copy_to_nonoverlapping(head[prefix..].as_mut_ptr(), len);
                };
            }
            self.tx.push_inline(prefix + len + tail_len);
        } else {
            // SAFETY: the bytes stay where they are until the batch is flushed: ring bytes until
            // acknowledged and their region until the batch is empty (`retired_regions`), vectors
            // in `owned`, the filler forever.
            unsafe { self.tx.push(prefix, Some((pointer, len)), tail_len) };
            return true;
        }
        false
    }

    #[cold]
    fn enqueue_loopback(
        &mut self,
        prefix: usize,
        pointer: NonNull<u8>,
        len: usize,
        tail_len: usize,
    ) {
        let Some(head) = self.tx.head() else { return };
        let head = *head;
        // SAFETY: as in `enqueue_located`. A program may change its ring bytes concurrently; its
        // peer then receives the changed bytes.
        let payload = unsafe { std::slice::from_raw_parts(pointer.as_ptr(), len) };
        let (front, rest) = head.split_at(prefix.min(HEAD_LEN));
        self.loop_back([front, payload, rest.get(..tail_len).unwrap_or_default()]);
    }

    /// Passes the batch to the kernel. Refused frames stay for the next iteration. Returns the
    /// number of frames taken.
    fn flush(&mut self, now: Instant) -> usize {
        if self.pcap.is_some() {
            self.tap_batch();
        }
        let rejected = self.tx.rejected();
        let sent = match self.carrier.send(&mut self.tx) {
            Ok(sent) => {
                self.stats.tx_batches += 1;
                sent
            }
            Err(_) => {
                // Link down or removed: the frames are lost as on a cut wire, and retransmitted by
                // the protocol.
                self.stats.tx_errors += 1;
                let lost = self.tx.len();
                self.tx.clear();
                lost
            }
        };
        self.stats.tx_unreachable += self.tx.take_unreachable();
        if self.tx.rejected() != rejected {
            // An embedded engine learns here that the MTU was lowered.
            self.poll_state(now);
        }
        if self.tx.is_empty() {
            while let Some(used) = self.owned.pop() {
                self.recycle(used);
            }
            self.retired_regions.clear();
        } else {
            self.stats.tx_blocked += 1;
        }
        if sent > 0 || self.tx.is_empty() {
            self.tx_stuck = None;
        } else if now.since(*self.tx_stuck.get_or_insert(now)) >= SEND_PATIENCE {
            // The time is not reset: further refused frames after it need not wait as long.
            self.tx.skip();
            self.stats.tx_given_up += 1;
        }
        sent
    }

    /// Writes the frames of the batch to the pcap file. A frame that the kernel refuses is written
    /// again when it is sent.
    #[cold]
    fn tap_batch(&mut self) {
        let Some(pcap) = &self.pcap else { return };
        let mut frame = vec![0; FILLER.len() + HEAD_LEN];
        for index in 0..self.tx.len() {
            if let Some(len) = self.tx.copy_frame(index, &mut frame) {
                pcap.write(frame.get(..len).unwrap_or(&frame));
            }
        }
    }
}
