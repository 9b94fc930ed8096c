//! Accepted streams whose peer has not identified itself, was not added yet, or has an earlier
//! stream that has not ended.

use std::io::ErrorKind;

use btl::Rank;
use esp_client::EspAddr;

use crate::channel::Channel;
use crate::record::{self, Hello, Kind};

/// An accepted stream.
pub(crate) struct PendingConnection {
    pub(crate) channel: Channel,
    /// Origin of the stream.
    pub(crate) from: EspAddr,
    /// Set when the peer has identified itself.
    pub(crate) hello: Option<Hello>,
}

/// Reason why a pending stream has no HELLO.
pub(crate) enum NoHello {
    /// It may still arrive.
    Awaited,
    /// The stream ended.
    Ended,
    /// The first record is another one.
    Malformed,
}

impl PendingConnection {
    /// Returns whether the peer has identified itself as `rank`.
    pub(crate) fn is_from(&self, rank: Rank) -> bool {
        self.hello.is_some_and(|hello| hello.from == rank)
    }

    /// Returns whether the peer has identified itself by this identity, as a peer of an open
    /// transport does.
    pub(crate) fn is_stranger(&self, identity: u64) -> bool {
        self.hello.is_some_and(|hello| hello.from_nonce == identity)
    }

    /// Reads the HELLO, and nothing after it.
    pub(crate) fn read_hello(&mut self) -> Result<Hello, NoHello> {
        let mut incomplete = self.channel.incomplete;
        let mut result = Err(NoHello::Ended);
        let read = self.channel.stream.try_read_with(incomplete, |bytes| {
            let (found, length) = match record::decode(bytes, 0, 0) {
                Ok(Some((record, length))) if record.kind == Kind::Hello => {
                    (Hello::decode(record.body).ok_or(NoHello::Malformed), length)
                }
                Ok(None) => (Err(NoHello::Awaited), 0),
                Ok(Some(_)) | Err(_) => (Err(NoHello::Malformed), 0),
            };
            incomplete = bytes.len() - length;
            result = found;
            length
        });
        match read {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(NoHello::Awaited),
            Err(_) => return Err(NoHello::Ended),
            Ok(_) => {}
        }
        if result.is_ok() {
            (self.channel.next_received, incomplete) = (1, 0);
        }
        self.channel.incomplete = incomplete;
        result
    }
}
