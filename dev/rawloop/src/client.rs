//! The measuring side.

use std::io;
use std::ptr::NonNull;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pnet::util::MacAddr;
use rustix::net::sockopt::socket_recv_buffer_size;

use super::wire::{Header, PacketKind, ethernet, padding, source};
use super::{
    AGAIN, BATCH, HEADER_LEN, NO_ANSWER, Options, RawLoopError, open, payload_len, wait_for,
};
use crate::ScatterBatch;
use netif::{Interface, PacketSocket, SendBatch};

/// Bytes that the kernel charges for a buffered frame in addition to twice its length.
const FRAME_COST: usize = 1024;

/// Result of [`ping_pong`].
#[derive(Clone, Debug, Default)]
pub struct PingPong {
    /// Time of each round trip in nanoseconds, in the order of sending.
    pub samples_ns: Vec<u64>,
    /// Pings after those of the warm-up that were not answered within 20 ms.
    pub lost: u64,
}

/// Result of [`stream`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Streamed {
    /// Received payload in bytes.
    pub bytes: u64,
    /// Frames sent, retransmissions excluded.
    pub frames: u64,
    /// Frames retransmitted.
    pub resent: u64,
    /// Time from the first frame to the acknowledgement of the last.
    pub elapsed: Duration,
}

impl Streamed {
    /// Returns the throughput of the payload in Gbit/s.
    pub fn gbit_per_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elapsed.as_nanos().max(1) as f64
    }
}

/// Sends `rounds` pings of `size` payload bytes, one after the other, to a node that runs
/// [`serve`](super::serve), and measures each round trip; `warm_up` more precede them untimed.
///
/// # Errors
/// [`RawLoopError::NoAnswer`] after 2 s without an answer; [`RawLoopError::Size`] when `size` is
/// above the MTU.
pub fn ping_pong(
    interface: &Interface,
    peer: MacAddr,
    options: &Options,
    size: usize,
    rounds: u32,
    warm_up: u32,
) -> Result<PingPong, RawLoopError> {
    if size > payload_len(interface) {
        return Err(RawLoopError::Size("a ping larger than the MTU"));
    }
    let mut client = Client::open(interface, peer, options)?;
    let payload = vec![0x5a; size];
    let mut back = vec![0; payload_len(interface).max(64)];
    // SAFETY: `back` is not used otherwise, and nothing is received after it is dropped.
    unsafe {
        client
            .received
            .post(0, Some((NonNull::from(&mut *back).cast(), back.len())));
    };
    let mut result = PingPong {
        samples_ns: Vec::with_capacity(rounds as usize),
        lost: 0,
    };
    let mut last_answer = Instant::now();
    for number in 0..warm_up.saturating_add(rounds) {
        let begin = Instant::now();
        let header = Header {
            kind: PacketKind::Ping,
            run: client.run,
            number,
            len: size as u16,
        };
        // SAFETY: the payload lives to the end of this function.
        unsafe { client.push(header, &payload) };
        client.send()?;
        let answered = client.wait(AGAIN, |answer| {
            answer.kind == PacketKind::Pong && answer.number == number
        })?;
        let end = Instant::now();
        if answered {
            last_answer = end;
            if number >= warm_up {
                result.samples_ns.push((end - begin).as_nanos() as u64);
            }
        } else {
            result.lost += u64::from(number >= warm_up);
            if end - last_answer > NO_ANSWER {
                return Err(RawLoopError::NoAnswer { peer });
            }
        }
    }
    Ok(result)
}

/// Sends `total` bytes to a node that runs [`serve`](super::serve), in frames of the largest
/// payload: the contents of `from`, repeatedly. Only whole payloads in it are used.
///
/// # Errors
/// [`RawLoopError::NoAnswer`] after 2 s without an acknowledgement; [`RawLoopError::Size`] when
/// `from` does not hold a payload or `total` is beyond 2^31 frames.
pub fn stream(
    interface: &Interface,
    peer: MacAddr,
    options: &Options,
    from: &[u8],
    total: u64,
) -> Result<Streamed, RawLoopError> {
    let room = payload_len(interface);
    if room == 0 || from.len() < room {
        return Err(RawLoopError::Size("a stream from less than one payload"));
    }
    let frames = u32::try_from(total.div_ceil(room as u64))
        .ok()
        .filter(|&frames| frames < 1 << 31)
        .ok_or(RawLoopError::Size("a stream of more than 2^31 frames"))?;
    let mut client = Client::open(interface, peer, options)?;
    let pieces: Vec<&[u8]> = from.chunks_exact(room).collect();
    // The other side's buffer is assumed to be like ours: where no large one is granted, only a
    // smaller window can be in flight without loss.
    let buffer = socket_recv_buffer_size(&client.socket).map_err(io::Error::from)?;
    let frames_buffered = buffer / (2 * (HEADER_LEN + room) + FRAME_COST);
    let window = (options.window as usize)
        .min(frames_buffered)
        .max(2 * BATCH) as u32;
    let begin = Instant::now();
    let mut progress = begin;
    let (mut acknowledged, mut next, mut highest, mut resent) = (0u32, 0u32, 0u32, 0u64);
    while acknowledged < frames {
        let edge = frames.min(acknowledged.saturating_add(window));
        while next < edge {
            while next < edge && !client.sent.is_full() {
                let last = next + 1 == frames;
                let len = if last {
                    (total - u64::from(next) * room as u64) as usize
                } else {
                    room
                };
                let urgent = last || next < highest;
                let kind = if urgent {
                    PacketKind::DataNow
                } else {
                    PacketKind::Data
                };
                let header = Header {
                    kind,
                    run: client.run,
                    number: next,
                    len: len as u16,
                };
                let piece = pieces[next as usize % pieces.len()];
                // SAFETY: a part of `from`, which is borrowed until this function ends.
                unsafe { client.push(header, &piece[..len]) };
                resent += u64::from(next < highest);
                next += 1;
            }
            client.send()?;
            highest = highest.max(next);
        }
        // Sleep or spin only when the window is closed.
        let mut latest = acknowledged;
        client.wait(AGAIN, |answer| {
            let ours = answer.kind == PacketKind::Ack
                && answer.number > latest
                && answer.number <= highest;
            if ours {
                latest = answer.number;
            }
            ours
        })?;
        let now = Instant::now();
        if latest > acknowledged {
            (acknowledged, progress) = (latest, now);
            next = next.max(acknowledged);
        } else if now - progress > NO_ANSWER {
            return Err(RawLoopError::NoAnswer { peer });
        } else {
            next = acknowledged;
        }
    }
    Ok(Streamed {
        bytes: total,
        frames: frames.into(),
        resent,
        elapsed: begin.elapsed(),
    })
}

/// Socket and batches of one run.
struct Client<'a> {
    socket: PacketSocket,
    options: &'a Options,
    peer: MacAddr,
    front: [u8; 14],
    run: u16,
    sent: SendBatch,
    received: ScatterBatch,
}

impl<'a> Client<'a> {
    fn open(
        interface: &Interface,
        peer: MacAddr,
        options: &'a Options,
    ) -> Result<Client<'a>, RawLoopError> {
        let socket = open(interface, options)?;
        let front = ethernet(peer, interface.mac, options.ethertype);
        // Distinguishes the frames of this run from late ones of the previous run.
        let run = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .subsec_nanos() as u16;
        let received = ScatterBatch::new(BATCH, HEADER_LEN);
        Ok(Client {
            socket,
            options,
            peer,
            front,
            run,
            sent: SendBatch::new(BATCH),
            received,
        })
    }

    /// Queues a frame.
    ///
    /// # Safety
    /// The payload must live until the next [`send`](Self::send) that succeeds, or as long as the
    /// client.
    unsafe fn push(&mut self, header: Header, payload: &[u8]) {
        let Some(head) = self.sent.head() else { return };
        header.write(&self.front, head);
        let padding = padding(payload.len());
        head[HEADER_LEN..HEADER_LEN + padding].fill(0);
        let area = (!payload.is_empty()).then(|| (NonNull::from(payload).cast(), payload.len()));
        // SAFETY: guaranteed by the caller; after a `send` that fails, nothing is sent any more.
        unsafe { self.sent.push(HEADER_LEN, area, padding) };
    }

    /// Sends all queued frames, waiting for the driver as needed.
    fn send(&mut self) -> io::Result<()> {
        let mut idle = Instant::now();
        while !self.sent.is_empty() {
            if self.socket.send_batch(&mut self.sent)? > 0 {
                idle = Instant::now();
            } else if idle.elapsed() > NO_ANSWER {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Receives until an answer of this run fits (true) or `time` has passed (false).
    fn wait(&mut self, time: Duration, mut fits: impl FnMut(Header) -> bool) -> io::Result<bool> {
        let Client {
            socket,
            options,
            peer,
            run,
            received,
            ..
        } = self;
        wait_for(socket, options.wait, time, || {
            let count = received.receive(socket, BATCH)?;
            let mut found = false;
            for index in 0..count {
                let head = received
                    .frame(index)
                    .map(|frame| frame.head)
                    .unwrap_or_default();
                if let Some(header) = Header::read(head)
                    && header.run == *run
                    && source(head) == Some(*peer)
                {
                    found |= fits(header);
                }
            }
            Ok(found)
        })
    }
}
