//! Live capture of an interface.

use std::io;
use std::os::fd::AsFd;

use netif::{CaptureSocket, Filter, FrameKind, Interface, Statistics};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::decode::Types;
use super::{Dump, Seen};
use crate::out::{self, Context, Failure};
use crate::signal::Interrupt;

/// Number of frames between two checks for Ctrl-C.
const BURST: usize = 64;

/// Captures until the dump has enough packets or a signal arrives; returns the kernel's counts.
pub(super) fn run(
    name: &str,
    types: Types,
    interrupt: &Interrupt,
    dump: &mut Dump,
) -> Result<Statistics, Failure> {
    let interface = Interface::by_name(name).map_err(Failure::new)?;
    let filter = Filter::for_capture([types.esp, types.edp]);
    let mut socket = CaptureSocket::open(&interface, &filter).map_err(Failure::new)?;
    out::note(format_args!("listening on {name}; Ctrl-C ends the capture"));
    while !interrupt.is_set() {
        let mut waiting = true;
        for _ in 0..BURST {
            let Some(frame) = receive(&mut socket, name)? else {
                waiting = false;
                break;
            };
            if dump.frame(&frame)?.is_break() {
                return socket.statistics().doing("reading the counts");
            }
        }
        if waiting {
            continue;
        }
        dump.flush()?;
        if wait(&socket, interrupt)? {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
    }
    socket.statistics().doing("reading the counts")
}

/// Receives the next waiting frame.
fn receive<'a>(socket: &'a mut CaptureSocket, name: &str) -> Result<Option<Seen<'a>>, Failure> {
    match socket.receive() {
        Ok(None) => Ok(None),
        Ok(Some(frame)) => Ok(Some(Seen {
            time: frame.time,
            bytes: frame.bytes,
            len: frame.len,
            outgoing: Some(frame.kind == FrameKind::Outgoing),
        })),
        Err(error) if error.kind() == io::ErrorKind::NetworkDown => {
            Interface::by_name(name)
                .map_err(|_| Failure::new(format!("the interface {name} was removed")))?;
            out::note(format_args!("{name} is down: waiting until it is up"));
            Ok(None)
        }
        Err(error) => Err(error).doing(format_args!("receiving on {name}")),
    }
}

/// Waits for frames or a signal; returns true if the reader of the output is gone.
fn wait(socket: &CaptureSocket, interrupt: &Interrupt) -> Result<bool, Failure> {
    let stdout = io::stdout();
    let mut fds = vec![
        PollFd::new(socket.as_fd(), PollFlags::POLLIN),
        // Errors are reported without being requested.
        PollFd::new(stdout.as_fd(), PollFlags::empty()),
    ];
    fds.extend(
        interrupt
            .signals()
            .map(|signals| PollFd::new(signals.as_fd(), PollFlags::POLLIN)),
    );
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(error) => return Err(error).doing("waiting for frames"),
    }
    let gone = fds.get(1).and_then(PollFd::revents);
    Ok(gone.is_some_and(|events| events.contains(PollFlags::POLLERR)))
}
