//! Capture files: frames written as pcapng.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use netif::Statistics;
use pcap_parser::{
    EnhancedPacketBlock, InterfaceDescriptionBlock, InterfaceStatisticsBlock, Linktype, OptionCode,
    PcapNGOption, SectionHeaderBlock, ToVec,
};

use super::Seen;

/// Times are in nanoseconds: 10^-9 seconds.
const NANOSECONDS: u8 = 9;
/// Option of a packet: its direction and other flags.
const PACKET_FLAGS: OptionCode = OptionCode(2);
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Writer of a capture file with one interface.
pub(super) struct CaptureFile<W: Write> {
    out: W,
}

impl<W: Write> CaptureFile<W> {
    /// Begins a file of the frames of an interface, if they have one.
    pub(super) fn begin(mut out: W, interface: Option<&str>) -> io::Result<CaptureFile<W>> {
        let application = concat!("esp dump ", env!("CARGO_PKG_VERSION"));
        let mut section = SectionHeaderBlock {
            block_type: 0,
            block_len1: 0,
            bom: 0,
            major_version: 1,
            minor_version: 0,
            section_len: -1,
            options: vec![option(OptionCode::ShbUserAppl, application.as_bytes())],
            block_len2: 0,
        };
        write(&mut out, &mut section)?;
        let mut options = vec![option(OptionCode::IfTsresol, &[NANOSECONDS])];
        options.extend(interface.map(|name| option(OptionCode::IfName, name.as_bytes())));
        let mut interface = InterfaceDescriptionBlock {
            block_type: 0,
            block_len1: 0,
            linktype: Linktype::ETHERNET,
            reserved: 0,
            // Unlimited.
            snaplen: 0,
            options,
            block_len2: 0,
            if_tsresol: NANOSECONDS,
            if_tsoffset: 0,
        };
        write(&mut out, &mut interface)?;
        Ok(CaptureFile { out })
    }

    /// Adds a frame.
    pub(super) fn frame(&mut self, seen: &Seen<'_>) -> io::Result<()> {
        let (ts_high, ts_low) = time(seen.time);
        let direction = match seen.outgoing {
            Some(true) => Some(OUTBOUND),
            Some(false) => Some(INBOUND),
            None => None,
        };
        let flags = direction.map(u32::to_le_bytes);
        let mut block = EnhancedPacketBlock {
            block_type: 0,
            block_len1: 0,
            if_id: 0,
            ts_high,
            ts_low,
            caplen: number(seen.bytes.len()),
            origlen: number(seen.len),
            data: seen.bytes,
            options: flags
                .iter()
                .map(|flags| option(PACKET_FLAGS, flags))
                .collect(),
            block_len2: 0,
        };
        write(&mut self.out, &mut block)
    }

    /// Ends the file with the counts of the kernel, if there are any.
    pub(super) fn end(&mut self, now: Duration, counts: Option<Statistics>) -> io::Result<()> {
        if let Some(counts) = counts {
            let (ts_high, ts_low) = time(now);
            let (received, dropped) = (
                counts.received.saturating_add(counts.dropped).to_le_bytes(),
                counts.dropped.to_le_bytes(),
            );
            let mut block = InterfaceStatisticsBlock {
                block_type: 0,
                block_len1: 0,
                if_id: 0,
                ts_high,
                ts_low,
                options: vec![
                    option(OptionCode::IsbIfRecv, &received),
                    option(OptionCode::IsbOsDrop, &dropped),
                ],
                block_len2: 0,
            };
            write(&mut self.out, &mut block)?;
        }
        self.flush()
    }

    /// Writes what is buffered.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn write(out: &mut impl Write, block: &mut impl ToVec) -> io::Result<()> {
    let bytes = block
        .to_vec()
        .map_err(|e| io::Error::other(e.to_string()))?;
    out.write_all(&bytes)
}

fn option(code: OptionCode, value: &[u8]) -> PcapNGOption<'_> {
    PcapNGOption {
        code,
        len: u16::try_from(value.len()).unwrap_or(u16::MAX),
        value: Cow::Borrowed(value),
    }
}

/// Returns the two halves of a time in nanoseconds since 1970, which last until 2554.
fn time(time: Duration) -> (u32, u32) {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    ((nanos >> 32) as u32, nanos as u32)
}

fn number(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
