//! Messages of a rank to itself: a bounded queue in memory.

use std::collections::VecDeque;
use std::io::IoSlice;

use btl::{Events, SendError, gathered_len};

use crate::transport::EthBtl;

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
}

impl EthBtl {
    /// Delivers the messages that are in the queue when it is called.
    pub(crate) fn deliver_own(&mut self, events: &mut dyn Events) -> usize {
        let (count, own) = (self.own_queue.messages.len(), self.config.rank);
        for _ in 0..count {
            let Some((header, bytes)) = self.own_queue.messages.pop_front() else {
                break;
            };
            self.own_queue.bytes -= bytes.len();
            let (header, body) = bytes.split_at(header);
            events.message(self, own, header, body);
        }
        count
    }
}
