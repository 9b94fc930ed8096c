//! Transmission: datagrams of one destination and length leave as one segmented buffer, gathered
//! from the caller's memory.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use rustix::net::{SendFlags, sendto};

use super::UdpSocket;
use crate::batch::SendBatch;

/// Bytes of a frame's head before the datagram: the Ethernet addresses, which UDP does not use.
pub(crate) const UNUSED: usize = 12;
/// Maximum number of datagrams of a segmented buffer (`UDP_MAX_SEGMENTS` of Linux before 6.10).
const MAX_SEGMENTS: usize = 64;
/// Maximum number of bytes of a segmented buffer: a payload of UDP over IPv6.
const MAX_BYTES: usize = 65_487;

/// Action after a failed send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// No room now: keep the frames.
    Wait,
    /// The segmented buffer is refused: send its datagrams one at a time.
    Split,
    /// The device cannot cut segmented buffers.
    NoSegmentation,
    /// The datagram is never accepted.
    Reject,
    /// The destination is unreachable or forbidden: the datagrams are lost.
    Lost,
    /// Any other error.
    Report,
}

fn classify(error: &io::Error, grouped: bool) -> Failure {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR | libc::ENOMEM) => Failure::Wait,
        // Segmentation needs a device that computes the checksums.
        Some(libc::EIO) if grouped => Failure::NoSegmentation,
        Some(libc::EINVAL | libc::EMSGSIZE | libc::EFAULT) if grouped => Failure::Split,
        Some(libc::EINVAL | libc::EMSGSIZE | libc::EFAULT | libc::EIO) => Failure::Reject,
        Some(
            libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EPERM
            | libc::EACCES
            | libc::EADDRNOTAVAIL,
        ) => Failure::Lost,
        _ => Failure::Report,
    }
}

/// Returns the number of datagrams at the front that can be sent as one segmented buffer: all have
/// the destination and length of the first, except that the last may be shorter.
pub(crate) fn group(frames: impl Iterator<Item = (SocketAddr, usize)>) -> usize {
    let mut first = None;
    let (mut count, mut bytes) = (0, 0);
    for (dst, len) in frames.take(MAX_SEGMENTS) {
        let (to, segment) = *first.get_or_insert((dst, len));
        bytes += len;
        if dst != to || len > segment || (bytes > MAX_BYTES && count > 0) {
            break;
        }
        count += 1;
        if len < segment {
            break;
        }
    }
    count
}

impl UdpSocket {
    /// Passes the waiting frames to the kernel, in order; each needs a destination
    /// ([`SendBatch::set_destination`]). The first 12 bytes of a frame are not sent. Returns the
    /// number of frames accepted; the others stay in the batch. Fewer than all without an error
    /// means that there is no room now: poll the socket for writability or retry later. Frames that
    /// can never be sent are discarded and counted ([`SendBatch::rejected`]); those to an
    /// unreachable or forbidden destination count as sent ([`SendBatch::take_unreachable`]).
    ///
    /// Work is bounded by the batch's length: each system call except one sends or discards a
    /// frame, splits a group permanently, or is the last.
    ///
    /// # Errors
    /// Other errors of the system, but only when no frame was accepted before. The frames stay in
    /// the batch.
    pub fn send_batch(&self, batch: &mut SendBatch) -> io::Result<usize> {
        let (mut passed, mut sent) = (0, 0);
        // Frames before this one are sent one at a time.
        let mut single = 0;
        let mut failure = None;
        let mut tried_again = false;
        while passed < batch.len() {
            if !self.segments.load(Ordering::Relaxed) {
                single = batch.len();
            }
            let error = match self.hand_over(batch, passed, single) {
                Ok(0) => break,
                Ok(count) => {
                    passed += count;
                    sent += count;
                    continue;
                }
                Err(error) => error,
            };
            let first = batch.group_at(passed, single);
            let class = classify(&error, first > 1);
            // A pending ICMP error of the socket is returned once, whatever is sent: the second
            // failure is that of the frames.
            if class != Failure::Wait && !tried_again {
                tried_again = true;
                continue;
            }
            match class {
                Failure::Wait => break,
                Failure::Split => single = passed + first,
                Failure::NoSegmentation => self.segments.store(false, Ordering::Relaxed),
                Failure::Reject => {
                    batch.reject();
                    passed += 1;
                }
                Failure::Lost => {
                    batch.unreachable += first as u64;
                    passed += first;
                    sent += first;
                }
                Failure::Report => {
                    failure = Some(error);
                    break;
                }
            }
        }
        batch.remove(passed);
        match failure {
            Some(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }

    /// Performs one system call for the frames after the first `passed`; returns the number
    /// accepted by the kernel.
    fn hand_over(&self, batch: &mut SendBatch, passed: usize, single: usize) -> io::Result<usize> {
        if batch.len() == 1
            && let Some(dst) = batch.destination(0)
            && let Some(frame) = batch.alone()
        {
            let datagram = frame.get(UNUSED..).unwrap_or_default();
            return Ok(sendto(&self.socket, datagram, SendFlags::DONTWAIT, &dst).map(|_| 1)?);
        }
        let messages = batch.describe_datagrams(passed, single);
        // SAFETY: the headers were just written by `describe_datagrams`; their names, area lists,
        // control buffers and heads belong to the batch, and (guaranteed by the caller of `push`)
        // the payloads are readable.
        let count = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                batch.headers(),
                messages as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        Ok(batch.frames_of(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grouped(frames: &[(u16, usize)]) -> usize {
        let at = |&(port, len)| (SocketAddr::from(([10, 0, 0, 1], port)), len);
        group(frames.iter().map(at))
    }

    #[test]
    fn a_group_has_one_destination_and_length() {
        assert_eq!(grouped(&[]), 0);
        assert_eq!(grouped(&[(1, 100)]), 1);
        assert_eq!(grouped(&[(1, 100), (1, 100), (1, 100)]), 3);
        assert_eq!(grouped(&[(1, 100), (2, 100)]), 1);
        assert_eq!(grouped(&[(1, 100), (1, 101)]), 1);
        assert_eq!(grouped(&[(1, 100), (1, 100), (1, 7), (1, 7)]), 3);
    }

    #[test]
    fn a_group_is_bounded() {
        assert_eq!(grouped(&vec![(1, 60); 1000]), MAX_SEGMENTS);
        assert_eq!(grouped(&vec![(1, 1472); 64]), 65_487 / 1472);
        assert_eq!(grouped(&[(1, 70_000), (1, 70_000)]), 1);
    }

    #[test]
    fn errors_of_a_group_do_not_lose_it() {
        let class = |code, grouped| classify(&io::Error::from_raw_os_error(code), grouped);
        assert_eq!(class(libc::EMSGSIZE, true), Failure::Split);
        assert_eq!(class(libc::EMSGSIZE, false), Failure::Reject);
        assert_eq!(class(libc::EIO, true), Failure::NoSegmentation);
        assert_eq!(class(libc::ECONNREFUSED, false), Failure::Lost);
        assert_eq!(class(libc::EAGAIN, true), Failure::Wait);
        assert_eq!(class(libc::EBADF, false), Failure::Report);
    }
}
