//! Copies between a stream of ESP and the broker's end of a program's socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use esp_client::{EspError, EspStream};
use nix::errno::Errno;

/// Maximum number of bytes that are copied at a time.
const BLOCK: usize = 64 << 10;

/// Interval between checks whether the program is gone while a stream has no room.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Reason why a direction ended.
enum Ended {
    Gracefully,
    /// The program closed its socket with bytes unread, or died.
    Program,
    Stream(io::Error),
}

/// Copies in both directions until both have ended. If the stream fails, or the broker is out of
/// descriptors or threads, passes the error to `failed` before the program's end is closed.
pub(super) fn pump(local: &UnixStream, stream: EspStream, failed: impl FnOnce(&io::Error)) {
    // The only error is a time-out of zero.
    let _ = stream.set_write_timeout(Some(POLL_INTERVAL));
    let stream = Arc::new(stream);
    // Set when the program's end was closed while bytes for it were under way.
    let is_broken = Arc::new(AtomicBool::new(false));
    let (sending, broken) = (Arc::clone(&stream), Arc::clone(&is_broken));
    let sender = local.try_clone().and_then(|other| {
        let thread = thread::Builder::new().name("to-esp".into());
        thread.spawn(move || send(&other, &sending, &broken))
    });
    let Ok(sender) = sender else {
        failed(&Errno::ENOBUFS.into());
        close(local, Shutdown::Both);
        if let Some(stream) = Arc::into_inner(stream) {
            stream.abort();
        }
        return;
    };
    let received = receive(local, &stream);
    match &received {
        Ended::Gracefully => close(local, Shutdown::Write),
        Ended::Stream(error) => {
            // The program finds the end, and the library asks for the error.
            failed(error);
            close(local, Shutdown::Both);
        }
        Ended::Program => {
            is_broken.store(true, Ordering::Release);
            close(local, Shutdown::Both);
        }
    }
    let sent = sender.join();
    let by_program = |ended: &Ended| matches!(ended, Ended::Program);
    if (by_program(&received) || sent.as_ref().is_ok_and(by_program))
        && let Some(stream) = Arc::into_inner(stream)
    {
        stream.abort();
    }
}

fn close(local: &UnixStream, how: Shutdown) {
    // Fails if the program has closed its end.
    let _ = local.shutdown(how);
}

fn read(mut local: &UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match local.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn send(local: &UnixStream, stream: &EspStream, is_broken: &AtomicBool) -> Ended {
    let mut block = vec![0; BLOCK];
    loop {
        let count = match read(local, &mut block) {
            Ok(0) => break,
            Ok(count) => count,
            Err(_) => {
                // The other direction need not wait any longer. The peer gets a reset instead of an
                // end.
                let _ = stream.shutdown(Shutdown::Read);
                return Ended::Program;
            }
        };
        let bytes = block.get(..count).unwrap_or_default();
        match write_all(stream, bytes, is_broken) {
            Ok(true) => {}
            Ok(false) => return Ended::Program,
            Err(error) => {
                // The other direction finds the error after the bytes that have arrived, but only
                // when the program reads. The program may be writing now, so its writes must fail.
                close(local, Shutdown::Read);
                return Ended::Stream(error);
            }
        }
    }
    if is_broken.load(Ordering::Acquire) {
        return Ended::Program;
    }
    match stream.shutdown(Shutdown::Write) {
        Ok(()) => Ended::Gracefully,
        Err(error) => Ended::Stream(error),
    }
}

/// Writes all bytes to the stream. Returns false if the stream has no room and the program is gone:
/// the peer does not read, perhaps because it waits until its own bytes are read, and the thread of
/// the other direction waits for this one.
fn write_all(mut stream: &EspStream, mut bytes: &[u8], is_broken: &AtomicBool) -> io::Result<bool> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) => match EspError::of(&error) {
                Some(EspError::CallTimedOut { .. }) if is_broken.load(Ordering::Acquire) => {
                    return Ok(false);
                }
                Some(EspError::CallTimedOut { .. }) => {}
                _ => return Err(error),
            },
        }
    }
    Ok(true)
}

fn receive(mut local: &UnixStream, mut stream: &EspStream) -> Ended {
    let mut block = vec![0; BLOCK];
    loop {
        match stream.read(&mut block) {
            Ok(0) => return Ended::Gracefully,
            Ok(count) => {
                let bytes = block.get(..count).unwrap_or_default();
                if local.write_all(bytes).is_err() {
                    return Ended::Program;
                }
            }
            Err(error) => return Ended::Stream(error),
        }
    }
}

/// Reads and drops this many bytes of the program.
pub(super) fn drop_bytes(local: &UnixStream, mut count: u64) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    while count > 0 {
        let room = usize::try_from(count).unwrap_or(BLOCK).min(BLOCK);
        match read(local, block.get_mut(..room).unwrap_or_default())? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            taken => count -= taken as u64,
        }
    }
    Ok(())
}
