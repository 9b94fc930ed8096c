//! The connection to a PMI-1 launcher: lines in both directions, each with a deadline.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::NAME;
use super::line::{Line, MAX_LINE, wrong};
use crate::BootError;
use crate::error::Context;

/// A stream socket.
#[derive(Debug)]
pub(super) struct Wire {
    fd: OwnedFd,
    /// Bytes received after the last line that was taken.
    input: Vec<u8>,
    pub(super) timeout: Duration,
}

impl Wire {
    pub(super) fn new(fd: OwnedFd, timeout: Duration) -> Wire {
        Wire {
            fd,
            input: Vec::new(),
            timeout,
        }
    }

    /// Sends a line. `what` names its purpose in errors.
    pub(super) fn send(&self, line: &str, what: &'static str) -> Result<(), BootError> {
        let text = format!("{line}\n");
        let mut rest = text.as_bytes();
        let deadline = Instant::now() + self.timeout;
        while !rest.is_empty() {
            match send(&self.fd, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline, what)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(BootError::Closed(what)),
                Err(e) => return Err(e).context(|| format!("{NAME}: {what}")),
            }
        }
        Ok(())
    }

    /// Sends a line and waits for the answer with the command `cmd`.
    pub(super) fn ask(
        &mut self,
        line: &str,
        cmd: &str,
        what: &'static str,
    ) -> Result<Line, BootError> {
        self.send(line, what)?;
        self.receive(what)?.expect(cmd)
    }

    /// Waits for a line.
    pub(super) fn receive(&mut self, what: &'static str) -> Result<Line, BootError> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(end) = self.input.iter().position(|&b| b == b'\n') {
                let line = Line::parse(self.input.get(..end).unwrap_or_default());
                self.input.drain(..=end);
                return line;
            }
            if self.input.len() >= MAX_LINE {
                return Err(wrong(format!(
                    "the launcher sent a line of more than {MAX_LINE} bytes"
                )));
            }
            let mut part = [0; 2048];
            match recv(&self.fd, &mut part, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(BootError::Closed(what)),
                Ok((n, _)) => self
                    .input
                    .extend_from_slice(part.get(..n).unwrap_or_default()),
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, deadline, what)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e).context(|| format!("{NAME}: {what}")),
            }
            // A launcher that sends parts of a line gets no more time than a silent one.
            if Instant::now() > deadline {
                return Err(self.late(what));
            }
        }
    }

    fn wait(
        &self,
        flags: PollFlags,
        deadline: Instant,
        what: &'static str,
    ) -> Result<(), BootError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let time = Timespec::try_from(left).unwrap_or(Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        });
        match poll(&mut [PollFd::new(&self.fd, flags)], Some(&time)) {
            Ok(0) => Err(self.late(what)),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e).context(|| format!("{NAME}: {what}")),
        }
    }

    fn late(&self, what: &'static str) -> BootError {
        let (what, limit) = (format!("{NAME}: {what}"), self.timeout);
        BootError::Timeout { what, limit }
    }
}
