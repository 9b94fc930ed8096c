//! The answering side.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pnet::util::MacAddr;

use super::wire::{Header, PacketKind, ethernet, padding, source};
use super::{BATCH, HEADER_LEN, Options, RawLoopError, Receive, open, payload_len, wait_for};
use crate::ScatterBatch;
use netif::{Interface, PacketSocket, RecvBatch, RecvRing, RingShape, SendBatch};

/// Maximum time between two checks of the stop signal.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Statistics of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Pings answered.
    pub pings: u64,
    /// Frames of streams received in order.
    pub frames: u64,
    /// Their payload in bytes.
    pub bytes: u64,
    /// Frames of streams out of order (after a loss, or duplicated), left for the sender to
    /// retransmit.
    pub out_of_order: u64,
}

/// Answers pings and receives streams until `stop` is true (checked at least every 20 ms).
///
/// The payload of a stream is written to `into`, each frame after the previous one, and starts
/// again at the beginning when the next one might not fit. The content after the last frame is
/// undefined: frames are received at the place of the expected ones before they are identified.
///
/// # Errors
/// [`RawLoopError::Size`] when `into` is smaller than two batches of the interface's largest
/// payload.
pub fn serve(
    interface: &Interface,
    options: &Options,
    into: &mut [u8],
    stop: &AtomicBool,
) -> Result<Served, RawLoopError> {
    let room = payload_len(interface);
    if room == 0 || into.len() / room < 2 * BATCH {
        return Err(RawLoopError::Size(
            "the buffer of the server holds less than 64 largest payloads",
        ));
    }
    let socket = open(interface, options)?;
    let mut session = Session {
        buffer: NonNull::from(&mut *into).cast(),
        room,
        slots: into.len() / room,
        run: 0,
        expected: 0,
        unacknowledged: 0,
        client: MacAddr::zero(),
        own: interface.mac,
        ethertype: options.ethertype,
        answers: SendBatch::new(2 * BATCH),
        served: Served::default(),
    };
    match options.receive {
        Receive::Scatter => {
            let mut batch = ScatterBatch::new(BATCH, HEADER_LEN);
            while !stop.load(Ordering::Relaxed) {
                wait_for(&socket, options.wait, POLL_INTERVAL, || {
                    session.receive(&socket, &mut batch)
                })?;
            }
        }
        Receive::Copy => {
            let mut batch = RecvBatch::new(BATCH, HEADER_LEN + room);
            while !stop.load(Ordering::Relaxed) {
                wait_for(&socket, options.wait, POLL_INTERVAL, || {
                    session.copy(&socket, &mut batch)
                })?;
            }
        }
        Receive::Ring => {
            let shape = RingShape::for_streams(HEADER_LEN + room);
            socket.set_ring(shape)?;
            let mut ring = RecvRing::map(&socket, shape)?;
            while !stop.load(Ordering::Relaxed) {
                wait_for(&socket, options.wait, POLL_INTERVAL, || {
                    session.read_ring(&socket, &mut ring)
                })?;
            }
        }
    }
    Ok(session.served)
}

/// State of the current stream.
struct Session {
    /// `slots * room` bytes of the caller of `serve`, mutably borrowed while this lives.
    buffer: NonNull<u8>,
    room: usize,
    slots: usize,
    run: u16,
    /// Number of the next frame, and of those received.
    expected: u32,
    unacknowledged: u32,
    client: MacAddr,
    own: MacAddr,
    ethertype: u16,
    answers: SendBatch,
    served: Served,
}

impl Session {
    /// Returns the place for the payload of a frame.
    fn slot(&self, number: u32) -> NonNull<u8> {
        let slot = number as usize % self.slots;
        // SAFETY: within the buffer of `slots * room` bytes.
        unsafe { self.buffer.add(slot * self.room) }
    }

    /// Performs one receive call and processes its frames.
    fn receive(&mut self, socket: &PacketSocket, batch: &mut ScatterBatch) -> io::Result<bool> {
        let first = self.expected;
        for index in 0..BATCH {
            let area = self.slot(first.wrapping_add(index as u32));
            // SAFETY: `room` bytes of the buffer, which outlives the batch and is not accessed
            // during the receive; there are more slots than areas, so these are distinct.
            unsafe { batch.post(index, Some((area, self.room))) };
        }
        let count = batch.receive(socket, BATCH)?;
        for index in 0..count {
            if let Some(frame) = batch.frame(index) {
                let place = self.slot(first.wrapping_add(index as u32));
                self.take(frame.head, place, frame.payload_len);
            }
        }
        self.send(socket)?;
        Ok(count > 0)
    }

    /// Performs one receive call into frames of the batch.
    fn copy(&mut self, socket: &PacketSocket, batch: &mut RecvBatch) -> io::Result<bool> {
        let count = socket.recv_batch(batch)?;
        for frame in batch.frames() {
            self.take_whole(frame.bytes);
        }
        self.send(socket)?;
        Ok(count > 0)
    }

    /// Processes up to a batch of frames of the ring.
    fn read_ring(&mut self, socket: &PacketSocket, ring: &mut RecvRing) -> io::Result<bool> {
        let mut count = 0;
        while count < BATCH as u32
            && let Some(slot) = ring.peek(count)
        {
            // Slots hold the interface's largest frames; a longer one would be lost here.
            self.take_whole(slot.frame.bytes);
            count += 1;
        }
        // Answers to pings are sent from the slots.
        self.send(socket)?;
        ring.release(count);
        Ok(count > 0)
    }

    fn take_whole(&mut self, frame: &[u8]) {
        if let Some((head, payload)) = frame.split_at_checked(HEADER_LEN) {
            self.take(head, NonNull::from(payload).cast(), payload.len());
        }
    }

    /// Processes a frame whose `len` bytes of payload and padding are at `place`, readable until
    /// the next receive.
    fn take(&mut self, head: &[u8], place: NonNull<u8>, len: usize) {
        let Some((header, from)) = Header::read(head).zip(source(head)) else {
            return;
        };
        if usize::from(header.len) > len.min(self.room) {
            return;
        }
        match header.kind {
            PacketKind::Ping => {
                self.served.pings += 1;
                self.answer(
                    from,
                    Header {
                        kind: PacketKind::Pong,
                        ..header
                    },
                    Some(place),
                );
            }
            PacketKind::Data | PacketKind::DataNow => self.take_data(header, from, place),
            PacketKind::Pong | PacketKind::Ack => {}
        }
    }

    fn take_data(&mut self, header: Header, from: MacAddr, place: NonNull<u8>) {
        if (header.run, from) != (self.run, self.client) {
            if header.number != 0 {
                return;
            }
            (self.run, self.client, self.expected, self.unacknowledged) = (header.run, from, 0, 0);
        }
        let mut now = header.kind == PacketKind::DataNow;
        if header.number == self.expected {
            let target = self.slot(self.expected);
            if target != place {
                // SAFETY: `place` has that many bytes, as `take` checked, and the slot has `room`
                // of them; the two may be parts of one buffer, therefore `copy`.
                unsafe { std::ptr::copy(place.as_ptr(), target.as_ptr(), header.len.into()) };
            }
            self.expected = self.expected.wrapping_add(1);
            self.unacknowledged += 1;
            self.served.frames += 1;
            self.served.bytes += u64::from(header.len);
        } else {
            self.served.out_of_order += 1;
            now = true;
        }
        if now || self.unacknowledged >= BATCH as u32 {
            self.unacknowledged = 0;
            let ack = Header {
                kind: PacketKind::Ack,
                run: self.run,
                number: self.expected,
                len: 0,
            };
            self.answer(from, ack, None);
        }
    }

    /// Queues an answer; when the batch is full, the client will ask again.
    fn answer(&mut self, to: MacAddr, header: Header, payload: Option<NonNull<u8>>) {
        let len = usize::from(header.len);
        let front = ethernet(to, self.own, self.ethertype);
        let Some(head) = self.answers.head() else {
            return;
        };
        header.write(&front, head);
        head[HEADER_LEN..HEADER_LEN + padding(len)].fill(0);
        // SAFETY: the payload of a ping stays in place until the answers are sent, before the next
        // receive.
        unsafe {
            self.answers
                .push(HEADER_LEN, payload.map(|start| (start, len)), padding(len));
        };
    }

    fn send(&mut self, socket: &PacketSocket) -> io::Result<()> {
        if !self.answers.is_empty() {
            socket.send_batch(&mut self.answers)?;
            // Frames without room are lost, as on any wire; their payload is not kept.
            self.answers.clear();
        }
        Ok(())
    }
}
