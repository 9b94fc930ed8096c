//! Reads frames from pcap and pcapng files, which are untrusted.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use pcap_parser::pcapng::Block;
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Linktype, PcapBlockOwned, PcapError, PcapHeader, create_reader};

use super::Seen;
use crate::out::{Context, Failure};

/// Length of the buffer, in bytes: no block may be longer.
const BUFFER_BYTES: usize = 1 << 20;
/// Maximum number of remembered interfaces of a section.
const MAX_INTERFACES: usize = 4096;
const NANOS: u128 = 1_000_000_000;

/// Description of the file's frames, as read so far.
#[derive(Debug, Default)]
struct Section {
    /// pcap: time unit, in nanoseconds.
    unit: u32,
    /// pcap: the frames are Ethernet frames.
    ethernet: bool,
    /// pcapng, by number: time units per second, and the offset of times in seconds; `None` for
    /// interfaces without Ethernet frames or with an impossible resolution.
    interfaces: Vec<Option<(u64, i64)>>,
    /// Frames of interfaces that are not Ethernet.
    skipped: u64,
}

/// Calls `each` for every Ethernet frame of a file until it breaks; returns the number of skipped
/// frames, which are not Ethernet frames.
pub(super) fn frames(
    path: &Path,
    each: impl FnMut(&Seen<'_>) -> Result<ControlFlow<()>, Failure>,
) -> Result<u64, Failure> {
    let name = path.display();
    if path.as_os_str() == "-" {
        return frames_of("standard input", io::stdin(), each);
    }
    let file = File::open(path).doing(format_args!("opening {name}"))?;
    frames_of(&name.to_string(), file, each)
}

fn frames_of(
    name: &str,
    input: impl Read + Send,
    mut each: impl FnMut(&Seen<'_>) -> Result<ControlFlow<()>, Failure>,
) -> Result<u64, Failure> {
    let mut reader = create_reader(BUFFER_BYTES, input).map_err(|error| failure(name, &error))?;
    let mut section = Section::default();
    loop {
        match reader.next() {
            Ok((len, block)) => {
                if let Some(seen) = section.block(&block)
                    && each(&seen)?.is_break()
                {
                    return Ok(section.skipped);
                }
                reader.consume(len);
            }
            Err(PcapError::Eof) => return Ok(section.skipped),
            Err(PcapError::Incomplete(_)) => {
                let refilled = reader.refill();
                refilled.map_err(|error| failure(name, &error))?;
            }
            Err(error) => return Err(failure(name, &error)),
        }
    }
}

impl Section {
    /// Handles a block; returns the frame that it contains, if any.
    fn block<'a>(&mut self, block: &'a PcapBlockOwned<'a>) -> Option<Seen<'a>> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                self.begin(header);
                None
            }
            PcapBlockOwned::Legacy(frame) => {
                if !self.ethernet {
                    self.skipped += 1;
                    return None;
                }
                let nanos = frame.ts_usec.saturating_mul(self.unit).min(999_999_999);
                let time = Duration::new(frame.ts_sec.into(), nanos);
                Some(seen(time, frame.data, frame.origlen))
            }
            PcapBlockOwned::NG(block) => self.pcapng(block),
        }
    }

    fn begin(&mut self, header: &PcapHeader) {
        self.unit = if header.is_nanosecond_precision() {
            1
        } else {
            1000
        };
        self.ethernet = header.network == Linktype::ETHERNET;
    }

    fn pcapng<'a>(&mut self, block: &'a Block<'a>) -> Option<Seen<'a>> {
        match block {
            Block::SectionHeader(_) => {
                self.interfaces.clear();
                None
            }
            Block::InterfaceDescription(interface) => {
                if self.interfaces.len() < MAX_INTERFACES {
                    let known = (interface.linktype == Linktype::ETHERNET)
                        .then(|| interface.ts_resolution())
                        .flatten()
                        .filter(|resolution| *resolution > 0);
                    self.interfaces
                        .push(known.map(|resolution| (resolution, interface.ts_offset())));
                }
                None
            }
            Block::EnhancedPacket(frame) => {
                let number = usize::try_from(frame.if_id).unwrap_or(usize::MAX);
                let Some(&Some((resolution, offset))) = self.interfaces.get(number) else {
                    self.skipped += 1;
                    return None;
                };
                let units = u64::from(frame.ts_high) << 32 | u64::from(frame.ts_low);
                let mut found = seen(
                    time(units, resolution, offset),
                    frame.packet_data(),
                    frame.origlen,
                );
                found.outgoing = direction(frame);
                Some(found)
            }
            Block::SimplePacket(frame) => {
                if self.interfaces.first().copied().flatten().is_none() {
                    self.skipped += 1;
                    return None;
                }
                Some(seen(Duration::ZERO, frame.packet_data(), frame.origlen))
            }
            _ => None,
        }
    }
}

fn seen(time: Duration, bytes: &[u8], len: u32) -> Seen<'_> {
    let len = usize::try_from(len).unwrap_or(usize::MAX).max(bytes.len());
    Seen {
        time,
        bytes,
        len,
        outgoing: None,
    }
}

/// Returns whether the packet is outgoing according to its flags, if they contain a direction.
fn direction(frame: &pcap_parser::EnhancedPacketBlock<'_>) -> Option<bool> {
    let flags = frame.options.iter().find(|option| option.code.0 == 2)?;
    let bytes: [u8; 4] = flags.as_bytes().ok()?.try_into().ok()?;
    let flags = if frame.big_endian() {
        u32::from_be_bytes(bytes)
    } else {
        u32::from_le_bytes(bytes)
    };
    match flags & 3 {
        1 => Some(false),
        2 => Some(true),
        _ => None,
    }
}

/// Converts a time from the units of an interface.
fn time(units: u64, resolution: u64, offset: i64) -> Duration {
    let nanos = u128::from(units) * NANOS / u128::from(resolution);
    let seconds = u64::try_from(nanos / NANOS).unwrap_or(u64::MAX);
    Duration::new(
        seconds.saturating_add_signed(offset),
        (nanos % NANOS) as u32,
    )
}

/// Returns an error that explains why the file cannot be read further.
fn failure(name: &str, error: &PcapError<&[u8]>) -> Failure {
    let why = match error {
        PcapError::HeaderNotRecognized => "it is not a pcap or pcapng file",
        PcapError::BufferTooSmall => "it has a block of more than 1 MiB",
        PcapError::Eof | PcapError::UnexpectedEof | PcapError::Incomplete(_) => {
            "it ends within a block: the capture was not finished"
        }
        PcapError::ReadError => "the system cannot read it",
        PcapError::NomError(..) | PcapError::OwnedNomError(..) => "a block is malformed",
    };
    Failure::new(format!("reading {name}: {why}"))
}

#[cfg(test)]
mod tests;
