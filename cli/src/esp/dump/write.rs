//! Writes frames to a capture file as pcapng (draft-ietf-opsawg-pcapng), little-endian.
//!
//! A file is a sequence of blocks: type, length, fields, options, and the length again.

use std::io::{self, Write};
use std::time::Duration;

use netif::Statistics;

use super::Seen;

/// Types of blocks.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

/// Magic number by which a reader recognizes the byte order.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;

/// Options of the blocks above.
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const RECEIVED: u16 = 4;
const DROPPED_BY_SYSTEM: u16 = 7;

/// Resolution of times: 10^-9 seconds.
const NANOSECONDS: u8 = 9;
/// Flags of a packet: its direction.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Writer of a capture file with one interface.
pub(super) struct CaptureFile<W: Write> {
    out: W,
    /// Body of the block in progress.
    body: Vec<u8>,
}

impl<W: Write> CaptureFile<W> {
    /// Begins a file for the frames of an interface, or of an unknown one.
    pub(super) fn begin(out: W, interface: Option<&str>) -> io::Result<CaptureFile<W>> {
        let body = Vec::new();
        let mut file = CaptureFile { out, body };
        file.words(&[BYTE_ORDER]);
        // Version 1.0, and an unknown length of the section.
        file.words(&[1, u32::MAX, u32::MAX]);
        let application = concat!("esp dump ", env!("CARGO_PKG_VERSION"));
        file.option(SECTION_APPLICATION, application.as_bytes());
        file.block(SECTION)?;
        // No limit on the length of frames.
        file.words(&[LINKTYPE_ETHERNET, 0]);
        if let Some(name) = interface {
            file.option(INTERFACE_NAME, name.as_bytes());
        }
        file.option(INTERFACE_RESOLUTION, &[NANOSECONDS]);
        file.block(INTERFACE)?;
        Ok(file)
    }

    /// Adds a frame.
    pub(super) fn frame(&mut self, seen: &Seen<'_>) -> io::Result<()> {
        let [high, low] = time(seen.time);
        self.words(&[0, high, low, number(seen.bytes.len()), number(seen.len)]);
        self.padded(seen.bytes);
        if let Some(outgoing) = seen.outgoing {
            let flags = if outgoing { OUTBOUND } else { INBOUND };
            self.option(PACKET_FLAGS, &flags.to_le_bytes());
        }
        self.block(ENHANCED_PACKET)
    }

    /// Ends the file with the kernel's counts, if there are any.
    pub(super) fn end(&mut self, now: Duration, counts: Option<Statistics>) -> io::Result<()> {
        if let Some(counts) = counts {
            let [high, low] = time(now);
            self.words(&[0, high, low]);
            let all = counts.received.saturating_add(counts.dropped);
            self.option(RECEIVED, &all.to_le_bytes());
            self.option(DROPPED_BY_SYSTEM, &counts.dropped.to_le_bytes());
            self.block(INTERFACE_STATISTICS)?;
        }
        self.flush()
    }

    /// Writes buffered output.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn words(&mut self, words: &[u32]) {
        self.body
            .extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    /// Adds bytes, padded with zeros to a multiple of four.
    fn padded(&mut self, bytes: &[u8]) {
        self.body.extend(bytes);
        self.body.resize(self.body.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
        self.words(&[u32::from(code) | u32::from(len) << 16]);
        self.padded(value.get(..len.into()).unwrap_or(value));
    }

    /// Ends the options, writes the block and begins the next one.
    fn block(&mut self, kind: u32) -> io::Result<()> {
        self.words(&[0]);
        let len = number(self.body.len() + 12).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&len)?;
        self.out.write_all(&self.body)?;
        self.body.clear();
        self.out.write_all(&len)
    }
}

/// Returns the two halves of a time in nanoseconds since 1970, which overflows in 2554.
fn time(time: Duration) -> [u32; 2] {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    [(nanos >> 32) as u32, nanos as u32]
}

fn number(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
