//! Traces of frames in pcap format, for Wireshark and tcpdump.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Magic number of a pcap file with timestamps in nanoseconds, in the writer's byte order.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Version 2.4 of the format, as two 16-bit numbers.
const VERSION: (u16, u16) = (2, 4);
/// Maximum length of a frame in a file, in bytes; the kernel delivers no longer ones.
const SNAP_LEN: u32 = 65535;
const LINKTYPE_ETHERNET: u32 = 1;

/// Writes Ethernet frames as a pcap stream with timestamps in nanoseconds.
///
/// The format has no field for the direction of a frame; its source address shows it.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    out: W,
}

impl<W: Write> PcapWriter<W> {
    /// Starts a trace by writing the file header.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W) -> io::Result<PcapWriter<W>> {
        let mut header = Vec::with_capacity(24);
        header.extend(MAGIC.to_ne_bytes());
        header.extend(VERSION.0.to_ne_bytes());
        header.extend(VERSION.1.to_ne_bytes());
        header.extend([0; 8]); // time zone and accuracy, unused
        header.extend(SNAP_LEN.to_ne_bytes());
        header.extend(LINKTYPE_ETHERNET.to_ne_bytes());
        out.write_all(&header)?;
        Ok(PcapWriter { out })
    }

    /// Adds a frame, which starts with its destination address, with the current time.
    ///
    /// # Errors
    /// Those of `out`. The last record may be incomplete then: abandon the trace.
    pub fn write_frame(&mut self, frame: &[u8]) -> io::Result<()> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        self.write_frame_at(time.unwrap_or_default(), frame)
    }

    fn write_frame_at(&mut self, time: Duration, frame: &[u8]) -> io::Result<()> {
        let stored = frame.get(..SNAP_LEN as usize).unwrap_or(frame);
        let fields = [
            // The format has 32 bits for seconds, enough until 2106.
            u32::try_from(time.as_secs()).unwrap_or(u32::MAX),
            time.subsec_nanos(),
            stored.len() as u32,
            u32::try_from(frame.len()).unwrap_or(u32::MAX),
        ];
        for field in fields {
            self.out.write_all(&field.to_ne_bytes())?;
        }
        self.out.write_all(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a trace in this machine's byte order: time, length on the wire and bytes.
    fn read(file: &[u8]) -> Vec<(Duration, u32, Vec<u8>)> {
        let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_ne_bytes(file[at..at + 2].try_into().unwrap());
        assert_eq!((word(0), half(4), half(6)), (0xa1b2_3c4d, 2, 4));
        assert_eq!(word(20), 1, "Ethernet");
        let mut at = 24;
        let mut records = Vec::new();
        while at < file.len() {
            let stored = word(at + 8) as usize;
            assert!(stored <= word(16) as usize);
            let time = Duration::new(word(at).into(), word(at + 4));
            let bytes = file[at + 16..at + 16 + stored].to_vec();
            records.push((time, word(at + 12), bytes));
            at += 16 + stored;
        }
        records
    }

    #[test]
    fn frames_are_read_back_with_their_times() {
        let mut pcap = PcapWriter::new(Vec::new()).unwrap();
        let time = Duration::new(1_700_000_000, 123_456_789);
        pcap.write_frame_at(time, &[1, 2, 3, 4]).unwrap();
        pcap.write_frame_at(time, &[]).unwrap();
        pcap.write_frame(&[5; 1514]).unwrap();
        let records = read(&pcap.out);
        assert_eq!(records[0], (time, 4, vec![1, 2, 3, 4]));
        assert_eq!(records[1], (time, 0, vec![]));
        assert_eq!(records[2].2, [5; 1514]);
    }

    #[test]
    fn long_frames_are_truncated_and_their_length_is_recorded() {
        let mut pcap = PcapWriter::new(Vec::new()).unwrap();
        pcap.write_frame(&[7; 70_000]).unwrap();
        let records = read(&pcap.out);
        assert_eq!((records[0].1, records[0].2.len()), (70_000, 65535));
    }
}
