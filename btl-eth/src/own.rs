//! Messages of a rank to itself: a bounded queue in memory.

use std::collections::VecDeque;
use std::io::IoSlice;

use btl::{Events, PeerInfo, SendError, gathered_len};

use crate::transport::{EXCLUSIVITY, EthBtl};

/// Maximum number of bytes in the queue, except for a single longer message.
const MAX_BYTES: usize = 1 << 20;
/// Maximum number of messages in the queue.
const MAX_MESSAGES: usize = 4096;

/// Messages that the rank has sent to itself and that were not delivered yet.
#[derive(Default)]
pub(crate) struct OwnQueue {
    /// Length of the header, and header and body.
    messages: VecDeque<(usize, Vec<u8>)>,
    bytes: usize,
}

impl OwnQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = OwnQueue::default();
    }

    pub(crate) fn push(&mut self, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        let length = header.len() + gathered_len(body);
        let is_full = self.bytes + length > MAX_BYTES && !self.is_empty();
        if is_full || self.messages.len() >= MAX_MESSAGES {
            return Err(SendError::Busy);
        }
        self.bytes += length;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(header);
        body.iter().for_each(|part| bytes.extend_from_slice(part));
        self.messages.push_back((header.len(), bytes));
        Ok(())
    }

    fn pop(&mut self) -> Option<(usize, Vec<u8>)> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.1.len();
        Some(message)
    }
}

impl EthBtl {
    pub(crate) fn own_info(&self) -> PeerInfo {
        PeerInfo {
            latency_ns: 200,
            bandwidth: 5000,
            exclusivity: EXCLUSIVITY,
            eager: self.config.eager.min(self.max_send),
            eager_skewed: self.max_send,
            max_send: self.max_send,
            one_sided: false,
            one_sided_from: usize::MAX,
            reason: "the process itself: a queue in memory".into(),
        }
    }

    /// Delivers the messages that are in the queue when it is called.
    pub(crate) fn deliver_own(&mut self, events: &mut dyn Events) -> usize {
        let (count, own) = (self.own_queue.messages.len(), self.config.rank);
        for _ in 0..count {
            let Some((header, bytes)) = self.own_queue.pop() else {
                break;
            };
            let (header, body) = bytes.split_at(header);
            events.message(self, own, header, body);
        }
        count
    }
}
