//! Frames into a file that Wireshark and tcpdump open.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Marks a pcap file with times in nanoseconds, in the byte order of the writer.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: (u16, u16) = (2, 4);
const LINKTYPE_ETHERNET: u32 = 1;
const FILE_HEADER_LEN: u64 = 24;
const RECORD_HEADER_LEN: u64 = 16;

/// Limits of a trace.
#[derive(Clone, Copy, Debug)]
pub struct PcapOptions {
    /// Bytes kept of each frame; its true length is noted all the same. Default 65535: everything.
    pub frame_bytes: u32,
    /// Size the file never exceeds, in bytes. Frames that no longer fit are counted instead. Default none.
    pub file_bytes: Option<u64>,
}

impl Default for PcapOptions {
    fn default() -> Self {
        PcapOptions {
            frame_bytes: 65535,
            file_bytes: None,
        }
    }
}

/// Writes Ethernet frames as a pcap stream with times in nanoseconds.
///
/// The format has no field for the direction of a frame: its source address tells. Wrap a file in a
/// [`BufWriter`](std::io::BufWriter); dropping the writer does not flush it for you, [`finish`](Self::finish) does.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    out: W,
    options: PcapOptions,
    written: u64,
    frames: u64,
    skipped: u64,
}

impl<W: Write> PcapWriter<W> {
    /// Begins a trace by writing the file header.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W, options: PcapOptions) -> io::Result<PcapWriter<W>> {
        let mut header = Vec::with_capacity(FILE_HEADER_LEN as usize);
        header.extend(MAGIC.to_ne_bytes());
        header.extend(VERSION.0.to_ne_bytes());
        header.extend(VERSION.1.to_ne_bytes());
        header.extend([0; 8]); // time zone and accuracy, unused
        header.extend(options.frame_bytes.to_ne_bytes());
        header.extend(LINKTYPE_ETHERNET.to_ne_bytes());
        out.write_all(&header)?;
        Ok(PcapWriter {
            out,
            options,
            written: FILE_HEADER_LEN,
            frames: 0,
            skipped: 0,
        })
    }

    /// Adds a frame, given in pieces from its destination address on, as of `time` since 1970. False: the file is
    /// full and the frame was only counted.
    ///
    /// # Errors
    /// Those of `out`. A record may be cut off then: give up the trace.
    pub fn tap(&mut self, time: Duration, pieces: &[&[u8]]) -> io::Result<bool> {
        let whole: usize = pieces.iter().map(|piece| piece.len()).sum();
        let whole = u32::try_from(whole).unwrap_or(u32::MAX);
        let kept = whole.min(self.options.frame_bytes);
        let record = RECORD_HEADER_LEN + u64::from(kept);
        if self
            .options
            .file_bytes
            .is_some_and(|most| self.written + record > most)
        {
            self.skipped += 1;
            return Ok(false);
        }
        // Seconds have 32 bits in this format: until 2106.
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let mut header = [0; RECORD_HEADER_LEN as usize];
        for (to, field) in
            header
                .chunks_exact_mut(4)
                .zip([seconds, time.subsec_nanos(), kept, whole])
        {
            to.copy_from_slice(&field.to_ne_bytes());
        }
        self.out.write_all(&header)?;
        let mut room = kept as usize;
        for piece in pieces {
            let part = piece.get(..room).unwrap_or(piece);
            self.out.write_all(part)?;
            room -= part.len();
        }
        self.written += record;
        self.frames += 1;
        Ok(true)
    }

    /// [`tap`](Self::tap) with the present time.
    ///
    /// # Errors
    /// As there.
    pub fn tap_now(&mut self, pieces: &[&[u8]]) -> io::Result<bool> {
        self.tap(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
            pieces,
        )
    }

    /// Frames written.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Frames left out because the file was full.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.written
    }

    /// Hands out what `out` may keep back.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// Those of the last flush.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Record {
        time: Duration,
        whole: u32,
        bytes: Vec<u8>,
    }

    /// Reads a trace back as the format's description says, in this machine's byte order.
    fn read(file: &[u8]) -> Vec<Record> {
        let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_ne_bytes(file[at..at + 2].try_into().unwrap());
        assert_eq!((word(0), half(4), half(6)), (0xa1b2_3c4d, 2, 4));
        assert_eq!(word(20), 1, "Ethernet");
        let mut at = 24;
        let mut records = Vec::new();
        while at < file.len() {
            let kept = word(at + 8) as usize;
            assert!(kept <= word(16) as usize);
            let time = Duration::new(word(at).into(), word(at + 4));
            let bytes = file[at + 16..at + 16 + kept].to_vec();
            records.push(Record {
                time,
                whole: word(at + 12),
                bytes,
            });
            at += 16 + kept;
        }
        records
    }

    #[test]
    fn frames_come_back_with_their_times() {
        let mut pcap = PcapWriter::new(Vec::new(), PcapOptions::default()).unwrap();
        let time = Duration::new(1_700_000_000, 123_456_789);
        assert!(pcap.tap(time, &[&[1, 2, 3], &[], &[4]]).unwrap());
        assert!(pcap.tap(time + Duration::from_nanos(1), &[]).unwrap());
        assert!(pcap.tap_now(&[&[5; 1514]]).unwrap());
        assert_eq!(pcap.frames(), 3);
        let bytes = pcap.bytes();
        let file = pcap.finish().unwrap();
        assert_eq!(file.len() as u64, bytes);
        let records = read(&file);
        assert_eq!(
            (records[0].time, records[0].whole, &records[0].bytes),
            (time, 4, &vec![1, 2, 3, 4])
        );
        assert_eq!(records[1].time - records[0].time, Duration::from_nanos(1));
        assert_eq!(records[2].bytes, [5; 1514]);
    }

    #[test]
    fn long_frames_are_cut_and_their_length_is_kept() {
        let options = PcapOptions {
            frame_bytes: 5,
            file_bytes: None,
        };
        let mut pcap = PcapWriter::new(Vec::new(), options).unwrap();
        pcap.tap(Duration::ZERO, &[&[1, 2, 3], &[4, 5, 6], &[7]])
            .unwrap();
        let records = read(&pcap.finish().unwrap());
        assert_eq!(
            (records[0].whole, &records[0].bytes),
            (7, &vec![1, 2, 3, 4, 5])
        );
    }

    #[test]
    fn a_full_file_grows_no_more_and_stays_readable() {
        let options = PcapOptions {
            frame_bytes: 65535,
            file_bytes: Some(24 + 2 * 76 + 10),
        };
        let mut pcap = PcapWriter::new(Vec::new(), options).unwrap();
        let results: Vec<bool> = (0..5)
            .map(|_| pcap.tap(Duration::ZERO, &[&[0; 60]]).unwrap())
            .collect();
        assert_eq!(results, [true, true, false, false, false]);
        assert_eq!((pcap.frames(), pcap.skipped()), (2, 3));
        assert_eq!(read(&pcap.finish().unwrap()).len(), 2);
    }
}
