//! The packet socket: opening, options, statistics.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::filter::Filter;
use crate::{Interface, InterfaceError, RingShape};

/// Bytes of one socket buffer that hold a window of 1024 packets of 9000 bytes with their headers. The kernel doubles
/// what it is asked for, which covers its own bookkeeping for each frame.
pub const WINDOW_BYTES: usize = 1024 * 9216;

/// How to open a [`PacketSocket`].
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Receive buffer to ask for, in bytes of frames. Default [`WINDOW_BYTES`]. What is above `net.core.rmem_max` is
    /// granted only with `CAP_NET_ADMIN`; [`PacketSocket::receive_buffer`] says what it became.
    pub receive_buffer: usize,
    /// Send buffer to ask for, in bytes of frames; else as above (`net.core.wmem_max`).
    pub send_buffer: usize,
    /// Hand frames straight to the driver, past the interface's queueing discipline. Default true: less time for each
    /// frame, but traffic shaping (`tc` on this machine) does not see them, and a full transmit queue drops instead
    /// of waiting.
    pub qdisc_bypass: bool,
    /// Deliver the 802.1Q tag the kernel took off a frame ([`RawFrame::vlan`](crate::RawFrame::vlan)). Default false:
    /// only a socket of all EtherTypes (`ETH_P_ALL`, 3) ever sees it. For a socket of one EtherType the kernel hands
    /// a frame of a VLAN to the VLAN's interface or, when there is none, marks it as for another station
    /// ([`FrameKind::OtherHost`](crate::FrameKind::OtherHost)) and forgets the tag.
    pub vlan_tag: bool,
    /// Program that decides in the kernel which frames are queued, in force from the first frame. Default none.
    pub filter: Option<Filter>,
    /// A ring to receive into, to be mapped by [`RecvRing::map`](crate::RecvRing::map). Default none. Its memory is the kernel's,
    /// besides the receive buffer, and there as long as the socket is.
    pub ring: Option<RingShape>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        SocketOptions {
            receive_buffer: WINDOW_BYTES,
            send_buffer: WINDOW_BYTES,
            qdisc_bypass: true,
            vlan_tag: false,
            filter: None,
            ring: None,
        }
    }
}

/// Why a packet socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The process may not open packet sockets.
    #[error(
        "no permission to open a packet socket on {interface}: this needs the capability CAP_NET_RAW. Run as root, or \
         grant it to the program once (setcap cap_net_raw+ep {program}), or in a systemd unit \
         (AmbientCapabilities=CAP_NET_RAW)"
    )]
    NoPermission {
        /// The interface.
        interface: String,
        /// Path of this program, as `setcap` wants it.
        program: String,
    },
    /// The interface is of no use for raw Ethernet.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The interface went away.
    #[error("the interface {interface} (index {index}) is gone")]
    Gone {
        /// The interface.
        interface: String,
        /// Its former index.
        index: u32,
    },
    /// Anything else the system refused.
    #[error("cannot open a packet socket on {interface}: {step}: {source}")]
    System {
        /// The interface.
        interface: String,
        /// What was being done.
        step: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

/// Frames counted by the kernel since the socket was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames that passed the filter and were queued for us.
    pub received: u64,
    /// Frames that passed the filter and were lost because the receive buffer was full.
    pub dropped: u64,
}

/// A raw packet socket of one interface and one EtherType. Never blocks.
///
/// Shareable between threads: one may send while another receives.
///
/// When the interface goes down, the next call reports `ENETDOWN` once; the socket lives on and works again when the
/// interface is up.
#[derive(Debug)]
pub struct PacketSocket {
    pub(crate) socket: Socket,
    received: AtomicU64,
    dropped: AtomicU64,
}

impl PacketSocket {
    /// Opens a socket that receives every frame of `ethertype` that the interface takes in, and sends on it.
    ///
    /// # Errors
    /// See [`OpenError`]. An interface that is down is none: the first receive reports it.
    pub fn open(
        interface: &Interface,
        ethertype: u16,
        options: &SocketOptions,
    ) -> Result<PacketSocket, OpenError> {
        let socket = PacketSocket::open_unbound(interface, options)?;
        socket.bind(interface, ethertype)?;
        Ok(socket)
    }

    /// Binds a socket that is not bound.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn bind(&self, interface: &Interface, ethertype: u16) -> Result<(), OpenError> {
        let bound = self.socket.bind(&address(interface.index, ethertype));
        bound.map_err(|source| open_error(interface, "bind", source))
    }

    /// Has received frames go to a ring from now on, which [`RecvRing::map`](crate::RecvRing::map) maps. Its memory is the kernel's, besides the
    /// receive buffer, and there as long as the socket is. The kernel waits for all frames on their way, some 15 ms.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn ring(&self, interface: &Interface, shape: RingShape) -> Result<(), OpenError> {
        self.set_ring(shape)
            .map_err(|source| open_error(interface, "receive ring", source))
    }

    /// All but `bind`.
    fn prepare(interface: &Interface, options: &SocketOptions) -> Result<PacketSocket, OpenError> {
        let failed =
            |step: &'static str| move |source: io::Error| open_error(interface, step, source);
        // Protocol 0 receives nothing: nothing of another interface gets in before `bind`.
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))
            .map_err(failed("socket"))?;
        socket
            .set_nonblocking(true)
            .map_err(failed("non-blocking mode"))?;
        buffer_size(
            &socket,
            libc::SO_RCVBUFFORCE,
            libc::SO_RCVBUF,
            options.receive_buffer,
        )
        .map_err(failed("receive buffer"))?;
        buffer_size(
            &socket,
            libc::SO_SNDBUFFORCE,
            libc::SO_SNDBUF,
            options.send_buffer,
        )
        .map_err(failed("send buffer"))?;
        if options.qdisc_bypass {
            set(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)
                .map_err(failed("qdisc bypass"))?;
        }
        if options.vlan_tag {
            set(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32)
                .map_err(failed("VLAN tags"))?;
        }
        // Only a saving (we are bound to one EtherType, which already excludes them); kernels before 4.20 lack it.
        let _ = set(
            &socket,
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            &1i32,
        );
        let socket = PacketSocket {
            socket,
            received: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        };
        if let Some(filter) = &options.filter {
            socket.attach_filter(filter).map_err(failed("filter"))?;
        }
        if let Some(shape) = options.ring {
            socket.ring(interface, shape)?;
        }
        Ok(socket)
    }

    /// Takes over a packet socket that another process opened, bound and handed over.
    ///
    /// # Errors
    /// `InvalidInput` when it is not a raw packet socket.
    pub fn from_fd(fd: OwnedFd) -> io::Result<PacketSocket> {
        let socket = Socket::from(fd);
        if socket.domain()? != Domain::PACKET || socket.r#type()? != Type::RAW {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a raw packet socket",
            ));
        }
        socket.set_nonblocking(true)?;
        Ok(PacketSocket {
            socket,
            received: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        })
    }

    /// Puts a filter in place of the one before. Frames that are queued already are not judged again;
    /// [`SocketOptions::filter`] leaves no such gap.
    ///
    /// # Errors
    /// `EPERM` when the filter is locked; `ENOMEM` when it is larger than `net.core.optmem_max` allows.
    pub fn attach_filter(&self, filter: &Filter) -> io::Result<()> {
        self.socket.attach_filter(&filter.kernel_program())
    }

    /// Makes the filter final: nobody who holds the socket can change or remove it, in any process.
    ///
    /// # Errors
    /// Those of the system.
    pub fn lock_filter(&self) -> io::Result<()> {
        set(&self.socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1i32)
    }

    /// Opens a socket that is not bound: it receives nothing until [`PacketSocket::bind_like`]. Otherwise as [`open`](PacketSocket::open).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_unbound(
        interface: &Interface,
        options: &SocketOptions,
    ) -> Result<PacketSocket, OpenError> {
        interface.check_ethernet()?;
        PacketSocket::prepare(interface, options)
    }

    /// Binds the socket to the interface and EtherType that another one is bound to.
    ///
    /// # Errors
    /// `InvalidInput` when the other one is no packet socket, or bound to none; else those of the system.
    pub fn bind_like(&self, other: &PacketSocket) -> io::Result<()> {
        match other.bound_to()? {
            (index, ethertype @ 1..) => self.socket.bind(&address(index, ethertype)),
            _ => Err(not_bound()),
        }
    }

    /// Index of the interface that the socket is bound to, and EtherType.
    fn bound_to(&self) -> io::Result<(u32, u16)> {
        let bound = self.socket.local_addr()?;
        // The kernel gives the part of the address it uses.
        if bound.family() != libc::AF_PACKET as u16 || (bound.len() as usize) < LEAST_ADDRESS {
            return Err(not_bound());
        }
        // SAFETY: the family says that the storage holds a `sockaddr_ll`, and the fields read are within its length.
        let link = unsafe { &*bound.as_ptr().cast::<libc::sockaddr_ll>() };
        match u32::try_from(link.sll_ifindex) {
            Ok(index @ 1..) => Ok((index, u16::from_be(link.sll_protocol))),
            _ => Err(not_bound()),
        }
    }

    /// Whether the interface that the socket is bound to is switched on and has a carrier; `None`: it does not exist any more. It may be
    /// in another network namespace than this process.
    ///
    /// # Errors
    /// Those of the system.
    pub fn link_runs(&self) -> io::Result<Option<bool>> {
        let runs = self
            .bound_to()
            .and_then(|(index, _)| crate::interface::runs_by(&self.socket, index));
        match runs {
            Ok(runs) => Ok(Some(runs)),
            // The kernel unbinds the sockets of an interface that vanishes.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Throws away what waits to be received, at most so many frames.
    pub fn discard(&self, most: usize) {
        let mut byte = [mem::MaybeUninit::uninit()];
        let _ = (0..most).try_for_each(|_| self.socket.recv(&mut byte).map(drop));
    }

    /// Begins a fan-out group by program, with this socket as its first member; its number.
    pub(crate) fn start_fanout(&self) -> io::Result<u16> {
        let kind = libc::PACKET_FANOUT_CBPF | libc::PACKET_FANOUT_FLAG_UNIQUEID;
        set(
            &self.socket,
            libc::SOL_PACKET,
            libc::PACKET_FANOUT,
            &(kind << 16),
        )?;
        self.fanout()?
            .ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// The number of the fan-out group it is in.
    ///
    /// # Errors
    /// Those of the system.
    pub fn fanout(&self) -> io::Result<Option<u16>> {
        let mut group = 0u32;
        get(
            &self.socket,
            libc::SOL_PACKET,
            libc::PACKET_FANOUT,
            &mut group,
        )?;
        // The number is the lower half; above it are the kind, which is not 0 for ours, and the flags.
        Ok((group >> 16 != 0).then_some(group as u16))
    }

    pub(crate) fn join_fanout(&self, id: u16) -> io::Result<()> {
        let group = u32::from(id) | libc::PACKET_FANOUT_CBPF << 16;
        set(&self.socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &group)
    }

    pub(crate) fn route_fanout(&self, program: &Filter) -> io::Result<()> {
        let mut program = program.kernel_program();
        let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // The kernel copies the program during the call, and writes nothing.
        let program = libc::sock_fprog {
            len,
            filter: program.as_mut_ptr().cast(),
        };
        set(
            &self.socket,
            libc::SOL_PACKET,
            libc::PACKET_FANOUT_DATA,
            &program,
        )
    }

    /// Takes the error that waits at the socket, if any: that its interface went down. It is told only once, by this or by a receive.
    pub fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error().ok().flatten()
    }

    /// Frames received and lost since the socket was opened (or taken over).
    ///
    /// # Errors
    /// Those of the system.
    pub fn statistics(&self) -> io::Result<Statistics> {
        // SAFETY: all zeros is a valid value of this plain C structure.
        let mut since: libc::tpacket_stats = unsafe { mem::zeroed() };
        get(
            &self.socket,
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            &mut since,
        )?;
        // The kernel starts again from zero at each reading, and counts a dropped frame in both numbers.
        let dropped = u64::from(since.tp_drops);
        let received = u64::from(since.tp_packets).saturating_sub(dropped);
        Ok(Statistics {
            received: self.received.fetch_add(received, Ordering::Relaxed) + received,
            dropped: self.dropped.fetch_add(dropped, Ordering::Relaxed) + dropped,
        })
    }

    /// Bytes the kernel lets wait for us, its own bookkeeping for each frame included (about twice the frames).
    ///
    /// # Errors
    /// Those of the system.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        self.socket.recv_buffer_size()
    }

    /// The MTU, in bytes, of the interface of this name in the socket's own network namespace, wherever the caller is.
    ///
    /// # Errors
    /// Those of the system: the interface is gone.
    pub fn mtu_of(&self, name: &str) -> io::Result<u32> {
        crate::interface::mtu_by(&self.socket, name)
    }

    /// Bytes the kernel lets wait for the driver, its own bookkeeping included.
    ///
    /// # Errors
    /// Those of the system.
    pub fn send_buffer(&self) -> io::Result<usize> {
        self.socket.send_buffer_size()
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

fn open_error(interface: &Interface, step: &'static str, source: io::Error) -> OpenError {
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

/// Bytes of a `sockaddr_ll` up to and with `sll_ifindex`.
const LEAST_ADDRESS: usize = 8;

/// The address of all frames of `ethertype` on an interface.
fn address(index: u32, ethertype: u16) -> SockAddr {
    let mut storage = socket2::SockAddrStorage::zeroed();
    // SAFETY: `sockaddr_ll` is a socket address of this platform and fits the storage, which is all zeros.
    let link = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    link.sll_family = libc::AF_PACKET as u16;
    link.sll_protocol = ethertype.to_be();
    // Indices are positive `int`s in the kernel; a larger one is none and `bind` says so.
    link.sll_ifindex = i32::try_from(index).unwrap_or(i32::MAX);
    // SAFETY: family and length are those of the `sockaddr_ll` just written.
    unsafe {
        SockAddr::new(
            storage,
            mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    }
}

/// Asks for a buffer above the system's limit and, where that is not allowed, for as much as the limit grants.
fn buffer_size(
    socket: &Socket,
    force: libc::c_int,
    plain: libc::c_int,
    bytes: usize,
) -> io::Result<()> {
    // The kernel doubles the number in an `int`.
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX).min(i32::MAX / 2);
    match set(socket, libc::SOL_SOCKET, force, &bytes) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            set(socket, libc::SOL_SOCKET, plain, &bytes)
        }
        result => result,
    }
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
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn get<T: Copy>(socket: &Socket, level: i32, option: i32, value: &mut T) -> io::Result<()> {
    let mut len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is plain C data that outlives the call, and the kernel writes at most `len` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_mut(value).cast(),
            &mut len,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The supplementary groups of the process at the other end of a Unix socket, as they were when it connected
/// (`SO_PEERGROUPS`, socket(7)).
///
/// # Errors
/// Not such a socket, a kernel before 4.13, or more than 65536 groups.
pub fn peer_groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let fd = socket.as_fd().as_raw_fd();
    let mut groups: Vec<libc::gid_t> = Vec::new();
    loop {
        let mut len = libc::socklen_t::try_from(mem::size_of_val(groups.as_slice())).unwrap_or(0);
        // SAFETY: the kernel writes at most `len` bytes, which the vector has, and says in `len` how many.
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
        // Too short: `len` is what it takes. A process cannot have more groups, so this ends.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > 65536 {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}
