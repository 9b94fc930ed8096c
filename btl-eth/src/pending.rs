//! Accepted streams whose peer has not identified itself, or was not added yet.

use std::collections::VecDeque;
use std::io::ErrorKind;

use btl::Rank;

use crate::channel::Channel;
use crate::record::{self, Hello, Kind};

/// An accepted stream.
pub(crate) struct PendingConnection {
    pub(crate) channel: Channel,
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

/// Pending connections, oldest first. When they exceed their limit, the oldest one that has not
/// identified itself is evicted.
pub(crate) struct PendingConnections {
    connections: VecDeque<PendingConnection>,
    limit: usize,
}

impl PendingConnections {
    pub(crate) fn new(limit: usize) -> PendingConnections {
        PendingConnections {
            connections: VecDeque::new(),
            limit,
        }
    }

    /// Adds a connection. Returns the one evicted for it.
    pub(crate) fn push(&mut self, connection: PendingConnection) -> Option<PendingConnection> {
        let evicted = if self.connections.len() >= self.limit {
            let mut all = self.connections.iter();
            let anonymous = all.position(|pending| pending.hello.is_none()).unwrap_or(0);
            self.connections.remove(anonymous)
        } else {
            None
        };
        self.connections.push_back(connection);
        evicted
    }

    fn take(&mut self, f: impl Fn(&PendingConnection) -> bool) -> Option<PendingConnection> {
        let at = self.connections.iter().position(f)?;
        self.connections.remove(at)
    }

    pub(crate) fn take_slot(&mut self, slot: u16) -> Option<PendingConnection> {
        self.take(|pending| pending.channel.slot() == slot)
    }

    /// Removes the connection that has identified itself as `rank`.
    pub(crate) fn take_rank(&mut self, rank: Rank) -> Option<PendingConnection> {
        self.take(|pending| pending.hello.is_some_and(|hello| hello.from == rank))
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = PendingConnection> {
        self.connections.drain(..)
    }

    /// Returns the ranks that have identified themselves.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.connections
            .iter()
            .filter_map(|pending| pending.hello.map(|hello| hello.from))
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }
}

impl PendingConnection {
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
