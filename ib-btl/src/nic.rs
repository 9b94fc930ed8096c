//! Interface to an RDMA adapter: the verbs that the transport uses. Implemented by libibverbs
//! (`raw/verbs.rs`) and by a fabric inside one process for tests without hardware
//! ([`fake`](crate::fake)).

#![allow(unsafe_code)] // Declarations of calls that take memory by its address.

use std::fmt;
use std::os::fd::BorrowedFd;

pub use crate::raw::ffi::Sge;

/// Maximum length of a datagram, in bytes. It fits the smallest MTU of InfiniBand, 256.
pub const MAX_DATAGRAM: usize = 192;

/// Properties of a port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Name of the device as `ibv_devices` shows it, and the port.
    pub device: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// True for RoCE, false for InfiniBand.
    pub ethernet: bool,
    /// Address at which the port receives datagrams.
    pub place: Place,
    /// MTU as `enum ibv_mtu`: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Bandwidth in MB/s, from width and speed; 0 if unknown.
    pub bandwidth: u32,
    /// Maximum number of entries of a completion queue.
    pub max_completions: usize,
    /// Maximum length of one operation, in bytes.
    pub max_message: usize,
    /// Maximum number of bytes for [`Nic::post_inline`]; 0 if it is not supported.
    pub inline: usize,
}

/// Address of a datagram queue pair: a port, and the queue pair there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Global id: the IP address for RoCE.
    pub gid: [u8; 16],
    /// Local id within an InfiniBand subnet, 0 for RoCE.
    pub lid: u16,
    /// Queue pair of datagrams.
    pub qpn: u32,
    /// Its key.
    pub qkey: u32,
}

/// Sender of a datagram, as reported by the adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Global id; within an InfiniBand subnet packets have none.
    pub gid: Option<[u8; 16]>,
    /// Local id, 0 for RoCE.
    pub lid: u16,
    /// Queue pair.
    pub qpn: u32,
}

impl Source {
    /// Returns true if the datagram was sent from `place`.
    #[must_use]
    pub fn is(&self, place: &Place) -> bool {
        let port = match self.gid {
            Some(gid) => gid == place.gid,
            None => self.lid != 0 && self.lid == place.lid,
        };
        port && self.qpn == place.qpn
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Address of its port.
    pub place: Place,
    /// Largest MTU that both support, as `enum ibv_mtu`.
    pub mtu: u8,
    /// Its queue pair.
    pub qpn: u32,
    /// First packet sequence numbers of the peer and of this side, 24 bits each.
    pub psn: [u32; 2],
    /// Exponent n of the packet timeout of 4.096 µs · 2ⁿ.
    pub timeout: u8,
    /// Maximum number of retransmissions, at most 6: some devices take 7 for no limit.
    pub retries: u8,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Handle for [`Nic::deregister`].
    pub id: u64,
    /// Local key, for work requests of this side.
    pub lkey: u32,
    /// Remote key, for peers.
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

/// Entry of a completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Completion of a work request.
    Done {
        /// Id given when it was posted.
        id: u64,
        /// `enum ibv_wc_status`.
        status: u32,
    },
    /// Completion of a receive of a connection.
    Arrived {
        /// Number of the connection given to [`Nic::open`].
        connection: u32,
        /// `enum ibv_wc_status`. Unless it is [`GOOD`], nothing was received.
        status: u32,
        /// Immediate of the message.
        immediate: Option<u32>,
        /// Number of the shared buffer with the message, and its length.
        shared: Option<(u32, u32)>,
    },
    /// Received datagram.
    Datagram {
        /// Its sender.
        from: Source,
        /// Its payload.
        bytes: Vec<u8>,
    },
}

/// Error of a verbs call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", std::io::Error::from_raw_os_error(*.errno))]
pub struct NicError {
    /// Name of the call.
    pub call: &'static str,
    /// Error number of the system.
    pub errno: i32,
}

/// Status of success.
pub const GOOD: u32 = 0;
/// Status of a work request that was discarded because an earlier one failed.
pub const FLUSHED: u32 = 5;
/// Status of an access outside of registered memory, or without the right to it.
pub const REMOTE_ACCESS: u32 = 10;
/// Status of a work request whose retransmissions were not answered.
pub const NO_ANSWER: u32 = 12;

/// Opens a port of this machine with a completion queue of `completions` entries.
/// [`IbBtl::new`](crate::IbBtl::new) does so itself.
///
/// # Errors
/// If the port does not exist or cannot be used.
pub fn open(device: &str, port: u8, completions: usize) -> Result<Box<dyn Nic>, crate::IbError> {
    Ok(Box::new(crate::raw::verbs::Verbs::open(
        device,
        port,
        None,
        completions,
    )?))
}

/// An open port of a device.
pub trait Nic: Send + fmt::Debug {
    /// Returns the properties of the port.
    fn about(&self) -> &About;

    /// Registers memory for work requests, and, with `remote`, for peers that have the key.
    ///
    /// # Safety
    /// The memory stays mapped until [`deregister`](Nic::deregister). Peers may write to it at any
    /// time until then.
    ///
    /// # Errors
    /// If the system refuses, mostly because of the limit of locked memory.
    unsafe fn register(
        &mut self,
        address: usize,
        length: usize,
        remote: bool,
    ) -> Result<Registered, NicError>;

    /// Deregisters memory. An unknown id is ignored.
    fn deregister(&mut self, id: u64);

    /// Creates a queue pair that is not connected. Completions of its receives have `number`.
    /// Returns its handle and the number by which peers address it.
    ///
    /// # Errors
    /// If the device has no room.
    fn open(&mut self, number: u32, depth: usize) -> Result<(Queue, u32), NicError>;

    /// Connects a queue pair. The peer has to do the same.
    ///
    /// # Errors
    /// If the address cannot be reached.
    fn connect(&mut self, queue: Queue, remote: &Remote) -> Result<(), NicError>;

    /// Stops a queue pair. Everything posted completes with [`FLUSHED`].
    fn stop(&mut self, queue: Queue);

    /// Destroys a queue pair; the adapter accesses none of its memory afterwards. Completions may
    /// still arrive.
    fn close(&mut self, queue: Queue);

    /// Posts a work request.
    ///
    /// # Safety
    /// The memory of `local` is registered under its keys, and is not changed (for a read: not
    /// accessed) until completion.
    ///
    /// # Errors
    /// If the queue is full or the queue pair is broken.
    unsafe fn post(
        &mut self,
        queue: Queue,
        id: u64,
        verb: Verb,
        local: &[Sge],
        remote: (u64, u32),
    ) -> Result<(), NicError>;

    /// Posts a write or a send of at most [`About::inline`] bytes, which the call copies, so that
    /// they need not be registered. Without `tell` it completes only if it fails; success is
    /// implied by a later completion of the same queue.
    ///
    /// # Safety
    /// The memory of `local` is readable during the call.
    ///
    /// # Errors
    /// As [`post`](Nic::post).
    unsafe fn post_inline(
        &mut self,
        queue: Queue,
        id: u64,
        verb: Verb,
        local: &[Sge],
        remote: (u64, u32),
        tell: bool,
    ) -> Result<(), NicError>;

    /// Posts `count` receives without a buffer.
    ///
    /// # Errors
    /// If the queue is full.
    fn expect(&mut self, queue: Queue, count: usize) -> Result<(), NicError>;

    /// Posts a buffer to the shared receive queue, which the first call creates. All connections
    /// opened afterwards receive there.
    ///
    /// # Safety
    /// The memory is registered and written by arrivals only, until the interface is dropped.
    ///
    /// # Errors
    /// No room, or no shared receive queues.
    unsafe fn share(&mut self, index: u32, buffer: Sge, most: usize) -> Result<(), NicError>;

    /// Sends a datagram; it may get lost.
    ///
    /// # Errors
    /// No way to that address: the name cannot be resolved.
    fn datagram(&mut self, to: &Place, bytes: &[u8]) -> Result<(), NicError>;

    /// Appends what has happened, at most `most`.
    ///
    /// # Errors
    /// The completion queue is broken.
    fn poll(&mut self, most: usize, out: &mut Vec<Completion>) -> Result<(), NicError>;

    /// Becomes readable when something happens after [`arm`](Nic::arm).
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Asks for that.
    fn arm(&mut self);

    /// Takes what made the descriptor readable.
    fn calm(&mut self);
}
