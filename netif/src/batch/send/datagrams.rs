//! Datagrams: the kernel's description of waiting frames as segmented buffers.

use std::net::SocketAddr;

use socket2::SockAddr;

use super::{Frame, SendBatch};
use crate::arena::Arena;
use crate::udp::{UNUSED, group};

/// Description of segmented buffers for the kernel, besides their memory areas.
pub(super) struct Datagrams {
    names: Arena<libc::sockaddr_storage>,
    /// Control messages, each with the length of a segment.
    controls: Arena<[u64; CONTROL_WORDS]>,
    /// Number of frames of each message.
    frames: Vec<usize>,
}

/// Words of a control message with one number of 16 bits.
const CONTROL_WORDS: usize = 3;

const _: () = assert!(
    // SAFETY: a calculation.
    unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize <= 8 * CONTROL_WORDS
);

impl SendBatch {
    /// Returns the destination of a waiting frame.
    pub(crate) fn destination(&self, index: usize) -> Option<SocketAddr> {
        self.frames.get(..self.queued)?.get(index)?.dst
    }

    /// Returns the number of frames, starting with `from`, that are sent as one segmented buffer;
    /// one if `from` is before `single`.
    pub(crate) fn group_at(&self, from: usize, single: usize) -> usize {
        if from < single {
            return 1;
        }
        let waiting = self.frames.get(from..self.queued).unwrap_or_default();
        let datagram = |frame: &Frame| Some((frame.dst?, frame.len().saturating_sub(UNUSED)));
        // A frame without a destination is a bug of the caller; it is refused by the kernel.
        group(waiting.iter().map_while(datagram)).max(1)
    }

    /// Writes the kernel's description of the frames, starting with `from`, as datagrams. Returns
    /// the number of messages.
    pub(crate) fn describe_datagrams(&mut self, from: usize, single: usize) -> usize {
        let slots = self.frames.len();
        let datagrams = self.datagrams.get_or_insert_with(|| {
            // SAFETY: plain C structures and numbers; zero is a valid value of each.
            let (names, controls) = unsafe { (Arena::zeroed(slots), Arena::zeroed(slots)) };
            Datagrams {
                names,
                controls,
                frames: Vec::with_capacity(slots),
            }
        });
        datagrams.frames.clear();
        let (mut next, mut area) = (from, 0);
        while next < self.queued {
            let count = self.group_at(next, single);
            let first = area;
            let segment = self.frames[next].len().saturating_sub(UNUSED);
            for frame in &self.frames[next..next + count] {
                let head = self.heads.at(frame.head).cast::<u8>();
                let (payload, len) = frame
                    .payload
                    .map_or((std::ptr::null_mut(), 0), |(at, len)| (at.as_ptr(), len));
                let unused = UNUSED.min(frame.prefix);
                let parts = [
                    (head.wrapping_add(unused), frame.prefix - unused),
                    (payload, len),
                    (head.wrapping_add(frame.prefix), frame.tail),
                ];
                for (start, len) in parts {
                    // Empty areas cost the kernel time.
                    if len > 0
                        && let Some(slot) = self.areas.get_mut(area)
                    {
                        *slot = libc::iovec {
                            iov_base: start.cast(),
                            iov_len: len,
                        };
                        area += 1;
                    }
                }
            }
            let Some(datagrams) = &mut self.datagrams else {
                break;
            };
            let message = datagrams.frames.len();
            datagrams.frames.push(count);
            let name_len = match self.frames[next].dst {
                Some(dst) => write_name(&mut datagrams.names, message, dst),
                None => 0,
            };
            let control_len = match u16::try_from(segment) {
                Ok(segment) if count > 1 => {
                    write_segment(&mut datagrams.controls, message, segment)
                }
                _ => 0,
            };
            if let Some(header) = self.headers.get_mut(message) {
                let header = &mut header.msg_hdr;
                header.msg_name = datagrams.names.at(message).cast();
                header.msg_namelen = name_len;
                header.msg_iov = self.areas.at(first.min(self.areas.len() - 1));
                header.msg_iovlen = (area - first) as _;
                header.msg_control = datagrams.controls.at(message).cast();
                header.msg_controllen = control_len as _;
            }
            next += count;
        }
        self.datagrams.as_ref().map_or(0, |all| all.frames.len())
    }

    /// Returns the number of frames in the first `messages` of the last description.
    pub(crate) fn frames_of(&self, messages: usize) -> usize {
        let all = self.datagrams.as_ref().map(|all| all.frames.as_slice());
        all.unwrap_or_default().iter().take(messages).sum()
    }
}

/// Writes a socket address as the kernel takes it. Returns its length.
fn write_name(
    names: &mut Arena<libc::sockaddr_storage>,
    index: usize,
    dst: SocketAddr,
) -> libc::socklen_t {
    let address = SockAddr::from(dst);
    if let Some(name) = names.get_mut(index) {
        // SAFETY: both are `sockaddr_storage`.
        *name = unsafe { *address.as_ptr().cast::<libc::sockaddr_storage>() };
    }
    address.len()
}

/// Writes the control message with the length of a segment. Returns its length.
fn write_segment(controls: &mut Arena<[u64; CONTROL_WORDS]>, index: usize, segment: u16) -> usize {
    let header = controls.at(index).cast::<libc::cmsghdr>();
    // SAFETY: the buffer is aligned for the header and has room for it and a number of 16 bits
    // (checked above at compile time).
    unsafe {
        (*header).cmsg_level = libc::SOL_UDP;
        (*header).cmsg_type = libc::UDP_SEGMENT;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
        libc::CMSG_DATA(header)
            .cast::<u16>()
            .write_unaligned(segment);
        libc::CMSG_SPACE(size_of::<u16>() as u32) as usize
    }
}
