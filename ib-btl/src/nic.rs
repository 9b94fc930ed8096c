//! What the transport asks of a network interface with RDMA: the verbs it uses, no more. Implemented by the real verbs
//! (`raw/verbs.rs`) and by a fabric inside one process for tests without hardware ([`fake`](crate::fake)).

#![allow(unsafe_code)] // Declarations of calls that take memory by its address.

use std::fmt;
use std::os::fd::BorrowedFd;

pub use crate::raw::ffi::Sge;

/// Longest datagram, in bytes: fits the smallest MTU of InfiniBand, 256.
pub const MAX_DATAGRAM: usize = 192;

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// As `ibv_devices` calls it, and the port.
    pub device: String,
    /// From 1.
    pub port: u8,
    /// InfiniBand, or RoCE.
    pub ethernet: bool,
    /// Where its datagrams are received.
    pub place: Place,
    /// `enum ibv_mtu`: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// MB/s, from width and speed; 0: unknown.
    pub bandwidth: u32,
    /// Most completions that wait.
    pub max_completions: usize,
    /// Longest single operation, in bytes.
    pub max_message: usize,
    /// Most bytes that [`Nic::post_inline`] takes; 0: none.
    pub inline: usize,
}

/// Where datagrams go: a port, and a queue pair there.
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

/// Where a datagram came from, as the interface says and not its bytes.
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
    /// Whether that is the place.
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
    /// Its port.
    pub place: Place,
    /// `enum ibv_mtu` that both can.
    pub mtu: u8,
    /// Its queue pair.
    pub qpn: u32,
    /// First packet number it sends, and we do; 24 bits.
    pub psn: [u32; 2],
    /// Exponent of the time-out (4.096 µs · 2ⁿ) and how often a packet is sent again.
    pub timeout: u8,
    /// At most 6: 7 means for ever with some devices.
    pub retries: u8,
}

/// A registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// For [`Nic::deregister`].
    pub id: u64,
    /// For the own side.
    pub lkey: u32,
    /// For peers.
    pub rkey: u32,
}

/// A reliable connection of this interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queue(pub u32);

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA write; with an immediate it also consumes a receive of the peer.
    Write(Option<u32>),
    /// RDMA read.
    Read,
    /// Into a buffer of the peer's shared receive queue.
    Send(u32),
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A work request is over: its id, and the status (0: good).
    Done {
        /// As it was posted.
        id: u64,
        /// `enum ibv_wc_status`.
        status: u32,
    },
    /// Something came over a connection.
    Arrived {
        /// Of the connection: what [`Nic::open`] was given.
        connection: u32,
        /// `enum ibv_wc_status`; bad: the receive is over without anything.
        status: u32,
        /// Of a good one.
        immediate: Option<u32>,
        /// The shared buffer it lies in, and how long it is.
        shared: Option<(u32, u32)>,
    },
    /// A datagram.
    Datagram {
        /// Who sent it.
        from: Source,
        /// What.
        bytes: Vec<u8>,
    },
}

/// A verb failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", std::io::Error::from_raw_os_error(*.errno))]
pub struct NicError {
    /// Which.
    pub call: &'static str,
    /// Why.
    pub errno: i32,
}

/// Status: nothing is wrong.
pub const GOOD: u32 = 0;
/// Status: thrown away because something before it failed.
pub const FLUSHED: u32 = 5;
/// Status: outside of what is registered, or without the right to it.
pub const REMOTE_ACCESS: u32 = 10;
/// Status: no answer, often enough.
pub const NO_ANSWER: u32 = 12;

/// Opens a port of this machine for `completions` that wait at most. [`IbBtl::new`](crate::IbBtl::new) does so by itself.
///
/// # Errors
/// There is no such port, or it cannot be used; says why.
pub fn open(device: &str, port: u8, completions: usize) -> Result<Box<dyn Nic>, crate::IbError> {
    Ok(Box::new(crate::raw::verbs::Verbs::open(
        device,
        port,
        None,
        completions,
    )?))
}

/// A port of a device, opened.
pub trait Nic: Send + fmt::Debug {
    /// Which.
    fn about(&self) -> &About;

    /// Makes memory usable for work requests, and for peers who know the key.
    ///
    /// # Safety
    /// The memory is mapped. What peers write there is no surprise to anybody, until [`deregister`](Nic::deregister).
    ///
    /// # Errors
    /// The system refuses, mostly for the limit of locked memory.
    unsafe fn register(
        &mut self,
        address: usize,
        length: usize,
        remote: bool,
    ) -> Result<Registered, NicError>;

    /// Ends a registration. Unknown ones are ignored.
    fn deregister(&mut self, id: u64);

    /// A queue pair, not connected. `number` is what its arrivals name. Gives its handle and the number peers know it by.
    ///
    /// # Errors
    /// No room on the device.
    fn open(&mut self, number: u32, depth: usize) -> Result<(Queue, u32), NicError>;

    /// Connects it; the other side has to do the same.
    ///
    /// # Errors
    /// No way to that address.
    fn connect(&mut self, queue: Queue, remote: &Remote) -> Result<(), NicError>;

    /// Everything posted is thrown away, with completions.
    fn stop(&mut self, queue: Queue);

    /// Ends it: none of its memory is touched any more. Completions may still come.
    fn close(&mut self, queue: Queue);

    /// Posts a work request.
    ///
    /// # Safety
    /// The memory of `local` is registered under its keys and stays as it is (for a read: untouched) until completion.
    ///
    /// # Errors
    /// No room, or a broken queue pair.
    unsafe fn post(
        &mut self,
        queue: Queue,
        id: u64,
        verb: Verb,
        local: &[Sge],
        remote: (u64, u32),
    ) -> Result<(), NicError>;

    /// Posts a write, or a send, of few bytes ([`About::inline`]) that are copied by the call: they need not be registered, and are the
    /// caller's again. Without `tell` it completes only if it fails; then a later completion of the same queue says that it went well.
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

    /// Posts `count` receives without memory.
    ///
    /// # Errors
    /// No room.
    fn expect(&mut self, queue: Queue, count: usize) -> Result<(), NicError>;

    /// Gives the shared receive queue (made by the first call) a buffer; all connections opened afterwards receive there.
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
