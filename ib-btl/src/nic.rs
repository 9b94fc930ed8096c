//! The verbs of an RDMA network interface that the transport uses. Implemented by libibverbs
//! (`raw/verbs.rs`) and, for tests without hardware, by `dev/fake-verbs`.

#![allow(unsafe_code)] // Declarations of calls that take memory by its address.

use std::fmt;
use std::os::fd::BorrowedFd;

pub use crate::raw::ffi::Sge;

/// Maximum length of a datagram, in bytes: fits the smallest MTU of InfiniBand, 256.
pub const MAX_DATAGRAM: usize = 192;

/// Properties of a port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Device name as printed by `ibv_devices`, and the port.
    pub device: String,
    /// Port number, from 1.
    pub port: u8,
    /// The link layer is Ethernet (RoCE) rather than InfiniBand.
    pub ethernet: bool,
    /// Address at which its datagrams are received.
    pub place: Place,
    /// MTU as `enum ibv_mtu`: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Bandwidth in MB/s, from width and speed; 0: unknown.
    pub bandwidth: u32,
    /// Maximum number of completions that may wait.
    pub max_completions: usize,
    /// Maximum number of bytes of [`PostMode::Inline`]; 0: not supported.
    pub inline: usize,
}

/// Address for datagrams: a port, and a queue pair there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Global id: the IP address for RoCE.
    pub gid: [u8; 16],
    /// Local id within an InfiniBand subnet, 0 for RoCE.
    pub lid: u16,
    /// Queue pair of datagrams.
    pub qpn: u32,
    /// Key of that queue pair.
    pub qkey: u32,
}

/// Sender of a datagram, as reported by the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Global id; packets within an InfiniBand subnet have none.
    pub gid: Option<[u8; 16]>,
    /// Local id, 0 for RoCE.
    pub lid: u16,
    /// Queue pair.
    pub qpn: u32,
}

impl Source {
    /// Returns true if the datagram came from `place`.
    #[must_use]
    pub fn is(&self, place: &Place) -> bool {
        let port = match self.gid {
            Some(gid) => gid == place.gid,
            None => self.lid != 0 && self.lid == place.lid,
        };
        port && self.qpn == place.qpn
    }
}

/// Remote end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Address of its port.
    pub place: Place,
    /// Common MTU, as `enum ibv_mtu`.
    pub mtu: u8,
    /// Number of its queue pair.
    pub qpn: u32,
    /// First packet numbers, 24 bits: of the remote end, and of this one.
    pub psn: [u32; 2],
    /// Exponent of the packet time-out, 4.096 µs · 2ⁿ.
    pub timeout: u8,
    /// Maximum number of retransmissions, at most 6: some devices take 7 for unlimited.
    pub retries: u8,
}

/// A memory registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Id for [`Nic::deregister`].
    pub id: u64,
    /// Key for local work requests.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
}

/// Handle of a reliable connection of this adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queue(pub u32);

/// Operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA write; with an immediate it also consumes a receive of the peer.
    Write(Option<u32>),
    /// RDMA read.
    Read,
    /// Send into a buffer of the peer's shared receive queue, with an immediate.
    Send(u32),
}

/// Source of a work request's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostMode {
    /// Registered memory.
    Registered,
    /// Up to [`About::inline`] bytes that the call copies, of a write or a send.
    Inline {
        /// The request completes even if it succeeds. Otherwise a later completion of this queue
        /// implies its success.
        signaled: bool,
    },
}

/// Event of a completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A work request has ended.
    Done {
        /// Id that it was posted with.
        id: u64,
        /// `enum ibv_wc_status`.
        status: u32,
    },
    /// Data arrived over a connection.
    Arrived {
        /// Number of the connection that [`Nic::open`] was given.
        connection: u32,
        /// `enum ibv_wc_status`; not 0: the receive ended without data.
        status: u32,
        /// Immediate, if the status is 0.
        immediate: Option<u32>,
        /// Index of the shared buffer that holds it, and its length.
        shared: Option<(u32, u32)>,
    },
    /// A datagram arrived.
    Datagram {
        /// Sender of the datagram.
        from: Source,
        /// Payload of the datagram.
        bytes: Vec<u8>,
    },
}

/// Error of a verbs call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", std::io::Error::from_raw_os_error(*.errno))]
pub struct NicError {
    /// Name of the verb.
    pub call: &'static str,
    /// Error number.
    pub errno: i32,
}

impl NicError {
    /// Returns the error of a verb.
    #[must_use]
    pub fn new(call: &'static str, errno: i32) -> NicError {
        NicError { call, errno }
    }
}

/// Status: success.
pub const GOOD: u32 = 0;
/// Status: discarded because an earlier request failed.
pub const FLUSHED: u32 = 5;
/// Status: outside of registered memory, or access denied.
pub const REMOTE_ACCESS: u32 = 10;
/// Status: no answer after all retransmissions.
pub const NO_ANSWER: u32 = 12;

/// Opens a port of this machine with a queue of `completions` completions.
/// [`IbBtl::new`](crate::IbBtl::new) calls it.
///
/// # Errors
/// There is no such port, or it cannot be used; the text contains the reason.
pub fn open(device: &str, port: u8, completions: usize) -> Result<Box<dyn Nic>, crate::IbError> {
    let verbs = crate::raw::verbs::Verbs::open(device, port, completions)?;
    Ok(Box::new(verbs))
}

/// An open port of a device.
pub trait Nic: Send + fmt::Debug {
    /// Returns the properties of the port.
    fn about(&self) -> &About;

    /// Registers memory for work requests, and if `remote` for peers that know the key.
    ///
    /// # Safety
    /// The memory must be mapped, and the program must tolerate that peers write it, until
    /// [`deregister`](Nic::deregister).
    ///
    /// # Errors
    /// The system refuses, mostly because of the limit of locked memory.
    unsafe fn register(
        &mut self,
        address: usize,
        length: usize,
        remote: bool,
    ) -> Result<Registered, NicError>;

    /// Ends a registration. Unknown ids are ignored.
    fn deregister(&mut self, id: u64);

    /// Creates a queue pair, not connected. Its arrivals are reported with `number`. Returns its
    /// handle and its number for peers.
    ///
    /// # Errors
    /// The device has no room.
    fn open(&mut self, number: u32, depth: usize) -> Result<(Queue, u32), NicError>;

    /// Connects a queue pair. The remote end must connect as well.
    ///
    /// # Errors
    /// The address cannot be reached.
    fn connect(&mut self, queue: Queue, remote: &Remote) -> Result<(), NicError>;

    /// Stops a queue pair. Its posted requests are discarded, with completions.
    fn stop(&mut self, queue: Queue);

    /// Destroys a queue pair, after which the device accesses none of its memory. Completions may
    /// still arrive.
    fn close(&mut self, queue: Queue);

    /// Posts a work request.
    ///
    /// # Safety
    /// For an inline request, the memory of `local` must be valid for reads during the call.
    /// Otherwise it must be registered under its keys, and must not change (for a read: must not be
    /// accessed) until completion.
    ///
    /// # Errors
    /// There is no room, or the queue pair is broken.
    unsafe fn post(
        &mut self,
        queue: Queue,
        id: u64,
        verb: Verb,
        local: &[Sge],
        remote: (u64, u32),
        mode: PostMode,
    ) -> Result<(), NicError>;

    /// Posts `count` receives without a buffer.
    ///
    /// # Errors
    /// There is no room.
    fn expect(&mut self, queue: Queue, count: usize) -> Result<(), NicError>;

    /// Adds a buffer to the shared receive queue, which the first call creates. All connections
    /// opened afterwards receive there.
    ///
    /// # Safety
    /// The memory must be registered, and must be written by arrivals only, until the interface is
    /// dropped.
    ///
    /// # Errors
    /// There is no room, or the device has no shared receive queues.
    unsafe fn share(&mut self, index: u32, buffer: Sge, max: usize) -> Result<(), NicError>;

    /// Sends a datagram, unreliably.
    ///
    /// # Errors
    /// The address cannot be reached or resolved.
    fn datagram(&mut self, to: &Place, bytes: &[u8]) -> Result<(), NicError>;

    /// Appends at most `max` events to `out`.
    ///
    /// # Errors
    /// The completion queue is broken.
    fn poll(&mut self, max: usize, out: &mut Vec<Completion>) -> Result<(), NicError>;

    /// Returns a descriptor that becomes readable at an event after [`arm`](Nic::arm).
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Requests a notification of the next event.
    fn arm(&mut self);

    /// Consumes the notification.
    fn calm(&mut self);
}
