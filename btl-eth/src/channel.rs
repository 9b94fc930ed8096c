//! A stream between two ranks, and the records written to it.

use std::io::{self, IoSlice};
use std::sync::Arc;

use btl::{MAX_HEADER, PeerError, contiguous, gathered_len};
use esp_client::{EspError, EspStream, Interest};

use crate::record::{self, HEAD, Kind};

/// Bytes of a send ring that messages leave free, so that RELEASE, GOODBYE or REFUSE always fits.
pub(crate) const RESERVE: usize = 512;

/// A stream with the state of both directions.
pub(crate) struct Channel {
    pub(crate) stream: Arc<EspStream>,
    /// Number of the next record to send.
    next_sent: u16,
    /// Number of the next record to receive.
    pub(crate) next_received: u16,
    /// Bytes at the front of the receive ring that are an incomplete record.
    pub(crate) incomplete: usize,
}

impl Channel {
    pub(crate) fn new(stream: EspStream) -> Channel {
        Channel {
            stream: Arc::new(stream),
            next_sent: 0,
            next_received: 0,
            incomplete: 0,
        }
    }

    pub(crate) fn slot(&self) -> u16 {
        self.stream.slot()
    }

    /// Returns whether both rings can hold messages of this length.
    pub(crate) fn holds(&self, max_send: usize) -> bool {
        let (tx, rx) = self.stream.ring_sizes();
        tx.min(rx) >= HEAD + max_send + RESERVE
    }

    /// Writes a message.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room now; an event follows when there is.
    #[inline]
    pub(crate) fn message(&mut self, header: &[u8], body: &[IoSlice<'_>]) -> io::Result<()> {
        let mut front = [0; HEAD + MAX_HEADER];
        let front_length = HEAD + header.len();
        let length = header.len() + gathered_len(body);
        let head = record::head(Kind::Message, header.len(), length, self.next_sent);
        front[..HEAD].copy_from_slice(&head);
        front[HEAD..front_length].copy_from_slice(header);
        let front = IoSlice::new(&front[..front_length]);
        match body {
            [] => self.write(&[front]),
            [one] => self.write(&[front, *one]),
            [one, two] => self.write(&[front, *one, *two]),
            more => self.write(&[front, IoSlice::new(&contiguous(more))]),
        }
    }

    #[inline]
    fn write(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<()> {
        match self.stream.try_write_whole(buffers, RESERVE) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.stream.arm(Interest::Writable);
                self.stream.try_write_whole(buffers, RESERVE)?;
            }
            written => written?,
        }
        self.next_sent = self.next_sent.wrapping_add(1);
        Ok(())
    }

    /// Writes a record other than MESSAGE. Returns whether it was written; errors are left to the
    /// next read.
    pub(crate) fn control(&mut self, kind: Kind, body: &[u8]) -> bool {
        let head = record::head(kind, 0, body.len(), self.next_sent);
        let buffers = [IoSlice::new(&head), IoSlice::new(body)];
        let is_written = self.stream.try_write_whole(&buffers, 0).is_ok();
        if is_written {
            self.next_sent = self.next_sent.wrapping_add(1);
        }
        is_written
    }

    pub(crate) fn refuse(&mut self, reason: &str) {
        let mut end = reason.len().min(record::MAX_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        self.control(Kind::Refuse, &reason.as_bytes()[..end]);
    }
}

/// End of a stream before its connection was established.
pub(crate) struct SetupError {
    pub(crate) error: PeerError,
    pub(crate) retry: Retry,
}

/// Whether to make further attempts to set up a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// None.
    No,
    /// A few attempts.
    Soon,
    /// A few attempts, although the peer's port is closed.
    Closed,
    /// Attempts until the peer timeout: the peer did not answer, but may be stopped or overloaded.
    Silent,
}

impl SetupError {
    pub(crate) fn new(error: &io::Error) -> SetupError {
        let (error, retry) = match EspError::of(error) {
            Some(EspError::PeerDied { .. }) => (PeerError::Died, Retry::No),
            Some(
                EspError::PeerShutdown { .. }
                | EspError::DaemonSilent { .. }
                | EspError::TimedOut { .. }
                | EspError::BadKey { .. }
                | EspError::PeerVersion { .. }
                | EspError::Forked,
            ) => (PeerError::Lost(error.to_string()), Retry::No),
            // The next daemon may connect; if there is none, the client fails, and with it all
            // peers.
            Some(EspError::DaemonGone { .. }) => (PeerError::Lost(error.to_string()), Retry::Soon),
            // Its node answered datagrams before.
            Some(EspError::ConnectTimedOut(peer)) => {
                let what = if peer.addr.is_udp() {
                    format!(
                        "no answer from {peer}, which answered before: its node has ended or is \
                         overloaded, or a firewall drops UDP"
                    )
                } else {
                    format!(
                        "no answer from {peer} to packets of streams (ESP), though its node \
                         answered datagrams (EDP) before: its daemon has ended, or a switch or \
                         firewall drops the EtherType of streams (esping tells which)"
                    )
                };
                (PeerError::Lost(what), Retry::Silent)
            }
            // Its port was open when it created its address.
            Some(EspError::Refused(peer)) => {
                let what = format!(
                    "nothing listens at {peer} any more: its process ended or left the job"
                );
                (PeerError::Lost(what), Retry::Closed)
            }
            _ => (PeerError::Lost(error.to_string()), Retry::Soon),
        };
        SetupError { error, retry }
    }
}

/// Returns the failure of the peer that the end of an established stream indicates.
pub(crate) fn established_error(error: &io::Error) -> PeerError {
    match EspError::of(error) {
        Some(EspError::PeerDied { .. }) => PeerError::Died,
        // A program that is alive has closed its end while this side still wrote.
        Some(EspError::Aborted { .. }) => PeerError::Left,
        _ => PeerError::Lost(error.to_string()),
    }
}
