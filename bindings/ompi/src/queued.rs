//! Sends that wait for room or a connection, or because another call used the transport.
//!
//! Short messages are copied. Long ones stay in Open MPI's memory and are reported when sent.

use std::io::IoSlice;

use btl::{QueuedSend, Rank, SendError, SharedTransport, Tx};

use crate::ffi;
use crate::header::{Header, Target};
use crate::memory::{self, READ, REGIONS};
use crate::runtime::RUNTIME;

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
    Transfer(Transfer),
}

/// A put, or the reply to a peer's get, whose first `sent` bytes were sent.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Destination of a put, or source of a get.
    pub(crate) target: Target,
    /// Address of the bytes of a put; `None` for the reply to a get.
    pub(crate) local: Option<usize>,
    pub(crate) length: u64,
    pub(crate) sent: u64,
    /// Maximum number of bytes in one message.
    pub(crate) fragment: usize,
}

/// Result of a send that must be repeated later.
struct MustWait;

/// Returns true if the message was accepted, false if the peer is lost.
///
/// If the transport does not know a rank, its `add_peer` was deferred: only ranks that were or will
/// be added have an endpoint.
fn accepted(sent: &Result<(), SendError>) -> Result<bool, MustWait> {
    match sent {
        Err(SendError::Busy | SendError::NoPeer(_)) => Err(MustWait),
        other => Ok(other.is_ok()),
    }
}

impl Transfer {
    /// Sends the remaining bytes. Returns false if the peer is lost.
    fn send(&mut self, tx: &mut dyn Tx, peer: Rank) -> Result<bool, MustWait> {
        let Target { operation, key, .. } = self.target;
        loop {
            let offset = self.sent;
            let end = self.length.min(offset + self.fragment as u64);
            let (size, last) = (end - offset, end == self.length);
            let address = self.target.address.wrapping_add(offset);
            let mut send_part = |header: Header, from| {
                // SAFETY: Open MPI leaves the source of a put readable until it is complete. A
                // region is readable, and stays registered during this call.
                let body = unsafe { memory::bytes(from, usize::try_from(size).unwrap_or(0)) };
                tx.send(peer, header.encode().as_slice(), &[IoSlice::new(body)])
            };
            let sent = if let Some(local) = self.local {
                let target = Target {
                    address,
                    ..self.target
                };
                let from = local + usize::try_from(offset).unwrap_or(0);
                Some(send_part(Header::Put { last, target }, from))
            } else {
                let header = Header::Data {
                    last,
                    operation,
                    offset,
                };
                REGIONS.with(key, address, size, READ, |from| send_part(header, from))
            };
            let Some(sent) = sent else {
                // The program has deregistered the region since the request.
                let refused = Header::Done {
                    refused: true,
                    operation,
                    value: 0,
                };
                return accepted(&tx.send(peer, refused.encode().as_slice(), &[]));
            };
            let alive = accepted(&sent)?;
            self.sent = end;
            if last || !alive {
                return Ok(alive);
            }
        }
    }
}

impl Queued {
    /// Returns the number of the operation of this process that the item belongs to; `None` for a
    /// message of Open MPI and a reply.
    fn own_operation(&self) -> Option<u64> {
        match self {
            Queued::Copy { bytes, header } => match Header::decode(bytes.get(..*header)?)? {
                Header::Put { target, .. }
                | Header::Get { target, .. }
                | Header::Atomic { target, .. } => Some(target.operation),
                Header::Active { .. } | Header::Data { .. } | Header::Done { .. } => None,
            },
            Queued::Transfer(transfer) => transfer.local.map(|_| transfer.target.operation),
            Queued::Descriptor { .. } => None,
        }
    }
}

impl QueuedSend for Queued {
    /// Counts only memory of this component. It has a bound, because a peer may send requests and
    /// not accept the replies.
    fn cost(&self) -> usize {
        match self {
            Queued::Copy { bytes, .. } => bytes.len(),
            Queued::Transfer(Transfer { local: None, .. }) => size_of::<Queued>(),
            Queued::Descriptor { .. } | Queued::Transfer(_) => 0,
        }
    }

    fn send<T: Tx>(
        mut self,
        shared: &SharedTransport<T, Queued>,
        tx: &mut dyn Tx,
        peer: Rank,
    ) -> Result<(), Queued> {
        let sent = match &mut self {
            Queued::Copy { bytes, header } => {
                let (front, body) = bytes.split_at(*header);
                accepted(&tx.send(peer, front, &[IoSlice::new(body)]))
            }
            Queued::Descriptor { descriptor, tag } => {
                // SAFETY: Open MPI does not change or free a queued descriptor until its
                // completion.
                let (parts, count) = unsafe { ffi::parts_of(*descriptor) };
                let header = Header::Active { tag: *tag }.encode();
                let sent = accepted(&tx.send(peer, header.as_slice(), &parts[..count]));
                sent.inspect(|alive| shared.lend(tx, || RUNTIME.sent(*descriptor, *alive)))
            }
            Queued::Transfer(transfer) => transfer.send(tx, peer),
        };
        let Ok(alive) = sent else { return Err(self) };
        // The loss was reported before the item was queued, so it ended only earlier operations.
        if let Some(operation) = self.own_operation().filter(|_| !alive) {
            shared.lend(tx, || RUNTIME.fail_operation(operation));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{Endpoint, RemoteRail};
    use crate::ffi::testing::Completion;
    use crate::onesided::OperationKind;

    /// A transport whose peer is lost.
    struct Lost;

    impl Tx for Lost {
        fn send(&mut self, peer: Rank, _: &[u8], _: &[IoSlice<'_>]) -> Result<(), SendError> {
            let error = btl::PeerError::Died;
            Err(SendError::Failed { peer, error })
        }
    }

    impl btl::HeldSends for Lost {}
    impl btl::NoticedPuts for Lost {}

    #[test]
    fn operations_of_a_lost_peer_fail() {
        let endpoint = Endpoint {
            rail: 0,
            remote: RemoteRail(5),
        };
        let source = [7_u8; 100];
        let local = source.as_ptr().expose_provenance();
        let get = |target| {
            let header = Header::Get { target, length: 1 }.encode();
            let bytes = header.as_slice().to_vec();
            Queued::Copy {
                header: bytes.len(),
                bytes,
            }
        };
        let put = |target| {
            Queued::Transfer(Transfer {
                target,
                local: Some(local),
                length: 100,
                sent: 0,
                fragment: 10,
            })
        };
        let items: [&dyn Fn(Target) -> Queued; 2] = [&get, &put];
        for item in items {
            let completion = Completion::new();
            let add = |kind| {
                RUNTIME
                    .operations
                    .add(endpoint, kind, completion.raw(), 1, 2)
            };
            let item = item(add(OperationKind::Put));
            let sent = item.send(&SharedTransport::<Lost, Queued>::new(), &mut Lost, 5);
            assert!(sent.is_ok());
            assert_eq!(completion.status(), Some(ffi::ERROR));
            assert!(RUNTIME.operations.take_all(endpoint).is_empty());
        }
    }

    #[test]
    fn copies_and_replies_are_charged() {
        let copy = Queued::Copy {
            bytes: vec![0; 10],
            header: 2,
        };
        let transfer = |local| {
            Queued::Transfer(Transfer {
                target: Target {
                    operation: 1,
                    key: 2,
                    address: 3,
                },
                local,
                length: 4,
                sent: 0,
                fragment: 1,
            })
        };
        assert_eq!(copy.cost(), 10);
        assert!(transfer(None).cost() > 0 && transfer(Some(7)).cost() == 0);
    }

    #[test]
    fn a_peer_whose_addition_is_deferred_is_waited_for() {
        assert!(accepted(&Err(SendError::Busy)).is_err());
        assert!(accepted(&Err(SendError::NoPeer(3))).is_err());
        assert!(matches!(accepted(&Ok(())), Ok(true)));
        assert!(matches!(accepted(&Err(SendError::Closed)), Ok(false)));
    }
}
