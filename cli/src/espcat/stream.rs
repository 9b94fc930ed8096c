//! Copies a stream from standard input and to standard output.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use esp_client::{EspListener, EspStream};

use super::flags::Flags;
use super::traffic::Traffic;
use crate::out::{self, Context, Failure, Verdict};

/// Maximum number of bytes that are copied at a time.
const BLOCK: usize = 64 << 10;
/// Maximum wait for the acknowledgement of the last bytes, without -w.
const LAST_BYTES: Duration = Duration::from_secs(60);

/// Accepts a connection and copies.
pub(super) fn listen(flags: &Flags, port: u16) -> Result<Verdict, Failure> {
    let client = flags.carrier.serve()?;
    let mut builder = EspListener::builder().backlog(1);
    if let Some(interface) = &flags.carrier.interface {
        builder = builder.interface(interface);
    }
    let listener = builder.bind_at(&client, port);
    let listener = listener.doing(format_args!("listening on port {port}"))?;
    if flags.verbose {
        out::note(format_args!("listening on port {port}"));
    }
    let accepted = match flags.wait {
        Some(wait) => listener.accept_timeout(wait),
        None => listener.accept(),
    };
    let (stream, peer) = accepted.map_err(Failure::broken)?;
    // Further connections are refused from now on.
    drop(listener);
    if flags.verbose {
        out::note(format_args!("connection from {peer}"));
    }
    copy(flags, stream)
}

/// Connects and copies.
pub(super) fn connect(flags: &Flags, node: &str, port: u16) -> Result<Verdict, Failure> {
    let (client, addr) = flags.carrier.reach(node, port)?;
    let mut builder = EspStream::builder();
    if let Some(wait) = flags.wait {
        builder = builder.timeout(wait);
    }
    let stream = builder.connect_at(&client, addr).map_err(Failure::broken)?;
    if flags.verbose {
        out::note(format_args!("connected to {}", stream.peer_addr()));
    }
    copy(flags, stream)
}

/// Copies in both directions until both have ended.
fn copy(flags: &Flags, stream: EspStream) -> Result<Verdict, Failure> {
    let stream = Arc::new(stream);
    let traffic = Arc::new(Traffic::new(flags.verbose));
    // A thread that reads a terminal cannot be stopped; it ends with the process.
    let (ended, end) = channel();
    if flags.detached {
        stream.shutdown(Shutdown::Write).map_err(Failure::broken)?;
        let _ = ended.send(Ok(()));
    } else {
        let (stream, traffic) = (Arc::clone(&stream), Arc::clone(&traffic));
        let run = move || {
            let sent = send(&stream, &traffic);
            if sent.is_err() {
                // Otherwise, the other direction would wait for a peer that waits for this one.
                let _ = stream.shutdown(Shutdown::Both);
            }
            let _ = ended.send(sent);
        };
        let name = thread::Builder::new().name("stdin".into());
        name.spawn(run).doing("starting a thread")?;
    }
    receive(&stream, &traffic, flags.wait)?;
    wait_for(&end, &traffic, flags.wait)?;
    stream
        .finish(flags.wait.unwrap_or(LAST_BYTES))
        .map_err(Failure::broken)?;
    traffic.report();
    Ok(Verdict::Done)
}

/// Waits for the end of the sending direction. With `wait`, fails if no bytes are copied for that
/// time.
fn wait_for(
    end: &Receiver<Result<(), Failure>>,
    traffic: &Traffic,
    wait: Option<Duration>,
) -> Result<(), Failure> {
    let failed = || Failure::new("a thread failed");
    let Some(limit) = wait else {
        return end.recv().map_err(|_| failed())?;
    };
    loop {
        // Bytes may have been sent by the end of this time.
        let patience = traffic.patience(limit);
        match end.recv_timeout(patience) {
            Ok(sent) => return sent,
            Err(RecvTimeoutError::Disconnected) => return Err(failed()),
            Err(RecvTimeoutError::Timeout) if patience.is_zero() => return Err(idle_for(limit)),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Copies standard input to the stream, and ends the sending direction.
fn send(mut stream: &EspStream, traffic: &Traffic) -> Result<(), Failure> {
    let mut input = io::stdin().lock();
    let mut block = vec![0; BLOCK];
    loop {
        let count = match input.read(&mut block) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).doing("reading standard input"),
        };
        let mut rest = block.get(..count).unwrap_or_default();
        while !rest.is_empty() {
            let written = stream.write(rest).map_err(Failure::broken)?;
            traffic.sent(written);
            rest = rest.get(written..).unwrap_or_default();
        }
    }
    stream.shutdown(Shutdown::Write).map_err(Failure::broken)
}

/// Copies the stream to standard output until its end.
fn receive(
    mut stream: &EspStream,
    traffic: &Traffic,
    wait: Option<Duration>,
) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let mut block = vec![0; BLOCK];
    loop {
        if let Some(wait) = wait {
            let patience = traffic.patience(wait);
            if patience.is_zero() {
                return Err(idle_for(wait));
            }
            // The other direction may have copied bytes by the end of this time.
            stream
                .set_read_timeout(Some(patience))
                .map_err(Failure::broken)?;
        }
        match stream.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                traffic.received(count);
                output.write_all(block.get(..count).unwrap_or_default())?;
                output.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut && wait.is_some() => {}
            Err(error) => return Err(Failure::broken(error)),
        }
    }
}

fn idle_for(wait: Duration) -> Failure {
    Failure::Broken(format!(
        "no data for {wait:?}: the time-out of -w has expired"
    ))
}
