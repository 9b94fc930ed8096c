//! One stream between two ranks, and the records in it.

use std::io::{self, IoSlice};
use std::sync::Arc;

use btl::{MAX_HEADER, PeerError};
use esp_client::{EspError, EspStream, Interest};

use crate::frame::{self, HEAD, Hello, Kind};

/// Room that messages leave in a send ring, so that a goodbye or a refusal always fits.
pub(crate) const SPARE: usize = 512;

/// See the module.
pub(crate) struct Channel {
    pub(crate) stream: Arc<EspStream>,
    /// Number of the next record sent.
    sent: u16,
    /// Bytes written.
    taken: u64,
    /// Number of the next record due.
    pub(crate) due: u16,
    /// Bytes at the ring's front that are no whole record yet.
    pub(crate) known: usize,
}

impl Channel {
    pub(crate) fn new(stream: EspStream) -> Channel {
        Channel {
            stream: Arc::new(stream),
            sent: 0,
            taken: 0,
            due: 0,
            known: 0,
        }
    }

    pub(crate) fn slot(&self) -> u16 {
        self.stream.slot()
    }

    /// Whether its rings, both, hold messages of this length.
    pub(crate) fn holds(&self, max_send: usize) -> bool {
        let (tx, rx) = self.stream.ring_sizes();
        tx.min(rx) >= HEAD + max_send + SPARE
    }

    /// `WouldBlock`: no room now; there will be an event when there is. `soon`: it may leave with the next call.
    #[inline]
    pub(crate) fn message(
        &mut self,
        header: &[u8],
        body: &[IoSlice<'_>],
        soon: bool,
    ) -> io::Result<()> {
        let mut front = [0; HEAD + MAX_HEADER];
        let length = HEAD + header.len();
        let whole = body
            .iter()
            .fold(header.len(), |sum, piece| sum + piece.len());
        front[..HEAD].copy_from_slice(&frame::head(Kind::Message, header.len(), whole, self.sent));
        front[HEAD..length].copy_from_slice(header);
        let front = IoSlice::new(&front[..length]);
        match body {
            [] => self.write(&[front], soon),
            [one] => self.write(&[front, *one], soon),
            [one, two] => self.write(&[front, *one, *two], soon),
            more => {
                let joined =
                    more.iter()
                        .fold(Vec::with_capacity(whole), |mut joined: Vec<u8>, piece| {
                            joined.extend_from_slice(piece);
                            joined
                        });
                self.write(&[front, IoSlice::new(&joined)], soon)
            }
        }
    }

    #[inline]
    fn write(&mut self, buffers: &[IoSlice<'_>], soon: bool) -> io::Result<()> {
        let stream = &self.stream;
        let _ = soon;
        match stream.try_write_whole(buffers, SPARE) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.stream.arm(Interest::Writable);
                self.stream.try_write_whole(buffers, SPARE)?;
            }
            done => done?,
        }
        self.count(buffers);
        Ok(())
    }

    fn count(&mut self, buffers: &[IoSlice<'_>]) {
        self.sent = self.sent.wrapping_add(1);
        self.taken += buffers
            .iter()
            .map(|buffer| buffer.len() as u64)
            .sum::<u64>();
    }

    /// A record of the set-up or the end. What cannot be written any more is found out by reading.
    pub(crate) fn control(&mut self, kind: Kind, body: &[u8]) {
        let head = frame::head(kind, 0, body.len(), self.sent);
        let buffers = [IoSlice::new(&head), IoSlice::new(body)];
        if self.stream.try_write_whole(&buffers, 0).is_ok() {
            self.count(&buffers);
        }
    }

    pub(crate) fn hello(&mut self, hello: &Hello) {
        self.control(Kind::Hello, &hello.encode());
    }

    pub(crate) fn refuse(&mut self, words: &str) {
        let mut end = words.len().min(frame::MAX_WORDS);
        while !words.is_char_boundary(end) {
            end -= 1;
        }
        self.control(Kind::Refuse, &words.as_bytes()[..end]);
    }
}

/// What the end of a stream says of the peer, before and after messages may have gone through it.
pub(crate) struct Ended {
    pub(crate) error: PeerError,
    /// Nothing was delivered yet, and another attempt may do better.
    pub(crate) again: bool,
}

/// While the connection is being set up.
pub(crate) fn ended_early(error: &io::Error) -> Ended {
    let lost = || PeerError::Lost(error.to_string());
    match EspError::of(error) {
        Some(EspError::PeerDied { .. }) => Ended {
            error: PeerError::Died,
            again: false,
        },
        Some(
            EspError::PeerShutdown { .. }
            | EspError::DaemonGone { .. }
            | EspError::DaemonSilent { .. }
            | EspError::ConnectTimedOut { .. }
            | EspError::TimedOut { .. }
            | EspError::BadKey { .. }
            | EspError::PeerVersion { .. }
            | EspError::Forked,
        ) => Ended {
            error: lost(),
            again: false,
        },
        // Its port was open when it wrote its card.
        Some(EspError::Refused { peer }) => {
            let what =
                format!("nobody listens at {peer} any more: its process ended, or left the job");
            Ended {
                error: PeerError::Lost(what),
                again: true,
            }
        }
        _ => Ended {
            error: lost(),
            again: true,
        },
    }
}

/// While messages go through it.
pub(crate) fn ended_late(error: &io::Error) -> PeerError {
    match EspError::of(error) {
        Some(EspError::PeerDied { .. }) => PeerError::Died,
        // Only a program that lives ends a stream so: it closed while we still wrote.
        Some(EspError::Aborted { .. }) => PeerError::Left,
        _ => PeerError::Lost(error.to_string()),
    }
}
