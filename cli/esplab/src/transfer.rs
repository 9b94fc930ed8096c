//! `esplab send` and `esplab recv`: checked transfers.
//!
//! The sender writes a header (magic, length, seed) and then a pattern that depends on the seed and
//! the position, so that a lost, duplicated or displaced byte is detected. The receiver answers
//! with the number of correct bytes.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use clap::Args;
use esp_client::{EspListener, EspStream};
use indicatif::{BinaryBytes, ProgressBar};
use serde::Serialize;

use cli::ends;
use cli::names::Names;
use cli::out::{self, Context, Failure, Verdict};
use cli::units;

/// First bytes of a transfer.
const MAGIC: [u8; 8] = *b"ESPLAB\x01\n";
/// Length of the header in bytes: magic, length, seed.
const HEADER: usize = 24;
/// Length of a write or read in bytes: whole words of the pattern.
const CHUNK: usize = 128 * 1024;

/// Send bytes to `esplab recv` on another node, which checks each of them
#[derive(Debug, Args)]
pub(super) struct SendFlags {
    /// Node and port, such as node1:7000
    #[arg(value_name = "TARGET:PORT")]
    target: String,
    /// Number of bytes, such as 4096, 64m or 1g
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, default_value = "64m")]
    bytes: u64,
    #[command(flatten)]
    output: Output,
}

/// Wait for an `esplab send` and check every byte
#[derive(Debug, Args)]
pub(super) struct RecvFlags {
    /// Port to listen on
    port: u16,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Output {
    /// Show no progress, even on a terminal
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Result of a transfer.
#[derive(Debug, Serialize)]
struct Transferred {
    direction: &'static str,
    peer: String,
    bytes: u64,
    /// Number of correct bytes before the first wrong one.
    right: u64,
    intact: bool,
    seconds: f64,
    gbit_s: f64,
}

impl Output {
    fn bar(&self) -> ProgressBar {
        if self.quiet {
            return ProgressBar::hidden();
        }
        out::progress(
            0,
            "{spinner} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left",
        )
    }

    /// Prints the result of a transfer of `bytes` bytes, of which the first `right` are correct.
    fn show(
        &self,
        direction: &'static str,
        peer: String,
        (bytes, right): (u64, u64),
        took: Duration,
    ) -> Result<Verdict, Failure> {
        let seconds = took.as_secs_f64().max(1e-9);
        let result = Transferred {
            direction,
            peer,
            bytes,
            right,
            intact: bytes == right,
            seconds,
            gbit_s: bytes as f64 * 8.0 / seconds / 1e9,
        };
        if self.json {
            out::json(&result)?;
        } else {
            let content = match result.intact {
                true => "content verified".into(),
                false => format!("WRONG from byte {right}"),
            };
            let to = if direction == "sent" { "to" } else { "from" };
            out::line(format_args!(
                "{} {direction} {to} {} in {seconds:.2} s ({:.2} Gbit/s), {content}",
                BinaryBytes(bytes),
                result.peer,
                result.gbit_s
            ))?;
        }
        Ok(match result.intact {
            true => Verdict::Done,
            false => Verdict::Partly,
        })
    }
}

pub(super) fn run_send(flags: &SendFlags) -> Result<Verdict, Failure> {
    let (target, bytes) = (&flags.target, flags.bytes);
    let connected = EspStream::connect(target);
    let failed = |error| Failure::new(format_args!("{target}: {}", ends::describe(&error)));
    let mut stream = connected.map_err(failed)?;
    let bar = flags.output.bar();
    bar.set_length(bytes);
    // The pattern differs each time, so that data of an earlier transfer cannot pass the check.
    let seed = u64::from(std::process::id()) << 32 | esp_client::monotonic_nanos() & 0xffff_ffff;
    let start = Instant::now();
    let result = send(&mut stream, bytes, seed, |at| bar.set_position(at));
    bar.finish_and_clear();
    let right = result.doing(format_args!("sending to {target}"))?;
    let sizes = (bytes, right);
    let output = &flags.output;
    output.show("sent", target.clone(), sizes, start.elapsed())
}

pub(super) fn run_recv(flags: &RecvFlags) -> Result<Verdict, Failure> {
    let port = format_args!("port {}", flags.port).to_string();
    let listener = EspListener::bind(flags.port).doing(&port)?;
    if !flags.output.json {
        out::line(format_args!("waiting at port {}", listener.port()))?;
    }
    let (mut stream, peer) = listener.accept().doing(&port)?;
    let peer = Names::load().show(peer.addr);
    let bar = flags.output.bar();
    let start = Instant::now();
    let result = receive(&mut stream, |bytes, at| {
        bar.set_length(bytes);
        bar.set_position(at);
    });
    bar.finish_and_clear();
    let sizes = result.doing(format_args!("receiving from {peer}"))?;
    // The program must not end before its answer has arrived.
    stream.finish(Duration::from_secs(10)).doing("answering")?;
    flags.output.show("received", peer, sizes, start.elapsed())
}

/// Adds the position to an error of the connection.
fn at<T>(position: u64, result: io::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Failure::new(format!(
            "the peer ended the connection after {position} bytes or soon after"
        )),
        _ => Failure::new(format!("after {position} bytes: {error}")),
    })
}

/// Sends a transfer and returns the number of correct bytes from the receiver's answer. Calls
/// `progress` with the number of bytes sent.
fn send(
    stream: &mut (impl Read + Write),
    bytes: u64,
    seed: u64,
    mut progress: impl FnMut(u64),
) -> Result<u64, Failure> {
    let words = [bytes.to_le_bytes(), seed.to_le_bytes()];
    at(0, stream.write_all(&[MAGIC, words[0], words[1]].concat()))?;
    let mut chunk = vec![0u8; CHUNK];
    let mut sent = 0;
    while sent < bytes {
        let part = part(&mut chunk, bytes - sent);
        fill(part, seed, sent);
        at(sent, stream.write_all(part))?;
        sent += part.len() as u64;
        progress(sent);
    }
    at(sent, stream.flush())?;
    let mut answer = [0u8; 8];
    at(sent, stream.read_exact(&mut answer))?;
    Ok(u64::from_le_bytes(answer))
}

/// Receives a transfer, checks it, answers, and returns its length and the number of correct bytes.
/// Calls `progress` with the length and the number of bytes received.
fn receive(
    stream: &mut (impl Read + Write),
    mut progress: impl FnMut(u64, u64),
) -> Result<(u64, u64), Failure> {
    let mut header = [0u8; HEADER];
    at(0, stream.read_exact(&mut header))?;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    if header[..8] != MAGIC {
        return Err(Failure::new(
            "the peer does not send a checked transfer (is it `esplab send` of this version?)",
        ));
    }
    let (bytes, seed) = (word(8), word(16));
    let (mut chunk, mut expected) = (vec![0u8; CHUNK], vec![0u8; CHUNK]);
    let (mut received, mut wrong) = (0, None);
    while received < bytes {
        let part = part(&mut chunk, bytes - received);
        at(received, stream.read_exact(part))?;
        let expected = &mut expected[..part.len()];
        fill(expected, seed, received);
        let pairs = || part.iter().zip(expected.iter());
        if wrong.is_none() && part != expected {
            let offset = pairs().take_while(|(a, b)| a == b).count();
            wrong = Some(received + offset as u64);
        }
        received += part.len() as u64;
        progress(bytes, received);
    }
    let right = wrong.unwrap_or(bytes);
    at(received, stream.write_all(&right.to_le_bytes()))?;
    at(received, stream.flush())?;
    Ok((bytes, right))
}

/// Returns the part of the chunk for the remaining bytes.
fn part(chunk: &mut [u8], left: u64) -> &mut [u8] {
    let len = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
    &mut chunk[..len]
}

/// Fills a part with the pattern from position `at`, a multiple of 8: words of SplitMix64.
fn fill(part: &mut [u8], seed: u64, at: u64) {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = seed.wrapping_add((at / 8).wrapping_mul(STEP));
    for word in part.chunks_mut(8) {
        state = state.wrapping_add(STEP);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        word.copy_from_slice(&z.to_le_bytes()[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Runs a transfer over loopback in which `spoil` may change the sender's bytes.
    fn transfer(
        bytes: u64,
        spoil: impl Fn(&mut Vec<u8>) + Send + Sync,
    ) -> Result<(u64, u64), Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut sender = TcpStream::connect(listener.local_addr()?)?;
        let (mut receiver, _) = listener.accept()?;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut whole = Recorder::default();
                // The recorder does not answer, so this returns an error.
                let _ = send(&mut whole, bytes, 7, |_| ());
                spoil(&mut whole.0);
                sender
                    .write_all(&whole.0)
                    .and_then(|()| sender.shutdown(std::net::Shutdown::Write))
            });
            receive(&mut receiver, |_, _| ())
        })
    }

    #[derive(Default)]
    struct Recorder(Vec<u8>);

    impl Read for Recorder {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Ok(0)
        }
    }

    impl Write for Recorder {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_intact_transfer_passes() -> Result<(), Failure> {
        for bytes in [0, 1, 7, 8, CHUNK as u64, CHUNK as u64 + 13, 1 << 20] {
            assert_eq!(transfer(bytes, |_| ())?, (bytes, bytes));
        }
        Ok(())
    }

    #[test]
    fn one_wrong_bit_is_located() -> Result<(), Failure> {
        for wrong in [0, 1, 131_071, 131_072, 300_000] {
            let received = transfer(400_000, |all| all[HEADER + wrong] ^= 0x10)?;
            assert_eq!(received, (400_000, wrong as u64));
        }
        Ok(())
    }

    #[test]
    fn a_displaced_part_is_found() -> Result<(), Failure> {
        let received = transfer(400_000, |all| all[HEADER..].rotate_left(1489))?;
        assert!(received.1 < 8, "{received:?}");
        Ok(())
    }

    #[test]
    fn short_transfers_and_other_peers_are_refused() {
        let refused = |spoil: fn(&mut Vec<u8>)| transfer(1000, spoil).unwrap_err().to_string();
        let short = refused(|all| all.truncate(HEADER + 10));
        assert!(short.contains("ended the connection"), "{short}");
        let other = refused(|all| all[0] = b'X');
        assert!(other.contains("not send a checked transfer"), "{other}");
        let nothing = refused(Vec::clear);
        assert!(nothing.contains("after 0 bytes"), "{nothing}");
    }
}
