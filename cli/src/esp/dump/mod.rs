//! `esp dump`: shows packets of ESP and EDP, like tcpdump(8) for IP.
//!
//! Frames come from `live` or `read`; `decode` finds the packets in them, `filter` selects,
//! `streams` makes sequence numbers relative, and `line` prints, or `write` stores the frames.

mod decode;
mod filter;
mod flags;
mod line;
mod live;
mod read;
mod streams;
mod write;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) use flags::Flags;

use crate::names::Names;
use crate::out::{self, Context, Failure, Verdict};
use crate::signal::Interrupt;
use decode::{Packet, Types, decode};
use filter::Filter;
use line::Style;
use streams::Streams;
use write::CaptureFile;

/// A frame, live or from a file.
#[derive(Clone, Copy, Debug)]
struct Seen<'a> {
    /// Time since 1970.
    time: Duration,
    /// Bytes, starting at the destination address.
    bytes: &'a [u8],
    /// Length of the frame, of which `bytes` may be only the beginning.
    len: usize,
    /// True if this machine sent it; `None` if unknown.
    outgoing: Option<bool>,
}

/// Destination of packets.
enum Output {
    /// Lines on standard output.
    Lines(BufWriter<io::Stdout>),
    File(CaptureFile<Box<dyn Write>>),
}

/// A running dump.
struct Dump {
    types: Types,
    filter: Filter,
    style: Style,
    hex: u8,
    streams: Streams,
    output: Output,
    /// Remaining number of packets or frames to show.
    left: Option<u64>,
    shown: u64,
    /// Time of the last packet shown.
    before: Option<Duration>,
}

/// Runs the tool.
pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let filter = Filter::parse(&flags.filter)?;
    let interrupt = Interrupt::watch().doing("watching for signals")?;
    let mut dump = Dump {
        types: flags.types(),
        filter,
        style: Style {
            names: if flags.numeric {
                Names::default()
            } else {
                Names::load()
            },
            ethernet: flags.ethernet,
            verbose: flags.verbose > 0,
            times: flags.times,
        },
        hex: flags.hex,
        streams: Streams::default(),
        output: output(flags)?,
        left: flags.count,
        shown: 0,
        before: None,
    };
    let counts = match (&flags.read, &flags.interface) {
        (Some(path), _) => {
            let skipped = read::frames(path, |seen| {
                if interrupt.is_set() {
                    return Ok(ControlFlow::Break(()));
                }
                dump.frame(seen)
            })?;
            if skipped > 0 {
                out::note(format_args!(
                    "skipped {skipped} frames that are not Ethernet frames"
                ));
            }
            None
        }
        (None, Some(interface)) => Some(live::run(interface, dump.types, &interrupt, &mut dump)?),
        (None, None) => return Err(Failure::new("name an interface by -i, or a file by -r")),
    };
    dump.end(counts)?;
    Ok(Verdict::Done)
}

/// Opens the output.
fn output(flags: &Flags) -> Result<Output, Failure> {
    let Some(path) = &flags.write else {
        return Ok(Output::Lines(BufWriter::new(io::stdout())));
    };
    let out: Box<dyn Write> = if path.as_os_str() == "-" {
        if io::stdout().is_terminal() {
            return Err(Failure::new(
                "-w - would write a capture file to the terminal: name a file, or pipe the output \
                 to another program",
            ));
        }
        Box::new(BufWriter::new(io::stdout()))
    } else {
        Box::new(BufWriter::new(create(path, flags.read.as_deref())?))
    };
    let file = CaptureFile::begin(out, flags.interface.as_deref());
    Ok(Output::File(file?))
}

fn create(path: &Path, read: Option<&Path>) -> Result<File, Failure> {
    let is_input = read.is_some_and(|read| {
        let real = |path: &Path| path.canonicalize().ok();
        real(path).is_some() && real(path) == real(read)
    });
    if is_input {
        return Err(Failure::new(
            "-w names the file that -r reads: choose another",
        ));
    }
    File::create(path).doing(format_args!("creating {}", path.display()))
}

impl Dump {
    /// Shows or stores a frame; breaks when enough packets were shown.
    fn frame(&mut self, seen: &Seen<'_>) -> Result<ControlFlow<()>, Failure> {
        let Some((link, packets)) = decode(seen.bytes, seen.len, self.types) else {
            return Ok(ControlFlow::Continue(()));
        };
        if let Output::File(file) = &mut self.output {
            if !packets.iter().any(|packet| self.filter.accepts(packet)) {
                return Ok(ControlFlow::Continue(()));
            }
            file.frame(seen)?;
            return Ok(self.count());
        }
        for packet in &packets {
            // Follows packets that are not shown, too, for the relative numbers of the others.
            let numbers = self.streams.follow(packet);
            if !self.filter.accepts(packet) {
                continue;
            }
            let line = self.style.packet(&link, seen.len, packet, numbers);
            self.line(seen, packet, &line)?;
            if self.count().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn line(&mut self, seen: &Seen<'_>, packet: &Packet<'_>, line: &str) -> io::Result<()> {
        let Output::Lines(out) = &mut self.output else {
            return Ok(());
        };
        let time = self.style.time(seen.time, self.before);
        self.before = Some(seen.time);
        let bytes = match self.hex {
            0 => String::new(),
            1 => line::hex(packet.bytes),
            _ => line::hex(seen.bytes),
        };
        writeln!(out, "{time}{line}{bytes}")
    }

    /// Counts a shown packet or frame.
    fn count(&mut self) -> ControlFlow<()> {
        self.shown += 1;
        match self.left {
            Some(count) if self.shown >= count => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    /// Writes buffered output.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.output {
            Output::Lines(out) => out.flush(),
            Output::File(file) => file.flush(),
        }
    }

    /// Ends the output, and prints the counts of a live capture.
    fn end(&mut self, counts: Option<netif::Statistics>) -> Result<(), Failure> {
        match &mut self.output {
            Output::Lines(out) => out.flush()?,
            Output::File(file) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                file.end(now.unwrap_or_default(), counts)?;
            }
        }
        if let Some(counts) = counts {
            let what = match self.output {
                Output::Lines(_) => "packets shown",
                Output::File(_) => "frames written",
            };
            out::note(format_args!(
                "{} {what}\n{} frames received\n{} frames dropped by the kernel",
                self.shown, counts.received, counts.dropped
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
