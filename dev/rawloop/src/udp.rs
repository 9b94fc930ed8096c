//! The bare loop over UDP with segmentation offload: the limit of ESP's second carrier.
//!
//! The sender keeps at most 1 MiB unacknowledged, so that nothing is lost to a full
//! socket; a lost datagram ends a run with an error.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netif::{Datagram, SendBatch, UdpOpenError, UdpOptions, UdpRecvBatch, UdpSocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Wait;

/// Bytes in flight.
const WINDOW: u64 = 1 << 20;
/// Bytes after which the receiver acknowledges.
const ACK_EVERY: u64 = 128 << 10;
/// Datagrams of a batch: as many of 1472 bytes as a segmented buffer holds.
const BATCH: usize = 44;
/// Bytes at the start of a frame's head that UDP does not send. The loop's header follows.
const UNUSED: usize = 12;
const HEADER: usize = 9;
/// Silence after which a run fails.
const NO_ANSWER: Duration = Duration::from_secs(2);

/// Kinds of datagrams, in their first byte. A number of 8 bytes follows.
const PING: u8 = 0;
const DATA: u8 = 1;
const ACK: u8 = 2;

/// Reason why a run ended without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpLoopError {
    /// The socket could not be opened.
    #[error(transparent)]
    Open(#[from] UdpOpenError),
    /// A system call failed.
    #[error("UDP loop: {0}")]
    System(#[from] io::Error),
    /// The other side does not answer, or a datagram was lost.
    #[error("UDP loop: no answer from {peer} within {NO_ANSWER:?}")]
    NoAnswer {
        /// Its address.
        peer: SocketAddr,
    },
}

/// A socket with its batches.
struct End {
    socket: UdpSocket,
    rx: UdpRecvBatch,
    tx: SendBatch,
    wait: Wait,
}

impl End {
    fn open(local: SocketAddr, wait: Wait) -> Result<End, UdpLoopError> {
        Ok(End {
            socket: UdpSocket::bind(local, &UdpOptions::default())?,
            rx: UdpRecvBatch::new(),
            tx: SendBatch::new(BATCH),
            wait,
        })
    }

    /// Queues a datagram: kind, number, payload.
    fn push(&mut self, to: SocketAddr, (kind, number): (u8, u64), payload: &[u8]) {
        let Some(head) = self.tx.head() else { return };
        head[UNUSED] = kind;
        head[UNUSED + 1..UNUSED + HEADER].copy_from_slice(&number.to_le_bytes());
        self.tx.set_destination(Some(to));
        let payload = (NonNull::from(payload).cast(), payload.len());
        // SAFETY: all callers flush the batch while they borrow the payload.
        unsafe { self.tx.push(UNUSED + HEADER, Some(payload), 0) };
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.tx.is_empty() {
            if self.socket.send_batch(&mut self.tx)? == 0 {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Receives, waiting at most `time`. Returns false if nothing has arrived.
    fn receive(&mut self, time: Duration) -> io::Result<bool> {
        let end = Instant::now() + time;
        let mut polls = 0u32;
        loop {
            match self.socket.recv_batch(&mut self.rx) {
                Ok(0) => {}
                Ok(_) => return Ok(true),
                // An earlier peer has closed its socket before the last datagram arrived.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    self.socket.closed_ports(|_| {});
                }
                Err(error) => return Err(error),
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            match self.wait {
                Wait::Poll => {
                    polls = polls.wrapping_add(1);
                    if polls.is_multiple_of(64) {
                        std::thread::yield_now();
                    }
                }
                Wait::Block => {
                    let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
                    let left = Timespec::try_from(left).ok();
                    let _ = poll(&mut fds, left.as_ref());
                }
            }
        }
    }
}

fn header(datagram: &Datagram<'_>) -> Option<(u8, u64)> {
    let (kind, rest) = datagram.bytes.split_first()?;
    Some((*kind, u64::from_le_bytes(*rest.first_chunk()?)))
}

/// Answers pings and acknowledges streams until stopped.
///
/// # Errors
/// See [`UdpLoopError`].
pub fn serve(local: SocketAddr, wait: Wait, stop: &AtomicBool) -> Result<(), UdpLoopError> {
    let mut end = End::open(local, wait)?;
    let (mut total, mut acknowledged) = (0u64, 0u64);
    let mut echo = Vec::new();
    let mut buffer = vec![0u8; 1 << 20];
    while !stop.load(Ordering::Relaxed) {
        if !end.receive(Duration::from_millis(20))? {
            continue;
        }
        let mut reply = None;
        echo.clear();
        for datagram in end.rx.datagrams() {
            match header(&datagram) {
                Some((PING, number)) => {
                    echo.extend_from_slice(&datagram.bytes[HEADER..]);
                    reply = Some((datagram.src, (PING, number)));
                }
                Some((DATA, number)) => {
                    if number == 0 {
                        (total, acknowledged) = (0, 0);
                    }
                    // The copy that a stream makes into its reader's ring.
                    let payload = &datagram.bytes[HEADER..];
                    let at = (total as usize) % (buffer.len() - payload.len());
                    buffer[at..at + payload.len()].copy_from_slice(payload);
                    total += payload.len() as u64;
                    if total - acknowledged >= ACK_EVERY {
                        acknowledged = total;
                        reply = Some((datagram.src, (ACK, total)));
                    }
                }
                _ => {}
            }
        }
        if let Some((to, message)) = reply {
            end.push(to, message, &echo);
            end.flush()?;
        }
    }
    Ok(())
}

/// Measures round trips of `size` bytes; returns their times in ns.
///
/// # Errors
/// See [`UdpLoopError`].
pub fn ping_pong(
    local: SocketAddr,
    peer: SocketAddr,
    wait: Wait,
    size: usize,
    (count, warm_up): (u64, u64),
) -> Result<Vec<u64>, UdpLoopError> {
    let mut end = End::open(local, wait)?;
    let payload = vec![7; size.saturating_sub(HEADER)];
    let mut times = Vec::new();
    for number in 0..count + warm_up {
        let start = Instant::now();
        end.push(peer, (PING, number), &payload);
        end.flush()?;
        loop {
            if !end.receive(NO_ANSWER)? {
                return Err(UdpLoopError::NoAnswer { peer });
            }
            let mut answers = end.rx.datagrams().filter_map(|d| header(&d));
            if answers.any(|answer| answer == (PING, number)) {
                break;
            }
        }
        if number >= warm_up {
            times.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }
    Ok(times)
}

/// Sends for a time, with datagrams that fill `mtu`. Returns the bytes of payload acknowledged and
/// the time.
///
/// # Errors
/// See [`UdpLoopError`].
pub fn stream(
    local: SocketAddr,
    peer: SocketAddr,
    wait: Wait,
    (mtu, time): (u32, Duration),
) -> Result<(u64, Duration), UdpLoopError> {
    let mut end = End::open(local, wait)?;
    let ip = if peer.is_ipv4() { 20 } else { 40 };
    let size = (mtu as usize).saturating_sub(ip + 8 + HEADER).max(1);
    let from = vec![0x5a_u8; 1 << 20];
    let (mut sent, mut acknowledged) = (0u64, 0u64);
    let start = Instant::now();
    while start.elapsed() < time {
        while sent - acknowledged + (BATCH * size) as u64 <= WINDOW {
            while !end.tx.is_full() {
                let at = (sent as usize) % (from.len() - size);
                end.push(peer, (DATA, sent), &from[at..at + size]);
                sent += size as u64;
            }
            end.flush()?;
        }
        if !end.receive(NO_ANSWER)? {
            return Err(UdpLoopError::NoAnswer { peer });
        }
        for (kind, number) in end.rx.datagrams().filter_map(|d| header(&d)) {
            if kind == ACK {
                acknowledged = acknowledged.max(number);
            }
        }
    }
    Ok((acknowledged, start.elapsed()))
}
