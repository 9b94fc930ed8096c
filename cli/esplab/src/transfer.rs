//! Checked transfers: `esplab send` and `esplab recv`.
//!
//! The sender writes a header (magic, length, seed) and then a pattern that depends on the seed and
//! the position, so that a lost, duplicated or displaced byte is detected. The receiver answers
//! with the number of correct bytes.

use std::io::{self, Read, Write};

/// First bytes of a transfer.
const MAGIC: [u8; 8] = *b"ESPLAB\x01\n";
/// Bytes of the header: magic, length, seed.
const HEADER: usize = 24;
/// Bytes of the answer: position of the first wrong byte, or of the end.
const ANSWER: usize = 8;
/// Bytes of a write or read: whole words of the pattern.
const CHUNK: usize = 128 * 1024;

/// Result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Length in the header.
    pub bytes: u64,
    /// Number of correct bytes from the start.
    pub right: u64,
}

impl Received {
    /// Returns true if every byte is correct.
    pub(crate) fn is_intact(&self) -> bool {
        self.bytes == self.right
    }
}

/// Error that leaves a transfer without a result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    /// The connection failed.
    #[error("after {at} bytes: {source}")]
    Connection {
        /// Bytes transferred before the error.
        at: u64,
        /// Cause.
        source: io::Error,
    },
    /// The peer is not an `esplab send`.
    #[error("the peer does not send a checked transfer (is it `esplab send` of the same version?)")]
    NotATransfer,
    /// The connection ended too early.
    #[error("the peer ended the connection after {at} of {bytes} bytes")]
    Short {
        /// Bytes transferred before the error.
        at: u64,
        /// Length in the header.
        bytes: u64,
    },
}

/// Sends `bytes` bytes and waits for the receiver's answer. Calls `progress` with the number of
/// bytes written.
pub(crate) fn send(
    stream: &mut (impl Read + Write),
    bytes: u64,
    seed: u64,
    mut progress: impl FnMut(u64),
) -> Result<Received, TransferError> {
    let failed = |at: u64| move |source: io::Error| TransferError::Connection { at, source };
    let mut header = [0u8; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&bytes.to_le_bytes());
    header[16..].copy_from_slice(&seed.to_le_bytes());
    stream.write_all(&header).map_err(failed(0))?;
    let mut chunk = vec![0u8; CHUNK];
    let mut at = 0;
    while at < bytes {
        let part = part(&mut chunk, bytes - at);
        fill(part, seed, at);
        stream.write_all(part).map_err(failed(at))?;
        at += part.len() as u64;
        progress(at);
    }
    stream.flush().map_err(failed(at))?;
    let mut answer = [0u8; ANSWER];
    stream.read_exact(&mut answer).map_err(failed(at))?;
    Ok(Received {
        bytes,
        right: u64::from_le_bytes(answer),
    })
}

/// Receives a transfer, checks it and answers. Calls `progress` with the length in the header and
/// the number of bytes received.
pub(crate) fn receive(
    stream: &mut (impl Read + Write),
    mut progress: impl FnMut(u64, u64),
) -> Result<Received, TransferError> {
    let mut header = [0u8; HEADER];
    stream
        .read_exact(&mut header)
        .map_err(|source| TransferError::Connection { at: 0, source })?;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    if header[..8] != MAGIC {
        return Err(TransferError::NotATransfer);
    }
    let (bytes, seed) = (word(8), word(16));
    let (mut chunk, mut expected) = (vec![0u8; CHUNK], vec![0u8; CHUNK]);
    let (mut at, mut wrong) = (0, None);
    while at < bytes {
        let part = part(&mut chunk, bytes - at);
        fill_from(stream, part, at, bytes)?;
        if wrong.is_none() {
            let expected = &mut expected[..part.len()];
            fill(expected, seed, at);
            if part != expected {
                let offset = part
                    .iter()
                    .zip(expected.iter())
                    .take_while(|(a, b)| a == b)
                    .count();
                wrong = Some(at + offset as u64);
            }
        }
        at += part.len() as u64;
        progress(bytes, at);
    }
    let received = Received {
        bytes,
        right: wrong.unwrap_or(bytes),
    };
    let answer = stream
        .write_all(&received.right.to_le_bytes())
        .and_then(|()| stream.flush());
    answer.map_err(|source| TransferError::Connection { at, source })?;
    Ok(received)
}

/// Returns the part of the chunk for the bytes that are left.
fn part(chunk: &mut [u8], left: u64) -> &mut [u8] {
    let len = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
    &mut chunk[..len]
}

fn fill_from(
    stream: &mut impl Read,
    mut part: &mut [u8],
    mut at: u64,
    bytes: u64,
) -> Result<(), TransferError> {
    while !part.is_empty() {
        match stream.read(part) {
            Ok(0) => return Err(TransferError::Short { at, bytes }),
            Ok(n) => {
                at += n as u64;
                part = &mut part[n..];
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(TransferError::Connection { at, source }),
        }
    }
    Ok(())
}

/// The pattern from position `at`, which is a multiple of 8: words of SplitMix64.
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

    /// A transfer over loopback in which `spoil` may change what the sender writes.
    fn transfer(
        bytes: u64,
        spoil: impl Fn(&mut Vec<u8>) + Send + Sync,
    ) -> Result<Received, TransferError> {
        let failed = |source| TransferError::Connection { at: 0, source };
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let mut sender =
            TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
        let (mut receiver, _) = listener.accept().map_err(failed)?;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut whole = Recorder::default();
                // The recorder has no answer to give.
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
    fn an_intact_transfer_passes() -> Result<(), TransferError> {
        for bytes in [0, 1, 7, 8, CHUNK as u64, CHUNK as u64 + 13, 1 << 20] {
            assert_eq!(
                transfer(bytes, |_| ())?,
                Received {
                    bytes,
                    right: bytes
                }
            );
        }
        Ok(())
    }

    #[test]
    fn one_wrong_bit_is_found_where_it_is() -> Result<(), TransferError> {
        for wrong in [0, 1, 131_071, 131_072, 300_000] {
            let received = transfer(400_000, |all| all[HEADER + wrong] ^= 0x10)?;
            assert_eq!(
                received,
                Received {
                    bytes: 400_000,
                    right: wrong as u64
                }
            );
        }
        Ok(())
    }

    #[test]
    fn a_displaced_part_is_found() -> Result<(), TransferError> {
        let received = transfer(400_000, |all| all[HEADER..].rotate_left(1489))?;
        assert!(!received.is_intact() && received.right < 8, "{received:?}");
        Ok(())
    }

    #[test]
    fn short_transfers_and_other_peers_are_refused() {
        assert!(matches!(
            transfer(1000, |all| all.truncate(HEADER + 10)),
            Err(TransferError::Short {
                at: 10,
                bytes: 1000
            })
        ));
        assert!(matches!(
            transfer(1000, |all| all[0] = b'X'),
            Err(TransferError::NotATransfer)
        ));
        assert!(matches!(
            transfer(1000, Vec::clear),
            Err(TransferError::Connection { at: 0, .. })
        ));
    }
}
