//! The packet socket: opening, options, statistics.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::filter::Filter;
use crate::interface::state_by;
use crate::{Interface, InterfaceError, LinkState, RingShape};

/// Socket buffer in bytes for a window of 1024 packets of 9000 bytes with their headers. The kernel
/// doubles the requested size, which covers its own overhead for each frame.
pub const WINDOW_BYTES: usize = 1024 * 9216;

/// Options of a [`PacketSocket`].
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Receive buffer to request, in bytes of frames. Default [`WINDOW_BYTES`]. Sizes above
    /// `net.core.rmem_max` are granted only with `CAP_NET_ADMIN`.
    pub receive_buffer: usize,
    /// Send buffer to request, in bytes of frames; limited by `net.core.wmem_max` in the same way.
    pub send_buffer: usize,
    /// Program by which the kernel selects frames, starting with the first one. Default none.
    pub filter: Option<Filter>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        SocketOptions {
            receive_buffer: WINDOW_BYTES,
            send_buffer: WINDOW_BYTES,
            filter: None,
        }
    }
}

/// Reason why a packet socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The process lacks the privilege to open packet sockets.
    #[error(
        "no permission to open a packet socket on {interface}: CAP_NET_RAW is missing. Run as \
         root, or grant it to the program (setcap cap_net_raw+ep {program}) or in a systemd unit \
         (AmbientCapabilities=CAP_NET_RAW)"
    )]
    NoPermission {
        /// The interface.
        interface: String,
        /// Path of this program, for `setcap`.
        program: String,
    },
    /// The interface cannot be used for raw Ethernet.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The interface was removed.
    #[error("the interface {interface} (index {index}) was removed")]
    Gone {
        /// The interface.
        interface: String,
        /// Its last index.
        index: u32,
    },
    /// Any other error of the system.
    #[error("cannot open a packet socket on {interface}: {step}: {source}")]
    System {
        /// The interface.
        interface: String,
        /// The step that failed.
        step: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

/// Counts by the kernel since the socket was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames that passed the filter and were queued.
    pub received: u64,
    /// Frames that passed the filter and were lost because the receive buffer was full.
    pub dropped: u64,
}

/// A raw packet socket of one interface and one EtherType. Never blocks.
///
/// It can be shared between threads: one may send while another receives. When the interface goes
/// down, the next call reports `ENETDOWN` once; the socket works again when the interface is up.
#[derive(Debug)]
pub struct PacketSocket {
    pub(crate) socket: Socket,
    received: AtomicU64,
    dropped: AtomicU64,
}

impl PacketSocket {
    /// Opens a socket that receives every frame of `ethertype` that the interface accepts, and
    /// sends on it.
    ///
    /// # Errors
    /// See [`OpenError`]. An interface that is down is not an error here: the first receive reports
    /// it.
    pub fn open(
        interface: &Interface,
        ethertype: u16,
        options: &SocketOptions,
    ) -> Result<PacketSocket, OpenError> {
        let socket = PacketSocket::open_unbound(interface, options)?;
        socket.bind(interface, ethertype)?;
        Ok(socket)
    }

    /// Binds an unbound socket.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn bind(&self, interface: &Interface, ethertype: u16) -> Result<(), OpenError> {
        let bound = self.socket.bind(&address(interface.index, ethertype));
        bound.map_err(|source| open_error(interface, "bind", source))
    }

    /// Directs received frames to a ring, which [`RecvRing::map`](crate::RecvRing::map) maps. The
    /// kernel keeps its memory, in addition to the receive buffer, for as long as the socket is
    /// open. The call waits about 15 ms for frames that the kernel is processing.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn ring(&self, interface: &Interface, shape: RingShape) -> Result<(), OpenError> {
        self.set_ring(shape)
            .map_err(|source| open_error(interface, "receive ring", source))
    }

    /// Opens an unbound socket, which receives nothing until it is bound. Frames go directly to the
    /// driver, bypassing the interface's queueing discipline: less time for each frame, but traffic
    /// shaping (`tc` on this machine) and packet capture do not see them, and a full transmit queue
    /// drops instead of waiting.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_unbound(
        interface: &Interface,
        options: &SocketOptions,
    ) -> Result<PacketSocket, OpenError> {
        interface.check_ethernet()?;
        let failed =
            |step: &'static str| move |source: io::Error| open_error(interface, step, source);
        // Protocol 0 receives nothing, so no frame of another interface arrives before `bind`.
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))
            .map_err(failed("socket"))?;
        set_buffers(&socket, options.receive_buffer, options.send_buffer)
            .map_err(failed("buffers"))?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)
            .map_err(failed("qdisc bypass"))?;
        // An optimisation only (binding to one EtherType already excludes them); kernels before
        // 4.20 lack it.
        let ignore_outgoing = libc::PACKET_IGNORE_OUTGOING;
        let _ = set(&socket, libc::SOL_PACKET, ignore_outgoing, &1i32);
        let socket = PacketSocket::of(socket).map_err(failed("non-blocking mode"))?;
        if let Some(filter) = &options.filter {
            socket.attach_filter(filter).map_err(failed("filter"))?;
        }
        Ok(socket)
    }

    pub(crate) fn of(socket: Socket) -> io::Result<PacketSocket> {
        socket.set_nonblocking(true)?;
        Ok(PacketSocket {
            socket,
            received: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        })
    }

    /// Takes over a packet socket that another process opened, bound and passed here.
    ///
    /// # Errors
    /// `InvalidInput` when it is not a raw packet socket.
    pub fn from_fd(fd: OwnedFd) -> io::Result<PacketSocket> {
        let socket = Socket::from(fd);
        if socket.domain()? != Domain::PACKET || socket.r#type()? != Type::RAW {
            let what = "not a raw packet socket";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        PacketSocket::of(socket)
    }

    /// Replaces the filter. Frames already queued are not filtered again; [`SocketOptions::filter`]
    /// leaves no such gap.
    ///
    /// # Errors
    /// `EPERM` when the filter is locked; `ENOMEM` when it is larger than `net.core.optmem_max`
    /// allows.
    pub fn attach_filter(&self, filter: &Filter) -> io::Result<()> {
        self.socket.attach_filter(&filter.kernel_program())
    }

    /// Locks the filter: no process that has the socket can change or remove it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn lock_filter(&self) -> io::Result<()> {
        set(&self.socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1i32)
    }

    /// Binds the socket to the interface and EtherType of another one.
    ///
    /// # Errors
    /// `InvalidInput` when the other one is not a packet socket, or not bound; else those of the
    /// system.
    pub fn bind_like(&self, other: &PacketSocket) -> io::Result<()> {
        match other.bound_to()? {
            (index, ethertype @ 1..) => self.socket.bind(&address(index, ethertype)),
            _ => Err(not_bound()),
        }
    }

    /// Returns the index of the interface that the socket is bound to, and the EtherType.
    fn bound_to(&self) -> io::Result<(u32, u16)> {
        let bound = self.socket.local_addr()?;
        // The kernel returns the used part of the address.
        if bound.family() != libc::AF_PACKET as u16 || (bound.len() as usize) < MIN_ADDRESS_LEN {
            return Err(not_bound());
        }
        // SAFETY: the family says that the storage holds a `sockaddr_ll`, and the fields read are
        // within its length.
        let link = unsafe { &*bound.as_ptr().cast::<libc::sockaddr_ll>() };
        match u32::try_from(link.sll_ifindex) {
            Ok(index @ 1..) => Ok((index, u16::from_be(link.sll_protocol))),
            _ => Err(not_bound()),
        }
    }

    /// Returns the state of the interface that the socket is bound to, and `None` when it does not
    /// exist any more. It may be in another network namespace than this process.
    ///
    /// # Errors
    /// Those of the system.
    pub fn link_state(&self) -> io::Result<Option<LinkState>> {
        match self.bound_to() {
            Ok((index, _)) => state_by(&self.socket, index),
            // The kernel unbinds the sockets of an interface that vanishes.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Discards at most `max` frames that wait to be received.
    pub fn discard(&self, max: usize) {
        let mut byte = [mem::MaybeUninit::uninit()];
        let _ = (0..max).try_for_each(|_| self.socket.recv(&mut byte).map(drop));
    }

    /// Returns the number of the socket's fan-out group.
    ///
    /// # Errors
    /// Those of the system.
    pub fn fanout(&self) -> io::Result<Option<u16>> {
        let mut group = 0u32;
        let option = libc::PACKET_FANOUT;
        get(&self.socket, libc::SOL_PACKET, option, &mut group)?;
        // The number is the lower half; above it are the kind, which is not 0 for ours, and the
        // flags.
        Ok((group >> 16 != 0).then_some(group as u16))
    }

    /// Takes the pending error of the socket, if any: the interface went down. It is reported only
    /// once, by this or by a receive.
    pub fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error().ok().flatten()
    }

    /// Returns the frames received and lost since the socket was opened (or taken over).
    ///
    /// # Errors
    /// Those of the system.
    pub fn statistics(&self) -> io::Result<Statistics> {
        // SAFETY: all zeros is a valid value of this plain C structure.
        let mut since: libc::tpacket_stats = unsafe { mem::zeroed() };
        let option = libc::PACKET_STATISTICS;
        get(&self.socket, libc::SOL_PACKET, option, &mut since)?;
        // The kernel restarts from zero at each reading, and counts a dropped frame in both
        // numbers.
        let dropped = u64::from(since.tp_drops);
        let received = u64::from(since.tp_packets).saturating_sub(dropped);
        Ok(Statistics {
            received: self.received.fetch_add(received, Ordering::Relaxed) + received,
            dropped: self.dropped.fetch_add(dropped, Ordering::Relaxed) + dropped,
        })
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<PacketSocket> for OwnedFd {
    fn from(socket: PacketSocket) -> OwnedFd {
        socket.socket.into()
    }
}

pub(crate) fn open_error(
    interface: &Interface,
    step: &'static str,
    source: io::Error,
) -> OpenError {
    let name = interface.name.clone();
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if step == "socket" => {
            let program = std::env::current_exe()
                .map_or_else(|_| "BINARY".to_owned(), |p| p.display().to_string());
            OpenError::NoPermission {
                interface: name,
                program,
            }
        }
        Some(libc::ENODEV | libc::ENXIO) => OpenError::Gone {
            interface: name,
            index: interface.index,
        },
        _ => OpenError::System {
            interface: name,
            step,
            source,
        },
    }
}

fn not_bound() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a bound packet socket")
}

/// Bytes of a `sockaddr_ll` up to and including `sll_ifindex`.
const MIN_ADDRESS_LEN: usize = 8;

/// Returns the address of all frames of `ethertype` on an interface.
pub(crate) fn address(index: u32, ethertype: u16) -> SockAddr {
    let mut storage = socket2::SockAddrStorage::zeroed();
    // SAFETY: `sockaddr_ll` is a socket address of this platform and fits the storage, which is all
    // zeros.
    let link = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    link.sll_family = libc::AF_PACKET as u16;
    link.sll_protocol = ethertype.to_be();
    // Indices are positive `int`s in the kernel; `bind` refuses a larger one.
    link.sll_ifindex = i32::try_from(index).unwrap_or(i32::MAX);
    // SAFETY: family and length are those of the `sockaddr_ll` just written.
    unsafe {
        SockAddr::new(
            storage,
            mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    }
}

/// Requests buffers above the system's limits and, where that is not allowed, as much as the limits
/// grant.
pub(crate) fn set_buffers(socket: &Socket, receive: usize, send: usize) -> io::Result<()> {
    for (force, plain, bytes) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send),
    ] {
        // The kernel doubles the number in an `int`.
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX).min(i32::MAX / 2);
        match set(socket, libc::SOL_SOCKET, force, &bytes) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                set(socket, libc::SOL_SOCKET, plain, &bytes)?;
            }
            result => result?,
        }
    }
    Ok(())
}

/// Returns the sizes of the receive and the send buffer that the system grants to a socket of this
/// process for these requests, in the bytes that [`SocketOptions`] counts.
///
/// # Errors
/// Those of the system.
pub fn granted_buffers(receive: usize, send: usize) -> io::Result<(usize, usize)> {
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    set_buffers(&socket, receive, send)?;
    // The kernel reports the doubled number.
    Ok((
        socket.recv_buffer_size()? / 2,
        socket.send_buffer_size()? / 2,
    ))
}

pub(crate) fn set<T: Copy>(socket: &Socket, level: i32, option: i32, value: &T) -> io::Result<()> {
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is plain data that outlives the call and `len` is its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            len,
        )
    };
    done(result)
}

fn get<T: Copy>(socket: &Socket, level: i32, option: i32, value: &mut T) -> io::Result<()> {
    let mut len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is plain C data that outlives the call, and the kernel writes at most `len`
    // bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_mut(value).cast(),
            &mut len,
        )
    };
    done(result)
}

fn done(result: libc::c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the supplementary groups of the process at the other end of a Unix socket at the time it
/// connected (`SO_PEERGROUPS`, socket(7)).
///
/// # Errors
/// Not a connected Unix socket, a kernel before 4.13, or more than 65536 groups.
pub fn peer_groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let fd = socket.as_fd().as_raw_fd();
    let mut groups: Vec<libc::gid_t> = Vec::new();
    loop {
        let mut len = libc::socklen_t::try_from(mem::size_of_val(groups.as_slice())).unwrap_or(0);
        // SAFETY: the kernel writes at most `len` bytes, which the vector has, and returns the
        // length in `len`.
        let result = unsafe {
            libc::getsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut len,
            )
        };
        let count = len as usize / mem::size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // Too short: `len` is the required size. The number of groups is bounded, so this ends.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > 65536 {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}
