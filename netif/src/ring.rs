//! A receive ring shared with the kernel (`TPACKET_V2`, Documentation/networking/packet_mmap.rst):
//! checking for a frame is a memory read, not a system call.
//!
//! ```text
//! slot 0              slot 1              slot n-1
//! +--------+--------+ +--------+--------+     +--------+--------+
//! | status | frame  | | status | frame  | ... | status | frame  |
//! +--------+--------+ +--------+--------+     +--------+--------+
//! ```
//!
//! The kernel fills slots in order and sets their status; the reader clears it to return a slot. A
//! frame that does not fit a slot is queued on the socket, as without a ring, and a slot stands for
//! it: frames keep their order, short ones cost no system call, and long ones are copied not on
//! arrival but when they are received, many at once.
//!
//! The process that opens the socket sets up the ring before the socket is bound: later, the kernel
//! would detach the socket for a moment, and a member of a fan-out group would get another slot.
//! The process that receives maps it.

use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::batch::FrameKind;
use crate::socket::set;
use crate::{PacketSocket, RawFrame, RecvBatch};

/// Size of the contiguous blocks of a ring: a multiple of any page size. Slots fill them from their
/// start.
const BLOCK_LEN: u32 = 64 * 1024;
/// Granularity of slots in bytes, a cache line: a short frame and its slot's header touch two of
/// them.
const LINE: u32 = 64;
/// Length of a slot's header and the sender's address.
const HEAD_LEN: usize = libc::TPACKET2_HDRLEN;
/// Offset of the frame in a slot: two bytes after the head align what follows the Ethernet header.
const FRAME_AT: u32 = 66;
/// Maximum size of a mapped ring in bytes.
const MAX_BYTES: u32 = 1 << 28;
/// Size of a ring for streams in bytes: two windows of a stream of 1 MiB, with no more slots than a
/// window has segments. Slots are used in turn even if few are filled at a time, so a ring larger
/// than the second-level cache always misses it.
const STREAMS_BYTES: u32 = 2 << 20;
const STREAMS_SLOTS: u32 = 1024;

/// Dimensions of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Size of a slot in bytes: a multiple of 64 from 128 to 65536.
    pub slot_len: u32,
    /// Number of slots: a multiple of those that fit into 64 KiB.
    pub slots: u32,
}

impl RingShape {
    /// Returns a shape with at least `slots` slots for frames of up to `frame_len` bytes each,
    /// Ethernet header included.
    pub fn new(slots: usize, frame_len: usize) -> RingShape {
        let frame_len = u32::try_from(frame_len)
            .unwrap_or(BLOCK_LEN)
            .min(BLOCK_LEN - FRAME_AT);
        let slot_len = (FRAME_AT + frame_len).next_multiple_of(LINE).max(2 * LINE);
        let per_block = BLOCK_LEN / slot_len;
        let slots = u32::try_from(slots)
            .unwrap_or(u32::MAX)
            .clamp(1, MAX_BYTES / BLOCK_LEN * per_block);
        RingShape {
            slot_len,
            slots: slots.next_multiple_of(per_block),
        }
    }

    /// Returns the shape for streams whose frames have up to `frame_len` bytes, Ethernet header
    /// included.
    pub fn for_streams(frame_len: usize) -> RingShape {
        let RingShape { slot_len, .. } = RingShape::new(1, frame_len);
        RingShape::new(
            (STREAMS_BYTES / slot_len).min(STREAMS_SLOTS) as usize,
            frame_len,
        )
    }

    /// Returns the maximum length of a frame that fits a slot; longer ones wait in the socket.
    pub fn frame_len(&self) -> usize {
        self.slot_len.saturating_sub(FRAME_AT) as usize
    }

    /// Returns the size of the memory that the kernel keeps for the socket while it is open, in
    /// bytes.
    ///
    /// # Errors
    /// `InvalidInput`: the shape is invalid.
    pub fn bytes(&self) -> io::Result<u32> {
        let RingShape { slot_len, slots } = *self;
        let fits = slot_len.is_multiple_of(LINE) && (2 * LINE..=BLOCK_LEN).contains(&slot_len);
        let blocks = if fits { slots / self.per_block() } else { 0 };
        blocks
            .checked_mul(BLOCK_LEN)
            .filter(|bytes| {
                (1..=MAX_BYTES).contains(bytes) && slots.is_multiple_of(self.per_block())
            })
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "invalid shape of a receive ring",
                )
            })
    }

    fn per_block(&self) -> u32 {
        BLOCK_LEN / self.slot_len
    }

    /// Returns the offset of a slot. Blocks are contiguous; the rest of a block after its last slot
    /// is unused.
    fn offset(&self, slot: u32) -> usize {
        (slot / self.per_block() * BLOCK_LEN + slot % self.per_block() * self.slot_len) as usize
    }
}

impl PacketSocket {
    /// Directs received frames to a ring, as [`PacketSocket::ring`] does.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid shape, `ENOMEM`, `EBUSY` when the socket has a mapped ring.
    pub fn set_ring(&self, shape: RingShape) -> io::Result<()> {
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_LEN,
            tp_block_nr: shape.bytes()? / BLOCK_LEN,
            tp_frame_size: shape.slot_len,
            tp_frame_nr: shape.slots,
        };
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        let (socket, level) = (&self.socket, libc::SOL_PACKET);
        set(socket, level, libc::PACKET_VERSION, &version)?;
        // Not zero: frames longer than a slot are queued, too.
        set(socket, level, libc::PACKET_COPY_THRESH, &1i32)?;
        set(socket, level, libc::PACKET_RX_RING, &request)
    }
}

/// The mapped ring of a socket, with a single reader. It keeps the socket open.
#[derive(Debug)]
pub struct RecvRing {
    start: NonNull<u8>,
    shape: RingShape,
    next: u32,
    /// Offset of slot `next`, so that checking for a frame needs no division.
    offset: usize,
}

/// A filled slot of the ring.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// The frame, or its beginning ([`RawFrame::truncated`]).
    pub frame: RawFrame<'a>,
    /// The whole frame is the next that [`PacketSocket::recv_some`] returns (after those of earlier
    /// such slots).
    queued: bool,
}

impl RecvRing {
    /// Maps the ring of a socket that was opened with this shape.
    ///
    /// # Errors
    /// `InvalidInput` when it has no ring, or one of another size; else those of the system.
    pub fn map(socket: &PacketSocket, shape: RingShape) -> io::Result<RecvRing> {
        let len = shape.bytes()? as usize;
        let (access, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::POPULATE,
        );
        // SAFETY: a new mapping wherever the kernel puts it.
        let start = unsafe { mmap(ptr::null_mut(), len, access, flags, socket.as_fd(), 0)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(RecvRing {
            start,
            shape,
            next: 0,
            offset: 0,
        })
    }

    /// Receives up to `max` frames in the order of arrival, each from its slot or, through
    /// `batch`, from the socket, which must be the ring's. Returns the number of frames.
    ///
    /// # Errors
    /// As for [`PacketSocket::recv_batch`], when the first frame fails. An interface that went down
    /// is reported only if a frame waits in the socket: see [`PacketSocket::take_error`].
    #[inline]
    pub fn receive(
        &mut self,
        socket: &PacketSocket,
        batch: &mut RecvBatch,
        max: usize,
        mut take: impl FnMut(RawFrame<'_>),
    ) -> io::Result<usize> {
        let mut done = 0;
        while done < max
            && let Some(slot) = self.peek(0)
        {
            if !slot.queued {
                take(slot.frame);
                self.release(1);
                done += 1;
                continue;
            }
            let others = (1..max - done).take_while(|&ahead| {
                u32::try_from(ahead)
                    .is_ok_and(|ahead| self.peek(ahead).is_some_and(|slot| slot.queued))
            });
            let run = 1 + others.count();
            match socket.recv_some(batch, run) {
                Ok(count) => {
                    batch.frames().for_each(&mut take);
                    // A slot without its frame is impossible; release it anyway, so that the ring
                    // does not stall.
                    let count = count.clamp(1, run);
                    self.release(count as u32);
                    done += count;
                }
                // The frames remain for the next call.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Returns the address of a slot counted from the next; any number is valid.
    #[inline]
    fn at(&self, ahead: u32) -> NonNull<u8> {
        let offset = match ahead {
            0 => self.offset,
            _ => self
                .shape
                .offset((self.next + ahead % self.shape.slots) % self.shape.slots),
        };
        // SAFETY: within the mapping, which has all blocks of the shape.
        unsafe { self.start.add(offset) }
    }

    #[inline]
    fn status(&self, ahead: u32) -> &AtomicU32 {
        // SAFETY: the first field of the slot's header, aligned and inside the mapping, which lives
        // as long as `self`; kernel and reader both treat it as one atomic word.
        unsafe { AtomicU32::from_ptr(self.at(ahead).cast::<u32>().as_ptr()) }
    }

    /// Returns the frame `ahead` slots past the head, if the kernel has filled that slot.
    #[inline]
    pub fn peek(&self, ahead: u32) -> Option<Slot<'_>> {
        let status = self.status(ahead).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 || ahead >= self.shape.slots {
            return None;
        }
        let at = self.at(ahead);
        // SAFETY: a slot begins with this header, which the kernel wrote before the status just
        // read; `Acquire` above orders the two. Slots are aligned to cache lines.
        let header = unsafe { at.cast::<libc::tpacket2_hdr>().read() };
        // SAFETY: the address follows the header, at the next multiple of 16, inside of the
        // smallest slot.
        let sender = unsafe { at.add(HEAD_LEN - mem::size_of::<libc::sockaddr_ll>()) };
        // SAFETY: as above.
        let sender = unsafe { sender.cast::<libc::sockaddr_ll>().read() };
        let (from, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        // The memory is shared with the kernel; check its values.
        let from = from.min(self.shape.slot_len as usize);
        let len = len.min(self.shape.slot_len as usize - from);
        // SAFETY: within the slot, as just checked, and the kernel does not write to it until it is
        // released, which takes `&mut self`.
        let bytes = unsafe { std::slice::from_raw_parts(at.add(from).as_ptr(), len) };
        let frame = RawFrame {
            bytes,
            kind: FrameKind::from_kernel(sender.sll_pkttype),
            truncated: header.tp_len as usize > len,
        };
        Some(Slot {
            frame,
            queued: status & libc::TP_STATUS_COPY != 0,
        })
    }

    /// Returns `count` slots, starting at the head, to the kernel.
    #[inline]
    pub fn release(&mut self, count: u32) {
        for _ in 0..count {
            self.status(0)
                .store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % self.shape.slots;
            self.offset = self.shape.offset(self.next);
        }
    }
}

impl Drop for RecvRing {
    fn drop(&mut self) {
        let len = self.shape.bytes().unwrap_or(0) as usize;
        // SAFETY: mapped in `map` with this length; no borrow of it exists any more. A failure
        // would only leave it mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), len) };
    }
}

// SAFETY: owns its mapping; a shared reference only reads.
unsafe impl Send for RecvRing {}
// SAFETY: as above.
unsafe impl Sync for RecvRing {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        assert_eq!(
            RingShape::new(1, 60),
            RingShape {
                slot_len: 128,
                slots: 512
            }
        );
        assert_eq!(
            RingShape::new(2048, 190),
            RingShape {
                slot_len: 256,
                slots: 2048
            }
        );
        assert_eq!(RingShape::new(2048, 191).slot_len, 320);
        assert_eq!(
            RingShape::new(1024, 9014),
            RingShape {
                slot_len: 9088,
                slots: 1029
            }
        );
        assert_eq!(
            RingShape::new(3, 1 << 20),
            RingShape {
                slot_len: 65536,
                slots: 3
            }
        );
        assert_eq!(
            RingShape::for_streams(1514),
            RingShape {
                slot_len: 1600,
                slots: 1040
            }
        );
        assert_eq!(
            RingShape::for_streams(9014),
            RingShape {
                slot_len: 9088,
                slots: 231
            }
        );
        assert_eq!(
            RingShape::for_streams(usize::MAX),
            RingShape {
                slot_len: 65536,
                slots: 32
            }
        );
        for frame_len in [60, 190, 191, 1514, 9014, usize::MAX] {
            let shape = RingShape::new(usize::MAX, frame_len);
            assert_eq!(shape.bytes().ok(), Some(MAX_BYTES), "{frame_len}");
            assert!(shape.frame_len() >= frame_len.min((BLOCK_LEN - FRAME_AT) as usize));
        }
        for (slot_len, slots) in [
            (0, 512),
            (128, 0),
            (128, 511),
            (200, 1024),
            (64, 1024),
            (1 << 17, 1),
            (65536, 1 << 13),
            (9088, 1024),
        ] {
            assert!(
                RingShape { slot_len, slots }.bytes().is_err(),
                "{slots} slots of {slot_len}"
            );
        }
    }

    #[test]
    fn slots_do_not_touch_each_other_nor_a_block_s_end() {
        for frame_len in [60, 1514, 9014, 1 << 16] {
            let shape = RingShape::new(200, frame_len);
            let mut free = 0;
            for slot in 0..shape.slots {
                let (start, len) = (shape.offset(slot), shape.slot_len as usize);
                assert!(start >= free && start.is_multiple_of(LINE as usize));
                assert_eq!(
                    start / BLOCK_LEN as usize,
                    (start + len - 1) / BLOCK_LEN as usize,
                    "slot {slot} of {shape:?}"
                );
                free = start + len;
            }
            assert!(free <= shape.bytes().unwrap() as usize);
        }
    }
}
