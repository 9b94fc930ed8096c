//! Datagrams over the two byte rings: each is a record of a header, the bytes, and filler to the
//! next multiple of 8.
//!
//! ```text
//! offset  size  field (little endian)
//!      0     4  length of the bytes after the header, at most 65535
//!      4     1  kind: 0 data, 1 echo request, 2 echo reply, 3 info request, 4 info reply
//!      5     1  kind of the peer's address: 0 Ethernet, 4 IPv4, 6 IPv6
//!      6     2  sequence
//!      8     8  time of receipt in nanoseconds; in a record to send: free for the program
//!     16    16  peer's address, followed by zeros if shorter
//!     32     4  scope of an IPv6 address
//!     36     2  peer's UDP port; 0 for Ethernet
//!     38     2  peer's port
//!     40        the bytes
//! ```
//!
//! A record is published whole or not at all; one that does not fit is dropped, as datagrams may
//! be. The FIN mark has no meaning in these rings.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

pub use esp_proto::EdpKind;
use esp_proto::{MacAddr, NodeAddr};

use super::{Corruption, RxConsumer, RxProducer, TxConsumer, TxProducer};

/// Bytes of a record's header.
pub const HEADER_LEN: usize = 40;
/// Maximum bytes of a datagram in a record. (A link carries less: its MTU.)
pub const MAX_DATAGRAM: usize = 65535;

const ETHERNET: u8 = 0;
const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// Kinds of the datagrams of programs, by their number in a header.
const KINDS: [EdpKind; 5] = [
    EdpKind::Data,
    EdpKind::EchoRequest,
    EdpKind::EchoReply,
    EdpKind::InfoRequest,
    EdpKind::InfoReply,
];

/// Header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DgramHeader {
    /// Kind of the datagram.
    pub kind: EdpKind,
    /// Address: sender of a received one, receiver of one to send.
    pub addr: NodeAddr,
    /// Port at that address.
    pub port: u16,
    /// Sequence number that the sender counts.
    pub sequence: u16,
    /// Time of receipt in nanoseconds of the engine's clock; without meaning in a datagram to send.
    pub timestamp_ns: u64,
}

/// Returns the bytes that a datagram of `len` bytes takes in a ring.
#[inline]
pub const fn record_len(len: usize) -> usize {
    HEADER_LEN + len.next_multiple_of(8)
}

impl DgramHeader {
    fn encode(&self, len: u32) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&len.to_le_bytes());
        // Other kinds are not passed on; one would be refused as a reply.
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        bytes[4] = kind.unwrap_or(KINDS.len() - 1) as u8;
        bytes[6..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.timestamp_ns.to_le_bytes());
        match self.addr {
            NodeAddr::Mac(mac) => {
                bytes[5] = ETHERNET;
                bytes[16..22].copy_from_slice(&mac.0);
            }
            NodeAddr::Udp(SocketAddr::V4(at)) => {
                bytes[5] = IPV4;
                bytes[16..20].copy_from_slice(&at.ip().octets());
                bytes[36..38].copy_from_slice(&at.port().to_le_bytes());
            }
            NodeAddr::Udp(SocketAddr::V6(at)) => {
                bytes[5] = IPV6;
                bytes[16..32].copy_from_slice(&at.ip().octets());
                bytes[32..36].copy_from_slice(&at.scope_id().to_le_bytes());
                bytes[36..38].copy_from_slice(&at.port().to_le_bytes());
            }
        }
        bytes[38..40].copy_from_slice(&self.port.to_le_bytes());
        bytes
    }

    /// Returns the header and the length, or a description of the violation.
    fn decode(bytes: &[u8; HEADER_LEN]) -> Result<(DgramHeader, usize), &'static str> {
        let kind = KINDS.get(usize::from(bytes[4])).copied();
        let kind = kind.ok_or("record of unknown kind")?;
        let len = u32::from_le_bytes(field(bytes, 0)) as usize;
        if len > MAX_DATAGRAM {
            return Err("record longer than a datagram can be");
        }
        let udp_port = u16::from_le_bytes(field(bytes, 36));
        let addr = match bytes[5] {
            ETHERNET => NodeAddr::Mac(MacAddr(field(bytes, 16))),
            IPV4 => {
                let ip = Ipv4Addr::from(field(bytes, 16));
                NodeAddr::Udp(SocketAddr::new(ip.into(), udp_port))
            }
            IPV6 => {
                let ip = Ipv6Addr::from(field::<16>(bytes, 16));
                let scope = u32::from_le_bytes(field(bytes, 32));
                NodeAddr::Udp(SocketAddrV6::new(ip, udp_port, 0, scope).into())
            }
            _ => return Err("record with an unknown kind of address"),
        };
        let header = DgramHeader {
            kind,
            addr,
            port: u16::from_le_bytes(field(bytes, 38)),
            sequence: u16::from_le_bytes(field(bytes, 6)),
            timestamp_ns: u64::from_le_bytes(field(bytes, 8)),
        };
        Ok((header, len))
    }
}

/// Returns the `N` bytes of a header that start at byte `at`.
fn field<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    core::array::from_fn(|index| bytes[at + index])
}

impl TxProducer {
    /// Writes and publishes a datagram; ring the doorbell afterwards. Returns false, without
    /// effect, if it does not fit.
    pub fn put_record(&mut self, header: &DgramHeader, bytes: &[u8]) -> bool {
        let whole = record_len(bytes.len());
        if bytes.len() > MAX_DATAGRAM || whole > self.free() {
            return false;
        }
        self.settle(whole);
        #[allow(clippy::cast_possible_truncation)] // at most MAX_DATAGRAM
        self.place(0, &header.encode(bytes.len() as u32));
        self.place(HEADER_LEN, bytes);
        self.advance(whole);
        true
    }
}

impl TxConsumer {
    /// Takes the next datagram that the program wrote and frees its place. `accept` judges its
    /// header and length. If it returns a value, the bytes are copied into `bytes`, which is
    /// resized, and the value is returned. After the last one, check
    /// [`TxConsumer::room_notice_due`].
    ///
    /// # Errors
    /// The program corrupted the ring. Each further call returns this error again.
    pub fn take_record<T>(
        &mut self,
        bytes: &mut Vec<u8>,
        accept: impl FnOnce(&DgramHeader, usize) -> Option<T>,
    ) -> Result<Option<Option<T>>, Corruption> {
        let (written, at) = (self.poll_written()?.total, self.released());
        let there = written - at;
        if there == 0 {
            return Ok(None);
        }
        let wrong = |value, what| Corruption { value, what };
        // The copy is checked, because the program may change the ring concurrently.
        let mut head = [0; HEADER_LEN];
        if there < HEADER_LEN as u64 || !self.copy_out(at, &mut head) {
            return Err(wrong(there, "record cut off in its header"));
        }
        let (header, len) = DgramHeader::decode(&head).map_err(|what| wrong(at, what))?;
        let whole = record_len(len) as u64;
        if whole > there {
            return Err(wrong(whole, "record cut off"));
        }
        let accepted = accept(&header, len);
        if accepted.is_some() {
            bytes.resize(len, 0);
            self.copy_out(at + HEADER_LEN as u64, bytes);
        }
        self.free_below(at + whole);
        Ok(Some(accepted))
    }
}

impl RxProducer {
    /// Writes a datagram; [`RxProducer::publish`] it afterwards. Returns `Ok(false)`, without
    /// effect, if it does not fit.
    ///
    /// # Errors
    /// The program corrupted the ring, see [`RxProducer::poll_consumed`].
    pub fn put_record(&mut self, header: &DgramHeader, bytes: &[u8]) -> Result<bool, Corruption> {
        let whole = record_len(bytes.len());
        if whole > self.room() {
            self.poll_consumed()?;
        }
        if bytes.len() > MAX_DATAGRAM || whole > self.room() {
            return Ok(false);
        }
        #[allow(clippy::cast_possible_truncation)] // at most MAX_DATAGRAM
        self.put(self.put_total(), &header.encode(bytes.len() as u32))?;
        self.put(self.put_total(), bytes)?;
        self.put(
            self.put_total(),
            &[0; 8][..whole - HEADER_LEN - bytes.len()],
        )?;
        Ok(true)
    }
}

impl RxConsumer {
    /// Returns the header and length of the next datagram without taking it.
    pub fn next_record(&mut self) -> Option<(DgramHeader, usize)> {
        let there = self.available();
        let mut head = [0; HEADER_LEN];
        if there >= HEADER_LEN {
            self.fetch(0, &mut head);
            if let Ok((header, len)) = DgramHeader::decode(&head)
                && record_len(len) <= there
            {
                return Some((header, len));
            }
        }
        // The engine writes no such record; all available bytes are discarded.
        self.consume(there);
        None
    }

    /// Takes the next datagram: copies its bytes, truncated to `bytes`, and returns its header and
    /// its full length.
    pub fn take_record(&mut self, bytes: &mut [u8]) -> Option<(DgramHeader, usize)> {
        let (header, len) = self.next_record()?;
        let copied = len.min(bytes.len());
        self.fetch(HEADER_LEN, &mut bytes[..copied]);
        self.consume(record_len(len));
        Some((header, len))
    }
}
