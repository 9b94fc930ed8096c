//! A receive ring shared with the kernel (`TPACKET_V2`).
//!
//! ```text
//! slot 0              slot 1              slot n-1
//! +--------+--------+ +--------+--------+     +--------+--------+
//! | status | frame  | | status | frame  | ... | status | frame  |
//! +--------+--------+ +--------+--------+     +--------+--------+
//! ```
//! The kernel fills slots in order and sets their status; the reader clears it to give a slot back.

use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::PacketSocket;
use crate::socket::set;

/// Size of the contiguous pieces the ring is made of, a multiple of the page size.
const BLOCK_LEN: usize = 64 * 1024;

/// The mapped ring; the socket must outlive its use, which the kernel sees to (the mapping keeps it).
#[derive(Debug)]
pub(super) struct Ring {
    start: NonNull<u8>,
    len: usize,
    slot_len: usize,
    slots: usize,
    next: usize,
}

impl Ring {
    /// A ring of about `slots` frames of up to `frame_len` bytes on a socket, which then receives into nothing else.
    pub(super) fn new(socket: &PacketSocket, slots: usize, frame_len: usize) -> io::Result<Ring> {
        // In front of each frame are its header, the sender's address and alignment.
        let slot_len = (frame_len + libc::TPACKET2_HDRLEN + 64).next_power_of_two();
        let block_len = BLOCK_LEN.max(slot_len);
        let blocks = (slots * slot_len).div_ceil(block_len).max(1);
        let slots = blocks * (block_len / slot_len);
        let len = blocks * block_len;
        let number = |value: usize| {
            libc::c_uint::try_from(value)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "receive ring too large"))
        };
        let request = libc::tpacket_req {
            tp_block_size: number(block_len)?,
            tp_block_nr: number(blocks)?,
            tp_frame_size: number(slot_len)?,
            tp_frame_nr: number(slots)?,
        };
        set(
            &socket.socket,
            libc::SOL_PACKET,
            libc::PACKET_VERSION,
            &(libc::tpacket_versions::TPACKET_V2 as i32),
        )?;
        set(&socket.socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        // SAFETY: a new mapping wherever the kernel puts it.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket.as_fd(),
                0,
            )?
        };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring { start, len, slot_len, slots, next: 0 })
    }

    /// The frame `ahead` slots behind the next, if the kernel has filled it.
    pub(super) fn frame(&self, ahead: usize) -> Option<&[u8]> {
        if ahead >= self.slots {
            return None;
        }
        // Blocks follow each other in memory and slots fill them exactly, for both are powers of two.
        let slot = (self.next + ahead) % self.slots * self.slot_len;
        if self.status(slot).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: a slot begins with this header, which the kernel wrote before the status just read; `Acquire` above
        // orders the two. Slots are aligned to their size.
        let header = unsafe { self.start.add(slot).cast::<libc::tpacket2_hdr>().read() };
        let (at, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        if at.checked_add(len).is_none_or(|end| end > self.slot_len) {
            return None;
        }
        // SAFETY: within the slot, as just checked, and the kernel leaves it alone until it is released, which takes
        // `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(self.start.add(slot + at).as_ptr(), len) })
    }

    /// Gives the next `count` slots back to the kernel.
    pub(super) fn release(&mut self, count: usize) {
        for _ in 0..count {
            self.status(self.next * self.slot_len).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % self.slots;
        }
    }

    fn status(&self, slot: usize) -> &AtomicU32 {
        debug_assert!(slot + mem::size_of::<libc::tpacket2_hdr>() <= self.len);
        // SAFETY: the first field of the slot's header, aligned and inside the mapping, which lives as long as `self`;
        // kernel and reader both treat it as one atomic word.
        unsafe { AtomicU32::from_ptr(self.start.add(slot).cast::<u32>().as_ptr()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; no borrow of it is left. A failure would only keep it mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
