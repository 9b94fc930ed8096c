//! Sends that wait: for room, for a connection, or because another call used the transport.
//!
//! Short messages are copied. Long ones stay in Open MPI's memory and are reported when sent.

use std::io::IoSlice;

use btl::{QueuedSend, Rank, SendError, SharedTransport, Tx};

use crate::ffi;
use crate::header::Header;
use crate::memory::{self, READ, REGIONS};

/// A send that waits in a rail's queue.
#[derive(Debug)]
pub(crate) enum Queued {
    /// Copy of a message. Its first `header` bytes are the header.
    Copy {
        bytes: Vec<u8>,
        header: usize,
    },
    /// Descriptor of Open MPI.
    Descriptor {
        descriptor: usize,
        tag: u8,
    },
    Put(Put),
    Reply(Reply),
}

/// A put whose bytes from `sent` on are still to be sent.
#[derive(Debug)]
pub(crate) struct Put {
    pub(crate) operation: u64,
    pub(crate) key: u64,
    pub(crate) remote: u64,
    pub(crate) local: usize,
    pub(crate) length: usize,
    pub(crate) sent: usize,
    /// Maximum number of bytes in one message.
    pub(crate) fragment: usize,
}

/// The reply to a peer's get, whose bytes from `sent` on are still to be sent.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) operation: u64,
    pub(crate) key: u64,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) sent: u64,
    /// Maximum number of bytes in one message.
    pub(crate) fragment: usize,
}

/// Result of a send that must be repeated later.
struct MustWait;

/// Returns whether the message was accepted; false if the peer is lost.
///
/// A rank that the transport does not know is one whose `add_peer` was deferred, because only ranks
/// that were added, or will be, get an endpoint.
fn accepted(sent: &Result<(), SendError>) -> Result<bool, MustWait> {
    match sent {
        Err(SendError::Busy | SendError::NoPeer(_)) => Err(MustWait),
        other => Ok(other.is_ok()),
    }
}

impl Put {
    fn send(&mut self, tx: &mut dyn Tx, peer: Rank) -> Result<(), MustWait> {
        loop {
            let end = self.length.min(self.sent + self.fragment);
            let header = Header::Put {
                last: end == self.length,
                operation: self.operation,
                key: self.key,
                address: self.remote.wrapping_add(self.sent as u64),
            }
            .encode();
            // SAFETY: Open MPI leaves the source readable until the put is complete.
            let body = unsafe { memory::bytes(self.local + self.sent, end - self.sent) };
            let alive = accepted(&tx.send(peer, header.as_slice(), &[IoSlice::new(body)]))?;
            self.sent = end;
            if end == self.length || !alive {
                return Ok(());
            }
        }
    }
}

impl Reply {
    fn send(&mut self, tx: &mut dyn Tx, peer: Rank) -> Result<(), MustWait> {
        loop {
            let end = self.length.min(self.sent + self.fragment as u64);
            let size = end - self.sent;
            let header = Header::Data {
                last: end == self.length,
                operation: self.operation,
                offset: self.sent,
            }
            .encode();
            let send_part = |from| {
                // SAFETY: the region is readable there, and stays registered during this call.
                let body = unsafe { memory::bytes(from, usize::try_from(size).unwrap_or(0)) };
                tx.send(peer, header.as_slice(), &[IoSlice::new(body)])
            };
            let address = self.address + self.sent;
            let Some(sent) = REGIONS.with(self.key, address, size, READ, send_part) else {
                // The program has deregistered the region since the request.
                let refused = Header::Done {
                    refused: true,
                    operation: self.operation,
                    value: 0,
                }
                .encode();
                return accepted(&tx.send(peer, refused.as_slice(), &[])).map(|_| ());
            };
            let alive = accepted(&sent)?;
            self.sent = end;
            if end == self.length || !alive {
                return Ok(());
            }
        }
    }
}

impl QueuedSend for Queued {
    /// Counts memory of this component only. It is bounded, because a peer may send requests and
    /// not accept the replies.
    fn cost(&self) -> usize {
        match self {
            Queued::Copy { bytes, .. } => bytes.len(),
            Queued::Reply(_) => size_of::<Queued>(),
            Queued::Descriptor { .. } | Queued::Put(_) => 0,
        }
    }

    fn send<T: Tx>(
        mut self,
        shared: &SharedTransport<T, Queued>,
        tx: &mut dyn Tx,
        peer: Rank,
    ) -> Result<(), Queued> {
        let result = match &mut self {
            Queued::Copy { bytes, header } => {
                let (front, body) = bytes.split_at(*header);
                accepted(&tx.send(peer, front, &[IoSlice::new(body)])).map(|_| ())
            }
            Queued::Descriptor { descriptor, tag } => {
                // SAFETY: Open MPI leaves a queued descriptor alone until its completion.
                let (parts, count) = unsafe { ffi::parts_of(*descriptor) };
                let header = Header::Active { tag: *tag }.encode();
                accepted(&tx.send(peer, header.as_slice(), &parts[..count]))
                    .map(|alive| shared.lend(tx, || ffi::sent(*descriptor, alive)))
            }
            Queued::Put(put) => put.send(tx, peer),
            Queued::Reply(reply) => reply.send(tx, peer),
        };
        result.map_err(|MustWait| self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_replies_are_charged() {
        let copy = Queued::Copy {
            bytes: vec![0; 10],
            header: 2,
        };
        let reply = Queued::Reply(Reply {
            operation: 1,
            key: 2,
            address: 3,
            length: 4,
            sent: 0,
            fragment: 1,
        });
        assert!(copy.cost() == 10 && reply.cost() > 0);
    }

    #[test]
    fn a_peer_whose_addition_is_deferred_is_waited_for() {
        assert!(accepted(&Err(SendError::Busy)).is_err());
        assert!(accepted(&Err(SendError::NoPeer(3))).is_err());
        assert!(matches!(accepted(&Ok(())), Ok(true)));
        assert!(matches!(accepted(&Err(SendError::Closed)), Ok(false)));
    }
}
