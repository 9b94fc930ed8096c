//! Capture: a packet socket that shows the frames of an interface in both directions, with the
//! kernel's times, as packet analysers do.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::batch::FrameKind;
use crate::socket::{address, open_error, set, set_buffers};
use crate::{Filter, Interface, OpenError, PacketSocket, Statistics};

/// Every EtherType (`ETH_P_ALL`).
const ALL: u16 = libc::ETH_P_ALL as u16;
/// Maximum number of bytes kept of a frame: with segmentation offload, a frame has up to 64 KiB and
/// headers.
const SNAP_LEN: usize = 65536 + 128;
/// Bytes that the kernel stores for the capture while its reader is busy.
const BUFFER_BYTES: usize = 8 << 20;
/// Length of the two addresses, after which a VLAN tag is inserted.
const ADDRESSES_LEN: usize = 12;
/// Length of an 802.1Q tag.
const TAG_LEN: usize = 4;

/// A frame as it was seen on an interface.
#[derive(Clone, Copy, Debug)]
pub struct CapturedFrame<'a> {
    /// Time since 1970 at which the kernel saw it.
    pub time: Duration,
    /// Destination class; [`FrameKind::Outgoing`] for frames that this machine sent.
    pub kind: FrameKind,
    /// The frame, starting with its destination address, with its VLAN tag.
    pub bytes: &'a [u8],
    /// Length of the frame; greater than that of `bytes` if its end was not kept.
    pub len: usize,
}

/// A socket that receives copies of the frames that an interface receives and sends, and sends
/// nothing.
///
/// Two kinds of frames are not seen: those for other stations, because the interface is not put
/// into promiscuous mode, and those sent by [`PacketSocket`]s of this machine, which bypass packet
/// capture.
#[derive(Debug)]
pub struct CaptureSocket {
    socket: PacketSocket,
    loopback: bool,
    buffer: Vec<u8>,
}

/// Buffer of control messages, aligned as the kernel requires.
#[repr(C, align(8))]
struct Control([u8; 256]);

/// Data that the kernel provides about a frame in addition to its bytes.
#[derive(Default)]
struct FrameMetadata {
    time: Option<Duration>,
    /// EtherType and contents of the VLAN tag that was removed.
    tag: Option<(u16, u16)>,
}

impl CaptureSocket {
    /// Opens a capture of the frames that the filter accepts. The interface must be an Ethernet
    /// interface or the loopback interface.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(interface: &Interface, filter: &Filter) -> Result<CaptureSocket, OpenError> {
        if !interface.loopback {
            interface.check_ethernet()?;
        }
        let failed = |step| move |source| open_error(interface, step, source);
        // Protocol 0 receives nothing, so no frame arrives before the filter and `bind`.
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))
            .map_err(failed("socket"))?;
        set_buffers(&socket, BUFFER_BYTES, 0).map_err(failed("buffers"))?;
        set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32).map_err(failed("times"))?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32).map_err(failed("tags"))?;
        let socket = PacketSocket::of(socket).map_err(failed("non-blocking mode"))?;
        socket.attach_filter(filter).map_err(failed("filter"))?;
        let bound = socket.socket.bind(&address(interface.index, ALL));
        bound.map_err(failed("bind"))?;
        Ok(CaptureSocket {
            socket,
            loopback: interface.loopback,
            // Room for a tag that is inserted again.
            buffer: vec![0; SNAP_LEN + TAG_LEN],
        })
    }

    /// Receives the next frame; `None` when none is waiting: poll the socket for readability then.
    ///
    /// # Errors
    /// `ENETDOWN` once when the interface went down or was removed; else those of the system.
    pub fn receive(&mut self) -> io::Result<Option<CapturedFrame<'_>>> {
        let (len, kind, metadata) = loop {
            let Some((len, kind, metadata)) = self.receive_once()? else {
                return Ok(None);
            };
            // On the loopback interface each frame is sent and received.
            if !(self.loopback && kind == FrameKind::Outgoing) {
                break (len, kind, metadata);
            }
        };
        let kept = len.min(SNAP_LEN);
        let (kept, len) = match metadata.tag {
            Some(tag) if kept >= ADDRESSES_LEN => {
                self.put_back(tag, kept);
                (kept + TAG_LEN, len + TAG_LEN)
            }
            _ => (kept, len),
        };
        Ok(Some(CapturedFrame {
            time: metadata.time.unwrap_or_default(),
            kind,
            bytes: self.buffer.get(..kept).unwrap_or_default(),
            len,
        }))
    }

    /// Returns the frames received and lost since the socket was opened.
    ///
    /// # Errors
    /// Those of the system.
    pub fn statistics(&self) -> io::Result<Statistics> {
        self.socket.statistics()
    }

    /// Inserts a VLAN tag after the addresses of the frame of `len` bytes in the buffer.
    fn put_back(&mut self, (ethertype, contents): (u16, u16), len: usize) {
        self.buffer
            .copy_within(ADDRESSES_LEN..len, ADDRESSES_LEN + TAG_LEN);
        let tag = [ethertype.to_be_bytes(), contents.to_be_bytes()].concat();
        self.buffer[ADDRESSES_LEN..ADDRESSES_LEN + TAG_LEN].copy_from_slice(&tag);
    }

    /// Receives a frame into the buffer. Returns its length, which may exceed that of the buffer.
    fn receive_once(&mut self) -> io::Result<Option<(usize, FrameKind, FrameMetadata)>> {
        let mut control = Control([0; 256]);
        let mut area = libc::iovec {
            iov_base: self.buffer.as_mut_ptr().cast(),
            iov_len: SNAP_LEN,
        };
        // SAFETY: all zeros is a valid value of these plain C structures.
        let (mut name, mut header): (libc::sockaddr_ll, libc::msghdr) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        header.msg_iov = &raw mut area;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len();
        // With MSG_TRUNC the kernel returns the length of the frame, not that of its copy.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: the header refers to a name, an area and a control buffer that live longer than
        // the call, with their sizes.
        let result = unsafe { libc::recvmsg(self.as_fd().as_raw_fd(), &raw mut header, flags) };
        match usize::try_from(result) {
            Ok(len) => {
                let kind = FrameKind::from_kernel(name.sll_pkttype);
                Ok(Some((len, kind, metadata(&header))))
            }
            Err(_) => match io::Error::last_os_error() {
                none if none.kind() == io::ErrorKind::WouldBlock => Ok(None),
                none if none.kind() == io::ErrorKind::Interrupted => Ok(None),
                error => Err(error),
            },
        }
    }
}

impl AsFd for CaptureSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads the control messages of a header that `recvmsg` has filled.
fn metadata(header: &libc::msghdr) -> FrameMetadata {
    let mut metadata = FrameMetadata::default();
    // SAFETY: the header and its control buffer are those of the `recvmsg` just done.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: not null, so within the control buffer, which is aligned.
        let (message, data) = unsafe { (&*next, libc::CMSG_DATA(next)) };
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                // SAFETY: a message of this type holds a `timespec`.
                let time: libc::timespec =
                    unsafe { data.cast::<libc::timespec>().read_unaligned() };
                let nanos = u32::try_from(time.tv_nsec).unwrap_or(0).min(999_999_999);
                metadata.time = u64::try_from(time.tv_sec)
                    .ok()
                    .map(|seconds| Duration::new(seconds, nanos));
            }
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                // SAFETY: a message of this type holds a `tpacket_auxdata`.
                let about: libc::tpacket_auxdata =
                    unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() };
                let known = about.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
                let typed = about.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                let ethertype = if typed {
                    about.tp_vlan_tpid
                } else {
                    libc::ETH_P_8021Q as u16
                };
                metadata.tag = known.then_some((ethertype, about.tp_vlan_tci));
            }
            _ => {}
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    metadata
}
