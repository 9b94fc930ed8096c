//! Replies waiting to be sent to one program.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Bytes of waiting replies above which no further request is processed.
const FULL: usize = 64 << 10;

/// Result of a flush: when to flush again, if anything remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    WhenWritable,
    /// After a pause.
    Later,
}

struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    descriptors: Vec<OwnedFd>,
}

/// Queue of replies. Bounded by [`FULL`], one reply, and the replies to pending accepts.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: VecDeque<Outgoing>,
    /// Number of waiting bytes, including sent parts of messages.
    bytes: usize,
    /// Time since which the first message has been waiting.
    since: Option<Instant>,
}

impl Outbox {
    pub(crate) fn push(&mut self, bytes: Vec<u8>, descriptors: Vec<OwnedFd>) {
        self.since.get_or_insert_with(Instant::now);
        self.bytes += bytes.len();
        self.queue.push_back(Outgoing {
            bytes,
            sent: 0,
            descriptors,
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes > FULL
    }

    /// Returns the time since which the program has not read the next message.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        self.since
    }

    /// Sends what the socket accepts now. An error ends the connection.
    pub(crate) fn flush(&mut self, stream: &UnixStream) -> io::Result<Flushed> {
        while let Some(first) = self.queue.front_mut() {
            let rest = first.bytes.get(first.sent..).unwrap_or_default();
            let descriptors: Vec<_> = first.descriptors.iter().map(AsFd::as_fd).collect();
            match stream.try_io(Interest::WRITABLE, || {
                esp_client::control::codec::send(stream, rest, &descriptors)
            }) {
                Ok(sent) => {
                    first.sent += sent;
                    first.descriptors.clear(); // sent with the first byte
                    if first.sent < first.bytes.len() {
                        continue;
                    }
                    self.bytes -= first.bytes.len();
                    self.queue.pop_front();
                    self.since = (!self.queue.is_empty()).then(Instant::now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Flushed::WhenWritable);
                }
                // Too many descriptors wait in unread sockets (unix(7)): those programs have to be
                // disconnected first.
                Err(error) if error.raw_os_error() == Some(Errno::TOOMANYREFS.raw_os_error()) => {
                    return Ok(Flushed::Later);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Flushed::WhenWritable)
    }
}
