//! Helpers for the tests in namespaces.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netif::{Interface, MacAddr, PacketSocket, RecvBatch, SendBatch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// EtherType of the tests' frames.
pub const TYPE: u16 = 0x88b5;

/// Timeout of every wait; only a broken test reaches it.
pub const LONG: Duration = Duration::from_secs(10);

/// Waits until a descriptor is readable; returns false after `time`.
pub fn readable(fd: impl AsFd, time: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: time.as_secs() as _,
        tv_nsec: time.subsec_nanos().into(),
    };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).expect("poll") > 0
}

/// Returns the 14 bytes before a frame's body.
pub fn header(to: MacAddr, from: MacAddr) -> [u8; 14] {
    let mut header = [0; 14];
    header[..6].copy_from_slice(&to.octets());
    header[6..12].copy_from_slice(&from.octets());
    header[12..].copy_from_slice(&TYPE.to_be_bytes());
    header
}

/// Queues a frame of 60 bytes with a number at its beginning.
pub fn push_numbered(batch: &mut SendBatch, to: MacAddr, from: &Interface, number: u16) {
    let head = batch.head().expect("room in the batch");
    head.fill(0);
    head[..14].copy_from_slice(&header(to, from.mac));
    head[14..16].copy_from_slice(&number.to_be_bytes());
    batch.push_inline(60);
}

/// Sends all frames; panics after a timeout.
pub fn send_all(socket: &PacketSocket, batch: &mut SendBatch) -> usize {
    let end = Instant::now() + LONG;
    let mut sent = 0;
    while !batch.is_empty() {
        sent += socket.send_batch(batch).expect("send");
        assert!(Instant::now() < end, "{batch:?} does not empty");
    }
    sent
}

/// A copy of a received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub bytes: Vec<u8>,
    pub kind: netif::FrameKind,
    pub truncated: bool,
}

impl Kept {
    /// Returns the number written by [`push_numbered`].
    pub fn number(&self) -> u16 {
        u16::from_be_bytes([self.bytes[14], self.bytes[15]])
    }
}

/// Receives `count` frames; panics after a timeout.
pub fn receive(socket: &PacketSocket, count: usize) -> Vec<Kept> {
    let frames = receive_for(socket, count, LONG);
    assert_eq!(frames.len(), count, "frames within {LONG:?}");
    frames
}

/// Receives until `count` frames have arrived or `time` has passed.
pub fn receive_for(socket: &PacketSocket, count: usize, time: Duration) -> Vec<Kept> {
    // One at a time: frames beyond `count` stay in the socket.
    let mut batch = RecvBatch::new(1, 9100);
    let mut frames = Vec::new();
    let end = Instant::now() + time;
    while frames.len() < count && readable(socket, end.saturating_duration_since(Instant::now())) {
        socket.recv_batch(&mut batch).expect("receive");
        frames.extend(batch.frames().map(|frame| Kept {
            bytes: frame.bytes.to_vec(),
            kind: frame.kind,
            truncated: frame.truncated,
        }));
    }
    frames
}
